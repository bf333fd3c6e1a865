"""Lengths of captions in words: how words are counted, ranges of them, and the buckets a captioner can be asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass

import regex

from tellapart.errors import UsageError

WORD = regex.compile(
    r"[\p{L}\p{N}_][\p{L}\p{M}\p{N}_\u200c\u200d]*(?:['’][\p{L}\p{N}_][\p{L}\p{M}\p{N}_\u200c\u200d]*)*"
)
"""A word: a run of letters with their marks, digits and apostrophes in any script. "twenty-one" is two."""

_RANGE = re.compile(r"\s*(\d+)\s*(?:(-)\s*(\d+)?\s*)?")


def count_words(text: str) -> int:
    """How many words a caption has; punctuation is not counted."""
    return len(WORD.findall(text))


@dataclass(frozen=True)
class WordRange:
    """A range of lengths in words.

    Args:
        low: fewest words.
        high: most words; none: any number.

    Raises:
        UsageError: the range is empty.

    Example::

        asked = WordRange.parse("8-15")
        asked.distance(count_words("a red circle"))  # 5
        WordRange(17).distance(40)  # 0
    """

    low: int
    high: int | None = None

    def __post_init__(self) -> None:
        if self.low < 1 or (self.high is not None and self.high < self.low):
            asked = self.low if self.high == self.low else self
            raise UsageError(f"{asked} words is not a range of lengths: write 8-15, 8- for 8 or more, or 8.")

    def __str__(self) -> str:
        return f"{self.low}-{'' if self.high is None else self.high}"

    @staticmethod
    def parse(text: str) -> WordRange:
        """The range that ``8-15``, ``8-`` (8 or more) or ``8`` names.

        Raises:
            UsageError: the text is none of these.
        """
        found = _RANGE.fullmatch(text)
        if found is None:
            raise UsageError(f"{text!r} is not a range of lengths in words: write 8-15, 8- for 8 or more, or 8.")
        low, dash, high = found.groups()
        if high is not None:
            return WordRange(int(low), int(high))
        return WordRange(int(low), None if dash else int(low))

    def distance(self, words: int) -> int:
        """Words missing or too many; 0 within the range."""
        if words < self.low:
            return self.low - words
        return 0 if self.high is None else max(words - self.high, 0)


@dataclass(frozen=True)
class LengthBuckets:
    """Consecutive ranges of lengths that together hold every length.

    Bounds 6, 10, 16 make four buckets: up to 6 words, 7 to 10, 11 to 16, and 17 or more.

    Args:
        bounds: most words of each bucket except the last, ascending.

    Raises:
        UsageError: there are no bounds, or they do not ascend from 1 or more.

    Example::

        buckets = LengthBuckets((6, 10, 16))
        buckets.of(8)  # 1
        buckets.nearest(WordRange(8, 15))  # 2, which shares five lengths with it
    """

    bounds: tuple[int, ...]

    def __post_init__(self) -> None:
        whole = all(type(bound) is int for bound in self.bounds)
        pairs = zip((0, *self.bounds), self.bounds, strict=False)
        if not self.bounds or not whole or any(below >= above for below, above in pairs):
            raise UsageError(
                f"captioner.length_buckets is {list(self.bounds)}: give numbers of words in ascending order, such as "
                "[6, 10, 16]."
            )

    def __len__(self) -> int:
        return len(self.bounds) + 1

    def of(self, words: int) -> int:
        """The bucket of a length."""
        return sum(words > bound for bound in self.bounds)

    def range(self, bucket: int) -> WordRange:
        """The lengths of a bucket."""
        low = 1 if bucket == 0 else self.bounds[bucket - 1] + 1
        return WordRange(low, self.bounds[bucket] if bucket < len(self.bounds) else None)

    def nearest(self, asked: WordRange) -> int:
        """The bucket that shares most lengths with a range; the shorter one of equals.

        Of a range without a longest length, such as 12 words or more, the last bucket counts as one length, so that the range is
        asked near where it begins; but of equals it is the last.
        """
        last = max(asked.low, self.bounds[-1] + 1)
        high = last if asked.high is None else asked.high

        def shared(bucket: int) -> int:
            own = self.range(bucket)
            return min(high, max(high, last) if own.high is None else own.high) - max(asked.low, own.low)

        open_last = asked.high is None, len(self) - 1
        return max(range(len(self)), key=lambda bucket: (shared(bucket), (True, bucket) == open_last))

    def phrase(self, bucket: int) -> str:
        """A bucket in words, for a prompt: ``7 to 10 words``."""
        found = self.range(bucket)
        if found.high is None:
            return f"more than {found.low - 1} words"
        return f"at most {found.high} words" if bucket == 0 else f"{found.low} to {found.high} words"


def length_tokens(count: int) -> list[str]:
    """Names of the tokens of buckets, where a captioner is not asked in words."""
    return [f"<|length_{bucket}|>" for bucket in range(count)]
