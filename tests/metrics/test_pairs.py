"""Captions numbered once for all metrics: ROUGE-L from bits against the textbook's table, and parts against the whole."""

from __future__ import annotations

import random

import numpy as np
import pytest

from metrics.captions import odd_captions
from tellapart.metrics import pairs as module
from tellapart.metrics import rouge
from tellapart.metrics.bleu import count_matches, matches_of
from tellapart.metrics.cider import cider_d_of
from tellapart.metrics.frequencies import DocumentFrequencies
from tellapart.metrics.pairs import Pairs
from tellapart.metrics.rouge import BETA, rouge_l, rouge_of


def slow_rouge(caption: str, references: list[str]) -> float:
    """By the table of longest common subsequences; words lie between single spaces, as the reference tool cuts them."""
    ours, precision, recall = caption.split(" "), 0.0, 0.0
    for reference in references:
        theirs = reference.split(" ")
        table = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
        for i, word in enumerate(ours):
            for j, other in enumerate(theirs):
                table[i + 1][j + 1] = table[i][j] + 1 if word == other else max(table[i][j + 1], table[i + 1][j])
        common = table[-1][-1]
        precision, recall = max(precision, common / len(ours)), max(recall, common / len(theirs))
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision) if precision and recall else 0.0


@pytest.mark.parametrize("longest", [3, 16, 17, 33, 64, 65, 130])
def test_rouge_is_that_of_the_table(longest):
    """Captions that fill 16, 32 and 64 bits, longer ones, empty ones, and words with other white space in them."""
    rng = random.Random(longest)

    def text():
        words = rng.choices("abcdefgh"[: rng.choice([2, 8])], k=rng.choice([0, 1, longest, rng.randint(0, longest)]))
        return rng.choice([" "] * 8 + ["  ", "\u00a0", "\t"]).join(words)

    captions = [text() for _ in range(120)]
    references = [[text() for _ in range(rng.randint(1, 5))] for _ in captions]
    assert rouge_l(captions, references) == [slow_rouge(*pair) for pair in zip(captions, references, strict=True)]


def test_words_of_references_have_the_first_numbers():
    pairs = Pairs.of(["a dog", "cat z"], [["a cat"], ["dog", " b  a"]])
    assert dict(pairs.words) == {"a": 0, "cat": 1, "dog": 2, "b": 3, "z": 4}
    assert pairs.known == 4
    assert pairs.own.words.tolist() == [0, 2, 1, 4]
    assert pairs.others.words.tolist() == [0, 1, 2, 3, 0]
    assert pairs.others.lengths.tolist() == [2, 1, 2]
    assert pairs.sizes.tolist() == [1, 2]
    assert pairs.plain.tolist() == [True, False]
    assert [*Pairs.of(["b"], [["a"]], {"x": 0, "a": 1}).words] == ["x", "a", "b"]
    with pytest.raises(KeyError):
        pairs.words["new"]
    with pytest.raises(ValueError, match="an image has none"):
        Pairs.of(["a", "b"], [["a"], []])
    for captions, references in ((["a", "b"], [["a"]]), (["a"], [["a"], ["b"]])):
        with pytest.raises(ValueError, match="captions are compared with references of"):
            rouge_l(captions, references)
        with pytest.raises(ValueError, match="captions are compared with references of"):
            count_matches(captions, references)


def test_metrics_are_the_same_whatever_is_done_together(monkeypatch):
    """Also with frequencies whose words have their numbers already."""
    captions, references = odd_captions(60, 5, references=3)
    texts, targets = [*captions.values()], [references[name] for name in captions]
    frequencies = DocumentFrequencies.from_tokens(references)

    def scores(given):
        pairs = Pairs.of(texts, targets, given and given.words)
        return [*matches_of(pairs), rouge_of(pairs, texts, targets), cider_d_of(pairs, given)]

    whole = scores(None)
    for one, other in zip(whole, scores(frequencies), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="have other numbers"):
        cider_d_of(Pairs.of(texts, targets, {"other": 0}), frequencies)
    monkeypatch.setattr(module, "_AT_ONCE", 7)
    monkeypatch.setattr(rouge, "_IMAGES", 7)
    for one, other in zip(whole, scores(None), strict=True):
        np.testing.assert_array_equal(one, other)
    monkeypatch.setattr(rouge, "_CELLS", 0)
    np.testing.assert_array_equal(rouge_l(texts, targets), whole[4])
