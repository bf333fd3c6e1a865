"""Drawing captions: against Hugging Face's generate, and the properties it must have."""

import math
from types import SimpleNamespace

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from tellapart.captioners.base import Captioner, Encoded
from tellapart.captioners.drawing import Restriction, block_repeated_ngrams, highest, inverse_cdf
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.modes import drawing_in
from tellapart.errors import UsageError
from tellapart.objectives.common import rollout_logs
from tellapart.types import Decoding
from tiny_models import batch_of, tiny_blip, tiny_ved

MAKERS = [tiny_ved, tiny_blip]


def hugging_face(captioner, batch, **settings):
    """Caption tokens by the model's own generate, cut after the first EOS in plain Python."""
    states = captioner.encode(batch).states
    family = captioner.family
    settings = {"max_new_tokens": 20, "do_sample": False, **settings}
    with torch.no_grad():
        if family.model.config.model_type == "blip":
            start = torch.full((len(batch), 1), family.start[0])
            output = family.model.text_decoder.generate(
                input_ids=start,
                encoder_hidden_states=states,
                eos_token_id=family.eos,
                pad_token_id=family.pad,
                **settings,
            )
        else:
            fresh = BaseModelOutput(last_hidden_state=states)
            output = family.model.generate(encoder_outputs=fresh, **settings)
    rows = output[:, 1:].tolist()
    return [row[: row.index(family.eos[0]) + 1] if family.eos[0] in row else row for row in rows]


def rows_of(rollout):
    return [row[:length] for row, length in zip(rollout.tokens.tolist(), rollout.lengths.tolist(), strict=True)]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("settings", [{}, {"min_new_tokens": 6}, {"no_repeat_ngram_size": 2}])
def test_greedy_is_hugging_faces_token_for_token(make, settings):
    captioner = make()
    batch = batch_of(captioner, 12)
    drawn = captioner.generate(batch, Decoding(max_new_tokens=20, **settings))
    assert rows_of(drawn) == hugging_face(captioner, batch, **settings)
    assert len({len(row) for row in rows_of(drawn)}) > 2, "captions of one length would leave row compaction untested"


def test_ids_that_may_not_follow_are_copied_to_the_device_once(monkeypatch):
    """Each copy at a word would make a GPU wait. By hand: 1 is never drawn, 4 ends a caption, and "0 2" and "2 3" were there."""
    family = SimpleNamespace(never_drawn=[1], eos=[4], before_captions=lambda encoded: torch.tensor([[-1, 0]]))
    decoding, one = Decoding(min_new_tokens=4, no_repeat_ngram_size=2), Encoded(torch.zeros(1, 1, 1))
    restricted = Restriction(family, decoding, torch.device("cpu"), one)
    monkeypatch.setattr(torch, "tensor", lambda *_, **__: pytest.fail("copied again"))

    def allowed(*words):
        scores = restricted(torch.zeros(1, 6), torch.LongTensor([words]))
        return [word for word, score in enumerate(scores[0].tolist()) if score == 0]

    assert allowed(2, 3, 2) == [0, 2, 5]
    assert allowed(2, 3, 5, 2) == [0, 2, 4, 5]
    assert allowed() == [0, 2, 3, 5]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("length_penalty", [1.0, 0.0])
def test_beams_are_hugging_faces_and_image_major(make, length_penalty):
    captioner = make()
    batch = batch_of(captioner, 5)
    settings = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": length_penalty}
    drawn = captioner.generate(batch, Decoding(max_new_tokens=20, **settings))
    assert rows_of(drawn) == hugging_face(captioner, batch, **settings)
    assert drawn.image.tolist() == [i for i in range(5) for _ in range(3)]
    alone = captioner.generate(batch.select([3]), Decoding(max_new_tokens=20, **settings))
    assert rows_of(alone) == rows_of(drawn)[9:12]


@pytest.mark.parametrize("make", MAKERS)
def test_one_encoding_serves_many_calls(make):
    """Hugging Face's generate expands the object it is handed: the second call would see other images."""
    captioner = make()
    batch = batch_of(captioner, 2)
    encoded = captioner.encode(batch)
    before = encoded.states.clone()
    beams = Decoding(num_beams=3, num_return_sequences=3, max_new_tokens=12)
    first = captioner.generate(batch, beams, encoded=encoded)
    second = captioner.generate(batch, beams, encoded=encoded)
    assert torch.equal(encoded.states, before)
    assert rows_of(first) == rows_of(second)
    assert rows_of(first)[:3] != rows_of(first)[3:]


