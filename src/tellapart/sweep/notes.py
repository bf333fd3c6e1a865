"""Measurements of models and of given captions, which belong to no training: made once, and kept with the results."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError, reason_of
from tellapart.files import read_json, write_json

NOTES = "notes"
"""Folder of the files, and of those in an archive."""


class Notes:
    """Values in files, so that a page is the same where the models are not built, or are built by another processor.

    Args:
        folder: of the files.
        other: where a missing file may be, too.

    Example:
        >>> notes = Notes(tmp_path)
        >>> notes.read("probes", "05f9f8bb2302", lambda: {"shape": 99.5})
        {'shape': 99.5}
    """

    def __init__(self, folder: Path, other: Path | None = None) -> None:
        self.folder, self.other = folder, other or folder
        self.used: list[Path] = []

    def read(self, name: str, key: str, make: Callable[[], Any]) -> Any:
        """A value from its file, which is written if it is missing.

        Args:
            name: of the file.
            key: of the models and settings that were measured.
            make: measures; returns what JSON can hold.

        Raises:
            UsageError: the file is damaged.
        """
        file = self._file(name, key)
        if not file.is_file():
            elsewhere = self.other / file.name
            write_json(file, _read(elsewhere) if elsewhere.is_file() else make())
        self.used.append(file)
        return _read(file)

    def known(self, name: str, key: str) -> Any:
        """A value that is there, else None."""
        file = self._file(name, key)
        return _read(file) if file.is_file() else None

    def _file(self, name: str, key: str) -> Path:
        return self.folder / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}-{key}.json"


def _read(file: Path) -> Any:
    try:
        return read_json(file)
    except ValueError as error:
        raise UsageError(f"{file} is damaged ({reason_of(error)}): delete it, and it is measured again.") from error
