"""Clips on disk: the right frames of every container, and one sentence for files that cannot be read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clip_files import grey_frames, number_of, write_clip, write_sound, write_webp
from tellapart.data import video
from tellapart.data.clips import AnimatedFile, ArrayClip, ClipFile, on_disk
from tellapart.data.images import ImageError, ImageFile
from tellapart.data.inspection import inspect
from tellapart.data.sniff import gif_delays
from tellapart.frames import middles

pytest.importorskip("av")

CONTAINERS = {"h264.mp4": "mp4", "mpeg4.mp4": "mpeg4", "a.webm": "webm", "a.mkv": "mkv", "a.avi": "avi", "a.mpg": "mpg"}


def numbers(clip: ClipFile, count: int) -> list[int]:
    return [number_of(frame) for frame in clip.frames(count)]


def noise(count: int) -> np.ndarray:
    """``[T, 48, 64, 3]`` that no codec makes small, so that a cut lies among frames."""
    return np.random.default_rng(0).integers(0, 255, (count, 48, 64, 3), dtype=np.uint8)


def cut(file: Path, share: float) -> Path:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    return file


@pytest.mark.parametrize("name", [*CONTAINERS, "a.gif"])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_frames_are_those_in_the_middle_of_equal_parts(tmp_path: Path, name: str, count: int) -> None:
    clip = ClipFile(write_clip(tmp_path / name, grey_frames(24), CONTAINERS.get(name)))
    assert numbers(clip, count) == middles(24, count)
    assert number_of(clip.open()) == 12


@pytest.mark.parametrize("name", ["h264.mp4", "a.webm", "a.mkv"])
def test_sought_frames_are_those_of_decoding_everything(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = ClipFile(write_clip(tmp_path / name, noise(30), CONTAINERS[name], gop=7))
    sought = [np.asarray(frame) for frame in clip.frames(9)]
    monkeypatch.setattr(video, "SEEKABLE", frozenset())
    for one, other in zip(sought, clip.frames(9), strict=True):
        assert np.array_equal(one, np.asarray(other))


def test_only_what_is_needed_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two frames of 100, a key-frame every 10: at most ten frames are decoded for each."""
    decoded = []
    frames = video._frames
    monkeypatch.setattr(video, "_frames", lambda *a: (decoded.append(frame) or frame for frame in frames(*a)))
    clip = ClipFile(write_clip(tmp_path / "a.mp4", noise(100), gop=10))
    clip.frames(2)
    assert len(decoded) <= 20


def test_key_frames_are_the_last_ones_before(tmp_path: Path) -> None:
    file = write_clip(tmp_path / "a.webm", grey_frames(24), gop=6)
    assert numbers(ClipFile(file, "key_frames"), 4) == [0, 6, 12, 18]
    assert numbers(ClipFile(file, "key_frames"), 8) == [0, 0, 6, 6, 12, 12, 18, 18]


@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "a.mkv"])
def test_frames_of_variable_rate_are_uniform_in_time(tmp_path: Path, name: str) -> None:
    """Frames 0 to 5 in the first 0.6 s, 6 until 2.0 s, 7 until 2.1 s: shown at 0.26, 0.79, 1.31 and 1.84 s."""
    stamps = [0, 1, 2, 3, 4, 5, 6, 20]
    clip = ClipFile(write_clip(tmp_path / name, grey_frames(8), rate=10, stamps=stamps))
    assert numbers(clip, 4) == [2, 6, 6, 6]
    assert number_of(clip.open()) == 6
    assert "variable frame rate" in clip.examine(2).kinds


@pytest.mark.parametrize("ending", ["gif", "webp", "png"])
def test_animated_pictures_are_uniform_in_time(tmp_path: Path, ending: str) -> None:
    even = write_webp(tmp_path / f"even.{ending}", grey_frames(8))
    late = write_webp(tmp_path / f"late.{ending}", grey_frames(8), milliseconds=[100] * 7 + [900])
    assert numbers(ClipFile(even), 4) == [1, 3, 5, 7]
    assert numbers(ClipFile(late), 4) == [2, 6, 7, 7]  # at 0.2, 0.6, 1.0 and 1.4 s


