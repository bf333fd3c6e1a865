"""The critic: values that learn without touching the captioner, and an adapter that the captioner never meets."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForImageTextToText

import tiny_lstm
from pictures import images
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.critic import Critic, value_head
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.lengths import LengthBuckets
from tellapart.ops import reduce
from tellapart.types import Batch, Decoding
from tiny.blip2 import tiny_blip2
from tiny.instructblip import tiny_instructblip
from tiny.qwen2_vl import tiny_qwen2_vl
from tiny_models import batch_of, tiny_ved

LORA = LoraOptions(r=2, alpha=4.0)
SAMPLES = Decoding(do_sample=True, temperature=2.0, top_k=6, max_new_tokens=8, num_return_sequences=2)


def awake(critic: Critic, std: float = 0.3) -> Critic:
    """The critic with an adapter that changes something: a new one adds exactly nothing."""
    torch.manual_seed(5)
    for name, parameter in critic.adapter.items():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=std)
    return critic


def learned(critic: Critic, rollout, encoded=None) -> torch.Tensor:
    """Squared values, as a loss, back-propagated."""
    values = critic(rollout, encoded=encoded)
    loss = reduce(values**2, rollout.mask, "seq_mean")[0]
    loss.backward()
    return values.detach()


CAPTIONERS = {
    "blip2": lambda: tiny_blip2(train="bridge"),
    "blip2_t5": lambda: tiny_blip2(language="t5", train="bridge"),
    "instructblip": lambda: tiny_instructblip(train="bridge"),
    "ved": tiny_ved,
    "ved_checkpointed": lambda: tiny_ved(gradient_checkpointing=True),
    "ved_all": lambda: tiny_ved(train="all"),
}


@pytest.mark.parametrize("kind", CAPTIONERS)
def test_value_and_policy_losses_reach_their_own_parameters_only(kind):
    captioner = CAPTIONERS[kind]()
    batch = batch_of(captioner, 2)
    rollout = captioner.generate(batch, SAMPLES)
    critic = awake(Critic(captioner, lora=LORA))
    assert not {id(p) for p in critic.parameters()} & {id(p) for p in captioner.parameters()}
    learned(critic, rollout)
    assert all(parameter.grad is None for parameter in captioner.parameters())
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in critic.parameters())
    critic.zero_grad(set_to_none=True)
    logprobs = captioner(rollout).logprobs
    reduce(-logprobs.exp(), rollout.mask, "seq_mean")[0].backward()
    assert all(parameter.grad is None for parameter in critic.parameters())
    reached = {name for name, parameter in captioner.named_parameters() if parameter.grad is not None}
    assert reached == {name for name, parameter in captioner.named_parameters() if parameter.requires_grad}
    if "blip" in kind:
        parts = {name.removeprefix("network.").split(".")[0] for name in reached}
        assert parts == {"query_tokens", "qformer", "language_projection"}


def test_images_with_gradients_get_none_from_values():
    captioner = tiny_ved(train="all")
    batch = batch_of(captioner, 2)
    rollout = captioner.generate(batch, SAMPLES)
    encoded = captioner.encode(batch)
    assert encoded.states.requires_grad
    learned(Critic(captioner, lora=LORA), rollout, encoded)
    assert all(parameter.grad is None for parameter in captioner.parameters())


@pytest.mark.parametrize("kind", ["blip2", "ved"])
def test_the_adapter_is_the_value_pass_s_alone(kind):
    captioner = CAPTIONERS[kind]()
    batch = batch_of(captioner, 3)

    def seen():
        torch.manual_seed(0)
        rollout = captioner.generate(batch, SAMPLES)
        return rollout, captioner(rollout).logprobs.detach(), list(captioner.state_dict())

    rollout, logprobs, names = seen()
    critic = Critic(captioner, lora=LORA)
    plain = critic(rollout)
    awake(critic)
    changed = critic(rollout)
    assert (plain - changed)[rollout.mask].abs().min() > 1e-4
    again, same, later = seen()
    assert torch.equal(again.tokens, rollout.tokens)
    assert torch.equal(same, logprobs)
    assert later == names


def test_values_are_those_of_peft_on_a_copy():
    captioner = CAPTIONERS["blip2"]()
    batch = batch_of(captioner, 3)
    rollout = captioner.generate(batch, SAMPLES)
    critic = awake(Critic(captioner, lora=LORA))
    other = copy.deepcopy(captioner)
    weights = {name.replace("/", ".").removeprefix("base_model.model."): p for name, p in critic.adapter.items()}
    for name, module in other.family.model.named_modules():
        if f"{name}.lora_A.default.weight" in weights:
            up, down = (weights[f"{name}.lora_{part}.default.weight"] for part in "BA")
            with torch.no_grad():
                module.weight += 2.0 * up @ down
    hidden = other(rollout, want=("hidden",)).hidden
    expected = critic.head(hidden[rollout.mask])
    torch.testing.assert_close(critic(rollout)[rollout.mask], expected, rtol=1e-4, atol=1e-4)


def test_values_follow_the_captioner_as_it_learns_and_moves():
    captioner = CAPTIONERS["blip2"]()
    batch = batch_of(captioner, 2)
    rollout = captioner.generate(batch, SAMPLES)
    critic = awake(Critic(captioner, lora=LORA))
    before = critic(rollout)
    step = torch.randn_like(captioner.family.model.query_tokens)
    with torch.no_grad():
        captioner.family.model.query_tokens += step
    after = critic(rollout)
    assert not torch.allclose(before, after)
    for parameter in captioner.parameters():
        parameter.data = parameter.data.clone()  # what moving to another device does
    assert torch.equal(critic(rollout), after)
    with torch.no_grad():
        captioner.family.model.query_tokens -= step
    torch.testing.assert_close(critic(rollout), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_token_has_no_say_in_its_own_value(checkpointing):
    captioner = tiny_ved(gradient_checkpointing=checkpointing)
    rollout = captioner.generate(batch_of(captioner, 2), Decoding(max_new_tokens=6))
    critic = awake(Critic(captioner, lora=LORA))
    values = critic(rollout)
    last = rollout.lengths - 1
    rows = torch.arange(len(rollout))
    tokens = rollout.tokens.clone()
    tokens[rows, last] = (tokens[rows, last] + 7) % 60
    other = copy.copy(rollout)
    object.__setattr__(other, "tokens", tokens)
    torch.testing.assert_close(critic(other), values)
    assert not values[~rollout.mask].any()
    tokens = rollout.tokens.clone()
    tokens[:, 0] = (tokens[:, 0] + 7) % 60
    object.__setattr__(other, "tokens", tokens)
    changed = (critic(other) - values).abs() > 1e-6
    assert not changed[:, 0].any()
    assert changed[:, 1:][rollout.mask[:, 1:]].all()


def test_an_lstm_has_a_head_on_its_own_states_and_no_adapter():
    captioner = tiny_lstm.tiny_lstm("fc_lstm")
    rollout = captioner.generate(tiny_lstm.batch("fc_lstm", 3), SAMPLES)
    with pytest.raises(UsageError, match=r"critic.lora adapts projections, which a fc_lstm captioner does not have"):
        Critic(captioner, lora=LORA)
    critic = Critic(captioner)
    learned(critic, rollout)
    assert all(parameter.grad is None for parameter in captioner.parameters())
    hidden = captioner(rollout, want=("hidden",)).hidden.detach()
    torch.testing.assert_close(critic(rollout)[rollout.mask], critic.head(hidden[rollout.mask]))


def test_the_paper_s_head_has_275_million_weights():
    with torch.device("meta"):
        head = value_head("residual", 2560, 5)
        line = value_head("linear", 2560, 5)
    assert (
        sum(p.numel() for p in head.parameters())
        == 5 * (2 * 2560 * 10240 + 10240 + 2560 + 2 * 2560) + 2 * (2560 * 2560 + 2560) + 2561
    )
    assert round(sum(p.numel() for p in head.parameters()) / 1e6, 1) == 275.3
    assert sum(p.numel() for p in line.parameters()) == 2561


def test_heads_by_hand():
    torch.manual_seed(0)
    states = torch.randn(5, 8)
    head = value_head("residual", 8, 2)
    read = states
    for block in (head.body[0], head.body[1]):
        centred = read - read.mean(dim=1, keepdim=True)
        normal = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
        inner = normal @ block.expand.weight.T + block.expand.bias
        inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
        read = read + inner @ block.contract.weight.T + block.contract.bias
    for dense in (head.body[2], head.body[4]):
        read = read @ dense.weight.T + dense.bias
        read = read * 0.5 * (1 + torch.erf(read / 2**0.5))
    torch.testing.assert_close(head(states), read @ head.value.weight[0] + head.value.bias)
    line = value_head("linear", 8, 2)
    torch.testing.assert_close(line(states), states @ line.value.weight[0] + line.value.bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(states).dtype == torch.float32


def test_what_is_saved_loads_with_peft_and_transformers(tmp_path):
    captioner = tiny_blip2(tmp_path / "start", train="bridge")
    rollout = captioner.generate(batch_of(captioner, 2), SAMPLES)
    critic = awake(Critic(captioner, lora=LORA))
    with torch.no_grad():
        captioner.family.model.query_tokens += torch.randn_like(captioner.family.model.query_tokens)
    captioner.save(tmp_path / "captioner")
    critic.save(tmp_path / "critic")
    assert not [name for name in load_file(tmp_path / "captioner" / "model.safetensors") if "lora" in name]
    assert not (tmp_path / "captioner" / "adapter_config.json").exists()
    assert json.loads((tmp_path / "critic/adapter/adapter_config.json").read_text())["r"] == 2
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "captioner")
    with_adapter = PeftModel.from_pretrained(model, tmp_path / "critic" / "adapter").eval()
    inputs = {"pixel_values": rollout.batch.inputs["captioner"]["pixel_values"]}
    prompt = captioner.encode(rollout.batch).inputs["input_ids"]
    whole = {"input_ids": torch.cat([prompt[rollout.image], rollout.tokens[:, :-1]], dim=1)}
    whole |= {"pixel_values": inputs["pixel_values"][rollout.image], "output_hidden_states": True}
    states = with_adapter(**whole).language_model_outputs.hidden_states[-1][:, prompt.shape[1] - 1 :]
    expected = critic.head(states[rollout.mask])
    torch.testing.assert_close(critic(rollout)[rollout.mask], expected, rtol=1e-4, atol=1e-4)
    other = Critic(captioner, lora=LORA)
    assert not torch.equal(other(rollout), critic(rollout))
    other.load_weights(tmp_path / "critic")
    assert torch.equal(other(rollout), critic(rollout))
    for wrong in (Critic(captioner, lora=LORA, blocks=3), Critic(captioner, lora=LoraOptions(r=3))):
        with pytest.raises(UsageError, match="lacks the weights of this critic"):
            wrong.load_weights(tmp_path / "critic")


def test_dropout_of_the_adapter_follows_the_critic():
    captioner = tiny_ved()
    rollout = captioner.generate(batch_of(captioner, 2), SAMPLES)
    critic = awake(Critic(captioner, lora=LoraOptions(r=2, alpha=4.0, dropout=0.5)))
    critic.eval()
    assert torch.equal(critic(rollout), critic(rollout))
    critic.train()
    assert not torch.equal(critic(rollout), critic(rollout))
    assert not captioner.training


def test_unusable_choices_are_one_sentence(tmp_path):
    adapted = tiny_ved(tmp_path, lora=LoraOptions(r=2))
    with pytest.raises(UsageError, match=r"critic.lora cannot be combined with captioner.lora"):
        Critic(adapted, lora=LORA)
    rollout = adapted.generate(batch_of(adapted, 2), SAMPLES)
    learned(Critic(adapted), rollout)
    assert all(parameter.grad is None for parameter in adapted.parameters())
    with pytest.raises(UsageError, match=r"critic.head='round' is unknown"):
        Critic(adapted, head="round")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"critic.blocks=0"):
        Critic(adapted, blocks=0)
    with pytest.raises(UsageError, match="match no module"):
        Critic(tiny_ved(), lora=LoraOptions(target_modules="nothing"))


def test_a_bridge_in_half_precision_learns_in_full(tmp_path):
    captioner = tiny_blip2(tmp_path / "start", train="bridge", dtype="bfloat16")
    learning = {name: p.dtype for name, p in captioner.named_parameters() if p.requires_grad}
    assert set(learning.values()) == {torch.float32}
    assert captioner.family.model.language_model.lm_head.weight.dtype == torch.bfloat16
    batch = batch_of(captioner, 2)
    rollout = captioner.generate(batch, SAMPLES)
    learned(Critic(captioner, lora=LORA), rollout)
    captioner(rollout).logprobs.sum().backward()
    with torch.no_grad():
        for parameter in captioner.parameters():
            if parameter.requires_grad:
                parameter += 1e-4 * torch.randn_like(parameter)
    kept = {name: tensor.clone() for name, tensor in captioner.state_dict().items()}
    captioner.save(tmp_path / "saved")
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.zero_()
    captioner.load_weights(tmp_path / "saved")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in captioner.state_dict().items())


def test_a_captioner_without_a_bridge_says_so():
    with pytest.raises(UsageError, match="train='bridge' needs a model with a part between"):
        tiny_ved(train="bridge")


@pytest.mark.parametrize("lora", [None, LORA], ids=["own states", "adapter"])
@pytest.mark.parametrize("kind", ["token", "words"])
def test_values_are_of_the_states_that_were_asked_for_a_length(kind, lora, tmp_path, monkeypatch):
    """Of captions of one image, asked for two lengths: each has the values that it has alone, and the two differ."""
    if kind == "token":
        tiny_ved(tmp_path)
    else:
        tiny_blip2(tmp_path)
        monkeypatch.setattr(LengthBuckets, "phrase", lambda self, bucket: ("a dog", "a red mat", "two")[bucket])
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path, length_buckets=[2, 4])
    critic = Critic(captioner, lora=lora)
    critic = awake(critic) if lora else critic
    nn.init.normal_(critic.head.value.weight)
    batch = batch_of(captioner, 1)
    texts = ["a red dog", "a red dog"]
    rollout = captioner.tokenize(batch, texts, torch.tensor([0, 0]))
    apart = [replace(rollout, bucket=torch.full((2,), bucket)) for bucket in (0, 2)]
    with torch.no_grad():
        short, long = (critic(one) for one in apart)
        both = critic(replace(rollout, bucket=torch.tensor([0, 2])))
    assert not torch.allclose(short[0], long[0], atol=1e-3)
    torch.testing.assert_close(both[0], short[0])
    torch.testing.assert_close(both[1], long[1])


def test_no_captions_have_no_values(tmp_path):
    tiny_blip2(tmp_path)
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path, prompt="{context}")
    batch = replace(batch_of(captioner, 2), contexts=["a dog", "a cat"])
    rollout = captioner.generate(batch, SAMPLES)
    empty = rollout.select([])
    assert Critic(captioner, lora=None)(empty).shape == empty.mask.shape


def like_own_states(captioner, critic, rollout):
    """Whether a critic whose adapter is new has the values of the captioner's own states."""
    own = Critic(captioner)
    own.head = critic.head
    torch.testing.assert_close(critic(rollout), own(rollout), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("before", [True, False])
def test_a_critic_with_an_adapter_sees_the_clip(before):
    captioner, shown = tiny_qwen2_vl(), images(4)
    critic = None if before else Critic(captioner, lora=LORA)
    captioner.num_frames = 2
    critic = critic or Critic(captioner, lora=LORA)
    inputs = {captioner.name: captioner.process([shown[:2], shown[2:]])}
    rollout = captioner.generate(Batch(["a", "b"], [["x"], ["x"]], inputs), SAMPLES)
    like_own_states(captioner, critic, rollout)
    other = critic(replace(rollout, image=1 - rollout.image))
    assert (critic(rollout) - other)[rollout.mask].abs().max() > 1e-3


@pytest.mark.parametrize("make", [tiny_ved, lambda: tiny_blip2(language="t5")])
def test_a_critic_with_an_adapter_follows_another_prompt(make):
    captioner = make()
    critic = Critic(captioner, lora=LORA)
    captioner.set_prompt("a red")
    like_own_states(captioner, critic, captioner.generate(batch_of(captioner, 2), SAMPLES))
