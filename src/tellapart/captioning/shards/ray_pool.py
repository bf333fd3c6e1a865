"""Actors of a Ray cluster that caption shards. Ray sees names of shards and review parts, never an image.

Plain actors are used, and not Ray Data. In Ray 2.60 an actor pool of Ray Data repeats without end a shard that kills its actor
(``max_task_retries=-1``); with ``max_task_retries=0`` and such a shard the data set did not end within 70 seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tellapart.captioning.shards.pools import Died, Message, Orders, Ready
from tellapart.captioning.shards.shard import Answer, attempt
from tellapart.errors import UsageError, reason_of, without_secrets

OBJECT_STORE_BYTES = 80 * 2**20
"""Memory for objects of a Ray instance that this command starts: Ray's least, since only review parts are exchanged."""

_COLOUR = re.compile(r"\x1b\[\d*m")
_NAMED = re.compile(r"[\w.]+(Error|Exception): ")


class ShardActor:
    """What an actor runs.

    Args:
        orders: the settings.
        folder: the command's folder, which relative paths start at, where this machine has it.
    """

    def __init__(self, orders: Orders, folder: str) -> None:
        self._orders = orders
        with suppress(OSError):
            os.chdir(folder)

    def load(self) -> Ready | Exception:
        """Load the models; Ray has given the actor its own GPU or its share of the CPU."""
        try:
            self._station = self._orders.build(0, 1)
        except (UsageError, OSError) as error:
            return error
        return Ready()

    def caption(self, shard: str) -> Answer | Exception:
        """Try to caption a shard."""
        try:
            return attempt(shard, self._station, self._orders.output, self._orders.job)
        except (UsageError, OSError) as error:
            return error


class Actors:
    """Ray actors, as many as the cluster has room for. Where it has GPUs, each actor gets one.

    Args:
        orders: for the actors.
        address: of a cluster, such as ``auto``; None uses ``RAY_ADDRESS``, else starts Ray on this machine.

    Raises:
        UsageError: Ray is not installed, or there is no such cluster.

    Example:
        >>> caption_shards(shards, build, output, job, told, lambda orders: Actors(orders, "auto"))  # doctest: +SKIP
    """

    def __init__(self, orders: Orders, address: str | None = None) -> None:
        self._ray = ray = require_ray()
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}
        self._own = not ray.is_initialized()
        if self._own:
            _connect(ray, address, orders.job.pace.processes)
        try:
            self._actor = ray.remote(**_share(ray.cluster_resources(), orders.job.pace.processes))(ShardActor)
            self._orders = ray.put(orders)
        except BaseException:
            self.end()
            raise

    def start(self, rank: int) -> None:
        """Ask for an actor; Ray starts it when there is room."""
        self._actors[rank] = self._actor.remote(self._orders, os.getcwd())
        self._calls[self._actors[rank].load.remote()] = rank

    def send(self, rank: int, shard: str) -> None:
        """Call an actor."""
        self._calls[self._actors[rank].caption.remote(shard)] = rank

    def wait(self) -> Sequence[tuple[int, Message]]:
        """The reports of those actors that have one."""
        calls = list(self._calls)
        self._ray.wait(calls, num_returns=1)
        ready, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0)
        return [(rank, self._heard(call, rank)) for call, rank in [(call, self._calls.pop(call)) for call in ready]]

    def _heard(self, call: Any, rank: int) -> Message:
        try:
            message: Message = self._ray.get(call)
        except self._ray.exceptions.RayError as error:  # the actor, its machine or its result is lost
            self._kill(self._actors.pop(rank))
            return Died(f"was lost ({_reason(error)})")
        return message

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):  # it is gone already
            self._ray.kill(actor)

    def end(self) -> None:
        """Stop the actors, and Ray where this command started it."""
        for actor in self._actors.values():
            self._kill(actor)
        if self._own:
            self._ray.shutdown()


def require_ray() -> Any:
    """The package.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError("--engine ray needs Ray: pip install 'tellapart[ray]'.") from error
    return ray


def _connect(ray: Any, address: str | None, processes: int) -> None:
    os.environ.setdefault(
        "RAY_USAGE_STATS_ENABLED", "0"
    )  # nothing is reported to Ray's makers unless the user wants it
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
    if address is None and not os.environ.get("RAY_ADDRESS"):
        cores = os.cpu_count() or 1
        options |= {"num_cpus": max(processes, cores), "object_store_memory": OBJECT_STORE_BYTES}
    elif address is not None:
        options["address"] = address
    try:
        ray.init(**options)
    except Exception as error:  # Ray has many
        place, reason = address or os.environ.get("RAY_ADDRESS") or None, without_secrets(reason_of(error))
        if place is None:
            raise UsageError(
                f"Ray did not start on this machine ({reason}): try again, or leave --engine out."
            ) from error
        remedy = "start a cluster with `ray start --head`, or leave --address out"
        raise UsageError(f"Ray cannot be used at {place} ({reason}): {remedy}.") from error


def _reason(error: BaseException) -> str:
    """Why an actor is lost: of an error in it the last line, which names it, else the first one, without colours."""
    lines = [_COLOUR.sub("", line).strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if _NAMED.match(line)]
    return without_secrets(next(iter(named[-1:] + lines), type(error).__name__))[:200].rstrip(".")


def _share(resources: dict[str, float], processes: int) -> dict[str, float]:
    """What an actor reserves.

    Example:
        >>> _share({"CPU": 64.0, "GPU": 8.0}, 16), _share({"CPU": 8.0}, 2)
        ({'num_gpus': 1, 'num_cpus': 1}, {'num_cpus': 4})
    """
    if resources.get("GPU", 0) >= 1:
        return {"num_gpus": 1, "num_cpus": 1}
    machines = sum(name.startswith("node:") and not name.startswith("node:__") for name in resources) or 1
    cores = int(resources.get("CPU", 1))
    return {"num_cpus": max(min(cores // processes, cores // machines), 1)}
