"""Captions in files next to the images: ``photo.jpg`` and ``photo.txt`` (or ``photo.caption``), a caption per line."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from tellapart.data.captions import read_text
from tellapart.data.dataset import Example
from tellapart.data.folder import is_image, require_pictures, walk
from tellapart.data.formats.base import Layout, Place
from tellapart.data.formats.by_stem import by_stem
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.ids import decode_id
from tellapart.data.formats.lines import from_line, lines_of, to_line
from tellapart.data.video import is_video
from tellapart.errors import UsageError

logger = logging.getLogger(__name__)

EXTENSIONS = (".txt", ".caption")


class Sidecars(Layout):
    """A folder of images, also in subfolders (Kohya's ``10_name`` are subfolders; how often they repeat is ignored).

    An image's id is its path relative to the folder, without ending.
    """

    name = "sidecars"
    holds_images = True
    has_caption_files = True

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether some image has such a file next to it."""
        return place.is_folder and bool(_found(place, first=True))

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless it is a folder."""
        if not place.is_folder:
            raise UsageError(
                f"{place.path} is not a folder, which format 'sidecars' needs: correct the path or the format."
            )

    @cached_property
    def extension(self) -> str:
        """The ending of the caption files.

        Raises:
            UsageError: there are two kinds of them, or none of the kind that was asked for.
        """
        found = _found(self.place)
        if len(found) > 1:
            raise UsageError(
                f"{self.place.path} holds both {' and '.join(found)} files next to its images: give caption_extension."
            )
        if not found and self.place.caption_extension is not None:
            wanted = _endings(self.place)[0]
            raise UsageError(f"{self.place.path} holds no {wanted} file next to an image: correct caption_extension.")
        return found[0] if found else EXTENSIONS[0]

    def read(self, splits: Sequence[str]) -> list[Example]:
        """All images below the folder, by path; those without a caption file have no captions."""
        root = self.place.path
        files = by_stem(require_pictures(root), root)
        there = {str(Path(folder, name)) for folder, names in walk(root) for name in names}
        examples, bare = [], 0
        for stem, file in files.items():
            beside = file.with_suffix(self.extension)
            bare += str(beside) not in there
            lines = lines_of(read_text(beside)) if str(beside) in there else []
            examples.append(Example(decode_id(stem), self.place.picture(file), tuple(map(from_line, lines))))
        if bare:
            logger.warning(
                "%s: %d of %d images have no %s file and no captions.", root, bare, len(files), self.extension
            )
        return examples

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """The images, each with a .txt file; one without captions has an empty file."""
        (examples,) = splits.values()
        for example in examples:
            lines = [to_line(text, f"image {example.id!r}", "sidecars") for text in example.references]
            file = folder / images.put_by_id(example, folder)
            text = "".join(f"{line}\n" for line in lines)
            file.with_suffix(EXTENSIONS[0]).write_bytes(text.encode())


def _endings(place: Place) -> tuple[str, ...]:
    given = place.caption_extension
    return EXTENSIONS if given is None else (f".{given.removeprefix('.')}",)


def _found(place: Place, *, first: bool = False) -> list[str]:
    """The endings of files next to images; with ``first``, of the first found."""
    found = []
    for _, names in walk(place.path):
        there = set(names)
        stems = [name[: name.rindex(".")] for name in names if is_image(name) or is_video(name)]
        new = [e for e in _endings(place) if e not in found and any(stem + e in there for stem in stems)]
        found += new
        if found and first:
            break
    return found
