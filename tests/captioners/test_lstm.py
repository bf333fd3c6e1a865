"""The recurrent captioners against slow computations from their equations."""

import math

import pytest
import torch

from pictures import CAPTIONS, images
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.fresh import fresh_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.scoring import score
from tellapart.errors import UsageError
from tellapart.types import Batch, Decoding
from tiny_lstm import KINDS, batch, features, tiny_lstm

kinds = pytest.mark.parametrize("kind", KINDS)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def affine(layer, vector, weight="weight", bias="bias"):
    rows, offset = getattr(layer, weight).tolist(), getattr(layer, bias).tolist()
    return [sum(w * v for w, v in zip(row, vector, strict=True)) + b for row, b in zip(rows, offset, strict=True)]


def add(*vectors):
    return [sum(values) for values in zip(*vectors, strict=True)]


def slow_fc(model, seen, tokens):
    """Hidden states after each token, by the equations of the LSTM; ``seen`` is one list."""
    size = model.config.hidden_size
    h = c = affine(model.image_projection, seen)
    for token in tokens:
        x = model.embedding.weight[token].tolist()
        gates = add(
            affine(model.lstm, x, "weight_ih_l0", "bias_ih_l0"), affine(model.lstm, h, "weight_hh_l0", "bias_hh_l0")
        )
        i, f, g, o = (gates[n * size : (n + 1) * size] for n in range(4))
        c = [sigmoid(f[d]) * c[d] + sigmoid(i[d]) * math.tanh(g[d]) for d in range(size)]
        h = [sigmoid(o[d]) * math.tanh(c[d]) for d in range(size)]
        yield h


def slow_att(model, seen, tokens):
    """The same for Att2in2; ``seen`` is a list of regions."""
    size = model.config.hidden_size
    h, c = [0.0] * size, [0.0] * size
    regions = [[max(v, 0.0) for v in affine(model.region_projection, region)] for region in seen]
    for token in tokens:
        x = [max(v, 0.0) for v in model.embedding.weight[token].tolist()]
        query = affine(model.state_query, h)
        scores = [
            affine(
                model.attention_score,
                [math.tanh(k + q) for k, q in zip(affine(model.region_key, r), query, strict=False)],
            )[0]
            for r in regions
        ]
        weights = [math.exp(s) / sum(map(math.exp, scores)) for s in scores]
        attended = add(*[[w * v for v in r] for w, r in zip(weights, regions, strict=True)])
        gates = add(affine(model.word_gates, x), affine(model.state_gates, h))
        i, f, o, first, second = (gates[n * size : (n + 1) * size] for n in range(5))
        more = affine(model.attended_gates, attended)
        z = [max(first[d] + more[d], second[d] + more[size + d]) for d in range(size)]
        c = [sigmoid(f[d]) * c[d] + sigmoid(i[d]) * z[d] for d in range(size)]
        h = [sigmoid(o[d]) * math.tanh(c[d]) for d in range(size)]
        yield h


def slow_lstm(gates, c):
    """``h`` and ``c`` from the gates i, f, g, o, one after the other."""
    size = len(c)
    i, f, g, o = (gates[n * size : (n + 1) * size] for n in range(4))
    c = [sigmoid(f[d]) * c[d] + sigmoid(i[d]) * math.tanh(g[d]) for d in range(size)]
    return [sigmoid(o[d]) * math.tanh(c[d]) for d in range(size)], c


def slow_updown(model, seen, tokens):
    """The same for Up-Down: equations 1 to 7 of Anderson et al. with concatenated inputs and one matrix per LSTM."""
    size = model.config.hidden_size

    def joined(*layers):
        """The rows of several layers side by side, as one matrix, and the sum of their biases."""
        rows = torch.cat([layer.weight for layer in layers], dim=1).tolist()
        biases = [layer.bias.tolist() for layer in layers if layer.bias is not None]
        return rows, add(*biases)

    def product(matrix, vector):
        return [sum(w * v for w, v in zip(row, vector, strict=True)) for row in matrix]

    first, first_bias = joined(model.state_gates, model.image_gates, model.word_gates)
    second, second_bias = joined(model.attended_gates, model.language_gates)
    h1, c1, h2, c2 = ([0.0] * size for _ in range(4))
    mean = [sum(column) / len(seen) for column in zip(*seen, strict=True)]
    for token in tokens:
        word = model.embedding.weight[token].tolist()
        h1, c1 = slow_lstm(add(product(first, [*h1, *h2, *mean, *word]), first_bias), c1)
        query = product(model.state_query.weight.tolist(), h1)
        scores = [
            sum(
                w * math.tanh(k + q)
                for w, k, q in zip(
                    model.attention_score.weight[0].tolist(),
                    product(model.region_key.weight.tolist(), region),
                    query,
                    strict=True,
                )
            )
            for region in seen
        ]
        weights = [math.exp(s) / sum(map(math.exp, scores)) for s in scores]
        attended = add(*[[w * v for v in region] for w, region in zip(weights, seen, strict=True)])
        h2, c2 = slow_lstm(add(product(second, [*attended, *h1, *h2]), second_bias), c2)
        yield h2


