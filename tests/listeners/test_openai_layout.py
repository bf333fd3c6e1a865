"""Checkpoints in OpenAI's layout, against a small forward pass of that layout written here."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import warnings

import pytest
import torch
from torch import nn

from listeners.openai_clip import SIDE, WIDTH, OpenAIClip, base_folder, original_clip, saved
from listeners.tiny_listeners import LIMIT, clip_parts, tokenizer
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.openai_layout import convert_openai_clip, read_state_dict


@pytest.fixture(scope="module")
def original() -> OpenAIClip:
    return original_clip()


@pytest.fixture
def base(tmp_path):
    return base_folder(tmp_path / "base")


def unit(x):
    return nn.functional.normalize(x, dim=-1)


def test_embeddings_equal_the_original_forward(original, base, tmp_path):
    path = saved(tmp_path / "pac.pth", original.state_dict(), nested=True)
    listener = ClipListener.from_pretrained(path, base=base)
    assert listener.prefix == "A photo depicts "
    assert listener.describe()["model"] == "pac.pth"
    pixels = torch.randn(3, 3, SIDE, SIDE)
    texts = ["a dog", "the red bus and two", "a cat runs"]
    with torch.no_grad():
        torch.testing.assert_close(listener.embed_images(pixels), unit(original.visual(pixels)), atol=1e-5, rtol=0)
        found = listener.encode_texts(texts)
        for text, row in zip(texts, found, strict=True):
            ids = torch.tensor([listener.tokenizer(listener.prefix + text)["input_ids"]])
            torch.testing.assert_close(row, unit(original.encode_text(ids))[0], atol=1e-5, rtol=0)
    assert float(listener.logit_scale.detach()) == pytest.approx(2.3)
    assert (found[0] - found[1]).norm() > 0.1


def test_the_base_tells_what_shapes_do_not(original, base, tmp_path):
    """OpenCLIP's models have plain GELU, some of them other heads, under the same names."""
    model = copy.deepcopy(original)
    for block in [*model.visual.transformer.resblocks, *model.transformer.resblocks]:
        block.mlp.gelu = nn.GELU()
    for block in model.visual.transformer.resblocks:
        block.attn.num_heads, block.attn.head_dim = 4, 32
    config = json.loads((base / "config.json").read_text())
    config["vision_config"] |= {"hidden_size": WIDTH, "num_attention_heads": 4, "hidden_act": "gelu"}
    config["text_config"]["hidden_act"] = "gelu"
    (base / "config.json").write_text(json.dumps(config))
    listener = ClipListener.from_pretrained(saved(tmp_path / "pac.pth", model.state_dict()), base=base)
    pixels, ids = torch.randn(2, 3, SIDE, SIDE), torch.tensor([[1, 5, 6, 19]])
    with torch.no_grad():
        torch.testing.assert_close(listener.embed_images(pixels), unit(model.visual(pixels)), atol=1e-5, rtol=0)
        found = unit(listener.model.get_text_features(input_ids=ids).pooler_output)
        torch.testing.assert_close(found, unit(model.encode_text(ids)), atol=1e-5, rtol=0)
        assert (listener.embed_images(pixels) - unit(original.visual(pixels))).abs().max() > 1e-3


def test_half_precision_tensors_become_float32(original, tmp_path):
    half = {f"module.{name}": value.half() for name, value in original.state_dict().items()}
    half |= {"input_resolution": torch.tensor(SIDE), "context_length": torch.tensor(LIMIT)}
    model = convert_openai_clip(read_state_dict(saved(tmp_path / "half.pt", half)))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    pixels = torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():
        found = unit(model.get_image_features(pixel_values=pixels).pooler_output)
        torch.testing.assert_close(found, unit(original.visual(pixels)), atol=5e-3, rtol=0)


def test_what_is_no_vision_transformer_is_refused(original, tmp_path):
    state = original.state_dict()
    with pytest.raises(UsageError, match="ResNet"):
        convert_openai_clip(state | {"visual.layer1.0.conv1.weight": torch.ones(1)})
    with pytest.raises(UsageError, match=r"lacks 'visual.proj'"):
        convert_openai_clip({name: value for name, value in state.items() if name != "visual.proj"})
    without = {name: value for name, value in state.items() if name != "transformer.resblocks.1.ln_1.bias"}
    with pytest.raises(UsageError, match="does not make a whole CLIP"):
        convert_openai_clip(without)
    with pytest.raises(UsageError, match="lora_A"):
        convert_openai_clip(state | {"transformer.resblocks.0.attn.lora_A": torch.ones(1)})
    with pytest.raises(UsageError, match="do not fit together"):
        convert_openai_clip(state | {"ln_final.weight": torch.ones(3)})


def test_files_that_hold_no_tensors_are_refused(tmp_path, base, original):
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"no tensors")
    with pytest.raises(UsageError, match="not a file of plain tensors"):
        ClipListener.from_pretrained(broken, base=base)
    torch.save({"state_dict": io.BytesIO}, broken)  # a class: weights_only reads none
    with pytest.raises(UsageError, match="not a file of plain tensors"):
        ClipListener.from_pretrained(broken, base=base)
    with pytest.raises(UsageError, match=r"checkpoint .*none\.pth does not exist"):
        ClipListener.from_pretrained(tmp_path / "none.pth", base=base)
    with pytest.raises(UsageError, match=r"cannot be loaded .*pac_base"):
        ClipListener.from_pretrained(saved(tmp_path / "pac.pth", original.state_dict()), base=str(tmp_path))


def test_damaged_files_are_refused_whatever_they_raise(tmp_path):
    path = tmp_path / "damaged.pth"
    torch.save({"a": torch.ones(3, 3), "b": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)
    whole, refused = path.read_bytes(), 0
    for seed in range(150):
        rng, damaged = random.Random(seed), bytearray(whole)
        for _ in range(3):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(bytes(damaged[: rng.randrange(len(damaged))] if seed % 3 == 0 else damaged))
        with warnings.catch_warnings(), contextlib.suppress(UsageError):
            warnings.simplefilter("ignore")
            refused += 1
            read_state_dict(path)
            refused -= 1
    assert refused > 75


@pytest.mark.parametrize(
    "name", ["text_projection", "positional_embedding", "visual.positional_embedding", "logit_scale"]
)
def test_tensors_of_another_rank_are_refused(original, name):
    state = original.state_dict()
    state[name] = torch.ones(2) if name == "logit_scale" else torch.tensor(1.0)
    with pytest.raises(UsageError, match="tensors that do not fit together"):
        convert_openai_clip(state)


def test_a_base_of_another_shape_is_refused(original, tmp_path):
    larger = tokenizer(("<pad>", "<bos>", "<unk>", "<more>"))
    ClipListener.from_parts(*clip_parts(words=larger)).save(tmp_path / "base")
    with pytest.raises(UsageError, match=r"vocabulary 21, but .* needs 20"):
        ClipListener.from_pretrained(saved(tmp_path / "pac.pth", original.state_dict()), base=tmp_path / "base")
