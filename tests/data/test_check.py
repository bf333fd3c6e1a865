"""Looking through data: what is counted, what is called a duplicate, and that nothing depends on how it is read."""

from __future__ import annotations

import io
import json
import logging
import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from damaged_images import encode, picture
from tellapart.cli.main import main
from tellapart.data.check import check, usable
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ArrayImage, EncodedImage, ImageFile, PackedImage
from tellapart.data.inspection import InspectionCache, inspect, inspect_all
from tellapart.data.phash import CORRELATION, DISTANCE, Signature, near_duplicates, signature
from tellapart.errors import UsageError
from tellapart.files import cache_dir


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))


def pictures(count: int) -> list[Image.Image]:
    return [picture(np.random.default_rng(i), (96, 80)) for i in range(count)]


def files(folder: Path, images, format: str = "PNG") -> list[ImageFile]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:03}.{format.lower()}" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        path.write_bytes(encode(image, format))
    return [ImageFile(path) for path in paths]


def frequencies(greys: np.ndarray) -> np.ndarray:
    """The lowest 8 x 8 frequencies without constants, written out."""
    found = np.zeros((8, 8))
    for v in range(1, 9):
        for u in range(1, 9):
            for y in range(32):
                for x in range(32):
                    wave = np.cos(np.pi * v * (2 * y + 1) / 64) * np.cos(np.pi * u * (2 * x + 1) / 64)
                    found[v - 1, u - 1] += greys[y, x] * wave
    return found


def test_the_hash_is_the_signs_of_the_lowest_frequencies():
    image = picture(np.random.default_rng(3), (32, 32)).convert("L")
    greys = np.asarray(image, dtype=float)
    bits = "".join("1" if value > 16 else "0" for value in frequencies(greys).ravel())
    found = signature(image.convert("RGB"))
    assert found is not None
    assert found.hash == int(bits, 2)
    assert found.thumbnail[0] == round(greys[:2, :2].mean())
    assert found.thumbnail[17] == round(greys[2:4, 2:4].mean())


def test_one_colour_has_no_signature():
    assert signature(Image.new("RGB", (50, 50), "red")) is None
    assert near_duplicates([signature(Image.new("RGB", (50, 50), colour)) for colour in ("red", "white")]) == []


def same(one: Signature, other: Signature) -> bool:
    """The rule, for two pictures."""
    if (one.hash ^ other.hash).bit_count() > DISTANCE:
        return False
    thumbnails = [np.frombuffer(s.thumbnail, np.uint8).astype(float) for s in (one, other)]
    return bool(np.corrcoef(*thumbnails)[0, 1] >= CORRELATION)


def test_the_search_finds_what_comparing_all_finds():
    rng = np.random.default_rng(0)
    looks = [rng.bytes(256) for _ in range(6)]
    found: list[Signature | None] = []
    for _ in range(240):  # clusters of hashes around few centres, some of them with another look
        centre = int(rng.integers(6))
        flips = sum(1 << int(bit) for bit in rng.choice(64, int(rng.integers(0, 9)), replace=False))
        found.append(
            Signature((centre * 0x0F1E2D3C4B5A6978 % 2**64) ^ flips, looks[int(rng.integers(2)) * 3 + centre % 3])
        )
    found.insert(100, None)
    group = list(range(len(found)))
    for i, j in combinations(range(len(found)), 2):
        one, other = found[i], found[j]
        if one is not None and other is not None and same(one, other):
            group = [group[i] if g == group[j] else g for g in group]
    slow = {tuple(i for i, g in enumerate(group) if g == label) for label in set(group)}
    assert {tuple(g) for g in near_duplicates(found)} == {g for g in slow if len(g) > 1}
    assert 3 < len(near_duplicates(found)) < 60


def test_copies_are_found_behind_another_picture_of_their_hash():
    """They were compared with the first picture of the hash alone."""
    one, other = (np.random.default_rng(seed).bytes(256) for seed in range(2))
    known = [Signature(5, one), Signature(5, other), Signature(6, one), Signature(5, other), Signature(7, other)]
    assert near_duplicates(known) == [[0, 2], [1, 3, 4]]


