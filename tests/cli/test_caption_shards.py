"""``tellapart caption --by_shard``, ``--merge`` and ``--plan`` as a user meets them."""

from __future__ import annotations

import importlib.util
import io
import json
import tarfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from captioning.captioning_fakes import png, tar
from tellapart.cli.main import main
from tellapart.data.load import load_dataset


@pytest.fixture
def shards(materials, tmp_path) -> Path:
    """Three tars with fourteen pictures."""
    folder = tmp_path / "in"
    folder.mkdir()
    photos = sorted(materials.photos.glob("*.png"))
    for number in range(3):
        with tarfile.open(folder / f"{number:05}.tar", "w") as archive:
            for photo in photos[5 * number : 5 * number + 5]:
                archive.add(photo, photo.name)
    return folder


@pytest.fixture
def caption(materials, capsys):
    def run(*words) -> tuple[int, str, str]:
        capsys.readouterr()
        options = ("--captioner", materials.captioner, "--num_beams", "1", "--resample", "0", "--max_new_tokens", "8")
        options = () if "--merge" in words else options
        code = main(["caption", *map(str, (*options, *words))])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return run


def test_parts_of_two_commands_say_what_one_command_says(shards, tmp_path, caption):
    code, _, _ = caption(shards, "--output", tmp_path / "all.jsonl")
    assert code == 0
    said = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    out = tmp_path / "out"
    for part in ("0/2", "1/2"):
        code, _, remarks = caption(shards, "--by_shard", "--out", "jsonl", "--output", out, "--shard", part)
        assert code == 0
    assert "captioned 5 images in 1 of 1 shard, part of 3" in remarks
    rows = [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert [(row["id"], row["caption"]) for row in rows] == [(row["id"], row["caption"]) for row in said]
    code, _, remarks = caption(shards, "--by_shard", "--out", "jsonl", "--output", out)
    assert (code, "captioned 0 images in 0 of 3 shards (3 done before)" in remarks) == (0, True)
    code, _, remarks = caption(shards, "--by_shard", "--out", "jsonl", "--output", out, "--prefix", "so ")
    assert (code, "was begun with --prefix , not --prefix so" in remarks) == (2, True)
    code, _, remarks = caption("--merge", out)
    assert (code, "14 captions in 3 shards; 0 images without one" in remarks) == (0, True)
    assert "Shards: 3. Captions: 14." in (out / "review.html").read_text()
    code, _, remarks = caption("--merge", out, "--max_same", "0")
    assert (code, "--max_same is 0: it must be at least 1" in remarks) == (2, True)
    code, _, remarks = caption("--merge", out, "--num_beams=3")
    assert (code, "--num_beams is for captioning, and --merge reads what was captioned" in remarks) == (2, True)


def test_shards_whose_endings_are_in_capitals_are_captioned(shards, tmp_path, caption):
    (shards / "00000.tar").rename(shards / "00000.TAR")
    (shards / "00002.tar").unlink()
    words = (shards, "--out", "webdataset", "--output", tmp_path / "all")
    assert caption(*words)[0] == 0
    assert {path.name for path in (tmp_path / "all").glob("0*")} == {"00000.TAR", "00001.tar"}
    assert len(load_dataset(tmp_path / "all", split="any")) == 10
    (tmp_path / "all" / "00001.tar").unlink()
    code, _, remarks = caption(*words)
    assert (code, "all exists" in remarks) == (2, True)
    code, _, remarks = caption(shards, "--by_shard", "--output", tmp_path / "out")
    assert (code, "captioned 10 images in 2 of 2 shards" in remarks) == (0, True)
    assert {path.name for path in (tmp_path / "out").glob("0*")} == {"00000.tar", "00001.tar"}
    assert (
        "--id_column is for Parquet files"
        in caption(shards, "--by_shard", "--output", tmp_path / "o", "--id_column", "x")[2]
    )


def tables(folder, *names):
    """Parquet shards whose column of ids has these names, and one that is cut."""
    folder.mkdir()
    for number, name in enumerate(names):
        pq.write_table(pa.table({"image": [png(number)], name: ["a"]}), folder / f"{number}.parquet")
    whole = (folder / "0.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[:-9])
    return folder


@pytest.mark.parametrize("option", ["--id_column", "--image_column"])
def test_a_misspelt_column_is_told_before_anything_is_written(option, tmp_path, caption):
    shards, out = tables(tmp_path / "in", "name", "name"), tmp_path / "out"
    (shards / "cut.parquet").unlink()
    code, _, remarks = caption(shards, "--by_shard", "--output", out, option, "nmae")
    assert (code, remarks.count("nmae")) == (2, 1)
    assert "0.parquet" in remarks
    assert not out.exists()


@pytest.mark.parametrize("names", [("name", "other"), ("other", "name")])
def test_a_table_that_lacks_a_column_or_is_cut_is_given_up_and_the_others_are_captioned(names, tmp_path, caption):
    shards, out = tables(tmp_path / "in", *names), tmp_path / "out"
    code, _, remarks = caption(shards, "--by_shard", "--output", out, "--id_column", "name")
    assert (code, "captioned 1 image in 1 of 3 shards" in remarks) == (2, True)
    assert (out / f"{names.index('name')}.parquet").exists()


@pytest.mark.parametrize(("gate", "said"), [("same_caption", "faults: same_caption 12."), ("none", "faults: none.")])
def test_the_review_counts_the_faults_of_the_gate(tmp_path, caption, gate, said):
    shard = tmp_path / "in" / "00000.tar"
    shard.parent.mkdir()
    shard.write_bytes(tar({f"{number:05}": {"png": png(0)} for number in range(12)}))
    assert caption(shard, "--by_shard", "--output", tmp_path / "out", "--gate", gate)[0] == 0
    assert said in caption("--merge", tmp_path / "out")[2]


def test_a_damaged_shard_is_named_until_it_is_mended(shards, tmp_path, caption):
    first = shards / "00000.tar"
    whole = first.read_bytes()
    first.write_bytes(whole[: len(whole) // 2])
    words = (shards, "--by_shard", "--output", tmp_path / "out")
    assert "1 damaged shard: get a whole copy and run this again" in caption(*words)[2]
    code, _, remarks = caption(*words)
    assert (code, "00000.tar was damaged before, and has not changed." in remarks) == (0, True)
    assert "(3 done before); 1 damaged shard: get a whole copy and run this again" in remarks
    assert caption(*words, "--strict", "true")[0] == 2
    first.write_bytes(whole)
    assert "damaged shard" not in caption(*words)[2]


def test_a_wrong_listener_leaves_no_folder(shards, tmp_path, caption, materials):
    words = (shards, "--by_shard", "--output", tmp_path / "out", "--n", "2", "--rerank", "clip_s", "--listener")
    for wrong, said in (
        (materials.captioner, "a listener must be one of clip"),
        (tmp_path / "no.pth", "does not exist"),
    ):
        code, _, remarks = caption(*words, wrong)
        assert (code, said in remarks, (tmp_path / "out").exists()) == (2, True, False)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_ray_that_is_missing_leaves_no_folder(shards, tmp_path, caption):
    code, _, remarks = caption(shards, "--by_shard", "--output", tmp_path / "out", "--engine", "ray")
    assert (code, "needs Ray: pip install 'tellapart[ray]'" in remarks) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_store_and_a_broken_shard(shards, caption, monkeypatch):
    monkeypatch.setattr("tellapart.captioning.shards.launch.BACK_OFF", 0.001)
    memory = fsspec.filesystem("memory")
    for path in shards.iterdir():
        memory.pipe(f"/shards_cli/in/{path.name}", path.read_bytes())
    memory.pipe("/shards_cli/in/00001.tar", b"broken" * 500)
    try:
        code, _, remarks = caption("memory://shards_cli/in", "--by_shard", "--output", "memory://shards_cli/out")
        assert (code, "00001.tar was given up after 3 attempts" in remarks) == (2, True)
        with tarfile.open(fileobj=io.BytesIO(memory.cat_file("/shards_cli/out/00002.tar"))) as archive:
            assert sum(name.endswith(".txt") for name in archive.getnames()) == 4
        code, _, remarks = caption("--merge", "memory://shards_cli/out")
        assert (code, "9 captions in 2 shards" in remarks, "1 given up" in remarks) == (2, True, True)
    finally:
        memory.rm("/shards_cli", recursive=True)


def test_a_plan_tells_stages_and_dollars(shards, tmp_path, caption, materials):
    options = ("--by_shard", "--plan", "--price", "3.6", "--listener", materials.listener)
    code, printed, remarks = caption(shards, *options)
    assert code == 0
    first = [line.split()[0] for line in printed.splitlines() if line]
    assert first[2:9] == ["read", "decode", "encode", "draw", "score", "write", "together"]
    assert "measured on 14 images" in remarks
    rate = float(printed.split("together")[1].split()[0])
    million = next(line.split() for line in printed.splitlines() if line.startswith("1,000,000 "))
    assert float(million[-1].replace(",", "")) == pytest.approx(1e6 / rate / 3600 * 3.6, rel=0.05 / rate + 0.01)


REFUSED = [
    (["--shard", "0/2"], "add --by_shard"),
    (["--by_shard"], "give --output FOLDER"),
    (
        ["--by_shard", "--output", "x", "--out", "csv"],
        "--out csv cannot be written by shard: choose webdataset, parquet",
    ),
    (["--by_shard", "--output", "x", "--limit", "5"], "--limit does not go with --by_shard"),
    (["--by_shard", "--output", "x", "--context", "title"], "--context does not go with --by_shard"),
    (["--by_shard", "--output", "x", "--context_extension", ".md"], "--context_extension does not go with --by_shard"),
    (["--by_shard", "--output", "x", "--sampling", "key_frames"], "--sampling does not go with --by_shard"),
    (["--by_shard", "--output", "x", "--out", "coco"], "choose webdataset, parquet or jsonl"),
    (["--by_shard", "--output", "x", "--price", "2"], "--price is dollars per hour for --plan"),
    (["--by_shard", "--output", "x", "--price", "0"], "--price is dollars per hour for --plan"),
    (["--by_shard", "--output", "x", "--caption_extension", ".cap"], "--caption_extension .cap is for sidecars"),
    (["--by_shard", "--output", "x", "--shard", "3/2"], "counted from 0 to 1"),
    (["--by_shard", "--output", "x", "--address", "auto"], "give --engine ray"),
    (["--by_shard", "--output", "x", "--plan", "--engine", "ray"], "--plan measures this machine"),
    (["--by_shard", "--output", "x", "--plan", "--shard", "0/2"], "--plan is about all shards: leave --shard out"),
    (["--by_shard", "--output", "x", "--image_column", "photo"], "--image_column is for Parquet files"),
    (["--by_shard", "--output", "x", "--allow_private"], "--allow_private is for Parquet files"),
    (["--engine", "ray"], "add --by_shard"),
    (["--by_shard", "--output", "in"], "is the folder of the input"),
    (["--by_shard", "--output", "x", "--n", "4"], "say which is kept"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_refusals_are_one_sentence(words, sentence, shards, tmp_path, caption, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed, remarks = caption("in", *words)
    assert (code, printed, remarks.count("\n")) == (2, "", 1)
    assert sentence in remarks
    assert not (tmp_path / "x").exists()
