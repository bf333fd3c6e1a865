"""What is known of images besides their pixels: read, cleaned, joined."""

from __future__ import annotations

import json

import pytest

from data.layouts import tar
from pictures import images
from tellapart.captioning.plan import plan
from tellapart.data.context import LONGEST, clean_context
from tellapart.data.dataset import Collate
from tellapart.data.load import load_dataset
from tellapart.errors import UsageError

CONTEXTS = ["Spring sale: red boots", "", "tags, of\x00 a\tcat"]
CLEAN = ["Spring sale: red boots", "", "tags, of a cat"]


def test_context_is_one_bounded_line_without_control_characters():
    assert clean_context(["a\nb\x1b[31m", "c\u202e d\u200b", " e "]) == "a b [31m c d e"
    long = clean_context(["word " * 1000])
    assert len(long) <= LONGEST
    assert long.endswith(" word")
    assert clean_context(["x" * 1000]) == "x" * LONGEST


@pytest.fixture
def photos(tmp_path):
    for place, picture in enumerate(images(3)):
        picture.save(tmp_path / f"{place}.png")
        if CONTEXTS[place]:
            (tmp_path / f"{place}.context.txt").write_text(CONTEXTS[place])
    rows = [
        {"file_name": f"{place}.png", "caption": "a picture", "about": text or None}
        for place, text in enumerate(CONTEXTS)
    ]
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "table.csv").write_text(
        "file_name,caption,about\n"
        + "".join(f'{p}.png,a picture,"{t.replace(chr(0), "")}"\n' for p, t in enumerate(CONTEXTS))
    )
    return tmp_path


@pytest.mark.parametrize("table", ["table.jsonl", "table.csv"])
def test_a_column_of_a_table_and_files_next_to_images(photos, table):
    assert [item.context for item in plan([str(photos / table)], context="about")] == CLEAN
    named = [str(photos / f"{place}.png") for place in range(3)]
    assert [item.context for item in plan(named, context_extension=".context.txt")] == CLEAN
    assert [item.context for item in plan([str(photos / table)])] == ["", "", ""]
    with pytest.raises(UsageError, match=r"has no column 'nothing', only .*: name one of these"):
        plan([str(photos / table)], context="nothing")


def test_training_data_keep_captions_and_contexts(photos):
    data = load_dataset(photos / "table.jsonl", context_column="about")
    assert [example.context for example in data] == CLEAN
    assert [example.references for example in data] == [("a picture",)] * 3
    batch = Collate({})(list(data))
    assert batch.contexts == CLEAN
    assert batch.select([2, 0, 2]).contexts == [CLEAN[2], CLEAN[0], CLEAN[2]]


def test_captions_are_not_taken_for_contexts(photos, tmp_path):
    """Layouts without columns ignored the column's name, and gave the captions as contexts."""
    coco = {
        "images": [{"id": 1, "file_name": "0.png"}],
        "annotations": [{"id": 1, "image_id": 1, "caption": "the reference"}],
    }
    (photos / "coco.json").write_text(json.dumps(coco))
    with pytest.raises(UsageError, match=r"coco\.json is not a table and has no column 'about': leave the column out"):
        load_dataset(photos / "coco.json", context_column="about")
    member = {"0.png": (photos / "0.png").read_bytes(), "0.json": json.dumps({"caption": "a dog", "about": "a title"})}
    shard = tar(photos / "0.tar", member)
    (example,) = load_dataset(shard, context_column="about")
    assert (example.references, example.context) == (("a dog",), "a title")
    (item,) = plan([str(shard)], context="about")
    assert item.context == "a title"


def test_an_image_without_a_context_loses_no_caption(photos, caplog):
    table = photos / "table.csv"
    table.write_text("file_name,caption,about\n0.png,one,\n1.png,two, \n")
    with caplog.at_level("WARNING"):
        data = load_dataset(table, context_column="about")
    assert [(example.context, example.references) for example in data] == [("", ("one",)), ("", ("two",))]
    assert not caplog.records
