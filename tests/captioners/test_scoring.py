"""Scoring given captions: against the plain model, in memory, and its gradients."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pictures import CAPTIONS
from tellapart.captioners import scoring
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.reading import States
from tellapart.captioners.scoring import length_buckets, logits_alive, token_logprobs
from tellapart.errors import UsageError
from tellapart.types import Decoding, Rollout
from tiny_models import batch_of, tiny_blip, tiny_ved

MAKERS = [tiny_ved, tiny_blip]


def ragged(captioner, images=4):
    """Drawn and human captions of very different lengths, in no order."""
    batch = batch_of(captioner, images)
    drawn = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=20))
    texts = ["", "a", CAPTIONS[3], f"{CAPTIONS[5]} {CAPTIONS[6]} {CAPTIONS[7]}"]
    human = captioner.tokenize(batch, texts, torch.tensor([3, 0, 2, 1]))
    both = Rollout.concat([drawn, human])
    return both.select(torch.randperm(len(both)))


def plain_logits(captioner, rollout):
    """``[N, T, V]`` by the model's own forward on every caption alone, without padding, buckets or cache."""
    family, rows = captioner.family, []
    pixels = rollout.batch.inputs["captioner"]["pixel_values"]
    for image, tokens, length in zip(rollout.image, rollout.tokens, rollout.lengths, strict=True):
        ids = torch.cat([torch.tensor(family.start), tokens[: length - 1]])[None]
        if family.model.config.model_type == "blip":
            states = family.model.vision_model(pixel_values=pixels[image][None]).last_hidden_state
            logits = family.model.text_decoder(input_ids=ids, encoder_hidden_states=states).logits
        else:
            logits = family.model(pixel_values=pixels[image][None], decoder_input_ids=ids).logits
        rows.append(torch.nn.functional.pad(logits[0], (0, 0, 0, rollout.tokens.shape[1] - length)))
    return torch.stack(rows)


@pytest.mark.parametrize("make", MAKERS)
def test_scores_are_those_of_the_plain_model(make):
    captioner = make()
    rollout = ragged(captioner)
    scores = captioner(rollout, want=["entropy", "hidden", "logits"])
    logits = plain_logits(captioner, rollout)
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(-1, rollout.tokens[:, :, None]).squeeze(-1)
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    mask = rollout.mask
    torch.testing.assert_close(scores.logprobs, torch.where(mask, chosen, 0.0), atol=2e-5, rtol=0)
    torch.testing.assert_close(scores.entropy, torch.where(mask, entropy, 0.0), atol=2e-5, rtol=0)
    torch.testing.assert_close(scores.logits, torch.where(mask[:, :, None], logits, 0.0), atol=5e-5, rtol=0)
    torch.testing.assert_close(captioner.family.logits(scores.hidden)[mask], logits[mask], atol=5e-5, rtol=0)
    assert scores.logprobs.dtype == torch.float32
    bare = captioner(rollout)
    assert bare.entropy is None
    assert bare.hidden is None
    assert bare.logits is None
    with pytest.raises(ValueError, match="logit"):
        captioner(rollout, want=["logit"])


