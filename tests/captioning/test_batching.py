"""Which images are drawn together, and which are read while others are drawn."""

from __future__ import annotations

import io
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from captioning.captioning_fakes import items
from tellapart.captioning.batching import WINDOW, batches, shape_key, upright_size
from tellapart.captioning.read import Read, Reader, read_ahead, taking
from tellapart.captioning.records import Item
from tellapart.data.clips import ArrayClip, FrameFiles
from tellapart.data.images import ArrayImage, EncodedImage, ImageFile


def encoded(width: int, height: int, orientation: int | None = None, name: str = "x.jpg") -> EncodedImage:
    image, data = Image.new("RGB", (width, height)), io.BytesIO()
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    image.save(data, "JPEG", exif=exif)
    return EncodedImage(data.getvalue(), name)


@given(st.integers(1, 9), st.sets(st.integers(0, 199)), st.booleans())
def test_every_image_is_in_one_batch_and_keeps_its_company(size, done, by_size):
    whole = items(200)
    ids = {whole[number].id for number in done}
    all_batches = list(batches(whole, size, by_size=by_size))
    assert sorted(item.id for batch in all_batches for item in batch) == sorted(item.id for item in whole)
    assert all(len(batch) <= size for batch in all_batches)
    left = list(batches(whole, size, done=ids, by_size=by_size))
    expected = [[item for item in batch if item.id not in ids] for batch in all_batches]
    assert left == [batch for batch in expected if batch]


def test_like_shapes_go_together():
    shapes = [(64, 32), (32, 64), (64, 32), (32, 64), (320, 160), (30, 60)]
    mixed = [Item(str(number), encoded(*shape), "x.jpg") for number, shape in enumerate(shapes)]
    together = [sorted(item.id for item in batch) for batch in batches(mixed, 3)]
    assert together == [["1", "3", "5"], ["0", "2", "4"]]
    apart = [[item.id for item in batch] for batch in batches(mixed, 3, by_size=False)]
    assert apart == [["0", "1", "2"], ["3", "4", "5"]]


def test_the_window_bounds_how_far_an_image_moves():
    many = [Item(str(n), encoded(16 + n % 7, 16), "x.jpg") for n in range(2 * 2 * WINDOW)]
    order = [int(item.id) for batch in batches(many, 2) for item in batch]
    assert max(order[: 2 * WINDOW]) < 2 * WINDOW


def test_sizes_are_those_of_upright_images(tmp_path):
    assert upright_size(encoded(40, 20)) == (40, 20)
    assert upright_size(encoded(40, 20, 6)) == (20, 40)
    (tmp_path / "x.jpg").write_bytes(encoded(40, 20, 8).data)
    assert upright_size(ImageFile(tmp_path / "x.jpg")) == (20, 40)
    assert upright_size(EncodedImage(b"no image", "x")) == (0, 0)
    assert upright_size(ImageFile(tmp_path / "absent.jpg")) == (0, 0)


def test_nothing_is_encoded_to_learn_a_size(tmp_path, monkeypatch):
    (tmp_path / "x.jpg").write_bytes(encoded(40, 20, 6).data)
    shown = [
        ArrayImage(np.zeros((20, 40, 3), np.uint8)),
        ArrayClip("x", np.zeros((2, 20, 40, 3), np.uint8)),
        FrameFiles((tmp_path / "x.jpg", tmp_path / "absent.jpg")),
    ]
    for kind in (ArrayImage, ArrayClip, FrameFiles):
        monkeypatch.setattr(kind, "read", lambda _: pytest.fail("it was encoded"))
    assert [upright_size(image) for image in shown] == [(40, 20), (40, 20), (20, 40)]
    assert shape_key((0, 0)) == shape_key((1, 1))


def test_batches_are_read_ahead_in_order_and_not_too_far():
    started, most = [], 0
    lock = threading.Lock()

    def read(some):
        with lock:
            started.append(some[0].id)
        time.sleep(0.01 if int(some[0].id[1:]) % 2 else 0.0)
        return Read(list(some), None)

    one_each = ([item] for item in items(20))
    order = []
    for number, found in enumerate(read_ahead(taking(one_each), read, threads=3)):
        order.append(found.items[0].id)
        time.sleep(0.005)
        most = max(most, len(started) - number)
    assert order == [item.id for item in items(20)]
    assert 1 < most <= 5
    assert [found.items[0].id for found in read_ahead(taking(iter([items(1)])), read, threads=0)] == ["i0"]


def test_what_goes_wrong_while_reading_ahead_is_raised():
    def read(some):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(read_ahead(taking(iter([items(1)])), read, threads=2))


def test_images_that_cannot_be_read_become_sentences(tmp_path):
    import numpy as np
    import torch

    def tensor(images):
        if any(image.size == (1, 1) for image in images):
            raise ValueError("mean must have 1 elements if it is an iterable")
        return {"pixel_values": torch.stack([torch.tensor(np.array(image.resize((4, 4)))) for image in images])}

    some = [
        Item("good", encoded(8, 8), "good.jpg"),
        Item("absent", ImageFile(tmp_path / "absent.jpg"), "absent.jpg"),
        Item("text", EncodedImage(b"no image at all", "text.jpg"), "text.jpg"),
        Item("dot", ArrayImage(np.zeros((1, 1, 3), np.uint8), "dot.png"), "dot.png"),
        Item("fine", encoded(9, 8), "fine.jpg"),
    ]
    found = Reader({"m": tensor})(some)
    assert [item.id for item in found.items] == found.batch.ids == ["good", "fine"]
    assert found.batch.inputs["m"]["pixel_values"].shape == (2, 4, 4, 3)
    assert set(found.errors) == {"absent", "text", "dot"}
    assert "does not exist" in found.errors["absent"]
    assert found.errors["dot"].startswith("dot.png cannot be prepared for the model (mean must")
    assert Reader({"m": tensor})(some[1:2]).batch is None
