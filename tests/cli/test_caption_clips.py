"""``tellapart caption`` of clips: one caption per clip with the guarantees of photos; key-frames stay available."""

from __future__ import annotations

import csv
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from clip_files import grey_frames, write_clip
from tellapart.captioning.outputs.sidecars import Sidecars
from tellapart.captioning.outputs.webdataset import WebDataset
from tellapart.captioning.plan import plan
from tellapart.captioning.read import Reader
from tellapart.captioning.records import Caption, Item
from tellapart.cli.main import main
from tellapart.data.clips import AnimatedFile, ClipFile, PackedClip
from tellapart.data.images import ImageError
from tellapart.data.load import load_dataset
from tellapart.errors import UsageError

pytest.importorskip("av")


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Two videos and a GIF, one of them in a folder inside."""
    folder = tmp_path / "clips"
    (folder / "inner").mkdir(parents=True)
    write_clip(folder / "a.mp4", grey_frames(8), "mpeg4")
    write_clip(folder / "b.gif", grey_frames(8))
    write_clip(folder / "inner" / "c.mp4", grey_frames(12)[::-1], "mp4", gop=4, options={"sc_threshold": "0"})
    return folder


def ids(items: list[Item]) -> list[str]:
    return [item.id for item in items]


def test_what_is_named_becomes_clips(clips: Path, tmp_path: Path) -> None:
    items = plan([str(clips)])
    assert ids(items) == [str(clips / name) for name in ("a.mp4", "b.gif", "inner/c.mp4")]
    assert [type(item.image) for item in items] == [ClipFile, AnimatedFile, ClipFile]
    assert items[2].relative == "inner/c.mp4"
    assert ids(plan([str(clips / "a.mp4")])) == [str(clips / "a.mp4")]
    assert ids(plan([f"{clips}/**/*.mp4"])) == [str(clips / "a.mp4"), str(clips / "inner" / "c.mp4")]
    assert plan([str(clips / "a.mp4")], sampling="key_frames")[0].image.sampling == "key_frames"
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        archive.add(clips / "a.mp4", "1.mp4")
    (packed,) = plan([str(tmp_path / "0.tar")])
    assert isinstance(packed.image, PackedClip)
    assert packed.relative == "1.mp4"


def test_key_frames_stay_available(clips: Path) -> None:
    (*frames,) = plan([str(clips / "inner" / "c.mp4")], frames=0.0)
    assert ids(frames) == ["c.mp4#t=0.000", "c.mp4#t=0.500", "c.mp4#t=1.000"]
    assert len(plan([str(clips)], frames=0.6)) == 1 + 2 + 2  # the GIF, as an image; two of three frames of each video
    with pytest.raises(UsageError, match="--frames reads videos"):
        plan([str(clips)], frames=0.0, format="folder")


def test_key_frames_have_sidecars_and_members_of_their_own(clips: Path, tmp_path: Path) -> None:
    """The milliseconds were taken for the ending of the file's name, and folders were lost."""
    (clips / "other").mkdir()
    shutil.copy(clips / "inner" / "c.mp4", clips / "other" / "c.mp4")
    frames = [item for item in plan([str(clips)], frames=0.0) if "c.mp4" in item.id]
    out = Sidecars(tmp_path / "out", mirrored=True)
    out.check(frames)
    targets = [out.target(item).relative_to(tmp_path / "out").as_posix() for item in frames]
    times = ("0.000", "0.500", "1.000")
    assert targets == [f"{folder}/c.mp4#t={time}.txt" for folder in ("inner", "other") for time in times]
    WebDataset(tmp_path / "shards").assemble([(item, Caption(item.id, "a cup")) for item in frames])
    with tarfile.open(tmp_path / "shards" / "00000.tar") as tar:
        assert {Path(name).suffix for name in tar.getnames()} == {".png", ".txt", ".json"}
    read = load_dataset(tmp_path / "shards", split="train")
    assert [example.references for example in read] == [("a cup",)] * 6
    read[0].image.open()


def test_damaged_videos_are_told_like_images_that_cannot_be_read(clips: Path, capsys) -> None:
    """They were left out in silence."""
    (clips / "worse.mp4").write_bytes(b"no video")
    items = plan([str(clips)], frames=0.0)
    assert items[-1].id == "worse.mp4"
    assert plan([str(clips), str(clips)], frames=0.0) == items, "none twice"
    with pytest.raises(ImageError, match=r"worse\.mp4"):
        items[-1].image.open()
    read = ["--format", "unlabelled"]
    assert main(["data", "check", str(clips), *read, "--strict", "--num_workers", "0"]) == 2
    assert "worse.mp4" in capsys.readouterr().out
    assert main(["data", "convert", str(clips), str(clips.parent / "out"), *read, "--to", "folder"]) == 2
    assert "worse.mp4" in capsys.readouterr().err
    assert not (clips.parent / "out").exists()


def test_a_broken_clip_is_named_and_others_are_read(clips: Path) -> None:
    (clips / "a.mp4").write_bytes((clips / "a.mp4").read_bytes()[:500])
    read = Reader({"frames": FrameReader().process})(plan([str(clips)]))
    assert ids(read.items) == [str(clips / "b.gif"), str(clips / "inner" / "c.mp4")]
    assert list(read.errors) == [str(clips / "a.mp4")]
    assert "is not a readable video" in read.errors[str(clips / "a.mp4")]
    assert read.batch is not None
    assert read.batch.inputs["frames"]["pixels"].shape == (2, 4)


class FrameReader:
    num_frames = 4

    def process(self, clips):
        import torch

        return {"pixels": torch.tensor([[frame.getpixel((0, 0))[0] for frame in frames] for frames in clips])}


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = main(["caption", *map(str, words)])
    return code, capsys.readouterr().err


def test_captions_of_clips_resume_and_are_reviewed(clips: Path, tmp_path: Path, materials, capsys) -> None:
    """The first try meets a truncated clip; with the whole one back, the same command captions only that one."""
    whole = (clips / "a.mp4").read_bytes()
    (clips / "a.mp4").write_bytes(whole[:500])
    output = tmp_path / "captions.jsonl"
    listener = ("--listener", materials.listener, "--rerank", "clip_s", "--n", 3)
    words = (clips, "--captioner", materials.captioner, "--max_new_tokens", 6, "--output", output, *listener)
    code, said = run(capsys, *words)
    assert code == 0
    assert "a.mp4 is not a readable video" in said
    with (tmp_path / "captions.jsonl.review.csv").open() as file:
        first = next(csv.DictReader(file))
    assert (first["photo"], first["reasons"].split(":")[0]) == (str(clips / "a.mp4"), "no caption")
    (clips / "a.mp4").write_bytes(whole)
    code, said = run(capsys, *words, "--overwrite")
    assert code == 0
    assert "captioned 1 image (2 before)" in said
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["id"] for row in rows] == [str(clips / name) for name in ("a.mp4", "b.gif", "inner/c.mp4")]
    assert not (tmp_path / "captions.jsonl.work").exists()


def test_sidecars_lie_next_to_clips(clips: Path, materials, capsys) -> None:
    words = ("--captioner", materials.captioner, "--max_new_tokens", 6, "--num_beams", 1)
    assert run(capsys, clips, *words, "--out", "sidecars")[0] == 0
    assert sorted(path.relative_to(clips).as_posix() for path in clips.rglob("*.txt")) == [
        "a.txt",
        "b.txt",
        "inner/c.txt",
    ]
