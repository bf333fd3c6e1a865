import random

import numpy as np
import pytest
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from pycocoevalcap.bleu.bleu import Bleu

from given import vector
from tellapart.errors import UsageError
from tellapart.metrics.bleu import bleu, count_matches
from tellapart.metrics.diversity import caption_statistics, div_n, mbleu_corpus, mbleu_sentence, self_bleu


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


def test_bleu_equals_pycocoevalcap():
    candidates = some_captions(50, 4)
    references = [some_captions(random.Random(i).randint(1, 4), 100 + i) for i in range(50)]
    corpus, per_image = Bleu(4).compute_score(
        dict(enumerate(references)), {i: [caption] for i, caption in enumerate(candidates)}, verbose=0
    )
    matches = [count_matches(*pair) for pair in zip(candidates, references, strict=True)]
    assert bleu(matches) == pytest.approx(corpus, abs=1e-12)
    np.testing.assert_allclose([bleu([m]) for m in matches], np.transpose(per_image), rtol=0, atol=1e-12)


def test_sle_distance_bleu34_vector_matrices():
    inputs, expected, tolerance = vector("sle_distance_bleu34")
    captions = inputs["captions"]
    table = np.array([[bleu([count_matches(own, [other])]) for other in captions] for own in captions])
    np.testing.assert_allclose(table[:, :, 2], expected["bleu3"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(table[:, :, 3], expected["bleu4"], rtol=0, atol=tolerance)


def test_caption_statistics():
    # bigrams: 2 + 2 + 5, of which "a a" x 5 repeats 4 times
    stats = caption_statistics(["a red dog", "a red dog", "a a a a a a", ""])
    assert stats == {"distinct": 3 / 4, "most_common": 1 / 2, "repeated_bigrams": 4 / 9, "length": 12 / 4}
    with pytest.raises(UsageError, match="no captions"):
        caption_statistics([])