def test_many_equal_pictures_are_one_group():
    look = signature(pictures(1)[0])
    assert near_duplicates([look] * 20_000) == [list(range(20_000))]


@pytest.fixture(scope="session")
def photos(shared_data) -> list[Image.Image]:
    paths = sorted([*shared_data.glob("coco-mini/*/*.jpg"), *shared_data.glob("unlabelled/*.jpg")])
    return [Image.open(path).convert("RGB") for path in paths]


def test_no_two_different_photos_are_duplicates(photos):
    signatures = [signature(photo) for photo in photos]
    assert len(photos) > 250
    assert None not in signatures
    assert near_duplicates(signatures) == []
    closest = min((a.hash ^ b.hash).bit_count() for a, b in combinations(signatures, 2))
    assert closest >= DISTANCE + 6  # measured: 16


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    return Image.open(io.BytesIO(encode(image, "JPEG", quality=quality))).convert("RGB")


COPIES = {
    "half the size": (lambda i: i.resize((i.width // 2, i.height // 2)), 0),
    "a third of the size, worse filter": (
        lambda i: i.resize((i.width // 3, i.height // 3), Image.Resampling.BILINEAR),
        0,
    ),
    "squeezed": (lambda i: i.resize((224, 224)), 0),
    "JPEG of quality 20": (lambda i: jpeg(i, 20), 0),
    "darker": (lambda i: ImageEnhance.Brightness(i).enhance(0.7), 0),
    "brighter": (lambda i: ImageEnhance.Brightness(i).enhance(1.2), 1),
    "all at once": (
        lambda i: ImageEnhance.Brightness(jpeg(i.resize((i.width // 2, i.height // 2)), 40)).enhance(1.15),
        1,
    ),
}
"""What was done to a copy, and how many of all may escape."""


@pytest.mark.parametrize("kind", COPIES)
def test_copies_of_photos_are_found(photos, kind):
    alter, may_escape = COPIES[kind]
    some = photos[::3]
    groups = near_duplicates([signature(photo) for photo in [*some, *map(alter, some)]])
    assert all(len(group) == 2 and group[1] == group[0] + len(some) for group in groups)
    assert len(groups) >= len(some) - may_escape


def test_inspections_are_the_same_in_any_number_of_processes(tmp_path):
    images = files(tmp_path, pictures(50))
    images[7].path.write_bytes(b"")
    alone = [inspect(image) for image in images]
    for workers in (0, 1, 3):
        assert inspect_all(images, num_workers=workers) == alone
        os.environ["TELLAPART_CACHE"] = str(tmp_path / f"cache{workers}")
    with pytest.raises(UsageError, match="num_workers is -1"):
        inspect_all(images, num_workers=-1)


def test_the_second_time_only_what_is_new_is_decoded(tmp_path, monkeypatch):
    images = files(tmp_path / "a", pictures(20))
    images[3].path.write_bytes(b"broken")
    first = inspect_all(images, num_workers=0)
    asked = []
    monkeypatch.setattr("tellapart.data.inspection.inspect", lambda image: asked.append(image) or inspect(image))
    assert inspect_all(images, num_workers=0) == first
    assert asked == [images[3]]  # broken ones may have been repaired
    asked.clear()
    images[5].path.write_bytes(encode(pictures(30)[29], "PNG"))
    changed = inspect_all(images[4:], num_workers=0)  # another selection of the same folder
    assert asked == [images[5]]
    assert changed[1] != first[5]
    assert changed[2:] == first[6:]


def test_images_that_are_no_files_are_remembered_by_content(tmp_path, monkeypatch):
    archive = tmp_path / "shard.tar"
    one, other = (encode(image, "PNG") for image in pictures(2))
    archive.write_bytes(one + other)
    packed = [PackedImage(archive, "a.png", 0, len(one)), PackedImage(archive, "b.png", len(one), len(other))]
    first = inspect_all(packed, num_workers=0)
    bare = inspect_all([EncodedImage(other, "c.png")], num_workers=0)
    assert bare[0] == first[1] != first[0]
    monkeypatch.setattr("tellapart.data.inspection.inspect", None)
    assert inspect_all([EncodedImage(other, "d.png")], num_workers=0) == bare  # known, under another name
    assert inspect_all(packed, num_workers=0) == first
    archive.write_bytes(other + one + b" ")
    assert InspectionCache.of(packed).load() == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"x": 1}', "null"])
def test_a_damaged_cache_is_made_again(tmp_path, content):
    images = files(tmp_path / "a", pictures(2))
    first = inspect_all(images, num_workers=0)
    (remembered,) = (cache_dir() / "images").iterdir()
    remembered.write_text(content)
    assert inspect_all(images, num_workers=0) == first
    assert len(json.loads(remembered.read_text())) >= 2


class Killer:
    """An image whose decoder takes the process with it."""

    name = "killer.jpg"

    def read(self) -> bytes:
        os._exit(1)

    def fingerprint(self) -> str:
        return "killer"


def test_an_image_that_kills_its_decoder_is_broken(tmp_path):
    images = files(tmp_path, pictures(40))
    found = inspect_all([*images[:25], Killer(), *images[25:]], num_workers=2)
    assert [i for i, what in enumerate(found) if what.broken is not None] == [25]
    assert "killer.jpg is not a readable image (the process that decoded it crashed" in str(found[25].broken)


def test_an_interrupted_inspection_keeps_what_it_has(tmp_path, monkeypatch):
    images = files(tmp_path / "a", pictures(6))

    def interrupted(image):
        if image == images[4]:
            raise KeyboardInterrupt
        return inspect(image)

    monkeypatch.setattr("tellapart.data.inspection.inspect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        inspect_all(images, num_workers=0)
    assert sorted(InspectionCache.of(images).load()) == [0, 1, 2, 3]


def test_usable_leaves_out_what_is_broken(tmp_path, caplog):
    images = files(tmp_path, pictures(6))
    images[1].path.write_bytes(b"<html>")
    images[4].path.unlink()
    data = CaptionDataset([Example(f"i{i}", image, (f"c{i}",)) for i, image in enumerate(images)], name="tiny")
    with caplog.at_level(logging.WARNING):
        kept, skipped = usable(data, num_workers=0)
    assert kept.ids == ["i0", "i2", "i3", "i5"]
    assert kept.references["i5"] == ["c5"]
    assert [name for name, _ in skipped] == ["i1", "i4"]
    assert "it is HTML" in skipped[0][1]
    assert "does not exist" in skipped[1][1]
    assert [record.message for record in caplog.records] == [f"skipped: {reason}" for _, reason in skipped]
    again, none = usable(kept, num_workers=0)
    assert again is kept
    assert none == []
    with pytest.raises(UsageError, match=r"^none of the 1 images of tiny can be read: .*HTML"):
        usable(data[1:2], num_workers=0)


def test_images_in_memory_need_no_reading():
    data = CaptionDataset([Example("a", ArrayImage(np.zeros((2, 2, 3), np.uint8)))], name="world")
    assert usable(data) == (data, [])
    assert not any(cache_dir().iterdir())


def test_counts(tmp_path):
    images = files(tmp_path, pictures(5))
    images[4].path.write_bytes(b"")
    captions = [("a b c", "d"), ("", "e f"), (" \n",), (), ("a b c d e",)]
    report = check({"train": [Example(str(i), image, captions[i]) for i, image in enumerate(images)]}, num_workers=0)
    found = report.splits["train"]
    assert (found.images, found.captions, found.without_captions, found.empty_captions) == (5, 4, 2, 2)
    spread = found.captions_per_image
    assert (spread.least, spread.mean, spread.most) == (1, 4 / 3, 2)
    spread = found.words_per_caption
    assert (spread.least, spread.mean, spread.most) == (1, 11 / 4, 5)
    assert [(image.id, image.name) for image in found.broken] == [("4", str(images[4].path))]
    assert report.groups == ()
    assert not report.clean


def test_duplicates_within_and_across_splits(tmp_path):
    base = pictures(6)
    train = files(tmp_path / "train", [base[0], base[1], base[2], base[0], base[0].resize((48, 40)), base[5]])
    val = files(tmp_path / "val", [base[3], base[1], ImageEnhance.Brightness(base[2]).enhance(0.8)])
    rows = {
        name: [Example(f"{name}{i}", image, ("a caption",)) for i, image in enumerate(images)]
        for name, images in {"train": train, "val": val}.items()
    }
    report = check(rows, num_workers=0)
    groups = {(group.exact, tuple(member.id for member in group.members)) for group in report.groups}
    assert groups == {
        (True, ("train0", "train3")),
        (False, ("train0", "train4")),
        (True, ("train1", "val1")),
        (False, ("train2", "val2")),
    }
    assert {tuple(member.id for member in group.members) for group in report.leaks} == {
        ("train1", "val1"),
        ("train2", "val2"),
    }
    assert (report.splits["train"].exact_duplicates, report.splits["train"].near_duplicates) == (1, 1)
    assert (report.splits["val"].exact_duplicates, report.splits["val"].near_duplicates) == (0, 0)
    assert not report.clean
    assert check({"train": rows["train"]}, num_workers=0).clean  # repeats within a split are told, but no fault


def test_an_id_named_twice_is_a_fault(tmp_path):
    one, other = files(tmp_path, pictures(2))
    report = check({"train": [Example("a", one, ("x",)), Example("a", other, ("y",))]}, num_workers=0)
    assert report.splits["train"].repeated_ids == ("a",)
    assert not report.clean


def test_the_cache_does_not_depend_on_which_process_is_done_first(tmp_path):
    images = files(tmp_path / "a", pictures(3))
    cache, contents = InspectionCache.of(images), []
    for order in ((0, 1, 2), (2, 0, 1)):
        for i in order:
            cache.add({i: inspect(images[i])})
        contents.append(cache.path.read_bytes())
        cache.path.unlink()
    assert contents[0] == contents[1]


def test_options_that_change_nothing_are_refused(tmp_path, capsys):
    files(tmp_path, pictures(1))
    (tmp_path / "000.txt").write_text("a dog")
    (tmp_path / "ann.json").write_text(json.dumps({"images": [{"id": 1, "file_name": "000.png"}], "annotations": []}))
    for words, said in (
        ([str(tmp_path), "--caption_column", "text"], "is not a table and has no column 'text': leave the column out."),
        ([str(tmp_path), "--image_column", "photo"], "is not a table and has no column 'photo': leave the column out."),
        (
            [str(tmp_path / "ann.json"), "--caption_extension", ".cap"],
            "has no .cap files next to images: correct caption_extension",
        ),
        ([str(tmp_path), "--images", str(tmp_path)], "holds its images and takes none from"),
        (["world", "--id_column", "id"], "the built-in images take no id_column: leave it out."),
    ):
        assert main(["data", "check", *words, "--num_workers", "0"]) == 2
        assert said in capsys.readouterr().err


def test_json_has_every_name_as_it_is(tmp_path, capsys):
    name = "a\x7f\u202eb.jpg"
    (tmp_path / name).write_bytes(b"no picture")
    files(tmp_path, pictures(1))
    assert main(["data", "check", str(tmp_path), "--num_workers", "0", "--json", "--format", "unlabelled"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert name in json.loads(out)["splits"]["train"]["broken"][0]["id"]


def test_what_is_checked_is_not_replaced(tmp_path, capsys):
    files(tmp_path, pictures(1))
    table, report = tmp_path / "photos.csv", tmp_path / "check.json"
    table.write_text("file_name,caption\n000.png,a dog\n")
    report.write_text(json.dumps([{"image": "000.png", "caption": "a dog"}]))
    for given, option, to, says in (
        (table, "--page", table, "photos.csv is the input, which would be lost: name another file."),
        (table, "--page", tmp_path / "page.csv", "the page is HTML: give a name that ends in .html."),
        (report, "--output_dir", tmp_path, "check.json is the input, which would be lost: name another folder."),
    ):
        before = given.read_bytes()
        assert main(["data", "check", str(given), option, str(to), "--num_workers", "0"]) == 2
        assert says in capsys.readouterr().err
        assert given.read_bytes() == before
