import math
import random
from collections import Counter

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu_scorer import BleuScorer

from given import vector
from metrics.captions import odd_captions
from tellapart.errors import UsageError
from tellapart.metrics.pairwise import bleu_distances, pairwise_bleu


def test_sle_distance_vector():
    inputs, expected, tolerance = vector("sle_distance_bleu34")
    captions = [inputs["captions"]]
    for order in (3, 4):
        np.testing.assert_allclose(
            pairwise_bleu(captions, [order])[0, 0], expected[f"bleu{order}"], rtol=0, atol=tolerance
        )
    one_way = (1 - pairwise_bleu(captions, (3, 4))).sum(axis=0)[0]
    np.testing.assert_allclose(one_way, expected["d_asym"], rtol=0, atol=tolerance)
    found = bleu_distances(captions)[0]
    np.testing.assert_allclose(found, expected["d_sym"], rtol=0, atol=tolerance)
    assert found.diagonal().tolist() == [0, 0, 0]


def plain_bleu(said, heard, order):
    """BLEU of the order given or of the words there are, without smoothing."""
    order = max(1, min(order, len(said)))
    product = 1.0
    for n in range(1, order + 1):
        grams, others = ([tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in (said, heard))
        counted, known = Counter(grams), Counter(others)
        product *= sum(min(count, known[gram]) for gram, count in counted.items()) / max(1, len(grams))
    return product ** (1 / order) * min(1.0, math.exp(1 - len(heard) / max(1, len(said))))


def test_captions_of_no_to_four_words_are_as_far_apart_as_their_own_ngrams():
    captions = ["", "dog", "a dog", "a red dog", "a red dog runs", "a red dog runs far", "a cat", ""]
    found = bleu_distances([captions])[0]
    words = [caption.split() for caption in captions]
    for j, one in enumerate(words):
        for k, other in enumerate(words):
            both = [sum(1 - plain_bleu(x, y, n) for n in (3, 4)) for x, y in ((one, other), (other, one))]
            assert found[j, k] == pytest.approx(0 if one == other else sum(both) / 2, abs=1e-3), (one, other)
            assert (found[j, k] == 0) == (one == other)


@pytest.mark.parametrize("words", [0, 1, 2, 3, 4, 9])
def test_equal_captions_are_at_distance_0_whatever_their_length(words):
    """They were at 2.00, 1.99, 0.97 and 0 at one to four words, so that SLE paid short captions."""
    caption = " ".join("abcdefghi"[:words])
    assert not bleu_distances([[caption] * 3]).any()


@pytest.mark.parametrize("samples", [1, 2, 5, 12])
def test_every_pair_equals_pycocoevalcap(samples):
    _, texts = odd_captions(40, samples)
    pool = [text for captions in texts.values() for text in captions]
    rng = random.Random(0)
    drawn = [rng.choices(pool, k=samples) for _ in range(30)]
    found = pairwise_bleu(drawn)
    assert found.shape == (4, 30, samples, samples)
    scorer = BleuScorer(n=4)
    for captions in drawn:
        for one in captions:
            for other in captions:
                scorer += (one, [other])
    wanted = np.reshape(scorer.compute_score(option="closest")[1], found.shape)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_words_ids_and_arrays_are_the_same_to_it():
    texts = [["a dog a dog", "a cat", ""], ["a", "big a dog", "a dog a dog runs"]]
    ids: dict[str, int] = {}
    words = [[text.split() for text in captions] for captions in texts]
    numbers = [[[ids.setdefault(w, 90_000 + len(ids)) for w in row] for row in rows] for rows in words]
    arrays = [[np.array(row, np.int64) for row in rows] for rows in numbers]
    expected = bleu_distances(texts)
    for other in (words, numbers, arrays):
        assert bleu_distances(other).tolist() == expected.tolist()


def test_images_with_different_numbers_of_captions_are_refused():
    with pytest.raises(UsageError, match=r"equally many captions of every image, but found \[1, 2\]"):
        bleu_distances([["a", "b"], ["a"]])
