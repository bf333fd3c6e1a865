"""Full disks: a small tmpfs, or, where nothing may be mounted, a limit on the size of files; then there is room again."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .ground import LONGEST, Ground
from .targets import TARGETS, Place, Target
from .tries import Attack, Kind, Room, Tried
from .verdict import DONE, faults_of

LARGE, SAID = 512 * 2**20, 2**10


def begin(room: Room) -> Attack:
    """Too little room, a sentence, enough room, the same result."""
    ground = Ground(room)
    targets = list(TARGETS.values())

    def attack(number: int) -> Tried:
        chance = room.chance("disks", number)
        target = chance.choice(targets)
        usual = ground.usual(target)
        if chance.random() < 0.7:
            size = int(sum(usual.sizes) * chance.uniform(0.02, 1.1)) + 16 * 2**10
            with disk(ground.place.folder, size) as enlarge:
                if enlarge is not None:
                    faults = _filled(ground, target)
                    subprocess.run(enlarge, check=True)
                    if faults is None:
                        for left in list(ground.place.folder.iterdir()):
                            shutil.rmtree(left) if left.is_dir() else left.unlink()
                        ground.fork(lambda: target.prepare(ground.place) or 0).wait(LONGEST)
                    told = f"{target.name}: a disk of {size // 2**10} KiB"
                    return told, [*(faults or ()), *ground.finished(target)]
        # What a command says goes to a file, too.
        limit = max(SAID, int(max(usual.sizes) * chance.uniform(0.02, 0.9)))
        ground.clear(target)
        outcome = ground.fork(lambda: _limited(target, ground.place, limit)).wait(LONGEST)
        return f"{target.name}: files of at most {limit} bytes", [
            *faults_of(outcome, target.codes),
            *ground.finished(target),
        ]

    return attack


def _filled(ground: Ground, target: Target) -> list[str] | None:
    """The faults of the command on the small disk; none where there was no room for what it reads."""
    if ground.fork(lambda: target.prepare(ground.place) or 0).wait(LONGEST).code != DONE:
        return None
    outcome = ground.fork(lambda: target.run(ground.place)).wait(LONGEST)
    faults = faults_of(outcome, target.codes)
    if outcome.code == 0 and not ground.whole(target):
        faults.append("exit code 0, and the result is not whole")
    return faults


def _limited(target: Target, place: Place, limit: int) -> int:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    return target.run(place)


@contextmanager
def disk(folder: Path, size: int) -> Iterator[list[str] | None]:
    """A disk of its own in place of the folder, while the block runs; gives the command that enlarges it.

    Gives None where this process may not mount one.
    """
    from .forks import emptied

    emptied(folder)
    options = ["-t", "tmpfs", "-o", f"size={size}", "campaign", str(folder)]
    try:
        mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        yield None
        return
    try:
        yield ["mount", "-o", f"remount,size={LARGE}", str(folder)]
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


DISKS = Kind("disks", 40, 0.06, begin)
