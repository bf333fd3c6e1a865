"""Claims of a caption: small statements that can be checked one by one, found by rules or given in a file.

CAPTURE (Dong et al. 2024) parses captions into objects, attributes and relations with a trained parser (Factual, a T5). DCScore
(Ye et al., ICLR 2025) has a language model cut them into primitive information units. The rules here need no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise

from tellapart.metrics.phrases import PREPOSITIONS
from tellapart.metrics.ptb import ptb_tokenize


@dataclass(frozen=True)
class Claim:
    """A statement.

    Args:
        text: as a verifier reads it, such as ``a red car``.
        kind: ``object``, ``attribute``, ``relation``, or what a parser calls it.
        key: what it is compared by: two claims with equal keys say the same.
    """

    text: str
    kind: str
    key: tuple[str, ...]


Parser = Callable[[str], list[Claim]]
"""A caption as it was written -> its claims, each once."""

RULES = "rules"
"""What the line "how measured" calls ``claims_by_rule``."""


def _listed() -> dict[str, frozenset[str]]:
    """The lists of ``claim_words.txt`` by name."""
    found: dict[str, set[str]] = {}
    for line in (resources.files("tellapart.metrics") / "claim_words.txt").read_text(encoding="utf-8").splitlines():
        name, _, words = line.partition(": ")
        if words and not line.startswith("#"):
            found.setdefault(name, set()).update(words.split())
    return {name: frozenset(words) for name, words in found.items()}


_WORDS = _listed()
_CONJUNCTIONS, _COPULAS, _DETERMINERS = (_WORDS[name] for name in ("conjunctions", "copulas", "determiners"))
_VERBS, _NO_VERBS, _ADVERBS = (_WORDS[name] for name in ("verbs", "nouns_in_ing", "adverbs"))
_PREPOSITIONS = PREPOSITIONS | _WORDS["prepositions"]

_IRREGULAR = {
    "men": "man", "women": "woman", "people": "person", "children": "child", "feet": "foot", "teeth": "tooth", "mice": "mouse",
    "geese": "goose", "leaves": "leaf", "knives": "knife", "shelves": "shelf", "wolves": "wolf", "halves": "half",
    "scarves": "scarf", "loaves": "loaf", "calves": "calf", "hooves": "hoof", "thieves": "thief", "wives": "wife",
    "elves": "elf", "lives": "life", "skis": "ski", "taxis": "taxi", "movies": "movie", "cookies": "cookie", "zombies": "zombie",
    "selfies": "selfie", "hoodies": "hoodie", "brownies": "brownie", "smoothies": "smoothie", "veggies": "veggie",
    "shoes": "shoe", "toes": "toe", "canoes": "canoe", "horseshoes": "horseshoe", "snowshoes": "snowshoe",
}  # fmt: skip


def singular(noun: str) -> str:
    """A noun for one of what it names; a word that is not a plural stays as it is."""
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if len(noun) < 4 or not noun.endswith("s") or noun.endswith(("ss", "us", "is")):
        return noun
    if noun.endswith("ies"):
        return f"{noun[:-3]}y" if len(noun) > 4 else noun[:-1]  # pies, ties
    if noun.endswith(("ches", "shes", "xes", "sses", "zzes", "buses", "oes")):
        return noun[:-2]
    return noun[:-1]


def _said(words: Sequence[str]) -> str:
    """Words with an article where the last one names one thing."""
    several = words[-1] in _IRREGULAR or singular(words[-1]) != words[-1]
    counted = words[0] in ("one", "two", "three", "four", "five", "six")
    return " ".join(words) if several or counted else f"{'an' if words[0][0] in 'aeiou' else 'a'} {' '.join(words)}"


@dataclass(frozen=True)
class _Chunk:
    """A thing: its words, the last one names it; and the words before it, back to the chunk before."""

    words: tuple[str, ...]
    before: tuple[str, ...]

    @property
    def head(self) -> str:
        return self.words[-1]


def claims_by_rule(caption: str) -> list[Claim]:
    """Objects, attributes and relations of an English caption, by lists of function words.

    Words between function words are a thing: the last one names it (*object*, "a car"), each one before is an *attribute* ("a red
    car"). A thing is related to the one before it by the prepositions and verbs between them ("a car on a street"), unless a
    conjunction or comma is there. After "is" or "are" a single word without article is an attribute.

    Pitfalls: there is no tagger and no grammar. A relation goes to the nearest thing ("a man with a hat riding a horse": the hat
    rides). Compounds become attributes ("a fire hydrant"). Verbs are those of a list and words in -ing. Pronouns are not
    resolved, "no dog" is a dog, and a metaphor is a claim. Only keys that agree word for word are equal: "bike" is not "bicycle".

    Example:
        >>> [claim.text for claim in claims_by_rule("A small red car on the street.")]
        ['a car', 'a small car', 'a red car', 'a street', 'a car on a street']
    """
    found: dict[tuple[str, ...], Claim] = {}
    chunks = list(_chunks(ptb_tokenize([_separated(caption)], alone=True)[0].split()))
    for before, chunk in pairwise([None, *chunks]):
        assert chunk is not None  # only the first is
        for claim in _claims_of(before, chunk):
            found.setdefault(claim.key, claim)
    return list(found.values())


def _separated(caption: str) -> str:
    """Sentence ends and commas as a word, since the tokenizer leaves out punctuation."""
    return re.sub(r"[.,;:!?]+(\s|$)", r" and \1", caption)


def _chunks(words: Iterable[str]) -> Iterator[_Chunk]:
    before: list[str] = []
    own: list[str] = []
    for word in words:
        if _binds(word):
            if own:
                yield _Chunk(tuple(own), tuple(before))
                before, own = [], []
            before.append(word)
        elif word not in _ADVERBS:
            own.append(word)
    if own:
        yield _Chunk(tuple(own), tuple(before))


def _binds(word: str) -> bool:
    """Whether a word is between things."""
    listed = word in _DETERMINERS or word in _CONJUNCTIONS or word in _COPULAS
    return listed or _relates(word)


def _relates(word: str) -> bool:
    verb = word in _VERBS or (word.endswith("ing") and len(word) > 4 and word not in _NO_VERBS)
    return verb or word in _PREPOSITIONS


def _claims_of(before: _Chunk | None, chunk: _Chunk) -> Iterator[Claim]:
    """Those of a thing and of its relation to the one before."""
    joined = before is not None and not any(word in _CONJUNCTIONS for word in chunk.before)
    if (
        len(chunk.words) == 1 and chunk.before and chunk.before[-1] in _COPULAS
    ):  # "it is old" says nothing of a known thing
        if before is not None and joined:
            yield _attribute(chunk.head, before.head)
        return
    yield Claim(_said(chunk.words[-1:]), "object", (singular(chunk.head),))
    for word in chunk.words[:-1]:
        yield _attribute(word, chunk.head)
    relation = [word for word in chunk.before if _relates(word)]
    if before is not None and joined and relation:
        words = [word for word in chunk.before if word not in _DETERMINERS and word not in _COPULAS]
        text = f"{_said(before.words[-1:])} {' '.join(words)} {_said(chunk.words[-1:])}"
        yield Claim(text, "relation", (singular(before.head), " ".join(words), singular(chunk.head)))


def _attribute(word: str, head: str) -> Claim:
    return Claim(_said((word, head)), "attribute", (word, singular(head)))


def given_claims(claims: dict[str, list[str]]) -> Parser:
    """A parser that looks captions up, such as those for which a language model has written claims; others go to the rules.

    Args:
        claims: caption -> its claims.
    """
    known = {_plain(caption): own for caption, own in claims.items()}

    def parse(caption: str) -> list[Claim]:
        own = known.get(_plain(caption))
        if own is None:
            return claims_by_rule(caption)
        found = (Claim(text, "given", tuple(ptb_tokenize([text], alone=True)[0].split())) for text in own)
        return list({claim.key: claim for claim in found}.values())

    return parse


def _plain(caption: str) -> str:
    return " ".join(caption.split())


@dataclass(frozen=True)
class ClaimScores:
    """Of one caption, 0 to 1.

    Args:
        precision: verified claims of all; 0 for a caption without claims.
        recall: claims of the references that the caption makes too; None where the references claim nothing.
        f1: harmonic mean of both; None without recall.
    """

    precision: float
    recall: float | None
    f1: float | None


def claim_scores(
    claims: Sequence[Claim], verified: Sequence[bool], references: Iterable[Sequence[Claim]]
) -> ClaimScores:
    """Precision, recall and F1 of one caption.

    Precision is DCScore's: verified claims over all claims. Recall is plain: of the different claims of all references, those
    that the caption makes. DCScore adds the caption's other verified claims to both parts of that fraction, which raises it.
    CAPTURE computes both against the references alone, per kind, with partial credit for synonyms.

    Args:
        claims: of the caption.
        verified: of each claim whether a verifier found it true.
        references: claims of each reference.

    Example:
        >>> claim_scores(claims_by_rule("a red car"), [True, False], [claims_by_rule("a car on a street")])
        ClaimScores(precision=0.5, recall=0.3333333333333333, f1=0.4)
    """
    precision = sum(verified) / len(claims) if claims else 0.0
    wanted = {claim.key for own in references for claim in own}
    if not wanted:
        return ClaimScores(precision, None, None)
    recall = len(wanted & {claim.key for claim in claims}) / len(wanted)
    total = precision + recall
    return ClaimScores(precision, recall, 2 * precision * recall / total if total else 0.0)
