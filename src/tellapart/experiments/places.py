"""Where things are, as captions of the world say it: how many do, how many of these are true, and what a listener pays for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tellapart.metrics.scores import CLIP_WEIGHT
from tellapart.types import Batch
from tellapart.world.grammar import Description, parse, write

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.listeners.clip import ClipListener

MIRRORED = {"left of": "right of", "right of": "left of", "above": "below", "below": "above", "and": "and"}
KINDS = ("cell", "relation")
"""A place of its own ("in the top left"), or one by another object ("left of")."""


def says(description: Description, kind: str) -> bool:
    """Whether a caption says a place of a kind of :data:`KINDS`."""
    if kind == "cell":
        return any(phrase.place is not None for phrase in description.phrases)
    return any(relation != "and" for relation in description.relations)


def without_places(description: Description) -> Description:
    """The same with "and" for every relation and no cells."""
    phrases = tuple(replace(phrase, place=None) for phrase in description.phrases)
    return replace(description, phrases=phrases, relations=("and",) * len(description.relations))


def mirrored(description: Description) -> Description:
    """The same in the opposite cells, with the opposite relations."""
    phrases = tuple(
        replace(phrase, place=None if phrase.place is None else (1 - phrase.place[0], 1 - phrase.place[1]))
        for phrase in description.phrases
    )
    return replace(description, phrases=phrases, relations=tuple(MIRRORED[one] for one in description.relations))


def shares(captions: Sequence[str], truthful: Sequence[float]) -> tuple[float, float, float]:
    """Percent of captions that say a place, and how many percent are true of these and of the others (NaN of none).

    Args:
        captions: what was said; one that does not parse says no place.
        truthful: of each, 100 if it is true, else 0.
    """
    parsed = [parse(caption) for caption in captions]
    says_any = [one is not None and any(says(one, kind) for kind in KINDS) for one in parsed]
    placed, others = (
        [t for t, said in zip(truthful, says_any, strict=True) if said == which] for which in (True, False)
    )
    return 100 * len(placed) / len(captions), _mean(placed), _mean(others)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def human_captions(dataset: CaptionDataset, kind: str) -> dict[str, str]:
    """Image -> the first of its references that says a place of a kind, for images with such a reference."""
    found = {}
    for example in dataset.examples:
        said = (text for text in example.references if (one := parse(text)) is not None and says(one, kind))
        if (first := next(said, None)) is not None:
            found[str(example.id)] = first
    return found


@torch.no_grad()
def paid(listener: ClipListener, captions: Mapping[str, str]) -> tuple[float, float]:
    """What CLIP-S gains by the places in captions: against the same without, and against the same mirrored, on the mean.

    Args:
        listener: knows the images.
        captions: id of an image -> a caption.

    Raises:
        ValueError: a caption does not parse.
    """
    described = [one for one in map(parse, captions.values()) if one is not None]
    if len(described) != len(captions):
        raise ValueError(f"{len(captions) - len(described)} of {len(captions)} captions do not parse")
    images = listener.encode_images(Batch(list(captions), [[]] * len(captions)))

    def clip_s(descriptions: Sequence[Description]) -> torch.Tensor:
        texts = listener.encode_texts([write(one) for one in descriptions])
        return CLIP_WEIGHT * (images * texts).sum(dim=1)

    said = clip_s(described)
    others = ([change(one) for one in described] for change in (without_places, mirrored))
    bare, wrong = (clip_s(other) for other in others)
    return (said - bare).mean().item(), (said - wrong).mean().item()
