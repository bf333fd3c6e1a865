"""The three ways of ``tellapart caption``: show a few captions, print them, or write them so that a stop loses nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tellapart.captioning.collection import Progress, caption_items, captioned
from tellapart.captioning.gate import SEVERITY
from tellapart.captioning.records import Caption, Item, Row
from tellapart.captioning.review import judged, write_review
from tellapart.captioning.work import Work
from tellapart.cli.caption_choices import gate_checks, settings_of
from tellapart.cli.caption_parts import BuildStation, output_of, pace_of
from tellapart.cli.console import note, say
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.captioning.outputs.base import Output
    from tellapart.cli.caption import CaptionOptions

SHOWN_ERRORS = 20
"""Images whose errors are told one by one."""


def show_captions(items: Sequence[Item], options: CaptionOptions) -> int:
    """Captions before and after post-processing; nothing is written."""

    def show(item: Item, caption: Caption) -> None:
        say(f"{item.image.name}\n  drawn:   {caption.raw}\n  written: {caption.caption}")
        if caption.flags:
            say(f"  faults:  {' '.join(caption.flags)}")

    return _in_order(items, options, show)


def print_captions(items: Sequence[Item], options: CaptionOptions) -> int:
    """A line an image on standard output."""
    return _in_order(items, options, lambda item, caption: say(f"{item.image.name}\t{caption.caption}"))


def _in_order(items: Sequence[Item], options: CaptionOptions, show: Callable[[Item, Caption], None]) -> int:
    """Caption without files, showing each image as soon as all before it are done."""
    if options.num_processes > 1:
        raise UsageError(f"--num_processes {options.num_processes} needs files to write to: give --output.")
    errors, waiting, rows = _Errors(), dict[str, Caption](), list[Row]()
    following = iter(items)
    heads = [next(following, None)]

    def report(caption: Caption) -> None:
        errors(caption)
        waiting[caption.id] = caption
        while (item := heads[0]) is not None and item.id in waiting:
            done = waiting.pop(item.id)
            if done.error is None:
                show(item, done)
                rows.append((item, done))
            heads[0] = next(following, None)

    progress = caption_items(items, BuildStation(options), pace_of(options), report=report)
    code = _tell_broken(progress, len(items), "repair them")
    note(summary(progress, _judged(rows, options)))
    return code


def write_captions(items: Sequence[Item], options: CaptionOptions) -> int:
    """Caption into files. The work is journalled beside them, so that the same command goes on after a stop.

    Raises:
        UsageError: the output exists, or was begun with other options.
        KeyboardInterrupt: it was interrupted; the message says how to go on.
    """
    output = output_of(options, items)
    _make_room(output, items, options)
    work = Work(output.work, settings_of(options), overwrite=options.overwrite)
    progress = Progress()
    try:
        output.clean(items)
        caption_items(
            items,
            BuildStation(options),
            pace_of(options),
            report=_Errors(),
            output=output,
            work=work,
            progress=progress,
        )
        return _finish(items, options, output, work, progress)
    except KeyboardInterrupt as error:
        done = progress.before + progress.drawn
        raise KeyboardInterrupt(
            f"stopped with {done} of {len(items) - progress.kept} images captioned: run the same command again to go on."
        ) from error
    finally:
        work.close()


def _make_room(output: Output, items: Sequence[Item], options: CaptionOptions) -> None:
    """See that the output can be written.

    Raises:
        UsageError: it exists, or its folder cannot be written to, or an image does not go with it.
    """
    place = output.place
    if output.exists() and not options.overwrite and not output.work.is_dir():
        raise UsageError(f"--output {place} exists: name another file, or give --overwrite to replace it.")
    output.work.parent.mkdir(parents=True, exist_ok=True)
    output.check(items)
    if not os.access(output.work.parent, os.W_OK):
        raise UsageError(f"--output {place} is in a folder that cannot be written to: choose another.")


def _finish(items: Sequence[Item], options: CaptionOptions, output: Output, work: Work, progress: Progress) -> int:
    """Put the output together, write the review, and say what came out."""
    rows = _judged(captioned(items, work), options)
    if rows:
        output.assemble(rows)
    listed = 0
    if rows or progress.errors:
        listed = write_review(output.review, rows, progress.errors, items)
    code = _tell_broken(progress, len(items), "repair them and run the same command again")
    note(summary(progress, rows, f"see {output.review}" if listed else ""))
    if not progress.errors:
        work.remove()
    return code


def _judged(rows: Sequence[Row], options: CaptionOptions) -> list[Row]:
    checks = gate_checks(options)
    return judged(rows, checks=checks, max_same=options.max_same, min_match=options.min_match)


class _Errors:
    """Tells of images that cannot be read, of the first ones by name."""

    def __init__(self) -> None:
        self.told = 0

    def __call__(self, caption: Caption) -> None:
        if caption.error is None:
            return
        self.told += 1
        if self.told <= SHOWN_ERRORS:
            note(f"error: {caption.error}")
        elif self.told == SHOWN_ERRORS + 1:
            note("error: there are more images that cannot be read.")


def _tell_broken(progress: Progress, total: int, remedy: str) -> int:
    broken = len(progress.errors)
    if broken:
        note(f"error: {broken} of {total} images could not be read and have no caption (see above): {remedy}.")
    return 2 if broken else 0


def summary(progress: Progress, rows: Sequence[Row], where: str = "") -> str:
    """What was done, how fast, and how many captions are flagged for what, in one line."""
    aside = [f"{progress.before} before"] if progress.before else []
    aside += [f"{progress.kept} kept"] if progress.kept else []
    told = f"captioned {progress.drawn} images" + (f" ({', '.join(aside)})" if aside else "")
    told += f" at {progress.rate:.1f} images/s" if progress.rate else ""
    often = Counter(flag for _, caption in rows for flag in caption.flags)
    flagged = sum(bool(caption.flags) for _, caption in rows)
    reasons = ", ".join(f"{name} {often[name]}" for name in SEVERITY if often[name])
    told += f"; {flagged} flagged ({reasons})" if flagged else "; none flagged"
    return f"{told}: {where}." if where else f"{told}."
