"""Workers of shards: how a crew hands out shards and outlives its workers, and the same with actors of Ray."""

from __future__ import annotations

import importlib.util
import json
import os
import tarfile
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

import pytest

from captioning.captioning_fakes import Deadly, build_opening, plain, shard_job
from tellapart.captioning.serve import StationError
from tellapart.captioning.shards.launch import ATTEMPTS, Outcome, caption_shards
from tellapart.captioning.shards.output import ShardFolder
from tellapart.captioning.shards.pools import Died, Message, Orders, Ready
from tellapart.captioning.shards.ray_pool import Actors, _connect, _reason, _share
from tellapart.captioning.shards.shard import attempt
from tellapart.data.remote.folders import Folder
from tellapart.errors import UsageError


def silent(outcome: Outcome) -> None:
    return


class Scripted:
    """Workers in this process that die when they are told to.

    Args:
        orders: as for all pools.
        dies: shard -> how often its worker dies.
        never: numbers of workers that never get a place to load.
        fails: numbers of workers that die while they load.
    """

    def __init__(self, orders: Orders, dies: Counter, never: Sequence[int] = (), fails: Sequence[int] = ()) -> None:
        self.orders, self.dies, self.never, self.fails = orders, dies, never, fails
        self.station = orders.build(0, 1)
        self.reports: deque[tuple[int, Message]] = deque()
        self.alive, self.most, self.ended, self.starts = set[int](), 0, False, Counter[int]()

    def start(self, rank: int) -> None:
        assert rank not in self.alive, "a worker of that number lives"
        self.alive.add(rank)
        self.starts[rank] += 1
        self.most = max(self.most, len(self.alive))
        if rank in self.fails:
            self._die(rank)
        elif rank not in self.never:
            self.reports.append((rank, Ready()))

    def send(self, rank: int, shard: str) -> None:
        assert rank in self.alive
        name = Path(shard).name
        if self.dies[name]:
            self.dies[name] -= 1
            self._die(rank)
        else:
            self.reports.append((rank, attempt(shard, self.station, self.orders.output, self.orders.job)))

    def _die(self, rank: int) -> None:
        self.alive.remove(rank)
        self.reports.append((rank, Died("was killed by a test")))

    def wait(self) -> Sequence[tuple[int, Message]]:
        assert self.reports, "nobody is waited for, for ever"
        return [self.reports.popleft()]

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def output(tmp_path) -> ShardFolder:
    return ShardFolder.begin(Folder(str(tmp_path / "out")), {"captioner": "x"})