@pytest.mark.parametrize("make", MAKERS)
def test_samples_depend_on_image_and_seed_only(make):
    captioner = make()
    batch = batch_of(captioner, 6)
    samples = Decoding(do_sample=True, num_return_sequences=4, max_new_tokens=20)

    def draw(index, seed=3):
        torch.manual_seed(seed)
        rollout = captioner.generate(batch.select(index), samples)
        rows, count = rows_of(rollout), samples.num_return_sequences
        return {image: rows[count * i : count * (i + 1)] for i, image in enumerate(rollout.batch.ids)}

    whole = draw(range(6))
    assert draw([5, 4, 3, 2, 1, 0]) == whole
    assert draw([0, 1]) | draw([2, 3, 4]) | draw([5]) == whole
    assert draw(range(6), seed=4) != whole
    assert len({tuple(row) for rows in whole.values() for row in rows}) > 12


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 2.0, "top_k": 4}, {"min_new_tokens": 5, "no_repeat_ngram_size": 2}]
)
def test_samples_and_greedy_captions_of_one_loop_are_those_of_two(make, settings):
    captioner = make()
    batch = batch_of(captioner, 6)
    decoding = Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=20, **settings)
    torch.manual_seed(3)
    samples, greedy = captioner.generate_with_greedy(batch, decoding)
    after = torch.rand(1)
    torch.manual_seed(3)
    apart = Captioner.generate_with_greedy(captioner, batch, decoding)
    assert torch.equal(after, torch.rand(1)), "one number of the global generator, as for samples alone"
    for one, other in zip((samples, greedy), apart, strict=True):
        assert rows_of(one) == rows_of(other)
        assert one.image.tolist() == other.image.tolist()
        assert one.texts == other.texts
        assert torch.equal(one.finished, other.finished)
    assert rows_of(samples)[::3] != rows_of(greedy)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3, "num_return_sequences": 3}, {"no_repeat_ngram_size": 2}])
def test_beams_and_greedy_captions_of_one_loop_are_those_of_two(make, settings):
    captioner = make()
    batch = batch_of(captioner, 6)
    decoding = Decoding(**({"num_beams": 5, "max_new_tokens": 20} | settings))
    for greedy in (None, Decoding(max_new_tokens=20, min_new_tokens=3), Decoding(max_new_tokens=9)):
        together = captioner.generate_with_greedy(batch, decoding, greedy=greedy)
        apart = Captioner.generate_with_greedy(captioner, batch, decoding, greedy=greedy)
        for one, other in zip(together, apart, strict=True):
            assert rows_of(one) == rows_of(other)
            assert one.texts == other.texts
            assert torch.equal(one.finished, other.finished)


@pytest.mark.parametrize("make", MAKERS)
def test_log_probabilities_of_drawing_are_those_of_scoring(make):
    captioner = make()
    batch = batch_of(captioner, 4)
    for settings in ({}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"no_repeat_ngram_size": 2}):
        decoding = Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=20, **settings)
        rollout, met = captioner.draw(batch, decoding)
        scored = captioner(rollout).logprobs
        assert (scored - met).abs().max() < 2e-5
        assert not scored[~rollout.mask].any()


@pytest.mark.parametrize("settings", [{"top_k": 3}, {"top_p": 0.5}])
def test_truncation_keeps_what_it_should(settings):
    captioner = tiny_ved()
    batch = batch_of(captioner, 8)
    decoding = Decoding(do_sample=True, num_return_sequences=4, max_new_tokens=12, **settings)
    rollout = captioner.generate(batch, decoding)
    probabilities = captioner(rollout, want=["logits"]).logits.softmax(dim=-1)
    for row, column in rollout.mask.nonzero().tolist():
        spread, token = probabilities[row, column], rollout.tokens[row, column]
        likelier = spread[spread > spread[token]]
        if "top_k" in settings:
            assert len(likelier) < 3
        else:
            assert likelier.sum() < 0.5 + 1e-5


def test_first_tokens_follow_the_models_distribution():
    """Chi-square over 2000 draws of one image's first token; the seed is fixed, a p-value below 1e-4 a fault."""
    captioner = tiny_ved()
    batch = batch_of(captioner, 1)
    torch.manual_seed(0)
    rollout = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=2000, max_new_tokens=1))
    logits = captioner(rollout.select([0]), want=["logits"]).logits[0, 0]
    expected = 2000 * logits.softmax(dim=-1).detach().double()
    counts = torch.bincount(rollout.tokens[:, 0], minlength=len(expected)).double()
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]])
    statistic = ((observed - wanted).square() / wanted).sum()
    degrees = torch.tensor(float(len(observed) - 1), dtype=torch.float64)
    assert torch.special.gammaincc(degrees / 2, statistic / 2) > 1e-4
    assert len(observed) > 10


