"""The code that a card shows: run as it stands, it writes the caption that tellapart writes."""

from typing import Any

import pytest
import torch
from PIL import Image

from family_checks import make
from pictures import images
from tellapart.captioners.adapters import LoraOptions
from tellapart.evaluation.card.loading import loading_code
from tellapart.types import Batch, Decoding
from tiny.blip2 import tiny_blip2

FAMILIES = (
    "CLIP + GPT-2",
    "BLIP",
    "BLIP-2 (T5)",
    "InstructBLIP (Vicuna)",
    "GIT",
    "Florence-2",
    "LLaVA",
    "PaliGemma",
    "Idefics3",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_code_of_a_card_captions_a_photo(family, tmp_path, monkeypatch, capsys):
    captioner = make(family, tmp_path / "made")
    captioner.save(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    for number in (1, 5):
        images(6)[number].save("photo.jpg", quality=95)
        pixels = captioner.process([Image.open("photo.jpg").convert("RGB")])
        batch = Batch(["1"], [[]], {captioner.name: pixels})
        (ours,) = captioner.generate(batch, Decoding(max_new_tokens=40)).texts
        code = loading_code(tmp_path / "saved", str(tmp_path / "saved"), None)
        capsys.readouterr()
        exec(code, {})
        assert capsys.readouterr().out.strip() == ours.strip()


def test_code_of_a_card_loads_parts_next_to_an_adapter(tmp_path):
    captioner = tiny_blip2(tmp_path / "base", train=["projection"], lora=LoraOptions(r=2))
    with torch.no_grad():
        for parameter in captioner.parameters():
            if parameter.requires_grad:
                parameter += 1
    captioner.save(tmp_path / "saved")
    found: dict[str, Any] = {}
    exec(loading_code(tmp_path / "saved", str(tmp_path / "saved"), str(tmp_path / "base")), found)
    loaded = dict(found["model"].base_model.model.named_parameters())
    own = dict(captioner.family.model.named_parameters())
    assert loaded.keys() == own.keys()
    assert all(torch.equal(loaded[name], own[name]) for name in own)
