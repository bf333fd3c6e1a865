"""Commands on disturbed ground: what all attacks on commands that write have in common."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .forks import Fork, Outcome, emptied
from .snapshot import Content, common, content_of, differences
from .strikes import FileEvents
from .targets import Place, Target
from .tries import Room
from .verdict import DONE, WRONG, faults_of, left_over

LONGEST = 120.0
"""Seconds that a command may take."""


@dataclass(frozen=True)
class Usual:
    """What a command does when nobody disturbs it.

    Args:
        content: of its folder, in the end.
        events: file events.
        seconds: it takes.
        sizes: of its files, in bytes.
    """

    content: Content
    events: int
    seconds: float
    sizes: tuple[int, ...]


class Ground:
    """The folder in which commands are disturbed, one after the other."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.place = Place(room.scratch / "try", room.given)
        self._said = room.scratch / "said"
        self._usual: dict[str, Usual] = {}

    def usual(self, target: Target) -> Usual:
        """What the command does undisturbed, run twice when it is asked for first."""
        if target.name not in self._usual:
            found = []
            for _ in range(2):
                self.clear(target)
                outcome, events = self.counted(target)
                assert outcome.code == DONE, f"{target.name}, undisturbed: {outcome.err}{outcome.out}"
                assert not faults_of(outcome), f"{target.name}, undisturbed: {faults_of(outcome)}"
                sizes = tuple(path.stat().st_size for path in self.place.folder.rglob("*") if path.is_file())
                found.append((content_of(self.place.folder), events, outcome.seconds, sizes))
            self._usual[target.name] = Usual(common(found[0][0], found[1][0]), *found[1][1:])
        return self._usual[target.name]

    def clear(self, target: Target) -> None:
        """An empty folder with what the command needs."""
        emptied(self.place.folder)
        Fork(lambda: target.prepare(self.place) or 0, self._said).wait(LONGEST)

    def counted(self, target: Target) -> tuple[Outcome, int]:
        """Run the command; its outcome and file events."""
        counts = self.room.scratch / "events"

        def work() -> int:
            events = FileEvents(self.place.folder)
            events.watch()
            code = target.run(self.place)
            counts.write_text(str(events.count))
            return code

        outcome = self.fork(work).wait(LONGEST)
        return outcome, int(counts.read_text()) if outcome.code == DONE else 0

    def fork(self, work: Callable[[], int], name: str = "said", **options: Any) -> Fork:
        """Run something as the commands do: in the folder, with a cache in it."""

        def within() -> int:
            os.chdir(self.place.folder)
            os.environ["TELLAPART_CACHE"] = str(self.place.folder / "cache")
            return work()

        return Fork(within, self.room.scratch / name, **options)

    def struck(
        self, run: Callable[[Place], int], at: int, strike: Callable[[], None], name: str = "said", **options: Any
    ) -> Fork:
        """Start a command that something befalls at a file event."""

        def work() -> int:
            FileEvents(self.place.folder, at, strike).watch()
            return run(self.place)

        return self.fork(work, name, **options)

    def whole(self, target: Target) -> bool:
        """Whether the folder is as it is after an undisturbed run."""
        return not differences(self.usual(target).content, content_of(self.place.folder))

    def finished(self, target: Target) -> list[str]:
        """Resume what was stopped, some hours later, and compare with an undisturbed run; gives faults."""
        faults = [f"after the stop: {fault}" for fault in target.lost(self.place)]
        if not self.whole(target):
            age(self.place.folder)
            # Where the output is whole and only something beside it was left, the command may say so.
            codes = (DONE, WRONG) if self.complete(target) else (DONE,)
            outcome = self.fork(lambda: target.again(self.place)).wait(LONGEST)
            faults += [f"resuming: {fault}" for fault in faults_of(outcome, codes)]
        faults += differences(self.usual(target).content, content_of(self.place.folder))
        return [*faults, *left_over(self.place.folder), *target.lost(self.place)]

    def complete(self, target: Target) -> bool:
        """Whether everything is there as after an undisturbed run, and perhaps more."""
        expected, found = self.usual(target).content, content_of(self.place.folder)
        return not differences(expected, {name: digest for name, digest in found.items() if name in expected})


def age(folder: Path, hours: float = 3.0) -> None:
    """Have hidden files look as if they had been written some hours ago."""
    then = time.time() - 3600 * hours
    for path in folder.rglob(".*"):
        for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
            os.utime(each, (then, then), follow_symlinks=False)
