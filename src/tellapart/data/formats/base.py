"""What every format is: a class that knows its look, reads splits of a place, and writes them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tellapart.data.captions import field, read_json, require_id
from tellapart.data.clips import on_disk
from tellapart.data.formats.patterns import expand
from tellapart.data.formats.splits import UNNAMED
from tellapart.data.images import ImageFile
from tellapart.data.json_records import object_of
from tellapart.errors import UsageError
from tellapart.frames import Sampling

if TYPE_CHECKING:
    from tellapart.data.dataset import Example
    from tellapart.data.formats.carry import Carrier
    from tellapart.data.formats.names import Readable


@dataclass(frozen=True)
class Place:
    """What is to be read, and what was said about it.

    Args:
        given: the path as it was given.
        images: folder of the images, where it was given.
        start: folder that ids made of paths are relative to; default: the images, else the path.
        image_column: name of the column or field that holds the image or its path.
        caption_column: name of the column or field that holds the captions.
        id_column: name of the column that holds the images' ids.
        caption_extension: ending of the files that hold the captions.
        captions_only: whether images are not asked for, so that their files need not be there.
        seconds_between: of a video, key-frames sooner than this after the last one taken are left out.
        sampling: which frames of videos are taken.
        allow_private: whether addresses in tables may lead to hosts of a private network.
        bases: copy of a remote table -> the folder that its paths are relative to, as an address.
        files: the files, where they are known already; default: those that the path matches.
    """

    given: str
    images: Path | None = None
    start: Path | None = None
    image_column: str | None = None
    caption_column: str | None = None
    id_column: str | None = None
    caption_extension: str | None = None
    captions_only: bool = False
    seconds_between: float = 0.0
    sampling: Sampling = "uniform"
    allow_private: bool = False
    bases: Mapping[str, str] | None = None
    files: tuple[str, ...] | None = None

    def base_of(self, table: Path) -> str | None:
        """The folder that the paths in a copied table are relative to, as an address; None for a table of this machine."""
        return (self.bases or {}).get(str(table))

    @cached_property
    def path(self) -> Path:
        """The path."""
        return Path(self.given)

    @cached_property
    def listed(self) -> tuple[str, ...]:
        """The files that the path matches: itself, or those of a pattern.

        Raises:
            UsageError: nothing matches the pattern.
        """
        return tuple(expand(self.given)) if self.files is None else self.files

    @cached_property
    def sample(self) -> Path:
        """The first of them, by whose name the others are known."""
        return Path(self.listed[0])

    @cached_property
    def folder(self) -> Path:
        """The folder itself, or the one that the file is in."""
        return self.path if self.is_folder else self.path.parent

    @cached_property
    def is_folder(self) -> bool:
        """Whether the path is a folder."""
        return self.path.is_dir()

    @cached_property
    def names(self) -> list[str]:
        """Names of what the folder holds, sorted, hidden ones left out."""
        return sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))

    @cached_property
    def index_files(self) -> list[Path]:
        """The .json files that may describe the images: the path itself, or those at the top of the folder and in its
        ``annotations``."""
        if not self.is_folder:
            return [self.path] if self.path.suffix.lower() == ".json" else []
        files = [self.path / name for name in self.names if name.lower().endswith(".json")]
        files = [file for file in files if file.is_file()]
        files += sorted((self.path / "annotations").glob("*.json"))
        return files

    def content(self, file: Path) -> Any:
        """A .json file, parsed once. Lists of images and annotations, which may be long, are ``Records`` if they are flat.

        Raises:
            UsageError: it cannot be read or is not JSON.
        """
        if file not in self._contents:
            packed = object_of(file, ("images", "annotations"))
            self._contents[file] = read_json(file) if packed is None else packed
        return self._contents[file]

    @cached_property
    def _contents(self) -> dict[Path, Any]:
        return {}

    def picture(self, path: Path) -> ImageFile:
        """A file of the data as an image or a clip, by its ending."""
        return on_disk(path, self.sampling)

    def inside(self, name: str) -> Place:
        """The same for a folder in this one; images lie in the folder of that name, where there is one."""
        images = self.images and (self.images / name if (self.images / name).is_dir() else self.images)
        start = self.start or self.images or self.path
        return replace(self, given=str(self.path / name), images=images, start=start)


class Layout(ABC):
    """One format, opened at a place. Captions are read byte for byte, blank ones included.

    Args:
        place: what is to be read.
    """

    name: ClassVar[Readable]
    spans_splits: ClassVar[bool] = False
    """Whether one folder or file of this format holds several splits; others have a folder for each."""
    links: ClassVar[frozenset[str]] = frozenset({"copy", "symlink"})
    """How images can come along when it is written."""
    has_columns: bool = False
    """Whether it has columns or fields that can be chosen."""
    holds_images: bool = False
    """Whether its images lie in it, so that no folder of images is looked at."""
    has_caption_files: bool = False
    """Whether its captions are in files next to images."""
    has_fields: bool = False
    """Whether, without columns of ids and images, a field can be chosen as the captions."""
    divided: bool = False
    """Whether what was opened is divided into splits; if not, it answers to any split's name."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @classmethod
    @abstractmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether there is data of this format."""

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless the place can be read as this format, which the user asked for.

        Raises:
            UsageError: it is a file where a folder is needed, or the other way round.
        """
        return

    def splits(self) -> list[str]:
        """The splits there are, in their usual order."""
        return [UNNAMED]

    @abstractmethod
    def read(self, splits: Sequence[str]) -> Sequence[Example]:
        """The images of these splits, in the order they are stored in.

        Raises:
            UsageError: something is broken; the sentence names the file and the record.
        """

    @classmethod
    @abstractmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """Write the splits into a folder that exists and is empty; one split only unless ``spans_splits``.

        Raises:
            UsageError: an id or a caption cannot be kept, or an image cannot be read.
        """


