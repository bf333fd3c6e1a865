import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

from given import vector
from tellapart.metrics.retrieval import hard_gallery, nearest_images, ranks, retrieval_metrics, retrieval_ranks


def test_retrieval_metrics_vector():
    inputs, expected, tolerance = vector("retrieval_metrics")
    similarity = np.array(inputs["sim_text_by_image"])
    for direction, matrix in (("T2I", similarity), ("I2T", similarity.T)):
        found = ranks(matrix)
        assert found.tolist() == expected[direction].pop("rank")
        assert retrieval_metrics(found, ks=inputs["ks"]) == pytest.approx(expected[direction], abs=tolerance)


def test_retrieval_ties_vector():
    inputs, expected, _ = vector("retrieval_ties")
    found = ranks(np.array(inputs["sim_text_by_image"]))
    assert found.tolist() == expected["T2I_rank"]
    assert retrieval_metrics(found)["R@1"] == expected["R1"]


@settings(max_examples=40, deadline=None)
@forall(st.integers(1, 30), st.integers(1, 7), st.integers(0, 10**6))
def test_blocked_ranks_equal_a_count_in_plain_python(count, block, seed):
    rng = np.random.default_rng(seed)
    # few distinct rows: equal captions and equal pictures must tie exactly
    texts, images = (rng.standard_normal((5, 4))[rng.integers(0, 5, count)] for _ in range(2))
    similarity = [[float(np.dot(text, image).round(9)) for image in images] for text in texts]
    t2i, i2t = retrieval_ranks(texts, images, block=block)
    for i in range(count):
        others = [j for j in range(count) if j != i]
        assert t2i[i] == 1 + sum(similarity[i][j] >= similarity[i][i] for j in others)
        assert i2t[i] == 1 + sum(similarity[j][i] >= similarity[i][i] for j in others)


def test_one_caption_for_all_images_is_last_everywhere():
    rng = np.random.default_rng(0)
    texts = np.repeat(rng.standard_normal((1, 64)).astype(np.float32), 700, axis=0)
    texts /= np.linalg.norm(texts[0])
    images = rng.standard_normal((700, 64)).astype(np.float32)
    _, i2t = retrieval_ranks(texts, images)
    assert (i2t == 700).all()


def test_numbers_that_are_not_numbers_retrieve_nothing():
    texts, images = np.eye(3), np.eye(3)
    assert retrieval_ranks(texts, images)[0].tolist() == [1, 1, 1]
    texts[1] = np.nan
    t2i, _ = retrieval_ranks(texts, images)
    assert t2i.tolist() == [1, 3, 1]
    assert ranks(texts @ images).tolist() == [1, 3, 1]
    assert ranks((texts @ images).T).tolist() == [2, 3, 2]


def test_hard_galleries_are_the_nearest_other_pictures():
    """Against a plain loop, with a copy of a picture under another id."""
    draw = np.random.default_rng(5)
    images = draw.normal(size=(40, 6))
    images[7] = images[3]
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    found = nearest_images(images, 4, block=7)
    for i in range(40):
        others = [j for j in range(40) if j != i and not np.allclose(images[i], images[j])]
        assert found[i].tolist() == sorted(others, key=lambda j: -float(images[i] @ images[j]))[:4]
    assert nearest_images(images[:3], 5)[0].tolist()[2:] == [-1, -1, -1]


def test_copies_are_left_out_though_unit_norms_are_rounded():
    images = np.random.default_rng(0).normal(size=(30, 64)).astype(np.float32)
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    images[7] = 0  # an image without features
    found = nearest_images(np.concatenate([images, images]), 29)
    assert not any(row % 30 in others % 30 for row, others in enumerate(found) if row % 30 != 7)


def test_a_caption_is_told_which_pictures_it_does_not_tell_apart():
    images = np.eye(4)
    texts = np.array([[1.0, 0, 0, 0], [0.8, 0.6, 0, 0], [0, 0, 0.6, 0.8], [0.5, 0.5, 0.5, 0.5]])
    neighbours = np.array([[1, 2], [0, 2], [3, -1], [0, 1]])
    ranks, confused = hard_gallery(texts, images, neighbours)
    assert ranks.tolist() == [1, 2, 2, 3]  # the last fits all alike: ties count against it
    assert confused == [[], [0], [3], [0, 1]]
