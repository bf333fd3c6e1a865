"""Images ranked by their similarity to captions: against plain Python, by id and seed, and kept in the cache."""

from __future__ import annotations

import pytest
import torch

from tellapart.errors import UsageError
from tellapart.files import cache_dir
from tellapart.listeners.ranked import RankedImages, rank_images, scaled_ranks

GALLERY = [f"u{i}" for i in range(9)]
REFERENCES = {"a": ["one", "two", "three"], "b": ["four"], "c": ["two", "five"]}


class Table:
    """Random unit vectors by name."""

    def __init__(self) -> None:
        self.known, self.asked = dict[str, torch.Tensor](), 0

    def fingerprint(self) -> str:
        return "table"

    def encode(self, names):
        for name in names:
            generator = torch.Generator().manual_seed(sum(map(ord, name)) * 7919)
            vector = torch.randn(4, generator=generator)
            self.known.setdefault(name, vector / vector.norm())
        return torch.stack([self.known[name] for name in names])

    def encode_texts(self, texts):
        self.asked += 1
        return self.encode(texts)

    encode_ids = encode


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))


def order(table, texts):
    """Gallery ids by the mean of their cosines with the texts, highest first."""

    def mean(image):
        return sum(float(table.known[text] @ table.known[image]) for text in texts) / len(texts)

    return sorted(GALLERY, key=mean, reverse=True)


@pytest.mark.parametrize("ranks", [(1, 9), (3, 5), (2, 2)])
def test_ranks_are_those_of_plain_python(ranks):
    table = Table()
    found = rank_images(table, REFERENCES, GALLERY, ranks)
    for row, texts in zip(found.rows, REFERENCES.values(), strict=True):
        assert [GALLERY[place] for place in row] == order(table, texts)[ranks[0] - 1 : ranks[1]]


def test_what_is_drawn_follows_from_id_and_seed_and_is_within_the_ranks():
    found = rank_images(Table(), REFERENCES, GALLERY, (2, 5))
    allowed = {name: {GALLERY[place] for place in row} for name, row in zip(REFERENCES, found.rows, strict=True)}
    drawn = {name: set() for name in REFERENCES}
    for seed in range(60):
        names = found.draw(["c", "a", "b"], seed)
        assert names == [found.draw([name], seed)[0] for name in ("c", "a", "b")]
        for name, other in zip(("c", "a", "b"), names, strict=True):
            drawn[name].add(other)
    assert drawn == allowed


def test_ranking_is_done_once(caplog):
    table = Table()
    first = rank_images(table, REFERENCES, GALLERY, (2, 5))
    again = rank_images(table, REFERENCES, GALLERY, (2, 5))
    assert table.asked == 1
    assert (first.rows == again.rows).all()
    rank_images(table, REFERENCES, GALLERY, (2, 4))
    rank_images(table, REFERENCES | {"b": ["six"]}, GALLERY, (2, 5))
    assert table.asked == 3
    table.known["u3"], table.known["u7"] = table.known["u7"], table.known["u3"]
    swapped = rank_images(table, REFERENCES, GALLERY, (2, 5))
    assert not (swapped.rows == first.rows).all(), "other pictures of the same ids"
    table.known["u3"], table.known["u7"] = table.known["u7"], table.known["u3"]
    for path in (cache_dir() / "ranked_images").iterdir():
        path.write_bytes(b"damaged")
    assert (rank_images(table, REFERENCES, GALLERY, (2, 5)).rows == first.rows).all()
    assert "is damaged: the images are ranked again" in caplog.text


@pytest.mark.parametrize(
    ("images", "ranks"), [(123_287, (100, 1000)), (61_644, (50, 500)), (6000, (5, 49)), (300, (1, 2)), (1, (1, 1))]
)
def test_the_papers_ranks_are_scaled_to_the_number_of_images(images, ranks):
    assert scaled_ranks(images) == ranks


@pytest.mark.parametrize("ranks", [(0, 3), (4, 3), (2, 10)])
def test_impossible_ranks_are_refused(ranks):
    with pytest.raises(UsageError, match=r"unlabelled\.ranks is .* but there are 9 unlabelled images"):
        rank_images(Table(), REFERENCES, GALLERY, ranks)


def test_every_training_image_needs_a_caption():
    with pytest.raises(UsageError, match="image 'd' has no caption to rank"):
        rank_images(Table(), REFERENCES | {"d": []}, GALLERY, (1, 2))
    with pytest.raises(UsageError, match="image 'z' was not ranked"):
        RankedImages(["a"], GALLERY, rank_images(Table(), REFERENCES, GALLERY, (1, 2)).rows).draw(["z"], 0)
