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
from pictures import images
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


def changed(folder, name, **settings):
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | settings))


@pytest.mark.parametrize("settings", [{"model_max_length": ""}, {"model_max_length": [[]]}, {"unk_token": ""}])
def test_a_tokenizer_that_fails_where_it_is_used_is_refused_when_it_is_read(folder, settings):
    """They were read, and ended in a traceback at the first text."""
    changed(folder, "tokenizer_config.json", **settings)
    assert "cannot be loaded (its tokenizer cannot read text: " in refused(folder)


def test_a_panic_of_the_tokenizers_library_is_a_sentence(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["post_processor"]["single"][0] = {"SpecialToken": {"id": "unknown", "type_id": 0}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    refused(folder)


def test_an_id_that_the_model_does_not_know(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["post_processor"]["special_tokens"]["<bos>"]["ids"] = [100_000]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="gives the id 100000, but the model knows ids from 0 to "):
        ClipListener.from_pretrained(folder).embed_texts(["a red square"])


@pytest.mark.parametrize("side", [0, True, 8])
def test_images_of_another_size_than_the_models_are_refused(folder, side):
    changed(folder, "preprocessor_config.json", crop_size=side)
    listener = ClipListener.from_pretrained(folder)
    with pytest.raises(UsageError, match=r"Input image size \(\d+\*\d+\) doesn't match model \(16\*16\)\).*crop_size"):
        listener.embed_images(**listener.process(images(2)))


def test_a_processor_that_would_fill_the_memory_is_refused(folder):
    changed(folder, "preprocessor_config.json", size={"shortest_edge": 10**6})
    assert "size asks for 1e+06 pixels" in refused(folder)
