"""How the processes of one start find each other, where the launcher's store outlives a restart."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

from tellapart.errors import UsageError

_SCHEME = "tellapart"
_LONGEST = timedelta(minutes=30)
_PAUSE = 0.05  # seconds between two looks


def init_method() -> str | None:
    """``init_method`` of the process group; None where torch's own is right.

    torchrun restarts processes with the store of those before, where torch reads their addresses again. A process that
    reads one before it is replaced connects to a process that has died, and fails or waits.

    Source: https://github.com/pytorch/pytorch/issues/135712.

    Example:
        >>> init_method() is None  # without torchrun
        True
    """
    return f"{_SCHEME}://" if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else None


def met(store: Store, rank: int, world_size: int, *, longest: timedelta = _LONGEST) -> str:
    """A name that all processes of this start have in common, and none of an earlier start with the same store.

    The number of restarts would not do: agents of several machines count them differently. So each process writes a number
    of its own; process 0 writes the list of all, until every process has found its own number in it.

    Args:
        store: that all processes reach; it may hold what earlier starts wrote.
        rank: of this process.
        world_size: how many there are.
        longest: to wait for the others.

    Raises:
        UsageError: the others did not come.
    """
    until = time.monotonic() + longest.total_seconds()
    own = uuid.uuid4().hex
    store.set(f"number/{rank}", own)
    while time.monotonic() < until:
        name = _listed(store, rank, world_size, own)
        if name is not None:
            return name
        time.sleep(_PAUSE)
    raise UsageError(
        f"the {world_size} processes of this start did not find each other within {longest}: see whether one of them failed, and "
        "start again."
    )


def _listed(store: Store, rank: int, world_size: int, own: str) -> str | None:
    """The name of the list, once all processes have found themselves in it."""
    if rank == 0:
        numbers = [f"number/{each}" for each in range(world_size)]
        if not store.check(numbers):
            return None
        store.set("list", json.dumps([store.get(key).decode() for key in numbers]))
    if not store.check(["list"]):
        return None
    found = store.get("list")
    if json.loads(found)[rank : rank + 1] != [own]:  # of an earlier start
        return None
    name = hashlib.sha256(found).hexdigest()[:16]
    store.set(f"{name}/{rank}", "")
    if rank == 0 and store.check([f"{name}/{each}" for each in range(world_size)]):
        store.set(f"{name}/all", "")
    return name if store.check([f"{name}/all"]) else None


def _handler(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
    """torch's own, but with a part of the store that only this start knows."""
    store, rank, world_size = next(iter(rendezvous(url.replace(_SCHEME, "env", 1), **options)))
    yield PrefixStore(met(store, rank, world_size), store), rank, world_size


register_rendezvous_handler(_SCHEME, _handler)
