"""Conversion loses nothing: every format, nasty captions and ids, and real photos, there and back."""

import json
import tempfile
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tellapart.data.convert import convert
from tellapart.data.dataset import Example
from tellapart.data.formats import FORMATS
from tellapart.data.formats.base import Place
from tellapart.data.formats.names import Format
from tellapart.data.images import EncodedImage
from tellapart.data.load import load_dataset, source_at, splits_of
from tellapart.errors import UsageError

LINES = {"sidecars", "flickr"}
"""Formats with a caption a line."""
STEMS = {"sidecars", "flickr", "clipscore"}
"""Formats whose ids are file names."""
UNORDERED = {"sidecars"}


class Memory:
    """Data that are not on disk."""

    divided = True

    def __init__(self, splits: dict[str, list[Example]]) -> None:
        self.place, self.data = Place("memory"), splits

    def splits(self) -> list[str]:
        return list(self.data)

    def read(self, splits) -> list[Example]:
        return [e for split in splits for e in self.data[split]]


def image(number: int, ending: str = ".png") -> EncodedImage:
    """Bytes that are no picture: conversion must not care."""
    return EncodedImage(bytes([number, 0, 10, 13, 255]) * 3, f"photo{ending}")


def content(source, *, ordered: bool = True) -> dict[str, list[tuple[str, tuple[str, ...], bytes]]]:
    """Everything that must survive."""
    rows = {
        split: [(e.id, e.references, e.image.read()) for e in source.read([split])] for split in sorted(source.splits())
    }
    return rows if ordered else {split: sorted(found) for split, found in rows.items()}


def through(source, to: str, folder: Path) -> dict:
    convert(source, folder, to)
    return content(source_at(folder), ordered=to not in UNORDERED)


def test_every_name_is_a_format():
    assert set(FORMATS) == set(get_args(Format))


NASTY = "aA é\n\r\t\"',;#%/\\.:|{}\u2028\u2029\x85\x0b\ufeff\x00\U0001f431e\u0301"
texts = st.text(st.sampled_from(NASTY), max_size=5) | st.text(st.characters(codec="utf-8"), max_size=8)
ids = st.one_of(
    st.integers(0, 10**20).map(str),
    st.text(st.sampled_from(NASTY), min_size=1, max_size=5),
    st.sampled_from(["007", "-0", "train/a.png", "a.png", "a.b.c", "../x", "/etc/x", "a//b", ".", "a/", "%41", "val"]),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=300),
)
captions = st.lists(texts, max_size=3).map(tuple)


@st.composite
def data(draw):
    names = draw(st.lists(st.sampled_from(["train", "restval", "val", "test"]), min_size=1, max_size=2, unique=True))
    splits = {}
    for name in names:
        unique = draw(st.lists(ids, min_size=1, max_size=3, unique=True))
        endings = st.sampled_from([".png", ".JPG", ".webp"])
        splits[name] = [Example(i, image(n, draw(endings)), draw(captions)) for n, i in enumerate(unique)]
    return splits


def may_be_refused(splits: dict[str, list[Example]], to: str) -> bool:
    """Whether there is a reason for ``to`` to refuse: told from the data, not from the message."""
    examples = [e for rows in splits.values() for e in rows]
    awkward = to in LINES and any(
        "\u2028" in text or text.endswith("\r") or text.startswith("\ufeff") for e in examples for text in e.references
    )
    bare = to == "flickr" and not all(e.references for e in examples)
    long = any(len(e.id.encode()) * 3 > 200 for e in examples)
    alike = any(len({e.id.casefold() for e in rows}) < len(rows) for rows in splits.values())
    return awkward or bare or (to in STEMS and (long or alike))


@pytest.mark.parametrize("to", get_args(Format))
@settings(max_examples=25, deadline=None)
@given(splits=data())
@example({"val": [Example("1", image(1), ("Two pizza pies ready to be cut\n.", " a \t", "tail\n", ""))]})
@example({"train": [Example("1", image(1), ()), Example("x", image(2), ("",))]})
@example(
    {"train": [Example("a", image(1), ("é",)), Example("a.png", image(2), ("A",)), Example("A", image(3), ("b",))]}
)
def test_nothing_is_lost(to, splits):
    source = Memory(splits)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "out")
        try:
            found = through(source, to, folder)
        except UsageError:
            if not may_be_refused(splits, to):
                raise
            found = None
        if found is None:
            assert not folder.exists()
        else:
            assert found == content(source, ordered=to not in UNORDERED)


