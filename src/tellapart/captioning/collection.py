"""A whole collection: find the remaining work, do it, and combine the parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tellapart.captioning.batching import batches
from tellapart.captioning.journal import Journal
from tellapart.captioning.outputs.base import Output
from tellapart.captioning.read import taking
from tellapart.captioning.records import Caption, Item, Row
from tellapart.captioning.serve import Build, Tell, serve
from tellapart.captioning.work import Work
from tellapart.captioning.workers import Orders, in_processes
from tellapart.errors import UsageError
from tellapart.progress import bar


@dataclass(frozen=True)
class Pace:
    """How the work is cut; nothing of it changes a caption.

    Args:
        batch_size: images drawn at once.
        threads: that read images ahead, in each process.
        processes: 1 works in this process.
        by_size: draw images of like shape together.
        fail: stop at the first image that cannot be read.
        imports: modules that each of several processes needs; they are imported once where the system can fork.
    """

    batch_size: int = 16
    threads: int = 2
    processes: int = 1
    by_size: bool = True
    fail: bool = False
    imports: tuple[str, ...] = ()


@dataclass
class Progress:
    """How far it is.

    Attributes:
        before: images captioned by an earlier start of this run.
        kept: images left alone because they have a caption.
        drawn: images captioned now.
        errors: image id -> why it could not be read.
        seconds: since the first model was ready.
    """

    before: int = 0
    kept: int = 0
    drawn: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.drawn / self.seconds if self.seconds > 0 else 0.0


Report = Callable[[Caption], None]
"""Called with every caption, and with every image that cannot be read, once it is saved."""


def caption_items(
    items: Sequence[Item],
    build: Build,
    pace: Pace,
    *,
    report: Report,
    output: Output | None = None,
    work: Work | None = None,
    progress: Progress | None = None,
) -> Progress:
    """Caption what is left of a collection.

    Args:
        items: all of it, in order.
        build: makes the station of each process.
        pace: how the work is cut.
        report: is called with each image.
        output: what writes an image's own file, if anything.
        work: the journals; without them the captions are only reported, by one process.
        progress: filled as it goes, also when it ends with an exception.

    Raises:
        UsageError: an image cannot be read and ``pace.fail``, or a model cannot be used.
        OSError: something cannot be written.
    """
    progress = Progress() if progress is None else progress
    if work is not None:
        work.drop_replaced(items)
    done: Mapping[str, Caption] = {} if work is None else work.done
    progress.before = sum(item.id in done for item in items)
    replaced: Mapping[str, Caption] = {} if work is None else work.replaced
    wanted = [
        item for item in items if item.id in done or output is None or not output.keeps(item, replaced.get(item.id))
    ]
    progress.kept = len(items) - len(wanted)
    if output is not None and work is not None:
        _write_again(items, output, work)
    left = batches(wanted, pace.batch_size, done=done, by_size=pace.by_size)
    started: list[float] = []
    with bar("captioning", len(wanted), done=progress.before) as shown:

        def tell(captions: Sequence[Caption]) -> None:
            started[1:] = [time.monotonic()]  # the first call says that a model is ready
            for caption in captions:
                if caption.error is None:
                    progress.drawn += 1
                else:
                    progress.errors[caption.id] = caption.error
                report(caption)
            progress.seconds = started[-1] - started[0]
            shown.advance(len(captions))
            shown.note(f"{progress.rate:.1f} images/s")

        if progress.before < len(wanted):
            _work_through(left, build, pace, tell, output, work)
    return progress


def _work_through(
    left: Iterator[list[Item]],
    build: Build,
    pace: Pace,
    tell: Tell,
    output: Output | None,
    work: Work | None,
) -> None:
    if pace.processes > 1:
        assert work is not None, "several processes meet in their journals"
        orders = Orders(build, pace.processes, output, pace.threads, pace.fail, pace.imports)
        in_processes(orders, left, work.journal, tell)
        return
    station = build(0, 1)
    options = {"output": output, "threads": pace.threads, "fail": pace.fail}
    if work is None:
        serve(taking(left), station, tell, **options)  # type: ignore[arg-type]
        return
    with Journal(work.journal(0)) as journal:
        serve(taking(left), station, tell, journal=journal, **options)  # type: ignore[arg-type]


def _write_again(items: Sequence[Item], output: Output, work: Work) -> None:
    """The files of the last batches, which were journalled but perhaps not written before the kill."""
    by_id = {item.id: item for item in items}
    for caption in work.last:
        if caption.id in by_id:
            output.apply_again(by_id[caption.id], caption)


def captioned(items: Sequence[Item], work: Work, progress: Progress) -> list[Row]:
    """All images of the collection that have a caption, in order.

    Raises:
        UsageError: the journals hold fewer captions than were drawn, because somebody removed or changed them.
    """
    drawn = work.drawn()
    rows = [(item, drawn[item.id]) for item in items if item.id in drawn and drawn[item.id].error is None]
    expected = progress.before + progress.drawn
    if len(rows) != expected:
        raise UsageError(
            f"{work.folder} holds {len(rows)} of {expected} captions, and nothing was written: its files were removed or "
            "changed while it ran; run the same command again to draw what is missing."
        )
    return rows
