"""One caption from several of a picture of the world, by the grammar: what a perfect reader makes of them without the picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tellapart.captioning.summary import Summary
from tellapart.world import spec
from tellapart.world.grammar import Description, NounPhrase, parse, write
from tellapart.world.questions import OPPOSITES
from tellapart.world.scenes import VALUES, T

ATTRIBUTES = (*VALUES, "place")

MOST_OBJECTS = max(spec.OBJECT_COUNTS)

NEW = -0.5
"""What it costs to take a phrase for an object that no caption before has named: less than a contradiction, more than silence."""


@dataclass
class _Thing:
    """An object that captions name: attribute -> votes for its values, and the captions that name it."""

    votes: dict[str, Counter[object]] = field(default_factory=lambda: {name: Counter() for name in ATTRIBUTES})
    named_by: set[int] = field(default_factory=set)

    def agrees(self, phrase: NounPhrase) -> float:
        """How well a phrase fits: for each attribute it states the share of votes for its value, less that of all others."""
        found = 0.0
        for name, value in _stated(phrase).items():
            votes = self.votes[name]
            if votes:
                found += 2.0 * votes[value] / votes.total() - 1.0
        return found

    def add(self, phrase: NounPhrase, caption: int) -> None:
        for name, value in _stated(phrase).items():
            self.votes[name][value] += 1
        self.named_by.add(caption)

    def settled(self, least: int) -> NounPhrase:
        """The values that ``least`` captions state, and more than half of those that state the attribute."""
        found = {name: _majority(votes, least) for name, votes in self.votes.items()}
        return NounPhrase(**found)  # type: ignore[arg-type]


class ExactSummarizer:
    """Merges captions of the built-in world by its grammar, as ``Summarizer`` does it with a language model.

    Captions that do not parse are left out. Those that say most are read first. Each phrase is taken for the object that it
    fits best among those named so far, or for a new one, so that phrases of one caption name different objects. Then all are
    read again with the votes of all. The summary says what more than half of those captions agree on that state it, of objects,
    background and relations, the latter between objects whose cells are not both known. Of four captions or more, nothing counts
    that only one says. It names no more objects than most captions with a count say.

    Example:
        >>> ExactSummarizer()([["a red ring", "a small ring and a star", "a star"]])[0].text
        'a small red ring and a star'
    """

    def __call__(self, groups: Sequence[Sequence[str]]) -> list[Summary]:
        """One summary per group of captions; of a group in which none parses the first caption."""
        return [Summary(merge(captions), True) for captions in groups]


def merge(captions: Sequence[str]) -> str:
    """The summary of captions of one picture."""
    said = [found for caption in captions if (found := parse(caption)) is not None]
    if not said:
        return captions[0] if captions else ""
    return write(merged(said))


def merged(said: Sequence[Description]) -> Description:
    """What descriptions of one scene say together; some of them may be mistaken.

    Args:
        said: at least one.
    """
    order = sorted(range(len(said)), key=lambda i: (-_told(said[i]), i))
    things, meant = _read(said, order, [])
    things, meant = _read(said, order, things)
    least = 2 if len(said) > 3 else 1
    counts = Counter(count for one in said if (count := _counted(one)) is not None)
    most = counts.most_common(1)[0][0] if counts else MOST_OBJECTS
    kept = sorted((t for t in things if len(t.named_by) >= least), key=lambda thing: -len(thing.named_by))[:most]
    background = _majority(Counter(one.background for one in said if one.background is not None), least)
    if not kept:
        return Description((NounPhrase(most if counts else 1),), (), background)
    kept.sort(key=lambda thing: (thing.settled(least).place or (MOST_OBJECTS, 0), things.index(thing)))
    phrases = tuple(thing.settled(least) for thing in kept)
    between = _relations(said, meant, least)
    relations = tuple(
        "and" if phrases[i].place and phrases[i + 1].place else between.get((id(first), id(second)), "and")
        for i, (first, second) in enumerate(pairwise(kept))
    )
    return Description(phrases, relations, background)


def _read(
    said: Sequence[Description], order: Sequence[int], known: Sequence[_Thing]
) -> tuple[list[_Thing], dict[int, list[tuple[_Thing, ...]]]]:
    """The objects that descriptions name, read in ``order``, and for each description those of each of its phrases. The votes
    of objects that are ``known`` already decide, and are not counted."""
    things = [_Thing() for _ in known]
    meant: dict[int, list[tuple[_Thing, ...]]] = {}
    for i in order:
        judged = list(known) + things[len(known) :]
        chosen = _assigned([phrase for phrase in said[i].phrases if _stated(phrase)], judged)
        rest, meant[i] = iter(chosen), []
        for phrase in said[i].phrases:
            places = next(rest) if _stated(phrase) else ()
            for place in places:
                while place >= len(things):
                    things.append(_Thing())
                things[place].add(phrase, i)
            meant[i].append(tuple(things[place] for place in places))
    return things, meant


def _assigned(phrases: Sequence[NounPhrase], things: Sequence[_Thing]) -> list[tuple[int, ...]]:
    """For each phrase the places of the objects it names, all different, so that they fit best together; places from
    ``len(things)`` on are new."""
    single = [phrase for phrase in phrases for _ in range(phrase.count)]
    # Taken objects (a bit each) -> the best sum of fits, and places with their signs turned: of equal sums the first places.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for number, phrase in enumerate(single):
        fits = [thing.agrees(phrase) for thing in things]
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for taken, (value, chosen) in best.items():
            new = len(things) + number - taken.bit_count()
            tries = [(place, fit) for place, fit in enumerate(fits) if fit >= NEW and not taken >> place & 1]
            for place, fit in [*tries, (new, NEW)]:
                key = taken | (1 << place if place < len(things) else 0)
                following[key] = max(following.get(key, (-math.inf, ())), (value + fit, (*chosen, -place)))
        best = following
    rest = iter(max(best.values())[1])
    return [tuple(-next(rest) for _ in range(phrase.count)) for phrase in phrases]


def _stated(phrase: NounPhrase) -> dict[str, object]:
    return {name: value for name in ATTRIBUTES if (value := getattr(phrase, name)) is not None}


def _told(said: Description) -> int:
    """How many attributes it states."""
    return sum(len(_stated(phrase)) for phrase in said.phrases) + (said.background is not None)


def _counted(said: Description) -> int | None:
    """How many objects there are, where it says just that."""
    (phrase, *others) = said.phrases
    return phrase.count if not others and replace(phrase, count=1) == NounPhrase() else None


def _majority(votes: Counter[T], least: int) -> T | None:
    for value, count in votes.most_common(1):
        if 2 * count > votes.total() and count >= least:
            return value
    return None


def _relations(
    said: Sequence[Description], meant: dict[int, list[tuple[_Thing, ...]]], least: int
) -> dict[tuple[int, int], str]:
    """Pairs of objects -> the relation of the first to the second that more than half of those who state one agree on."""
    votes: dict[tuple[int, int], Counter[str]] = {}
    for i, things in meant.items():
        for (first, second), relation in zip(pairwise(things), said[i].relations, strict=True):
            if relation in OPPOSITES and len(first) == len(second) == 1:
                for pair, named in (((first[0], second[0]), relation), ((second[0], first[0]), OPPOSITES[relation])):
                    votes.setdefault((id(pair[0]), id(pair[1])), Counter())[named] += 1
    return {pair: found for pair, counted in votes.items() if (found := _majority(counted, least)) is not None}
