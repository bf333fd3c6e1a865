"""Two at once: the same command twice into one folder; one result, whole, and at most one refusal."""

from __future__ import annotations

import time

from .ground import LONGEST, Ground
from .targets import TARGETS
from .tries import Attack, Kind, Room, Tried
from .verdict import DONE, WRONG, faults_of

REFUSALS = ("another process is", "already holds", "exists: name another", "holds other files")


def begin(room: Room) -> Attack:
    """The second starts while the first runs."""
    ground = Ground(room)
    targets = [target for target in TARGETS.values() if "sidecars" not in target.name]  # twice appended is asked for

    def attack(number: int) -> Tried:
        chance = room.chance("together", number)
        target = chance.choice(targets)
        wait = chance.random() * ground.usual(target).seconds
        ground.clear(target)
        first = ground.fork(lambda: target.run(ground.place), "first")
        time.sleep(wait)
        second = ground.fork(lambda: target.run(ground.place), "second")
        outcomes = [fork.wait(LONGEST) for fork in (first, second)]
        faults = [fault for outcome in outcomes for fault in faults_of(outcome)]
        if DONE not in [outcome.code for outcome in outcomes]:
            faults.append("neither of the two ended with 0")
        for outcome in outcomes:
            if outcome.code == WRONG and not any(words in outcome.err for words in REFUSALS):
                faults.append(f"refused with other words: {outcome.err.strip().splitlines()[-1][:200]}")
        return f"{target.name}, again after {wait:.2f} s", [*faults, *ground.finished(target)]

    return attack


TOGETHER = Kind("together", 30, 0.05, begin)
