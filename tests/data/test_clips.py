"""Clips: frames of them, in memory, in files and as single images; and what models are given."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from clip_files import grey_frames, number_of, write_clip
from PIL import Image

from tellapart.data.center_crop import center_cropped
from tellapart.data.clips import ArrayClip, ClipFile, ClipSource, FrameFiles
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.frames import frames_wanted, is_clip, middles, seen_as


class FrameReader:
    """What reads frames: their mean greys."""

    num_frames = 4

    def process(self, clips: list[list[Image.Image]]) -> dict[str, torch.Tensor]:
        return {"greys": torch.tensor([[number_of(frame) for frame in clip] for clip in clips])}


def stills(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    return {"greys": torch.tensor([number_of(image) for image in images])}


@pytest.fixture
def clip() -> ArrayClip:
    return ArrayClip("clip", grey_frames(8))


@pytest.mark.parametrize(("length", "parts"), [(8, 8), (8, 4), (7, 3), (2, 5), (1, 3), (30, 8)])
def test_middles_are_the_frames_shown_in_the_middle_of_equal_parts(length: int, parts: int) -> None:
    found = middles(length, parts)
    assert found == [int((part + 0.5) * length / parts) for part in range(parts)]
    assert found == sorted(found)
    assert all(0 <= place < length for place in found)


def test_one_frame_is_the_still(clip: ArrayClip) -> None:
    assert clip.frames(1)[0].tobytes() == clip.open().tobytes()
    assert number_of(clip.open()) == 4


def test_a_clip_is_known_by_its_frames(clip: ArrayClip) -> None:
    assert is_clip(clip)
    assert isinstance(clip, ClipSource)
    assert not is_clip(ArrayImage(grey_frames(1)[0]))


def test_frames_of_a_clip_in_memory(clip: ArrayClip) -> None:
    assert [number_of(frame) for frame in clip.frames(4)] == [1, 3, 5, 7]
    assert [number_of(frame) for frame in ArrayClip("two", grey_frames(2)).frames(4)] == [0, 0, 1, 1]


def test_frames_of_files(tmp_path: Path) -> None:
    paths = []
    for number, array in enumerate(grey_frames(5)):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(array).save(paths[-1])
    clip = FrameFiles(tuple(paths))
    assert [number_of(frame) for frame in clip.frames(10)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert clip.fingerprint() != FrameFiles(tuple(reversed(paths))).fingerprint()
    with pytest.raises(UsageError, match="no frames"):
        FrameFiles(())


def test_no_frames_are_refused(clip: ArrayClip) -> None:
    with pytest.raises(UsageError, match="at least 1 frame"):
        clip.frames(0)


def test_arrays_of_other_shapes_are_refused() -> None:
    with pytest.raises(UsageError, match="frames, height, width, 3"):
        ArrayClip("flat", np.zeros((8, 8, 3), dtype=np.uint8))


def test_each_processor_is_given_frames_or_a_still(clip: ArrayClip) -> None:
    reader = FrameReader()
    assert frames_wanted(reader.process) == 4
    assert frames_wanted(stills) is None
    batch = Collate({"moving": reader.process, "still": stills})([Example("a", clip)])
    assert batch.inputs["moving"]["greys"].tolist() == [[1, 3, 5, 7]]
    assert batch.inputs["still"]["greys"].tolist() == [4]


def test_a_still_is_repeated_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    still = Example("a", ArrayImage(grey_frames(3)[2], name="still.png"))
    collate = Collate({"moving": FrameReader().process})
    with caplog.at_level(logging.WARNING):
        assert collate([still, still]).inputs["moving"]["greys"].tolist() == [[2] * 4] * 2
        collate([still])
    assert [record.getMessage() for record in caplog.records] == [
        "still.png is a still, and the model reads 4 frames: stills are shown as one frame repeated."
    ]


def test_hashes_tell_frames_from_stills(clip: ArrayClip) -> None:
    assert len({seen_as(clip, None), seen_as(clip, 4), seen_as(clip, 8)}) == 3
    moving, still = Collate({"moving": FrameReader().process}), Collate({"still": stills})
    assert moving.fingerprint(Example("a", clip)) != still.fingerprint(Example("a", clip))


def test_every_frame_is_cropped() -> None:
    array = grey_frames(8, (64, 48))
    (example,) = center_cropped(CaptionDataset([Example("a", ArrayClip("clip", array))], name="clips"))
    assert isinstance(example.image, ClipSource)
    assert [frame.size for frame in example.image.frames(2)] == [(48, 48)] * 2
    assert example.image.open().size == (48, 48)


def test_a_clip_on_disk_is_another_content_than_its_file_as_an_image(tmp_path: Path) -> None:
    pytest.importorskip("av")
    file = write_clip(tmp_path / "a.gif", grey_frames(8))
    uniform, keys = ClipFile(file), ClipFile(file, "key_frames")
    from tellapart.data.images import ImageFile

    assert len({uniform.fingerprint(), keys.fingerprint(), ImageFile(file).fingerprint()}) == 3
    assert [number_of(frame) for frame in uniform.frames(4)] == [1, 3, 5, 7]