def gradients(captioner, rollout, weight, **options):
    captioner.zero_grad()
    scores = captioner(rollout, **options)
    (scores.logprobs * weight).sum().backward()
    return {name: p.grad.clone() for name, p in captioner.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("make", MAKERS)
def test_gradients_are_those_of_the_plain_model_also_in_the_image_tower(make):
    captioner = make(train="all")
    rollout = ragged(captioner)
    weight = torch.randn(rollout.mask.shape)
    own = gradients(captioner, rollout, weight)
    captioner.zero_grad()
    chosen = plain_logits(captioner, rollout).log_softmax(dim=-1).gather(-1, rollout.tokens[:, :, None]).squeeze(-1)
    (chosen * weight)[rollout.mask].sum().backward()
    trained = {name: p for name, p in captioner.named_parameters() if p.requires_grad}
    assert own.keys() == trained.keys(), "a parameter that trains got no gradient"
    for name, parameter in trained.items():
        scale = parameter.grad.abs().max().clamp(min=1e-2)
        assert (own[name] - parameter.grad).abs().max() / scale < 1e-3, name


@pytest.mark.parametrize("make", [tiny_ved, lambda **options: tiny_ved(tower="vit", **options), tiny_blip])
@pytest.mark.parametrize("train", ["decoder", "all"])
def test_everything_that_trains_gets_a_gradient(make, train):
    captioner = make(train=train)
    rollout = ragged(captioner)
    captioner(rollout).logprobs.sum().backward()
    missing = [n for n, p in captioner.named_parameters() if p.requires_grad != (p.grad is not None)]
    assert missing == []
    tower = list(captioner.family.vision.parameters())
    assert any(p.requires_grad for p in tower) == (train == "all")
    encoded = captioner.encode(rollout.batch)
    assert encoded.states.requires_grad == (train == "all")
    assert (captioner.reusable(encoded) is None) == (train == "all")


def test_projection_between_towers_trains_with_the_text_side():
    captioner = tiny_ved(vision_width=16)
    rollout = ragged(captioner)
    torch.testing.assert_close(
        captioner(rollout, want=["logits"]).logits[rollout.mask],
        plain_logits(captioner, rollout)[rollout.mask],
        atol=5e-5,
        rtol=0,
    )
    captioner(rollout).logprobs.sum().backward()
    assert captioner.family.model.enc_to_dec_proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("make", MAKERS)
def test_checkpointed_layers_and_chunks_change_nothing(make, tmp_path, monkeypatch):
    captioner = make(train="all")
    rollout = ragged(captioner)
    weight = torch.randn(rollout.mask.shape)
    wanted = gradients(captioner, rollout, weight)
    monkeypatch.setattr(scoring, "CHUNK_ELEMENTS", 64 * 7)
    monkeypatch.setattr(scoring, "LOGITS_BUDGET", 0)
    saving = make(tmp_path, train="all", gradient_checkpointing=True)
    computed = []
    layer = saving.family.model.get_decoder() if make is tiny_ved else saving.family.model.text_decoder.bert.encoder
    first = next(m for n, m in layer.named_modules() if n.endswith(("ln_1", "attention.output.dense")))
    first.register_forward_hook(lambda *_: computed.append(torch.is_grad_enabled()))
    found = gradients(saving, rollout, weight)
    passes = len(length_buckets(rollout.lengths.tolist()))
    assert len(computed) == 2 * passes, "each layer should have run again on the way back"
    assert not any(module.training for module in saving.modules())
    for name, gradient in wanted.items():
        torch.testing.assert_close(
            found[name], gradient, atol=1e-4 * float(gradient.abs().max().clamp(min=1)), rtol=1e-3
        )


def test_chunked_log_probabilities_against_one_piece(monkeypatch):
    monkeypatch.setattr(scoring, "CHUNK_ELEMENTS", 90)
    monkeypatch.setattr(scoring, "LOGITS_BUDGET", 0)
    head = torch.nn.Linear(6, 30).double()
    hidden = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    # states 2 and 3 predict several words each, in different chunks of 3, and state 7 none
    index = torch.tensor([0, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 9, 10])
    targets = torch.randint(0, 30, (len(index),))
    states = States(hidden, index, (index, index))
    chosen, entropy = token_logprobs(head, states, targets, 30, entropy=True)
    logprobs = head(hidden).float().log_softmax(-1)[index]
    wanted, spread = logprobs[torch.arange(len(index)), targets], -(logprobs.exp() * logprobs).sum(-1)
    torch.testing.assert_close(chosen, wanted)
    torch.testing.assert_close(entropy, spread)
    (gradient,) = torch.autograd.grad(chosen.sum() + entropy.sum(), hidden, retain_graph=True)
    whole = wanted.sum() + spread.sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(whole, hidden, retain_graph=True)[0])
    plain, nothing = token_logprobs(head, states, targets, 30, entropy=False)
    assert nothing is None
    torch.testing.assert_close(plain, wanted)
    factors = torch.randn(len(index))
    ours = torch.autograd.grad((plain * factors).sum(), hidden)[0]
    torch.testing.assert_close(ours, torch.autograd.grad((wanted * factors).sum(), hidden)[0])


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_buckets_hold_every_caption_once_and_are_the_cheapest_division(lengths, overhead):
    buckets = length_buckets(lengths, overhead)
    rows = sorted(row for members, _ in buckets for row in members)
    assert rows == [row for row, length in enumerate(lengths) if length]
    assert all(max(lengths[row] for row in members) == width for members, width in buckets)
    cost = sum(len(members) * width + overhead for members, width in buckets)
    ordered = sorted(length for length in lengths if length)
    cheapest = {0: 0}
    for end in range(1, len(ordered) + 1):
        cheapest[end] = min(cheapest[i] + (end - i) * ordered[end - 1] + overhead for i in range(end))
    assert cost == cheapest[len(ordered)]


def test_padding_and_order_do_not_matter():
    captioner = tiny_blip()
    rollout = ragged(captioner)
    scored = captioner(rollout).logprobs
    order = torch.randperm(len(rollout))
    shuffled = rollout.select(order)
    wider = Rollout(
        rollout.batch,
        shuffled.image,
        shuffled.texts,
        torch.nn.functional.pad(shuffled.tokens, (0, 5), value=7),
        torch.nn.functional.pad(shuffled.mask, (0, 5)),
        shuffled.finished,
    )
    torch.testing.assert_close(captioner(wider).logprobs[:, : scored.shape[1]], scored[order], atol=2e-5, rtol=0)


