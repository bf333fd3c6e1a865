"""Frames of clips, as models read them: who wants frames, who wants a still, and giving each its own."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, runtime_checkable

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

logger = logging.getLogger(__name__)

Sampling = Literal["uniform", "key_frames"]
"""Which frames of a clip are taken: those in the middle of equal parts, or the last key-frame before each of these."""

NUM_FRAMES = 8
"""Frames per clip unless something else is asked for."""

Processor = Callable[[list[Any]], dict[str, "Tensor"]]
"""RGB images, or lists of frames where it has ``num_frames`` -> a model's tensors, one row per image or clip."""


class Picture(Protocol):
    """An image that can be read, and identified by its content."""

    def open(self) -> Image.Image:
        """The image in RGB; of a clip its middle frame."""
        ...

    def fingerprint(self) -> str:
        """A hash of its content."""
        ...


@runtime_checkable
class Clip(Picture, Protocol):
    """A picture that moves."""

    def frames(self, num_frames: int) -> list[Image.Image]:
        """``num_frames`` frames in RGB, in the order of time, uniform over the clip."""
        ...


def is_clip(picture: Picture) -> TypeGuard[Clip]:
    """Whether a picture has frames."""
    return isinstance(picture, Clip)


def middles(length: int, parts: int) -> list[int]:
    """``[parts]`` places from 0 to ``length - 1``: those in the middle of equal parts.

    Example:
        >>> middles(8, 4)
        [1, 3, 5, 7]
    """
    return [(2 * part + 1) * length // (2 * parts) for part in range(parts)]


def require_frames(num_frames: int) -> None:
    """Raise unless a number of frames is positive.

    Raises:
        UsageError: it is not.
    """
    if num_frames < 1:
        raise UsageError(f"num_frames is {num_frames}: read at least 1 frame per clip.")


def frames_wanted(processor: object) -> int | None:
    """The frames per clip that a processor reads (its ``num_frames``, or that of the model whose method it is); None for
    processors of images."""
    for holder in (processor, getattr(processor, "__self__", None)):
        if (found := getattr(holder, "num_frames", None)) is not None:
            return int(found)
    return None


def use_num_frames(model: Any, num_frames: int | None, option: str) -> None:
    """Let a model read this many frames per clip.

    Args:
        model: reads frames if it has ``num_frames``, or may if it ``takes_frames``.
        num_frames: how many; None keeps the model's own number.
        option: what messages call it.

    Raises:
        UsageError: the model reads stills, or was made for another number.
    """
    own = frames_wanted(model)
    if num_frames is None or num_frames == own:
        return
    require_frames(num_frames)
    if own is None and not getattr(model, "takes_frames", False):
        raise UsageError(f"{option} is {num_frames}, but the captioner reads stills: leave {option} out.")
    try:
        model.num_frames = num_frames
    except AttributeError as error:  # a property of its weights
        raise UsageError(
            f"{option} is {num_frames}, but the captioner was made for {own} frames: leave {option} out."
        ) from error


def seen_as(image: Picture, num_frames: int | None) -> str:
    """A hash of what a model is shown of an image: of frames another one than of the still.

    Args:
        image: an image or a clip.
        num_frames: frames that the model reads; None for a model of images.
    """
    known = image.fingerprint()
    return known if num_frames is None else hashlib.sha256(f"{num_frames} frames of {known}".encode()).hexdigest()


Opened = dict["int | None", Any]
"""What was opened of one image: under None the still, under N a list of N frames."""


class Opener:
    """Opens images and clips in the forms that some processors read.

    A processor with ``num_frames`` is given a list of frames per image, of a still the same frame repeated. Other processors
    are given stills, of a clip its middle frame.

    Args:
        processors: name of a model -> its processor.
    """

    def __init__(self, processors: Mapping[str, Processor]) -> None:
        self.processors = dict(processors)
        self._forms = list(dict.fromkeys(map(frames_wanted, self.processors.values())))
        self._warned = False

    @property
    def num_frames(self) -> int | None:
        """The most frames that a processor reads; None where all read stills."""
        return max((form for form in self._forms if form is not None), default=None)

    @classmethod
    def of(cls, processor: Processor) -> Opener:
        """One for a single processor."""
        return cls({"": processor})

    def open(self, image: Picture, *, cut: Callable[[Image.Image], Image.Image] | None = None) -> Opened:
        """The forms of one image that the processors read; each is decoded once.

        Args:
            image: an image or a clip.
            cut: applied to every picture.

        Raises:
            UsageError: it cannot be read.
        """
        found: Opened = {}
        for form in self._forms:
            pictures = [image.open()] if form is None else self._frames(image, form)
            pictures = pictures if cut is None else [cut(picture) for picture in pictures]
            found[form] = pictures[0] if form is None else pictures
        return found

    def single(self, image: Picture) -> Any:
        """The one form that a single processor reads: a picture, or a list of frames.

        Raises:
            UsageError: the image cannot be read.
        """
        (found,) = self.open(image).values()
        return found

    def inputs(self, opened: Sequence[Opened]) -> dict[str, dict[str, Tensor]]:
        """Name of a model -> its tensors, one row per image."""
        return {
            name: processor([pictures[frames_wanted(processor)] for pictures in opened])
            for name, processor in self.processors.items()
        }

    def _frames(self, image: Picture, num_frames: int) -> list[Image.Image]:
        if is_clip(image):
            return image.frames(num_frames)
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s is a still, and the model reads %d frames: stills are shown as one frame repeated.",
                getattr(image, "name", "an image"),
                num_frames,
            )
        return [image.open()] * num_frames