@pytest.mark.parametrize("to", get_args(Format))
@pytest.mark.parametrize("start", ["dataset_karpathy.json", "annotations"])
def test_real_photos_there_and_back(shared_data, tmp_path, start, to):
    first = source_at(shared_data / "coco-mini" / start)
    back = "karpathy" if start.endswith("karpathy.json") else "coco"
    whole = content(first)
    assert sum(map(len, whole.values())) == 156
    assert through(first, to, tmp_path / "there") == (
        whole if to not in UNORDERED else {split: sorted(rows) for split, rows in whole.items()}
    )
    assert splits_of(tmp_path / "there") == first.splits()
    again = through(source_at(tmp_path / "there"), back, tmp_path / "back")
    assert {split: sorted(rows) for split, rows in again.items()} == {s: sorted(rows) for s, rows in whole.items()}


def test_numbers_stay_numbers_where_the_format_has_them(tmp_path):
    source = Memory({"train": [Example("42", image(1), ("a",)), Example("042", image(2), ("b",))]})
    for to, file in (
        ("coco", "annotations/captions_train.json"),
        ("karpathy", "dataset.json"),
        ("lavis", "train.json"),
    ):
        convert(source, tmp_path / to, to)
        found = json.loads((tmp_path / to / file).read_text())
        rows = found if to == "lavis" else found["images"]
        key = {"coco": "id", "karpathy": "cocoid", "lavis": "image_id"}[to]
        assert [row[key] for row in rows] == [42, "042"]


def test_layouts(tmp_path):
    """What other tools rely on: where files lie, and in which words."""
    both = {
        "train": [Example("7", image(1, ".jpg"), ("a", "b\nc"))],
        "val": [Example("8", image(2), ("d", "e"))],
    }
    one = {"train": [Example("7", image(1, ".jpg"), ("a",))]}

    def files(splits, to):
        folder = tmp_path / f"{to}-{len(splits)}"
        convert(Memory(splits), folder, to)
        return folder, sorted(f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file())

    folder, names = files(both, "sidecars")
    assert names == ["train/7.jpg", "train/7.txt", "val/8.png", "val/8.txt"]
    assert (folder / "train/7.txt").read_text() == "a\nb\u2028c\n"
    folder, names = files(one, "sidecars")
    assert names == ["7.jpg", "7.txt"]
    folder, names = files(both, "coco")
    assert names == ["annotations/captions_train.json", "annotations/captions_val.json", "train/7.jpg", "val/8.png"]
    folder, names = files(one, "folder")
    assert (folder / "metadata.jsonl").read_text() == '{"file_name": "7.jpg", "image_id": "7", "text": "a"}\n'
    folder, names = files(both, "folder")
    row = json.loads((folder / "train" / "metadata.jsonl").read_text())
    assert row == {"file_name": "7.jpg", "image_id": "7", "captions": ["a", "b\nc"]}
    folder, names = files(one, "tsv")
    assert (folder / "captions.tsv").read_text() == '"filepath"\t"image_id"\t"title"\n"images/7.jpg"\t"7"\t"a"\n'
    folder, names = files(both, "lavis")
    assert json.loads((folder / "train.json").read_text())[1] == {
        "image": "images/train/7.jpg",
        "image_id": 7,
        "caption": "b\nc",
    }
    assert json.loads((folder / "val.json").read_text())[0]["caption"] == ["d", "e"]
    folder, names = files(both, "flickr")
    assert (folder / "val" / "captions.token").read_text() == "8.png#0\td\n8.png#1\te\n"
    folder, names = files(both, "sdscripts")
    assert json.loads((folder / "train" / "meta_cap.json").read_text())["7.jpg"]["caption"] == "a\nb c"


def test_one_split(tmp_path):
    source = Memory({"train": [Example("1", image(1), ("a",))], "val": [Example("2", image(2), ("b",))]})
    convert(source, tmp_path / "val", "sidecars", split="val")
    assert (tmp_path / "val" / "2.txt").read_text() == "b\n"
    assert load_dataset(tmp_path / "val", split="val").ids == ["2"]
    convert(source, tmp_path / "named", "karpathy", split="val")
    assert splits_of(tmp_path / "named") == ["val"]
    with pytest.raises(UsageError, match="no split 'test', only train, val"):
        convert(source, tmp_path / "none", "coco", split="test")


