"""Pictures of scenes: one object a cell, with jitter and noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tellapart.world import spec
from tellapart.world.scenes import Scene, SceneObject

SIDE = 2 * spec.CELL
"""Height and width of a picture in pixels."""

Inside = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    ray = 2 * np.abs((5 * np.arctan2(y, x) / (2 * np.pi) + 0.25) % 1 - 0.5)
    return np.hypot(x, y) < 0.45 + 0.55 * ray


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    across, up = 1.2 * x, 0.1 - 1.2 * y
    return (across**2 + up**2 - 1) ** 3 - across**2 * up**3 < 0


_OUTLINES: dict[str, Inside] = {
    "circle": lambda x, y: np.hypot(x, y) < 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) < 0.85,
    "triangle": lambda x, y: (y < 0.8) & (y > 1.9 * np.abs(x) - 1),
    "star": _star,
    "heart": _heart,
    "cross": lambda x, y: (np.minimum(np.abs(x), np.abs(y)) < 0.33) & (np.maximum(np.abs(x), np.abs(y)) < 1),
    "ring": lambda x, y: (np.hypot(x, y) < 1) & (np.hypot(x, y) > 0.55),
    "diamond": lambda x, y: np.abs(x) + np.abs(y) < 1,
}
"""Shape -> whether points (x right, y down, in radii from the centre) are inside."""

_PIXELS = np.arange(spec.CELL)
_PATTERNS = {
    "plain": np.ones((spec.CELL, spec.CELL), dtype=bool),
    "striped": np.repeat((_PIXELS // 2 % 2 == 0)[:, None], spec.CELL, axis=1),
    "dotted": ~((_PIXELS % 4 < 2)[:, None] & (_PIXELS % 4 < 2)[None, :]),
}
"""Texture -> the pixels of a cell that have the object's full colour."""


class Painter:
    """Paints objects into pictures; masks are kept, as they recur."""

    def __init__(self) -> None:
        self._masks: dict[tuple[str, str, int, int], np.ndarray] = {}

    def __call__(
        self, picture: np.ndarray, thing: SceneObject, corner: tuple[int, int], jitter: tuple[int, int]
    ) -> None:
        """Paint one object.

        Args:
            picture: ``[64, 64, 3]`` float, changed in place.
            thing: the object; its cell is not looked at.
            corner: first row and first column of the 32 x 32 pixels that hold it.
            jitter: pixels by which it is off their middle, right and down.
        """
        top, left = corner
        cell = picture[top : top + spec.CELL, left : left + spec.CELL]
        inside, bright = self._mask(thing.shape, thing.size, *jitter), _PATTERNS[thing.texture]
        colour = np.array(spec.COLOURS[thing.colour], dtype=np.float32)
        cell[inside & ~bright] = spec.DARK * colour
        cell[inside & bright] = colour

    def _mask(self, shape: str, size: str, right: int, down: int) -> np.ndarray:
        key = shape, size, right, down
        if key not in self._masks:
            offsets, radius = _PIXELS - spec.CELL / 2 + 0.5, spec.SIZES[size]
            x, y = (offsets - right) / radius, (offsets - down) / radius
            self._masks[key] = _OUTLINES[shape](x[None, :], y[:, None])
        return self._masks[key]


class Renderer:
    """Draws pictures; calls continue one stream of random numbers.

    Args:
        seed: of jitter and noise.
    """

    def __init__(self, seed: Sequence[int]) -> None:
        self._rng = np.random.default_rng(list(seed))
        self._paint = Painter()

    def __call__(self, scenes: Sequence[Scene]) -> np.ndarray:
        """``[N, 64, 64, 3]`` uint8, one picture a scene."""
        canvas = np.empty((len(scenes), SIDE, SIDE, 3), dtype=np.float32)
        for picture, scene in zip(canvas, scenes, strict=True):
            picture[:] = spec.BACKGROUNDS[scene.background]
            for thing in scene.objects:
                right, down = self._rng.integers(-spec.JITTER, spec.JITTER + 1, size=2).tolist()
                corner = thing.row * spec.CELL, thing.column * spec.CELL
                self._paint(picture, thing, corner, (right, down))
        canvas += spec.NOISE * self._rng.standard_normal(canvas.shape, dtype=np.float32)
        return canvas.round().clip(0, 255).astype(np.uint8)
