"""``tellapart data check``: what would spoil a training, told before one is started."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.cli.command import options_of
from tellapart.cli.console import note, say
from tellapart.data.formats.names import Readable
from tellapart.errors import UsageError
from tellapart.files import write_json, write_text

if TYPE_CHECKING:
    from tellapart.data.check import Report
    from tellapart.data.dataset import Example

TO_REPAIR = 2


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of ``tellapart data check``.

    Args:
        split: look at this part only; null looks at all, and for images that several of them have.
        format: how to read the path; null finds out by looking.
        images: folder that image paths are relative to.
        limit: look only at the first so many images of each split.
        image_column: column or field with the image or its path, when its name is not a usual one.
        caption_column: column or field with the captions, likewise.
        caption_extension: ending of the caption files beside images, when there are several kinds.
        num_workers: processes that decode images; null takes one for each processor.
        json: print one JSON object instead of a page.
        output_dir: folder to write the whole lists into (check.json, broken_images.tsv, duplicates.tsv).
    """

    split: str | None = None
    format: Readable | None = None
    images: Path | None = None
    limit: int | None = None
    image_column: str | None = None
    caption_column: str | None = None
    caption_extension: str | None = None
    num_workers: int | None = None
    json: bool = False
    output_dir: Path | None = None


def run(argv: Sequence[str]) -> int:
    """Look through the data; the exit code is 0 if there is nothing to repair, and else 2."""
    chosen = options_of(
        argv,
        CheckOptions,
        usage="data check PATH ...",
        description="Read every image and caption of data and tell what would spoil a training: broken images, empty "
        "captions, images that more than one split has. Several paths are looked at together. The exit code is 2 if there "
        "is something to repair.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if not words:
        raise UsageError("no data were given: name a folder, a file of captions, or several.")
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit is {options.limit}: keep at least 1 image.")
    splits = read_splits(words, options)
    from tellapart.cli.data_page import page
    from tellapart.data.check import check

    report = check(splits, num_workers=options.num_workers)
    if options.output_dir is not None:
        write_lists(report, options.output_dir)
        note(f"written to {options.output_dir}")
    say(json.dumps(as_json(report), ensure_ascii=False) if options.json else page(", ".join(words), report, splits))
    return 0 if report.clean else TO_REPAIR


def read_splits(words: Sequence[str], options: CheckOptions) -> dict[str, Sequence[Example]]:
    """The images of every split of every path, blank captions included; where there are several paths, a split is
    called ``path:split``, and a path without splits by its own name.

    Raises:
        UsageError: a path does not exist, is broken, or has no such split or no images.
    """
    from tellapart.data.load import read_split, source_at

    splits: dict[str, Sequence[Example]] = {}
    for word in dict.fromkeys(words):
        source = source_at(
            word,
            images=options.images,
            format=options.format,
            image_column=options.image_column,
            caption_column=options.caption_column,
            caption_extension=options.caption_extension,
        )
        for split in [options.split] if options.split else source.splits():
            label = split if len(words) == 1 else f"{word}:{split}" if source.divided else word
            rows = (
                read_split(source, split) if options.split else source.read([split])
            )  # the former adds restval to train
            splits[label] = rows[: options.limit]
    if not any(splits.values()):
        raise UsageError(f"{', '.join(words)} holds no images: check the path and the split.")
    return splits


def as_json(report: Report) -> dict[str, Any]:
    """The report for machines."""
    splits: Mapping[str, Any] = {name: asdict(split) for name, split in report.splits.items()}
    groups = [asdict(group) | {"splits": group.splits} for group in report.groups]
    return {"clean": report.clean, "splits": splits, "duplicates": groups}


def write_lists(report: Report, folder: Path) -> None:
    """The report and its two lists, as files.

    Args:
        report: what was found.
        folder: where; it is made if need be.
    """
    broken = [
        [name, image.id, image.name, image.why] for name, split in report.splits.items() for image in split.broken
    ]
    repeated = [
        [str(number), "exact" if group.exact else "near", member.split, member.id, member.name]
        for number, group in enumerate(report.groups, start=1)
        for member in group.members
    ]
    write_json(folder / "check.json", as_json(report))
    write_text(folder / "broken_images.tsv", _tsv(["split", "id", "image", "why"], broken))
    write_text(folder / "duplicates.tsv", _tsv(["group", "kind", "split", "id", "image"], repeated))


def _tsv(heading: list[str], rows: list[list[str]]) -> str:
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in [heading, *rows])
