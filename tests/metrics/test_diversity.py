import random

import numpy as np
import pytest
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

from given import vector
from tellapart.errors import UsageError
from tellapart.metrics.diversity import (
    caption_statistics,
    coverage,
    div_n,
    in_pieces,
    mbleu_corpus,
    mbleu_sentence,
    novel_captions,
    self_bleu,
    self_bleus,
    type_token_ratio,
    vocabulary_size,
)


def some_captions(count: int, seed: int, longest: int = 12) -> list[str]:
    rng = random.Random(seed)
    words = ["a", "man", "riding", "the", "wave", "on", "big", "board", "with", "dog", "red"]
    return [" ".join(rng.choices(words, k=rng.randint(0, longest))) for _ in range(count)]


def nltk_self_bleu(captions: list[str], n: int) -> list[float]:
    words = [caption.split() for caption in captions]
    method1 = SmoothingFunction().method1
    return [
        float(sentence_bleu(words[:i] + words[i + 1 :], own, (1 / n,) * n, smoothing_function=method1))
        for i, own in enumerate(words)
    ]


def test_self_bleu_vector():
    inputs, expected, tolerance = vector("self_bleu")
    for n in (4, 5):
        values = self_bleu(inputs["captions"], n=n)
        np.testing.assert_allclose(values, expected[f"self_bleu{n}"], rtol=0, atol=tolerance)
        assert np.mean(values) == pytest.approx(expected[f"self_bleu{n}_mean"], abs=tolerance)


@pytest.mark.parametrize("n", [1, 2, 4, 5])
@pytest.mark.parametrize(("count", "seed"), [(2, 0), (40, 1), (60, 2)])
def test_self_bleu_is_bit_equal_to_nltk(n, count, seed):
    captions = some_captions(count, seed)
    assert self_bleu(captions, n=n) == nltk_self_bleu(captions, n)


def test_self_bleu_uses_the_first_captions_only():
    captions = some_captions(30, 3)
    assert self_bleu(captions, limit=10) == self_bleu(captions[:10])
    with pytest.raises(UsageError, match="at least two"):
        self_bleu(["alone"])


def test_diversity_metrics_vector():
    inputs, expected, tolerance = vector("diversity_metrics")
    for name in "ab":
        captions = inputs[f"captions_{name}"]
        for n in (1, 2):
            assert div_n([captions], n) == pytest.approx(expected[f"div{n}_{name}"], abs=tolerance)
        np.testing.assert_allclose(mbleu_sentence([captions]), expected[f"mbleu_{name}"], rtol=0, atol=tolerance)
    sets = inputs["two_images"]
    np.testing.assert_allclose(mbleu_corpus(sets), expected["mbleu_corpus_two_images"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(mbleu_sentence(sets), expected["mbleu_sentence_two_images"], rtol=0, atol=tolerance)


def test_mbleu_needs_siblings():
    with pytest.raises(UsageError, match=r"\[2, 3\]"):
        mbleu_corpus([["a", "b"], ["a", "b", "c"]])
    with pytest.raises(UsageError, match="fewer than two"):
        mbleu_sentence([["a"]])


def test_self_bleus_equal_one_at_a_time_and_take_all():
    captions = some_captions(1100, 5)
    found = self_bleus(captions, (2, 3, 4))
    assert [*found] == [2, 3, 4]
    for n, values in found.items():
        assert values == self_bleu(captions, n=n, limit=None)
        assert len(values) == 1100


def test_self_bleu_of_captions_without_words():
    assert self_bleu(["", "", ""]) == [0, 0, 0]


def test_mbleu_of_sets_of_several_sizes_is_the_mean_over_captions():
    sets = [some_captions(3, 1), some_captions(5, 2)]
    parts = [mbleu_sentence([captions]) for captions in sets]
    wanted = [(3 * one + 5 * other) / 8 for one, other in zip(*parts, strict=True)]
    assert mbleu_sentence(sets) == pytest.approx(wanted, abs=1e-12)


def test_vocabulary_and_novel_captions():
    captions = ["a red dog", "a red dog", "a cat", ""]
    assert vocabulary_size(captions) == 4
    assert novel_captions(captions, ["a cat", "a dog"]).tolist() == [1, 1, 0, 1]
    with pytest.raises(UsageError, match="there are none"):
        novel_captions(captions, [])
    with pytest.raises(UsageError, match="there are none"):
        div_n([], 1)


def test_caption_statistics():
    # bigrams: 2 + 2 + 5, of which "a a" x 5 repeats 4 times
    stats = caption_statistics(["a red dog", "a red dog", "a a a a a a", ""])
    assert stats == {"distinct": 3 / 4, "most_common": 1 / 2, "repeated_bigrams": 4 / 9, "length": 12 / 4}
    with pytest.raises(UsageError, match="no captions"):
        caption_statistics([])


def test_type_token_ratio_by_hand():
    """Two pieces: (a dog a cat) has 3 of 4 words and 3 of 3 bigrams, (a dog a dog) 2 of 4 and 2 of 3; "x" is left out."""
    captions = ["a dog a", "cat", "a dog", "a dog x"]
    assert type_token_ratio(captions, piece=4) == pytest.approx((3 / 4 + 2 / 4) / 2)
    assert type_token_ratio(captions, 2, piece=4) == pytest.approx((3 / 3 + 2 / 3) / 2)
    assert np.isnan(type_token_ratio(captions))


def test_coverage_by_hand():
    assert coverage(["a dog", "a cat"], ["dog", "cat", "cow", "hen"]) == 0.5
    with pytest.raises(UsageError, match="there are none"):
        coverage(["a"], [])


def test_pieces_are_full():
    assert in_pieces(["a", "b", "c"], piece=2) == [["a", "b"]]
    assert in_pieces(["a"], piece=2) == [["a"]]
