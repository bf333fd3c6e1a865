"""The work of one process: read, draw, journal, write, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tellapart.captioning.journal import Journal
from tellapart.captioning.outputs.base import Output
from tellapart.captioning.read import Read, Take, read_ahead
from tellapart.captioning.records import Caption, Item
from tellapart.errors import UsageError
from tellapart.types import Batch


@dataclass(frozen=True)
class Station:
    """Settings of one captioning process.

    Args:
        read: images -> their tensors; called in threads.
        draw: tensors, and how many of the first images are described -> a caption for each of these.
    """

    read: Callable[[Sequence[Item]], Read]
    draw: Callable[[Batch, int], list[Caption]]


Build = Callable[[int, int], Station]
"""``(rank, processes)`` -> the station of that process, on its device."""

Tell = Callable[[Sequence[Caption]], None]
"""Called with each batch once its captions are saved; first with none, once the model is ready."""


def serve(
    take: Take,
    station: Station,
    tell: Tell,
    *,
    journal: Journal | None = None,
    output: Output | None = None,
    threads: int = 2,
    fail: bool = False,
) -> None:
    """Caption batches until there are none.

    Args:
        take: gives the batches.
        station: reads and draws.
        tell: called after each batch.
        journal: where captions are made safe, if anywhere.
        output: what writes an image's own file, if anything.
        threads: that read ahead.
        fail: stop at the first image that cannot be read.

    Raises:
        UsageError: ``fail``, and an image cannot be read.
        OSError: something cannot be written.
    """
    tell([])
    for read in read_ahead(take, station.read, threads=threads):
        drawn = station.draw(read.batch, len(read.items)) if read.batch is not None else []
        if output is not None:
            drawn = [output.prepare(item, caption) for item, caption in zip(read.items, drawn, strict=True)]
        broken = [Caption(name, error=error) for name, error in read.errors.items()]
        if journal is not None:
            journal.append([*drawn, *broken])
        if output is not None:
            for item, caption in zip(read.items, drawn, strict=True):
                output.apply(item, caption)
        tell([*drawn, *broken])
        if broken and fail:
            raise UsageError(str(broken[0].error))
