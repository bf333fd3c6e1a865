"""The page that ``tellapart data check`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tellapart.cli.console import table

if TYPE_CHECKING:
    from tellapart.data.check import Group, Report, Spread
    from tellapart.data.dataset import Example

FIRST_ROWS = 5
"""Images of each split that are shown with their captions."""

SHOWN_GROUPS = 20
"""Groups of equal images, and ids with a fault, that are shown; --output_dir and --json have them all."""

LONGEST = 100
"""Letters of a caption that are shown."""


def page(title: str, report: Report, splits: Mapping[str, Sequence[Example]]) -> str:
    """The report as text.

    Args:
        title: what was looked at.
        report: what was found.
        splits: the images themselves, of which the first are shown.
    """
    leaks = report.leaks
    parts = [
        [title, "", _counts(report)],
        _broken(report),
        _ids("ids named twice", {name: split.repeated_ids for name, split in report.splits.items()}),
        _ids("images with empty captions", {name: split.empty_captions_of for name, split in report.splits.items()}),
        _groups("images in more than one split", leaks),
        _groups("images that repeat within a split", [group for group in report.groups if len(group.splits) == 1]),
        _first(splits),
        [_verdict(report)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _counts(report: Report) -> str:
    columns = list(report.splits.values())
    rows: list[list[str]] = [["", *report.splits]]

    def row(name: str, cells: Sequence[str]) -> None:
        rows.append([name, *cells])

    row("images", [f"{s.images:,}" for s in columns])
    row("captions", [f"{s.captions:,}" for s in columns])
    row("captions per image", [_spread(s.captions_per_image) for s in columns])
    row("words per caption", [_spread(s.words_per_caption) for s in columns])
    row("images without captions", [f"{s.without_captions:,}" for s in columns])
    row("empty captions", [f"{s.empty_captions:,}" for s in columns])
    row("broken images", [f"{len(s.broken):,}" for s in columns])
    row("ids named twice", [f"{len(s.repeated_ids):,}" for s in columns])
    row("exact duplicates", [f"{s.exact_duplicates:,}" for s in columns])
    row("near duplicates", [f"{s.near_duplicates:,}" for s in columns])
    for kind in dict.fromkeys(kind for split in columns for kind in split.kinds):
        row(f"usable, but: {kind}", [f"{split.kinds.get(kind, 0):,}" for split in columns])
    return table(rows)


def _spread(spread: Spread) -> str:
    if spread.most == 0:
        return "-"
    if spread.least == spread.most:
        return str(spread.least)
    return f"{spread.least} to {spread.most}, mean {spread.mean:.1f}"


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
    return [f"{title} ({len(groups)} groups):", *lines]


def _first(splits: Mapping[str, Sequence[Example]]) -> list[str]:
    lines = []
    for name, examples in splits.items():
        for example in examples[:FIRST_ROWS]:
            texts = example.references
            first = (" ".join(texts[0].split())[:LONGEST] or "an empty caption") if texts else "no caption"
            more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
            lines.append(f"  {name}  {example.id}: {first}{more}")
    return ["first images:", *lines]


def _verdict(report: Report) -> str:
    splits = list(report.splits.values())
    counts = {
        "broken images": sum(len(split.broken) for split in splits),
        "empty captions": sum(split.empty_captions for split in splits),
        "ids named twice": sum(len(split.repeated_ids) for split in splits),
        "groups of images in more than one split": len(report.leaks),
    }
    found = [f"{what} ({number:,})" for what, number in counts.items() if number]
    return f"to repair: {', '.join(found)}." if found else "nothing to repair."
