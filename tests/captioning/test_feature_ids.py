"""Features of images that are named by paths: those of the picture itself, from wherever it is named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from captioning.captioning_fakes import tar
from pictures import images
from tellapart.captioning.plan import plan
from tellapart.captioning.read import Reader
from tellapart.captioning.records import Caption
from tellapart.captioning.serve import Station
from tellapart.cli import caption, caption_shards
from tellapart.cli.caption_options import CaptionOptions
from tellapart.data.clips import ClipFile
from tellapart.data.features.base import FeatureInputs, FeatureSet
from tellapart.data.features.open import open_features
from tellapart.data.features.store import About, FeatureWriter
from tellapart.data.images import ImageFile, ImageSource
from tellapart.errors import UsageError

NUMBERS = {"0.png": 0.0, "1.png": 1.0, "sub/0.png": 2.0, "sub/1.png": 3.0}
"""Image below the album -> its feature."""


@pytest.fixture
def album(tmp_path) -> Path:
    """Four pictures, two of which have the names of the others, in a folder below theirs."""
    folder = tmp_path / "album"
    (folder / "sub").mkdir(parents=True)
    for name, picture in zip(NUMBERS, images(4), strict=True):
        picture.save(folder / name)
    return folder


def store_of(folder: Path, pictures: dict[str, ImageSource]) -> FeatureSet:
    writer = FeatureWriter(folder, About("m", "w", "mean", 1, "float32"))
    writer.add((name, picture.fingerprint(), np.array([NUMBERS[name]])) for name, picture in pictures.items())
    writer.flush()
    return open_features(folder)


@pytest.fixture
def store(album, tmp_path) -> FeatureSet:
    return store_of(tmp_path / "store", {name: ImageFile(album / name) for name in NUMBERS})


def read(features: FeatureSet, *words: object, **how) -> tuple[list[float], list[str]]:
    """The features of the images, and why others have none."""
    found = Reader({}, features={"captioner": FeatureInputs(features)})(plan([str(word) for word in words], **how))
    values = [] if found.batch is None else found.batch.inputs["captioner"]["features"][:, 0].tolist()
    return values, list(found.errors.values())


def test_a_store_gives_the_features_of_the_picture_wherever_it_is_named(store, album, tmp_path, monkeypatch):
    """``sub/1.png`` had those of ``1.png`` when its own folder, or the file, was named."""
    assert read(store, album) == ([0.0, 1.0, 2.0, 3.0], [])
    assert read(store, album / "sub") == ([2.0, 3.0], [])
    assert read(store, album / "sub" / "1.png") == ([3.0], [])
    assert read(store, album / "sub", format="unlabelled") == ([2.0, 3.0], [])
    shutil.copytree(album / "sub", tmp_path / "elsewhere")
    assert read(store, tmp_path / "elsewhere") == ([2.0, 3.0], [])
    monkeypatch.chdir(album / "sub")
    assert read(store, "1.png") == ([3.0], [])


def test_a_store_refuses_another_picture_of_the_same_name(store, album):
    images(5)[-1].save(album / "sub" / "1.png")
    values, errors = read(store, album / "sub")
    assert values == [2.0]
    assert len(errors) == 1
    assert "features of another picture than" in errors[0]
    assert "under '1.png': compute those of this one (tellapart features)" in errors[0]
    (album / "1.png").rename(album / "2.png")
    (album / "0.png").unlink()
    images(6)[-1].save(album / "3.png")
    values, errors = read(store, album / "2.png", album / "3.png")
    assert values == [1.0], "it has another name now"
    assert "has no features of image" in errors[0]


def test_clips_are_known_however_their_frames_were_taken(tmp_path):
    """``tellapart features`` reads a folder of GIFs as clips, ``caption`` as images of several frames."""
    for name, picture in zip(("0.gif", "1.gif"), images(2), strict=True):
        picture.save(tmp_path / name)
    clips = {f"{number}.png": ClipFile(tmp_path / f"{number}.gif") for number in range(2)}
    store = store_of(tmp_path / "store", clips)
    assert read(store, tmp_path / "1.gif", tmp_path / "0.gif") == ([1.0, 0.0], [])


@pytest.mark.parametrize("form", ["arrays", "hdf5"])
def test_sets_without_pictures_refuse_what_two_ids_fit(form, album, tmp_path):
    place = tmp_path / ("features.h5" if form == "hdf5" else "features")
    if form == "hdf5":
        with pytest.importorskip("h5py").File(place, "w") as file:
            for name, number in NUMBERS.items():
                file[name] = np.array([number])
    else:
        (place / "sub").mkdir(parents=True)
        for name, number in NUMBERS.items():
            np.save(place / f"{name.removesuffix('.png')}.npy", np.array([number]))
    features = open_features(place)
    assert read(features, album) == ([0.0, 1.0, 2.0, 3.0], [])
    values, errors = read(features, album / "sub")
    assert (values, len(errors)) == ([], 2)
    assert "may be either: name the folder whose images they are of" in errors[0]


def test_ids_of_a_data_set_are_taken_as_they_are(store, album, tmp_path):
    """Its pictures need not be there, nor be those that the features were computed of."""
    (tmp_path / "data.csv").write_text("id,image\n0.png,album/sub/1.png\n1.png,away/1.png\n")
    assert read(store, tmp_path / "data.csv", pictures=False, id_column="id") == ([0.0, 1.0], [])


def test_shards_of_features_of_another_model_do_not_count(tmp_path, monkeypatch):
    """The rest of the shards were captioned from the new features, next to the shards of the earlier ones."""
    monkeypatch.setattr(caption_shards, "require_models", lambda options: None)
    (tmp_path / "0.tar").write_bytes(tar({"0": {"png": b"x"}}))

    def run(weights):
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        writer = FeatureWriter(tmp_path / "store", About("m", weights, "mean", 1, "float32"))
        writer.add([("0", "", np.array([1.0]))])
        writer.flush()
        where = {"features": tmp_path / "store", "output": str(tmp_path / "out")}
        options = CaptionOptions(captioner="owner/model", by_shard=True, num_workers=0, **where)

        def station(rank, processes):
            reader = Reader({}, features={"m": FeatureInputs(open_features(tmp_path / "store"))})
            return Station(reader, lambda batch, described: [Caption(name, weights) for name in batch.ids])

        words = [str(tmp_path / "0.tar")]
        assert caption_shards.caption_by_shard(words, options, lambda _: station, caption.pace_of) == 0

    run("first")
    run("first")
    with pytest.raises(
        UsageError, match=r"was begun with --features .*store \(\w+\), not .*store \(\w+\): give the same"
    ):
        run("second")


def test_captions_of_features_that_were_computed_again_are_drawn_again(album, tmp_path, monkeypatch):
    """A run that went on kept the captions of the earlier features, among those of the new ones."""
    arrays, output = tmp_path / "arrays", tmp_path / "captions.jsonl"
    arrays.mkdir()
    asked = []

    def write(**features):
        for name, number in features.items():
            np.save(arrays / f"{name}.npy", np.array([number]))

    def station(rank, processes):
        def draw(batch, described):
            asked.append(batch.ids)
            numbers = batch.inputs["m"]["features"][:, 0].tolist()
            return [Caption(name, f"{number:g}") for name, number in zip(batch.ids, numbers, strict=True)]

        return Station(Reader({}, features={"m": FeatureInputs(open_features(arrays))}), draw)

    def captions():
        items = plan([str(album / name) for name in ("0.png", "1.png")] + [str(album / "sub")])
        options = CaptionOptions(
            captioner="owner/model", features=arrays, output=str(output), gate="none", batch_size=1, num_workers=0
        )
        caption.write_captions([replace(item, relative=f"{n}.png") for n, item in enumerate(items)], options, [])
        return [json.loads(line)["caption"] for line in output.read_text().splitlines()]

    monkeypatch.setattr(caption, "BuildStation", lambda *_: station)
    write(**{"0": 1.0, "1": 2.0, "2": 3.0})  # the last image has none, so the run is not finished
    assert captions() == ["1", "2", "3"]
    asked.clear()
    write(**{"0": 4.0, "1": 2.0, "2": 5.0, "3": 6.0})
    assert captions() == ["4", "2", "5", "6"]
    assert len(asked) == 3
