"""What pages say about models and captions that no training has: measured once, and kept with the results."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tellapart.files import read_json, write_json

NOTES = "notes"
"""Folder of the files, and of those in an archive."""


class Notes:
    """Values in files, so that a page is the same where the models are not built, or are built by another processor.

    Args:
        folder: of the files.

    Example:
        >>> notes = Notes(tmp_path)
        >>> notes.read("probes", "05f9f8bb2302", lambda: {"shape": 99.5})
        {'shape': 99.5}
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used: list[Path] = []

    def read(self, name: str, key: str, make: Callable[[], Any]) -> Any:
        """A value, which is made where there is no file of it.

        Args:
            name: what it is.
            key: of what decides it.
            make: makes it, of what JSON can hold.
        """
        file = self.folder / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}-{key}.json"
        if not file.is_file():
            write_json(file, make())
        self.used.append(file)
        return read_json(file)
