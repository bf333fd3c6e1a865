"""``tellapart data``: look through data, or convert it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tellapart.cli.command import options_of, require_another_file, require_html, run_action
from tellapart.cli.console import note, say, say_json, table
from tellapart.data.formats.names import Format, Link, Readable
from tellapart.errors import UsageError, count_of
from tellapart.files import write_json, write_text

if TYPE_CHECKING:
    from tellapart.data.check import Group, Report
    from tellapart.data.dataset import Example
    from tellapart.data.formats.open import Source


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How to read data.

    Args:
        format: layout of the data; null detects it.
        split: read only this part; null reads all.
        images: folder that image paths are relative to; null guesses it.
        limit: maximum number of images per split, the first ones; null means all.
        image_column: column or field with the image's path, URL or bytes, when its name is not a usual one.
        caption_column: column or field with the captions, likewise.
        id_column: column with the images' ids; null takes image_id, else the path or URL.
        allow_private: let URLs in tables lead to hosts of a private network.
        caption_extension: ending of the caption files next to the images, when there are several kinds.
        size: of the built-in images, which are named world.
    """

    format: Readable | None = None
    split: str | None = None
    images: Path | None = None
    limit: int | None = None
    image_column: str | None = None
    caption_column: str | None = None
    id_column: str | None = None
    allow_private: bool = False
    caption_extension: str | None = None
    size: Literal["full", "small"] = "full"

    def source(self, path: str) -> Source:
        """The data at a path; ``world`` is the built-in images.

        Raises:
            UsageError: it does not exist, or is broken.
        """
        if path == "world":
            from tellapart.world.source import WorldSource, require_no_layout

            require_no_layout(vars(self))
            return WorldSource(self.size)
        from tellapart.data.load import source_at

        return source_at(
            path,
            images=self.images,
            format=self.format,
            image_column=self.image_column,
            caption_column=self.caption_column,
            id_column=self.id_column,
            allow_private=self.allow_private,
            caption_extension=self.caption_extension,
        )

    def require_used(self, sources: Sequence[Source]) -> None:
        """Raise where an option has no use for any of the data.

        Raises:
            UsageError: naming the first data and the option.
        """
        from tellapart.data.load import require_options

        refused = list[UsageError]()
        for source in sources:
            try:
                require_options(source)
            except UsageError as error:
                refused.append(error)
        if refused and len(refused) == len(sources):
            raise refused[0]


# ``tellapart data check``: what would spoil a training, before one is started.

TO_REPAIR = 2


