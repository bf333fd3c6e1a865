"""What trains can be named part by part, as in section 4.1 of VLRM (Dzabraev et al., 2024), with and without adapters."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import Blip2ForConditionalGeneration

from tellapart.captioners.adapters import LoraOptions, adapted_modules
from tellapart.captioners.critic import Critic
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.types import Decoding
from tiny.blip2 import tiny_blip2
from tiny.git import tiny_git
from tiny.instructblip import tiny_instructblip
from tiny_models import batch_of, tiny_ved

QUERIES, QFORMER, PROJECTION = "query_tokens", "qformer.", "language_projection."
IMAGE, TEXT = LoraOptions(r=2, tower="image"), LoraOptions(r=2)
ALL_PARTS = ["query_tokens", "qformer", "projection"]

ROWS = {
    "the paper's choice": (ALL_PARTS, None, (QUERIES, QFORMER, PROJECTION)),
    "query tokens": (["query_tokens"], None, (QUERIES,)),
    "language projection": (["projection"], None, (PROJECTION,)),
    "with LoRA for the image encoder": (ALL_PARTS, IMAGE, (QUERIES, QFORMER, PROJECTION, "vision_model.")),
    "with LoRA for the LLM": (ALL_PARTS, TEXT, (QUERIES, QFORMER, PROJECTION, "language_model.")),
}
rows = pytest.mark.parametrize(("train", "lora", "learns"), ROWS.values(), ids=ROWS)


def is_expected(name, learns):
    """Whether a weight is to learn: all of the Q-Former and its neighbours, only adapters of the two frozen sides."""
    return name.startswith(learns) and ("lora_" in name or not name.startswith(("vision_model.", "language_model.")))


def weights(captioner):
    return {name: p.detach().clone() for name, p in captioner.family.model.named_parameters()}


def step_twice(captioner, rollout):
    """The second step moves the half of an adapter that has no gradient while the other half is 0."""
    optimizer = torch.optim.Adam(captioner.parameters(), lr=1e-2)
    captioner.train()
    for _ in range(2):
        optimizer.zero_grad()
        captioner(rollout).logprobs.sum().backward()
        optimizer.step()
    captioner.eval()


@rows
@pytest.mark.parametrize("language", ["opt", "t5"])
def test_exactly_the_named_weights_learn(train, lora, learns, language, tmp_path):
    captioner = tiny_blip2(tmp_path, language=language, train=train, lora=lora)
    batch = batch_of(captioner, 2)
    rollout = captioner.tokenize(batch, ["a red circle on a table", "a blue star"], torch.arange(2))
    before = weights(captioner)
    step_twice(captioner, rollout)
    named = dict(captioner.family.model.named_parameters())
    expected = {name for name in named if is_expected(name, learns)}
    assert {name for name, p in named.items() if p.grad is not None} == expected
    assert {name for name, p in named.items() if not torch.equal(p, before[name])} == expected
    for start in learns:
        assert any(name.startswith(start) for name in expected), start
    assert captioner.trains_vision == (lora is IMAGE)
    assert (captioner.reusable(captioner.encode(batch)) is None) == (lora is IMAGE)


@rows
def test_what_was_trained_is_saved_and_loaded(train, lora, learns, tmp_path):
    captioner = tiny_blip2(tmp_path / "base", train=train, lora=lora)
    rollout = captioner.tokenize(batch_of(captioner, 2), ["a red circle on a table", "a blue star"], torch.arange(2))
    untrained = captioner(rollout).logprobs.detach()
    step_twice(captioner, rollout)
    trained = captioner(rollout).logprobs.detach()
    assert not torch.equal(trained, untrained)
    captioner.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/tellapart.json").read_text())["train"] == train
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(loaded(rollout).logprobs, trained)
    loaded.save(tmp_path / "again")  # nothing of it is named as trained, and yet it stays
    again = HuggingFaceCaptioner.from_pretrained(tmp_path / "again", train=train).eval()
    assert torch.equal(again(rollout).logprobs, trained)
    kept = weights(captioner)
    with torch.no_grad():
        for parameter in captioner.parameters():
            if parameter.requires_grad:
                parameter.zero_()
    captioner.load_weights(tmp_path / "saved")
    assert all(torch.equal(value, kept[name]) for name, value in weights(captioner).items())


def test_parts_next_to_an_adapter_load_in_plain_peft(tmp_path):
    captioner = tiny_blip2(tmp_path / "base", train="bridge", lora=TEXT)
    rollout = captioner.tokenize(batch_of(captioner, 2), ["a red circle on a table", "a blue star"], torch.arange(2))
    step_twice(captioner, rollout)
    captioner.save(tmp_path / "saved")
    model = Blip2ForConditionalGeneration.from_pretrained(tmp_path / "base").eval()
    report = model.load_state_dict(load_file(tmp_path / "saved/parts.safetensors"), strict=False)
    assert not report.unexpected_keys
    model = PeftModel.from_pretrained(model, tmp_path / "saved").eval()
    pixels = rollout.batch.inputs["captioner"]["pixel_values"]
    prompt = captioner.encode(rollout.batch).inputs["input_ids"]
    ids = torch.cat([prompt, rollout.tokens], dim=1)
    logits = model(pixel_values=pixels, input_ids=ids).logits[:, prompt.shape[1] - 1 : -1]
    found = logits.log_softmax(dim=-1).gather(2, rollout.tokens[:, :, None]).squeeze(2)
    torch.testing.assert_close((found * rollout.mask), captioner(rollout).logprobs, atol=1e-5, rtol=0)


def test_a_folder_without_its_parts_is_refused(tmp_path):
    tiny_blip2(tmp_path / "base", train=["projection"], lora=TEXT).save(tmp_path / "saved")
    (tmp_path / "saved/parts.safetensors").unlink()
    with pytest.raises(UsageError, match=r"lacks the weights of projection in parts\.safetensors"):
        HuggingFaceCaptioner.from_pretrained(tmp_path / "saved")


def test_parts_in_half_precision_learn_in_full_next_to_an_adapter(tmp_path):
    captioner = tiny_blip2(tmp_path / "base", train=ALL_PARTS, lora=IMAGE, dtype="bfloat16")
    assert {p.dtype for p in captioner.parameters() if p.requires_grad} == {torch.float32}
    captioner.save(tmp_path / "saved")
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path / "saved", dtype="bfloat16")
    assert loaded.family.model.query_tokens.dtype == torch.float32


def test_the_reference_of_an_adapted_image_tower_is_the_start_model(tmp_path):
    captioner = tiny_blip2(tmp_path, train=ALL_PARTS, lora=IMAGE)
    rollout = captioner.tokenize(batch_of(captioner, 2), ["a red circle on a table", "a blue star"], torch.arange(2))
    reference, start = captioner.reference(), captioner(rollout).logprobs.detach()
    step_twice(captioner, rollout)
    assert torch.equal(reference(rollout, encoded=captioner.encode(rollout.batch)).logprobs, start)


def test_a_critics_adapter_goes_with_one_of_the_image_tower_only(tmp_path):
    """VLRM's value pass keeps its own LoRA of the language model, whichever parts the policy trains."""
    captioner = tiny_blip2(tmp_path / "image", train=ALL_PARTS, lora=IMAGE)
    rollout = captioner.generate(batch_of(captioner, 2), Decoding(do_sample=True, max_new_tokens=6))
    critic = Critic(captioner, lora=LoraOptions(r=3))
    assert all("language_model" in name for name in critic.adapter)
    for p in critic.adapter.values():
        torch.nn.init.normal_(p)
    critic(rollout).sum().backward()
    assert all(p.grad is not None for p in critic.adapter.values())
    assert all(p.grad is None for p in captioner.parameters())
    assert all(name.startswith("vision_model.") for name in adapted_modules(captioner.family.model))
    with pytest.raises(UsageError, match=r"captioner\.lora\.tower to image"):
        Critic(tiny_blip2(tmp_path / "text", lora=TEXT), lora=LoraOptions(r=3))


