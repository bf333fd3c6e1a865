"""Mined neighbours against a slow search in plain Python, and what may not be among them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow.parquet
import pytest
import torch

from tellapart.errors import UsageError
from tellapart.listeners import mining
from tellapart.listeners.mining import Neighbours, mine
from tellapart.nearest import nearest_rows


@dataclass(frozen=True)
class Picture:
    content: str

    def open(self):
        raise AssertionError("mining does not look at pictures")

    def fingerprint(self):
        return self.content


@dataclass(frozen=True)
class Image:
    id: str
    image: Picture


class Vectors:
    """A listener whose embeddings are given, by content."""

    def __init__(self, vectors, name="vectors"):
        self.vectors, self.name, self.known = vectors, name, {}

    def fingerprint(self):
        return self.name

    def cache_images(self, dataset):
        self.known |= {example.id: self.vectors[example.image.fingerprint()] for example in dataset}

    def encode_ids(self, ids):
        return torch.tensor(np.stack([self.known[name] for name in ids]))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))


def unit(rows):
    rows = np.asarray(rows, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def images_of(contents, prefix="image"):
    return [Image(f"{prefix}-{i}", Picture(content)) for i, content in enumerate(contents)]


def odd_collection(seed, size=90, width=6):
    """Images of which some share their content, some nearly their embedding, and some are told to be the same."""
    draw = np.random.default_rng(seed)
    vectors = unit(draw.standard_normal((size, width)))
    vectors[10:25] = unit(vectors[5] + 1e-4 * draw.standard_normal((15, width)))  # more copies than the margin holds
    vectors[40] = vectors[70]
    vectors[50] = unit([vectors[2] + 0.002])[0]
    contents = [f"content-{i}" for i in range(size)]
    for copy, original in ((60, 3), (61, 3), (30, 80)):
        contents[copy] = contents[original]
    images = images_of(contents)
    draw.shuffle(images)
    told = [[images[1].id, images[4].id], [images[4].id, images[33].id, images[34].id]]
    return Vectors({f"content-{i}": vectors[i] for i in range(size)}), images, told


def slow(listener, asked, gallery, k, told, same_above):
    """Pictures by plain comparison of every pair, and a plain sort of their first images."""
    items = list({image.id: image for image in [*gallery, *asked]}.values())
    place = {image.id: i for i, image in enumerate(items)}
    vectors = [listener.vectors[image.image.content].astype(np.float64) for image in items]
    picture = list(range(len(items)))

    def same(i, j):
        of = items[i].image.content == items[j].image.content
        return of or float(vectors[i] @ vectors[j]) >= same_above

    pairs = [(i, j) for i in range(len(items)) for j in range(i) if same(i, j)]
    for i, j in pairs + [(place[a], place[b]) for group in told for a, b in pairwise(group)]:
        keep, drop = sorted((picture[i], picture[j]))
        picture = [keep if label == drop else label for label in picture]
    firsts = [i for i in range(len(gallery)) if picture[i] == i]
    result = {}
    for image in asked:
        i = place[image.id]
        others = [j for j in firsts if j != picture[i]]
        others.sort(key=lambda j: (-float(vectors[i] @ vectors[j]), j))
        result[image.id] = [items[j].id for j in others[:k]]
    return result


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("split", [None, 60])
def test_neighbours_are_those_of_a_slow_search(seed, split):
    listener, images, told = odd_collection(seed)
    asked, gallery = (images, images) if split is None else (images[split - 10 :], images[:split])
    found = mine(listener, asked, 4, gallery=None if split is None else gallery, same=told)
    wanted = slow(listener, asked, gallery, 4, told, mining.SAME_ABOVE)
    assert found.ids == [image.id for image in asked]
    assert dict(zip(found.ids, found.of(found.ids), strict=True)) == wanted
    for name, near, values in zip(found.ids, found.of(found.ids), found.similarities(found.ids), strict=True):
        cosines = [float(listener.known[name] @ listener.known[other]) for other in near]
        np.testing.assert_allclose(values, cosines, atol=1e-6)


def test_no_copy_is_a_neighbour_and_copies_are_counted():
    listener, images, told = odd_collection(0)
    found = mine(listener, images, 4, same=told)
    content = {image.id: image.image.content for image in images}
    for name, near in zip(found.ids, found.of(found.ids), strict=True):
        pictures = [content[name], *(content[other] for other in near)]
        assert len(set(pictures)) == 5
    assert (found.about["same_content"], found.about["same_embedding"]) == (3, 15 + 1 + 1)
    assert found.about["pictures"] == 90 - 3 - 17 - found.about["told_same"]


def test_equal_similarities_come_in_the_order_of_the_images():
    """Corners of a cross: from each, four others are equally far."""
    corners = np.concatenate([np.eye(3), -np.eye(3)]).astype(np.float32)
    found = mine(Vectors({str(i): row for i, row in enumerate(corners)}), images_of("012345"), 5)
    names = [[int(other.split("-")[1]) for other in near] for near in found.of(found.ids)]
    assert names[0] == [1, 2, 4, 5, 3]
    assert names[4] == [0, 2, 3, 5, 1]


def test_hundreds_of_equal_images_are_one_picture():
    contents = [str(i) for i in range(503)]
    vectors = dict.fromkeys(contents, np.float32([1, 0, 0]))
    vectors |= {"7": unit([[1, 1, 0]])[0], "9": unit([[0, 1, 1]])[0], "11": np.float32([0, 0, 1])}
    found = mine(Vectors(vectors), images_of(contents), 3)
    assert found.of(["image-0", "image-502", "image-7"]) == [
        ["image-7", "image-9", "image-11"],
        ["image-7", "image-9", "image-11"],
        ["image-0", "image-9", "image-11"],
    ]


def counted(monkeypatch):
    """A list that grows with each search."""
    searches, before = [], mining.distinct_neighbours

    def search(*given, **options):
        searches.append(options)
        return before(*given, **options)

    monkeypatch.setattr(mining, "distinct_neighbours", search)
    return searches


def test_a_second_call_reads_what_the_first_found(monkeypatch, tmp_path):
    searches = counted(monkeypatch)
    listener, images, _ = odd_collection(0)
    first = mine(listener, images, 4)
    fresh = Vectors(listener.vectors)
    again = mine(fresh, images, 4)
    assert len(searches) == 1
    assert again.of(again.ids) == first.of(first.ids)
    assert again.about == first.about
    assert again.path == first.path
    assert len(fresh.encode_ids(again.of(["image-0"])[0])) == 4  # it knows the images, as after a search


@pytest.mark.parametrize("what", ["k", "listener", "content", "order", "same", "same_above", "gallery"])
def test_whatever_decides_the_neighbours_is_part_of_the_key(what, monkeypatch):
    searches = counted(monkeypatch)
    listener, images, told = odd_collection(0)
    mine(listener, images, 4)
    changed = {
        "k": lambda: mine(listener, images, 3),
        "listener": lambda: mine(Vectors(listener.vectors, "another"), images, 4),
        "content": lambda: mine(listener, [Image(images[0].id, images[1].image), *images[1:]], 4),
        "order": lambda: mine(listener, images[::-1], 4),
        "same": lambda: mine(listener, images, 4, same=told),
        "same_above": lambda: mine(listener, images, 4, same_above=0.9),
        "gallery": lambda: mine(listener, images, 4, gallery=images[:50]),
    }
    changed[what]()
    assert len(searches) == 2


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    """One bit of the similarities, or of whatever lies there."""
    return data[:600] + bytes([data[600] ^ 4]) + data[601:]


@pytest.mark.parametrize("damage", [cut, flipped, lambda data: b"", lambda data: b"hello"])
def test_a_damaged_file_is_searched_again(damage, monkeypatch):
    searches = counted(monkeypatch)
    listener, images, _ = odd_collection(0)
    first = mine(listener, images, 4)
    whole = first.path.read_bytes()
    first.path.write_bytes(damage(whole))
    again = mine(listener, images, 4)
    assert len(searches) == 2
    assert again.of(again.ids) == first.of(first.ids)
    assert first.path.read_bytes() == whole


def test_a_flipped_bit_never_gives_other_neighbours(tmp_path):
    listener, images, _ = odd_collection(0)
    found = mine(listener, images, 4)
    whole, path = found.path.read_bytes(), tmp_path / "flipped.parquet"
    for place in range(0, len(whole), 13):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            loaded = Neighbours.load(path)
            assert loaded.of(loaded.ids) == found.of(found.ids)
            np.testing.assert_array_equal(loaded.similarities(loaded.ids), found.similarities(found.ids))
        except UsageError:
            continue


def test_the_file_is_plain_parquet(tmp_path):
    listener, images, _ = odd_collection(0)
    found = mine(listener, images, 4)
    found.save(str(tmp_path / "near.parquet"))  # a text, as on the page
    assert Neighbours.load(str(tmp_path / "near.parquet")).ids == found.ids
    rows = pyarrow.parquet.read_table(tmp_path / "near.parquet").to_pylist()
    assert [row["id"] for row in rows] == [image.id for image in images]
    assert [row["neighbours"] for row in rows] == found.of(found.ids)
    np.testing.assert_array_equal([row["similarities"] for row in rows], found.similarities(found.ids))
    loaded = Neighbours.load(tmp_path / "near.parquet")
    assert (loaded.ids, loaded.k, loaded.about) == (found.ids, 4, found.about)
    assert loaded.of(["image-9", "image-3"]) == found.of(["image-9", "image-3"])


def test_a_table_of_something_else_is_no_file_of_neighbours(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"id": ["a"], "caption": ["b"]}), tmp_path / "captions.parquet")
    with pytest.raises(UsageError, match=r"captions.parquet is not a file of neighbours"):
        Neighbours.load(tmp_path / "captions.parquet")
    with pytest.raises(UsageError, match="does not exist"):
        Neighbours.load(tmp_path / "none.parquet")


def test_fewer_pictures_than_asked_for_may_all_be_taken(monkeypatch):
    """Five images of four pictures: each has three others; who does not ask for fewer is refused, whatever lies on disk."""
    searches = counted(monkeypatch)
    vectors = unit([[1, 0], [1, 0.1], [1, 0.5], [1, 0.9]])
    listener, images = Vectors(dict(zip("abcd", vectors, strict=True))), images_of("abcda")
    wanted = [[1, 2, 3], [0, 2, 3], [3, 1, 0], [2, 1, 0], [1, 2, 3]]
    for _ in range(2):
        found = mine(listener, images, 20, fewer=True)
        assert found.k == 3
        assert found.of(found.ids) == [[f"image-{place}" for place in row] for row in wanted]
        assert np.isfinite(found.similarities(found.ids)).all()
    assert len(searches) == 1
    with pytest.raises(UsageError, match="ask for at most 3"):
        mine(listener, images, 20)
    assert mine(listener, images, 2, fewer=True).k == 2


def test_what_cannot_be_mined_is_told():
    listener, images, _ = odd_collection(0)
    few = images[:6]
    with pytest.raises(UsageError, match="ask for at most"):
        mine(listener, few, 20)
    with pytest.raises(UsageError, match="one picture to the listener"):
        mine(Vectors(dict.fromkeys("abc", np.float32([1, 0]))), images_of("abc"), 1)
    with pytest.raises(UsageError, match="k is 0"):
        mine(listener, few, 0)
    with pytest.raises(UsageError, match="engine 'annoy' is none of auto, exact, faiss"):
        mine(listener, few, 1, engine="annoy")
    with pytest.raises(UsageError, match="'image-1' is not finite"):
        mine(Vectors({"a": np.float32([1, 0]), "b": np.float32([np.nan, 0])}), images_of("ab"), 1)
    with pytest.raises(UsageError, match="'image-0' names two different pictures"):
        mine(listener, images_of(["content-0"]), 1, gallery=images_of(["content-1", "content-2"]))
    with pytest.raises(UsageError, match="image 'nobody' has no mined neighbours"):
        mine(listener, few, 1).of(["nobody"])


def test_random_neighbours_are_other_images_and_follow_from_ids_alone():
    names = [f"{n}" for n in range(40)]
    found = Neighbours.random(names, 5)
    rows = dict(zip(names, found.of(names), strict=True))
    assert found.k == 5
    assert all(len({*own}) == 5 and name not in own and {*own} <= {*names} for name, own in rows.items())
    assert rows == dict(zip(names, Neighbours.random(names, 5).of(names), strict=True))
    assert rows != dict(zip(names, Neighbours.random(names, 5, seed=1).of(names), strict=True))
    counts = np.bincount([int(near) for own in rows.values() for near in own], minlength=40)
    assert counts.min() > 0, "every image is drawn"
    assert np.isnan(found.similarities(["3"])).all()
    assert {*Neighbours.random(["a", "b", "c"], 2).of(["b"])[0]} == {"a", "c"}


@pytest.mark.parametrize("k", [0, 3])
def test_more_random_neighbours_than_images_are_refused(k):
    with pytest.raises(UsageError, match=f"k is {k}, but each of 3 images has 2 others"):
        Neighbours.random(["a", "b", "c"], k)


def test_a_search_that_found_too_few_is_completed_exactly():
    """Lists of an approximate search are short where few vectors were probed, which said nothing of what there is."""
    vectors = unit(np.random.default_rng(0).standard_normal((40, 6)))
    alone, none = np.arange(40), (np.zeros(0, np.int64), np.zeros(0, np.int64))

    def exact(queries, gallery, k, own):
        return nearest_rows(queries, gallery, k, own=own)

    def probed(queries, gallery, k, own):
        rows, products = exact(queries, gallery, k, own)
        rows[:, 5:], products[:, 5:] = -1, -np.inf
        return rows, products

    found = [
        mining.distinct_neighbours(vectors, alone, none, 40, 12, same_above=0.9999, search=first, again=exact)
        for first in (exact, probed)
    ]
    assert (found[0].rows >= 0).all()
    np.testing.assert_array_equal(found[1].rows, found[0].rows)


@pytest.mark.parametrize("outside", [False, True])
def test_more_neighbours_than_there_are_take_no_memory(outside):
    """A billion of them asked for a hundred gigabytes."""
    images = images_of([f"content-{i}" for i in range(9)])
    listener = Vectors({f"content-{i}": vector for i, vector in enumerate(unit(np.eye(9) + 0.1))})
    asked, gallery = (images[6:], images[:6]) if outside else (images, images)
    found = mine(listener, asked, 10**9, gallery=gallery, fewer=True)
    assert found.k == (6 if outside else 8)
    assert all(len(set(row)) == found.k for row in found.of(found.ids))
    with pytest.raises(UsageError, match="ask for at most"):
        mine(listener, asked, 10**9, gallery=gallery)


def test_a_gallery_that_names_an_image_twice_is_that_gallery():
    images = images_of([f"content-{i}" for i in range(7)])
    listener = Vectors({f"content-{i}": vector for i, vector in enumerate(unit(np.eye(7) + 0.1))})
    once, twice = (mine(listener, images[3:], 3, gallery=images[:3] * times) for times in (1, 2))
    assert once.of(once.ids) == twice.of(twice.ids)
    assert twice.about["gallery"] == 3


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("a", ["b", "a"], [0.5, 0.4])], "image 'a' is its own neighbour"),
        ([("a", ["b"], [0.5]), ("a", ["c"], [0.5])], "an image has two rows"),
        ([("a", ["b", None], [0.5, 0.4])], "without an id"),
        ([(None, ["b", "c"], [0.5, 0.4])], "without an id"),
        ([("a", ["b", "c"], [0.5]), ("d", ["b", "c"], [0.5, 0.4, 0.3])], "its rows differ in length"),
    ],
)
def test_tables_of_other_tools_are_looked_at(tmp_path, rows, said):
    columns = dict(zip(("id", "neighbours", "similarities"), map(list, zip(*rows, strict=True)), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "n.parquet")
    with pytest.raises(UsageError, match=f"not a file of neighbours .*{said}"):
        Neighbours.load(tmp_path / "n.parquet")


def test_ids_of_tables_may_be_numbers(tmp_path):
    table = pyarrow.table({"id": [1, 2], "neighbours": [[2, 3], [1, 3]], "similarities": [[0.5, 0.4], [0.5, 0.3]]})
    pyarrow.parquet.write_table(table, tmp_path / "n.parquet")
    assert Neighbours.load(tmp_path / "n.parquet").of(["2", "1"]) == [["1", "3"], ["2", "3"]]