@dataclass(frozen=True, kw_only=True)
class CheckOptions(SourceOptions):
    """Options of ``tellapart data check``.

    Args:
        num_workers: processes that decode images; null takes one for each processor.
        json: print one JSON object instead of text.
        page: HTML file that shows broken, odd and repeated images: one offline file under 6 MB.
        output_dir: folder for the complete lists (check.json, broken_images.tsv, odd_images.tsv, duplicates.tsv).
        strict: exit with code 2 if there is something to repair; otherwise only if no image can be read.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart data check photos/",
        "tellapart data check photos/ --page check.html",
        "tellapart data check train.json val.json --output_dir checked",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "what is read": ("format", "split", "images", "limit", "image_column", "caption_column", "caption_extension"),
        "output": ("json", "page", "output_dir", "strict"),
        "speed": ("num_workers",),
    }
    num_workers: int | None = None
    json: bool = False
    page: Path | None = None
    output_dir: Path | None = None
    strict: bool = False


def run_check(argv: Sequence[str]) -> int:
    """Look through the data; with --strict the exit code is 2 if there is something to repair."""
    chosen = options_of(
        argv,
        CheckOptions,
        usage="data check PATH ...",
        description="Read every image and caption of data and report what would spoil a training: broken images, empty "
        "captions, images in more than one split. Several paths are checked together.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if not words:
        raise UsageError("no data were given: name a folder, a file of captions, or several.")
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit is {options.limit}: keep at least 1 image.")
    _keep_inputs(words, options)
    splits = read_splits(words, options)
    from tellapart.data.check import check

    report = check(splits, num_workers=options.num_workers)
    if options.output_dir is not None:
        write_lists(report, options.output_dir)
        note(f"written to {options.output_dir}")
    if options.page is not None:
        from tellapart.evaluation.data_check.page import write_check_page

        note(f"written to {write_check_page(options.page, ', '.join(words), report, splits)}")
    if options.json:
        say_json(as_json(report))
    else:
        say(as_text(", ".join(words), report, splits))
    readable = any(split.images > len(split.broken) for split in report.splits.values())
    return TO_REPAIR if not readable or (options.strict and not report.clean) else 0


def _keep_inputs(words: Sequence[str], options: CheckOptions) -> None:
    """Raise where what is written would replace what is read, or the page would have another ending than its kind."""
    if options.page is not None:
        require_another_file(words, options.page, option="--page")
        require_html(options.page, option="--page")
    if options.output_dir is not None:
        for name in LISTS:
            require_another_file(words, options.output_dir / name, option="--output_dir")


def read_splits(words: Sequence[str], options: CheckOptions) -> dict[str, Sequence[Example]]:
    """The images of every split of every path, blank captions included; where there are several paths, a split is
    called ``path:split``, and a path without splits by its own name.

    Raises:
        UsageError: a path does not exist, is broken, or has no such split or no images.
    """
    from tellapart.data.dataset import with_damaged
    from tellapart.data.load import read_split

    splits: dict[str, Sequence[Example]] = {}
    sources = {word: options.source(word) for word in words}
    options.require_used(list(sources.values()))
    for word, source in sources.items():
        for split in [options.split] if options.split else source.splits():
            label = split if len(words) == 1 else f"{word}:{split}" if source.divided else word
            rows = (
                read_split(source, split) if options.split else source.read([split])
            )  # the former adds restval to train
            splits[label] = with_damaged(rows[: options.limit])
    if not any(splits.values()):
        raise UsageError(f"{', '.join(words)} holds no images: check the path and the split.")
    return splits


def as_json(report: Report) -> dict[str, Any]:
    """The report for machines."""
    splits: Mapping[str, Any] = {name: asdict(split) for name, split in report.splits.items()}
    groups = [asdict(group) | {"splits": group.splits} for group in report.groups]
    return {"clean": report.clean, "splits": splits, "duplicates": groups}


LISTS = ("check.json", "odd_images.tsv", "broken_images.tsv", "duplicates.tsv")
"""What ``--output_dir`` gets: the report, and its lists."""


def write_lists(report: Report, folder: Path) -> None:
    """The report and its lists, as files.

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
    whole, *lists = (folder / name for name in LISTS)
    write_json(whole, as_json(report))
    odd = [[name, image.id, image.name, ", ".join(image.kinds)] for name, s in report.splits.items() for image in s.odd]
    write_text(lists[0], _tsv(["split", "id", "image", "what"], odd))
    write_text(lists[1], _tsv(["split", "id", "image", "why"], broken))
    write_text(lists[2], _tsv(["group", "kind", "split", "id", "image"], repeated))


def _tsv(heading: list[str], rows: list[list[str]]) -> str:
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in [heading, *rows])


# What it prints.

FIRST_ROWS = 5
"""Images of each split that are shown with their captions."""

SHOWN_GROUPS = 20
"""Groups of equal images, and ids with a fault, that are shown; --output_dir and --json have them all."""

LONGEST = 100
"""Letters of a caption that are shown."""


