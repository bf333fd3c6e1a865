"""Clips of moving scenes: eight frames, drawn when they are asked for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tellapart.data.clips import as_webp
from tellapart.frames import middles, require_frames
from tellapart.world import spec as still
from tellapart.world.render import SIDE, Painter
from tellapart.world.scenes import SceneObject
from tellapart.world.video import spec
from tellapart.world.video.scenes import Event, MovingScene

if TYPE_CHECKING:
    from PIL import Image

_PAINTER = Painter()


def render(moving: MovingScene, seed: tuple[int, ...]) -> np.ndarray:
    """``[8, 64, 64, 3]`` uint8: the frames of a clip.

    Args:
        moving: what is in it.
        seed: of jitter, noise, and the frames in which events begin.
    """
    rng = np.random.default_rng(list(seed))
    begins = _begins(moving, rng)
    jitters = rng.integers(-still.JITTER, still.JITTER + 1, size=(len(moving.scene.objects), 2)).tolist()
    canvas = np.empty((spec.FRAMES, SIDE, SIDE, 3), dtype=np.float32)
    canvas[:] = still.BACKGROUNDS[moving.scene.background]
    for number, thing in enumerate(moving.scene.objects):
        event = moving.event_of(number)
        for time, picture in enumerate(canvas):
            progress = 0.0 if event is None else _progress(event, begins[event], time)
            _paint(picture, thing, event, progress, (jitters[number][0], jitters[number][1]))
    canvas += still.NOISE * rng.standard_normal(canvas.shape, dtype=np.float32)
    return canvas.round().clip(0, 255).astype(np.uint8)


def _begins(moving: MovingScene, rng: np.random.Generator) -> dict[Event, int]:
    """Event -> the frame in which it begins; a single event takes either slot."""
    slots = spec.SLOTS if len(moving.events) > 1 else (spec.SLOTS[int(rng.integers(len(spec.SLOTS)))],)
    return {event: int(rng.choice(slot)) for event, slot in zip(moving.events, slots, strict=False)}


def _progress(event: Event, begin: int, time: int) -> float:
    """How much of an event has happened, from 0 to 1."""
    if event.verb != "moves":
        return float(time >= begin)
    return min(max((time - begin + 1) / spec.LASTS, 0.0), 1.0)


def _paint(
    picture: np.ndarray, thing: SceneObject, event: Event | None, progress: float, jitter: tuple[int, int]
) -> None:
    verb = "" if event is None else event.verb
    if (verb == "appears" and progress < 1) or (verb == "vanishes" and progress == 1):
        return
    top, left = thing.row * still.CELL, thing.column * still.CELL
    if event is not None and verb == "moves":
        down, right = spec.DIRECTIONS[event.to]
        top += round(down * progress * still.CELL)
        left += round(right * progress * still.CELL)
    if event is not None and verb == "turns" and progress == 1:
        thing = SceneObject(thing.shape, event.to, thing.size, thing.texture, thing.row, thing.column)
    _PAINTER(picture, thing, (top, left), jitter)


@dataclass(frozen=True)
class WorldClip:
    """A clip of the moving world, drawn again whenever it is read.

    Args:
        moving: what is in it.
        seed: of its jitter and noise.
        name: what messages call it.
    """

    moving: MovingScene
    seed: tuple[int, ...]
    name: str

    def pixels(self) -> np.ndarray:
        """``[8, 64, 64, 3]`` uint8."""
        return render(self.moving, self.seed)

    def frames(self, num_frames: int) -> list[Image.Image]:
        """``num_frames`` frames, those in the middle of equal parts."""
        from PIL import Image

        require_frames(num_frames)
        pixels = self.pixels()
        return [Image.fromarray(pixels[place]) for place in middles(len(pixels), num_frames)]

    def open(self) -> Image.Image:
        """The middle frame."""
        return self.frames(1)[0]

    def read(self) -> bytes:
        """All frames as a lossless animated WebP file."""
        return as_webp(self.frames(spec.FRAMES), lossless=True)

    def fingerprint(self) -> str:
        """A hash of what the frames are drawn from."""
        return hashlib.sha256(f"{spec.version()} {self.seed} {self.moving}".encode()).hexdigest()
