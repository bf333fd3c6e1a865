"""Tables with paths, addresses or bytes of images, patterns, and files elsewhere: what data people have."""

from __future__ import annotations

import csv
import errno
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data.layouts import picture, tar, write
from tellapart.data.check import check
from tellapart.data.convert import convert
from tellapart.data.load import load_dataset, load_references, source_at, splits_of
from tellapart.data.results import read_results
from tellapart.errors import UsageError


@pytest.fixture
def photos(tmp_path) -> Path:
    """Four pictures of different greys: 0, 60, 120, 180."""
    for number in range(4):
        picture(tmp_path / "photos" / f"{number} x.png", 60 * number)
    return tmp_path / "photos"


def shades(data) -> list[int]:
    return [int(np.asarray(example.image.open()).max()) for example in data]


def as_csv(path: Path, rows: list[dict]) -> Path:
    buffer = io.StringIO()
    table = csv.DictWriter(buffer, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    return write(path, buffer.getvalue())


def as_jsonl(path: Path, rows: list[dict]) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def as_parquet(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


def as_tsv(path: Path, rows: list[dict]) -> Path:
    return write(path, "\n".join("\t".join(map(str, row)) for row in [list(rows[0]), *(r.values() for r in rows)]))


WRITERS = {"csv": as_csv, "tsv": as_tsv, "jsonl": as_jsonl, "parquet": as_parquet}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_table_of_paths_needs_no_captions(kind, photos, tmp_path):
    rows = [{"image_path": f"photos/{n} x.png", "price": n, "sku": f"A-{n}"} for n in (2, 0, 3)]
    table = WRITERS[kind](tmp_path / f"paths.{kind}", rows)
    data = load_dataset(table)
    assert data.ids == [row["image_path"] for row in rows]
    assert shades(data) == [120, 0, 180]
    assert not any(data.references.values())
    assert load_dataset(table, id_column="sku").ids == ["A-2", "A-0", "A-3"]
    assert load_dataset(table, image_column="image_path", caption_column="sku").references["photos/0 x.png"] == ["A-0"]
    with pytest.raises(UsageError, match=r"none of the columns text, caption, .*: give caption_column"):
        load_references(table)
    with pytest.raises(UsageError, match="no column 'id', only image_path, price, sku: name one of these"):
        load_dataset(table, id_column="id")
    with pytest.raises(UsageError, match="no column 'nope'"):
        load_dataset(table, image_column="nope")


@pytest.mark.parametrize("kind", WRITERS)
def test_an_empty_id_is_refused_by_the_name_of_its_column(kind, photos, tmp_path):
    rows = [{"image_path": f"photos/{n} x.png", "sku": sku} for n, sku in ((2, "A"), (0, ""))]
    table = WRITERS[kind](tmp_path / f"paths.{kind}", rows)
    with pytest.raises(UsageError, match="'sku' is empty: give the image an id"):
        load_dataset(table, id_column="sku")


@pytest.mark.parametrize("kind", WRITERS)
def test_captions_of_several_rows_add_up(kind, photos, tmp_path):
    rows = [{"file": f"{n} x.png", "Caption": f"shade {n} {k}"} for n in (1, 2) for k in "ab"]
    data = load_dataset(WRITERS[kind](photos / f"table.{kind}", rows))
    assert data.references == {"1 x.png": ["shade 1 a", "shade 1 b"], "2 x.png": ["shade 2 a", "shade 2 b"]}
    assert shades(data) == [60, 120]


def encoded(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), shade, np.uint8)).save(buffer, "png")
    return buffer.getvalue()


