"""Listeners that do not load: planted pickles, settings that are no text, tokenizers of more words than the model knows."""

from __future__ import annotations

import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from materials import materials
from tellapart.errors import UsageError, reason_of
from tellapart.listeners.clip import ClipListener

__all__ = ["materials"]


class Planted:
    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


@pytest.fixture
def folder(materials, tmp_path):
    return shutil.copytree(materials.listener, tmp_path / "listener")


def refused(folder) -> str:
    with pytest.raises(UsageError) as caught:
        ClipListener.from_pretrained(folder)
    assert len(str(caught.value)) < 300
    assert str(caught.value).endswith(".")
    return str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_planted_pickles_are_refused_in_a_sentence(folder, tmp_path, zipped):
    """They were not executed, and ended in a traceback."""
    (folder / "model.safetensors").unlink()
    planted = Planted(str(tmp_path / "executed"))
    if zipped:
        torch.save({"weight": planted}, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(planted))
    assert refused(folder).startswith(f"the listener {folder} cannot be loaded (")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", [b"\xb3", b"[]", b'{"prefix": 1}', b"{"])
def test_settings_that_are_no_settings(folder, content):
    (folder / "listener.json").write_bytes(content)
    assert refused(folder).startswith(f"{folder / 'listener.json'} ")


def test_a_token_that_the_model_does_not_know(folder):
    """It ended in an IndexError, once a text had to be padded."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token": "a new one"}))
    assert f"the tokenizer of {folder} has a special token with id " in refused(folder)


def test_reasons_are_short():
    assert reason_of(ValueError("one.\ntwo")) == "one"
    assert reason_of(KeyError()) == "KeyError"
    assert reason_of(ValueError("x" * 500)) == "x" * 137 + "..."


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(folder, value):
    """``caption`` compared captions by them and ended with code 0."""
    weights = load_file(folder / "model.safetensors")
    name = next(key for key in sorted(weights) if key.endswith("q_proj.weight"))
    weights[name].view(-1)[3] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"holds weights that are not finite, first {name}: restore or replace it." in refused(folder)
