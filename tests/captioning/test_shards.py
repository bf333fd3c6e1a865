"""Shards in, shards out: what is read, written, counted, tried again and given up, with stations without models."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import tarfile
import time
import weakref
from collections import Counter
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from captioning.captioning_fakes import OPENING, Deadly, build_opening, draw, opening, plain, png, shard_job, tar
from tellapart.captioning.records import Caption
from tellapart.captioning.serve import Station
from tellapart.captioning.shards.launch import ATTEMPTS, Outcome, caption_shards, shards_of, share_of
from tellapart.captioning.shards.output import CLAIMS, ShardFolder
from tellapart.captioning.shards.parts import CAPTIONS, Part
from tellapart.captioning.shards.samples import Reading, sample_of, tar_samples
from tellapart.captioning.shards.shard import caption_shard, output_name
from tellapart.data.remote import folders
from tellapart.data.remote.folders import Folder
from tellapart.errors import UsageError
from tellapart.types import Batch

SETTINGS = {"captioner": "x (1234)", "seed": 42}


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


@pytest.fixture
def output(tmp_path) -> ShardFolder:
    return ShardFolder.begin(Folder(str(tmp_path / "out")), SETTINGS)


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(folders, "BACK_OFF", 0.001)
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    if filesystem.exists("/bucket"):
        filesystem.rm("/bucket", recursive=True)


@pytest.mark.parametrize(("given", "said"), [(42.0, "is 42.0"), (float("nan"), "is nan"), (True, "is True")])
def test_ids_of_a_parquet_shard_are_text_or_whole_numbers(tmp_path, given, said):
    """What pandas writes for whole numbers with gaps came out as 42.0, which joined with no table."""
    image = {"bytes": png(1), "path": "1.png"}
    pq.write_table(pa.table({"image": [image], "image_id": [given]}), tmp_path / "0.parquet")
    (sample,) = Reading().samples(str(tmp_path / "0.parquet"))
    assert sample.item is None
    assert f"'image_id' of row 1 {said}: it must be text or a whole number" in sample.problem


def test_json_nested_without_end_costs_its_sample_nothing():
    """It failed its whole shard."""
    members = [("0.png", b"x"), ("0.json", b"[" * 100_000)]
    assert sample_of("0.tar", "0", members).item.id == "0"


def test_hidden_files_of_a_shard_belong_to_no_sample():
    """What macOS packs next to each file; it made three samples out of each one, all of them at fault."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in (("a/._1.jpg", b"x"), ("a/1.jpg", png(1)), ("a/._1.txt", b"x"), ("a/1.txt", b"old")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (found,) = tar_samples(data, "x.tar")
    assert (found.key, found.problem) == ("a/1", None)
    assert [name for name, _ in found.members] == ["a/1.jpg", "a/1.txt"]


def test_a_shard_keeps_its_name_order_and_bytes(tmp_path, output):
    data = tar(
        {
            "a": {"png": png(0), "json": b'{"image_id": 5, "url": "u", "captions": ["old"]}', "txt": b"old"},
            "b": {"png": b"no image", "cls": b"2"},
            "c": {"cls": b"3"},
            "d": {"x.png": png(1), "png": png(2)},
            "e": {"png": png(1)},
            "f/g.v1": {"jpg": png(2)},
        }
    )
    (tmp_path / "00000.tar").write_bytes(data)
    part = caption_shard(str(tmp_path / "00000.tar"), OPENING, output, shard_job(batch_size=2))
    written = members(Path(output.folder.at("00000.tar")).read_bytes())
    before = members(data)
    assert {name: written[name] for name in before if not name.endswith((".txt", ".json"))} == {
        name: value for name, value in before.items() if not name.endswith((".txt", ".json"))
    }
    assert written["a.txt"] == b"caption of 5"
    row = json.loads(written["a.json"])
    assert (row["image_id"], row["key"], row["url"], row["caption"]) == (5, "a", "u", "caption of 5")
    assert "captions" not in row
    assert {name for name in written if name.endswith(".txt")} == {"a.txt", "d.txt", "e.txt"} | {"f/g.txt"} - {
        "f/g.txt"
    }
    assert (part.images, part.captioned, part.broken) == (6, 3, 3)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_instead_of_tars(kind, tmp_path, output):
    (tmp_path / "7.tar").write_bytes(plain(0, 40))
    part = caption_shard(str(tmp_path / "7.tar"), OPENING, output, shard_job(kind))
    path = Path(output.folder.at(f"7.{kind}"))
    rows = (
        pq.read_table(path).to_pylist() if kind == "parquet" else list(map(json.loads, path.read_text().splitlines()))
    )
    assert [row["caption"] for row in rows] == [f"caption of {number:05}" for number in range(40)]
    assert rows[3]["file_name"].endswith("7.tar/00003.png")
    assert part.captioned == 40


