"""Reading every layout of images and captions, and refusing what cannot be read with one sentence."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from tellapart.data.load import load_dataset, load_references
from tellapart.errors import UsageError
from tellapart.files import write_text


def picture(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 5, 3), shade, np.uint8)).save(path)
    return path


def write(path: Path, value) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def karpathy(path: Path, splits=("train", "restval", "val"), **changes) -> Path:
    """One image a split, two captions each; ids are 100, 101, ..."""
    images = [
        {
            "filepath": "pictures",
            "filename": f"{i}.png",
            "split": split,
            "cocoid": 100 + i,
            "imgid": i,
            "sentences": [{"raw": f"Caption {i}."}, {"raw": f"another {i}"}],
        }
        | changes
        for i, split in enumerate(splits)
    ]
    return write(path, {"images": images})


@pytest.fixture
def karpathy_file(tmp_path):
    for i in range(3):
        picture(tmp_path / "pictures" / f"{i}.png", i)
    return karpathy(tmp_path / "dataset.json")


def test_karpathy_splits(karpathy_file):
    train = load_dataset(karpathy_file, split="train")
    assert train.ids == ["100", "101"]  # restval is training data
    assert train.references["101"] == ["Caption 1.", "another 1"]
    assert np.asarray(train[1].image.open()).max() == 1
    assert load_dataset(karpathy_file, split="val").ids == ["102"]
    assert load_dataset(karpathy_file, split="restval").ids == ["101"]
    assert load_dataset(karpathy_file, split="train", limit=1).ids == ["100"]
    with pytest.raises(UsageError, match=r"no split 'test', only restval, train, val"):
        load_dataset(karpathy_file, split="test")


def test_karpathy_with_images_elsewhere(tmp_path):
    file = karpathy(tmp_path / "dataset.json", filepath="train2014")
    with pytest.raises(UsageError, match="its first image is not at"):
        load_dataset(file, split="train")
    for i in range(3):
        picture(tmp_path / "flat" / f"{i}.png", 9)
    assert load_dataset(file, split="train", images=tmp_path / "flat")[0].image.path.parent == tmp_path / "flat"


def test_a_missing_image_is_named(karpathy_file, tmp_path):
    (tmp_path / "pictures" / "1.png").unlink()
    with pytest.raises(UsageError, match=r"1 missing image \(of 2\), first .*1\.png"):
        load_dataset(karpathy_file, split="train")
    assert len(load_dataset(karpathy_file, split="train", limit=1)) == 1


def coco(path: Path, captions: list[tuple[int, str]]) -> Path:
    images = [{"id": i, "file_name": f"{i}.png"} for i in (5, 3)]
    annotations = [{"id": n, "image_id": i, "caption": text} for n, (i, text) in enumerate(captions)]
    return write(path, {"images": images, "annotations": annotations})


@pytest.mark.parametrize("folder", ["val2017", "images/val2017", "annotations", "annotations/val2017", "."])
def test_coco_finds_its_images(tmp_path, folder):
    file = coco(
        tmp_path / "annotations" / "captions_val2017.json", [(3, "three"), (5, " five\n"), (3, " "), (3, "drei")]
    )
    for i in (3, 5):
        picture(tmp_path / folder / f"{i}.png", i)
    data = load_dataset(file, split="val")
    assert data.references == {"5": [" five\n"], "3": ["three", "drei"]}
    assert [np.asarray(example.image.open()).max() for example in data] == [5, 3]


def test_coco_complaints(tmp_path):
    file = coco(tmp_path / "captions_x.json", [(3, "a")])
    with pytest.raises(UsageError, match=r"first image 5\.png is neither in"):
        load_dataset(file, split="val")
    for i in (3, 5):
        picture(tmp_path / f"{i}.png")
    with pytest.raises(UsageError, match="of image '77', which is not listed: correct"):
        load_dataset(coco(file, [(77, "a")]), split="val")
    with pytest.raises(UsageError, match="all 2 captions are empty"):
        load_dataset(coco(file, [(3, ""), (5, "\n")]), split="val")
    with pytest.raises(UsageError, match="is None: captions must be strings"):
        load_dataset(coco(file, [(3, None)]), split="val")
    instances = {"images": [{"id": 3, "file_name": "3.png"}], "annotations": [{"id": 0, "image_id": 3, "bbox": []}]}
    with pytest.raises(UsageError, match="annotation 1 has no 'caption'"):
        load_dataset(write(file, instances), split="val")


def test_dropped_captions_are_counted(tmp_path, caplog):
    picture(tmp_path / "5.png"), picture(tmp_path / "3.png")
    caplog.set_level(logging.WARNING)
    load_dataset(coco(tmp_path / "captions_x.json", [(3, "a"), (3, ""), (5, "  ")]), split="val")
    assert "dropped 2 of 3 captions" in caplog.text


def test_plain_folder(tmp_path):
    for name in ("b.jpg", "a/z.PNG", "a/.hidden.png", ".git/c.png"):
        picture(tmp_path / name)
    write(tmp_path / "notes.txt", "no image")
    data = load_dataset(tmp_path, split="test")
    assert data.ids == ["a/z.PNG", "b.jpg"]
    assert data.references == {"a/z.PNG": [], "b.jpg": []}
    with pytest.raises(UsageError, match="needs reference captions"):
        data.require_references("CIDEr")


def test_folder_with_metadata(tmp_path, caplog):
    for name in "abcd":
        picture(tmp_path / f"{name}.png")
    rows = [
        {"file_name": "a.png", "text": "one"},
        {"file_name": "./b.png", "captions": ["two", "", "three"]},
        {"file_name": "a.png", "caption": "four"},
        {"file_name": "d.png", "text": ""},
    ]
    file = write(tmp_path / "metadata.jsonl", "\n\n".join(map(json.dumps, rows)) + "\n")
    data = load_dataset(tmp_path, split="train")
    assert data.references == {"a.png": ["one", "four"], "b.png": ["two", "three"], "c.png": [], "d.png": []}
    assert "1 of 4 images are not in metadata.jsonl" in caplog.text
    write(file, '{"file_name": "a.png", "text": "x"}\n{"file_name": "a.png" "text"}')
    with pytest.raises(UsageError, match=r"metadata.jsonl, line 2, column 23: not valid JSON"):
        load_dataset(tmp_path, split="train")
    write(file, '{"file_name": "a.png", "label": "x"}')
    assert not any(load_dataset(tmp_path, split="train").references.values())
    write(file, '{"file_name": "../a.png", "text": "x"}')
    with pytest.raises(UsageError, match=r"names 1 missing image \(of \d+\), first .*/\.\./a\.png"):
        load_dataset(tmp_path, split="train")


def test_folder_with_split_folders(tmp_path):
    picture(tmp_path / "train" / "a.png")
    picture(tmp_path / "validation" / "b.png")
    assert load_dataset(tmp_path, split="train").ids == ["train/a.png"]
    assert load_dataset(tmp_path, split="val").ids == ["validation/b.png"]
    with pytest.raises(UsageError, match="no split 'test', only train, validation"):
        load_dataset(tmp_path, split="test")


def test_one_image_file(tmp_path):
    one = picture(tmp_path / "1.png")
    assert load_dataset(one, split="test").ids == [one.as_posix()]


def test_images_without_captions_are_no_references(tmp_path):
    picture(tmp_path / "photos" / "1.png")
    with pytest.raises(UsageError, match="photos holds no captions: name data whose images have captions"):
        load_references(tmp_path / "photos")


def test_an_empty_name_is_not_the_folder_where_we_are(tmp_path, monkeypatch):
    picture(tmp_path / "1.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the name of the data is empty"):
        load_dataset("")


def test_what_cannot_be_read(tmp_path, karpathy_file):
    with pytest.raises(UsageError, match="nowhere does not exist"):
        load_dataset(tmp_path / "nowhere", split="val")
    with pytest.raises(UsageError, match="holds no images"):
        load_dataset(write(tmp_path / "empty" / "a.txt", "").parent, split="val")
    with pytest.raises(UsageError, match=r"broken.json, line 2, column 2: not valid JSON"):
        load_dataset(write(tmp_path / "broken.json", '{\n "images [}'), split="val")
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(UsageError, match="is not UTF-8"):
        load_dataset(tmp_path / "latin.json", split="val")
    with pytest.raises(
        UsageError, match="is not a known list of images and captions, such as a Karpathy dataset file or COCO"
    ):
        load_dataset(write(tmp_path / "list.json", [1]), split="val")
    with pytest.raises(UsageError, match="neither a folder"):
        load_dataset(write(tmp_path / "a.xlsx", ""), split="val")
    with pytest.raises(UsageError, match="limit is 0"):
        load_dataset(karpathy_file, split="val", limit=0)
    with pytest.raises(UsageError, match="format is 'xlsx'"):
        load_dataset(karpathy_file, split="val", format="xlsx")
    with pytest.raises(UsageError, match="is not a folder, which format 'folder' needs"):
        load_dataset(karpathy_file, split="val", format="folder")
    with pytest.raises(UsageError, match="an image has no 'id'"):
        load_dataset(karpathy_file, split="val", format="coco")


def test_real_coco_in_both_layouts(shared_data):
    mini = shared_data / "coco-mini"
    train = load_dataset(mini / "dataset_karpathy.json", split="train")
    annotated = load_dataset(mini / "annotations" / "captions_train2017.json", split="train")
    assert len(train) == 80
    assert train.references.keys() == annotated.references.keys()
    for name, captions in annotated.references.items():  # this Karpathy file was written without space around captions
        assert sorted(train.references[name]) == sorted(text.strip() for text in captions)
    assert train[0].image.fingerprint() == annotated[annotated.position[train.ids[0]]].image.fingerprint()
    assert len(load_dataset(shared_data / "unlabelled", split="train")) == 128


@pytest.mark.parametrize("changes", [{"filename": 7}, {"split": None}, {"sentences": None}, {"sentences": ["text"]}])
def test_karpathy_records_of_a_wrong_kind(karpathy_file, changes):
    karpathy(karpathy_file, **changes)
    named = "raw" if changes == {"sentences": ["text"]} else next(iter(changes))
    with pytest.raises(UsageError, match=rf"dataset\.json: .*'{named}'"):
        load_dataset(karpathy_file, split="train")


@pytest.mark.parametrize(
    ("images", "annotations", "named"),
    [
        ([{"id": [1], "file_name": "0.png"}], [], "id"),
        ([{"id": 1, "file_name": "0.png"}, {"id": 2, "file_name": None}], [], "file_name"),
        ([{"id": 1, "file_name": "0.png"}], [{"image_id": {}, "caption": "a"}], "image_id"),
    ],
)
def test_coco_records_of_a_wrong_kind(tmp_path, images, annotations, named):
    path = write(tmp_path / "captions.json", {"images": images, "annotations": annotations})
    with pytest.raises(UsageError, match=rf"captions\.json: '{named}' of "):
        load_dataset(path, split="train", images=tmp_path)


def test_json_nested_beyond_reason(tmp_path):
    with pytest.raises(UsageError, match=r"deep\.json is nested too deeply"):
        load_dataset(write(tmp_path / "deep.json", "[" * 100_000), split="train")


def test_a_table_with_a_heading_twice_is_refused(tmp_path):
    picture(tmp_path / "0.png", 0)
    write_text(tmp_path / "t.csv", "file_name,caption,caption\n0.png,one,two\n")
    with pytest.raises(UsageError, match=r"t\.csv has two columns 'caption', of which one would be lost: rename one"):
        load_dataset(tmp_path / "t.csv")


@pytest.mark.parametrize("line", ["5", "null", "[1]"])
def test_metadata_that_begin_with_no_object(tmp_path, line):
    picture(tmp_path / "a.png")
    write(tmp_path / "metadata.jsonl", f"{line}\n")
    with pytest.raises(UsageError, match=r"metadata\.jsonl, line 1: .* is not an object: write one object per line"):
        load_dataset(tmp_path)


def test_annotations_whose_image_is_no_id(tmp_path):
    file = write(tmp_path / "a.json", {"annotations": [{"image_id": [1], "caption": "a"}]})
    with pytest.raises(UsageError):
        load_references(file)


def test_options_without_a_use_are_refused_unless_they_were_given_for_other_data_too(tmp_path):
    photos = tmp_path / "photos"
    picture(photos / "a.png")
    write(photos / "a.txt", "a dog")
    listed = coco(tmp_path / "captions_x.json", [(5, "a cat")])
    for name in (3, 5):
        picture(tmp_path / f"{name}.png")
    for path, option, given, sentence in (
        (photos, "image_column", "photo", "is not a table and has no column 'photo'"),
        (photos, "id_column", "sku", "is not a table and has no column 'sku'"),
        (photos, "caption_column", "text", "is not a table and has no column 'text'"),
        (photos, "images", tmp_path, f"holds its images and takes none from {tmp_path}: leave images out"),
        (photos, "caption_extension", ".cap", "has no .cap files next to images: correct caption_extension"),
        (listed, "caption_extension", ".txt", "has no .txt files next to images"),
    ):
        with pytest.raises(UsageError, match=re.escape(sentence)):
            load_dataset(path, **{option: given})
        if option != "images":
            with pytest.raises(UsageError, match=re.escape(sentence)):
                load_references(path, **{option: given})
        assert len(load_dataset(path, **{option: given}, ignore_unused=True)) > 0
    assert load_dataset(photos, caption_extension=".txt").references == {"a": ["a dog"]}
    (tmp_path / "split").mkdir()
    photos.rename(tmp_path / "split" / "train")
    assert load_dataset(tmp_path / "split", split="train", caption_column="text").ids == ["a"], "its folders may differ"


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_references_need_no_more_than_ids(tmp_path, kind):
    """The remedy named an option that does not go with references."""
    rows = [
        {"image_id": 7, "caption": "a dog"},
        {"image_id": 12, "caption": "a cat"},
        {"image_id": 7, "caption": "a pup"},
    ]
    path = tmp_path / f"captions.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [list(rows[0]), *(map(str, row.values()) for row in rows)]
        path.write_text("".join(("," if kind == "csv" else "\t").join(line) + "\n" for line in lines))
    found = load_references(path).references
    assert {name: [*told] for name, told in found.items()} == {"7": ["a dog", "a pup"], "12": ["a cat"]}
    with pytest.raises(UsageError, match="give image_column"):
        load_dataset(path)