def test_image_bytes_as_datasets_writes_them(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    rows = [{"image": {"bytes": encoded(10 * n), "path": f"{n}.png"}, "label": n} for n in range(8)]
    rows[5]["image"] = {"bytes": None, "path": "photos/3 x.png"}
    rows[6]["image"] = {"bytes": None, "path": None}
    data = load_dataset(as_parquet(tmp_path / "hf.parquet", rows))
    assert data.ids == [str(n) for n in range(8)]
    assert not (tmp_path / "cache").exists(), "an index opens no image"
    assert [int(np.asarray(data[n].image.open()).max()) for n in (7, 0, 4, 5)] == [70, 0, 40, 180]
    assert len(list((tmp_path / "cache" / "parquet").glob("*.bin"))) == 3, "three rows a group, three groups"
    with pytest.raises(UsageError, match=r"hf\.parquet/6 is empty: remove the row"):
        data[6].image.read()
    elsewhere = load_dataset(tmp_path / "hf.parquet", images=tmp_path / "photos")
    with pytest.raises(UsageError, match=r"3 x\.png is empty"):
        elsewhere[5].image.read()  # photos/photos/3 x.png
    assert load_dataset(tmp_path / "hf.parquet", id_column="label").ids == data.ids
    assert data[3].image.name.endswith("hf.parquet/3.png")
    as_parquet(
        tmp_path / "hf.parquet", [{"image": {"bytes": encoded(99), "path": "x.png"}, "text": "y", "image_id": 7}]
    )
    again = load_dataset(tmp_path / "hf.parquet")
    assert (again.ids, shades(again), again.references) == (["7"], [99], {"7": ["y"]})


def test_plain_binary_and_shards_with_splits(tmp_path):
    for split, start in (("train", 0), ("test", 6)):
        for part in range(2):
            rows = [{"jpg": encoded(10 * n), "caption": f"c{n}"} for n in range(start + 3 * part, start + 3 * part + 3)]
            as_parquet(tmp_path / "repo" / "data" / f"{split}-0000{part}-of-00002.parquet", rows)
    write(tmp_path / "repo" / "README.md", "a card")
    assert splits_of(tmp_path / "repo") == ["train", "test"]
    test = load_dataset(tmp_path / "repo", split="test")
    assert test.ids == [str(n) for n in range(6)]
    assert shades(test) == [60, 70, 80, 90, 100, 110]
    assert test.references["4"] == ["c10"]
    both = load_dataset(f"{tmp_path}/repo/data/train-*.parquet")
    assert shades(both) == [0, 10, 20, 30, 40, 50]
    with pytest.raises(UsageError, match="has the splits train, test: give --split with one of them"):
        load_dataset(tmp_path / "repo")


def test_a_large_row_group_is_unpacked_in_little_memory(tmp_path):
    """200 rows of 400 kB in one row group of many pages: 80 MB, of which a few pages are in memory at a time."""
    schema = pa.schema([("image", pa.binary())])
    with pq.ParquetWriter(tmp_path / "x.parquet", schema, write_batch_size=5) as writer:
        noise = np.random.default_rng(0)
        blob = pa.array([noise.bytes(400_000) for _ in range(200)], pa.binary())
        writer.write_table(pa.table([blob], schema=schema), row_group_size=200)
        del blob
    assert pq.ParquetFile(tmp_path / "x.parquet").num_row_groups == 1
    data = load_dataset(tmp_path / "x.parquet")
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    peak = pa.proxy_memory_pool(pool)
    pa.set_memory_pool(peak)
    try:
        assert len(data[199].image.read()) == 400_000
    finally:
        pa.set_memory_pool(pool)
    assert peak.max_memory() < 30e6
    assert pool.bytes_allocated() - before < 10e6


def test_patterns_of_images_shards_and_tables(photos, tmp_path):
    picture(photos / "inner" / "9.png", 90)
    data = load_dataset(f"{photos}/[12] x.png")
    assert (data.ids, shades(data)) == ([f"{photos}/1 x.png", f"{photos}/2 x.png"], [60, 120])
    assert len(load_dataset(f"{photos}/**/*.png")) == 5
    assert len(load_dataset(f"{photos.parent}/ph*")) == 5, "a folder that matches counts with all its images"
    for number in range(2):
        tar(tmp_path / "shards" / f"{number}.tar", {f"a{number}.png": (photos / "1 x.png").read_bytes()})
    assert load_dataset(f"{tmp_path}/shards/*.tar").ids == ["a0", "a1"]
    assert load_dataset(f"{tmp_path}/shards/*.tar", format="unlabelled").ids == ["0.tar/a0.png", "1.tar/a1.png"]
    for number in range(2):
        as_csv(tmp_path / "lists" / f"{number}.csv", [{"path": f"../photos/{number} x.png"}])
    assert shades(load_dataset(f"{tmp_path}/lists/*.csv")) == [0, 60]
    with pytest.raises(UsageError, match=r"no file matches .*\.gif: check the path"):
        load_dataset(f"{photos}/*.gif")
    with pytest.raises(UsageError, match=r"files of several kinds \(\.tar, images\): give a pattern for each kind"):
        load_dataset(f"{tmp_path}/*/{{0.tar,1 x.png}}")
    for name in "ab":
        write(
            tmp_path / "lists" / f"{name}.json", [{"image": f"../photos/{i} x.png", "caption": name} for i in range(2)]
        )
    assert load_dataset(f"{tmp_path}/lists/a*.json").references[f"../photos/{1} x.png"] == ["a"]
    with pytest.raises(UsageError, match=r"matches 2 files \.json: name one"):
        load_dataset(f"{tmp_path}/lists/*.json")
    odd = picture(tmp_path / "a[1].png", 5)
    assert load_dataset(odd).ids == [odd.as_posix()], "a file of this very name is no pattern"


def test_no_split_is_needed_where_there_is_none(photos, tmp_path):
    assert len(load_dataset(photos)) == 4
    picture(tmp_path / "divided" / "train" / "a.png")
    assert len(load_dataset(tmp_path / "divided")) == 1
    picture(tmp_path / "divided" / "val" / "b.png")
    with pytest.raises(UsageError, match="has the splits train, val: give --split with one of them"):
        load_dataset(tmp_path / "divided")


def test_a_list_beside_photos_is_a_table_only_if_it_names_captions(photos):
    """Prices beside photos do not hide the photos that the list leaves out."""
    as_csv(photos / "prices.csv", [{"file": "1 x.png", "price": 3}])
    assert len(load_dataset(photos)) == 4
    as_jsonl(photos / "captions.jsonl", [{"file_name": "1 x.png", "caption": "ours"}])
    assert len(load_dataset(photos)) == 4, "captions that were written for these photos are no data set by themselves"
    assert len(load_dataset(photos / "captions.jsonl")) == 1


@pytest.mark.parametrize("format", [None, "csv"])
def test_the_review_of_captions_is_no_table_of_their_folder(photos, format):
    """``tellapart caption photos --output photos/captions.csv`` writes both."""
    as_csv(photos / "captions.csv", [{"file_name": f"{i} x.png", "caption": f"ours {i}"} for i in range(4)])
    as_csv(photos / "captions.csv.review.csv", [{"photo": "1 x.png", "caption": "ours 1", "reasons": "loop"}])
    data = load_dataset(photos, format=format)
    assert (len(data), data.references["1 x.png"]) == (4, ["ours 1"])


def test_a_folder_of_nothing_but_a_list_is_the_list(photos, tmp_path):
    as_csv(tmp_path / "only" / "urls.csv", [{"url": "https://example.org/a.png"}, {"url": "https://example.org/b.png"}])
    assert load_dataset(tmp_path / "only").ids == ["https://example.org/a.png", "https://example.org/b.png"]
    as_jsonl(tmp_path / "lines" / "a.jsonl", [{"path": f"{photos}/2 x.png"}])
    assert shades(load_dataset(tmp_path / "lines")) == [120]


def test_the_lists_beside_shards_are_not_the_data(photos, tmp_path):
    """img2dataset writes a Parquet file with addresses and captions next to each tar."""
    tar(tmp_path / "out" / "00000.tar", {"a.png": (photos / "1 x.png").read_bytes(), "a.txt": "mine"})
    as_parquet(tmp_path / "out" / "00000.parquet", [{"url": "https://example.org/a.png", "caption": "b", "key": "a"}])
    assert load_dataset(tmp_path / "out").references == {"a": ["mine"]}


def test_what_metadata_lacks_is_no_error_where_it_is_not_needed(photos):
    write(photos / "metadata.jsonl", '{"file_name": "1 x.png", "label": 3}\n{"file_name": "2 x.png", "label": 4}\n')
    assert not any(load_dataset(photos).references.values())
    with pytest.raises(UsageError, match="line 1 has none of 'text'"):
        load_references(photos)
    write(photos / "metadata.jsonl", '{"file_name": "1 x.png", "text": "a"}\n{"file_name": "2 x.png", "label": 4}\n')
    with pytest.raises(UsageError, match="line 2 has none of 'text'"):
        load_dataset(photos)


def test_bad_rows_are_named(photos, tmp_path):
    for text, match in (
        ('{"image": "1 x.png"}\n[1]\n', r"line 2: \[1\] is not an object"),
        (
            '{"image": "1 x.png"}\n{"image": 3}\n',
            "line 2: 'image' is 3, not a path or address of an image: give image_column",
        ),
        ('{"image": "1 x.png"}\n{}\n', "line 2: 'image' is empty"),
        ('{"image": "1 x.png"}\n{"image":\n', "line 2, column 10: not valid JSON"),
        ('{"image": "ftp://x/1.png"}\n', "tables may name paths and addresses of http, https, s3"),
        ('{"image": "file:///etc/passwd"}\n', "tables may name paths and addresses of http, https, s3"),
    ):
        with pytest.raises(UsageError, match=match):
            load_dataset(write(photos / "x.jsonl", text))
    with pytest.raises(UsageError, match=r"x\.csv is not UTF-8 text \(line 3, byte \d+\)"):
        load_dataset(write(photos / "x.csv", b"path,title\n1 x.png,a\n2 x.png,gr\xfcn\n"))
    with pytest.raises(UsageError, match="is not a readable parquet file"):
        load_dataset(write(photos / "x.parquet", b"PAR1 not really"))


@pytest.mark.parametrize("kind", WRITERS)
def test_tables_are_converted_like_any_data(kind, photos, tmp_path):
    rows = [{"file": f"{n} x.png", "caption": f"shade {n}"} for n in range(3)]
    table = WRITERS[kind](photos / f"t.{kind}", rows)
    convert(source_at(table), tmp_path / "out", "coco")
    again = load_dataset(tmp_path / "out")
    assert list(again.references.values()) == [["shade 0"], ["shade 1"], ["shade 2"]]
    assert shades(again) == [0, 60, 120]
    with pytest.raises(UsageError, match="format 'jsonl' is only read"):
        convert(source_at(table), tmp_path / "more", "jsonl")  # type: ignore[arg-type]


def test_processes_share_what_one_of_them_unpacks(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    rows = [{"image": {"bytes": encoded(5 * n), "path": None}} for n in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    data = load_dataset(tmp_path / "x.parquet")
    report = check({"all": data}, num_workers=2)
    assert (report.splits["all"].images, report.splits["all"].broken) == (40, ())
    assert len(list((tmp_path / "cache" / "parquet").glob("*.bin"))) == 1
    assert pickle.loads(pickle.dumps(data[7].image)).read() == encoded(35)
    for file in (tmp_path / "cache" / "parquet").iterdir():
        file.unlink()
    assert data[7].image.read() == encoded(35), "what was deleted from the cache is unpacked again"


def test_braces_count_up_and_down(photos):
    for pattern, wanted in (("{0..2}", [0, 60, 120]), ("{2..1}", [120, 60]), ("{3..3}", [180])):
        assert shades(load_dataset(f"{photos}/{pattern} x.png")) == wanted


def test_lines_may_have_captions_that_the_first_line_lacks(photos):
    rows = [{"file": "0 x.png"}, {"file": "1 x.png", "text": "dark"}, {"file": "2 x.png", "text": "grey"}]
    data = load_dataset(as_jsonl(photos / "t.jsonl", rows))
    assert data.references == {"0 x.png": [], "1 x.png": ["dark"], "2 x.png": ["grey"]}


@pytest.mark.parametrize("ids", [[1, None, 7], [None, 0, 7]])
def test_images_without_a_path_have_ids_in_all_rows_or_in_none(ids, tmp_path):
    """Row 1 without an id would be known as "1", which is the id of row 0."""
    rows = [{"image": encoded(10 * n), "image_id": name} for n, name in enumerate(ids)]
    with pytest.raises(UsageError, match=r"row 2 has .*, unlike rows before it: give every image an id, or none"):
        load_dataset(as_parquet(tmp_path / "x.parquet", rows))
    for row in rows:
        row["image_id"] = None
    assert load_dataset(as_parquet(tmp_path / "y.parquet", rows)).ids == ["0", "1", "2"]


def test_bytes_are_unpacked_on_a_disk_without_locks_and_nothing_else_stays(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def flock(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    data = load_dataset(as_parquet(tmp_path / "x.parquet", [{"image": encoded(50)}]))
    assert shades(data) == [50]
    assert sorted(file.suffix for file in (tmp_path / "cache" / "parquet").iterdir()) == [".bin", ".npy"]


def test_a_small_table_that_unfolds_to_fill_the_disk_is_refused(tmp_path, monkeypatch):
    """Equal cells are stored once: a kilobyte became gigabytes in the cache."""
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    rows = [{"image": encoded(50) + bytes(5 * 2**20)} for _ in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", compression="zstd")
    assert (tmp_path / "x.parquet").stat().st_size < 10_000
    data = load_dataset(tmp_path / "x.parquet")
    with pytest.raises(UsageError, match=r"unfolds to more than 67,108,864 bytes, as a decompression bomb does"):
        data[0].image.read()
    assert not list((tmp_path / "cache" / "parquet").glob("*.bin"))


@pytest.mark.parametrize("kind", ["compressed", "repeated"])
@pytest.mark.parametrize("read", [lambda path: load_dataset(path, missing_files=True), read_results])
def test_a_small_table_of_captions_that_unfolds_to_fill_the_memory_is_refused(tmp_path, kind, read):
    """Only images were counted."""
    captions = [f"{n}{' ' * 2**20}" if kind == "compressed" else " " * 2**20 for n in range(70)]
    table = pa.table({"image": [f"{n}.jpg" for n in range(70)], "caption": captions})
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd", use_dictionary=kind == "repeated")
    assert (tmp_path / "x.parquet").stat().st_size < 100_000
    with pytest.raises(
        UsageError, match=r"x\.parquet unfolds to more than 67,108,864 bytes, as a decompression bomb does"
    ):
        read(tmp_path / "x.parquet")


def test_an_id_that_is_none_is_shown_in_short(tmp_path):
    """All of it was printed."""
    (tmp_path / "x.json").write_text(json.dumps([{"image_id": ["a" * 5000], "caption": "a"}]))
    with pytest.raises(UsageError, match=r"the id of row 1 is \['aaa.*: it must be text or a whole number") as raised:
        read_results(tmp_path / "x.json")
    assert len(str(raised.value)) < 500


def test_categories_count_as_the_rows_name_them(tmp_path, monkeypatch):
    """Each batch of rows holds all categories."""
    monkeypatch.setattr("tellapart.data.parquet.MOST_UNFOLDED", 2**10)
    monkeypatch.setattr("tellapart.data.parquet.MOST_RATIO", 2)
    named = pa.array([f"{n} is the number of this photo" for n in range(8000)])
    table = pa.table({"image": [f"{n}.jpg" for n in range(8000)], "caption": named.dictionary_encode()})
    pq.write_table(table, tmp_path / "x.parquet", compression="none", use_dictionary=["caption"])
    assert len(load_dataset(tmp_path / "x.parquet", missing_files=True)) == 8000


@pytest.mark.parametrize("named", [True, False])
def test_different_images_of_one_id_are_refused(named, tmp_path):
    """The second was dropped, and its caption went to the first."""
    rows = [
        {"image_id": name, "text": text, "image": encoded(shade)}
        for name, text, shade in (("a", "one", 1), ("a", "two", 2))
    ]
    kept = [{"image_id": "a", "text": text, "image": encoded(1)} for text in ("one", "two")]
    for place, row in enumerate(rows):
        row["image"] = {"bytes": row["image"], "path": f"{place}.png" if named else None}
    for row in kept:
        row["image"] = {"bytes": row["image"], "path": "0.png" if named else None}
    as_parquet(tmp_path / "same.parquet", kept)
    (example,) = load_dataset(tmp_path / "same.parquet", split="train")
    assert example.references == ("one", "two")
    as_parquet(tmp_path / "other.parquet", rows)
    with pytest.raises(UsageError, match="two different images have the id 'a', the later one in row 2"):
        load_dataset(tmp_path / "other.parquet", split="train")


def test_a_name_that_is_too_long_for_a_file_is_one_that_is_not_there(photos, tmp_path):
    rows = [
        {"image": name, "text": "a dog"} for name in ("x" * 300 + ".png", *sorted(p.name for p in photos.iterdir()))
    ]
    found = load_dataset(as_csv(tmp_path / "t.csv", rows), split="train", images=photos, missing_files=True)
    assert len(found) == len(rows)
