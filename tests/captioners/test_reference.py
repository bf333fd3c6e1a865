"""The frozen reference, and adapters."""

import re

import pytest
import torch
from torch import nn

from tellapart.captioners.adapters import LoraOptions, adapted_modules
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.types import Decoding
from tiny_models import batch_of, tiny_blip, tiny_ved

MAKERS = [tiny_ved, tiny_blip]
SAMPLES = Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=16)


def train_a_little(captioner, rollout, encoded=None, steps=3):
    optimizer = torch.optim.SGD([p for p in captioner.parameters() if p.requires_grad], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        (-captioner(rollout, encoded=encoded).logprobs.mean()).backward()
        optimizer.step()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("train", ["decoder", "all"])
def test_the_reference_stays_while_the_captioner_moves(make, train):
    captioner = make(train=train)
    batch = batch_of(captioner, 4)
    rollout = captioner.generate(batch, SAMPLES)
    before = captioner(rollout).logprobs.detach()
    reference = captioner.reference()
    train_a_little(captioner, rollout)
    encoded = captioner.encode(batch)
    assert (captioner(rollout).logprobs - before).abs().max() > 1e-2
    for given in (None, encoded):
        scores = reference(rollout, encoded=given)
        torch.testing.assert_close(scores.logprobs, before, atol=0, rtol=0)
        assert not scores.logprobs.requires_grad


@pytest.mark.parametrize("train", ["decoder", "all"])
def test_the_reference_shares_what_is_frozen_and_is_invisible(train):
    captioner = tiny_ved(train=train)
    reference = captioner.reference()
    assert not isinstance(reference, nn.Module)
    own = {id(p): p for p in captioner.parameters()}
    shared = {id(p) for p in reference.captioner.parameters()} & set(own)
    assert shared == {key for key, p in own.items() if not p.requires_grad}
    tower = {id(p) for p in captioner.family.vision.parameters()}
    assert (tower <= shared) == (train == "decoder")
    assert not any(p.requires_grad for p in reference.captioner.parameters())
    holder = nn.Module()
    holder.captioner, holder.reference = captioner, reference
    assert {id(p) for p in holder.parameters()} == set(own)
    captioner.train()
    reference(captioner.tokenize(batch_of(captioner, 1), ["a"], torch.zeros(1)))
    assert captioner.training


@pytest.mark.parametrize("make", MAKERS)
def test_a_fresh_adapter_changes_nothing_and_its_reference_is_the_base_bit_for_bit(make, tmp_path):
    base = make(tmp_path)
    batch = batch_of(base, 4)
    rollout = base.generate(batch, SAMPLES)
    wanted = base(rollout).logprobs.detach()
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path, lora=LoraOptions(r=3, dropout=0.3)).eval()
    reference = captioner.reference()
    assert torch.equal(captioner(rollout).logprobs, wanted)
    encoded = captioner.encode(batch)
    train_a_little(captioner, rollout, encoded)
    assert torch.equal(reference(rollout, encoded=encoded).logprobs, wanted)
    policy = captioner(rollout, encoded=encoded).logprobs
    assert (policy - wanted).abs().max() > 1e-3
    assert torch.equal(captioner(rollout, encoded=encoded).logprobs, policy), (
        "asking the reference switched the adapter"
    )
    drawn, met = captioner.draw(batch, SAMPLES)
    assert (captioner(drawn).logprobs - met).abs().max() < 2e-5
    assert (reference(drawn).logprobs - met).abs().max() > 1e-3


@pytest.mark.parametrize("make", MAKERS)
def test_adapters_sit_on_the_text_side_and_all_of_them_learn(make, tmp_path):
    captioner = make(tmp_path, lora=LoraOptions(r=2))
    family = captioner.family
    names = set(adapted_modules(family.model))
    text_side = [name for name, _ in family.model.named_modules() if re.fullmatch(family.lora_targets, name)]
    assert names == set(text_side)
    # A layer of GPT-2: c_attn and c_proj, both again in cross-attention with q_attn, and the MLP's c_proj; of BLIP: query
    # and value, twice.
    assert len(names) == {tiny_ved: 2 * 6, tiny_blip: 2 * 4}[make]
    with torch.no_grad():
        for name, parameter in captioner.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    rollout = captioner.generate(batch_of(captioner, 4), SAMPLES)
    captioner(rollout).logprobs.sum().backward()
    for name, parameter in captioner.named_parameters():
        assert parameter.requires_grad == ("lora_" in name)
        assert not parameter.requires_grad or parameter.grad.abs().sum() > 0, name


def test_a_trained_adapter_is_part_of_the_start_model(tmp_path):
    captioner = tiny_ved(tmp_path / "base", lora=LoraOptions(r=2))
    batch = batch_of(captioner, 3)
    rollout = captioner.generate(batch, SAMPLES)
    train_a_little(captioner, rollout)
    captioner.save(tmp_path / "adapter")
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path / "adapter").eval()
    wanted = loaded(rollout).logprobs.detach()
    reference = loaded.reference()
    train_a_little(loaded, rollout)
    assert torch.equal(reference(rollout).logprobs, wanted)


def test_adapter_with_checkpointed_layers_has_the_same_gradients(tmp_path):
    """Between forward and backward the reference is asked: recomputed layers must still see the adapter."""
    found = []
    for checkpointing in (False, True):
        captioner = tiny_ved(tmp_path, lora=LoraOptions(r=2), gradient_checkpointing=checkpointing)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in captioner.parameters():
                if parameter.requires_grad:
                    parameter.normal_()
        captioner.double()  # wide adapters make float32 gradients differ by rounding alone
        reference = captioner.reference()
        rollout = captioner.tokenize(batch_of(captioner, 2), ["a red circle", "a blue star"], torch.tensor([0, 1]))
        loss = captioner(rollout).logprobs.sum()
        reference(rollout)
        loss.backward()
        found.append([p.grad for p in captioner.parameters() if p.requires_grad])
    for plain, recomputed in zip(*found, strict=True):
        torch.testing.assert_close(recomputed, plain, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (r".*\.q_proj", "image tower"),
        (r"nothing", "match no module"),
        (r".*\.(c_attn|fc1)", "image tower"),
    ],
)
def test_adapters_that_miss_the_text_side_are_refused(targets, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        tiny_ved(tmp_path, lora=LoraOptions(target_modules=targets))


@pytest.mark.parametrize("settings", [{"r": 0}, {"alpha": 0}, {"dropout": 1.0}])
def test_impossible_adapter_settings(settings):
    with pytest.raises(ValueError, match="must be"):
        LoraOptions(**settings)


def test_a_reference_costs_little_with_an_adapter(tmp_path):
    captioner = tiny_ved(tmp_path, width=64, lora=LoraOptions(r=2))
    reference = captioner.reference()
    shared = {id(p) for p in captioner.parameters()}
    copied = sum(p.numel() for p in reference.captioner.parameters() if id(p) not in shared)
    assert copied == sum(p.numel() for p in captioner.parameters() if p.requires_grad)


class Moved(Exception):
    pass


def test_the_reference_is_moved_though_the_tower_it_shares_is_there_already(monkeypatch):
    """On an accelerator, moving the captioner takes the shared tower along, and leaves the reference's own decoder."""
    captioner = tiny_ved()
    rollout = captioner.generate(batch_of(captioner, 2), Decoding(max_new_tokens=4))
    reference = captioner.reference()
    reference.captioner.family.model.decoder.to("meta")

    def to(device):
        raise Moved(str(device))

    monkeypatch.setattr(reference.captioner, "to", to)
    with pytest.raises(Moved, match="cpu"):
        reference(rollout)
