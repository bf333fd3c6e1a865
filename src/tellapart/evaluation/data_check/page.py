"""The page: broken images, images in more than one split, repeats and odd images, in one offline file of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tellapart.data.check import Group, Member, Report
from tellapart.data.dataset import Example
from tellapart.data.images import ImageSource
from tellapart.errors import UsageError, count_of
from tellapart.evaluation.one_file import write_page
from tellapart.evaluation.report.pictures import picture_of

PICTURE_LETTERS = 3_000_000
"""Letters of all pictures together, as base64: with the limits below, the page stays under 6 MB."""

ROWS = 100
"""Images or groups of each section that are shown."""

MEMBERS = 8
"""Images of a group, and images of each kind of odd ones, that are shown."""

LETTERS = 200
"""Letters of a name or sentence that are shown; of names the last, of sentences the first."""

HANDLING = {
    "CMYK": "Converted to RGB; colour profiles are not applied.",
    "palette": "Converted to RGB.",
    "16-bit": "Scaled to 8 bits.",
    "floating-point": "Scaled to 8 bits.",
    "transparency": "Composited on white.",
    "several frames": "Only the first frame is read.",
    "another format than its ending": "Read by its content. Rename the files if other programs read them.",
    "turned by EXIF": "Turned upright.",
    "tiny": "Models enlarge it. Remove it if it is an icon or a placeholder.",
    "thin": "Models squeeze it. Crop it if a part of it matters.",
    "huge": "Decoding it takes long. Shrink it once to save the time in every epoch.",
    "one frame": "Read as a clip that does not move.",
    "variable frame rate": "Frames are chosen by time.",
}
"""Odd kind, without its part in brackets -> how such images are read, and what a person may do."""


@dataclass(frozen=True)
class Tile:
    """One image.

    Args:
        name: of the image, its end.
        split: of the data.
        told: what is said of it.
        picture: address of the picture inside the page; empty where there is none.
        pixelated: whether it is shown pixel by pixel.
    """

    name: str
    split: str
    told: str = ""
    picture: str = ""
    pixelated: bool = False

    @property
    def file(self) -> str:
        """Last part of the name."""
        return self.name.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The rest of the name."""
        return self.name.rpartition("/")[0]


@dataclass(frozen=True)
class Shown:
    """Tiles under one heading, and how many more there are."""

    title: str
    about: str
    tiles: list[Tile]
    more: int


@dataclass(frozen=True)
class Section:
    """One kind of finding.

    Args:
        id: of its element.
        title: with the number found.
        remedy: what to do.
        groups: what is shown.
        more: how many groups are not.
        paired: whether its groups are images to compare.
    """

    id: str
    title: str
    remedy: str
    groups: list[Shown]
    more: int = 0
    paired: bool = False


def write_check_page(
    path: Path, title: str, report: Report, splits: Mapping[str, Sequence[Example]], *, letters: int = PICTURE_LETTERS
) -> Path:
    """Write the page in one rename; returns its path.

    Args:
        path: the HTML file.
        title: what was looked at.
        report: what ``tellapart.data.check.check`` found.
        splits: the images that it looked at.
        letters: of all pictures together; images beyond are named without a picture.

    Example:
        >>> splits = {"photos": load_dataset("photos/")}
        >>> write_check_page(Path("check.html"), "photos/", check(splits), splits)
        PosixPath('check.html')
    """
    album = Album(splits, letters)
    repeats = [group for group in report.groups if len(group.splits) == 1]
    sections = [
        _broken(report),
        _groups("leaks", "Images in more than one split", LEAK, report.leaks, album),
        _groups("repeats", "Images that repeat within a split", REPEAT, repeats, album),
        _odd(report, album),
    ]
    return write_page(
        path,
        "tellapart.evaluation.data_check",
        title=title,
        verdict=report.verdict,
        counts=report.counts(),
        sections=[section for section in sections if section.groups],
        ids=[entry for entry in _ids(report) if entry[2]],
        rows=ROWS,
        unshown=album.unshown,
    )


LEAK = "Keep each image in one split. Otherwise test scores are also scores of training images."
REPEAT = "Repeats are used once each. Remove copies if one picture should not count several times."


