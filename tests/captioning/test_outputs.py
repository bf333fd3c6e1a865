"""Every form of output, read back with another tool; and sidecars that are there already."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from captioning.captioning_fakes import tar
from tellapart.captioning.gate import EMPTY, LOOP, LOW_MATCH, OPENER, SAME_CAPTION, SEVERITY
from tellapart.captioning.outputs import webdataset
from tellapart.captioning.outputs.base import image_ids
from tellapart.captioning.outputs.files import CocoResults, Csv, JsonLines, Parquet
from tellapart.captioning.outputs.sidecars import Sidecars
from tellapart.captioning.outputs.webdataset import WebDataset, add_member, ending_of
from tellapart.captioning.plan import plan
from tellapart.captioning.records import Caption, Item
from tellapart.captioning.review import judged, low_limit, require_own_review, same_limit, write_review
from tellapart.data.images import EncodedImage, ImageFile
from tellapart.data.load import load_dataset
from tellapart.errors import UsageError
from tellapart.evaluation.results import coco_results


def png(colour: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (4, 4), (colour, 0, 0)).save(data, "PNG")
    return data.getvalue()


@pytest.fixture
def photos(tmp_path):
    """Three photos, two of them in a folder."""
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(("000000000042.png", "sub/b.png", "sub/c.d.png")):
        (folder / name).write_bytes(png(number))
    return folder


def rows(folder, *captions):
    items = plan([str(folder)])
    said = captions or [Caption(item.id, f"Caption «{n}»", score=n / 4) for n, item in enumerate(items)]
    return [(item, caption) for item, caption in zip(items, said, strict=True)]


def test_json_lines_among_the_photos_are_metadata_that_others_read(photos):
    first = Caption("x", "eine Katze", flags=("loop",), match=0.5, candidates=(("eine Katze", 1.0), ("b", 0.5)))
    JsonLines(photos / "metadata.jsonl").assemble(rows(photos, first, Caption("y", "b"), Caption("z", "c")))
    lines = [json.loads(line) for line in (photos / "metadata.jsonl").read_text().splitlines()]
    assert [line["file_name"] for line in lines] == ["000000000042.png", "sub/b.png", "sub/c.d.png"]
    assert lines[0]["flags"] == ["loop"]
    assert lines[0]["candidates"][1] == {"caption": "b", "score": 0.5}
    assert "flags" not in lines[1]
    read = load_dataset(photos, split="train")
    assert [example.references for example in read] == [("eine Katze",), ("b",), ("c",)]


def test_elsewhere_file_names_are_absolute(photos, tmp_path):
    JsonLines(tmp_path / "out" / "x.jsonl").assemble(rows(photos))
    lines = [json.loads(line) for line in (tmp_path / "out" / "x.jsonl").read_text().splitlines()]
    assert [line["file_name"] for line in lines] == [str(item.path) for item, _ in rows(photos)]


def test_parquet(photos, tmp_path):
    made = rows(photos)
    made[1] = (made[1][0], made[1][1].flagged(LOOP))
    Parquet(tmp_path / "x.parquet").assemble(made)
    table = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert [row["caption"] for row in table] == ["Caption «0»", "Caption «1»", "Caption «2»"]
    assert [row["flags"] for row in table] == [[], ["loop"], []]
    assert [row["score"] for row in table] == [0.0, 0.25, 0.5]
    assert [row["match"] for row in table] == [None] * 3
    assert [row["id"] for row in table] == [item.id for item, _ in made]
    assert all(ImageFile(photos / row["file_name"].rpartition("photos/")[2]).open() for row in table)


def test_coco_results(photos, tmp_path):
    CocoResults(tmp_path / "x.json").assemble(rows(photos))
    assert json.loads((tmp_path / "x.json").read_text()) == [
        {"image_id": 42, "caption": "Caption «0»"},
        {"image_id": "b", "caption": "Caption «1»"},
        {"image_id": "c.d", "caption": "Caption «2»"},
    ]


def test_ids_of_coco_are_never_shared(photos):
    (photos / "b.png").write_bytes(png(9))
    items = plan([str(photos)])
    assert image_ids(items) == [42, str(photos / "b.png"), str(photos / "sub/b.png"), "c.d"]
    names = ("7", "007", "seven", "1" * 5000)  # Python reads no number of more than 4300 digits
    known = [Item(name, EncodedImage(b"", "x.png"), "x.png") for name in names]
    assert image_ids(known) == [7, *names[1:]]
    assert [row["image_id"] for row in coco_results(dict.fromkeys(names, "a"))] == list(names)
    assert [row["image_id"] for row in coco_results({"7": "a", "12": "b"})] == [7, 12]


def test_photos_become_shards(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "IMAGES_A_SHARD", 2)
    WebDataset(tmp_path / "out").assemble(rows(photos))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["00000.tar", "00001.tar"]
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        assert tar.getnames() == [f"00000000{n}{ending}" for n in (0, 1) for ending in (".png", ".txt", ".json")]
        assert tar.extractfile("000000001.txt").read().decode() == "Caption «1»"
        assert tar.extractfile("000000001.png").read() == png(1)
    read = load_dataset(tmp_path / "out", split="train")
    assert [(e.references, e.image.read()) for e in read] == [((f"Caption «{n}»",), png(n)) for n in range(3)]
    assert read.ids == [item.id for item, _ in rows(photos)]


MEMBERS = {
    "a/x.png": png(1),
    "a/x.txt": b"old",
    "a/x.json": b'{"url": "http://x", "captions": ["old"], "flags": ["loop"], "margin": -0.1, "rival": "y"}',
    "a/x.cls": b"3",
    "y.caption": b"old",
    "y.PNG": png(2),
    "z.png": b"broken",
    "z.txt": b"stays",
}


def shard(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in MEMBERS.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_shards_become_shards(tmp_path):
    items = plan([str(shard(tmp_path / "in" / "00007.tar"))])
    assert [item.id for item in items] == ["a/x", "y", "z"]
    output = WebDataset(tmp_path / "out")
    output.check(items)
    output.assemble([(item, Caption(item.id, f"new {item.id}")) for item in items[:2]])
    with tarfile.open(tmp_path / "out" / "00007.tar") as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}
    kept = {name: data for name, data in MEMBERS.items() if name in ("a/x.png", "a/x.cls", "y.PNG", "z.png", "z.txt")}
    assert {name: found[name] for name in kept} == kept
    assert set(found) - set(kept) == {"a/x.txt", "a/x.json", "y.txt", "y.json"}
    assert (found["a/x.txt"], found["y.txt"]) == (b"new a/x", b"new y")
    told = json.loads(found["a/x.json"])
    assert (told["url"], told["caption"], told["key"]) == ("http://x", "new a/x", "a/x")
    assert not {"captions", "flags", "margin", "rival"} & set(told)
    read = load_dataset(tmp_path / "out", split="train")
    assert [(e.id, e.references, e.image.read()) for e in read[:2]] == [
        ("a/x", ("new a/x",), png(1)),
        ("y", ("new y",), png(2)),
    ]


def test_samples_of_one_key_keep_their_own_captions(tmp_path):
    """As in archives that were put together from several: both captions went to the first sample, and the last lost its own."""
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for number, (key, name) in enumerate([("0", "a"), ("1", "b"), ("0", "c")]):
            add_member(tar, f"{key}.png", png(number))
            add_member(tar, f"{key}.json", json.dumps({"image_id": name}).encode())
    items = plan([str(tmp_path / "0.tar")])
    assert [item.id for item in items] == ["a", "b", "c"]
    output = WebDataset(tmp_path / "out")
    assert output.assemble([(item, Caption(item.id, f"of {item.id}")) for item in items]) == 3
    with tarfile.open(tmp_path / "out" / "0.tar") as tar:
        told = [(member.name, tar.extractfile(member).read()) for member in tar]
    assert [name for name, _ in told] == [f"{key}{end}" for key in "010" for end in (".png", ".txt", ".json")]
    assert [data for name, data in told if name.endswith(".txt")] == [b"of a", b"of b", b"of c"]
    assert [json.loads(data)["image_id"] for name, data in told if name.endswith(".json")] == ["a", "b", "c"]


def test_half_characters_of_a_shard_cost_no_caption(tmp_path):
    (tmp_path / "0.tar").write_bytes(tar({"0": {"png": png(1), "json": b'{"note": "x\\ud83d"}'}}))
    items = plan([str(tmp_path / "0.tar")])
    assert WebDataset(tmp_path / "out").assemble([(item, Caption(item.id, "new")) for item in items]) == 1
    with tarfile.open(tmp_path / "out" / "0.tar") as made:
        assert json.loads(made.extractfile("0.json").read())["note"] == "x\ud83d"


def test_a_table_keeps_a_name_with_a_carriage_return_in_one_row(photos):
    (photos / "a\rb.png").write_bytes(png(3))
    output = Csv(photos.parent / "x.csv")
    items = plan([str(photos)])
    rivals = [item.id for item in reversed(items)]
    captions = [Caption(item.id, f"number {place}", rival=rivals[place]) for place, item in enumerate(items)]
    output.assemble(list(zip(items, captions, strict=True)))
    with (photos.parent / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [item.id for item in items]
    assert [row["rival"] for row in rows] == rivals


def test_a_replaced_photo_does_not_keep_the_caption_of_the_one_before(photos):
    output = Sidecars(photos, mirrored=False)
    item, *_ = plan([str(photos)])
    earlier = output.prepare(item, Caption(item.id, "of the first"))
    output.apply(item, earlier)
    assert output.keeps(item)
    assert not output.keeps(item, earlier)
    output.target(item).write_text("edited by a person")
    assert output.keeps(item, earlier)


def test_an_empty_caption_appends_nothing(photos):
    output = Sidecars(photos, existing="append", mirrored=False)
    item, *_ = plan([str(photos)])
    output.target(item).write_text("human\n")
    output.apply(item, output.prepare(item, Caption(item.id, "")))
    assert output.target(item).read_text() == "human\n"


def test_a_caption_is_appended_once(photos):
    """Given again, the command appended it again, and the file is what a captioner may be trained on."""
    output = Sidecars(photos, existing="append", mirrored=False)
    item, *_ = plan([str(photos)])
    output.target(item).write_text("human\n")
    for caption in ("a dog", "a cat", "a dog"):
        output.apply(item, output.prepare(item, Caption(item.id, caption)))
    assert output.target(item).read_text() == "human\na dog\na cat\n"


def test_a_table_for_spreadsheets_is_read_again(photos):
    first = Caption("x", 'a "red", big\nbox', flags=("loop", "confused"), match=0.5, candidates=(("a", 1.0),))
    Csv(photos / "metadata.csv").assemble(
        rows(photos, first, Caption("y", "=b", rival="x", margin=-1.0), Caption("z", "ä"))
    )
    read = list(csv.DictReader((photos / "metadata.csv").read_text(encoding="utf-8").splitlines(keepends=True)))
    assert [*read[0]] == ["id", "file_name", "caption", "score", "match", "flags", "margin", "rival"]
    assert read[0] | {"caption": "", "id": ""} == dict.fromkeys(read[0], "") | {
        "file_name": "000000000042.png",
        "match": "0.5",
        "flags": "loop confused",
    }
    assert [row["caption"] for row in read] == ['a "red", big\nbox', "=b", "ä"]
    assert [example.references for example in load_dataset(photos, split="train")] == [
        (row["caption"],) for row in read
    ]


def test_an_id_that_was_a_number_stays_one():
    row = {"key": "k", "image_id": "1", "caption": "new"}
    assert webdataset.added({"image_id": 1, "caption": "old", "width": 3}, row) == row | {"image_id": 1, "width": 3}
    assert webdataset.added({"image_id": 2}, row) == webdataset.added({}, row) == row


def test_a_finished_shard_is_not_written_again(photos, tmp_path):
    output = WebDataset(tmp_path / "out")
    output.assemble(rows(photos))
    before = (tmp_path / "out" / "00000.tar").stat().st_ino
    output.assemble(rows(photos))
    assert (tmp_path / "out" / "00000.tar").stat().st_ino == before
    changed = rows(photos)
    changed[0] = (changed[0][0], Caption("x", "other"))
    output.assemble(changed)
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        assert tar.extractfile("000000000.txt").read() == b"other"


def test_shards_that_would_be_mixed_up_are_refused(tmp_path):
    one, two = shard(tmp_path / "1" / "00000.tar"), shard(tmp_path / "2" / "00000.tar")
    items = [*plan([str(one)]), *plan([str(two)])]
    with pytest.raises(UsageError, match=r"have the same name"):
        WebDataset(tmp_path / "out").check(items)
    with pytest.raises(UsageError, match=r"is the folder of the input"):
        WebDataset(tmp_path / "1").check(plan([str(one)]))
    with pytest.raises(UsageError, match=r"two images are called 'a/x'.*: caption the data sets one by one"):
        plan([str(one), str(two)])
    table = tmp_path / "t.csv"
    table.write_text(f"image_id,file_name\n1,{one}\n1,{two}\n")
    with pytest.raises(UsageError, match=r"two images are called '1'.*: correct the ids, or give another --id_column"):
        plan([str(table)])


def write(output, photos, text="new"):
    for item in plan([str(photos)]):
        if not output.keeps(item):
            caption = output.prepare(item, Caption(item.id, text))
            output.apply(item, caption)
            output.apply_again(item, caption)  # as when the run was killed after the first time


@pytest.mark.parametrize(
    ("existing", "text"), [("keep", "mine"), ("overwrite", "new\n"), ("append", "mine\nnew\n"), ("backup", "new\n")]
)
def test_sidecars_that_are_there(photos, existing, text):
    (photos / "sub" / "b.txt").write_text("mine")
    write(Sidecars(photos, existing=existing, mirrored=False), photos)
    assert (photos / "sub" / "b.txt").read_text() == text
    assert (photos / "sub" / "c.d.txt").read_text() == "new\n"
    made = {path.name for path in photos.rglob("*") if path.suffix != ".png" and path.is_file()}
    backup = {"b.txt.bak"} if existing == "backup" else set()
    assert made == {"000000000042.txt", "b.txt", "c.d.txt"} | backup
    if backup:
        assert (photos / "sub" / "b.txt.bak").read_text() == "mine"
        write(Sidecars(photos, existing="backup", mirrored=False), photos, "newer")
        assert (photos / "sub" / "b.txt.bak").read_text() == "mine"
        assert (photos / "sub" / "b.txt.bak1").read_text() == "new\n"


@pytest.mark.parametrize("existing", ["keep", "overwrite", "append", "backup"])
def test_what_a_kill_left_out_is_written_and_what_a_person_changed_stays(photos, existing):
    """A resumed run put its own captions back where a person had edited the last batch's."""
    output, mine = Sidecars(photos, existing=existing, mirrored=False), photos / "sub" / "b.txt"
    mine.write_text("mine")
    items = [item for item in plan([str(photos)]) if not output.keeps(item)]
    drawn = [output.prepare(item, Caption(item.id, "new")) for item in items]
    for again in range(2):  # killed before any was written, then after a person had been there
        for item, caption in zip(items, drawn, strict=True):
            caption = Caption.from_json(json.loads(json.dumps(caption.as_json())))
            output.apply_again(item, caption)
            target = output.target(item)
            assert target.read_text() == ("edited" if again else "mine\nnew\n" if caption.text else "new\n")
            target.write_text("edited")