def test_the_highest_is_argmax_and_the_first_of_equals():
    scores = torch.randint(0, 4, (200, 70), generator=torch.Generator().manual_seed(0)).float()
    scores[1] = -math.inf
    scores[2, 5:] = math.nan
    wanted = [row.index(max(row)) for row in scores[3:].tolist()]
    assert highest(scores).tolist() == [scores[0].tolist().index(scores[0].max()), 0, 5, *wanted]
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(highest(scores.to(dtype)), scores.to(dtype).argmax(dim=1))


def test_inverse_cdf_by_hand():
    scores = torch.tensor([[0.1, 0.2, 0.0, 0.7]]).log().expand(6, -1)
    uniform = torch.tensor([0.0, 0.0999, 0.1001, 0.2999, 0.3001, 1 - 2**-53], dtype=torch.float64)
    assert inverse_cdf(scores, uniform).tolist() == [0, 0, 1, 1, 3, 3]


def test_inverse_cdf_never_draws_the_impossible():
    """The largest number below 1 becomes 1 in float32, beyond every cumulative value: the last possible id is drawn."""
    scores = torch.full((3, 1000), -math.inf)
    scores[:, :700] = torch.randn(3, 700)
    nearly_one = torch.full((3,), 1 - 2**-53, dtype=torch.float64)
    assert inverse_cdf(scores, nearly_one).tolist() == [699] * 3
    assert inverse_cdf(scores, torch.zeros(3)).tolist() == [0] * 3


def test_ngram_blocking_against_plain_python():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 5, (20, 12), generator=generator)
    for size in (1, 2, 3):
        blocked = block_repeated_ngrams(torch.zeros(20, 5), tokens, size)
        for row, given in zip(blocked, tokens.tolist(), strict=True):
            seen = {tuple(given[i : i + size]) for i in range(len(given) - size + 1)}
            last = tuple(given[len(given) - size + 1 :])
            assert [math.isinf(value) for value in row] == [(*last, token) in seen for token in range(5)]
        for other in (-1, 5):  # padding, and an id that is only read
            padded = torch.nn.functional.pad(tokens, (3, 0), value=other)
            assert torch.equal(block_repeated_ngrams(torch.zeros(20, 5), padded, size), blocked)


@pytest.mark.parametrize("make", MAKERS)
def test_generate_leaves_modes_and_ignores_dropout_and_checkpointing(make, tmp_path):
    """Train mode with checkpointing makes Hugging Face's generate drop its cache: captions would come out different."""
    captioner = make(tmp_path, gradient_checkpointing=True)
    batch = batch_of(captioner, 4)
    wanted = rows_of(captioner.generate(batch, Decoding(max_new_tokens=16)))
    beams = rows_of(captioner.generate(batch, Decoding(num_beams=2, max_new_tokens=16)))
    captioner.train()
    before = {name: module.training for name, module in captioner.named_modules()}
    drawn = captioner.generate(batch, Decoding(max_new_tokens=16))
    assert rows_of(drawn) == wanted
    assert rows_of(captioner.generate(batch, Decoding(num_beams=2, max_new_tokens=16))) == beams
    assert {name: module.training for name, module in captioner.named_modules()} == before
    assert any(before.values())
    assert not any(module.training for module in captioner.family.vision.modules())


def test_eos_is_in_the_mask_even_where_padding_is_eos():
    """GPT-2's padding id is its EOS id: a mask made by comparing with it would lose every EOS."""
    captioner = tiny_ved()
    captioner.family.pad = captioner.text.pad = captioner.family.eos[0]
    batch = batch_of(captioner, 8)
    rollout = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=4, max_new_tokens=20))
    last = rollout.tokens.gather(1, (rollout.lengths - 1)[:, None]).squeeze(1)
    assert rollout.finished.any()
    assert torch.equal(last == 3, rollout.finished)
    assert not (rollout.tokens[~rollout.mask] != 3).any()
    assert all("</s>" not in text and text == text.strip() for text in rollout.texts)


def test_a_checkpoints_decoding_defaults_do_not_leak():
    plain, loaded = tiny_ved(), tiny_ved()
    loaded.family.model.generation_config.update(
        repetition_penalty=5.0, num_beams=3, forced_bos_token_id=9, min_length=10
    )
    loaded = type(loaded).from_parts(loaded.family.model, loaded.image_processor, loaded.tokenizer).eval()
    batch = batch_of(plain, 4)
    for decoding in (Decoding(max_new_tokens=16), Decoding(num_beams=3, max_new_tokens=16)):
        assert rows_of(loaded.generate(batch, decoding)) == rows_of(plain.generate(batch, decoding))