def test_delays_of_a_gif(tmp_path: Path) -> None:
    """As it was written; a cut in the middle of a block is found, one between blocks leaves fewer frames."""
    delays = [0, 20, 50, 500, 70, 10, 30, 2550]
    data = write_webp(tmp_path / "a.gif", noise(8), milliseconds=delays).read_bytes()
    assert gif_delays(data) == [10, 2, 5, 50, 7, 10, 3, 255]
    found = [gif_delays(data[:end]) for end in range(100, len(data), 37)]
    assert sum(delays is None for delays in found) > 0.9 * len(found)


@pytest.mark.parametrize("ending", ["webp", "png"])
def test_frames_of_a_picture_are_turned_as_the_picture_is(tmp_path: Path, ending: str) -> None:
    """Photos in WebP carry the EXIF of the camera; a captioner of frames saw them lying on their side."""
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    frames = [Image.fromarray(np.random.default_rng(i).integers(0, 255, (40, 60, 3), np.uint8)) for i in range(3)]
    file = tmp_path / f"a.{ending}"
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=100, exif=exif, lossless=True)
    upright = [frame.transpose(Image.Transpose.ROTATE_270) for frame in frames]
    examined = ClipFile(file).examine(3)
    assert [np.array_equal(one, other) for one, other in zip(examined.frames, upright, strict=True)] == [True] * 3
    assert "turned by EXIF" in examined.kinds
    assert np.array_equal(on_disk(file).open(), upright[0])


def test_an_animation_among_images_is_its_first_frame(tmp_path: Path) -> None:
    file = write_webp(tmp_path / "a.gif", grey_frames(8))
    image = on_disk(file)
    assert isinstance(image, AnimatedFile)
    assert number_of(image.open()) == 0
    assert [number_of(frame) for frame in image.frames(4)] == [1, 3, 5, 7]
    assert image.fingerprint() == ImageFile(file).fingerprint()
    assert type(on_disk(file, clips=True)) is ClipFile
    assert type(on_disk(tmp_path / "a.jpg")) is ImageFile


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    picture = Image.new("P", (32, 32), 0)
    picture.putpalette([255, 0, 0, 0, 0, 255])
    other = Image.new("P", (32, 32), 1)
    other.putpalette([255, 0, 0, 0, 0, 255])
    picture.save(tmp_path / "a.gif", save_all=True, append_images=[other], transparency=0, duration=100, disposal=2)
    first, second = ClipFile(tmp_path / "a.gif").frames(2)
    assert first.getpixel((5, 5)) == (255, 255, 255)
    assert second.getpixel((5, 5)) == (0, 0, 255)


@pytest.mark.parametrize(("degrees", "size"), [(90, (48, 64)), (180, (64, 48)), (270, (48, 64))])
def test_frames_are_turned_upright(tmp_path: Path, degrees: int, size: tuple[int, int]) -> None:
    frames = np.zeros((4, 48, 64, 3), dtype=np.uint8)
    frames[:, :24] = 255  # white above
    clip = ClipFile(write_clip(tmp_path / "a.mp4", frames, rotation=degrees))
    (frame,) = clip.frames(1)
    turned = Image.fromarray(frames[0]).rotate(frame_rotation(clip.path), expand=True)
    assert frame.size == size == turned.size
    assert np.abs(np.asarray(frame).astype(int) - np.asarray(turned)).mean() < 8
    assert "turned by its display matrix" in clip.examine(1).kinds


def frame_rotation(path: Path) -> int:
    """Degrees counterclockwise by which players turn the pictures, as the container stores them."""
    import av

    with av.open(str(path)) as container:
        return next(container.decode(video=0)).rotation


def test_a_clip_of_one_frame_is_that_frame(tmp_path: Path) -> None:
    clip = ClipFile(write_clip(tmp_path / "a.mp4", grey_frames(1)))
    assert numbers(clip, 3) == [0, 0, 0]
    assert clip.examine(1).kinds == ("one frame",)


