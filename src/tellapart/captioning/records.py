"""The records that the modules of captioning exchange: what is captioned, and its caption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tellapart.data.images import ImageFile, ImageSource, PackedImage

NO_CAPTION = "no caption"
"""The reason in a review of an image that has no caption."""


@dataclass(frozen=True)
class Item:
    """One image of the collection.

    Args:
        id: unique in the collection, and keys its sampling.
        image: where it is read from.
        relative: its file below the folder that was named, where sidecars for another folder go.
        context: cleaned text that is known of it besides its pixels.
        features: hash of its features, where captions are drawn from features and it has some.
    """

    id: str
    image: ImageSource
    relative: str
    context: str = ""
    features: str | None = None

    @property
    def path(self) -> Path | None:
        """Its file, if it has one of its own."""
        return self.image.path if isinstance(self.image, ImageFile) else None

    @property
    def size(self) -> int | None:
        """Bytes of its file, or of its part of an archive; None of an image without either, or whose file is not there."""
        if self.path is None:
            return self.image.size if isinstance(self.image, PackedImage) else None
        try:
            return self.path.stat().st_size
        except (OSError, ValueError):
            return None


Candidate = tuple[str, float | None]
"""A caption, and the value that it was compared by, if any."""


@dataclass(frozen=True)
class Caption:
    """The result for one image.

    Args:
        id: the image's.
        caption: as written, with prefix and suffix; empty when the image could not be read.
        raw: as drawn.
        flags: faults that remain, worst first.
        score: the value it was chosen by, if it was chosen among several.
        match: CLIP-S of image and caption, if a listener was given.
        margin: cosine with the image minus the highest cosine with a look-alike, if look-alikes were compared.
        rival: id of that look-alike.
        attempt: 0 is the first drawing, then the number of the new one that passed.
        candidates: all captions it was chosen from with their values, best first, if they were asked for; or all that it
            summarises, as drawn.
        error: why there is no caption.
        text: what its sidecar is to hold, when that is more than the caption.
        replaces: digest of the sidecar that was there before, if one was.
        size: bytes of the image's file when it was captioned, where it has one.
        features: hash of the features that it was drawn from, if it was drawn from features.
    """

    id: str
    caption: str = ""
    raw: str = ""
    flags: tuple[str, ...] = ()
    score: float | None = None
    match: float | None = None
    margin: float | None = None
    rival: str | None = None
    attempt: int = 0
    candidates: tuple[Candidate, ...] = ()
    error: str | None = None
    text: str | None = None
    replaces: str | None = None
    size: int | None = None
    features: str | None = None

    def is_of(self, item: Item) -> bool:
        """Whether it is this image's, as far as sizes tell, and not that of another file which had its path or id before, or of
        features that were computed again since."""
        same_features = self.features is None or item.features in (None, self.features)
        return same_features and (self.size is None or item.size in (None, self.size))

    def as_json(self) -> dict[str, Any]:
        """Its fields without those that say nothing."""
        fields = asdict(self) | ({} if self.attempt else {"attempt": None})
        return {key: value for key, value in fields.items() if value not in (None, (), "") or key == "id"}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Caption:
        """Read the output of ``as_json``."""
        found = values.get("candidates", ())
        pairs = tuple((str(text), None if score is None else float(score)) for text, score in found)
        return cls(**{**values, "flags": tuple(values.get("flags", ())), "candidates": pairs})

    def flagged(self, *names: str) -> Caption:
        """With further flags."""
        return replace(self, flags=(*self.flags, *(name for name in names if name not in self.flags)))


Row = tuple[Item, Caption]
"""An image and what came of it."""
