"""Kinds of attack, their tries, and the table of what came of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .given import Given


@dataclass(frozen=True)
class Room:
    """What every kind is given.

    Args:
        given: what commands start from.
        scratch: folder for tries.
        seed: of the campaign.
    """

    given: Given
    scratch: Path
    seed: int

    def chance(self, kind: str, number: int) -> random.Random:
        """Random numbers of one try."""
        return random.Random(f"{self.seed}/{kind}/{number}")


Tried = tuple[str, list[str]]
"""What was done, in words, and the faults that were found."""

Attack = Callable[[int], Tried]
"""Makes the try of a number, always the same one for the same seed."""


@dataclass(frozen=True)
class Kind:
    """A kind of attack.

    Args:
        name: of the kind.
        goal: tries of a whole campaign.
        share: of the time, where time decides.
        begin: room -> the attack; it may prepare what all tries need.
    """

    name: str
    goal: int
    share: float
    begin: Callable[[Room], Attack]


@dataclass
class Row:
    """What came of a kind."""

    kind: str
    tries: int = 0
    seconds: float = 0.0
    failures: list[tuple[int, str, list[str]]] = field(default_factory=list)


def numbers(count: int, until: float) -> Iterator[int]:
    """Numbers of tries, from 0, until there are enough or the time is over.

    Args:
        count: enough.
        until: end on the monotonic clock, seconds.
    """
    for number in range(count):
        if time.monotonic() >= until:
            return
        yield number


def reproduce(kind: str, seed: int, number: int) -> str:
    """The command that makes one try again."""
    return f"python -m tests.campaign --only {kind} --seed {seed} --try {number}"


def table(rows: list[Row], seed: int) -> str:
    """Tries and failures by kind, as Markdown."""
    lines = ["| kind | tries | failures | first command to reproduce |", "|---|---:|---:|---|"]
    for row in rows:
        first = f"`{reproduce(row.kind, seed, row.failures[0][0])}`" if row.failures else ""
        lines.append(f"| {row.kind} | {row.tries:,} | {len(row.failures)} | {first} |")
    tries, failures = sum(row.tries for row in rows), sum(len(row.failures) for row in rows)
    return "\n".join([*lines, f"| all | {tries:,} | {failures} | |"])
