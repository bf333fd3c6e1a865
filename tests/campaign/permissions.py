"""Permission denied: folders that cannot be written to and files that cannot be read, also for root, whose power is dropped."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .ground import LONGEST, Ground
from .targets import TARGETS
from .tries import Attack, Kind, Room, Tried
from .verdict import DONE, WRONG, faults_of

_CAPABILITIES_3 = 0x20080522
_OVERRIDE, _SEARCH = 1 << 1, 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def begin(room: Room) -> Attack:
    """A command that may not, then one that may."""
    ground = Ground(room)
    targets = list(TARGETS.values())
    inputs = _inputs(room.given.root)

    def attack(number: int) -> Tried:
        chance = room.chance("permissions", number)
        target = chance.choice(targets)
        ground.usual(target)
        ground.clear(target)
        kind = chance.choice(("no folder", "folder", "cache", "input"))
        closed, mode = _closed(ground.place.folder, kind) if kind != "input" else (chance.choice(inputs), 0o000)
        with permitted(closed, mode):
            outcome = ground.fork(lambda: _powerless(lambda: target.run(ground.place))).wait(LONGEST)
        with suppress(OSError):  # made by this try, and perhaps by nobody else
            (ground.place.folder / "cache").rmdir()
        faults = faults_of(outcome, target.codes)
        if kind in ("no folder", "folder") and outcome.code == DONE and not ground.whole(target):
            faults.append("exit code 0, and the result is not whole")
        told = f"{target.name}: {closed.relative_to(room.scratch)} with permissions {mode:03o}"
        if kind == "input" and outcome.code != WRONG:  # it was not read, or only left out
            return told, faults
        return told, [*faults, *ground.finished(target)]

    return attack


def _closed(folder: Path, kind: str) -> tuple[Path, int]:
    (folder / "cache").mkdir(exist_ok=True)
    if kind == "no folder":
        return folder, 0o555
    closed = folder / ("out" if kind == "folder" else "cache")
    closed.mkdir(exist_ok=True)
    return closed, 0o555


def _inputs(given: Path) -> list[Path]:
    patterns = ("captioner/*", "listener/*", "eight/*", "album/0*", "photos/*", "parts/own/*", "vit/*", "ratings.csv")
    return [path for pattern in patterns for path in sorted(given.glob(pattern)) if path.is_file()]


@contextmanager
def permitted(path: Path, mode: int) -> Iterator[None]:
    """Other permissions while the block runs."""
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


def _powerless(work: Callable[[], int]) -> int:
    """Run something without root's power to read and write what permissions forbid; nothing changes for other users."""
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
        data = (ctypes.c_uint32 * 6)()
        system = ctypes.CDLL(None, use_errno=True)
        if system.capget(header, data) or _drop(system, header, data):
            raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")
    return work()


def _drop(system: ctypes.CDLL, header: ctypes.Array, data: ctypes.Array) -> int:  # type: ignore[type-arg]
    for place in (0, 1):  # effective, permitted
        data[place] &= ~(_OVERRIDE | _SEARCH)
    return int(system.capset(header, data))


PERMISSIONS = Kind("permissions", 40, 0.05, begin)