class ReadOnly(Layout):
    """Formats of other people's data, which are not written."""

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """Refused: the format is read only."""
        raise UsageError(f"format {cls.name!r} is only read: choose another one to write.")


class InFile(Layout):
    """Formats whose captions are in .json files. In a folder, these are known by their usual names: a file of another
    name there is none of our business unless the user names it, or the format."""

    usual: ClassVar[re.Pattern[str]]
    """Found in the names of such files, without ending."""

    @classmethod
    @abstractmethod
    def is_index(cls, content: Any) -> bool:
        """Whether a parsed file looks like one of these."""

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether one of the place's files does."""
        return bool(cls.indices(place))

    @classmethod
    def indices(cls, place: Place) -> list[Path]:
        """The file, or the folder's files of a usual name, that look like this format."""
        named = [file for file in place.index_files if not place.is_folder or cls.usual.search(file.stem)]
        return [file for file in named if cls.is_index(place.content(file))]

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless there is a .json file."""
        if not place.index_files:
            raise UsageError(
                f"{place.path} is not a .json file, nor a folder with one, which format {cls.name!r} needs: "
                "correct the path or the format."
            )

    @cached_property
    def files(self) -> list[Path]:
        """The files of this format; if none looks like it, the first of all."""
        unusual = (file for file in self.place.index_files if self.is_index(self.place.content(file)))
        return self.indices(self.place) or list(unusual) or self.place.index_files[:1]

    @property
    def file(self) -> Path:
        """The one file of this format.

        Raises:
            UsageError: there are several.
        """
        if len(self.files) > 1:
            names = ", ".join(file.name for file in self.files)
            raise UsageError(
                f"{self.place.path} holds several files of format {self.name!r} ({names}): name one of them."
            )
        return self.files[0]


def identifier(record: Any, key: str, path: Path, what: str) -> str:
    """An id of a record, which may be a whole number or text.

    Raises:
        UsageError: the record has none, or it is something else.
    """
    value = field(record, key, path, what, (int, str))
    require_id(value, path, what, key=key)
    return str(value)
