"""What ``data check`` calls readable is what is decoded, and the other way round, over images damaged at random."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from tellapart.data.decoding import decode
from tellapart.data.images import EncodedImage
from tellapart.data.inspection import inspect
from tellapart.data.sniff import ImageError

SAVED = [("PNG", "RGB"), ("PNG", "P"), ("PNG", "LA"), ("GIF", "P"), ("WEBP", "RGBA"), ("TIFF", "RGB"), ("JPEG", "L")]


def encoded(kind: str, mode: str, *, animated: bool) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    image, file = Image.fromarray(pixels).convert(mode), io.BytesIO()
    more = {"save_all": True, "append_images": [image.rotate(90)]} if animated else {}
    image.save(file, kind, **more)
    return file.getvalue()


def damaged(data: bytes, seed: int) -> bytes:
    """A few bytes replaced, inserted, set to zero or cut off."""
    chance, found = random.Random(seed), bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(8, max(len(found), 9))
        how = chance.choice(["replace", "insert", "zero", "cut"])
        if how == "replace":
            found[place : place + 1] = bytes([chance.randrange(256)])
        elif how == "insert":
            found[place:place] = chance.randbytes(3)
        elif how == "zero":
            found[place : place + 8] = bytes(8)
        else:
            del found[max(place, 20) :]
    return bytes(found)


@pytest.mark.parametrize("animated", [False, True])
@pytest.mark.parametrize(("kind", "mode"), SAVED)
def test_both_decoders_agree(kind, mode, animated):
    """Of 4,000 such images, ``data check`` passed 144 that ``caption`` then refused."""
    data = encoded(kind, mode, animated=animated and kind != "JPEG")
    verdicts = set()
    for seed in range(60):
        some = damaged(data, seed) if seed else data
        told = inspect(EncodedImage(some, "x.png")).broken
        try:
            decode(some, "x.png")
            raised = None
        except ImageError as error:
            raised = str(error)
        assert told == raised, seed
        verdicts.add(raised is None)
    assert verdicts == {True, False}