def test_links(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"picture")
    source = source_at(tmp_path / "in")
    convert(source, tmp_path / "linked", "sidecars", link="symlink")
    (link,) = (tmp_path / "linked").glob("*.png")
    assert link.is_symlink()
    assert link.read_bytes() == b"picture"
    for to in ("coco", "karpathy", "lavis", "csv", "tsv"):
        convert(source, tmp_path / to, to, link="none")
        assert not list((tmp_path / to).rglob("*.png"))
        (kept,) = load_dataset(tmp_path / to, split="train")
        assert (kept.id, kept.image.path) == ("a.png", tmp_path / "in" / "a.png")
    with pytest.raises(UsageError, match="'none', but format 'folder' allows copy or symlink"):
        convert(source, tmp_path / "x", "folder", link="none")
    with pytest.raises(UsageError, match="'symlink', but format 'webdataset' allows copy"):
        convert(source, tmp_path / "x", "webdataset", link="symlink")
    with pytest.raises(UsageError, match="cannot be linked to: use --link copy"):
        convert(Memory({"train": [Example("1", image(1))]}), tmp_path / "x", "folder", link="symlink")


def test_links_into_the_folder_that_is_replaced_are_refused(tmp_path):
    convert(Memory({"train": [Example("1", image(1), ("a",))]}), tmp_path / "own", "folder")
    convert(source_at(tmp_path / "own"), tmp_path / "links", "folder", link="symlink")
    linked = source_at(tmp_path / "links")
    for link in ("symlink", "copy"):
        with pytest.raises(UsageError, match="holds what is to be converted"):
            convert(linked, tmp_path / "own", "folder", link=link, overwrite=True)
    assert linked.read(["train"])[0].image.read() == image(1).data


def test_refusals(tmp_path):
    source = Memory({"train": [Example("1", image(1), ("a",))]})
    convert(source, tmp_path / "out", "folder")
    with pytest.raises(UsageError, match="exists: name another folder"):
        convert(source, tmp_path / "out", "coco")
    convert(source, tmp_path / "out", "coco", overwrite=True)
    assert not (tmp_path / "out" / "metadata.jsonl").exists()
    inside = source_at(tmp_path / "out")
    with pytest.raises(UsageError, match="holds what is to be converted"):
        convert(inside, tmp_path / "out", "folder", overwrite=True)
    assert inside.read(["train"])[0].image.read() == image(1).data
    odd = Memory({"minival": [Example("1", image(1), ("a",))]})
    assert through(odd, "karpathy", tmp_path / "odd") == content(odd)
    with pytest.raises(UsageError, match="split 'minival' has no name that format 'coco' knows"):
        convert(odd, tmp_path / "x", "coco")
    for text in ("a\u2028b", "a\r", "\ufeffa"):
        with pytest.raises(UsageError, match=r"of image '1' .* which sidecars would lose .*: convert to folder"):
            convert(Memory({"train": [Example("1", image(1), (text,))]}), tmp_path / "x", "sidecars")
    with pytest.raises(UsageError, match="not valid Unicode"):
        convert(Memory({"train": [Example("1", image(1), ("\ud800",))]}), tmp_path / "x", "coco")
    with pytest.raises(UsageError, match="is not an image of a known kind"):
        convert(Memory({"train": [Example("1", EncodedImage(b"x", "row 1"))]}), tmp_path / "x", "folder")
    assert not (tmp_path / "x").exists()


def test_a_failure_leaves_nothing(tmp_path):
    (tmp_path / "a.png").write_bytes(b"1"), (tmp_path / "b.png").write_bytes(b"2")
    source = source_at(tmp_path)
    convert(source, tmp_path.parent / "kept", "folder", limit=1)
    (tmp_path / "b.png").unlink()
    with pytest.raises(UsageError):
        convert(source_at(tmp_path, images=tmp_path / "none"), tmp_path.parent / "kept", "folder", overwrite=True)
    assert load_dataset(tmp_path.parent / "kept", split="train").ids == ["a.png"]
