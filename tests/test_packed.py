"""Packed texts and numbers against the lists and dictionaries that they stand for."""

import pickle
import random

import numpy as np
import pytest

from tellapart import packed
from tellapart.packed import GrowingTexts, Keyed, Numbers, TextLists, Texts

ODD = ["", "a dog", "é", "\U0001f600 a", "\ud83d", "a\nb", "\u2028", "x" * 300]


def texts_of(count: int, seed: int, words: list[str] = ODD) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(words, k=rng.randint(0, 3))) for _ in range(count)]


@pytest.fixture(params=[3, 4096])
def block(request, monkeypatch):
    """Texts that are packed together, so that some or all of them come in several blocks."""
    monkeypatch.setattr(packed, "_BLOCK", request.param)


@pytest.mark.parametrize("words", [ODD, ["a dog ", "cat"]])
def test_texts_are_those_of_a_list(block, words):
    plain = texts_of(50, 0, words)
    texts = Texts.of(iter(plain))
    assert (list(texts), len(texts), texts[:], texts[3:9], texts[-1]) == (plain, 50, plain, plain[3:9], plain[-1])
    assert texts[40:2:-7] == plain[40:2:-7]
    assert texts[60:70] == texts[9:3] == []
    assert texts == plain
    assert plain == texts
    assert texts != plain[1:]
    assert texts != [*plain[1:], "z"]
    assert pickle.loads(pickle.dumps(texts)) == plain
    with pytest.raises(IndexError):
        texts[50]
    places = np.array([7, 7, 0, 49])
    assert texts.take(places) == [plain[place] for place in places]
    assert texts.take(np.arange(50)) is texts
    assert texts.take(np.array([], np.int64)) == Texts.of([]) == []


def test_texts_may_come_one_at_a_time_or_several(block):
    plain, growing = texts_of(30, 1), GrowingTexts()
    for text in plain[:10]:
        growing.append(text)
    growing.extend(plain[10:25])
    for text in plain[25:]:
        growing.append(text)
    assert growing.packed() == plain


def test_lists_of_texts_are_those_of_a_list(block):
    rng = random.Random(2)
    plain = [texts_of(rng.randint(0, 4), seed) for seed in range(40)]
    lists = TextLists.of(iter(plain))
    assert (list(lists), lists[5], lists[5:17], len(lists)) == (plain, plain[5], plain[5:17], 40)
    assert lists.sizes.tolist() == [len(own) for own in plain]
    assert lists.take(np.array([9, 3])) == [plain[9], plain[3]]
    assert lists.take(np.arange(40)) is lists
    assert TextLists.of([]) == []


def test_numbers_are_python_numbers(block):
    numbers = Numbers(np.arange(20).reshape(10, 2)[:, 1])
    assert list(numbers) == [*range(1, 20, 2)]
    assert numbers == [*range(1, 20, 2)]
    assert type(numbers[0]) is int
    assert type(Numbers(np.ones(2))[1]) is float
    assert np.array(numbers, np.float64).tolist() == [float(n) for n in range(1, 20, 2)]
    assert np.asarray(numbers) is numbers.array


def test_values_by_id_are_those_of_a_dictionary(block):
    plain = {str(n): text for n, text in enumerate(texts_of(30, 3))}
    keyed = Keyed(Texts.of(plain), Texts.of(plain.values()))
    assert [*keyed.items()] == [*plain.items()]
    assert [*keyed] == [*plain]
    assert [*keyed.values()] == [*plain.values()]
    assert "_places" not in vars(keyed), "no index was needed so far"
    assert keyed["7"] == plain["7"]
    assert keyed == plain
    assert plain == keyed
    assert keyed.keys() == plain.keys()
    assert keyed.get("x") is None
    assert "x" not in keyed
    assert repr(keyed) == repr(plain)
    assert [*keyed.sorted_items()] == sorted(plain.items())
