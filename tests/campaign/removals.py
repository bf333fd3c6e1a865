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
        outcome = ground.struck(target.run, at, lambda: shutil.rmtree(folder, ignore_errors=True)).wait(LONGEST)
        faults = faults_of(outcome, target.codes)
        within = {
            name: digest for name, digest in usual.content.items() if name.startswith("out/") and not name.endswith("/")
        }
        if outcome.code == DONE and (missing := [name for name in within if not (ground.place.folder / name).exists()]):
            faults.append(f"exit code 0, and {', '.join(missing[:3])} is not there")
        return f"{target.name}: {folder.name} removed at event {at} of {usual.events}", faults

    return attack


REMOVALS = Kind("removals", 40, 0.05, begin)
