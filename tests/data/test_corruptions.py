"""Captions spoilt on purpose, against what the five ways say of themselves."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tellapart.data.corruptions import CORRUPTIONS, corrupt, vocabulary_of

WORDS = st.lists(st.sampled_from(["a", "red", "dog", "runs", "a"]), max_size=9)
VOCABULARIES = st.lists(st.sampled_from(["a", "blue", "two", "sofa", "dog"]), min_size=1, unique=True)
SEEDS = st.integers(0, 2**32 - 1)


def ngrams(words, longest=3):
    return {tuple(words[i:j]) for i in range(len(words)) for j in range(i + 1, min(i + longest, len(words)) + 1)}


def without(words, part):
    """All ways to leave out one occurrence of ``part``."""
    size = len(part)
    return {
        (*words[:i], *words[i + size :]) for i in range(len(words) - size + 1) if tuple(words[i : i + size]) == part
    }


def fits_repeat(words, spoilt, vocabulary):
    for gram in ngrams(words):
        reached = {tuple(spoilt)}
        for _ in range(3):
            reached = set().union(*(without(now, gram) for now in reached)) if reached else set()
            if tuple(words) in reached:
                return True
    return False


def fits_remove(words, spoilt, vocabulary):
    return bool(spoilt) and any(tuple(spoilt) in without(words, gram) for gram in ngrams(words))


def fits_insert(words, spoilt, vocabulary):
    added = len(spoilt) - len(words)
    kept = (itertools.combinations(range(len(spoilt)), len(words))) if 1 <= added <= 3 else ()
    return any(
        [spoilt[i] for i in places] == list(words)
        and all(spoilt[i] in vocabulary for i in range(len(spoilt)) if i not in places)
        for places in kept
    )


def fits_swap(words, spoilt, vocabulary):
    changed = [(old, new) for old, new in zip(words, spoilt, strict=False) if old != new]
    return len(words) == len(spoilt) and 1 <= len(changed) <= 3 and all(new in vocabulary for _, new in changed)


def fits_shuffle(words, spoilt, vocabulary):
    return Counter(words) == Counter(spoilt) and words != spoilt


FITS = {
    "repeat": fits_repeat,
    "remove": fits_remove,
    "insert": fits_insert,
    "swap": fits_swap,
    "shuffle": fits_shuffle,
}


@given(WORDS, VOCABULARIES, SEEDS)
def test_every_way_does_what_it_says_or_declines(words, vocabulary, seed):
    for kind, spoil in CORRUPTIONS.items():
        before = list(words)
        spoilt = spoil(words, np.random.default_rng(seed), vocabulary)
        assert words == before
        if spoilt is not None:
            assert spoilt != words
            assert FITS[kind](words, spoilt, vocabulary), kind
    possible = {kind for kind, spoil in CORRUPTIONS.items() if spoil(words, np.random.default_rng(seed), vocabulary)}
    expected = {"insert"} | ({"repeat"} if words else set()) | ({"remove"} if len(words) > 1 else set())
    expected |= {"shuffle"} if len(set(words)) > 1 else set()
    assert expected <= possible <= expected | ({"swap"} if words else set())


@given(WORDS, VOCABULARIES, SEEDS)
def test_a_corruption_differs_and_follows_from_the_generator(words, vocabulary, seed):
    text = " ".join(words)
    first, again = (corrupt(text, np.random.default_rng(seed), vocabulary) for _ in range(2))
    assert first == again
    assert first.text != text
    assert first.text
    assert FITS[first.kind](words, first.text.split(), vocabulary)


def test_the_five_ways_are_equally_likely_and_one_word_has_fewer():
    rng = np.random.default_rng(0)
    kinds = Counter(corrupt("a red dog runs", rng, ["sofa", "bus"]).kind for _ in range(5000))
    # Expectation 1000, standard deviation sqrt(5000 * 0.2 * 0.8) = 28.3.
    assert set(kinds) == set(CORRUPTIONS)
    assert all(abs(count - 1000) < 115 for count in kinds.values())
    single = [corrupt("dog", rng, ["sofa", "bus"]) for _ in range(3000)]
    # Removing and shuffling give place to the other three: 1000 each, standard deviation 25.8.
    kinds = Counter(found.kind for found in single)
    assert set(kinds) == {"repeat", "insert", "swap"}
    assert all(abs(count - 1000) < 105 for count in kinds.values())
    assert all(found.text != "dog" for found in single)
    assert corrupt("", rng, ["sofa"]).kind == "insert"


def test_every_size_and_place_occurs():
    rng = np.random.default_rng(0)
    words = ["one", "two", "three", "four", "five"]
    removed = {tuple(CORRUPTIONS["remove"](words, rng, [])) for _ in range(2000)}
    assert {len(words) - len(left) for left in removed} == {1, 2, 3}
    assert len(removed) == 5 + 4 + 3
    inserted = [CORRUPTIONS["insert"](words, rng, ["x"]) for _ in range(500)]
    assert {row.index("x") for row in inserted} == set(range(6))
    assert {row.count("x") for row in inserted} == {1, 2, 3}
    swapped = [CORRUPTIONS["swap"](words, rng, ["x"]) for _ in range(500)]
    assert {row.count("x") for row in swapped} == {1, 2, 3}
    repeated = [len(CORRUPTIONS["repeat"](words, rng, [])) - 5 for _ in range(2000)]
    assert set(repeated) == {1, 2, 3, 4, 6, 9}


def test_no_vocabulary_is_an_error_and_rare_words_can_be_left_out():
    with pytest.raises(ValueError, match="at least one word"):
        corrupt("a dog", np.random.default_rng(0), [])
    texts = ["a dog", "a cat and a dog", "a bus"]
    assert vocabulary_of(texts) == ["a", "and", "bus", "cat", "dog"]
    assert vocabulary_of(texts, min_count=2) == ["a", "dog"]
