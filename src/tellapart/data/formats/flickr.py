r"""Flickr8k's and Flickr30k's token files: ``1000092795.jpg#0<TAB>caption``, a caption per line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from tellapart.data.captions import read_text
from tellapart.data.dataset import Example
from tellapart.data.folder import root_of
from tellapart.data.formats.base import Layout, Place
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.ids import decode_id
from tellapart.data.formats.lines import from_line, lines_of, to_line
from tellapart.errors import UsageError
from tellapart.files import write_text

FILE = "captions.token"
_LINE = re.compile(r"([^\t]+)#(\d+)\t(.*)", re.DOTALL)


class Flickr(Layout):
    """An image's id is its path without ending. Images are looked for in the given folder, else in that of the file and
    in the folders there."""

    name = "flickr"

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether the file, or one in the folder, has such lines."""
        return bool(cls._files(place))

    @classmethod
    def _files(cls, place: Place) -> list[Path]:
        files = [place.path / name for name in place.names] if place.is_folder else [place.path]
        endings = (".token", ".token.txt") if place.is_folder else (".token", ".txt")
        return [file for file in files if file.name.endswith(endings) and file.is_file() and _has_lines(file)]

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless there is one file."""
        files = cls._files(place) if place.is_folder else [place.path]
        if len(files) != 1:
            raise UsageError(f"{place.path} holds {len(files)} token files, not one: name the file.")

    @cached_property
    def file(self) -> Path:
        """The token file."""
        self.require(self.place)
        return self._files(self.place)[0] if self.place.is_folder else self.place.path

    def read(self, splits: Sequence[str]) -> list[Example]:
        """All images that the file names, in the order of their first captions."""
        path = self.file
        captions: dict[str, list[str]] = {}
        for number, line in enumerate(lines_of(read_text(path)), start=1):
            if not line.strip():
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise UsageError(f"{path}, line {number}: {line[:80]!r} is not name.jpg#0<TAB>caption: correct it.")
            captions.setdefault(match[1], []).append(from_line(match[3]))
        if not captions:
            raise UsageError(f"{path} is empty: it needs lines of name.jpg#0<TAB>caption.")
        root = self.place.images or _root(path.parent, captions)
        return [
            Example(decode_id(name[: -len(Path(name).suffix) or None]), self.place.picture(root / name), tuple(lines))
            for name, lines in captions.items()
        ]

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """``captions.token`` and ``images/``."""
        (examples,) = splits.values()
        lines = []
        for example in examples:
            if not example.references:
                raise UsageError(
                    f"image {example.id!r} has no caption, and flickr only names images by their captions: "
                    "convert to another format."
                )
            name = images.put_by_id(example, folder / "images")
            for number, text in enumerate(example.references):
                lines.append(f"{name}#{number}\t{to_line(text, f'image {example.id!r}', 'flickr')}\n")
        write_text(folder / FILE, "".join(lines))


def _has_lines(path: Path) -> bool:
    with path.open("rb") as file:
        return _LINE.match(file.readline(1 << 16).decode("utf-8-sig", errors="replace")) is not None


def _root(folder: Path, names: Iterable[str]) -> Path:
    """``folder``, or the one in it in which the first image is found."""
    roots = [folder, folder / "images", *(entry for entry in sorted(folder.iterdir()) if entry.is_dir())]
    return root_of(names, roots) or folder
