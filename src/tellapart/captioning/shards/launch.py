"""Which shards this command captions, and captioning them in this process or in several.

Nothing is shared between commands but the folder of the output: each takes its part of the shards by number, and on one file
system also holds a lock per shard.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tellapart.captioning.serve import Build
from tellapart.captioning.shards.output import ShardFolder
from tellapart.captioning.shards.parts import Part
from tellapart.captioning.shards.pools import Died, MakePool, Message, Orders, Pool, Processes, Ready
from tellapart.captioning.shards.samples import ENDINGS
from tellapart.captioning.shards.shard import Answer, ShardJob, Unusable, attempt, output_name
from tellapart.data.formats.patterns import expand, is_pattern
from tellapart.data.remote.addresses import file_of, is_web, require_no_password, scheme_of
from tellapart.data.remote.folders import BACK_OFF, retried
from tellapart.data.remote.stores import listed
from tellapart.errors import UsageError

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often a shard is tried before it is given up."""

FRUITLESS = 30
"""Failed tries without a single captioned shard after which a command stops: then something else than the shards is wrong."""

_INDEX = re.compile(r"(\d*)/(0*[1-9]\d*)")
_SCHEDULERS = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
    ("JOB_COMPLETION_INDEX", None),
    ("RANK", "WORLD_SIZE"),
)
"""Variables of SLURM's arrays, Kubernetes' indexed jobs (which do not say how many there are) and torchrun."""


def shards_of(words: Sequence[str]) -> list[str]:
    """The shards that words of a command line name, in order: files, patterns, folders, and the same in stores.

    Raises:
        UsageError: nothing is named, something is not a shard, or two shards have the same name.
    """
    if not words:
        raise UsageError("no shards were given: name .tar or .parquet files, a pattern, or a folder of them.")
    shards = [shard for word in words for shard in _named(word)]
    named: dict[str, str] = {}
    for shard in shards:
        other = named.setdefault(file_of(shard).rpartition(".")[0], shard)
        if other != shard:
            raise UsageError(f"{other} and {shard} have the same name: caption them into different folders.")
    return list(named.values())


def _named(word: str) -> list[str]:
    require_no_password(word)
    if is_web(word):
        raise UsageError(f"{word} is not in a store that can be listed: copy the shards, or leave --by_shard out.")
    if scheme_of(word) is not None:
        found = [file.url for file in retried(lambda: listed(word))]
    elif Path(word).is_dir():
        found = sorted(str(path) for path in Path(word).iterdir() if path.is_file() and not path.name.startswith("."))
    elif Path(word).exists() or is_pattern(word):
        found = list(expand(word))
    else:
        raise UsageError(f"{word} does not exist: name .tar or .parquet files, a pattern, or a folder of them.")
    shards = [name for name in found if name.lower().endswith(ENDINGS)]
    if not shards:
        raise UsageError(f"{word} names no shard ({', '.join(ENDINGS)}): caption it without --by_shard.")
    return shards


def share_of(given: str | None, environment: Mapping[str, str]) -> tuple[int, int]:
    """Which part of the shards is this command's: ``(index, count)``, index from 0.

    Args:
        given: ``I/N``; ``/N`` takes the index from the scheduler's variables; None takes both, and all shards where there are
            none.
        environment: with the variables of SLURM's arrays, Kubernetes' indexed jobs or torchrun.

    Raises:
        UsageError: it is not such a part, or the scheduler does not say how many there are.

    Example:
        >>> share_of(None, {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "8"})
        (4, 8)
    """
    match = None if given is None else _INDEX.fullmatch(given)
    if given is not None and match is None:
        raise UsageError(f"--shard is {given!r}: write I/N, such as 0/8 for the first of eight parts.")
    index, count = _scheduled(environment)
    if match is not None:
        index, count = (int(match[1]) if match[1] else index), int(match[2])
    if index is None and count is None:
        return 0, 1
    if index is None:
        raise UsageError(f"--shard {given} takes the index from the scheduler, which sets none: write I/N.")
    if count is None:
        raise UsageError("JOB_COMPLETION_INDEX does not say how many parts there are: give --shard /N.")
    if index >= count:
        raise UsageError(f"--shard is {index}/{count}: parts are counted from 0 to {count - 1}.")
    return index, count


