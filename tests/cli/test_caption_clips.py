"""``tellapart caption`` of clips: one caption per clip with the guarantees of photos; key-frames stay available."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path

import pytest

from clip_files import grey_frames, write_clip
from tellapart.captioning.plan import plan
from tellapart.captioning.read import Reader
from tellapart.captioning.records import Item
from tellapart.cli.main import main
from tellapart.data.clips import AnimatedFile, ClipFile, PackedClip
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
    assert (first["photo"], first["reasons"].split(":")[0]) == (str(clips / "a.mp4"), "unreadable")
    (clips / "a.mp4").write_bytes(whole)
    code, said = run(capsys, *words, "--overwrite")
    assert code == 0
    assert "captioned 1 images (2 before)" in said
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
