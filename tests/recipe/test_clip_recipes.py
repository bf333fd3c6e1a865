"""Recipes whose data are clips: a training reads them, and says when an option does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clip_files import grey_frames, write_clip
from materials import materials  # noqa: F401  # a fixture
from pictures import CAPTIONS
from tellapart.cli.caption_options import CaptionOptions, samplings
from tellapart.cli.main import main
from tellapart.data.clips import ClipFile
from tellapart.recipe.images import training_images
from tellapart.recipe.recipe import Recipe

pytest.importorskip("av")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven clips, two of them for validation, and one that is cut off."""
    folder = tmp_path_factory.mktemp("clips")
    for number in range(7):
        split = folder / ("train" if number < 5 else "val")
        split.mkdir(exist_ok=True)
        write_clip(split / f"{number}.mp4", grey_frames(8) + 3 * number, "mpeg4")
        with (split / "metadata.jsonl").open("a") as table:
            table.write(json.dumps({"file_name": f"{number}.mp4", "captions": [CAPTIONS[number]]}) + "\n")
    broken = folder / "train" / "0.mp4"
    broken.write_bytes(broken.read_bytes()[:500])
    return folder


def recipe(materials, folder: Path, clips: Path, **data) -> Path:  # noqa: F811
    given = {"path": str(clips), "split": "train", "on_error": "skip", **data}
    return materials.recipe(folder, "xe", data=given, listener=None)


def test_a_training_on_clips(materials, clips: Path, tmp_path: Path, capsys) -> None:  # noqa: F811
    path = recipe(materials, tmp_path, clips, sampling="key_frames")
    dataset, _, skipped = training_images(Recipe.load(path), None)
    assert [name for name, _ in skipped] == ["train/0.mp4"]
    assert {(type(e.image), e.image.sampling) for e in dataset} == {(ClipFile, "key_frames")}
    assert main(["train", str(path)]) == 0
    run = tmp_path / "xe"
    assert "train/0.mp4" in (run / "skipped_images.txt").read_text()
    assert samplings(CaptionOptions(captioner=str(run))) == "key_frames"
    assert samplings(CaptionOptions(captioner=str(run), sampling="uniform")) == "uniform"


def test_a_captioner_of_stills_reads_no_number_of_frames(materials, clips: Path, tmp_path: Path, capsys) -> None:  # noqa: F811
    path = recipe(materials, tmp_path, clips, num_frames=4)
    assert main(["train", str(path)]) == 2
    assert "data.num_frames is 4, but the captioner reads stills: leave data.num_frames out." in capsys.readouterr().err