@pytest.mark.parametrize("make", MAKERS)
def test_in_lockstep_every_rollout_takes_the_same_calls_of_each_layer(make):
    captioner = make(train="all")
    rollout = ragged(captioner)
    one_word = captioner.tokenize(rollout.batch, [""], torch.tensor([0]))
    assert one_word.tokens.shape[1] == 1, "EOS alone"
    given = [rollout, one_word, rollout.select([])]
    before = [captioner(each, want=["entropy"]) for each in given]
    captioner.family.lockstep = True
    calls = []
    hooks = [
        layer.register_forward_hook(lambda layer, *_, number=number: calls.append(number))
        for number, layer in enumerate(captioner.family.layers)
    ]
    assert len(hooks) == 4
    orders = []
    for each, scores in zip(given, before, strict=True):
        calls.clear()
        found = captioner(each, want=["entropy"])
        orders.append(tuple(calls))
        torch.testing.assert_close(found.logprobs, scores.logprobs, atol=2e-5, rtol=0)
        captioner.zero_grad()
        found.logprobs.sum().backward()  # also of no captions: every process takes part in the backward pass
        assert all(
            p.grad is not None for layer in captioner.family.layers for p in layer.parameters() if p.requires_grad
        )
    assert len(set(orders)) == 1
    assert captioner.family.lockstep


def test_float32_log_softmax_under_bf16_autocast():
    captioner = tiny_ved()
    rollout = ragged(captioner)
    exact = captioner(rollout).logprobs
    with torch.autocast("cpu", torch.bfloat16):
        scores = captioner(rollout, want=["logits"])
    assert scores.logprobs.dtype == torch.float32
    again = scores.logits.float().log_softmax(-1).gather(-1, rollout.tokens[:, :, None]).squeeze(-1)
    torch.testing.assert_close(scores.logprobs[rollout.mask], again[rollout.mask], atol=1e-5, rtol=0)
    assert 1e-5 < (scores.logprobs - exact)[rollout.mask].abs().mean() < 0.1


MEMORY = """
import os
import sys
from pathlib import Path
import torch
sys.path.insert(0, {tests!r})
from tellapart.captioners import scoring
from tiny_models import batch_of, tiny_ved
from tellapart.types import Rollout

def resident(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

torch.set_num_threads(1)
captioner = tiny_ved(vocab=50_000, width=64, vision_width=64)
batch = batch_of(captioner, 16)
tokens = torch.randint(4, 50_000, (80, 20))
mask = torch.ones(80, 20, dtype=torch.bool)
image = torch.arange(16).repeat_interleave(5)
rollout = Rollout(batch, image, [""] * 80, tokens, mask, torch.zeros(80, dtype=torch.bool))
for budget, want in {cases!r}:
    child = os.fork()  # each measures alone, and none imports again
    if child:
        assert os.waitpid(child, 0)[1] == 0
        continue
    captioner(rollout.select([0, 1])).logprobs.sum().backward()
    scoring.LOGITS_BUDGET = budget
    # not ru_maxrss: a process begins with that of the one that started it
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    scores = captioner(rollout, want=want)
    (scores.logprobs.sum() + (0 if scores.entropy is None else scores.entropy.sum())).backward()
    print(resident("VmHWM") - before, flush=True)
    os._exit(0)
"""
PEAKS = {"kept": (1.0, [], 300, 425), "computed twice": (0.1, [], 0, 225), "entropies": (1.0, ["entropy"], 0, 600)}
"""How a score is computed -> budget, what is wanted, least and largest peak in MiB."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks of memory are read from Linux's /proc")
def test_memory_of_a_large_vocabulary_stays_bounded(request):
    """80 captions x 20 tokens x 50,000 words: the logits are 305 MiB, four times that where autograd has them."""
    cases = [(budget, want) for budget, want, _, _ in PEAKS.values()]
    program = MEMORY.format(tests=str(request.config.rootpath / "tests"), cases=cases)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=280)
    peaks = [float(line) for line in done.stdout.splitlines()[-len(cases) :]]
    for peak, (name, (_, _, least, most)) in zip(peaks, PEAKS.items(), strict=True):
        assert least < peak < most, name


def test_autocast_leaves_the_head_exact():
    """The decoder may be rounded, the logits of its states may not: the head's float32 product is taken as it is."""
    captioner = tiny_ved()
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    exact = captioner.family.logits(hidden)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(captioner.family.exact_logits(hidden), exact)
        assert not torch.equal(captioner.family.logits(hidden).float(), exact), "autocast does round here"


def test_the_budget_of_logits_is_the_captioners():
    """6 captions of 4 words over 100 words are 2,400 logits or 9,600 bytes, four times that with entropies."""
    bytes_of = 6 * 4 * 100 * 4
    for budget, kept in ((None, True), (bytes_of / 2**30, True), ((bytes_of - 1) / 2**30, False), (0.0, False)):
        found, alive = logits_alive(2400, torch.device("cpu"), budget=budget)
        assert (found, alive) == (kept, 2400)
    assert logits_alive(2400, torch.device("cpu"), entropy=True, budget=bytes_of / 2**30)[0] is False
    captioner = tiny_ved()
    rollout = captioner.generate(batch_of(captioner, 3), Decoding(max_new_tokens=8))
    wanted = gradients_of(captioner, rollout)
    captioner.logits_budget = 0.0
    for one, other in zip(gradients_of(captioner, rollout), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match="logits_budget=-1 is not an amount"):
        HuggingFaceCaptioner(captioner.network, captioner.family, logits_budget=-1)


def gradients_of(captioner, rollout):
    captioner.zero_grad()
    captioner(rollout).logprobs.sum().backward()
    return [parameter.grad.clone() for parameter in captioner.parameters() if parameter.grad is not None]
