"""Memory estimates: counts by hand for small modules, and the large model that is to fit one device."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import Blip2Config, OPTConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from command_recipes import load_recipe
from listeners.tiny_listeners import clip_parts
from tellapart.captioners.activations import activations
from tellapart.captioners.base import Encoded
from tellapart.captioners.learning import checkpoint_layers
from tellapart.captioners.liger import liger_numbers
from tellapart.cli.memory import _Holder, lacks_weights, memory_of_configurations
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.training import frozen
from tellapart.training.memory import frozen_models, memory_of, peak
from tiny_models import tiny_ved

WIDTH, HIDDEN, TOKENS = 8, 24, 5


class Layer(GradientCheckpointingLayer):
    """Saves its input, what GELU is given, and what GELU gives."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.contract = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, states):
        return self.contract(nn.functional.gelu(self.expand(states)))


class Stub:
    """A family of three layers over the tokens; an image's states are its picture, which nothing learns from."""

    vocab_size = 11
    head = nn.Linear(WIDTH, 11)

    def __init__(self, device: str) -> None:
        with torch.device(device):
            self.model = nn.Sequential(Layer(), Layer(), Layer()).train()
        self.places = torch.arange(WIDTH, device=device).float()

    def encode(self, inputs):
        return Encoded(inputs["pixel_values"])

    def teacher_forced(self, tokens, encoded, image):
        return self.model(tokens[:, :, None] + self.places + encoded.states[image][:, None, :])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_activations_are_what_the_layers_save(device):
    stub, pictures = Stub(device), {"pixel_values": torch.ones(2, WIDTH, device=device)}
    options = {"tokens": TOKENS, "captions": 3, "vision_learns": False}
    whole = activations(stub, pictures, checkpointed=False, **options)
    a_layer = 4 * TOKENS * (WIDTH + 2 * HIDDEN)
    assert (whole.fixed, whole.each, whole.passing) == (0, 3 * a_layer, 0)
    assert whole.logits == 4 * 3 * TOKENS * stub.vocab_size
    assert whole.of(3) == 9 * a_layer + whole.logits
    liger = activations(stub, pictures, checkpointed=False, use_liger_kernel=True, **options)
    assert (liger.each, liger.logits) == (whole.each, 4 * liger_numbers(3 * TOKENS, stub))
    assert (
        activations(stub, pictures, checkpointed=False, entropy=True, use_liger_kernel=True, **options).logits
        == 4 * whole.logits
    )
    # logits, log-probabilities, and the gradients of both
    assert activations(stub, pictures, checkpointed=False, entropy=True, **options).logits == 4 * whole.logits

    for layer in stub.model:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = lambda function, *given: torch.utils.checkpoint.checkpoint(
            function, *given, use_reentrant=False
        )
    small = activations(stub, pictures, checkpointed=True, **options)
    assert (small.each, small.passing) == (3 * 4 * TOKENS * WIDTH, a_layer)
    assert all(layer.gradient_checkpointing for layer in stub.model)


def test_a_real_captioner_saves_less_with_checkpoints():
    captioner = tiny_ved().train()
    pictures = {"pixel_values": torch.randn(2, 3, 32, 32)}
    options = {"tokens": 12, "captions": 4, "vision_learns": False}
    whole = activations(captioner.family, pictures, checkpointed=False, **options)
    checkpoint_layers(captioner.family.model)
    small = activations(captioner.family, pictures, checkpointed=True, **options)
    assert 0 < small.each < whole.each / 2
    assert small.passing > 0


def test_weights_count_once_and_frozen_models_are_found():
    captioner = tiny_ved()
    reference = captioner.reference()
    rows = {
        row.name: row
        for row in memory_of(
            {"captioner": captioner},
            frozen_models({"reference": reference, "reward": {"itm": {"matcher": nn.Linear(4, 4)}}}),
            {"captioner": 1000},
        )
    }
    learning = [p for p in captioner.parameters() if p.requires_grad]
    own = rows["captioner"]
    assert own.trained == sum(p.numel() for p in learning)
    assert own.trained + own.frozen == sum(p.numel() for p in captioner.parameters())
    assert own.gradients == 4 * own.trained
    assert own.optimiser == 8 * own.trained
    assert rows["reference"].frozen == own.trained  # the image tower is shared
    assert rows["reference"].gradients == rows["matcher"].gradients == 0
    assert rows["matcher"].weights == 4 * 20
    assert peak(rows.values()) == sum(row.lasting for row in rows.values()) + 1000


