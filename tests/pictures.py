"""Pictures and captions for tests, which processes can import without waiting for models."""

import numpy as np
from PIL import Image

COLOURS = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple"]
SHAPES = ["circle", "square", "triangle", "star", "cross", "ring", "heart", "moon"]
CAPTIONS = [f"a {colour} {shape} on a table" for colour in COLOURS for shape in SHAPES]


def images(count: int, *, size: int = 32, seed: int = 0) -> list[Image.Image]:
    """Pictures of large random blocks: different everywhere, not just noise."""
    blocks = np.random.default_rng(seed).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    return [Image.fromarray(block).resize((size, size), Image.Resampling.NEAREST) for block in blocks]
