"""Multiple-choice questions from human captions, by template: no model is needed, and no image is read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tellapart.data.questions import MultipleChoice
from tellapart.draws import mix_seeds
from tellapart.metrics.chair import ObjectNames
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.metrics.style import COLORS

OPTIONS = 4
"""Of every question, the right one counted."""

MOST = 8
"""Questions per image, where no other number is asked for."""

AGREE = 2
"""References that must name a thing before it is asked about; one where an image has only one reference."""


def questions_from_references(
    references: Mapping[str, Sequence[str]], *, most: int = MOST, seed: int = 0
) -> dict[str, list[MultipleChoice]]:
    """Questions about objects and colours that references name.

    - *Which of these is in the image?* The right option is one of COCO's 80 categories that two references name (one where there
      is only one reference). The others are categories that no reference of the image names, drawn as often as the references of
      all images name them, so that likely words do not give the answer away.
    - *What colour is the car?* where two references put the same colour word directly before the same word for an object, and no
      reference another colour. The other options are colours that no reference of the image names.

    Pitfalls: references leave things out, so a wrong option may be in the image. Only COCO's categories and twelve colours are
    asked about. Questions come from the same references that CIDEr compares with.

    Args:
        references: image id -> human captions.
        most: questions per image at most.
        seed: of the options.

    Returns:
        Image id -> questions, of the images that have any.

    Example:
        >>> questions_from_references({"42": ["a red car", "a red car by a dog"]})["42"][-1].question
        'What colour is the car?'
    """
    names = ObjectNames()
    words = {image: ptb_tokenize(texts, alone=True) for image, texts in references.items()}
    named = {image: [set(names.named(text)) for text in texts] for image, texts in words.items()}
    often = Counter(category for texts in named.values() for own in texts for category in own)
    found: dict[str, list[MultipleChoice]] = {}
    for image, texts in words.items():
        rng = random.Random(mix_seeds("questions", seed, image))
        own = [*_objects(named[image], often, rng), *_colours(texts, names, rng)]
        if own:
            found[image] = own if len(own) <= most else rng.sample(own, most)
    return found


def _objects(named: Sequence[set[str]], often: Counter[str], rng: random.Random) -> Iterator[MultipleChoice]:
    least = min(AGREE, len(named))
    counts = Counter(category for own in named for category in own)
    absent = sorted(category for category in often if category not in counts)
    for category in sorted(counts):
        if counts[category] >= least and len(absent) >= OPTIONS - 1:
            others = _drawn(absent, [often[name] for name in absent], OPTIONS - 1, rng)
            yield MultipleChoice("Which of these is in the image?", (category, *others), 0)


def _drawn(names: Sequence[str], weights: Sequence[int], count: int, rng: random.Random) -> list[str]:
    """Different names, by weight (Efraimidis and Spirakis 2006)."""
    keys = {name: rng.random() ** (1 / weight) for name, weight in zip(names, weights, strict=True)}
    return sorted(names, key=lambda name: -keys[name])[:count]


def _colours(texts: Sequence[str], names: ObjectNames, rng: random.Random) -> Iterator[MultipleChoice]:
    least = min(AGREE, len(texts))
    said: dict[str, Counter[str]] = {}
    for text in texts:
        for colour, thing in set(_coloured(text, names)):
            said.setdefault(thing, Counter())[colour] += 1
    mentioned = {_spelt(word) for text in texts for word in text.split() if word in COLORS}
    others = sorted({_spelt(word) for word in COLORS} - mentioned)
    for thing, colours in sorted(said.items()):
        (colour, count), *rest = colours.most_common()
        if not rest and count >= least and len(others) >= OPTIONS - 1:
            yield MultipleChoice(f"What colour is the {thing}?", (colour, *rng.sample(others, OPTIONS - 1)), 0)


def _coloured(text: str, names: ObjectNames) -> Iterator[tuple[str, str]]:
    """Colour and the one word for an object that follows it."""
    words = text.split()
    for before, word in pairwise(words):
        if before in COLORS and names.named(word):
            yield _spelt(before), word


def _spelt(colour: str) -> str:
    """One spelling of each colour, so that no question has two right options."""
    return "gray" if colour == "grey" else colour