def test_blip2_with_a_critic_fits_24_gib_without_a_download(tmp_path):
    matcher = Blip2Config(num_query_tokens=32, qformer_config={"use_qformer_text_input": True})
    reader = OPTConfig(
        vocab_size=50272,
        hidden_size=2560,
        word_embed_proj_dim=2560,
        ffn_dim=10240,
        num_hidden_layers=32,
        num_attention_heads=32,
    )
    for name, config, kind in (("itm", matcher, "Blip2ForImageTextRetrieval"), ("opt", reader, "OPTForCausalLM")):
        config.architectures = [kind]
        config.save_pretrained(tmp_path / name)
    recipe = {
        "method": "vlrm",
        "captioner": {"model_name_or_path": "blip2-opt-2.7b", "train": "bridge", "dtype": "bfloat16"},
        "critic": {"blocks": 5, "lora": {"r": 16}},
        "reward": {"itm": 1.0, "language_model": 1.0},
        "matcher": {"model": str(tmp_path / "itm"), "dtype": "bfloat16"},
        "language_model": {"path": str(tmp_path / "opt"), "dtype": "bfloat16"},
        "evaluation": {"split": None},
        "output_dir": str(tmp_path / "run"),
        "learning_rate": 1e-5,
        "max_steps": 1,
        "per_device_train_batch_size": 8,
    }
    (tmp_path / "vlrm.yaml").write_text(json.dumps(recipe))
    assert lacks_weights("blip2-opt-2.7b")
    assert lacks_weights(str(tmp_path / "opt"))
    with pytest.raises(UsageError, match="critic"):  # a traceback
        memory_of_configurations(load_recipe([str(tmp_path / "vlrm.yaml"), "--critic", "null"]))
    told = memory_of_configurations(load_recipe([str(tmp_path / "vlrm.yaml")]))
    trained = {line.split()[0]: int(line.split()[1].replace(",", "")) for line in told.splitlines()[2:4]}
    assert 105e6 < trained["captioner"] < 109e6  # queries, Q-Former and projection
    assert 280e6 < trained["critic"] < 281e6  # a head of 275.3 and an adapter of 5.2 million
    assert "unknown" not in told
    total = float(told.split("at its highest: ")[1].split(" GiB")[0])
    assert 16 < total < 24e9 / 2**30
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("method", "held"), [("dico", True), ("dpo", True), ("scst", False)])
def test_the_start_model_and_a_checkpoint_file_are_counted(tmp_path, monkeypatch, method, held):
    tiny_ved(tmp_path / "captioner")
    for weights in (tmp_path / "captioner").glob("*.safetensors"):
        weights.unlink()
    model, image_processor, tokenizer = clip_parts()
    ClipListener.from_parts(model, image_processor, tokenizer).save(tmp_path / "clip")
    (tmp_path / "pac.pth").touch()  # its configuration is that of its base
    recipe = {
        "method": method,
        "captioner": {"model_name_or_path": str(tmp_path / "captioner")},
        "listener": {"path": str(tmp_path / "pac.pth"), "base": str(tmp_path / "clip")},
        "reward": {"clip_s": 1.0},
        "evaluation": {"split": None},
        "output_dir": str(tmp_path / "run"),
        "learning_rate": 1e-5,
        "max_steps": 1,
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    rows = {line.split()[0]: line.split() for line in _told(tmp_path / "recipe.yaml")}
    assert int(rows["listener"][2].replace(",", "")) == sum(p.numel() for p in model.parameters())
    assert ("reference" in rows) == held
    if held:
        assert rows["reference"][2] == rows["captioner"][1]
        return
    recipe["reward"] = [{"name": "clip_s", "listener": recipe["listener"]}]
    (tmp_path / "own.yaml").write_text(json.dumps(recipe | {"listener": {"path": None}}))
    own = next(line for line in _told(tmp_path / "own.yaml") if line.startswith("listener of clip_s"))
    assert own.split()[2:][2] == rows["listener"][2]
    assert "frozen" not in rows, "a small listener is on every device"
    monkeypatch.setattr(frozen, "LARGE", 2**10)
    assert _told(tmp_path / "recipe.yaml")[-1] == "frozen models of 0.0 MiB or more are shared, too: listener"


@pytest.mark.parametrize(("method", "differentiated"), [("sll", False), ("sll_me", True)])
def test_entropies_count(tmp_path, monkeypatch, method, differentiated):
    """Their logits take four times as much, which was left out."""
    asked = []

    def recorded(*given, **options):
        asked.append(options["entropy"])
        return activations(*given, **options)

    monkeypatch.setattr("tellapart.captioners.activations.activations", recorded)
    tiny_ved(tmp_path / "captioner")
    for weights in (tmp_path / "captioner").glob("*.safetensors"):
        weights.unlink()
    recipe = {
        "method": method,
        "captioner": {"model_name_or_path": str(tmp_path / "captioner")},
        "reward": {"cider_d": 1.0},
        "evaluation": {"split": None},
        "output_dir": str(tmp_path / "run"),
        "learning_rate": 1e-5,
        "max_steps": 1,
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    assert not any("unknown" in line for line in _told(tmp_path / "recipe.yaml"))
    assert asked == [differentiated]


@pytest.mark.parametrize(
    ("objective", "captions"), [({"pairs_per_image": 3}, 6), ({"pairs_per_image": None}, 2), ({}, 1)]
)
def test_pairs_count_as_two_captions_without_data(objective, captions):
    """All pairs counted as one caption."""
    holder = _Holder({"captioner": nn.Linear(1, 1)}, SimpleNamespace(objective=objective))
    assert holder.num_return_sequences == captions


def _told(path):
    return [line for line in memory_of_configurations(load_recipe([str(path)])).splitlines() if line.strip()]
