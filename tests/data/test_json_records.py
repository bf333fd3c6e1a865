"""JSON that is read piece by piece against ``json.loads`` of the whole file."""

import json
import random
from pathlib import Path

import pytest

from tellapart.data import json_records
from tellapart.data.json_records import Records, object_of, records_of

LISTS = ("images", "annotations")


def records(count: int, seed: int) -> list[dict[str, object]]:
    """Flat ones, a few of which have other keys or values of other kinds."""
    rng = random.Random(seed)
    rows: list[dict[str, object]] = []
    for n in range(count):
        row: dict[str, object] = {"id": n, "caption": rng.choice(["a dog", 'é "x" \\', "\U0001f600", "},{", "", "]}"])}
        if rng.random() < 0.05:
            row["id"] = rng.choice([1 << 70, None, True, "7", 1.5])
        if rng.random() < 0.02:
            row["more"] = 1
        rows.append(row)
    return rows


def written(path: Path, value: object, seed: int) -> Path:
    rng = random.Random(seed)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2]))
    path.write_text(
        rng.choice(["", " \n"]) + text + rng.choice(["", "\n\t "]), encoding=rng.choice(["utf-8", "utf-8-sig"])
    )
    return path


@pytest.fixture(autouse=True, params=[(7, 3), (1 << 20, 4096)])
def small_pieces(request, monkeypatch):
    """Pieces that cut every record, and records of which few become columns together."""
    monkeypatch.setattr(json_records, "_PIECE", request.param[0])
    monkeypatch.setattr(json_records, "_TOGETHER", request.param[1])


@pytest.mark.parametrize("seed", range(6))
def test_a_list_of_records_is_that_of_json(tmp_path, seed):
    rows = records(50, seed)
    found = records_of(written(tmp_path / "x.json", rows, seed))
    assert isinstance(found, Records)
    assert list(found) == rows
    assert [[*row] for row in found] == [[*row] for row in rows], "keys keep their order"
    assert (found[7], found[-1], found[3:6], len(found)) == (rows[7], rows[-1], rows[3:6], 50)
    assert [type(row["id"]) for row in found] == [type(row["id"]) for row in rows]
    assert repr(found) == repr(rows)
    with pytest.raises(IndexError):
        found[50]


@pytest.mark.parametrize("seed", range(6))
def test_an_object_of_lists_is_that_of_json(tmp_path, seed):
    value = {"info": {"a": [1, {}]}, "images": records(9, seed), "n": 12, "annotations": records(40, seed + 9), "x": []}
    found = object_of(written(tmp_path / "x.json", value, seed), LISTS)
    assert isinstance(found["images"], Records)
    assert isinstance(found["annotations"], Records)
    assert {key: list(part) if isinstance(part, Records) else part for key, part in found.items()} == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "[1]", '[{"a": [1]}]', '[{"a": 1}, 2]', '{"images": [{"sentences": []}]}', '{"images": []}'),
        *(
            '[{"a": 1}',
            '[{"a": 1}]]',
            '[{"a": 1} {"a": 2}]',
            '[{"a": 1},]',
            '{"images": [{"a": 1}],}',
            '{"n": 1 "m": 2}',
        ),
        *('{"n" 1}', "{1: 2}", '{"n": 1}}', '[{"a": "\x01"}]', '"text"', "12", '{"images": [{"a": 1}]'),
        json.dumps({str(n): "a dog" for n in range(200)}),
    ],
)
def test_other_files_are_left_to_who_reads_them_whole(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    assert records_of(path) is None
    assert object_of(path, LISTS) is None


def test_files_that_cannot_be_read_are_left_too(tmp_path):
    (tmp_path / "x.json").write_bytes(b'[{"a": "\xff"}]')
    (tmp_path / "deep.json").write_text('[{"a": ' + "[" * 100_000)
    assert records_of(tmp_path / "x.json") is None
    assert records_of(tmp_path / "deep.json") is None
    assert records_of(tmp_path / "none.json") is None
