"""What captioning a collection costs: images per second of each stage, measured on a sample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tellapart.captioning.batching import batches
from tellapart.captioning.draw import Drawer
from tellapart.captioning.read import taking
from tellapart.captioning.records import Caption, Item
from tellapart.captioning.serve import Build, Station, serve
from tellapart.captioning.shards.samples import Sample, windows
from tellapart.captioning.shards.shard import WINDOW_BYTES, ShardJob
from tellapart.captioning.shards.writers import WRITERS, Told
from tellapart.errors import UsageError

SAMPLE = 200
"""Images that are measured."""
SIZES = (1_000_000, 10_000_000, 1_000_000_000)
"""Collections that are reckoned."""
STAGES = ("read", "decode", "encode", "draw", "score", "write")


@dataclass(frozen=True)
class Cost:
    """How fast a machine captions.

    Attributes:
        images: that were measured.
        seconds: stage -> seconds for all of them, each stage alone and one after another.
        rate: images per second of the whole, with reading ahead of drawing.
        loading: seconds until the models were ready.
    """

    images: int
    seconds: dict[str, float]
    rate: float
    loading: float

    def hours(self, images: int) -> float:
        """Hours that this machine takes.

        Example:
            >>> Cost(200, {}, 100.0, 0.0).hours(3_600_000)
            10.0
        """
        return images / self.rate / 3600

    def machines(self, images: int, hours: float) -> int:
        """Machines of this kind that end within some hours.

        Example:
            >>> Cost(200, {}, 100.0, 0.0).machines(36_000_000, 24.0)
            5
        """
        return math.ceil(round(self.hours(images) / hours, 9))


def measured(shards: Sequence[str], build: Build, job: ShardJob) -> Cost:
    """Caption the first ``SAMPLE`` images stage by stage, then once more as a run does; nothing is kept.

    ``read`` gets the bytes of samples; ``decode`` decodes and prepares images for the models; ``encode`` is the captioner's
    image encoder; ``draw`` the text it writes, also of new tries; ``score`` the CLIP-S of the captions; ``write`` the shard.

    Args:
        shards: addresses of the shards.
        build: makes the station.
        job: the settings; the number of processes is not used.

    Raises:
        UsageError: there is no image that can be read.
    """
    begun = time.monotonic()
    station = build(0, 1)
    loading = time.monotonic() - begun
    clock = _Clock()
    samples = _sample(shards, job, clock)
    items = [sample.item for sample in samples if sample.item is not None]
    some = list(batches(items, job.pace.batch_size, by_size=job.pace.by_size))
    if not some:
        raise UsageError(f"{shards[0]} holds no image that can be read: name other shards.")
    serve(taking(iter(some[:1])), station, lambda captions: None, threads=0)  # what is done once is not measured
    captions = _by_stage(station, some, clock)
    found = {caption.id: caption for caption in captions}
    told = [(one, None if one.item is None else found.get(one.item.id)) for one in samples]
    with TemporaryDirectory() as folder, clock("write"):
        _write(told, Path(folder), job)
    begun = time.monotonic()
    serve(taking(iter(some)), station, lambda captions: None, threads=job.pace.threads)
    whole = time.monotonic() - begun + clock.seconds["write"]
    slowest = max(whole, clock.seconds["read"])  # samples are read while others are drawn
    return Cost(len(items), clock.seconds, len(items) / slowest, loading)


def _write(told: Sequence[Told], folder: Path, job: ShardJob) -> None:
    with WRITERS[job.kind](folder / "shard", folder, candidates=job.candidates) as writer:
        writer.add(told)


class _Clock:
    """Adds up the seconds of each stage; work of an accelerator is waited for."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        self.seconds[stage] += time.monotonic() - begun

    def timed(self, stage: str, action: Callable[..., Any]) -> Callable[..., Any]:
        """The action, whose time counts for a stage."""

        def measured(*given: Any, **named: Any) -> Any:
            with self(stage):
                return action(*given, **named)

        return measured


def _sample(shards: Sequence[str], job: ShardJob, clock: _Clock) -> list[Sample]:
    found: list[Sample] = []
    for shard in shards:
        left = SAMPLE - len(found)
        if left <= 0:
            break
        with (
            clock("read"),
            closing(job.reading.samples(shard)) as samples,
            closing(windows(islice(samples, left), left, WINDOW_BYTES)) as some,
        ):
            found += [sample for window in some for sample in window]
    return found


def _by_stage(station: Station, some: Sequence[list[Item]], clock: _Clock) -> list[Caption]:
    """The captions of all batches, where each stage is timed."""
    drawer, captions = station.draw, list[Caption]()
    assert isinstance(drawer, Drawer), "only models are measured"
    how = drawer.how
    match = None if how.match is None else clock.timed("score", how.match)
    same = how.reward is how.match
    timed = Drawer(drawer.captioner, replace(how, match=match, reward=match if same else how.reward))
    for items in some:
        with clock("decode"):
            read = station.read(items)
        if read.batch is None:
            continue
        batch = read.batch.to(drawer.device)
        with clock("encode"), torch.no_grad():
            drawer.captioner.encode(batch)
        before = clock.seconds["score"]
        with clock("draw"):
            captions += timed(batch, len(read.items))
        clock.seconds["draw"] -= clock.seconds["score"] - before
    clock.seconds["draw"] = max(clock.seconds["draw"] - clock.seconds["encode"], 0.0)
    return captions
