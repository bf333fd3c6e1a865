"""Frames per second and memory of reading clips, against plain loops with PyAV, imageio, OpenCV and decord, in the same run.

    pip install opencv-python-headless imageio decord
    python benchmarks/video.py [--clips 1000] [--peer_clips 1000] [--docs benchmarks/README.md]

Every reader returns the same 8 frames per clip in RGB, by one thread, in a process of its own. A plain loop with PyAV decodes a
clip from its start up to the last wanted frame. OpenCV grabs every frame and retrieves only the wanted ones, its
fastest exact form. imageio and decord are given the places of the frames. Readers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from tables import write_table

from tellapart.data.clips import ClipFile
from tellapart.frames import middles

FRAMES = 8
FILES = 12
SIZE = (320, 240)

Read = Callable[[Path], list[np.ndarray]]
"""A clip -> its wanted frames, ``[height, width, 3]`` uint8 in RGB."""

SETTINGS = {
    "H.264, 10 s at 25/s, a key-frame per 10 s": (250, "libx264", ".mp4", 250),
    "H.264, 10 s at 25/s, a key-frame per second": (250, "libx264", ".mp4", 25),
    "GIF, 3 s at 10/s": (30, "gif", ".gif", 0),
}
"""What the clips are -> frames, codec, ending, frames between key-frames."""


def textures(count: int, seed: int) -> Iterator[np.ndarray]:
    """A moving camera over a large picture of smooth noise."""
    draw = np.random.default_rng(seed)
    coarse = draw.integers(0, 255, (40, 60, 3), dtype=np.uint8)
    large = np.kron(coarse, np.ones((16, 16, 1), dtype=np.uint8))
    large = (large // 2 + draw.integers(0, 40, large.shape, dtype=np.uint8)).astype(np.uint8)
    for number in range(count):
        left, top = number % 250, (number * 2) % 250
        yield np.ascontiguousarray(large[top : top + SIZE[1], left : left + SIZE[0]])


def make(folder: Path, count: int, codec: str, ending: str, apart: int) -> list[Path]:
    import av

    files = []
    for number in range(FILES):
        files.append(folder / f"{number}{ending}")
        with av.open(str(files[-1]), "w") as container:
            stream = container.add_stream(codec, rate=25 if apart else 10)
            stream.width, stream.height = SIZE
            stream.pix_fmt = "yuv420p" if apart else "rgb8"
            if apart:
                stream.options = {"g": str(apart), "sc_threshold": "0", "preset": "veryfast"}
            for frame in textures(count, number):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode(None))
    return files


def ours(path: Path) -> list[np.ndarray]:
    return [np.asarray(frame) for frame in ClipFile(path).frames(FRAMES)]


def pyav_loop(path: Path) -> list[np.ndarray]:
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        wanted = middles(stream.frames, FRAMES)
        found = []
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                found.append(frame.to_ndarray(format="rgb24"))
            if number == wanted[-1]:
                return found
    return found


def imageio_loop(path: Path) -> list[np.ndarray]:
    import imageio.v3 as iio

    with iio.imopen(path, "r", plugin="pyav") as file:
        count = file.properties().shape[0] or sum(1 for _ in file.iter(thread_type="SLICE", thread_count=1))
        places = middles(count, FRAMES)
        return [file.read(index=place, thread_type="SLICE", thread_count=1) for place in places]


def opencv_loop(path: Path) -> list[np.ndarray]:
    import cv2

    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    wanted = middles(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), FRAMES)
    found = []
    for number in range(wanted[-1] + 1):
        capture.grab()
        if number in wanted:
            found.append(cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB))
    capture.release()
    return found


def decord_batch(path: Path) -> list[np.ndarray]:
    import decord

    reader = decord.VideoReader(str(path), num_threads=1)
    return list(reader.get_batch(middles(len(reader), FRAMES)).asnumpy())


OURS = "tellapart"

READERS: dict[str, tuple[str, Read]] = {
    OURS: ("av", ours),
    "PyAV, plain loop": ("av", pyav_loop),
    "imageio (PyAV)": ("imageio", imageio_loop),
    "OpenCV": ("cv2", opencv_loop),
    "decord": ("decord", decord_batch),
}


def resident() -> float:
    """MiB that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def measure(name: str, files: list[Path], clips: int, results: multiprocessing.Queue) -> None:
    """CPU seconds, and memory after a tenth of the clips and at the end; the frames of the first clip."""
    read = READERS[name][1]
    try:
        first = read(files[0])
        early = 0.0
        start, begun = time.process_time(), time.perf_counter()
        for number, path in enumerate(islice(cycle(files), clips), start=1):
            read(path)
            if number == max(1, clips // 10):
                early = resident()
        spent, wall = time.process_time() - start, time.perf_counter() - begun
        results.put((spent, wall, early, resident(), np.stack(first)))
    except Exception as error:  # a peer that cannot read a container
        results.put(f"{type(error).__name__}: {error}")


def in_own_process(name: str, files: list[Path], clips: int) -> tuple[float, float, float, float, np.ndarray] | str:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=measure, args=(name, files, clips, results))
    child.start()
    found = results.get()
    child.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--peer_clips", type=int, default=1000, help="clips that each peer reads")
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    lines = [
        "| clips | reader | frames per CPU second | CPU time, ours = 1 | MiB after a tenth | MiB at the end | frames differ by |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, kind in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            files = make(Path(folder), *kind)
            own: tuple[float, np.ndarray] | None = None
            for name, (module, _) in READERS.items():
                if find_spec(module) is None:
                    continue
                clips = options.clips if name == OURS else options.peer_clips
                found = in_own_process(name, files, clips)
                if isinstance(found, str):
                    lines.append(f"| {setting} | {name} | cannot read it | | | | |")
                    print(lines[-1], found, flush=True)
                    continue
                spent, _, early, late, frames = found
                own = (spent / clips, frames) if own is None else own
                differ = np.abs(frames.astype(int) - own[1]).mean() if frames.shape == own[1].shape else float("nan")
                rate, each = clips * FRAMES / spent, spent / clips
                lines.append(
                    f"| {setting} | {name} | {rate:.0f} | {each / own[0]:.2f} | {early:.0f} | {late:.0f} | {differ:.1f} |"
                )
                print(lines[-1], flush=True)
    if options.docs:
        write_table(options.docs, "video", lines)


if __name__ == "__main__":
    main()
