"""One shard: its samples in, its captions out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from tellapart.captioning.batching import WINDOW, batches
from tellapart.captioning.collection import Pace
from tellapart.captioning.read import taking
from tellapart.captioning.records import Caption, Item
from tellapart.captioning.serve import Station, StationError, serve
from tellapart.captioning.shards.output import ShardFolder
from tellapart.captioning.shards.parts import Part
from tellapart.captioning.shards.samples import DamagedError, Reading, Sample, UnusableError, windows
from tellapart.captioning.shards.writers import WRITERS, ShardWriter
from tellapart.data.remote.addresses import file_of
from tellapart.errors import UsageError, without_secrets
from tellapart.locks import TakenError

WINDOW_BYTES = 256 * 2**20
"""Bytes of encoded images from which no more samples are read ahead."""


@dataclass(frozen=True)
class ShardJob:
    """What is the same for all shards.

    Args:
        reading: how shards are read.
        kind: form of output, of ``WRITERS``.
        candidates: whether rows hold all captions that were drawn.
        pace: how the work within a shard is cut.
    """

    reading: Reading
    kind: str
    candidates: bool
    pace: Pace


def output_name(address: str, kind: str) -> str:
    """Name of the shard that is written for one that is read.

    Example:
        >>> output_name("s3://bucket/in/00012.tar", "jsonl")
        '00012.jsonl'
    """
    return file_of(address).rpartition(".")[0] + WRITERS[kind].ending


def caption_shard(address: str, station: Station, output: ShardFolder, job: ShardJob) -> Part:
    """Caption one shard: write a shard of the same name, then its review part; each appears when it is whole.

    The shard is read once, from its beginning to its end. Memory holds a window of samples, whatever the shard's size.

    Args:
        address: path or address of a ``.tar`` or ``.parquet`` file.
        station: reads and draws.
        output: where the captions go.
        job: the settings.

    Returns:
        The review part. Samples without a caption, and a damaged end of a tar, are counted in it.

    Raises:
        UsageError: nothing of the shard can be read, or, with ``pace.fail``, an image cannot be read.
        OSError: something cannot be written.

    Example:
        >>> part = caption_shard("shards/00000.tar", station, output, job)  # doctest: +SKIP
        >>> part.captioned, part.broken  # doctest: +SKIP
        (10000, 0)
    """
    name, started = output_name(address, job.kind), time.monotonic()
    part = Part(name)
    with (
        output.writing(name, lambda: part, address) as temporary,
        WRITERS[job.kind](temporary, output.base, candidates=job.candidates) as writer,
        closing(job.reading.samples(address)) as samples,
    ):
        run = _Run(part, writer, job.pace)
        with closing(run.batches(samples)) as found:
            serve(taking(found), station, run.hear, threads=job.pace.threads, fail=job.pace.fail)
        run.write_finished()
        assert not run.waiting, "every image that was handed out has been answered"
        part.seconds = time.monotonic() - started
    return part


@dataclass(frozen=True)
class Unusable:
    """A shard that no further try can caption.

    Args:
        why: the sentence.
    """

    why: str


Answer = Part | Unusable | str | None
"""What a try gave: the review part, why no try can succeed, why this one failed, or nothing where another process has the shard
or had done it."""


def attempt(shard: str, station: Station, output: ShardFolder, job: ShardJob) -> Answer:
    """Try to caption a shard.

    Raises:
        UsageError: it fails, and ``pace.fail``.
        StationError: nothing more can be captioned.
    """
    name = output_name(shard, job.kind)
    try:
        with output.claim(name):
            return None if output.is_done(name, shard) else caption_shard(shard, station, output, job)
    except TakenError:
        return None
    except StationError:
        raise
    except Exception as error:  # whatever is wrong with one shard, the others go on
        if job.pace.fail:
            raise
        why = without_secrets(" ".join(str(error).split())) or type(error).__name__
        return Unusable(why) if isinstance(error, UnusableError) else why


class _Run:
    """Keeps samples until all of their window have been answered, and writes them in the shard's order."""

    def __init__(self, part: Part, writer: ShardWriter, pace: Pace) -> None:
        self.part, self.writer, self.pace = part, writer, pace
        self.waiting: deque[list[Sample]] = deque()
        self._answers: dict[str, Caption] = {}

    def batches(self, samples: Iterator[Sample]) -> Generator[list[Item], None, None]:
        size = self.pace.batch_size
        try:
            with closing(windows(samples, size * (WINDOW if self.pace.by_size else 1), WINDOW_BYTES)) as found:
                for window in found:
                    if self.pace.fail and (problem := next((one.problem for one in window if one.problem), None)):
                        raise UsageError(problem)
                    self.waiting.append(window)
                    items = [sample.item for sample in window if sample.item is not None]
                    yield from batches(items, size, by_size=self.pace.by_size)
        except DamagedError as error:
            if not self.part.images and not self.waiting:
                raise
            self.part.damaged = str(error)

    def hear(self, captions: Sequence[Caption]) -> None:
        self._answers.update((caption.id, caption) for caption in captions)
        self.write_finished()

    def write_finished(self) -> None:
        while self.waiting and all(one.item is None or one.item.id in self._answers for one in self.waiting[0]):
            window = self.waiting.popleft()
            told = [(one, None if one.item is None else self._answers.pop(one.item.id)) for one in window]
            self.writer.add([(one, None if answer is None or answer.error else answer) for one, answer in told])
            for sample, answer in told:
                self._count(sample, answer)

    def _count(self, sample: Sample, answer: Caption | None) -> None:
        if sample.item is None or answer is None or answer.error is not None:
            why = sample.problem if answer is None else answer.error
            self.part.fault(without_secrets(why or f"{sample.key} has no caption."))
        else:
            self.part.add(sample.item, answer)
