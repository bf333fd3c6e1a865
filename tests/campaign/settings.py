"""Model folders of which one setting has another value: every setting of every JSON file with every odd value.

The seed shuffles them. A campaign makes a share of all; as many tries as there are settings and values make each once.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .data_files import ODD
from .fuzz import Tray, trying
from .model_folders import commands, sources
from .tries import Room
from .verdict import faults_of

VALUES = [*(each for each in ODD if each != "\ud800"), 100_000, -(2**63), "relu"]

WORDS = ("vocab", "merges")
"""Tables of a tokenizer, of which a few entries are tried."""

ENTRIES = 3

Place = tuple[str, str, tuple[str | int, ...], int]
"""Folder, file, where in it, and number of the value."""


def _paths(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where every value is, inner ones too."""
    if not isinstance(value, dict | list):
        return
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    for key in keys[:ENTRIES] if at and at[-1] in WORDS else keys:
        yield (*at, key)
        yield from _paths(value[key], (*at, key))


def _places(room: Room) -> Iterator[Place]:
    for which, folder in sources(room).items():
        for file in sorted(folder.rglob("*.json")):
            for path in _paths(json.loads(file.read_text(encoding="utf-8"))):
                for number in range(len(VALUES)):
                    yield which, str(file.relative_to(folder)), path, number


def _values(room: Room) -> Callable[[int], Place]:
    places = [*_places(room)]
    random.Random(room.seed).shuffle(places)
    return lambda number: places[number % len(places)]


def _attempt(place: Place, tray: Tray) -> list[str]:
    which, name, path, number = place
    folder = tray.folder / which
    shutil.copytree(sources(tray.room)[which], folder)
    _set(folder / name, path, VALUES[number])
    return [f"{words[0]}: {fault}" for words in commands(which, folder, tray) for fault in faults_of(tray.call(*words))]


def _set(file: Path, path: tuple[str | int, ...], value: Any) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(content), encoding="utf-8")


SETTINGS = trying("settings", 1000, 0.05, _values, _attempt, seconds=90)