def as_text(title: str, report: Report, splits: Mapping[str, Sequence[Example]]) -> str:
    """The report as text.

    Args:
        title: what was looked at.
        report: what was found.
        splits: the images themselves, of which the first are shown.
    """
    leaks = report.leaks
    parts = [
        [title, "", table(report.counts())],
        _broken(report),
        _ids("ids named twice", {name: split.repeated_ids for name, split in report.splits.items()}),
        _ids("images with empty captions", {name: split.empty_captions_of for name, split in report.splits.items()}),
        _groups("images in more than one split", leaks),
        _groups("images that repeat within a split", [group for group in report.groups if len(group.splits) == 1]),
        _first(splits),
        [report.verdict],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _broken(report: Report) -> list[str]:
    lines = [
        f"  {name}  {image.why if image.id in image.why else f'{image.id}: {image.why}'}"
        for name, split in report.splits.items()
        for image in split.broken
    ]
    return [f"broken images ({len(lines)}):", *lines] if lines else []


def _ids(title: str, ids: Mapping[str, Sequence[str]]) -> list[str]:
    lines = [f"  {split}  {image}" for split, images in ids.items() for image in images]
    more = [f"  and {len(lines) - SHOWN_GROUPS} more: --output_dir lists them"] if len(lines) > SHOWN_GROUPS else []
    return [f"{title} ({len(lines)}):", *lines[:SHOWN_GROUPS], *more] if lines else []


def _groups(title: str, groups: Sequence[Group]) -> list[str]:
    if not groups:
        return []
    lines = []
    for group in groups[:SHOWN_GROUPS]:
        kind = "the same file" if group.exact else "the same look"
        names = [f"{member.split} {member.name}" for member in group.members]
        lines.append(f"  {kind}: {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}")
    if len(groups) > SHOWN_GROUPS:
        lines.append(f"  and {len(groups) - SHOWN_GROUPS} more groups: --output_dir lists them")
    return [f"{title} ({count_of(len(groups), 'group')}):", *lines]


def _first(splits: Mapping[str, Sequence[Example]]) -> list[str]:
    lines = []
    for name, examples in splits.items():
        for example in examples[:FIRST_ROWS]:
            texts = example.references
            first = (" ".join(texts[0].split())[:LONGEST] or "an empty caption") if texts else "no caption"
            more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
            lines.append(f"  {name}  {example.id}: {first}{more}")
    return ["first images:", *lines]


# ``tellapart data convert``: images and captions from one layout to another, without loss.


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(SourceOptions):
    """Options of ``tellapart data convert``.

    Args:
        to: the format to write; folder is images with a metadata.jsonl.
        link: copy the images (copy), make symbolic links to them (symlink), or only write their present paths (none; for coco,
            karpathy, lavis, csv, tsv).
        overwrite: replace the folder if it exists.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart data convert dataset_coco.json shards --to webdataset",
        "tellapart data convert world photos --split test --limit 80 --to folder",
    )
    to: Format
    link: Link = "copy"
    overwrite: bool = False


def run_convert(argv: Sequence[str]) -> int:
    """Convert what the first word names into the folder that the second names."""
    chosen = options_of(
        argv,
        ConvertOptions,
        usage="data convert DATA FOLDER --to FORMAT",
        description="Write images and captions in another layout: ids, splits, captions and image bytes stay as they are.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if len(words) != 2:
        raise UsageError(f"convert needs data to read and a folder to write, not {len(words)} words: name both.")
    from tellapart.data.convert import convert

    source = options.source(words[0])
    options.require_used([source])
    done = convert(
        source,
        words[1],
        options.to,
        split=options.split,
        link=options.link,
        overwrite=options.overwrite,
        limit=options.limit,
    )
    for split, images in done.images.items():
        say(f"{split}: {images} images, {done.captions[split]} captions")
    say(f"wrote {done.folder} ({options.to})")
    return 0


ACTIONS = {
    "check": ("read every image and caption, and report what would spoil a training", run_check),
    "convert": ("write data in another format", run_convert),
}
"""Actions on data -> (one line, the function that takes the remaining words)."""


def run(argv: Sequence[str]) -> int:
    """Do what the first word says with the rest.

    Raises:
        UsageError: it says nothing known.
    """
    return run_action("data", ACTIONS, argv)
