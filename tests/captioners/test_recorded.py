"""Scoring samples by what drawing computed: the same log-probabilities and gradients as by a forward pass."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from family_checks import make
from tellapart import products
from tellapart.captioners import drawing, reading, recorded
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.base import Captioner
from tellapart.objectives.scst import SCST
from tellapart.types import Decoding
from tiny.blip2 import tiny_blip2
from tiny.florence2 import tiny_florence2
from tiny.git import tiny_git
from tiny.llava import tiny_llava
from tiny.qwen2_vl import tiny_qwen2_vl
from tiny_lstm import KINDS, tiny_lstm
from tiny_lstm import batch as features_of
from tiny_models import batch_of, tiny_blip, tiny_ved


def unread():
    captioner = tiny_llava()
    captioner.family.by_parts = lambda linear: None
    return captioner


MAKERS = {
    "GPT-2": tiny_ved,
    "GPT-2, prompt": partial(tiny_ved, prompt="a red"),
    "GPT-2, projection": partial(tiny_ved, vision_width=16, layers=3),
    "GPT-2, tower learns": partial(tiny_ved, train="all"),
    "GPT-2, logits computed again": partial(tiny_ved, logits_budget=0.0),
    "BLIP": tiny_blip,
    "BLIP-2 (OPT)": partial(tiny_blip2, prompt="a photo of", eos_logit=1.5),
    "GIT": tiny_git,
    "Florence-2": tiny_florence2,
    "LLaVA": tiny_llava,
    "Qwen2-VL": tiny_qwen2_vl,
}

BY_LOGITS = {
    "fc_lstm": partial(tiny_lstm, "fc_lstm", eos_bias=0.0),
    "att2in2": partial(tiny_lstm, "att2in2"),
    "updown": partial(tiny_lstm, "updown"),
    "BLIP-2 (T5)": partial(tiny_blip2, language="t5"),
    "LLaVA, through its modules": unread,
}
"""Captioners whose decoders are read through their modules."""


def reward(rollout):
    """Between 0 and 1, by what the caption says."""
    return (rollout.tokens * rollout.mask).sum(dim=1).remainder(7) / 7


def pictured(captioner, count):
    """So many images, or their features."""
    kind = getattr(captioner.family.model.config, "model_type", "")
    return features_of(kind, count) if kind in KINDS else batch_of(captioner, count)


def step(captioner, **options):
    """Samples, loss and gradients of an SCST step, and whether the samples were remembered."""
    objective = SCST(captioner, reward, num_generations=4, max_new_tokens=12, **options)
    batch = pictured(captioner, 5)
    captioner.zero_grad()
    torch.manual_seed(3)
    with torch.no_grad():
        experience = objective.collect(batch, 0)
    remembered = captioner._memory.recorded is not None
    [piece] = objective.losses(experience)
    (piece.loss / piece.weight).backward()
    found = {name: p.grad.clone() for name, p in captioner.named_parameters() if p.grad is not None}
    return experience.rollout, piece.loss.item(), found, remembered


def forgetting(monkeypatch):
    monkeypatch.setattr(Captioner, "remembering", lambda self: nullcontext())
    monkeypatch.delattr("tellapart.captioners.huggingface.HuggingFaceCaptioner.remembering")


@pytest.mark.parametrize("smallest", [0, products.SMALLEST])
@pytest.mark.parametrize("baseline", ["greedy", "leave_one_out"])
@pytest.mark.parametrize("name", [*MAKERS, *BY_LOGITS])
def test_a_step_is_that_of_scoring_anew(name, baseline, smallest, monkeypatch):
    monkeypatch.setattr(products, "SMALLEST", smallest)
    if products.RULES:
        monkeypatch.setattr(products, "RULES", products.rules("AVX512", intel=False))
    monkeypatch.setattr(drawing, "FEW", 0.9)
    captioner = (MAKERS | BY_LOGITS)[name]().eval()
    rollout, loss, gradients, remembered = step(captioner, baseline=baseline)
    assert remembered
    assert len(set(rollout.lengths.tolist())) > 2
    forgetting(monkeypatch)
    other, expected, wanted, remembered = step(captioner, baseline=baseline)
    assert not remembered
    assert torch.equal(rollout.tokens, other.tokens)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert gradients.keys() == wanted.keys()
    ours, theirs = (torch.cat([found[key].flatten() for key in sorted(wanted)]) for found in (gradients, wanted))
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize("name", [*MAKERS, *BY_LOGITS])
def test_logits_are_not_computed_again_within_their_budget(name, monkeypatch):
    captioner = (MAKERS | BY_LOGITS)[name]().eval()
    rollout, asked = drawn(captioner), []
    whole = captioner.family.exact_logits
    monkeypatch.setattr(captioner.family, "exact_logits", lambda hidden: asked.append(1) or whole(hidden))
    captioner(rollout)
    assert asked == ([1] if captioner.logits_budget == 0 else [])


def collected(captioner, batches):
    """Experiences of SCST, one a batch."""
    objective = SCST(captioner, reward, num_generations=4, max_new_tokens=12)
    torch.manual_seed(3)
    with torch.no_grad():
        return objective, [objective.collect(batch, 0) for batch in batches]


def test_of_several_micro_batches_the_last_is_remembered(monkeypatch):
    captioner = tiny_ved().eval()
    batch = batch_of(captioner, 4)
    objective, experiences = collected(captioner, [batch.select([0, 1]), batch.select([2, 3])])
    calls, found = forwards(captioner, monkeypatch), []
    for experience in experiences:
        next(iter(objective.losses(experience)))
        found.append(len(calls))
    assert found == [1, 1], "only the first is read"


def test_other_states_of_the_images_are_not_ignored(monkeypatch):
    captioner = tiny_ved().eval()
    rollout, calls = drawn(captioner), forwards(captioner, monkeypatch)
    with torch.no_grad():
        other = captioner.encode(batch_of(captioner, 3))
    captioner(rollout, encoded=other)
    assert calls == [1]


@pytest.mark.parametrize("gain", [0.0, 100.0])
def test_samples_that_begin_alike_are_scored_by_what_one_of_them_drew(gain, monkeypatch):
    monkeypatch.setattr(reading, "GAIN", gain)
    captioner = tiny_ved().eval()
    batch, cold = (
        batch_of(captioner, 4),
        Decoding(do_sample=True, temperature=0.3, num_return_sequences=6, max_new_tokens=10),
    )
    torch.manual_seed(0)
    with torch.no_grad(), captioner.remembering():
        rollout = captioner.generate(batch, cold, encoded=captioner.encode(batch))
    alone, read = int(rollout.mask[:, 1:].sum()), []

    def choose(*given):
        found = reading.choose_reading(*given)
        read.append(len(found.row))
        return found

    monkeypatch.setattr(recorded, "choose_reading", choose)
    calls = forwards(captioner, monkeypatch)
    found = captioner(rollout).logprobs
    assert not calls
    assert len(read) == 1
    assert (read[0] < alone) == (gain > 0)
    torch.testing.assert_close(found, captioner(rollout).logprobs, rtol=0, atol=2e-5)


def forwards(captioner, monkeypatch):
    """Count scoring passes that begin anew."""
    calls = []
    own = captioner.family.read_captions
    monkeypatch.setattr(captioner.family, "read_captions", lambda *given: calls.append(1) or own(*given))
    return calls


def drawn(captioner):
    batch = pictured(captioner, 3)
    torch.manual_seed(0)
    with torch.no_grad(), captioner.remembering():
        encoded = captioner.encode(batch)
        return captioner.generate(
            batch, Decoding(do_sample=True, num_return_sequences=2, max_new_tokens=8), encoded=encoded
        )


def test_samples_are_remembered_once(monkeypatch):
    captioner = tiny_ved().eval()
    rollout, calls = drawn(captioner), forwards(captioner, monkeypatch)
    first = captioner(rollout).logprobs
    assert not calls
    again = captioner(rollout).logprobs
    assert calls == [1]
    torch.testing.assert_close(first, again, rtol=0, atol=2e-5)


def test_samples_next_to_greedy_captions_are_scored_without_warnings(recwarn):
    captioner = tiny_blip2(language="t5").eval()
    batch, once = batch_of(captioner, 3), Decoding(do_sample=True, max_new_tokens=2)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with torch.no_grad(), captioner.remembering():
            rollout, _ = captioner.generate_with_greedy(batch, once)
        captioner(rollout)
    finally:
        torch.set_warn_always(always)
    assert not [str(warning.message) for warning in recwarn if "contiguous" in str(warning.message)]


def fused_step(captioner):
    """An update that torch does not count as a change."""
    weight = captioner.family.model.decoder.transformer.h[0].mlp.c_fc.weight
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], lr=1e-3, fused=True).step()
    weight.grad = None


CHANGES = {
    "a step of a fused optimiser": fused_step,
    "other weights": lambda captioner: torch.nn.init.zeros_(captioner.family.model.decoder.transformer.ln_f.bias),
    "train mode": lambda captioner: captioner.train(),
    "other samples": drawn,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_longer_holds_is_computed(change, monkeypatch):
    captioner = tiny_ved().eval()
    rollout = drawn(captioner)
    CHANGES[change](captioner)
    calls = forwards(captioner, monkeypatch)
    captioner(rollout)
    assert calls == [1]


def changed(captioner):
    with torch.no_grad():
        next(p for p in captioner.parameters() if p.requires_grad).mul_(1.5)


@pytest.mark.parametrize("change", [None, changed, lambda captioner: captioner.train(), drawn])
@pytest.mark.parametrize("name", ["fc_lstm", "BLIP-2 (T5)", "adapter"])
def test_logits_that_no_longer_hold_are_computed(name, change, monkeypatch, tmp_path):
    captioner = tiny_ved(lora=LoraOptions(r=4), folder=tmp_path) if name == "adapter" else BY_LOGITS[name]()
    captioner.eval()
    rollout, asked = drawn(captioner), []
    if change is not None:
        change(captioner)
    whole = captioner.family.exact_logits
    monkeypatch.setattr(captioner.family, "exact_logits", lambda hidden: asked.append(1) or whole(hidden))
    captioner(rollout)
    assert len(asked) == (change is not None)


@pytest.mark.parametrize("name", ["fc_lstm", "GPT-2"])
def test_in_train_mode_nothing_is_remembered(name):
    captioner = (MAKERS | BY_LOGITS)[name]().train()
    drawn(captioner)
    assert captioner._memory.recorded is None


def test_nothing_is_remembered_without_gradients_or_of_further_wishes(monkeypatch):
    captioner = tiny_ved().eval()
    calls = forwards(captioner, monkeypatch)
    rollout = drawn(captioner)
    captioner(rollout, want={"entropy"})
    with torch.no_grad():
        captioner(rollout)
    assert len(calls) == 2
    captioner(rollout)
    assert len(calls) == 2


@pytest.mark.parametrize("options", [{"rollout_dtype": "bfloat16"}, {"gradient_checkpointing": True}, {"lora": True}])
def test_captioners_that_are_read_otherwise_remember_nothing(options, tmp_path):
    if "lora" in options:
        options = {"lora": LoraOptions(r=4), "folder": tmp_path, "logits_budget": 0.0}
    captioner = tiny_ved(**options).eval()
    drawn(captioner)
    assert captioner._memory.recorded is None


def test_of_a_captioner_with_an_adapter_logits_are_remembered(tmp_path, monkeypatch):
    captioner = tiny_ved(lora=LoraOptions(r=4), folder=tmp_path).eval()
    rollout = drawn(captioner)
    assert captioner._memory.recorded.passes is None
    found = gradients(captioner, rollout)
    wanted = gradients(captioner, rollout)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5)


def gradients(captioner, rollout):
    captioner.zero_grad()
    (captioner(rollout).logprobs * rollout.tokens.remainder(5)).sum().backward()
    return {name: p.grad.clone() for name, p in captioner.named_parameters() if p.grad is not None}


def test_bounded_logits_are_not_remembered(tmp_path):
    """They are more than a product."""
    captioner = make("PaliGemma 2", tmp_path).eval()
    assert captioner.family.softcap is not None
    drawn(captioner)
    assert captioner._memory.recorded is None


def test_copies_of_a_captioner_do_not_remember():
    captioner = tiny_ved(train="all").eval()
    drawn(captioner)
    assert captioner._memory.encoded.states.requires_grad
    assert copy.deepcopy(captioner)._memory.recorded is None
