"""Faults of a caption that show in the words alone. Pure functions on strings.

Words are runs of letters, digits and apostrophes in any script, compared without regard to case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tellapart.errors import UsageError, reason_of
from tellapart.lengths import WORD, WordRange, count_words

EMPTY, LOOP, PROMPT_ECHO, UNFINISHED = "empty", "loop", "prompt_echo", "unfinished"
LOW_MATCH, CONFUSED, LENGTH, SAME_CAPTION, OPENER = "low_match", "confused", "length", "same_caption", "opener"
SEVERITY = (EMPTY, LOOP, PROMPT_ECHO, UNFINISHED, LOW_MATCH, CONFUSED, LENGTH, SAME_CAPTION, OPENER)
"""All faults, worst first. ``low_match``, ``confused`` and ``same_caption`` need more than the words."""

_SAME_LETTER = re.compile(r"([^\W\d_])\1{7}")
_SAME_LETTERS = re.compile(r"(\S{2,20}?)\1{3}")
_LAST_LETTER = re.compile(r".*[^\W\d_]", re.DOTALL)
_OPEN_ENDS = frozenset({"a", "an", "the", "and", "or", "of", "with", "its", "their"})
_LONGEST_PERIOD = 30


def words(text: str) -> list[str]:
    """The words of a caption, lower-cased, without punctuation."""
    return WORD.findall(text.casefold().replace("’", "'"))


def is_empty(caption: str) -> bool:
    """Whether there is not a single word."""
    return not words(caption)


def has_loop(caption: str) -> bool:
    """Whether the caption repeats itself as only a machine does.

    Any of these is a loop:

    - one to three words three times in a row ("a dog a dog a dog");
    - a group of four to 30 words twice in a row;
    - a caption of at least 12 words, more than half of whose groups of three stood there before;
    - within a word, eight equal letters, or a group of 2 to 20 characters four times in a row (also how scripts without
      spaces repeat themselves).
    """
    found = words(caption)
    if any(_SAME_LETTER.search(word) or _repeats_letters(word) for word in found):
        return True
    for period in range(1, min(len(found) // 2, _LONGEST_PERIOD) + 1):
        times = 3 if period < 4 else 2
        if _longest_run(found, period) >= period * (times - 1):
            return True
    threes = list(zip(found, found[1:], found[2:], strict=False))
    return len(found) >= 12 and len(threes) - len(set(threes)) > len(threes) / 2


def _repeats_letters(word: str) -> bool:
    """Whether the same 2 to 20 letters come four times in a row; digits alone may."""
    letters, same = _LAST_LETTER.match(word), _SAME_LETTERS.search(word)
    return letters is not None and same is not None and same.start() < letters.end()


def _longest_run(found: Sequence[str], period: int) -> int:
    """Most words in a row that equal the word ``period`` places before."""
    longest = run = 0
    for before, word in zip(found, found[period:], strict=False):
        run = run + 1 if word == before else 0
        longest = max(longest, run)
    return longest


def ends_midway(caption: str) -> bool:
    """Whether the last word is one that another must follow: an article, "and", "of", "with", "their", ..."""
    found = words(caption)
    return bool(found) and found[-1] in _OPEN_ENDS and not caption.rstrip().endswith((".", "!", "?", '"', "”"))


def echoes_prompt(caption: str, prompt: str | None) -> bool:
    """Whether the caption repeats what the model was asked: all words of the prompt, or its first five, in a row.

    Prompts of one or two words are never an echo: captions contain such words anyway.
    """
    asked = words(prompt or "")[:5]
    return len(asked) >= 3 and _within(asked, words(caption))


def _within(part: Sequence[str], whole: Sequence[str]) -> bool:
    return any(list(whole[i : i + len(part)]) == list(part) for i in range(len(whole) - len(part) + 1))


def opener_of(caption: str, openers: Sequence[Sequence[str]]) -> int:
    """How many characters of ``caption`` are an opener phrase, the longest that fits; 0 if it begins with none."""
    longest = max(map(len, openers), default=0)
    places = []
    for match in WORD.finditer(caption):
        places.append(match)
        if len(places) == longest:
            break
    said = [match[0].casefold().replace("’", "'") for match in places]
    fitting = [
        len(opener) for opener in openers if 0 < len(opener) <= len(said) and said[: len(opener)] == list(opener)
    ]
    return places[max(fitting) - 1].end() if fitting else 0


def load_openers(path: Path | None = None) -> list[list[str]]:
    """The phrases of a list of openers, as words; the list that comes with the package when no path is given.

    Raises:
        UsageError: the file cannot be read or names no phrase.
    """
    try:
        text = (files("tellapart.captioning") / "openers.txt" if path is None else path).read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(f"the list of openers {path} does not exist: check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        why = reason_of(error)
        raise UsageError(f"the list of openers {path} cannot be read ({why}): give a text file.") from error
    phrases = [words(line) for line in text.splitlines() if not line.lstrip().startswith("#")]
    phrases = [phrase for phrase in phrases if phrase]
    if not phrases:
        raise UsageError(f"the list of openers {path} names no phrase: write one per line.")
    return phrases


@dataclass(frozen=True)
class Gate:
    """The faults that a caption is checked for.

    Args:
        checks: those of ``SEVERITY`` that count.
        openers: phrases a caption should not begin with, as words.
        prompt: what the model was asked, if anything.
        min_match: lowest match of caption and image, if that is asked for.
        length: the lengths that are asked for, if any.
    """

    checks: tuple[str, ...] = SEVERITY
    openers: tuple[tuple[str, ...], ...] = ()
    prompt: str | None = None
    min_match: float | None = None
    length: WordRange | None = None

    def misses_length(self, caption: str) -> bool:
        """Whether a length is asked for and the caption has another."""
        return self.length is not None and self.length.distance(count_words(caption)) > 0

    def faults(
        self, caption: str, *, raw: str, finished: bool, match: float | None = None, margin: float | None = None
    ) -> tuple[str, ...]:
        """The caption's faults, worst first.

        Args:
            caption: as it is to be written, without prefix and suffix.
            raw: as it was drawn; loops and echoes are looked for there too.
            finished: whether the model ended it, and did not run into the longest length.
            match: how well it fits the image, where that is known.
            margin: how much better it fits the image than any look-alike, where that is known.
        """
        found = {
            EMPTY: is_empty(caption),
            LOOP: has_loop(raw) or has_loop(caption),
            PROMPT_ECHO: echoes_prompt(raw, self.prompt) or echoes_prompt(caption, self.prompt),
            UNFINISHED: not finished or ends_midway(caption),
            LOW_MATCH: match is not None and self.min_match is not None and match < self.min_match,
            CONFUSED: margin is not None and margin <= 0,
            LENGTH: self.misses_length(caption),
            OPENER: opener_of(caption, self.openers) > 0,
        }
        return tuple(name for name in SEVERITY if name in self.checks and found.get(name, False))
