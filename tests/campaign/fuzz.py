"""Strange inputs, drawn by hypothesis from its own strategies: the same for the same seed, number and version of hypothesis."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tellapart.cli.main import main

from .forks import Outcome, Server, called, emptied
from .tries import Attack, Kind, Room, Tried
from .verdict import left_over

CHUNK = 50
"""Inputs that are drawn together."""

CANARY = "executed"
"""File that planted code would make."""


@dataclass(frozen=True)
class Tray:
    """Where an input is tried.

    Args:
        room: of the campaign.
        number: of the try.
    """

    room: Room
    number: int

    @property
    def folder(self) -> Path:
        """Where the input is written; nothing but the outputs below it may change."""
        return self.room.scratch / "item"

    @property
    def canary(self) -> Path:
        """What planted code would make."""
        return self.room.scratch / CANARY

    def call(self, *words: object) -> Outcome:
        """Run a command in this process; every thousandth by a fresh Python, as users do."""
        os.environ["TELLAPART_CACHE"] = str(self.room.scratch / "cache")
        if self.number % 1000 == 999:
            return self._by_command_line([str(word) for word in words])
        return called(lambda: main([str(word) for word in words]), self.room.scratch / "said")

    def _by_command_line(self, words: list[str]) -> Outcome:
        program = [sys.executable, "-m", "tellapart", *words]
        done = subprocess.run(program, capture_output=True, text=True, errors="replace", timeout=120, check=False)
        return Outcome(done.returncode, done.stdout, done.stderr, 0.0)


Try = Callable[[Any, Tray], list[str]]
"""Tries one input; gives faults."""


def drawn(strategy: SearchStrategy[Any], number: int, count: int) -> list[Any]:
    """Values of a strategy, the same for the same number."""
    found: list[Any] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return [found[place % len(found)] for place in range(count)]


def fuzzing(name: str, goal: int, share: float, strategy: SearchStrategy[Any], attempt: Try, *, seconds: float) -> Kind:
    """A kind whose tries are inputs that hypothesis draws.

    Args:
        name: of the kind.
        goal: tries of a whole campaign.
        share: of the time.
        strategy: of inputs.
        attempt: tries one of them, in a process that serves many.
        seconds: that a try may take.
    """

    def values(room: Room) -> Callable[[int], Any]:
        chunks: dict[int, list[Any]] = {}

        def value(number: int) -> Any:
            chunk = number // CHUNK
            if chunk not in chunks:
                chunks.clear()
                chunks[chunk] = drawn(strategy, room.chance(name, chunk).getrandbits(32), CHUNK)
            return chunks[chunk][number % CHUNK]

        return value

    return trying(name, goal, share, values, attempt, seconds=seconds)


def trying(
    name: str, goal: int, share: float, values: Callable[[Room], Callable[[int], Any]], attempt: Try, *, seconds: float
) -> Kind:
    """A kind whose tries are inputs by number.

    Args:
        name: of the kind.
        goal: tries of a whole campaign.
        share: of the time.
        values: room -> number -> input.
        attempt: tries one of them, in a process that serves many.
        seconds: that a try may take.
    """

    def begin(room: Room) -> Attack:
        value_of = values(room)

        def handle(asked: tuple[int, Any]) -> list[str]:
            number, value = asked
            tray = Tray(room, number)
            emptied(tray.folder)
            faults = attempt(value, tray)
            if tray.canary.exists():
                faults = [*faults, "planted code was executed"]
                tray.canary.unlink()
            strange = [path.name for path in room.scratch.iterdir() if path.name not in _KNOWN]
            for path in map(room.scratch.joinpath, strange):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            return [*faults, *left_over(tray.folder), *(f"wrote {name} outside its folder" for name in strange)]

        server = Server(handle, seconds=seconds, scratch=room.scratch / "served")

        def attack(number: int) -> Tried:
            value = value_of(number)
            return repr(value)[:300], server((number, value))

        return attack

    return Kind(name, goal, share, begin)


_KNOWN = {
    "given",
    "item",
    "try",
    "said",
    "served",
    "cache",
    "modules",
    "events",
    "first",
    "second",
    CANARY,
    "scout",
    "scout-cache",
}