def test_sidecars_in_a_folder_of_their_own(photos, tmp_path):
    write(Sidecars(tmp_path / "out", extension=".caption", mirrored=True), photos)
    made = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.caption")}
    assert made == {"000000000042.caption", "sub/b.caption", "sub/c.d.caption"}


def test_images_of_a_table_keep_a_question_mark_of_their_names(tmp_path):
    """A file's name was cut there as an address is, so that such photos could have no sidecars: all were called "who"."""
    for name in ("who?1.png", "who?2.png"):
        (tmp_path / name).write_bytes(png(0))
    rows = ["image_id,file_name", "1,who?1.png", "2,who?2.png", "../../3,https://example.org/a/b.png?w=9"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    items, sidecars = plan([str(tmp_path / "t.csv")]), Sidecars(tmp_path / "out", mirrored=True)
    sidecars.check(items)
    assert [sidecars.target(item).name for item in items] == ["who?1.txt", "who?2.txt", "b.txt"]
    assert {sidecars.target(item).parent for item in items} == {tmp_path / "out"}


def test_sidecars_that_cannot_be(photos, tmp_path):
    (photos / "sub" / "b.jpg").write_bytes(png(1))
    with pytest.raises(UsageError, match=r"b\.jpg and .*b\.png would share the sidecar .*b\.txt: rename one"):
        Sidecars(photos, mirrored=False).check(plan([str(photos)]))
    with pytest.raises(
        UsageError, match=r"is not a file, so no sidecar can be written next to it: give --output FOLDER"
    ):
        Sidecars(photos, mirrored=False).check(plan([str(shard(tmp_path / "in" / "0.tar"))]))


def test_a_sidecar_whose_name_no_disk_allows_is_refused_before_anything_is_drawn(photos, tmp_path):
    """The run stopped at it, after all images of its batch were captioned."""
    (photos / f"{'é' * 120}.png").write_bytes(png(1))  # 244 bytes
    items = plan([str(photos)])
    output = Sidecars(photos, extension=".caption.txt", mirrored=False)
    output.check(items)
    output.apply(items[-1], Caption(items[-1].id, "a"))
    assert output.target(items[-1]).read_text() == "a\n"
    for place, mirrored in ((photos, False), (tmp_path / "out", True)):
        with pytest.raises(
            UsageError, match=r"the sidecar of .*é\.png would have a name of more than 255 bytes: rename"
        ):
            Sidecars(place, extension=".long_caption.txt", mirrored=mirrored).check(items)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_sidecar_never_replaces_an_image(tmp_path, mirrored):
    (tmp_path / "scan.heic").write_bytes(png(1))
    (tmp_path / "other.png").write_bytes(png(2))
    items = plan([str(tmp_path / "other.png"), str(tmp_path / "scan.heic")])
    Sidecars(tmp_path, mirrored=mirrored).check(items)
    with pytest.raises(UsageError, match=r"sidecar .*scan\.heic of .*scan\.heic would replace an image: give another"):
        Sidecars(tmp_path, extension=".heic", existing="overwrite", mirrored=mirrored).check(items)


def test_shards_have_the_endings_of_images_whatever_their_addresses_end_in(tmp_path):
    """A table's addresses gave members such as 000000000.php, in which no reader finds an image."""
    names = ("photo.php", "photo.v2", "photo.jpg?w=1", "a.PNG")
    items = [Item(name, EncodedImage(png(n), f"https://x.org/{name}"), name) for n, name in enumerate(names)]
    WebDataset(tmp_path / "out").assemble([(item, Caption(item.id, "a")) for item in items])
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        assert [name for name in tar.getnames() if name.endswith(".png")] == [f"00000000{n}.png" for n in range(4)]
    assert len(load_dataset(tmp_path / "out", split="train")) == 4
    assert ending_of(Item("a.heic", EncodedImage(b"", "a.heic"), "a.heic"), b"of another kind") == ".heic"


def test_no_cell_of_a_review_is_a_formula(tmp_path):
    item = Item("=1+1.png", EncodedImage(png(1), "=1+1.png"), "a.png")
    write_review(tmp_path / "r.csv", [(item, Caption(item.id, "@SUM(A1)", flags=("loop",)))], {}, [item])
    (row,) = list(csv.reader((tmp_path / "r.csv").open()))[1:]
    assert row[:3] == ["'=1+1.png", "'=1+1.png", "'@SUM(A1)"]


def test_half_written_files_of_a_killed_run_go(photos):
    (photos / "sub" / ".b.txt.abcd12_x").write_text("ha")
    (photos / "sub" / ".mine.abcd12_x").write_text("stays")
    Sidecars(photos, mirrored=False).clean(plan([str(photos)]))
    assert sorted(path.name for path in (photos / "sub").glob(".*")) == [".mine.abcd12_x"]


def test_the_review_lists_the_worst_first(tmp_path):
    items = [Item(str(n), EncodedImage(b"", f"{n}.png"), f"{n}.png") for n in range(7)]
    made = [
        (items[0], Caption("0", "a dog", flags=("opener",))),
        (items[1], Caption("1", "", flags=("empty",))),
        (items[2], Caption("2", "A dog!", flags=("loop",), match=0.9)),
        (items[3], Caption("3", "a, cat", flags=("loop",), match=0.1)),
        (items[4], Caption("4", "a red cup", flags=("confused",), match=0.1, margin=-0.01, rival="3")),
        (items[5], Caption("5", "a cup", flags=("confused",), match=0.9, margin=-0.2, rival="=4")),
    ]
    assert write_review(tmp_path / "review.csv", made, {"6": "6.png is no image: remove it."}, items) == 7
    assert (tmp_path / "review.csv").read_text().splitlines() == [
        "photo,id,caption,reasons,match,margin,rival,occurrences",
        "6.png,6,,no caption: 6.png is no image: remove it.,,,,",
        "1.png,1,,empty,,,,1",
        '3.png,3,"a, cat",loop,0.1000,,,1',
        "2.png,2,A dog!,loop,0.9000,,,2",
        "5.png,5,a cup,confused,0.9000,-0.2000,'=4,1",
        "4.png,4,a red cup,confused,0.1000,-0.0100,3,1",
        "0.png,0,a dog,opener,,,,2",
    ]
    require_own_review(tmp_path / "review.csv")
    (tmp_path / "review.csv").write_text("photo,caption,reasons,match,occurrences\n")  # of an earlier version
    require_own_review(tmp_path / "review.csv")
    (tmp_path / "mine.csv").write_text("photo,caption,price\n")
    with pytest.raises(
        UsageError, match=r"mine\.csv is not a review of captions, and would be replaced by one: rename"
    ):
        require_own_review(tmp_path / "mine.csv")
    assert write_review(tmp_path / "review.csv", [], {}, items) == 0
    assert not (tmp_path / "review.csv").exists()


def numbered(captions, matches=None):
    matches = [None] * len(captions) if matches is None else matches
    items = [Item(str(n), EncodedImage(b"", f"{n}.png"), f"{n}.png") for n in range(len(captions))]
    return [
        (item, Caption(item.id, text, match=match)) for item, text, match in zip(items, captions, matches, strict=True)
    ]


def flags(made, **options):
    return [caption.flags for _, caption in judged(made, **{"checks": SEVERITY, **options})]


def test_a_caption_of_too_many_images_is_flagged():
    said = ["A dog."] * 6 + ["a dog"] * 5 + ["a cat"] * 10
    assert flags(numbered(said)) == [(SAME_CAPTION,)] * 11 + [()] * 10
    assert flags(numbered(said), max_same=9) == [(SAME_CAPTION,)] * 21
    assert flags(numbered(said), checks=(EMPTY,)) == [()] * 21
    assert flags(numbered([""] * 50)) == [()] * 50, "an empty caption has a flag of its own"
    assert (same_limit(100), same_limit(100_000)) == (10, 100)


def test_flags_are_worst_first_wherever_they_come_from():
    matches = [0.1, *np.random.default_rng(0).normal(0.8, 0.05, 400).tolist()]
    made = [(item, replace(caption, flags=(OPENER,))) for item, caption in numbered(["a"] * 401, matches)]
    assert flags(made, checks=SEVERITY)[0] == (LOW_MATCH, SAME_CAPTION, OPENER)


def test_captions_that_fit_far_worse_than_the_rest_are_flagged():
    matches = np.random.default_rng(0).normal(0.8, 0.05, 400).tolist()
    assert flags(numbered([str(n) for n in range(400)], matches)).count((LOW_MATCH,)) == 0
    told = flags(numbered([str(n) for n in range(402)], [*matches, 0.3, 0.79]))
    assert [number for number, flag in enumerate(told) if flag] == [400]
    median = float(np.median(matches))
    spread = float(np.median(np.abs(np.array(matches) - median)))
    assert low_limit(matches) == pytest.approx(median - 4 * 1.4826 * spread)
    assert low_limit(matches[:49]) is None
    assert low_limit([0.5] * 90) is None
    assert LOW_MATCH not in sum(flags(numbered(["a"] * 60, [0.9, *([0.5] * 58), 0.1]), min_match=0.2), ())
