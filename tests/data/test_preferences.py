"""Preference data: every layout gives the same pairs, and images are found by id or file name."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import EncodedImage
from tellapart.data.preferences import PreferencePair, preferences_of, read_preferences
from tellapart.errors import UsageError

PAIR = PreferencePair("a red car", "a car")


def messages(text):
    return [{"role": "assistant", "content": [{"type": "text", "text": text}]}]


ROWS = {
    "plain": {"image_id": 7, "chosen": "a red  car", "rejected": "a car"},
    "trl": {"images": ["photos/7.jpg"], "prompt": "Describe.", "chosen": "a red car", "rejected": "a car"},
    "trl, messages": {
        "images": [{"path": "7.jpg", "bytes": None}],
        "prompt": [{"role": "user", "content": "Describe."}],
        "chosen": messages("a red car"),
        "rejected": [{"role": "assistant", "content": "a car"}],
    },
    "rlhf-v": {
        "image_path": "images/7.jpg",
        "text": json.dumps({"question": "Describe.", "chosen": "a red car", "rejected": "a car"}),
    },
    "question and answers": {"image": "7.jpg", "question": "Describe.", "chosen": "a red car", "rejected": "a car"},
}


@pytest.mark.parametrize("layout", ROWS)
@pytest.mark.parametrize("ending", [".jsonl", ".json", ".parquet"])
def test_layouts(tmp_path, layout, ending):
    path, rows = tmp_path / f"rows{ending}", [ROWS[layout]]
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows if ending == ".json" else rows[0]))
    found = read_preferences(path)
    assert list(found.values()) == [[PAIR]]
    dataset = CaptionDataset([Example("7", EncodedImage(b"", "somewhere/7.jpg"))], name="data")
    assert preferences_of(found, dataset) == {"7": [PAIR]}


def test_endings_count_in_capitals_too(tmp_path):
    path = tmp_path / "ROWS.JSONL"
    path.write_text(json.dumps({"image_id": "1", "chosen": "x", "rejected": "y"}) + "\n")
    assert read_preferences(path) == {"1": [PreferencePair("x", "y")]}


def test_equal_captions_prefer_nothing(tmp_path):
    path = tmp_path / "rows.json"
    rows = [
        {"image_id": "1", "chosen": "a car", "rejected": "a  car"},
        {"image_id": "1", "chosen": "x", "rejected": "y"},
    ]
    path.write_text(json.dumps(rows))
    assert read_preferences(path) == {"1": [PreferencePair("x", "y")]}
    path.write_text(json.dumps(rows[:1]))
    with pytest.raises(UsageError, match="no pair of different captions"):
        read_preferences(path)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"chosen": "x", "rejected": "y"}, "the image's name"),
        ({"image_id": "1", "chosen": "x"}, "rejected"),
        ({"image_id": "1", "text": "no json"}, "row 1"),
        ({"image_id": "1", "text": "[" * 100_000}, r"row 1 of .* is not a preference \(RecursionError"),
    ],
)
def test_rows_that_are_no_preferences(tmp_path, row, told):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(UsageError, match=told):
        read_preferences(path)


def test_images_that_are_not_there(tmp_path):
    dataset = CaptionDataset([Example("8", EncodedImage(b"", "8.jpg"))], name="data")
    with pytest.raises(UsageError, match="none of the 1 images"):
        preferences_of({"7": [PAIR]}, dataset)


def test_lines_are_those_of_json_and_not_of_unicode(tmp_path):
    """U+2028 ends a line for str.splitlines, not for JSON."""
    path = tmp_path / "rows.ndjson"
    row = {"image_id": "1", "chosen": "a\u2028b", "rejected": "c"}
    path.write_text(f"\n{json.dumps(row, ensure_ascii=False)}\n", encoding="utf-8")
    assert read_preferences(path) == {"1": [PreferencePair("a b", "c")]}


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("rows.json", '["x"]', "row 1 of .* is not a preference"),
        ("rows.jsonl", '\n["x"]\n', "row 2 of .* is not a preference"),
        ("rows.jsonl", '{"image_id":\n', "line 1, column 13: not valid JSON"),
        ("rows.parquet", "PAR1", "is not a readable parquet file"),
    ],
)
def test_files_that_hold_no_preferences(tmp_path, name, content, told):
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=told):
        read_preferences(tmp_path / name)


def test_a_name_of_several_images_belongs_to_none_of_them():
    examples = [Example(f"{folder}/7.jpg", EncodedImage(b"", f"{folder}/7.jpg")) for folder in "ab"]
    dataset = CaptionDataset(examples, name="data")
    for name in ("7.jpg", "7", "x/7.jpg"):
        with pytest.raises(
            UsageError, match=r"several images of that name, such as 'a/7\.jpg' and 'b/7\.jpg': give the"
        ):
            preferences_of({name: [PAIR]}, dataset)
    assert preferences_of({"b/7.jpg": [PAIR]}, dataset) == {"b/7.jpg": [PAIR]}
