"""The judge of an evaluation is another retriever than its listener, and models are named by paths or ids."""

import shutil

import pytest

from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.listeners.loading import existing
from tellapart.recipe.build import build
from tellapart.recipe.recipe import Recipe


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


def test_a_mistyped_path_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(UsageError, match="the listener's folder models/nope does not exist"):
        existing("models/nope", "listener")
    assert existing("openai/clip-vit-base-patch32", "listener") == "openai/clip-vit-base-patch32"