SLOW = {"fc_lstm": slow_fc, "att2in2": slow_att, "updown": slow_updown}


def slow_logprobs(captioner, kind, images_of, row, tokens):
    """``log p`` of every word after each prefix of ``tokens``, plain Python; begins with BOS."""
    model, seen = captioner.family.model, images_of.inputs["captioner"]
    rows = seen["features"][row].tolist()
    if kind != "fc_lstm":
        rows = [region for region, real in zip(rows, seen["mask"][row].tolist(), strict=True) if real]
    for hidden in SLOW[kind](model, rows, [1, *tokens]):
        logits = affine(model.head, hidden)
        total = math.log(sum(map(math.exp, logits)))
        yield [value - total for value in logits]


@kinds
def test_scores_follow_the_equations(kind):
    captioner, pictures = tiny_lstm(kind), batch(kind, 3)
    texts = ["a red circle on a table", "a blue star", "a green moon on a table"]
    rollout = captioner.tokenize(pictures, texts, torch.tensor([0, 2, 1]))
    logprobs = captioner(rollout).logprobs
    for n, image in enumerate([0, 2, 1]):
        tokens = rollout.tokens[n][rollout.mask[n]].tolist()
        wanted = [p[t] for p, t in zip(slow_logprobs(captioner, kind, pictures, image, tokens), tokens, strict=False)]
        assert logprobs[n][rollout.mask[n]].tolist() == pytest.approx(wanted, abs=2e-5)


@kinds
def test_contract(kind):
    check_captioner(tiny_lstm(kind), batch(kind, 4))


@kinds
def test_one_pass_is_as_good_as_the_shared_prefix(kind):
    captioner, pictures = tiny_lstm(kind), batch(kind, 3)
    rollout = captioner.generate(pictures, Decoding(do_sample=True, num_return_sequences=4, max_new_tokens=9))
    encoded = captioner.encode(pictures)
    args = (captioner.family, encoded, rollout.image, rollout.tokens, rollout.mask)
    alone = score(*args, share_prefix=False)
    assert torch.allclose(alone.logprobs, score(*args).logprobs, atol=1e-5)
    assert alone.logprobs.shape == rollout.mask.shape


def slow_beams(step, beams, longest, penalty, banned, eos):
    """Beam search in plain Python; ``step(tokens)`` gives the log-probabilities of what follows.

    Running beams are continued by the likeliest words; a continuation that ends and is among the best ``beams`` is kept
    by its score over its length to the power of the penalty; the search stops when the best running beam cannot beat the
    worst of ``beams`` kept ones.
    """
    running, ended = [(0.0, [])], []
    for length in range(1, longest + 1):
        options = sorted(
            (
                (total + logprob, [*tokens, word])
                for total, tokens in running
                for word, logprob in enumerate(step(tokens))
                if word not in banned
            ),
            key=lambda option: -option[0],
        )[: 2 * beams]
        last = length == longest
        ends = [(s / length**penalty, t) for s, t in options[:beams] if last or t[-1] == eos]
        ended = sorted(ended + ends, key=lambda option: -option[0])[:beams]
        running = [(s, t) for s, t in options if t[-1] != eos][:beams]
        if len(ended) == beams and running[0][0] / length**penalty <= ended[-1][0]:
            break
    return [tokens for _, tokens in ended]


@kinds
@pytest.mark.parametrize(("eos_bias", "penalty"), [(1.0, 1.0), (2.5, 0.0), (0.0, 2.0)])
def test_beams_are_those_of_a_slow_search(kind, eos_bias, penalty):
    captioner, pictures = tiny_lstm(kind, eos_bias=eos_bias), batch(kind, 4)
    decoding = Decoding(num_beams=3, num_return_sequences=3, max_new_tokens=5, length_penalty=penalty)
    rollout = captioner.generate(pictures, decoding)
    found = [row[:length] for row, length in zip(rollout.tokens.tolist(), rollout.lengths.tolist(), strict=True)]
    for image in range(4):

        def step(tokens, image=image):
            return list(slow_logprobs(captioner, kind, pictures, image, tokens))[-1]

        wanted = slow_beams(step, 3, 5, penalty, {0, 1, 3}, 2)
        assert found[3 * image : 3 * image + 3] == wanted


