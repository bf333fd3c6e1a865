"""Clocks that jump while a command runs and between two of its runs, and files from the future or the distant past."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from .ground import LONGEST, Ground
from .strikes import signalling
from .targets import TARGETS, Place
from .tries import Attack, Kind, Room, Tried
from .verdict import DONE, WRONG, faults_of, struck

HOUR, YEAR = 3600.0, 365 * 86400.0


def begin(room: Room) -> Attack:
    """The clock jumps at an event; half of the commands are then killed, and resumed at yet another time."""
    ground = Ground(room)
    targets = list(TARGETS.values())

    def attack(number: int) -> Tried:
        chance = room.chance("clocks", number)
        target = chance.choice(targets)
        usual = ground.usual(target)
        jumps = [chance.choice((-1, 1)) * chance.choice((HOUR, 30 * YEAR, YEAR)) for _ in range(2)]
        at = chance.randint(1, usual.events)
        killed = chance.random() < 0.5
        ground.clear(target)
        strikes = [lambda: jump(jumps[0]), signalling(signal.SIGKILL)] if killed else [lambda: jump(jumps[0])]

        def strike() -> None:
            for each in strikes:
                each()

        outcome = ground.struck(target.run, at, strike).wait(LONGEST)
        faults = faults_of(outcome, struck(outcome, (-signal.SIGKILL,)) if killed else (DONE,))
        shift(ground.place.folder, jumps[1])

        def resumed(place: Place) -> int:
            jump(jumps[1])
            return target.again(place)

        if killed:
            codes = (DONE, WRONG) if ground.complete(target) else (DONE,)  # what is there already may be refused
            faults += faults_of(ground.fork(lambda: resumed(ground.place)).wait(LONGEST), codes)
        told = f"{target.name}: {jumps[0] / HOUR:+.0f} h at event {at} of {usual.events}"
        return told + f", killed, resumed at {jumps[1] / HOUR:+.0f} h" * killed, faults or ground.finished(target)

    return attack


def jump(seconds: float) -> None:
    """Have this process's clock show another time."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)


def shift(folder: Path, seconds: float) -> None:
    """Have files look as if they had been written at another time."""
    for path in folder.rglob("*"):
        then = max(0.0, path.lstat().st_mtime + seconds)
        os.utime(path, (then, then), follow_symlinks=False)


CLOCKS = Kind("clocks", 30, 0.05, begin)
