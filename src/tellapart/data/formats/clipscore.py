"""The caption files of clipscore and pacscore: ``{"id": "caption"}`` or ``{"id": ["caption", ...]}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.captions import read_unique, texts
from tellapart.data.dataset import Example
from tellapart.data.folder import require_pictures
from tellapart.data.formats.base import InFile, Place
from tellapart.data.formats.by_stem import Finder, by_stem, names_an_image
from tellapart.data.formats.carry import Carrier
from tellapart.errors import UsageError
from tellapart.files import write_json

FILE = "captions.json"


class ClipScore(InFile):
    """Ids are the names of the images without ending, in the given folder, else below that of the file."""

    name = "clipscore"
    usual = re.compile(r"^(captions|candidates|references|refs)")

    @classmethod
    def is_index(cls, content: Any) -> bool:
        """Whether a parsed file maps names to a caption or a list of them."""
        if not isinstance(content, dict) or not content:
            return False
        return all(
            isinstance(v, str) or (isinstance(v, list) and all(isinstance(t, str) for t in v)) for v in content.values()
        )

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether the file does; in a folder, where other settings are kept too, it must also name an image there."""
        indices = cls.indices(place)
        return bool(indices) and (
            not place.is_folder or names_an_image(place.content(indices[0]), _root(place, place.folder))
        )

    def read(self, splits: Sequence[str]) -> list[Example]:
        """All images that the file names, in its order."""
        path = self.file
        file_of = self._files(path)
        examples = [
            Example(image_id, self.place.picture(file_of(image_id)), texts(captions, path, f"image {image_id!r}"))
            for image_id, captions in read_unique(path).items()
        ]
        if not examples:
            raise UsageError(f"{path} names no images: check that it is the right file.")
        return examples

    def _files(self, path: Path) -> Callable[[str], Path]:
        """Finds an image by its id."""
        root = _root(self.place, path.parent)
        if self.place.captions_only:
            return root.joinpath
        finder = Finder(by_stem(require_pictures(root), root))
        return lambda image_id: finder.find(image_id, path)

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """``captions.json`` with a list for each image, and ``images/``."""
        (examples,) = splits.values()
        for example in examples:
            images.put_by_id(example, folder / "images")
        write_json(folder / FILE, {example.id: list(example.references) for example in examples})


def _root(place: Place, folder: Path) -> Path:
    """Below which the images are: the given folder, else ``images`` next to the file, else the file's folder."""
    beside = folder / "images"
    return place.images or (beside if beside.is_dir() else folder)
