"""Computing the features of a collection: resuming, pictures that changed, pictures that are broken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart.captioning.features import write_features
from tellapart.captioning.records import Item
from tellapart.data.features.store import About, FeatureStore, FeatureWriter
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError

ABOUT = About("mean colour", "0", "mean", 3, "float32")


class MeanColour:
    """A vision model whose features are known: the mean of red, green and blue. Counts what it sees."""

    name = "vision"

    def __init__(self, stop_after: int | None = None) -> None:
        self.seen, self.stop_after = 0, stop_after

    def process(self, images):
        return {"pixel_values": torch.stack([torch.from_numpy(np.array(image)).float() for image in images])}

    def __call__(self, inputs):
        if self.stop_after is not None and self.seen >= self.stop_after:
            raise KeyboardInterrupt
        self.seen += len(inputs["pixel_values"])
        return inputs["pixel_values"].mean(dim=(1, 2))


def colour(i):
    return (10 * i, 20 + i, 200 - i)


@pytest.fixture
def items(tmp_path):
    (tmp_path / "photos").mkdir()
    made = []
    for i in range(10):
        path = tmp_path / "photos" / f"{i}.png"
        Image.new("RGB", (4, 4), colour(i)).save(path)
        made.append(Item(str(i), ImageFile(path), path.name))
    return made


def stored(folder):
    store = FeatureStore(folder)
    return {str(i): store[str(i)].tolist() for i in range(10) if str(i) in store}


WHOLE = {str(i): [float(value) for value in colour(i)] for i in range(10)}


@pytest.mark.parametrize("threads", [0, 2])
def test_all_are_computed_once(items, tmp_path, threads):
    vision = MeanColour()
    assert write_features(items, vision, tmp_path / "f", ABOUT, batch_size=3, threads=threads) == (10, {})
    assert stored(tmp_path / "f") == WHOLE
    assert write_features(items, vision, tmp_path / "f", ABOUT, batch_size=3, threads=threads) == (0, {})
    assert vision.seen == 10


def test_what_was_done_before_a_stop_is_kept(items, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_features(items, MeanColour(stop_after=6), tmp_path / "f", ABOUT, batch_size=3)
    assert stored(tmp_path / "f") == {name: WHOLE[name] for name in "012345"}
    vision = MeanColour()
    assert write_features(items, vision, tmp_path / "f", ABOUT, batch_size=4) == (4, {})
    assert vision.seen == 4
    assert stored(tmp_path / "f") == WHOLE


def test_a_stop_changes_no_feature(items, tmp_path, monkeypatch):
    """Shards hold whole batches, so the features of a batch are never computed with fewer of it."""

    class Mixing(MeanColour):
        def __call__(self, inputs):
            rows = super().__call__(inputs)
            return rows + rows.sum(dim=0)

    monkeypatch.setattr(FeatureWriter.__init__, "__kwdefaults__", {"shard_bytes": 2**28, "shard_images": 4})
    write_features(items, Mixing(), tmp_path / "whole", ABOUT, batch_size=3)
    with monkeypatch.context() as patch:
        patch.setattr(FeatureWriter, "flush", killed_after(FeatureWriter.flush, 1))
        with pytest.raises(KeyboardInterrupt):
            write_features(items, Mixing(), tmp_path / "f", ABOUT, batch_size=3)
    assert sorted(stored(tmp_path / "f")) == list("012345")
    assert write_features(items, Mixing(), tmp_path / "f", ABOUT, batch_size=3) == (4, {})
    assert stored(tmp_path / "f") == stored(tmp_path / "whole")


def killed_after(flush, shards):
    """Write this many shards, then die before the next."""
    left = [None] * shards

    def dying(self):
        if self._rows and not left:
            raise KeyboardInterrupt
        if self._rows:
            left.pop()
        flush(self)

    return dying


def test_a_picture_that_changed_is_computed_again(items, tmp_path):
    write_features(items, MeanColour(), tmp_path / "f", ABOUT)
    Image.new("RGB", (4, 4), (1, 2, 3)).save(items[7].path)
    assert write_features(items, MeanColour(), tmp_path / "f", ABOUT) == (1, {})
    assert stored(tmp_path / "f") == WHOLE | {"7": [1.0, 2.0, 3.0]}


def test_broken_pictures_end_the_work_or_are_left_out(items, tmp_path):
    items[4].path.write_bytes(b"no picture")
    items[8].path.unlink()
    with pytest.raises(UsageError, match=r"4\.png"):
        write_features(items, MeanColour(), tmp_path / "f", ABOUT, batch_size=2)
    assert stored(tmp_path / "f") == {name: WHOLE[name] for name in "0123"}
    computed, errors = write_features(items, MeanColour(), tmp_path / "f", ABOUT, batch_size=2, fail=False)
    assert (computed, sorted(errors)) == (4, ["4", "8"])
    assert "does not exist" in errors["8"]
    assert stored(tmp_path / "f") == {name: WHOLE[name] for name in "01235679"}
