"""What the world looks like is pinned: whoever changes how it is drawn or written must name another cache folder."""

import hashlib

import numpy as np
import pytest

from tellapart.world import spec
from tellapart.world.build import build
from tellapart.world.render import Renderer
from tellapart.world.scenes import Scene, SceneObject

SIZES = {"train": 40, "web": 40, "val": 20, "test": 20}
DIGESTS = {
    "train": "3ac1211d553c1889",
    "web": "ab09e931e2a3ea5e",
    "val": "f2cee999f1952d4b",
    "test": "3f1c5f078a24b132",
}
"""First digits of the SHA-256 of each split's scenes and texts."""

AREAS = {
    "circle": (156, 540),
    "square": (144, 484),
    "triangle": (88, 278),
    "star": (86, 296),
    "heart": (128, 428),
    "cross": (96, 352),
    "ring": (104, 376),
    "diamond": (84, 312),
}
"""Shape -> pixels it covers, small and large."""

REMEDY = "the world has changed: raise spec.REVISION, so that no old cache is read, and pin the new values"


def test_scenes_and_texts_are_those_of_this_revision(tmp_path):
    build(tmp_path, SIZES)
    found = {split: hashlib.sha256((tmp_path / f"{split}.json").read_bytes()).hexdigest()[:16] for split in SIZES}
    assert found == DIGESTS, REMEDY


@pytest.mark.parametrize("shape", spec.SHAPES)
def test_shapes_cover_as_many_pixels_as_in_this_revision(shape):
    """Noise (standard deviation 6) cannot turn a black pixel (18) brighter than 100, nor a white one (248) darker."""
    for size, expected in zip(spec.SIZES, AREAS[shape], strict=True):
        scene = Scene((SceneObject(shape, "white", size, "plain", 0, 1),), "black")
        covered = (Renderer((1,))([scene] * 10).min(axis=3) > 100).sum(axis=(1, 2))
        assert np.abs(covered - expected).max() <= 1, REMEDY  # a pixel on an outline may fall to either side
