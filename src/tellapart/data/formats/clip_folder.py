"""Folders of clips without captions, and finding clips by their names."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from tellapart.data.clips import ClipFile
from tellapart.data.dataset import Example
from tellapart.data.folder import below, find_videos, is_image
from tellapart.data.formats.base import Place, ReadOnly
from tellapart.data.formats.splits import SPLIT_NAMES
from tellapart.data.images import ImageFile
from tellapart.data.video import ANIMATIONS, EXTENSIONS, is_video
from tellapart.errors import UsageError

logger = logging.getLogger(__name__)

_CAPTIONS = frozenset({".txt", ".caption", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".token", ".tar"})
"""Endings of files that other formats read."""


class ClipFolder(ReadOnly):
    """A folder of videos, GIF and WebP files, also in subfolders; each is a clip, whose id is its path below the folder.

    Captions may lie next to clips as next to images: ``metadata.jsonl`` (format ``folder``), or a text file per clip
    (``sidecars``).
    """

    name = "clips"

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether a folder has videos at its top, and neither images nor files that other formats read; or a pattern
        matches several videos."""
        if place.seconds_between:
            return False
        if not place.is_folder:
            return len(place.listed) > 1 and all(map(is_video, place.listed))
        endings = {os.path.splitext(name)[1].lower() for name in place.names}
        others = any(is_image(name) and not name.lower().endswith(tuple(ANIMATIONS)) for name in place.names)
        return bool(endings & EXTENSIONS) and not others and not endings & _CAPTIONS

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless it is a folder or a clip."""
        if not place.is_folder and not _is_clip(place.path):
            raise UsageError(f"{place.path} is not a folder of clips, nor a clip: correct the path or the format.")

    def read(self, splits: Sequence[str]) -> list[Example]:
        """All clips, by path.

        Raises:
            UsageError: there are none.
        """
        if len(self.place.listed) > 1:
            return [Example(name, ClipFile(Path(name), self.place.sampling)) for name in self.place.listed]
        root = self.place.path
        files = find_videos(root, animations=True) if self.place.is_folder else [root]
        if not files:
            raise UsageError(f"{root} holds no clips ({', '.join(sorted(EXTENSIONS | ANIMATIONS))}): check the path.")
        start = self.place.start or (root if self.place.is_folder else root.parent)
        logger.info("%s: %d clips; format unlabelled reads their key-frames as images.", root, len(files))
        return [Example(below(file, start), ClipFile(file, self.place.sampling)) for file in files]


def _is_clip(path: Path) -> bool:
    return is_video(path.name) or path.suffix.lower() in ANIMATIONS


class ClipFinder:
    """Finds the file of a clip by its name without ending, anywhere below a folder.

    Args:
        root: the folder; it is looked through once.
        place: how clips are read. Where only captions are wanted, nothing is looked for.

    Raises:
        UsageError: two clips have one name.
    """

    def __init__(self, root: Path, place: Place) -> None:
        self.root, self.place = root, place
        self._files: dict[str, Path] = {}
        for file in () if place.captions_only else find_videos(root, animations=True):
            if self._files.setdefault(file.stem, file) != file:
                raise UsageError(
                    f"{self._files[file.stem]} and {file} have one name: rename one, or give the folder of the clips."
                )

    def require_any(self, path: Path) -> None:
        """Raise where there are no clips at all.

        Raises:
            UsageError: naming the file that names clips.
        """
        if not self._files and not self.place.captions_only:
            raise UsageError(
                f"{path} names clips, but {self.root} holds none: give the folder that holds them (images)."
            )

    def find(self, *names: str, ending: str = ".mp4") -> ImageFile:
        """The clip of the first of some names that is there; otherwise a file that does not exist."""
        found = next((self._files[name] for name in names if name in self._files), None)
        return ClipFile(self.root / f"{names[0]}{ending}" if found is None else found, self.place.sampling)


def root_of_clips(place: Place, file: Path) -> Path:
    """The folder to look for clips in: the given one, else that of the file, or the one above where it has only captions."""
    if place.images is not None:
        return place.images
    above = file.parent.name in ("captions", "annotations", "data", "splits", *SPLIT_NAMES)
    return file.parent.parent if above and not find_videos(file.parent, animations=True) else file.parent
