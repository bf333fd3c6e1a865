"""Which words of a caption stand for which words of a reference: METEOR's alignment, with its beam.

Denkowski & Lavie (2014), section 2: of all matches choose those that cover most words, in fewest chunks, at the most
similar places. How meteor-1.5.jar weighs and searches this was found by probing it:

- A match that overlaps no other is taken at once.
- Places of the reference are visited from left to right; at each, a path takes one of the matches that begin there
  or goes on without. The best 40 paths are kept, in the order they were made where they are equal.
- A path is better if it covers more; each side of a match counts ``int(weight * length)``, so that a single word counts
  only if it matches exactly. Then if fewer chunks have ended. Then if it passed over less: each match that a path could
  have had at a place, and that stands before the one it took, costs the distance of its two places.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

BEAM = 40
WEIGHTS = (1.0, 0.6, 0.8, 0.6)
"""Of exact, stem, synonym and paraphrase matches."""


class Match(NamedTuple):
    """Words of the reference that stand for words of the caption.

    Args:
        start: first word in the reference.
        length: words there.
        other: first word in the caption.
        other_length: words there.
        module: 0 exact, 1 stem, 2 synonym, 3 paraphrase.
    """

    start: int
    length: int
    other: int
    other_length: int
    module: int


# (-covered, chunks that ended, passed over, next free place, where an open chunk would go on or -1, words used, matches)
Path = tuple[int, int, int, int, int, int, tuple[Match, ...]]
_RANK = itemgetter(0, 1, 2)


def align(matches: Sequence[Match], words: int) -> list[Match]:
    """The alignment.

    Args:
        matches: all that could be, those of one place in the order they are tried.
        words: of the reference.
    """
    fixed, free = _split(matches)
    if not free:
        return fixed
    at: dict[int, list[tuple[Match, int]]] = {}
    for match in free:
        at.setdefault(match.start, []).append((match, ((1 << match.other_length) - 1) << match.other))
    certain = {match.start: match for match in fixed}
    used = 0
    for match in fixed:
        used |= ((1 << match.other_length) - 1) << match.other
    paths: list[Path] = [(0, 0, 0, 0, -1, used, ())]
    settled = False
    for place in range(words):
        here, options = certain.get(place), at.get(place, ())
        if here is None and not options:
            if settled:
                continue
            settled = all(path[3] <= place for path in paths)
        else:
            settled = False
        if here is not None:
            paths = [_take(path, here, 0, path[2]) for path in paths]
        else:
            paths = _extend(paths, place, options)
        if len(paths) > 1:
            paths.sort(key=_RANK)
            del paths[BEAM:]
    best = min(paths, key=lambda path: (path[0], path[1] + (path[4] >= 0), path[2]))
    return sorted(best[6])


def _extend(paths: list[Path], place: int, options: Sequence[tuple[Match, int]]) -> list[Path]:
    """Every path with each match it can take here, and without any."""
    found: list[Path] = []
    for path in paths:
        covered, chunks, passed, free, end, used, taken = path
        if free > place:
            found.append(path)
            continue
        for match, bits in options:
            if not used & bits:
                found.append(_take(path, match, bits, passed))
                passed += abs(match.start - match.other)
        found.append((covered, chunks + (end >= 0), passed, free, -1, used, taken))
    return found


def _take(path: Path, match: Match, bits: int, passed: int) -> Path:
    covered, chunks, _, _, end, used, taken = path
    start, length, other, other_length, module = match
    weight = WEIGHTS[module]
    value = int(weight * length) + int(weight * other_length)
    chunks += end >= 0 and end != other
    after = other + other_length
    return covered - value, chunks, passed, start + length, after, used | bits, (*taken, match)


def _split(matches: Sequence[Match]) -> tuple[list[Match], list[Match]]:
    """The matches that overlap no other, and the others."""
    left: dict[int, int] = {}
    right: dict[int, int] = {}
    for start, length, other, other_length, _ in matches:
        for place in range(start, start + length):
            left[place] = left.get(place, 0) + 1
        for place in range(other, other + other_length):
            right[place] = right.get(place, 0) + 1
    fixed: list[Match] = []
    free: list[Match] = []
    for match in matches:
        start, length, other, other_length, _ = match
        alone = all(left[place] == 1 for place in range(start, start + length)) and all(
            right[place] == 1 for place in range(other, other + other_length)
        )
        (fixed if alone else free).append(match)
    return sorted(fixed), free


def count_chunks(alignment: Sequence[Match]) -> int:
    """Runs of matches that stand one behind the other on both sides."""
    chunks, expected = 0, (-1, -1)
    for start, length, other, other_length, _ in alignment:
        chunks += (start, other) != expected
        expected = (start + length, other + other_length)
    return chunks
