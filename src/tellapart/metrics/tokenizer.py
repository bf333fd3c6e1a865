"""How captions are cut into words before any n-gram metric or reward sees them."""

from __future__ import annotations

from collections.abc import Iterable

PUNCTUATION = ".,!?;:-\"'`()[]{}…“”‘’«»"


def tokenize(captions: Iterable[str]) -> list[str]:
    """Captions -> their words in lower case, joined by single spaces.

    Words are what whitespace separates, with sentence punctuation taken off both ends (``"dog's"`` and ``"close-up"``
    stay whole, ``"..."`` vanishes). Every metric and every reward on n-grams cuts words here and nowhere else, so that
    a reward and the metric of the same name mean the same thing.

    Returns:
        One string a caption, in order; empty where nothing but punctuation was said.
    """
    return [
        " ".join(word for word in (raw.strip(PUNCTUATION) for raw in caption.lower().split()) if word)
        for caption in captions
    ]
