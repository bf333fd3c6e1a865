"""Folders that are removed while a command writes to them: it says so, and never that all went well."""

from __future__ import annotations

import shutil

from .ground import LONGEST, Ground
from .targets import TARGETS
from .tries import Attack, Kind, Room, Tried
from .verdict import DONE, faults_of


def begin(room: Room) -> Attack:
    """The output or the cache is removed at a file event."""
    ground = Ground(room)
    targets = list(TARGETS.values())

    def attack(number: int) -> Tried:
        chance = room.chance("removals", number)
        target = chance.choice(targets)
        usual = ground.usual(target)
        at = chance.randint(1, usual.events)
        folder = ground.place.folder / chance.choice(("out", "out", "cache"))
        ground.clear(target)
        whole = room.scratch / "whole"
        whole.unlink(missing_ok=True)

        def remove() -> None:
            if ground.complete(target):  # a command that only gives back its lock has done what it was asked
                whole.touch()
            shutil.rmtree(folder, ignore_errors=True)

        outcome = ground.struck(target.run, at, remove).wait(LONGEST)
        faults = faults_of(outcome, target.codes)
        expected = [name for name in usual.content if name.startswith("out/") and not name.endswith("/")]
        missing = [name for name in expected if not (ground.place.folder / name).exists()]
        if outcome.code == DONE and missing and not whole.exists():
            faults.append(f"exit code 0, and {', '.join(missing[:3])} is not there")
        return f"{target.name}: {folder.name} removed at event {at} of {usual.events}", faults

    return attack


REMOVALS = Kind("removals", 40, 0.05, begin)
