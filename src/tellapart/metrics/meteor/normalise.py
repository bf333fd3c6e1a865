"""Words of a sentence as METEOR's ``-norm`` cuts them: the rules of the Moses tokenizer for English, in lower case.

Written from the behaviour of meteor-1.5.jar on probe sentences. Hyphens between words become spaces, a final dot is cut
off unless the word is an abbreviation or the next one begins in lower case, apostrophes begin a new word, and every
character that is no Latin or Cyrillic letter and no digit stands alone.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[a-z0-9 ]*").fullmatch
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "`": "'", "–": "-", "—": "--", "\xa0": " "})
_LETTERS = "a-zß-öø-\u024f\u0400-\u04ff"
_SIGNS = re.compile(rf"([^{_LETTERS}0-9\s.',\-])")
_HYPHEN = re.compile(rf"([{_LETTERS}0-9])-+([{_LETTERS}0-9])")  # of "2-3-4" only the first: the 3 is used up
_DOTS = re.compile(r"(\.\.+)")
_COMMA = re.compile(r"(?<!\d),|,(?!\d)")
_LETTER = f"[{_LETTERS}]"
_APOSTROPHES = (
    (re.compile(rf"(?<!{_LETTER})'(?!{_LETTER})"), " ' "),
    (re.compile(rf"(?<!{_LETTER})(?<!\d)'(?={_LETTER})"), " ' "),
    (re.compile(rf"(?<={_LETTER})'(?!{_LETTER})"), " ' "),
    (re.compile(rf"(?<={_LETTER})'(?={_LETTER})"), " '"),
    (re.compile(r"(?<=\d)'(?=s)"), " '"),
)
PREFIXES = frozenset(("v", "vs", "i.e", "rev", "e.g"))
"""Words that keep a dot behind them; the others in the reference's list are capitalised, which lower-cased words never are."""


def normalise(sentence: str) -> list[str]:
    """The words of a sentence."""
    text = sentence.lower()
    if _PLAIN(text):
        return text.split()
    text = f" {text.translate(_QUOTES)} "
    text = text.replace("''", '"')
    text = _DOTS.sub(r" \1 ", _HYPHEN.sub(r"\1 \2", _SIGNS.sub(r" \1 ", text)))
    text = _COMMA.sub(" , ", text)
    for pattern, written in _APOSTROPHES:
        text = pattern.sub(written, text)
    words = text.split()
    found: list[str] = []
    for n, word in enumerate(words):
        found += _cut_dot(word, words[n + 1] if n + 1 < len(words) else "")
    return found


def _cut_dot(word: str, following: str) -> list[str]:
    """The word, with a dot that ends a sentence as a word of its own."""
    stem = word[:-1]
    if len(word) < 2 or word[-1] != "." or stem.strip(".") == "":
        return [word]
    inner = "." in stem and any(letter.isalpha() for letter in stem)
    keeps = inner or (following != "" and (stem in PREFIXES or following[0].islower()))
    return [word] if keeps else [stem, "."]