class Album:
    """Pictures of the images, as long as there is room.

    Args:
        splits: the images.
        letters: that all pictures together may take.
    """

    def __init__(self, splits: Mapping[str, Sequence[Example]], letters: int) -> None:
        self._images = {(split, e.id, e.image.name): e.image for split, examples in splits.items() for e in examples}
        self._left = letters
        self.unshown = 0

    def tile(self, member: Member, told: str = "") -> Tile:
        """The image with its picture. An unreadable image has no picture, and neither has one beyond the limit."""
        picture, pixelated = self._picture(self._images[member.split, member.id, member.name])
        return Tile(ending(member.name), member.split, told, picture, pixelated)

    def _picture(self, image: ImageSource) -> tuple[str, bool]:
        if self._left <= 0:
            self.unshown += 1
            return "", False
        try:
            picture, pixelated = picture_of(image)
        except (UsageError, OSError):  # it has gone since
            return "", False
        if len(picture) > self._left:
            self._left = 0
            self.unshown += 1
            return "", False
        self._left -= len(picture)
        return picture, pixelated


def ending(name: str) -> str:
    """A name, or the end of a long one."""
    return name if len(name) <= LETTERS else f"…{name[-LETTERS:]}"


def beginning(text: str) -> str:
    """A sentence, or the beginning of a long one."""
    return text if len(text) <= LETTERS else f"{text[:LETTERS]}…"


def _broken(report: Report) -> Section:
    found = [(name, image) for name, split in report.splits.items() for image in split.broken]
    tiles = [
        Tile(ending(image.name), name, beginning(image.why.removeprefix(f"{image.name}: ").removeprefix(image.name)))
        for name, image in found[:ROWS]
    ]
    remedy = (
        "Replace each file with an intact copy, or remove it. A recipe with data.on_error=skip trains without them."
    )
    groups = [Shown("", "", tiles, len(found) - len(tiles))] if found else []
    return Section("broken", f"Broken images ({len(found):,})", remedy, groups)


def _groups(name: str, title: str, remedy: str, found: Sequence[Group], album: Album) -> Section:
    groups = []
    for number, group in enumerate(found[:ROWS], start=1):
        members = group.members[:MEMBERS]
        # the same file looks the same: one picture for all
        tiles = [album.tile(members[0])] if group.exact else [album.tile(member) for member in members]
        tiles += [Tile(ending(member.name), member.split) for member in members[1:]] if group.exact else []
        about = "the same file" if group.exact else "the same look: scaled, compressed again or a little brighter"
        groups.append(Shown(f"Group {number}", about, tiles, len(group.members) - len(members)))
    return Section(
        name, f"{title} ({count_of(len(found), 'group')})", remedy, groups, len(found) - len(groups), paired=True
    )


def _odd(report: Report, album: Album) -> Section:
    by_kind: dict[str, list[Member]] = {}
    for split, found in report.splits.items():
        for image in found.odd:
            for kind in image.kinds:
                by_kind.setdefault(kind, []).append(Member(split, image.id, image.name))
    groups = [
        Shown(
            f"{kind} ({len(members):,})",
            HANDLING.get(kind.partition(" (")[0], "Readable."),
            [album.tile(member) for member in members[:MEMBERS]],
            max(0, len(members) - MEMBERS),
        )
        for kind, members in sorted(by_kind.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    images = sum(len(split.odd) for split in report.splits.values())
    return Section("odd", f"Odd images ({images:,})", "They are readable and need no repair.", groups)


def _ids(report: Report) -> Iterator[tuple[str, str, list[str], int]]:
    """Title, remedy, ``split id`` of the first, and how many more."""
    found = {
        "Ids named twice": ("Give every image of a split an id of its own.", "repeated_ids"),
        "Images with empty captions": (
            "Write or remove these captions; a training leaves them out.",
            "empty_captions_of",
        ),
    }
    for title, (remedy, field) in found.items():
        ids = [(split, name) for split, each in report.splits.items() for name in getattr(each, field)]
        lines = [f"{split}: {ending(name)}" for split, name in ids[:ROWS]]
        yield f"{title} ({len(ids):,})", remedy, lines, len(ids) - len(lines)
