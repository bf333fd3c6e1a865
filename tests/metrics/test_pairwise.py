import random

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
    np.testing.assert_allclose(bleu_distances(captions)[0], expected["d_sym"], rtol=0, atol=tolerance)


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