@pytest.fixture
def shards(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.setattr("tellapart.captioning.shards.launch.BACK_OFF", 0.001)
    for number in range(6):
        (tmp_path / f"{number:05}.tar").write_bytes(plain(10 * number, 10))
    return [str(tmp_path / f"{number:05}.tar") for number in range(6)]


def ids_in(output: ShardFolder) -> list[str]:
    """The captioned ids of all shards, each as often as it occurs."""
    found = []
    for name in sorted(output.done()):
        with tarfile.open(output.folder.at(name)) as archive:
            members = [member for member in archive if member.name.endswith(".json")]
            found += [json.loads(archive.extractfile(member).read())["image_id"] for member in members]
    return found


ALL = [f"{number:05}" for number in range(60)]


def scripted(shards, output, processes=3, **options) -> tuple[Outcome, Scripted]:
    made = []

    def make(orders: Orders) -> Scripted:
        made.append(Scripted(orders, **options))
        return made[0]

    outcome = caption_shards(shards, build_opening, output, shard_job(processes=processes), silent, make)
    return outcome, made[0]


def test_dead_workers_are_replaced_and_a_deadly_shard_is_given_up(shards, output):
    outcome, pool = scripted(shards, output, dies=Counter({"00001.tar": 1, "00003.tar": 99}))
    assert (outcome.done, outcome.failed) == (5, {"00003.tar": "its process was killed by a test"})
    assert pool.dies["00003.tar"] == 99 - ATTEMPTS
    assert ids_in(output) == [name for name in ALL if not name.startswith("0003")]
    assert (pool.most, pool.ended) == (3, True)


def test_a_worker_without_a_place_holds_no_shard(shards, output):
    """A cluster with room for one of three actors: it captions everything, and nobody waits for the others."""
    outcome, pool = scripted(shards, output, dies=Counter(), never=(1, 2))
    assert (outcome.done, pool.starts) == (6, Counter({0: 1, 1: 1, 2: 1}))
    assert ids_in(output) == ALL


def test_a_worker_that_cannot_load_is_started_three_times(shards, output):
    outcome, pool = scripted(shards, output, processes=2, dies=Counter(), fails=(1,))
    assert outcome.done == 6
    assert pool.starts[1] <= ATTEMPTS


def test_workers_that_only_die_end_the_command(shards, output):
    with pytest.raises(
        UsageError, match="no shard was captioned, and 6 worker processes died; the last one was killed"
    ):
        scripted(shards, output, processes=2, dies=Counter(), fails=(0, 1))
    outcome, _ = scripted(shards[:1], output, processes=2, dies=Counter())
    assert outcome.done == 1


def test_what_no_image_can_repair_ends_the_command(shards, output):
    def build(rank, processes):
        def draw(batch, described):
            raise StationError("http://x/v1 cannot be reached: start the server.")

        return type(build_opening(0, 1))(build_opening(0, 1).read, draw)

    with pytest.raises(StationError, match="cannot be reached"):
        caption_shards(shards, build, output, shard_job(), silent)
    assert (output.done(), output.failed()) == (set(), {})


@pytest.mark.parametrize(
    ("resources", "processes", "share"),
    [
        ({"CPU": 64.0, "GPU": 8.0}, 16, {"num_gpus": 1, "num_cpus": 1}),
        ({"CPU": 8.0, "node:10.0.0.1": 1.0, "node:__internal_head__": 1.0}, 2, {"num_cpus": 4}),
        ({"CPU": 8.0, "node:10.0.0.1": 1.0, "node:10.0.0.2": 1.0}, 1, {"num_cpus": 4}),  # an actor fits one machine
        ({"CPU": 2.0}, 16, {"num_cpus": 1}),
    ],
)
def test_what_an_actor_reserves(resources, processes, share):
    assert _share(resources, processes) == share


class NoCluster:
    """A Ray that starts nothing."""

    def __init__(self) -> None:
        self.options = {}

    def init(self, **options):
        self.options = options
        raise ConnectionError("nobody is there.")


@pytest.mark.parametrize(
    ("address", "variable", "sentence"),
    [
        ("auto", "", "Ray cannot be used at auto .nobody is there.: start a cluster"),
        (None, "head:6379", "Ray cannot be used at head:6379 "),
        (None, "", "Ray did not start on this machine .nobody is there.: try again, or leave --engine out"),
    ],
)
def test_which_cluster(address, variable, sentence, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", variable)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    ray = NoCluster()
    with pytest.raises(UsageError, match=sentence):
        _connect(ray, address, 3)
    assert ray.options.get("address") == address
    assert ("num_cpus" in ray.options) == (address is None and not variable)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_why_an_actor_is_lost():
    lines = (
        "The actor died of an error, \x1b[36mray::ShardActor.__init__()\x1b[39m\n  File x\nImportError: no module a.\n"
    )
    assert _reason(RuntimeError(lines)) == "ImportError: no module a"
    assert _reason(RuntimeError("The actor died unexpectedly.\n\tclass_name: x")) == "The actor died unexpectedly"


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_a_sentence_says_how_to_get_it(shards, output):
    with pytest.raises(UsageError, match=r"needs Ray: pip install 'tellapart\[ray\]'"):
        caption_shards(shards, build_opening, output, shard_job(), silent, Actors)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_actors_that_die_lose_and_double_nothing(shards, output, tmp_path, monkeypatch):
    """One shard kills its actor once, another always: only that one is given up."""
    pytest.importorskip("ray")
    tests = str(Path(__file__).parents[1])  # which actors import the station from
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]))
    job = shard_job(processes=2)
    outcome = caption_shards(shards, Deadly(tmp_path, "00013", "00033"), output, job, silent, Actors)
    assert (tmp_path / "died").exists()
    assert (outcome.done, list(outcome.failed)) == (5, ["00003.tar"])
    assert "was lost" in outcome.failed["00003.tar"]
    assert ids_in(output) == [name for name in ALL if not name.startswith("0003")]