@kinds
def test_greedy_is_the_likeliest_word_each_time(kind):
    captioner, pictures = tiny_lstm(kind), batch(kind, 3)
    rollout = captioner.generate(pictures, Decoding(max_new_tokens=6))
    for image in range(3):
        tokens = rollout.tokens[image][rollout.mask[image]].tolist()
        for token, logprobs in zip(tokens, slow_logprobs(captioner, kind, pictures, image, tokens), strict=False):
            assert token == max((w for w in range(len(logprobs)) if w not in (0, 1, 3)), key=logprobs.__getitem__)


@kinds
def test_samples_follow_the_distribution_without_unknown_words(kind):
    """Chi-square over 2000 first words; the seed is fixed, a p-value below 1e-4 is a fault."""
    captioner, pictures = tiny_lstm(kind, eos_bias=0.0), batch(kind, 1)
    with torch.no_grad():
        captioner.family.model.head.bias[3] += 3.0  # <unk> is likely, and must not be drawn
    torch.manual_seed(0)
    rollout = captioner.generate(pictures, Decoding(do_sample=True, num_return_sequences=2000, max_new_tokens=1))
    logprobs = next(slow_logprobs(captioner, kind, pictures, 0, []))
    allowed = [0.0 if w in (0, 1, 3) else math.exp(p) for w, p in enumerate(logprobs)]
    assert math.exp(logprobs[3]) > 0.1
    expected = torch.tensor(allowed, dtype=torch.float64) * 2000 / sum(allowed)
    counts = torch.bincount(rollout.tokens[:, 0], minlength=len(expected)).double()
    assert not counts[[0, 1, 3]].any()
    common, rare = expected >= 5, (expected > 0) & (expected < 5)
    groups = [common.nonzero().flatten().split(1), [rare.nonzero().flatten()] if bool(rare.any()) else []]
    observed, wanted = (torch.stack([v[g].sum() for part in groups for g in part]) for v in (counts, expected))
    statistic = ((observed - wanted).square() / wanted).sum()
    degrees = torch.tensor(float(len(observed) - 1), dtype=torch.float64)
    assert torch.special.gammaincc(degrees / 2, statistic / 2) > 1e-4


def test_captions_end_where_the_padding_token_or_bos_is_the_eos():
    captioner = tiny_lstm("fc_lstm")
    config = captioner.family.model.config
    config.pad_token_id = config.bos_token_id = config.eos_token_id
    captioner = HuggingFaceCaptioner.from_parts(captioner.family.model, None, captioner.tokenizer)
    assert captioner.family.never_drawn == [config.unk_token_id]
    assert captioner.generate(batch("fc_lstm", 3), Decoding(max_new_tokens=40)).finished.any()


@pytest.mark.parametrize("kind", ["att2in2", "updown"])
def test_padded_regions_change_nothing(kind):
    captioner, pictures = tiny_lstm(kind), batch(kind, 1)
    seen = pictures.inputs["captioner"]
    padded = {
        "features": torch.cat([seen["features"], torch.full((1, 5, 6), 9.0)], dim=1),
        "mask": torch.cat([seen["mask"], torch.zeros(1, 5, dtype=torch.bool)], dim=1),
    }
    wide = Batch(pictures.ids, pictures.references, {"captioner": padded})
    scores = [
        captioner(captioner.tokenize(which, ["a red star"], torch.tensor([0]))).logprobs for which in (pictures, wide)
    ]
    assert torch.allclose(*scores, atol=1e-6)


def test_the_fc_lstm_reads_regions_as_their_mean():
    captioner, regions = tiny_lstm("fc_lstm"), features("att2in2", 3)
    means = (regions["features"].sum(dim=1) / regions["mask"].sum(dim=1, keepdim=True)).clone()
    pictures = Batch(["a", "b", "c"], [[]] * 3, {"captioner": regions})
    assert torch.allclose(captioner.encode(pictures).states[:, 0], means, atol=1e-6)
    unmasked = Batch(["a", "b", "c"], [[]] * 3, {"captioner": {"features": regions["features"]}})
    assert torch.allclose(captioner.encode(unmasked).states[:, 0], regions["features"].mean(dim=1), atol=1e-6)


@kinds
def test_saved_and_loaded_and_kept_as_reference(kind, tmp_path):
    captioner, pictures = tiny_lstm(kind), batch(kind, 2)
    rollout = captioner.tokenize(pictures, ["a red star", "a blue, unheard-of thing"], torch.tensor([0, 1]))
    wanted = captioner(rollout).logprobs
    captioner.save(tmp_path)
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path).eval()
    assert type(loaded.family.model) is type(captioner.family.model)
    assert torch.equal(loaded(rollout).logprobs, wanted)
    again = loaded.tokenize(pictures, ["a red star", "a blue, unheard-of thing"], torch.tensor([0, 1]))
    assert torch.equal(again.tokens, rollout.tokens)
    assert loaded.max_caption_tokens == 20
    reference = captioner.reference()
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter += 0.1
    # without gradients torch takes another kernel for the LSTM, which rounds otherwise
    assert torch.allclose(reference(rollout).logprobs, wanted, atol=1e-6)
    assert not torch.allclose(captioner(rollout).logprobs, wanted, atol=1e-3)
    captioner.load_weights(tmp_path)
    assert torch.equal(captioner(rollout).logprobs, wanted)


