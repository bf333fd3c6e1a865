"""The metadata of kohya-ss/sd-scripts, ``meta_cap.json``: ``{path or name: {"caption": ..., "tags": ...}}``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tellapart.data.captions import read_unique, texts
from tellapart.data.dataset import Example
from tellapart.data.folder import find_pictures, is_image
from tellapart.data.formats.base import InFile, Place, identifier
from tellapart.data.formats.by_stem import Finder, by_stem, names_an_image
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.ids import decode_id
from tellapart.data.formats.lines import lines_of
from tellapart.data.video import is_video
from tellapart.errors import UsageError
from tellapart.files import write_json

FILE = "meta_cap.json"
CAPTION, CAPTIONS, TAGS, IMAGE_ID = "caption", "captions", "tags", "image_id"


class SdScripts(InFile):
    """Keys are paths of images, or their names without ending in the given folder, else in that of the file.

    An image's id is its ``image_id``, which we write, else its key without ending. Its captions are the list of
    ``captions``, which we write for they may hold line breaks, else the lines of ``caption``, else its tags.
    """

    name = "sdscripts"
    usual = re.compile(r"^meta")

    @classmethod
    def is_index(cls, content: Any) -> bool:
        """Whether a parsed file maps names to objects with a caption or tags."""
        if not isinstance(content, dict) or not content:
            return False
        return all(isinstance(value, dict) and (CAPTION in value or TAGS in value) for value in content.values())

    @cached_property
    def _finder(self) -> Finder:
        root = self.place.images or self.file.parent
        return Finder(by_stem(find_pictures(root), root))

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether the file does; in a folder, where other settings are kept too, it must also name an image there."""
        root = place.images or place.folder
        indices = cls.indices(place)
        return bool(indices) and (not place.is_folder or names_an_image(place.content(indices[0]), root))

    def read(self, splits: Sequence[str]) -> list[Example]:
        """All images that the file names, in its order."""
        path, examples = self.file, []
        for key, record in read_unique(path).items():
            what = f"image {key!r}"
            if not isinstance(record, dict):
                raise UsageError(f"{path}: {what} is {str(record)[:80]}, not an object: choose another format.")
            file = self._file(key)
            stem = key.removesuffix(file.suffix)
            plain = Path(stem).name if Path(stem).is_absolute() else decode_id(stem)
            image_id = identifier(record, IMAGE_ID, path, what) if IMAGE_ID in record else plain
            examples.append(Example(image_id, self.place.picture(file), _captions(record, path, what)))
        if not examples:
            raise UsageError(f"{path} names no images: check that it is the right file.")
        return examples

    def _file(self, key: str) -> Path:
        """A key with an image's ending is a path; others are looked up."""
        root = self.place.images or self.file.parent
        if is_image(key) or is_video(key):
            direct = root / key
            if direct.is_file() or "/" in key or "\\" in key:
                return direct
        return self._finder.find(key, self.file)

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """``meta_cap.json`` next to the images."""
        (examples,) = splits.values()
        records = {
            images.put(example, folder): {
                CAPTION: "\n".join(" ".join(text.splitlines()) for text in example.references),
                CAPTIONS: list(example.references),
                IMAGE_ID: example.id,
            }
            for example in examples
        }
        write_json(folder / FILE, records)


def _captions(record: dict[str, Any], path: Path, what: str) -> tuple[str, ...]:
    if isinstance(record.get(CAPTIONS), list):
        return texts(record[CAPTIONS], path, what)
    value = record.get(CAPTION) or record.get(TAGS)
    if value is None or value == "":
        return ()
    return texts(lines_of(value) if isinstance(value, str) else value, path, what)
