"""Kills: SIGKILL, SIGINT and SIGTERM at file events and at times; what is resumed equals what was never stopped, bit for bit."""

from __future__ import annotations

import signal
import time
from random import Random

from .ground import LONGEST, Ground
from .strikes import signalling
from .targets import TARGETS, Target
from .tries import Attack, Kind, Room, Tried
from .verdict import DONE, INTERRUPTED, faults_of, struck

SIGNALS = {signal.SIGKILL: 0.6, signal.SIGINT: 0.2, signal.SIGTERM: 0.2}
CODES = {
    signal.SIGKILL: (-signal.SIGKILL, DONE),
    signal.SIGINT: (INTERRUPTED, DONE),
    signal.SIGTERM: (INTERRUPTED, -signal.SIGTERM, 128 + signal.SIGTERM, DONE),
}
"""Signal -> the exit codes that may follow; 0 where it came too late."""


def begin(room: Room) -> Attack:
    """One to two stops, then the rest."""
    ground = Ground(room)
    first = list(TARGETS.values())

    def attack(number: int) -> Tried:
        chance = room.chance("kills", number)
        # Each command once at first, then by weight: a short campaign has killed all of them.
        target = first[number] if number < len(first) else chance.choices(first, [each.weight for each in first])[0]
        ground.usual(target)
        ground.clear(target)
        told, faults = [], list[str]()
        for turn in range(chance.choice((1, 1, 2))):
            what, found = _stopped(ground, target, chance, turn)
            told.append(what)
            faults += found
            if ground.complete(target):  # what follows would be refused, since the output exists
                break
        return f"{target.name}: {', '.join(told)}", faults or ground.finished(target)

    return attack


def _stopped(ground: Ground, target: Target, chance: Random, turn: int) -> Tried:
    usual = ground.usual(target)
    number = chance.choices(list(SIGNALS), list(SIGNALS.values()))[0]
    run = target.again if turn else target.run
    if chance.random() < 0.6:
        at = chance.randint(1, usual.events)
        fork, what = ground.struck(run, at, signalling(number)), f"{number.name} at event {at} of {usual.events}"
    else:
        wait = chance.random() * usual.seconds
        fork, what = ground.fork(lambda: run(ground.place)), f"{number.name} after {wait:.2f} s"
        time.sleep(wait)
        fork.send(number)
    outcome = fork.wait(LONGEST)
    faults = faults_of(outcome, struck(outcome, CODES[number]))
    return what, [f"{what}: {fault}" for fault in faults]


KILLS = Kind("kills", 300, 0.45, begin)
