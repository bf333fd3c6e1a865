"""Language models in 8 and 4 bits: an adapter learns beside them; without bitsandbytes one sentence says what is missing."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import transformers

from tellapart.captioners import loading
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.recipe.models import load_captioner
from tellapart.recipe.sections import CaptionerSection
from tiny.blip2 import tiny_blip2
from tiny_models import batch_of, tiny_ved


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("blip2")
    tiny_blip2(place, width=64)
    return place


def loaded(folder, quantization):
    return HuggingFaceCaptioner.from_pretrained(folder, lora=LoraOptions(r=4), quantization=quantization).eval()


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.parametrize(("quantization", "layer"), [("int8", "Linear8bitLt"), ("nf4", "Linear4bit")])
def test_an_adapter_learns_beside_rounded_weights(folder, quantization, layer):
    whole, rounded = loaded(folder, None), loaded(folder, quantization)
    kinds = {type(module).__name__ for module in rounded.family.model.language_model.modules()}
    assert layer in kinds
    outside = (
        rounded.family.model.vision_model,
        rounded.family.model.qformer,
        rounded.family.model.language_projection,
    )
    assert not any(type(module).__name__ == layer for part in outside for module in part.modules())
    batch = batch_of(whole, 2)
    rollout = whole.tokenize(batch, ["a red star on a table", "a moon"], torch.tensor([0, 1]))
    with torch.no_grad():
        exact, near = whole(rollout).logprobs, rounded(rollout).logprobs
    assert 0 < (exact - near).abs().max() < 0.25 * exact.abs().max()
    learned = [p for p in rounded.parameters() if p.requires_grad]
    before = near.sum()
    optimiser = torch.optim.SGD(learned, lr=1e-3)
    for _ in range(3):
        optimiser.zero_grad()
        rounded(rollout).logprobs.sum().neg().backward()
        optimiser.step()
    with torch.no_grad():
        assert rounded(rollout).logprobs.sum() > before


def test_each_process_loads_onto_its_own_gpu(folder, monkeypatch):
    asked = []

    def load(name, **options):
        asked.append(options["device_map"])
        raise OSError("asked is enough")

    monkeypatch.setattr(loading, "quantization_config", lambda *given: None)
    monkeypatch.setattr(transformers.AutoModelForImageTextToText, "from_pretrained", load)
    monkeypatch.setenv("LOCAL_RANK", "3")
    for gpus in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpus=gpus: gpus)
        with pytest.raises(UsageError, match="asked is enough"):
            loading.read_parts(folder, quantization="int8")
    assert asked == [{"": 3}, None]


def test_what_cannot_be_rounded_is_told(folder, tmp_path, monkeypatch):
    section = CaptionerSection(model_name_or_path=str(folder), quantization="int8")
    with pytest.raises(UsageError, match=r"set captioner.lora, whose adapter is trained"):
        load_captioner(section)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    with pytest.raises(
        UsageError, match=r"quantization=nf4 needs bitsandbytes: pip install 'tellapart\[quantization\]'"
    ):
        loaded(folder, "nf4")
    tiny_ved(tmp_path)
    with pytest.raises(UsageError, match="'vision-encoder-decoder' is none"):
        loaded(tmp_path, "int8")
