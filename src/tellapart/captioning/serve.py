"""The work of one process: read, draw, journal, write, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tellapart.captioning.journal import Journal
from tellapart.captioning.outputs.base import Output
from tellapart.captioning.read import Read, Take, read_ahead
from tellapart.captioning.records import Caption, Item
from tellapart.errors import UsageError
from tellapart.types import Batch


class StationError(UsageError):
    """Nothing more can be captioned, whatever the image: the run stops, and can be resumed."""


@dataclass(frozen=True)
class Station:
    """Settings of one captioning process.

    Args:
        read: images -> their tensors; called in threads.
        draw: tensors, and how many of the first images are described -> a caption for each of these, or why there is none.
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
        fail: stop at the first image without a caption.

    Raises:
        UsageError: ``fail``, and an image has no caption; or nothing more can be captioned.
        OSError: something cannot be written.
    """
    tell([])
    for read in read_ahead(take, station.read, threads=threads):
        drawn = station.draw(read.batch, len(read.items)) if read.batch is not None else []
        broken = [Caption(name, error=error) for name, error in read.errors.items()]
        broken += [caption for caption in drawn if caption.error is not None]
        done = [(item, one) for item, one in zip(read.items, drawn, strict=True) if one.error is None]
        if output is not None:
            done = [(item, output.prepare(item, caption)) for item, caption in done]
        done = [(item, replace(caption, size=item.size, features=item.features)) for item, caption in done]
        drawn = [caption for _, caption in done]
        if journal is not None:
            journal.append([*drawn, *broken])
        if output is not None:
            for item, caption in done:
                output.apply(item, caption)
        tell([*drawn, *(broken[1:] if fail else broken)])  # the first one is the error that ends it
        if broken and fail:
            raise UsageError(str(broken[0].error))