@pytest.mark.parametrize("name", ["h264.mp4", "a.webm", "a.mkv", "a.avi", "a.gif"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.6])
def test_truncated_clips_are_errors(tmp_path: Path, name: str, share: float) -> None:
    file = cut(write_clip(tmp_path / name, noise(24), CONTAINERS.get(name)), share)
    with pytest.raises(ImageError, match=rf"{name} is not a readable video \(.*\): repair or remove it\."):
        ClipFile(file).frames(8)
    assert name in (inspect(ClipFile(file)).broken or "")


@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "a.mkv"])
def test_a_whole_clip_whose_first_frame_comes_late_is_read(tmp_path: Path, name: str) -> None:
    """Matroska announces when the last frame ends, and not how long the frames are: the clip counted as truncated."""
    clip = ClipFile(write_clip(tmp_path / name, grey_frames(24), stamps=list(range(80, 104))))
    assert numbers(clip, 4) == [3, 9, 15, 21]


def test_a_truncated_clip_with_its_index_in_front_is_an_error(tmp_path: Path) -> None:
    import av

    file = tmp_path / "a.mp4"
    with av.open(str(file), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for array in noise(24):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(array, format="rgb24")))
        container.mux(stream.encode(None))
    with pytest.raises(ImageError, match=r"it is truncated: \d+ of 24 frames are there"):
        ClipFile(cut(file, 0.6)).frames(8)


def test_sound_without_pictures_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="sound but no pictures"):
        ClipFile(write_sound(tmp_path / "a.mp4")).frames(8)


def test_files_that_are_not_videos_are_errors(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "real.mp4", grey_frames(8))
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nfile://{clip}\n#EXT-X-ENDLIST\n"
    (tmp_path / "list.mp4").write_text(playlist)
    (tmp_path / "text.mp4").write_text("not a video")
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "folder.mp4").mkdir()
    for name, why in {
        "list.mp4": "not a readable video",
        "text.mp4": "not a readable video",
        "pipe.mp4": "not an ordinary file",
        "folder.mp4": "not an ordinary file",
        "gone.mp4": "does not exist",
    }.items():
        with pytest.raises(ImageError, match=rf"{name}.*{why}"):
            ClipFile(tmp_path / name).frames(2)


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = ClipFile(write_clip(tmp_path / "a.mp4", grey_frames(8)))
    for name, limit, why in [
        ("LARGEST_FILE", 100, "too many for a clip"),
        ("MAX_PIXELS", 64 * 48 - 1, "more than the limit of 3,071"),
        ("MOST_FRAMES", 7, "more than 7 frames"),
    ]:
        with monkeypatch.context() as limited:
            limited.setattr(video, name, limit)
            with pytest.raises(ImageError, match=why):
                clip.frames(2)
    clip.frames(2)


def test_a_clip_that_takes_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "SECONDS", 0.001)
    monkeypatch.setattr(video, "SEEKABLE", frozenset())
    clip = ClipFile(write_clip(tmp_path / "a.mp4", noise(200)))
    began = time.perf_counter()
    with pytest.raises(ImageError, match=r"takes more than 0\.001 seconds"):
        clip.frames(2)
    assert time.perf_counter() - began < 5


def test_every_pixel_survives_the_file_of_an_array(tmp_path: Path) -> None:
    clip = ArrayClip("a", noise(6))
    (tmp_path / "a.webp").write_bytes(clip.read())
    for one, other in zip(ClipFile(tmp_path / "a.webp").frames(6), clip.frames(6), strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))


def test_looks_of_clips_are_told_apart_by_their_frames(tmp_path: Path) -> None:
    """Two clips with one middle frame look different; a copy in another container looks the same."""
    rng = np.random.default_rng(0)
    scenes = np.kron(rng.integers(0, 255, (8, 6, 8, 3), dtype=np.uint8), np.ones((1, 8, 8, 1), dtype=np.uint8))
    other = scenes.copy()
    other[:4], other[5:] = scenes[5:6], scenes[:1]
    looks = [
        inspect(ClipFile(write_clip(tmp_path / name, frames)))
        for name, frames in {"a.mp4": scenes, "b.webm": scenes, "c.mp4": other}.items()
    ]
    from tellapart.data.phash import near_duplicates

    assert near_duplicates([found.signature for found in looks]) == [[0, 1]]
    assert len({found.content for found in looks}) == 3