@pytest.mark.parametrize("column", ["struct", "binary", "path"])
def test_parquet_of_bytes_and_of_paths(column, tmp_path, output):
    data = [png(number) for number in range(5)]
    for number, image in enumerate(data):
        (tmp_path / f"{number}.png").write_bytes(image)
    values = {
        "struct": [{"bytes": image, "path": f"{number}.png"} for number, image in enumerate(data)],
        "binary": data,
        "path": [f"{number}.png" for number in range(5)],
    }[column]
    values[3] = None
    pq.write_table(
        pa.table({"image": values, "image_id": [10, 11, 12, 13, 10]}), tmp_path / "t.parquet", row_group_size=2
    )
    part = caption_shard(str(tmp_path / "t.parquet"), OPENING, output, shard_job())
    assert (part.captioned, part.broken) == (3, 2)
    assert "row 4 has no image" in part.errors[0]
    assert "'10' occurs twice" in part.errors[1]
    written = members(Path(output.folder.at("t.tar")).read_bytes())
    assert [json.loads(written[f"00000000{n}.json"])["image_id"] for n in range(3)] == ["10", "11", "12"]
    assert [data[n] in written.values() for n in range(3)] == [True] * 3


def test_a_table_in_a_store_names_images_beside_it(memory):
    memory.pipe("/bucket/in/photos/1.png", png(1))
    memory.pipe("/bucket/in/photos/2.png", b"<html>try later</html>")
    buffer = io.BytesIO()
    named = ["photos/1.png", "photos/2.png", "photos/3.png", "file:///etc/hostname"]
    pq.write_table(pa.table({"file_name": named}), buffer)
    memory.pipe("/bucket/in/t.parquet", buffer.getvalue())
    output = ShardFolder.begin(Folder("memory://bucket/out"), SETTINGS)
    part = caption_shard("memory://bucket/in/t.parquet", OPENING, output, shard_job("jsonl"))
    assert (part.captioned, part.broken) == (1, 3)
    row = json.loads(output.folder.read("t.jsonl"))
    assert (row["id"], row["file_name"]) == ("photos/1.png", "memory://bucket/in/photos/1.png")
    assert "file:///etc/hostname" in part.errors[2]


@pytest.mark.parametrize("broken", [{"png": b"no image"}, {"cls": b"1"}])
def test_the_first_fault_may_end_it(broken, tmp_path, output):
    (tmp_path / "x.tar").write_bytes(tar({"a": {"png": png(0)}, "b": broken, "c": {"png": png(1)}}))
    with pytest.raises(UsageError, match=r"x\.tar"):
        caption_shards([str(tmp_path / "x.tar")], build_opening, output, shard_job(fail=True), silent)
    assert (output.done(), output.failed()) == (set(), {})


