"""Workers that caption shards: what a launcher needs of them, and worker processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from tellapart.captioning.processes import buried, ended, started
from tellapart.captioning.serve import Build
from tellapart.captioning.shards.output import ShardFolder
from tellapart.captioning.shards.shard import Answer, ShardJob, attempt
from tellapart.errors import UsageError


@dataclass(frozen=True)
class Orders:
    """Settings that every worker receives once.

    Args:
        build: makes its station.
        output: where the captions go.
        job: what is the same for all shards.
    """

    build: Build
    output: ShardFolder
    job: ShardJob


@dataclass(frozen=True)
class Ready:
    """A worker has loaded the models."""


@dataclass(frozen=True)
class Died:
    """A worker has ended.

    Args:
        how: it ended, after "its process".
    """

    how: str


Message = Ready | Died | Answer | Exception
"""What a worker reports. An exception ends the command."""


class Pool(Protocol):
    """Workers by number."""

    def start(self, rank: int) -> None:
        """Start a worker. It reports ``Ready`` once it has loaded the models."""

    def send(self, rank: int, shard: str) -> None:
        """Have a worker that is ready caption a shard. It reports the answer."""

    def wait(self) -> Sequence[tuple[int, Message]]:
        """Wait for reports: number of the worker, and what it reports."""

    def end(self) -> None:
        """Stop all workers."""


MakePool = Callable[[Orders], Pool]


class Processes:
    """Worker processes of this machine, each with a pipe, on its own GPU or its share of the CPU.

    Args:
        orders: for the workers.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._workers: dict[int, tuple[BaseProcess, Connection]] = {}

    def start(self, rank: int) -> None:
        """Start a process."""
        self._workers[rank] = started(_work, (self._orders, rank), self._orders.job.pace.imports)

    def send(self, rank: int, shard: str) -> None:
        """Send a shard's address."""
        with suppress(OSError):  # it has just died, which is seen when it is waited for
            self._workers[rank][1].send(shard)

    def wait(self) -> Sequence[tuple[int, Message]]:
        """The reports of those processes that have one."""
        ready = wait([connection for _, connection in self._workers.values()])
        return [(rank, self._heard(rank)) for rank, one in list(self._workers.items()) if one[1] in ready]

    def _heard(self, rank: int) -> Message:
        try:
            message: Message = self._workers[rank][1].recv()
        except (EOFError, OSError):
            return Died(buried(self._workers.pop(rank)[0]))
        return message

    def end(self) -> None:
        """Stop the processes."""
        ended(self._workers.values())


def _work(orders: Orders, rank: int, connection: Connection) -> None:
    """A worker's life."""
    try:
        station = orders.build(rank, orders.job.pace.processes)
        connection.send(Ready())
        while True:
            connection.send(attempt(connection.recv(), station, orders.output, orders.job))
    except EOFError:  # nothing more to do
        return
    except (UsageError, OSError) as error:
        connection.send(error)
