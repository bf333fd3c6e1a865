"""Parts of a caption without information on the image: listed phrases, years, and repeated words.

The penalties of VLRM (Dzabraev, Kunitsyn & Ivaniuta, 2024, section 3 and table 6), found in the text; how they become penalties
of tokens is ``tellapart.rewards.penalties``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from importlib import resources
from pathlib import Path

from tellapart.errors import UsageError
from tellapart.lengths import WORD
from tellapart.metrics.style import COLORS

Span = tuple[int, int]
"""First character and the one after the last."""

YEAR = r"\d{4}"
"""Separate four-digit numbers, which the paper's text adds to its table."""

TALKING = "is talking about"
"""Listed in the paper's text and Table 1, not in its table of phrases."""

PREPOSITIONS = frozenset(
    (
        "about", "above", "across", "after", "against", "along", "among", "around", "as", "at", "before", "behind", "below",
        "beneath", "beside", "between", "beyond", "by", "down", "during", "for", "from", "in", "inside", "into", "near", "of",
        "off", "on", "onto", "out", "outside", "over", "past", "through", "to", "toward", "towards", "under", "underneath",
        "until", "up", "upon", "with", "within", "without",
    )
)  # fmt: skip
"""Words that may be said again; our list, since the paper names only the kind."""

ARTICLES = frozenset(("a", "an", "the"))

EXEMPT = COLORS | PREPOSITIONS | ARTICLES
"""What may be repeated: colours, prepositions, articles (section 3)."""


def vlrm_phrases() -> list[str]:
    """The paper's phrases with "is talking about"."""
    text = (resources.files("tellapart.metrics") / "vlrm_phrases.txt").read_text(encoding="utf-8")
    return [*_phrases(text), TALKING]


def read_phrases(path: Path) -> list[str]:
    """A list of phrases, one per line; empty lines and those that begin with ``# `` are skipped.

    Raises:
        UsageError: the file cannot be read, or holds no phrase.
    """
    try:
        phrases = _phrases(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the phrases {path} cannot be read ({error}): give a text file, one phrase per line."
        ) from error
    if not phrases:
        raise UsageError(f"the phrases {path} hold no phrase: write one per line, or leave the list out.")
    return phrases


def _phrases(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("# ")]


class PhraseFinder:
    """Finds listed phrases, whatever their case, where they begin and end at the edge of a word.

    Args:
        phrases: what to look for; runs of spaces match any run of spaces.
        years: whether separate four-digit numbers count too.
    """

    def __init__(self, phrases: Iterable[str], *, years: bool = True) -> None:
        patterns = [_pattern(phrase) for phrase in dict.fromkeys(phrases)] + ([_edged(YEAR, YEAR)] if years else [])
        # A lookahead consumes no text, so an occurrence that begins within another one is found as well.
        self._patterns = [re.compile(f"(?=({pattern}))", re.IGNORECASE) for pattern in patterns]

    def __call__(self, text: str) -> list[Span]:
        """All occurrences of the phrases. They may overlap each other, also two of one phrase: "a webcam of a webcam of a" has
        "a webcam of a" twice."""
        return [match.span(1) for pattern in self._patterns for match in pattern.finditer(text)]


def _pattern(phrase: str) -> str:
    return _edged(r"\s+".join(re.escape(word) for word in phrase.split()), phrase.strip())


def _edged(pattern: str, phrase: str) -> str:
    """The pattern with an edge of a word at either end that has a word character."""
    before = r"(?<!\w)" if re.match(r"[\w\\]", phrase[0]) else ""
    after = r"(?!\w)" if re.match(r"[\w}]", phrase[-1]) else ""
    return before + pattern + after


def repeated_words(text: str, exempt: Collection[str] = EXEMPT) -> list[Span]:
    """Positions of words that occurred before, whatever their case, except those that may repeat.

    Args:
        text: a caption.
        exempt: words in lower case that may be repeated.
    """
    seen, found = set[str](), []
    for match in WORD.finditer(text):
        word = match.group().lower()
        if word in seen and word not in exempt:
            found.append(match.span())
        seen.add(word)
    return found


def covered(pieces: Sequence[Span], spans: Iterable[Span]) -> list[bool]:
    """Of each piece of a text whether a span covers any of its characters; an empty piece is never covered."""
    flags = [False] * len(pieces)
    for first, last in spans:
        for i, (begin, end) in enumerate(pieces):
            if begin < last and end > first and begin < end:
                flags[i] = True
    return flags