@kinds
def test_gradients_reach_every_weight_and_dropout_only_acts_in_train_mode(kind):
    captioner, pictures = tiny_lstm(kind, hidden_size=16), batch(kind, 4)
    rollout = captioner.tokenize(pictures, [texts[0] for texts in pictures.references], torch.arange(4))
    assert torch.equal(captioner(rollout).logprobs, captioner(rollout).logprobs)
    (-captioner(rollout).logprobs.sum()).backward()
    # a shift common to all regions' scores leaves the softmax as it is
    silent = {"network.attention_score.bias"}
    for name, parameter in captioner.named_parameters():
        assert parameter.grad is not None, name
        assert name in silent or bool(parameter.grad.any()), name
    captioner.train()
    assert not torch.equal(captioner(rollout).logprobs, captioner(rollout).logprobs)


@kinds
def test_the_plain_model_gives_the_same_logits(kind):
    captioner, pictures = tiny_lstm(kind), batch(kind, 2)
    rollout = captioner.tokenize(pictures, ["a red star", "a blue ring"], torch.tensor([0, 1]))
    words = torch.cat([torch.ones(2, 1, dtype=torch.long), rollout.tokens[:, :-1]], dim=1)
    logits = captioner.family.model(**pictures.inputs["captioner"], input_ids=words)
    assert torch.allclose(logits, captioner(rollout, want=["logits"]).logits, atol=1e-5)


def test_cudnn_can_differentiate_the_lstm_in_eval_mode():
    """It refuses to where the LSTM itself is in eval mode ("can only be called in training mode")."""
    captioner = tiny_lstm("fc_lstm").eval()
    model = captioner.family.model
    assert model.lstm.training
    assert model.lstm.dropout == 0
    assert not model.training
    assert not model.dropout.training


@pytest.mark.gpu
@kinds
def test_learning_in_eval_mode_on_an_accelerator(kind):
    if not torch.cuda.is_available():
        pytest.skip("no accelerator")
    captioner, pictures = tiny_lstm(kind), batch(kind, 4)
    rollout = captioner.tokenize(pictures, [texts[0] for texts in pictures.references], torch.arange(4))
    wanted = captioner(rollout).logprobs
    moved = captioner.cuda()
    check_captioner(moved, pictures.to("cuda"))
    there = moved.tokenize(pictures.to("cuda"), rollout.texts, torch.arange(4))
    logprobs = moved(there).logprobs
    assert torch.allclose(logprobs.cpu(), wanted, atol=1e-3)
    logprobs.sum().backward()


def test_the_width_of_attention_is_that_of_the_states_unless_given():
    sizes = {"feature_size": 6, "hidden_size": 8, "min_count": 1}
    for kind in ("att2in2", "updown"):
        assert fresh_captioner(kind, CAPTIONS, **sizes).family.model.state_query.out_features == 8
        assert fresh_captioner(kind, CAPTIONS, **sizes, attention_size=5).family.model.region_key.out_features == 5
    with pytest.raises(UsageError, match=r"attends to nothing: leave captioner.new.attention_size out"):
        fresh_captioner("fc_lstm", CAPTIONS, **sizes, attention_size=5)
    with pytest.raises(ValueError, match="attention_size=0 must be at least 1"):
        fresh_captioner("updown", CAPTIONS, **sizes, attention_size=0)


@pytest.mark.parametrize("kind", ["att2in2", "updown"])
def test_what_cannot_be_done_is_told(kind, tmp_path):
    captioner = tiny_lstm(kind)
    flat = Batch(["a"], [[]], {"captioner": features("fc_lstm", 1)})
    with pytest.raises(UsageError, match=f"{kind} captioners attend to regions"):
        captioner.encode(flat)
    with pytest.raises(UsageError, match="reads features, not pictures"):
        captioner.process(images(1))
    captioner.save(tmp_path)
    with pytest.raises(UsageError, match="leave lora out"):
        HuggingFaceCaptioner.from_pretrained(tmp_path, lora=LoraOptions())
    with pytest.raises(UsageError, match=f"a {kind} captioner cannot be asked 'a photo of'"):
        HuggingFaceCaptioner.from_pretrained(tmp_path, prompt="a photo of")
