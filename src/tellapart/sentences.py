"""Cutting a long caption into its sentences."""

from __future__ import annotations

import re

TITLES = re.compile(r"mr|mrs|ms|dr|prof|st|mt|gen|col|sgt|capt|lt|rev|hon|vs|e\.g|i\.e|cf|approx|ca|ave|blvd")
"""Abbreviations (without their last dot, in lower case) after whose dot a sentence continues."""

BEFORE_NUMBERS = re.compile(r"nos?|figs?|vol|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec")
"""Those after whose dot it continues where a digit follows."""

AT_ENDS_TOO = re.compile(r"etc|[ap]\.m|u\.s|u\.k|jr|sr|inc|ltd|co|corp|dept|ft|est")
"""Those after whose dot it continues unless a capital follows."""

_END = re.compile(r"(?<![.!?…।॥؟۔])[.!?…।॥؟۔]+[\"'”’)\]]*(?=\s)|[。！？]+[」』”’）]*|\n+")
_NEAR = 16
"""Characters before and after an end that decide: more than the longest abbreviation has."""

_LAST_WORD = re.compile(r"[\w.]*\w(?=\.$)")


def split_sentences(text: str) -> list[str]:
    """The sentences of a caption, stripped; none of a text without words.

    A sentence ends at ``.``, ``!``, ``?``, ``…`` or the full stops of Hindi, Arabic and Urdu (with quotes and brackets that close
    there) before white space, at a full-width full stop, or at a line break. What follows need not begin with a capital:
    captioners often write none. It continues after the abbreviations above, and after a single capital ("J. Smith").
    """
    found, start = [], 0
    for end in _END.finditer(text):
        near = max(start, end.end() - _NEAR)  # looking further back would take time with the square of a long text
        if not _goes_on(text[near : end.end()], text[end.end() : end.end() + _NEAR]):
            found.append(text[start : end.end()])
            start = end.end()
    return [part.strip() for part in [*found, text[start:]] if re.search(r"\w", part)]


def _goes_on(sentence: str, rest: str) -> bool:
    """Whether the dot at the end of ``sentence`` belongs to its last word only."""
    last = _LAST_WORD.search(sentence)
    if last is None:
        return False
    word, following = last.group(), rest.lstrip()[:1]
    if BEFORE_NUMBERS.fullmatch(word.lower()):
        return following.isdigit()
    if AT_ENDS_TOO.fullmatch(word.lower()):
        return not following.isupper()
    return TITLES.fullmatch(word.lower()) is not None or (len(word) == 1 and word.isupper())