def _scheduled(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    for index, count in _SCHEDULERS:
        if environment.get(index, "").isdecimal() and (count is None or environment.get(count, "").isdecimal()):
            own = int(environment[index])
            if index.startswith("SLURM"):  # arrays may begin anywhere, and leave numbers out
                first, step = (environment.get(f"SLURM_ARRAY_TASK_{name}", "") for name in ("MIN", "STEP"))
                own = (own - int(first or 0)) // int(step or 1)
            return own, None if count is None else int(environment[count])
    return None, None


@dataclass
class Outcome:
    """What came of this command's shards.

    Attributes:
        before: shards that were done before.
        done: shards captioned now.
        images: images captioned now.
        broken: samples without a caption.
        flagged: captions with a fault.
        damaged: why a tar could not be read to its end.
        still_damaged: tars that were damaged before, and have not changed since.
        elsewhere: shards that another process held.
        failed: shard -> why it was given up.
        unusable: those of them that no further try can caption.
        seconds: since the start.
    """

    before: int = 0
    done: int = 0
    images: int = 0
    broken: int = 0
    flagged: int = 0
    damaged: list[str] = field(default_factory=list)
    still_damaged: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    unusable: set[str] = field(default_factory=set)
    seconds: float = 0.0

    def add(self, part: Part) -> None:
        """Count a shard that was captioned."""
        self.done += 1
        self.images += part.captioned
        self.broken += part.broken
        self.flagged += part.flagged
        self.damaged += [part.damaged] if part.damaged else []


@dataclass
class _Queue:
    """The shards that are left, and how often each was tried."""

    left: deque[str]
    output: ShardFolder
    job: ShardJob
    outcome: Outcome
    tries: dict[str, int] = field(default_factory=dict)

    def heard(self, shard: str, answer: Answer) -> None:
        """Count what a try gave. A shard that failed is tried again after all others.

        Raises:
            UsageError: nothing but failures came so far, and enough of them.
        """
        if isinstance(answer, Part):
            self.outcome.add(answer)
            return
        name = output_name(shard, self.job.kind)
        if answer is None:
            if self.output.is_done(name, shard):
                self.outcome.before += 1
            else:
                self.outcome.elsewhere.append(name)
            return
        self.tries[shard] = self.tries.get(shard, 0) + 1
        final = isinstance(answer, Unusable)
        answer = answer.why if isinstance(answer, Unusable) else answer
        if not (self.outcome.done or self.outcome.before) and sum(self.tries.values()) >= FRUITLESS:
            raise UsageError(
                f"the first {FRUITLESS} tries all failed, the last one at {shard} ({answer.rstrip('.')}): repair that first."
            )
        if self.tries[shard] < ATTEMPTS and not final:
            logger.warning("%s failed (%s); it is tried again.", shard, answer.rstrip("."))
            self.left.append(shard)
            return
        self.outcome.failed[name] = answer
        self.outcome.unusable |= {name} if final else set()
        self.output.give_up(name, answer)

    def next(self) -> str:
        """The next shard, after a pause if it failed before."""
        shard = self.left.popleft()
        if tries := self.tries.get(shard, 0):
            time.sleep(BACK_OFF * 2 ** (tries - 1))
        return shard


Told = Callable[[Outcome], None]
"""Hears after every shard."""


def caption_shards(
    shards: Sequence[str],
    build: Build,
    output: ShardFolder,
    job: ShardJob,
    told: Told,
    pool: MakePool | None = None,
) -> Outcome:
    """Caption shards that are not done yet, with ``job.pace.processes`` workers.

    A shard that fails, or kills its process, is tried three times in all, and then listed; the others are captioned. One that no
    try can caption, such as a table without images, is listed at once.

    Args:
        shards: addresses of this command's shards.
        build: makes the station of each process.
        output: where the captions go.
        job: the settings.
        told: called after every shard.
        pool: makes the workers; None takes processes of this machine, or this process where one is enough.

    Raises:
        UsageError: the models cannot be loaded, every shard fails, or one fails and ``job.pace.fail``.
    """
    begun = time.monotonic()
    reopened = output.reopen_changed({output_name(shard, job.kind): shard for shard in shards})
    if reopened.changed:
        first, count = reopened.changed[0], len(reopened.changed)
        others = f" and {count - 1} more have" if count > 1 else " has"
        logger.warning("note: %s%s changed since captions were written, which are written again.", first, others)
    done = output.done()
    left = deque(shard for shard in shards if output_name(shard, job.kind) not in done)
    outcome = Outcome(before=len(shards) - len(left), still_damaged=reopened.damaged)
    queue = _Queue(left, output, job, outcome)
    if left:
        tries = _tries(queue, build, pool)
        for shard, answer in tries:
            queue.heard(shard, answer)
            outcome.seconds = time.monotonic() - begun
            told(outcome)
    return outcome


def _tries(queue: _Queue, build: Build, pool: MakePool | None) -> Iterator[tuple[str, Answer]]:
    if pool is None and queue.job.pace.processes == 1:
        return _here(queue, build)
    return _Crew(queue, (pool or Processes)(Orders(build, queue.output, queue.job))).tries()


def _here(queue: _Queue, build: Build) -> Iterator[tuple[str, Answer]]:
    station = build(0, 1)
    while queue.left:
        shard = queue.next()
        yield shard, attempt(shard, station, queue.output, queue.job)


class _Crew:
    """Workers that are handed a shard at a time, once they have loaded the models; one that dies is replaced.

    Args:
        queue: the shards.
        pool: starts workers and listens to them.
    """

    def __init__(self, queue: _Queue, pool: Pool) -> None:
        self._queue, self._pool = queue, pool
        self._size = min(queue.job.pace.processes, len(queue.left))
        self._loading, self._idle = set[int](), set[int]()
        self._busy: dict[int, str] = {}
        self._failed_starts = Counter[int]()
        self._deaths = 0

    def tries(self) -> Iterator[tuple[str, Answer]]:
        try:
            self._hand_out()
            while self._busy or self._queue.left:
                for rank, message in self._pool.wait():
                    shard = self._busy.pop(rank, None)
                    answer = self._heard(rank, message)
                    if shard is not None:
                        yield shard, answer
                self._hand_out()
        finally:
            self._pool.end()

    def _hand_out(self) -> None:
        """Give shards to idle workers, and start workers for the others."""
        while self._idle and self._queue.left:
            rank = min(self._idle)
            self._idle.remove(rank)
            self._busy[rank] = self._queue.next()
            self._pool.send(rank, self._busy[rank])
        missing = set(range(self._size)) - self._loading - self._idle - set(self._busy)
        able = [rank for rank in sorted(missing) if self._failed_starts[rank] < ATTEMPTS]
        for rank in able[: max(len(self._queue.left) - len(self._loading), 0)]:
            self._loading.add(rank)
            self._pool.start(rank)

    def _heard(self, rank: int, message: Message) -> Answer:
        """The answer of a worker, or how it died.

        Raises:
            UsageError: a worker met something that the user can put right, or workers only die.
            OSError: a worker could not write.
        """
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Died):
            self._deaths += 1
            self._failed_starts[rank] += rank in self._loading
            self._loading.discard(rank)
            self._check_deaths(message)
            return f"its process {message.how}"
        if rank in self._loading:
            self._loading.remove(rank)
            self._failed_starts[rank] = 0
        self._idle.add(rank)
        return None if isinstance(message, Ready) else message

    def _check_deaths(self, last: Died) -> None:
        fruitless = self._deaths >= ATTEMPTS * self._size and not self._queue.outcome.done
        hopeless = all(self._failed_starts[rank] >= ATTEMPTS for rank in range(self._size))
        if fruitless or hopeless:
            what = "no shard was captioned" if fruitless else "no worker process can load the models any more"
            raise UsageError(
                f"{what}, and {self._deaths} worker processes died; the last one {last.how}: give fewer --num_processes or a "
                "smaller --batch_size."
            )
