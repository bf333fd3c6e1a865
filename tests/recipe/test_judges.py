"""The judge of an evaluation is another retriever than its listener, and models are named by paths or ids."""

import shutil
from types import SimpleNamespace

import pytest

from tellapart.cli.main import main
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import EncodedImage
from tellapart.errors import UsageError
from tellapart.files import existing
from tellapart.recipe import soft_listeners
from tellapart.recipe.build import build
from tellapart.recipe.measured import Where
from tellapart.recipe.recipe import Recipe
from tellapart.recipe.score import _listeners
from tellapart.recipe.score_options import ScoreOptions


@pytest.mark.parametrize("other", [False, True])
def test_a_judge_that_is_the_listener_is_told(other, materials, tmp_path, caplog, capsys, monkeypatch):
    judge = shutil.copytree(materials.listener, tmp_path / "copy")  # another path, the same weights
    if other:
        from listeners.tiny_listeners import clip_parts
        from tellapart.listeners.clip import ClipListener

        ClipListener.from_parts(*clip_parts(seed=5)).save(judge)
    evaluation = {"split": "val", "max_new_tokens": 8, "judge": str(judge)}
    build(Recipe.load(materials.recipe(tmp_path, "scst", evaluation=evaluation)))
    assert ("judge and listener are one model" in caplog.text) != other
    caplog.clear()
    words = ["--data", materials.data, "--split", "val", "--listener", materials.listener, "--judge", judge]
    assert main(["score", *map(str, (materials.captioner, *words))]) == 0
    assert ("judge and listener are one model" in caplog.text) != other


def test_the_base_of_a_runs_listener_is_no_others(materials, tmp_path, monkeypatch):
    """That of the listener was taken for the judge, and for a listener that was named instead."""
    images = CaptionDataset([Example("a", EncodedImage(b"", "a"))], name="x")
    where = Where(images, images, "x", "val", "small")
    run = SimpleNamespace(
        evaluation=SimpleNamespace(listener=None, judge="judge.pth"),
        listener=SimpleNamespace(path="big.pth", base="large", prefix=None, text_pooling="whole"),
    )
    read = {}
    loaded = SimpleNamespace(cache_images=lambda dataset: None)
    monkeypatch.setattr(
        soft_listeners, "load_retriever", lambda path, *, base, **_: read.update({path: base}) or loaded
    )
    monkeypatch.setattr(soft_listeners, "tell_same", lambda found: None)
    _listeners(ScoreOptions(), run, where)
    assert read == {"big.pth": "large", "judge.pth": None}
    _listeners(ScoreOptions(listener="other.pth"), run, where)
    assert read["other.pth"] is None
    _listeners(ScoreOptions(listener="other.pth", pac_base="mine", pac="x.pth"), run, where)
    assert read["other.pth"] == "mine"


def test_a_mistyped_path_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(UsageError, match="the listener's folder models/nope does not exist"):
        existing("models/nope", "listener")
    assert existing("openai/clip-vit-base-patch32", "listener") == "openai/clip-vit-base-patch32"