@pytest.mark.parametrize("make", MAKERS)
def test_drawing_in_bfloat16_leaves_scores_in_float32_and_tells_the_difference(make):
    exact, rounded = make(), make()
    rounded.rollout_dtype = "bfloat16"
    batch = batch_of(exact, 4)
    decoding = Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=12)
    torch.manual_seed(0)
    assert exact.generate(batch, decoding).dtype_difference is None
    torch.manual_seed(0)
    drawn = rounded.generate(batch, decoding)
    scores = rounded(drawn).logprobs
    assert scores.dtype is torch.float32
    assert torch.equal(scores, exact(drawn).logprobs)
    encoded = exact.encode(batch)  # in float32 as the states that are shared with scoring
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        below = exact(drawn, encoded=encoded).logprobs
    gaps = (below - scores).abs()
    wanted = [float(gaps[row][drawn.mask[row]].mean()) for row in range(6)]  # of two images with three captions each
    torch.testing.assert_close(drawn.dtype_difference, torch.tensor(wanted), rtol=0.2, atol=1e-4)
    assert 0 < float(drawn.dtype_difference.mean()) < 0.1
    beams, _ = rounded.generate_with_greedy(batch, Decoding(num_beams=3, max_new_tokens=12))
    assert len(beams.dtype_difference) == 2
    _, met = rounded.draw(batch, decoding)
    assert met.dtype is torch.float32
    assert rollout_logs(drawn, torch.rand(12))["rollout_dtype_difference"] is drawn.dtype_difference


def test_tf32_needs_cuda():
    captioner = MAKERS[0]()
    captioner.rollout_dtype = "tf32"
    with pytest.raises(UsageError, match="needs a CUDA device"):
        captioner.generate(batch_of(captioner, 2), Decoding(max_new_tokens=4))
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.fixture
def matmul():
    """Torch's settings of products on CUDA, which it lets be made without CUDA too."""
    yield torch.backends.cuda.matmul
    torch.set_float32_matmul_precision("highest")


def test_precisions_that_a_program_has_set_stay(matmul):
    """float32 turned "medium" into "high"."""
    gpu = torch.device("cuda")
    torch.set_float32_matmul_precision("medium")
    for dtype in ("float32", "tf32"):
        with drawing_in(dtype, gpu):
            assert torch.get_float32_matmul_precision() == "medium"
        assert torch.get_float32_matmul_precision() == "medium"
    torch.set_float32_matmul_precision("highest")
    with drawing_in("tf32", gpu):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this torch has one setting only")
@pytest.mark.parametrize("given", ["tf32", "ieee"])
def test_the_newer_setting_of_precision_is_left_as_it_was(matmul, given):
    """Torch then refuses to read the older one: every drawing failed, in float32 too."""
    torch.set_float32_matmul_precision("high" if given == "ieee" else "highest")
    matmul.fp32_precision = given
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        _ = matmul.allow_tf32
    for dtype, inside in (("float32", given), ("tf32", "tf32")):
        with drawing_in(dtype, torch.device("cuda")):
            assert matmul.fp32_precision == inside
        assert matmul.fp32_precision == given


@pytest.mark.parametrize("make", MAKERS)
def test_one_beam_next_to_greedy_captions_draws_nothing(make):
    captioner = make()
    batch, one_beam = batch_of(captioner, 6), Decoding(max_new_tokens=20)
    for seed in (0, 1):
        torch.manual_seed(seed)
        drawn, greedy = captioner.generate_with_greedy(batch, one_beam)
        assert rows_of(drawn) == rows_of(greedy) == rows_of(captioner.generate(batch, one_beam))


@pytest.mark.parametrize("make", MAKERS)
def test_human_captions_are_cut_to_the_places_of_the_decoder(make, tmp_path):
    make(tmp_path)
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path, max_caption_tokens=1000)
    assert captioner.max_caption_tokens == captioner.family.longest < 1000
    batch = batch_of(captioner, 2)
    rollout = captioner.tokenize(batch, ["dog " * 1000, "a cat"], torch.tensor([0, 1]))
    assert rollout.tokens.shape[1] == captioner.family.longest
    assert torch.isfinite(captioner(rollout).logprobs).all()
    with pytest.raises(UsageError, match="max_caption_tokens=0 leaves no caption"):
        HuggingFaceCaptioner.from_pretrained(tmp_path, max_caption_tokens=0)
