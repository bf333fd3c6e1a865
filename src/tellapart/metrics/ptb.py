"""The words of captions exactly as the field's reference cuts them, without Java.

pycocoevalcap hands captions to the Penn Treebank tokenizer of Stanford CoreNLP 3.4.1, lower-cases its tokens and drops
punctuation; published CIDEr, BLEU, METEOR and ROUGE values are of those words. This is that tokenizer in Python: rules
(:mod:`tellapart.metrics.ptb_rules`) for a longest-match lexer (:mod:`tellapart.metrics.ptb_automaton`), and a short cut for
the captions that are nothing but letters, commas and a final dot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from string import ascii_lowercase

from tellapart.metrics.ptb_automaton import Lexer
from tellapart.metrics.ptb_characters import LINE_SEPARATORS, Kinds
from tellapart.metrics.ptb_rules import RULES, SOFT
from tellapart.metrics.ptb_words import MAY_END, MAY_END_CAPITALISED, SPLIT_IN_TWO, TITLES

DROPPED = frozenset(("''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"))
"""Tokens pycocoevalcap removes. It also lists brackets, in capitals, which lower-cased tokens never equal: a bracket
stays, as the word ``-lrb-``."""

_PLAIN = re.compile(r"[A-Za-z, ]*\.?[ ]*").fullmatch
_DOTTED = f"{MAY_END} {MAY_END_CAPITALISED} {TITLES} pte pty ptes ptys ppte ppty pptes pptys mfg mtg"
_KEEPS_DOT = frozenset([*_DOTTED.split(), *ascii_lowercase])
"""Words whose final dot the short cut leaves to the lexer."""
_SPLIT = frozenset(first + second for first, second in SPLIT_IN_TWO.items())
_NEXT_LINE = "\nA "
"""What the lexer sees behind a caption, where the reference sees the next one."""
_SPACES = str.maketrans(dict.fromkeys(LINE_SEPARATORS, " "))

_SIGNS = str.maketrans(
    dict.fromkeys("€¤₠\x80", "$")
    | dict.fromkeys("–—―\x96\x97", "--")
    | dict.fromkeys("‘‛‹\x91", "`")
    | dict.fromkeys("’›\x92", "'")
    | dict.fromkeys("“«\x93", "``")
    | dict.fromkeys("”»\x94", "''")
    | dict.fromkeys("…\x85", "...")
    | {"¢": "cents", "£": "#", "¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
    | {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
)
_FACES = str.maketrans({" ": "\xa0", "(": "-lrb-", ")": "-rrb-"})
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&", "&ndash;": "--", "&mdash;": "--", "&md;": "--"}
_AMPERSAND = re.compile("&amp;", re.IGNORECASE)


def ptb_tokenize(captions: Iterable[str]) -> list[str]:
    """Captions -> their Penn Treebank tokens in lower case without punctuation, joined by single spaces.

    Equal to pycocoevalcap 1.2's ``PTBTokenizer``, with these differences, all deliberate but the last:

    - A caption with a line separator (carriage return, form feed, U+2028, ...) is one caption, the separator a space. There, it
      becomes two, and all captions behind it go to the wrong image.
    - A caption does not depend on its neighbours. There, an initial at the end keeps or loses its dot by how the next
      caption begins ("a sign with a K." is ``... a k`` before "A ..." or "The ...", else ``... a k.``); here it always
      reads as before "A", as nearly all captions begin. There, tags and numbers also reach across lines.
    - Rare text is cut or written otherwise: a capital sigma beside a digit, hyphen or mark ("E7Σ", lower-cased by
      Python's rules instead of Java's), an address of one emoji ("http://😀"), a mail address between ``&lt;`` and
      ``&gt;``, some abbreviations that run into a letter ("ed.d.j", "Pty.é'M"). ``test_ptb_reference.py`` has them all.

    Args:
        captions: any text; empty captions are fine.

    Returns:
        One string a caption, in order; empty where nothing but punctuation was said.
    """
    return [_plain(caption) if _PLAIN(caption) else _any(caption) for caption in captions]


def _plain(caption: str) -> str:
    """The short cut, for letters, commas, spaces and a final dot."""
    words = caption.lower().replace(",", " ").split()
    if not words:
        return ""
    last = words[-1]
    if last[-1] == ".":
        if last[:-1] in _KEEPS_DOT:
            return _any(caption)
        if last == ".":
            words.pop()
        else:
            words[-1] = last[:-1]
    return " ".join(words) if _SPLIT.isdisjoint(words) else _any(caption)


def _any(caption: str) -> str:
    line = " ".join(_tokens(caption.translate(_SPACES))).rstrip()
    return " ".join(token for token in line.split(" ") if token not in DROPPED)


def _tokens(line: str) -> list[str]:
    """All tokens of a line, punctuation included, as the reference prints them."""
    lexer, kinds = _tables()
    text = line.translate(kinds) + _NEXT_LINE
    found: list[str] = []
    position, end = 0, len(line)
    while position < end:
        rule, after = lexer.match(text, position)
        if rule < 0:  # the reference warns and drops the character
            position += 1
            continue
        kind = lexer.rules[rule].kind
        if kind != "nothing":
            found.append(_WRITTEN[kind](line[position:after]).lower())
        # A dot that also ends the sentence is read twice.
        position = after - 1 if kind == "shared dot" else after
    return found


@cache
def _tables() -> tuple[Lexer, Kinds]:
    return Lexer(RULES), Kinds()


def _word(text: str) -> str:
    return text.replace(SOFT, "") or "-"


def _double_quote(sign: str) -> Callable[[str], str]:
    return lambda text: sign if text in ('"', "&quot;") else text


_WRITTEN: dict[str, Callable[[str], str]] = {
    "word": _word,
    "shared dot": _word,
    "company": lambda text: _AMPERSAND.sub("&", _word(text)),
    "contraction": lambda text: _word(text).replace("&apos;", "'").translate(_SIGNS),
    "kept": str,
    "tag": lambda text: text.replace(" ", "\xa0"),
    "spaced": lambda text: text.translate(_FACES),
    "opening": _double_quote("``"),
    "closing": _double_quote("''"),
    "single opening": lambda text: "`",
    "sign": lambda text: text.translate(_SIGNS),
    "dots": lambda text: "...",
    "dash": lambda text: "--",
    "entity": lambda text: "'" if text == "&apos;" else _ENTITIES.get(text.lower(), text),
}
"""How the text of a token of some kind is written, before it is lower-cased."""
