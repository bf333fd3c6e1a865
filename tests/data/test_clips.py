"""Clips: frames of them, in memory, in files and as single images; and what models are given."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clip_files import grey_frames, number_of, write_clip
from tellapart.data.center_crop import center_cropped
from tellapart.data.check import usable
from tellapart.data.clips import ArrayClip, ClipFile, ClipSource, FrameFiles
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import Cut, TrainingData
from tellapart.errors import UsageError
from tellapart.frames import frames_wanted, is_clip, middles, seen_as, use_num_frames


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


def test_a_number_of_frames_is_the_models_own_or_set() -> None:
    reader = FrameReader()
    use_num_frames(reader, None, "data.num_frames")
    assert reader.num_frames == 4
    use_num_frames(reader, 6, "data.num_frames")
    assert frames_wanted(reader.process) == 6

    class Fixed:
        @property
        def num_frames(self) -> int:
            return 8

    use_num_frames(Fixed(), 8, "data.num_frames")
    with pytest.raises(UsageError, match=r"data\.num_frames is 4, but the captioner was made for 8 frames"):
        use_num_frames(Fixed(), 4, "data.num_frames")
    with pytest.raises(UsageError, match=r"data\.num_frames is 4, but the captioner reads stills"):
        use_num_frames(object(), 4, "data.num_frames")


def test_listeners_cache_frames_apart_from_stills() -> None:
    """Two listeners with one fingerprint, one of stills and one of frames, do not read each other's embeddings."""
    from listeners.tiny_listeners import clip_parts
    from tellapart.listeners.clip import ClipListener

    class OfFirstFrames(ClipListener):
        num_frames = 8

        def process(self, images):
            return stills.process([frames[0] for frames in images])

    noise = np.random.default_rng(0).integers(0, 255, (8, 48, 64, 3), dtype=np.uint8)
    example, parts = Example("a", ArrayClip("clip", noise)), clip_parts()
    stills, moving = ClipListener.from_parts(*parts), OfFirstFrames.from_parts(*parts)
    for listener in (stills, moving):
        listener.cache_images([example])
    assert stills.fingerprint() == moving.fingerprint()
    assert not torch.allclose(stills.encode_ids(["a"]), moving.encode_ids(["a"]), atol=1e-6)


def test_workers_read_what_one_process_reads(tmp_path: Path) -> None:
    pytest.importorskip("av")
    files = [write_clip(tmp_path / f"{number}.mp4", grey_frames(8 + number), "mpeg4") for number in range(6)]
    dataset = CaptionDataset([Example(file.name, ClipFile(file)) for file in files], name="clips")
    data = TrainingData(dataset, Collate({"moving": FrameReader().process}))
    cut = Cut(batch_size=3)
    alone, spread = (
        [
            batch.inputs["moving"]["greys"].tolist()
            for (batch,) in data.batches(cut, seed=0, stop=4, num_workers=workers)
        ]
        for workers in (0, 2)
    )
    assert alone == spread


def test_a_broken_clip_is_replaced_or_an_error(tmp_path: Path) -> None:
    pytest.importorskip("av")
    files = [write_clip(tmp_path / f"{number}.mp4", grey_frames(8), "mpeg4") for number in range(3)]
    files[1].write_bytes(files[1].read_bytes()[:400])
    dataset = CaptionDataset([Example(file.name, ClipFile(file)) for file in files], name="clips")
    collate, cut = Collate({"moving": FrameReader().process}), Cut(batch_size=3)
    with pytest.raises(UsageError, match=r"1\.mp4 is not a readable video"):
        list(TrainingData(dataset, collate).batches(cut, seed=0, stop=1))
    data = TrainingData(dataset, collate, replace_unreadable=True)
    list(data.batches(cut, seed=0, stop=2))
    assert list(data.replaced) == ["1.mp4"]
    kept, skipped = usable(dataset, num_workers=0)
    assert (len(kept), [name for name, _ in skipped]) == (2, ["1.mp4"])
