"""Two independent readers of the world's language, held against each other: the tests of pictures and of clips share this."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def noisy(text: str, words: Sequence[str], rng: random.Random) -> str:
    """The text, or with a word replaced by one of ``words``, or with a stretch said twice."""
    said, kind = text.split(), rng.randrange(3)
    if kind == 1:
        said[rng.randrange(len(said))] = rng.choice(words)
    if kind == 2:
        start = rng.randrange(len(said))
        said = said[: rng.randrange(start, len(said)) + 1] + said[start:]
    return " ".join(said)


def agreed(
    captions: Iterable[tuple[str, Any]],
    parse: Callable,
    is_true: Callable,
    first_wrong: Callable[[str, Any], int | None],
) -> int:
    """Asserts that grammar and truth accept just the captions without a wrong word; how many those are."""
    true = 0
    for caption, scene in captions:
        said = parse(caption)
        expected = said is not None and is_true(said, scene)
        assert (first_wrong(caption, scene) is None) == expected, (caption, scene)
        true += expected
    return true


def cuts_are_wrong_where_the_whole_is(
    captions: Iterable[tuple[str, Any]], first_wrong: Callable[[str, Any], int | None]
) -> None:
    """A caption that is cut anywhere before its first wrong word is wrong there at its end, or not at all."""
    for caption, scene in captions:
        place, words = first_wrong(caption, scene), caption.split()
        for length in range(1, len(words) if place is None else place + 1):
            assert first_wrong(" ".join(words[:length]), scene) in (None, length)
