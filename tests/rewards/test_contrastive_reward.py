"""The contrastive reward as a function of cosines: slow sums, limits, repeats."""

import hashlib
import math

import pytest
import torch

from tellapart.rewards.contrastive import Candidates, combined, contrast, image_keys, text_keys


def slow(row: list[float], own: int, temperature: float) -> float:
    others = math.fsum(math.exp(value / temperature) for place, value in enumerate(row) if place != own)
    return row[own] - temperature * math.log(others)


def cosines(rows: int, columns: int) -> torch.Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows), dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize("temperature", [0.05, 0.3, 1.0])
def test_it_leaves_out_the_one_entry(temperature):
    values, own = cosines(6, 5), torch.tensor([0, 4, 2, 2, 1, 3])
    expected = [slow(row, i, temperature) for row, i in zip(values.tolist(), own.tolist(), strict=True)]
    assert contrast(values, own, temperature=temperature).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_finite_where_exponentials_are_not(dtype):
    values = torch.tensor([[0.95, 0.1, -1.0], [-1.0, 1.0, 0.99]], dtype=dtype)
    found = contrast(values, torch.tensor([0, 0]), temperature=0.001)
    # as the temperature falls: own minus the highest other
    assert found.tolist() == pytest.approx([0.85, -2.0], abs=1e-6)


def test_the_clamp_bounds_the_log_ratio_and_only_from_above():
    values, own = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([0, 0])
    free = contrast(values, own, temperature=0.01)
    clamped = contrast(values, own, temperature=0.01, clamp=16)
    assert free.tolist() == pytest.approx([0.8, -0.8])
    assert clamped.tolist() == pytest.approx([0.16, -0.8])


def test_one_candidate_is_refused_and_no_caption_is_not():
    with pytest.raises(ValueError, match="at least two"):
        contrast(torch.ones(2, 1), torch.zeros(2, dtype=torch.long), temperature=0.1)
    assert contrast(torch.ones(0, 1), torch.zeros(0, dtype=torch.long), temperature=0.1).shape == (0,)


def test_half_is_the_mean_sum_the_sum_and_one_direction_stays_whole():
    parts = {"i2t": torch.tensor([0.2]), "t2i": torch.tensor([0.6])}
    assert float(sum(combined(parts, "half").values())) == pytest.approx(0.4)
    assert float(sum(combined(parts, "sum").values())) == pytest.approx(0.8)
    for combine in ("half", "sum"):
        for alone in ("i2t", "t2i"):
            assert combined({alone: parts[alone]}, combine) == {alone: parts[alone]}


def test_keys_tell_ids_and_texts_apart_and_are_the_same_everywhere():
    assert image_keys(["a", "b", "a"]).tolist()[0] == image_keys(["a"]).tolist()[0]
    assert len(set(image_keys(["a", "b", "ab"]).tolist())) == 3
    keys = text_keys(["a", "a", "b", "a"], ["x", "y", "x", "x"]).tolist()
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3
    digest = hashlib.blake2b(b"image-1", digest_size=8).digest()  # no seed of a process's own
    assert image_keys(["image-1"]).tolist() == [int.from_bytes(digest, "little") >> 1]


def distinct(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_equal_pictures_are_joined_by_id_and_by_content():
    a, b, c = [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]
    images = distinct(a, b, a, c, a)
    keys = image_keys(["a", "b", "a", "c", "copy of a"])
    texts = distinct([0.8, 0.6], [0.6, 0.8])
    joined = Candidates.of(texts, text_keys(["a", "b"], ["t", "u"]), images, keys)
    assert len(joined.images) == 3
    apart = Candidates.of(texts, text_keys(["a", "b"], ["t", "u"]), distinct(a, b, c), image_keys(["a", "b", "c"]))
    ask = (texts, text_keys(["a", "b"], ["t", "u"]), image_keys(["a", "b"]))
    for name, values in joined.rewards(*ask, temperature=0.01).items():
        torch.testing.assert_close(values, apart.rewards(*ask, temperature=0.01)[name])
        (one,) = joined.rewards(*ask, temperature=0.01, direction=name).items()
        assert one[0] == name
        assert torch.equal(one[1], values)


def test_an_id_is_one_picture_though_its_embeddings_differ_in_the_last_bits():
    """A batch image embedded from its pixels, and again from the cache as somebody's neighbour."""
    images = distinct([1.0, 0.0], [0.0, 1.0], [1.0, 1e-9])
    keys = image_keys(["a", "b", "a"])
    texts, of_texts = distinct([0.8, 0.6]), text_keys(["a"], ["t"])
    both = Candidates.of(distinct([0.8, 0.6], [0.0, 1.0]), text_keys(["a", "b"], ["t", "u"]), images, keys)
    assert len(both.images) == 2
    found = both.rewards(texts, of_texts, image_keys(["a"]), temperature=0.01)["t2i"]
    assert found.tolist() == pytest.approx([0.2])


def test_equal_strings_of_one_image_stay_rivals():
    # the greedy caption repeats the drawn one: it is the hardest rival, so the reward is 0 in the limit
    texts = distinct([1.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    keys = text_keys(["a", "a", "b"], ["same", "same", "other"])
    candidates = Candidates.of(texts, keys, distinct([1.0, 0.0], [0.0, 1.0]), image_keys(["a", "b"]))
    found = candidates.rewards(texts, keys, image_keys(["a", "a", "b"]), temperature=1e-3)
    assert found["i2t"].tolist() == pytest.approx([0.0, 0.0, 1 - 1e-3 * math.log(2)], abs=1e-9)
    assert found["t2i"].tolist() == pytest.approx([1.0, 1.0, 1.0], abs=1e-9)


def test_autocast_does_not_round_the_cosines():
    generator = torch.Generator().manual_seed(0)
    texts, images = (torch.nn.functional.normalize(torch.randn(8, 16, generator=generator)) for _ in range(2))
    ids = [str(i) for i in range(8)]
    ask = (texts, text_keys(ids, ids), image_keys(ids))
    candidates = Candidates.of(texts, text_keys(ids, ids), images, image_keys(ids))
    exact = candidates.rewards(*ask, temperature=0.01)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = candidates.rewards(*ask, temperature=0.01)
    for name, values in exact.items():
        assert torch.equal(values, rounded[name])
        assert not values.requires_grad
