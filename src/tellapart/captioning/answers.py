"""What a model answers about every image of a collection, as it writes it, kept batch by batch so that a stopped run resumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tellapart.captioners.base import Captioner
from tellapart.captioning.collection import Pace, Progress, caption_items
from tellapart.captioning.read import Reader
from tellapart.captioning.records import Caption, Item
from tellapart.captioning.serve import Station
from tellapart.captioning.work import Work, resumable, run_of
from tellapart.types import Batch, Decoding


def answer_all(
    captioner: Captioner,
    items: Sequence[Item],
    decoding: Decoding,
    pace: Pace,
    *,
    folder: Path,
    settings: Mapping[str, Any],
    overwrite: bool,
    report: Callable[[Caption], None],
    use: Callable[[dict[str, str]], None],
) -> None:
    """Have a model answer its prompt about every image, and hand the answers on; the work folder goes once they are used.

    Args:
        captioner: with its prompt.
        items: the images.
        decoding: how it answers.
        pace: how the work is cut; this process does all of it.
        folder: where the answers are kept until they are used.
        settings: everything that decides the answers, as JSON values by option, or by the word of the usage line.
        overwrite: throw away what was begun with other settings, instead of refusing to resume.
        report: called with each image once its answer is kept.
        use: called with image id -> answer with its line breaks, in the collection's order, of the images that could be read.

    Raises:
        UsageError: the folder holds a run with other settings and not ``overwrite``; or ``pace.fail``, and an image cannot be
            read.
        KeyboardInterrupt: it was interrupted; the message says how to resume.
    """
    device = next(captioner.parameters()).device
    captioner.eval()

    def draw(batch: Batch, described: int) -> list[Caption]:
        with torch.no_grad():
            rollout = captioner.generate(batch.to(device), decoding)
        return [Caption(name, raw=text) for name, text in zip(rollout.ids(), rollout.texts, strict=True)]

    station = Station(Reader({captioner.name: captioner.process}), draw)
    work, progress = Work(folder, settings, overwrite=overwrite), Progress()
    with resumable(work, lambda: f"{progress.before + progress.drawn} of {len(items)} images answered"):
        caption_items(items, lambda rank, processes: station, pace, report=report, work=work, progress=progress)
        drawn = work.drawn()
        whole = {item.id: drawn[item.id].raw for item in items if item.id in drawn and drawn[item.id].error is None}
        use(whole)
        if not progress.errors:
            work.remove(run_of(settings, [item.id for item in items]))