def test_a_cut_tar_gives_what_stands_before_the_cut(tmp_path, output):
    whole = plain(0, 10)
    (tmp_path / "x.tar").write_bytes(whole[: len(whole) // 2])
    part = caption_shard(str(tmp_path / "x.tar"), OPENING, output, shard_job())
    assert 0 < part.captioned < 10
    assert "not a whole tar archive" in str(part.damaged)
    assert Part.from_json(part.as_json()) == part
    (tmp_path / "y.tar").write_bytes(b"no tar" * 1000)
    with pytest.raises(UsageError, match="not a whole tar"):
        caption_shard(str(tmp_path / "y.tar"), OPENING, output, shard_job())
    assert output.done() == {"x.tar"}
    assert not [path for path in Path(output.folder.address).rglob(".*") if path.is_file()], "nothing temporary stays"


def test_memory_holds_a_window_not_a_shard(tmp_path, output, monkeypatch):
    """The most samples that live at once, in windows of 4, are as many for 600 as for 60."""
    live = Counter()

    def counted(*given):
        sample = sample_of(*given)
        live["now"] += 1
        live["most"] = max(live["most"], live["now"])
        weakref.finalize(sample, lambda: live.update(now=-1))
        return sample

    monkeypatch.setattr("tellapart.captioning.shards.samples.sample_of", counted)

    def peak(count: int) -> int:
        live.clear()
        (tmp_path / f"{count}.tar").write_bytes(plain(0, count))
        part = caption_shard(str(tmp_path / f"{count}.tar"), OPENING, output, shard_job(by_size=False))
        assert part.captioned == count
        return live["most"]

    assert peak(60) <= 40
    assert peak(600) <= 40


def silent(outcome: Outcome) -> None:
    return


def captions_in(output: ShardFolder) -> list[str]:
    """The captioned ids of all shards, each as often as it occurs."""
    found = []
    for name in sorted(output.done()):
        written = members(output.folder.read(name))
        found += [json.loads(data)["image_id"] for name, data in written.items() if name.endswith(".json")]
    return found


@pytest.fixture
def shards(tmp_path) -> list[str]:
    for number in range(6):
        (tmp_path / f"{number:05}.tar").write_bytes(plain(10 * number, 10))
    return [str(tmp_path / f"{number:05}.tar") for number in range(6)]


def test_a_broken_shard_is_tried_three_times_and_the_rest_goes_on(shards, output, monkeypatch, caplog):
    monkeypatch.setattr("tellapart.captioning.shards.launch.BACK_OFF", 0.001)
    Path(shards[2]).write_bytes(b"x" * 2000)
    outcome = caption_shards(shards, build_opening, output, shard_job(), silent)
    assert (outcome.done, outcome.images, list(outcome.failed)) == (5, 50, ["00002.tar"])
    assert sum("tried again" in record.getMessage() for record in caplog.records) == ATTEMPTS - 1
    assert list(output.failed()) == ["00002.tar"]
    Path(shards[2]).write_bytes(plain(20, 10))
    outcome = caption_shards(shards, build_opening, output, shard_job(), silent)
    assert (outcome.before, outcome.done, output.failed()) == (5, 1, {})
    assert captions_in(output) == [f"{number:05}" for number in range(60)]


def test_a_table_without_images_is_tried_once_and_the_rest_goes_on(shards, output, tmp_path, caplog):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "bare.parquet")
    mixed = [str(tmp_path / "bare.parquet"), *shards[:2]]
    outcome = caption_shards(mixed, build_opening, output, shard_job(), silent)
    assert (outcome.done, list(outcome.failed), outcome.unusable) == (2, ["bare.tar"], {"bare.tar"})
    assert "has none of the columns" in outcome.failed["bare.tar"]
    assert not [record for record in caplog.records if "tried again" in record.getMessage()]
    assert list(output.failed()) == ["bare.tar"]
    pq.write_table(pa.table({"image": [png(3)]}), tmp_path / "bare.parquet")
    outcome = caption_shards(mixed, build_opening, output, shard_job(), silent)
    assert (outcome.before, outcome.done, output.failed()) == (2, 1, {})


@pytest.mark.parametrize("where", ["here", "memory"])
@pytest.mark.parametrize("change", ["cut", "removed", "as before"])
def test_a_shard_whose_file_was_cut_is_captioned_again(change, where, shards, tmp_path, memory):
    folder = Folder(str(tmp_path / "out") if where == "here" else "memory://bucket/out")
    output = ShardFolder.begin(folder, SETTINGS)
    caption_shards(shards[:2], build_opening, output, shard_job(), silent)
    whole = folder.read("00000.tar")
    if change == "removed":
        folder.remove("00000.tar")
    elif change == "cut":
        folder.write("00000.tar", whole[: len(whole) // 2])
    redone = int(change != "as before")
    assert output.done() == {"00000.tar", "00001.tar"} - ({"00000.tar"} if redone else set())
    assert output.is_done("00000.tar", shards[0]) == (where == "here" and not redone)
    assert len(list(output.parts())) == 2 - redone
    outcome = caption_shards(shards[:2], build_opening, output, shard_job(), silent)
    assert (outcome.before, outcome.done) == (2 - redone, redone)
    assert folder.read("00000.tar") == whole
    assert len(list(output.parts())) == len(folder.names("review")) == 2


@pytest.mark.parametrize("where", ["here", "memory"])
def test_a_damaged_shard_is_captioned_again_once_it_is_repaired(where, tmp_path, memory):
    base = str(tmp_path) if where == "here" else "memory://bucket"
    source, output = Folder(base), ShardFolder.begin(Folder(f"{base}/out"), SETTINGS)
    whole = plain(0, 10)
    source.write("00000.tar", whole[: len(whole) // 3])

    def captioned() -> tuple[int, int, int, int]:
        outcome = caption_shards([source.at("00000.tar")], build_opening, output, shard_job(), silent)
        return outcome.before, outcome.done, len(outcome.damaged), len(outcome.still_damaged)

    assert captioned() == (0, 1, 1, 0)
    assert captioned() == (1, 0, 0, 1), "nothing has changed"
    source.write("00000.tar", whole[: len(whole) // 2])
    assert captioned() == (0, 1, 1, 0)
    source.write("00000.tar", whole)
    assert captioned() == (0, 1, 0, 0)
    assert captioned() == (1, 0, 0, 0)
    assert len(captions_in(output)) == 10
    assert len(output.folder.names("review")) == 1, "one review part, and no note of damage"


@pytest.mark.parametrize("where", ["here", "memory"])
def test_a_shard_that_was_replaced_or_grew_is_captioned_again(where, tmp_path, memory, caplog):
    """Captions of the former images stayed, and those of new ones never came."""
    base = str(tmp_path) if where == "here" else "memory://bucket"
    source, output = Folder(base), ShardFolder.begin(Folder(f"{base}/out"), SETTINGS)
    for number in range(3):
        source.write(f"{number:05}.tar", plain(10 * number, 10))
    addresses = [source.at(f"{number:05}.tar") for number in range(3)]

    def captioned() -> tuple[int, int]:
        outcome = caption_shards(addresses, build_opening, output, shard_job(), silent)
        return outcome.before, outcome.done

    assert captioned() == (0, 3)
    assert captioned() == (3, 0)
    source.write("00000.tar", plain(50, 10))
    source.write("00002.tar", plain(20, 13))
    caplog.clear()
    assert captioned() == (1, 2)
    assert "00000.tar and 1 more have changed since captions were written" in caplog.text
    assert captions_in(output) == [f"{number:05}" for number in (*range(50, 60), *range(10, 20), *range(20, 33))]
    assert len(output.folder.names("review")) == 3
    assert captioned() == (3, 0)


def test_review_parts_of_earlier_versions_count(shards, tmp_path):
    output = ShardFolder.begin(Folder(str(tmp_path / "out")), SETTINGS)
    caption_shards(shards[:2], build_opening, output, shard_job(), silent)
    for part in (tmp_path / "out" / "review").iterdir():
        part.rename(part.with_name(part.stem.rpartition(".")[0] + ".json"))
    outcome = caption_shards(shards[:2], build_opening, output, shard_job(), silent)
    assert (outcome.before, outcome.done) == (2, 0)


def test_nothing_but_failures_ends_it(tmp_path, output):
    for number in range(40):
        (tmp_path / f"{number:05}.tar").write_bytes(b"x" * 2000)
    with pytest.raises(UsageError, match="first 30 tries all failed"):
        caption_shards(shards_of([str(tmp_path / "*.tar")]), build_opening, output, shard_job(), silent)
    assert output.failed() == {}


def test_a_store_that_fails_now_and_then(memory, monkeypatch):
    for number in range(3):
        memory.pipe(f"/bucket/in/{number}.tar", plain(10 * number, 10))
    output = ShardFolder.begin(Folder("memory://bucket/out"), SETTINGS)
    put, calls = memory.put_file, Counter()

    def flaky(*given, **named):
        calls["put"] += 1
        if calls["put"] % 3 == 1:
            raise ConnectionError("reset by peer")
        return put(*given, **named)

    monkeypatch.setattr(type(memory), "put_file", lambda self, *given, **named: flaky(*given, **named))
    shards = shards_of(["memory://bucket/in"])
    outcome = caption_shards(shards, build_opening, output, shard_job(), silent)
    assert (outcome.done, outcome.failed) == (3, {})
    assert captions_in(output) == [f"{number:05}" for number in range(30)]
    assert not [name for name in memory.find("/bucket/out") if "/." in name], "temporary names were renamed"
    assert caption_shards(shards, build_opening, output, shard_job(), silent).before == 3


def test_a_put_that_keeps_failing_leaves_no_half_shard(memory, monkeypatch):
    memory.pipe("/bucket/in/0.tar", plain(0, 4))
    output = ShardFolder.begin(Folder("memory://bucket/out"), SETTINGS)
    monkeypatch.setattr("tellapart.captioning.shards.launch.BACK_OFF", 0.001)
    monkeypatch.setenv("STORE_SECRET_ACCESS_KEY", "qX9-very-secret-value")
    put = type(memory).put_file

    def broken(self, source, target, **named):
        if ".failed." in target:
            return put(self, source, target, **named)
        self.pipe(target, b"half")
        raise ConnectionError("403 for the key qX9-very-secret-value")

    monkeypatch.setattr(type(memory), "put_file", broken)
    outcome = caption_shards(["memory://bucket/in/0.tar"], build_opening, output, shard_job(), silent)
    assert list(outcome.failed) == ["0.tar"]
    assert output.done() == set()
    everything = {name: memory.cat_file(name) for name in memory.find("/bucket/out")}
    assert not any(name.endswith(".tar") or "/." in name for name in everything)
    assert b"403 for the key" in b"".join(everything.values())
    assert not [name for name, data in everything.items() if b"very-secret" in data]
    assert "very-secret" not in str(outcome)


def test_addresses_with_credentials_are_refused():
    with pytest.raises(UsageError, match="environment") as refusal:
        Folder("s3://AKIA123:s3cr3t@bucket/out")
    assert "s3cr3t" not in str(refusal.value)


@pytest.mark.slow
def test_processes_that_die_lose_and_double_nothing(shards, output, tmp_path, monkeypatch):
    """One shard kills its process once, another always: only that one is given up."""
    monkeypatch.setattr("tellapart.captioning.shards.launch.BACK_OFF", 0.001)
    imports = ("captioning.captioning_fakes", "tellapart.captioning.shards.launch")
    outcome = caption_shards(
        shards, Deadly(tmp_path, "00013", "00033"), output, shard_job(processes=2, imports=imports), silent
    )
    assert (tmp_path / "died").exists()
    assert (outcome.done, list(outcome.failed)) == (5, ["00003.tar"])
    assert "was killed by signal 9" in outcome.failed["00003.tar"]
    assert captions_in(output) == [f"{number:05}" for number in range(60) if not 30 <= number < 40]


def kill_often(shards: list[str], output: ShardFolder, kills: int) -> int:
    """Start the work in forked processes, of which the first ones are killed at random moments; how many were killed."""
    drawn, killed = random.Random(0), 0

    def slowly(batch: Batch, described: int) -> list[Caption]:
        time.sleep(0.02)  # 30 batches, 0.6 s in all: at least four children are killed before it is done
        return draw(batch, described)

    for _ in range(kills):
        child = os.fork()
        if not child:
            caption_shards(
                shards, lambda rank, processes: Station(opening, slowly), output, shard_job(batch_size=2), silent
            )
            os._exit(0)
        time.sleep(drawn.uniform(0.02, 0.15))
        os.kill(child, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return killed


def test_kills_of_the_whole_command_lose_and_double_nothing(shards, output):
    assert kill_often(shards, output, 20) >= 4
    caption_shards(shards, build_opening, output, shard_job(), silent)
    assert output.done() == {Path(shard).name for shard in shards}
    assert captions_in(output) == [f"{number:05}" for number in range(60)]
    files = [path for path in Path(output.folder.address).rglob("*") if path.is_file() and path.parent.name != CLAIMS]
    left = [path for path in files if path.suffix not in (".tar", ".json")]
    assert left == [], "what the kills left half-written is gone"


def test_a_shard_that_another_process_holds_is_left_to_it(shards, output, tmp_path):
    with output.claim("00001.tar"):
        child = os.fork()
        if not child:
            (tmp_path / "said").write_text(repr(caption_shards(shards, build_opening, output, shard_job(), silent)))
            os._exit(0)
        os.waitpid(child, 0)
    said = (tmp_path / "said").read_text()
    assert "done=5" in said
    assert "elsewhere=['00001.tar']" in said
    assert caption_shards(shards, build_opening, output, shard_job(), silent).done == 1


def test_parts_are_disjoint_and_together_all(shards):
    for count in (1, 2, 4, 7):
        taken = [shard for index in range(count) for shard in shards[index::count]]
        assert sorted(taken) == shards


@pytest.mark.parametrize(
    ("given", "environment", "part"),
    [
        (None, {}, (0, 1)),
        ("2/5", {"RANK": "0", "WORLD_SIZE": "2"}, (2, 5)),
        (None, {"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        (
            None,
            {
                "SLURM_ARRAY_TASK_ID": "7",
                "SLURM_ARRAY_TASK_COUNT": "3",
                "SLURM_ARRAY_TASK_MIN": "3",
                "SLURM_ARRAY_TASK_STEP": "2",
            },
            (2, 3),
        ),
        ("/16", {"JOB_COMPLETION_INDEX": "3"}, (3, 16)),
    ],
)
def test_which_part(given, environment, part):
    assert share_of(given, environment) == part


@pytest.mark.parametrize(
    ("given", "environment", "sentence"),
    [
        ("5/5", {}, "counted from 0 to 4"),
        ("one", {}, "write I/N"),
        ("0/0", {}, "write I/N"),
        ("/4", {}, "sets none"),
        (None, {"JOB_COMPLETION_INDEX": "3"}, "give --shard /N"),
    ],
)
def test_parts_that_cannot_be(given, environment, sentence):
    with pytest.raises(UsageError, match=sentence):
        share_of(given, environment)


def test_other_settings_are_refused_or_replace(shards, output):
    caption_shards(shards[:2], build_opening, output, shard_job(), silent)
    other = {**SETTINGS, "seed": 43}
    with pytest.raises(UsageError, match="was begun with --seed 42, not --seed 43"):
        ShardFolder.begin(output.folder, other)
    again = ShardFolder.begin(output.folder, other, overwrite=True)
    assert again.done() == set()
    assert caption_shards(shards[:2], build_opening, again, shard_job(), silent).done == 2
    assert ShardFolder.existing(output.folder).done() == {"00000.tar", "00001.tar"}


def test_files_that_no_such_command_wrote_are_not_replaced(tmp_path):
    """A shard of the same name in a folder of somebody else was replaced without a word."""
    (tmp_path / "00001.tar").write_bytes(b"the only copy")
    folder, names = Folder(str(tmp_path)), {"00000.tar", "00001.tar"}
    with pytest.raises(UsageError, match=r"holds 00001\.tar, but no settings\.json"):
        ShardFolder.begin(folder, SETTINGS, shards=names)
    assert [path.name for path in tmp_path.iterdir()] == ["00001.tar"]
    ShardFolder.begin(folder, SETTINGS, shards={"00002.tar"})  # others may lie there
    ShardFolder.begin(folder, SETTINGS, shards=names)  # shards of settings that are there are resumed
    (tmp_path / "settings.json").unlink()
    assert ShardFolder.begin(folder, SETTINGS, shards=names, overwrite=True).done() == set()


def test_settings_that_come_back_caption_again(shards, output):
    caption_shards(shards[:1], build_opening, output, shard_job(), silent)
    other = ShardFolder.begin(output.folder, {**SETTINGS, "seed": 43}, overwrite=True)
    caption_shards(shards[:1], build_opening, other, shard_job(), silent)  # replaces the shard
    other.give_up("00001.tar", "it is broken")
    again = ShardFolder.begin(output.folder, SETTINGS, overwrite=True)
    assert (again.done(), again.failed()) == (set(), {})
    assert caption_shards(shards[:1], build_opening, again, shard_job(), silent).done == 1
    assert ShardFolder.begin(output.folder, SETTINGS, overwrite=True).done() == {"00000.tar"}


@pytest.mark.parametrize("damage", [b"{", b"[]", b"{}", b'{"shard": "x", "flags": 3}'])
def test_a_damaged_review_part_is_named(shards, output, damage):
    caption_shards(shards[:1], build_opening, output, shard_job(), silent)
    (name,) = output.folder.names("review")
    part = f"review/{name}"
    output.folder.write(part, damage)
    with pytest.raises(UsageError, match=f"{part} is damaged: remove it, and caption the shard again"):
        list(output.parts())


def test_names(tmp_path):
    assert output_name("s3://bucket/in/00012.tar", "parquet") == "00012.parquet"
    (tmp_path / "a").mkdir()
    for name in ("1.tar", "a/1.tar", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert shards_of([str(tmp_path)]) == [str(tmp_path / "1.tar")]
    with pytest.raises(UsageError, match="have the same name"):
        shards_of([str(tmp_path), str(tmp_path / "a")])
    with pytest.raises(UsageError, match="names no shard"):
        shards_of([str(tmp_path / "notes.txt")])


def test_parts_stay_small():
    part = Part("x.tar")
    for number in range(3 * CAPTIONS):
        part.captions[f"caption {number}"] = 1 + number % 2
    kept = Part.from_json(part.as_json())
    assert len(kept.captions) == CAPTIONS
    assert (min(kept.captions.values()), kept.left_out) == (2, 2)
