"""How captions read: columns of numbers, one per caption, whose means are the figures.

Captions are tokenised: words in lower case, joined by spaces. The lists of words are part of the definitions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tellapart.errors import UsageError
from tellapart.metrics.ngrams import ngram_counts

BAD_ENDINGS = frozenset(
    ("a", "an", "the", "in", "for", "at", "of", "with", "before", "after", "on", "upon", "near", "to", "is", "are", "am")
)  # fmt: skip
"""Words no finished caption ends on: the list of ImageCaptioning.pytorch (Ruotian Luo)."""

OPENERS = tuple(
    tuple(phrase.split())
    for phrase in (
        *(f"{article} {what} {verb}" for article in ("the", "this", "an", "a") for what in ("image", "picture", "photo")
          for verb in ("of", "shows", "showing", "depicts", "features", "captures", "displays", "contains")),
        *(f"{article} close up {of}" for article in ("a", "the") for of in ("of", "view of", "photo of", "picture of")),
        "in this image", "in this picture", "in this photo", "in the image", "in the picture", "in the photo",
        "there is", "there are", "we see", "we can see", "you can see", "it is", "it appears", "it seems",
        "image of", "picture of", "photo of", "photograph of", "a photograph of", "a view of", "an image", "a picture",
    )
)  # fmt: skip
"""Phrases that say there is an image, or that something is there, instead of saying what: our list."""

COLORS = frozenset(
    ("black", "white", "gray", "grey", "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown")
)
"""The words that count as colours: our list. The fruit is an "orange" too."""


def style_columns(
    captions: Sequence[str],
    *,
    finished: Sequence[bool] | None = None,
    openers: Sequence[Sequence[str]] = OPENERS,
    colors: Collection[str] = COLORS,
) -> dict[str, np.ndarray]:
    """Figures from the words of each caption.

    Args:
        captions: N tokenised captions.
        finished: whether the captioner ended each; without it there is no column ``unfinished``.
        openers: phrases, as words, that a caption should not begin with.
        colors: the words that count as colours.

    Returns:
        Name -> ``[N]`` float64. ``length``: words. ``repetition``: share of the caption's bigrams that stood in it
        before. ``bad_endings``: 1 if the last word is one of ``BAD_ENDINGS``, with a dot or
        without (a final "a." can keep its dot, see ``tellapart.metrics.ptb``). ``unfinished``: 1 if it was cut at the
        longest length. ``openers``: 1 if it begins with an opener. ``colored``: 1 if it has a colour word;
        ``colors``: different colour words; ``color_words``: colour words (all three as VLRM's colour coverage, which
        its paper shows by example only: the definitions are ours).

    Raises:
        UsageError: ``finished`` is of another number of captions.
    """
    if finished is not None and len(finished) != len(captions):
        raise UsageError(f"{len(captions)} captions came with {len(finished)} marks of being finished: give one each.")
    figures = (_figures(caption.split(), openers, colors) for caption in captions)
    rows = np.fromiter(figures, np.dtype((np.float64, len(_FIGURES))), len(captions))
    columns = dict(zip(_FIGURES, rows.T.copy(), strict=True))
    return columns if finished is None else columns | {"unfinished": 1.0 - np.array(finished, np.float64)}


_FIGURES = ("length", "repetition", "bad_endings", "openers", "colored", "colors", "color_words")


def _figures(words: list[str], openers: Sequence[Sequence[str]], colors: Collection[str]) -> tuple[float, ...]:
    """Those of one caption."""
    named = [word for word in words if word in colors]
    ends_badly = bool(words) and words[-1].removesuffix(".") in BAD_ENDINGS
    opens = begins_with_any(words, openers)
    return len(words), repetition(words), ends_badly, opens, bool(named), len(set(named)), len(named)


def repetition(words: Sequence[str]) -> float:
    """Share of a caption's bigrams that stood in it before, 0 to 1; 0 where there are none."""
    bigrams = max(len(words) - 1, 0)
    return 1 - len(ngram_counts(words, 2)) / bigrams if bigrams else 0.0


def begins_with_any(words: Sequence[str], phrases: Sequence[Sequence[str]]) -> bool:
    """Whether a caption begins with one of some phrases, word by word."""
    first = words[0] if words else None
    return any(
        phrase and phrase[0] == first and list(words[: len(phrase)]) == list(phrase) for phrase in phrases
    )  # most differ in the first word