def test_instructblip_has_the_same_parts(tmp_path):
    captioner = tiny_instructblip(tmp_path, train=["qformer"])
    learning = {name for name, p in captioner.family.model.named_parameters() if p.requires_grad}
    assert learning
    assert all(name.startswith("qformer.") for name in learning)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (tiny_blip2, {"train": ["bridge"]}, "names 'bridge', but blip-2 has query_tokens, qformer, projection"),
        (tiny_blip2, {"train": ["qformer", "head"]}, "names 'head', but blip-2 has query_tokens, qformer, projection"),
        (tiny_blip2, {"train": []}, "names no part, but blip-2 has query_tokens"),
        (tiny_git, {"train": ["projection"]}, "names 'projection', but git has no parts that train alone"),
        (tiny_git, {"train": []}, "names no part, and git has no parts that train alone: choose 'decoder' or 'all'"),
        (tiny_blip2, {"lora": LoraOptions(target_modules="(")}, r"='\(' is not a regular expression \(missing \)"),
        (tiny_blip2, {"train": "qformer"}, "train='qformer' is unknown"),
        (tiny_blip2, {"train": "all", "lora": TEXT}, "train='all' and lora exclude each other"),
        (tiny_blip2, {"lora": LoraOptions(tower="image", target_modules=r".*\.q_proj")}, "not in the image tower"),
        (tiny_ved, {"lora": IMAGE}, r"name them in lora\.target_modules"),
    ],
)
def test_unusable_choices_are_one_sentence(make, options, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        make(tmp_path, **options)
