import random
from collections import Counter

import numpy as np
import pytest

from tellapart.metrics.bleu import count_matches
from tellapart.metrics.coco import coco_metrics
from tellapart.metrics.ngrams import Numbered, number_all
from tellapart.metrics.positions import CELLS, Scratch, columns, narrow, other_side, own_counts, same_ngrams


def texts(count: int, seed: int, longest: int) -> list[list[str]]:
    rng = random.Random(seed)
    return [rng.choices(["a", "b", "c"], k=rng.randint(0, longest)) for _ in range(count)]


@pytest.mark.parametrize("top", [0xFFFC, 0xFFFD, 0xFFFE, 0xFFFF, 0x10000])
def test_no_word_is_taken_for_an_end(top):
    captions = Numbered(narrow(np.array([top, 0, top - 1]))[0], np.array([2, 1]))
    assert captions.words.dtype == (np.uint16 if top <= 0xFFFD else np.int32)
    left, _ = columns(captions)
    assert next(same_ngrams(left, other_side(left), 1, Scratch())).tolist() == [[[1, 1], [0, 0]], [[0, 0], [1, 0]]]


@pytest.mark.parametrize(("count", "longest"), [(1, 0), (30, 12), (700, 90)])
def test_own_counts_equal_plain_ones(count, longest):
    words = texts(count, longest, longest)
    numbered = number_all(words)
    in_parts = longest**2 * count > 4 * CELLS
    assert in_parts == (count == 700)
    every, before = (own_counts(numbered, 4, Scratch(), earlier=earlier) for earlier in (False, True))
    for start, caption in zip(numbered.starts.tolist(), words, strict=True):
        for n in (1, 2, 3, 4):
            grams = [tuple(caption[i : i + n]) for i in range(len(caption) - n + 1)]
            short = [0] * min(n - 1, len(caption))
            totals, seen = Counter(grams), [grams[:i].count(gram) for i, gram in enumerate(grams)]
            place = slice(start, start + len(caption))
            assert every[n - 1, place].tolist() == [totals[gram] for gram in grams] + short
            assert before[n - 1, place].tolist() == seen + short


def test_long_captions_are_counted_by_sorting(monkeypatch):
    """A caption of 20,000 words took gigabytes and half a minute."""
    numbered = number_all(texts(300, 1, 90))
    whole = [own_counts(numbered, 4, Scratch(), earlier=earlier) for earlier in (False, True)]
    monkeypatch.setattr("tellapart.metrics.positions.LONG", 40)
    monkeypatch.setattr("tellapart.metrics.positions.CELLS", 1000)
    for earlier, expected in zip((False, True), whole, strict=True):
        assert own_counts(numbered, 4, Scratch(), earlier=earlier).tolist() == expected.tolist()
    assert 0 < (numbered.lengths > 40).sum() < 300
    candidates, references = [" ".join(words) for words in texts(60, 1, 90)], [" ".join(w) for w in texts(120, 1, 90)]
    pairs = [references[2 * i : 2 * i + 2] for i in range(60)]
    monkeypatch.undo()
    tables = count_matches(candidates, pairs)
    monkeypatch.setattr("tellapart.metrics.bleu.LONG", 40)
    for ours, theirs in zip(count_matches(candidates, pairs), tables, strict=True):
        assert ours.tolist() == theirs.tolist()


def test_an_endless_caption_takes_seconds():
    """Its table would have ten billion cells."""
    endless = "a b " * 50_000
    corpus, _ = coco_metrics({"a": endless, "b": "a dog"}, {"a": ["a cat", "a b"], "b": ["a dog", "b"]}, tokenizer=list)
    assert 0 < corpus["Bleu_1"] < 1


def test_captions_are_selected_in_any_order():
    words = texts(9, 1, 5)
    numbered = number_all(words)
    order = np.array([7, 0, 7, 3])
    some = numbered.select(order)
    names = {number: word for word, number in zip((w for row in words for w in row), numbered.words, strict=True)}
    assert [names[number] for number in some.words] == [word for i in order for word in words[i]]
    assert some.lengths.tolist() == [len(words[i]) for i in order]
    assert numbered.select(order[:0]).words.tolist() == []


def test_scratch_is_kept_but_never_shared():
    scratch = Scratch()
    first, second = scratch.borrow(10), scratch.borrow(10)
    assert not np.shares_memory(first[0], second[0])
    scratch.give_back(first)
    assert scratch.borrow(5)[0] is first[0]
