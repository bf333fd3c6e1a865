"""What a set of judgements holds: captions with ratings, or pairs of captions of which people preferred one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Rated:
    """A caption with people's ratings, higher is better.

    Args:
        image: file name of the image.
        caption: the text that was rated.
        references: human captions of the image, without the rated one; may be empty.
        ratings: one for each judgement.
        system: what wrote the caption, where the set says so.
        aspects: further ratings by name, such as precision ``P`` and recall ``R``.
    """

    image: str
    caption: str
    references: tuple[str, ...]
    ratings: tuple[float, ...]
    system: str = ""
    aspects: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Preference:
    """Two captions of an image, of which the first is the better one.

    Args:
        image: file name of the image.
        better: the caption that people preferred, or the true one.
        worse: the other.
        references: human captions of the image, without these two; may be empty.
        group: part of the set, such as the kind of error.
    """

    image: str
    better: str
    worse: str
    references: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Judgements:
    """One set: ratings or preferences.

    Args:
        name: what protocols call it, such as ``flickr8k-expert``.
        rated: captions with ratings.
        pairs: preferences.
        bare: whether its files leave the references of some images to others.
    """

    name: str
    rated: tuple[Rated, ...] = ()
    pairs: tuple[Preference, ...] = ()
    bare: bool = False

    @property
    def images(self) -> list[str]:
        """File names of the images, each once."""
        return list(dict.fromkeys([row.image for row in self.rated] + [pair.image for pair in self.pairs]))

    def first_images(self, limit: int) -> Judgements:
        """The judgements of the first ``limit`` images."""
        kept = set(self.images[:limit])
        return replace(
            self,
            rated=tuple(row for row in self.rated if row.image in kept),
            pairs=tuple(row for row in self.pairs if row.image in kept),
        )
