"""Styles of captions: presets, and the steps from the drawn caption to the written one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tellapart.captioning.gate import opener_of

_SENTENCE_END = re.compile(r"[.!?…。！？।॥؟۔]+[\"'”’)\]]*(?=\s|$)|[。！？]")
_CLAUSE_ENDS = (
    re.compile(r"[,;:](?=\s)|\s+[-–—](?=\s)|\s+(?=(?:while|but)\s)|[，、；]"),
    re.compile(r"\s+(?=(?:and|as|which|who|where|with)\s)"),
)
"""Where clauses end, better places first."""
_ABBREVIATION = re.compile(r"\b(?:mr|mrs|ms|dr|st|no|vs|etc|jr|sr|[a-z]|e\.g|i\.e)\.$", re.IGNORECASE)
_LOOSE_END = re.compile(
    r"(?:[\s,;:–—-]|\b(?:a|an|the|and|or|of|with|in|on|at|to|by|is|are|while|its|their)$)+$", re.IGNORECASE
)


@dataclass(frozen=True)
class Style:
    """A preset; what is None or False leaves the caption as it is.

    Args:
        prompt: what a model that follows instructions is asked.
        max_new_tokens: longest caption in tokens.
        min_new_tokens: shortest caption in tokens.
        max_characters: length above which a caption is cut at the end of a sentence or clause.
        first_sentence: keep the first sentence only.
        whole_sentences: take off a last sentence that the model did not finish, if others come before it.
        strip_openers: take off "the image shows", "a picture of" and the like.
        as_sentence: begin with a capital letter and end with a full stop.
    """

    prompt: str | None = None
    max_new_tokens: int = 40
    min_new_tokens: int = 0
    max_characters: int | None = None
    first_sentence: bool = False
    whole_sentences: bool = False
    strip_openers: bool = False
    as_sentence: bool = False


STYLES = {
    "plain": Style(),
    "short": Style(
        prompt="Describe this image in one short sentence.", max_new_tokens=24, max_characters=80, first_sentence=True
    ),
    "detailed": Style(
        prompt="Describe this image in detail: what is in it, what it looks like, where it is and what happens.",
        max_new_tokens=160,
        min_new_tokens=20,
        whole_sentences=True,
    ),
    "alt": Style(
        prompt="Write alt text for this image: one plain sentence of at most 125 characters.",
        max_new_tokens=60,
        max_characters=125,
        whole_sentences=True,
        strip_openers=True,
        as_sentence=True,
    ),
}


@dataclass(frozen=True)
class Finished:
    """A caption after post-processing.

    Args:
        text: the caption.
        whole: whether the model ended it, or it ends where a sentence or clause does.
    """

    text: str
    whole: bool


@dataclass(frozen=True)
class Finish:
    """The post-processing of captions, in the order of its steps: openers, sentences, length, capital and full stop.

    Args:
        style: which steps.
        openers: the phrases to take off, as words.
        prefix: put before the written caption, unchanged.
        suffix: put after it, unchanged.
    """

    style: Style = STYLES["plain"]
    openers: tuple[tuple[str, ...], ...] = ()
    prefix: str = ""
    suffix: str = ""

    def __call__(self, drawn: str, *, finished: bool = True) -> Finished:
        """The caption without prefix and suffix.

        Args:
            drawn: as the model said it.
            finished: whether the model ended it.
        """
        style, text, whole = self.style, " ".join(drawn.split()), finished
        if style.strip_openers:
            text = strip_opener(text, self.openers)
        if style.first_sentence and (first := sentence_ends(text)[:1]):
            text, whole = text[: first[0]], True
        if style.whole_sentences and not whole and (ends := sentence_ends(text)):
            text, whole = text[: ends[-1]], True
        if style.max_characters is not None:
            text, at_end = self._cut(text, style.max_characters)
            whole = whole or at_end
        whole = whole or sentence_ends(text)[-1:] == [len(text)]  # it may just have fitted
        return Finished(self._shown(text), whole)

    def _cut(self, text: str, most: int) -> tuple[str, bool]:
        """At most this many characters, with the full stop that ``as_sentence`` adds; whether a sentence or clause ends there."""
        at_end = False
        for room in (most, max(most - 1, 1)):
            if len(self._shown(text)) > most and len(text) > room:
                text, at_end = shorten(text, room)
        return text, at_end

    def _shown(self, text: str) -> str:
        return as_sentence(text) if self.style.as_sentence else text

    def written(self, caption: str) -> str:
        """The caption with prefix and suffix; an empty one stays empty."""
        return f"{self.prefix}{caption}{self.suffix}" if caption else caption


def sentence_ends(text: str) -> list[int]:
    """Where sentences end, as places behind their last character; abbreviations end none."""
    return [match.end() for match in _SENTENCE_END.finditer(text) if not _ABBREVIATION.search(text[: match.end()])]


def shorten(text: str, limit: int) -> tuple[str, bool]:
    """A long text cut to at most ``limit`` characters, and whether the cut is at the end of a sentence or clause.

    The last end of a sentence is taken, else the last end of a clause, if at least a third of the limit stays; else the
    text is cut between words, and words that need another after them ("of the") are left off.
    """
    sentences = [end for end in sentence_ends(text) if limit / 3 <= end <= limit]
    if sentences:
        return text[: sentences[-1]], True
    for pattern in _CLAUSE_ENDS:
        clauses = [match.start() for match in pattern.finditer(text) if limit / 3 <= match.start() <= limit]
        if clauses:
            return _LOOSE_END.sub("", text[: clauses[-1]]), True
    cut = text[: limit + 1].rpartition(" ")[0] or text[:limit]
    return _LOOSE_END.sub("", cut) or cut, False


def strip_opener(text: str, openers: Sequence[Sequence[str]]) -> str:
    """The caption without the phrases it opens with; a capital letter at its beginning stays one.

    A caption that is nothing but an opener is left as it is.
    """
    rest = text
    while length := opener_of(rest, openers):
        rest = rest[length:].lstrip(" ,:;.–—-")
    if not rest or rest == text:
        return text
    return rest[0].upper() + rest[1:] if text[:1].isupper() else rest


def as_sentence(text: str) -> str:
    """With a capital letter at the beginning and a full stop at the end, where there is none."""
    text = text.rstrip(" ,;:–—-")
    if not text:
        return text
    ended = text.endswith(".") or sentence_ends(text)[-1:] == [len(text)]
    return text[0].upper() + text[1:] + ("" if ended else ".")
