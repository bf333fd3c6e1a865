"""The trained stages of the world: built on first use, kept in the cache, found by name.

``python -m tellapart.world.stages --size full`` builds them all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError
from tellapart.files import cache_dir, first_folder, write_json
from tellapart.launch import processes
from tellapart.locks import in_turn
from tellapart.parents import end_with
from tellapart.progress import bar
from tellapart.world import spec
from tellapart.world.schedules import ALIASES, SEEDED, STAGES, Stage

logger = logging.getLogger(__name__)

REVISION = 5
"""To be raised when the code of a stage changes in a way that its schedule does not tell."""

SEED = 0
"""Of every stage but those that are asked for with a seed."""


def resolve(path: str, *, size: str = "full", seed: int = 0) -> Path:
    """The folder of a stage, built now (after what it needs) if it is not there.

    Args:
        path: ``world/backbone``, ``world/listener``, ``world/verifier`` (also called ``world/sighted``), ``world/pac``,
            ``world/negclip``, ``world/judge-backbone``, ``world/judge``, ``world/grammar``,
            ``world/language_model``, ``world/blip2-backbone``, ``world/itm``, ``world/sharp-backbone``,
            ``world/sharp-verifier``, ``world/xe``, ``world/xe-sharp``, ``world/lstm``, ``world/att2in2``, ``world/updown`` or
            ``world/blip2``; of the moving world ``world/video-backbone``, ``world/video-listener``,
            ``world/video-xe`` or ``world/video-lstm``. To a start captioner a seed may be added, as in ``world/xe-seed1``.
        size: of the world.
        seed: redraws a start captioner while everything else stays the same.

    Raises:
        UsageError: there is no such stage or size, or the name and ``seed`` disagree.
    """
    name, seed = _stage_and_seed(path, seed)
    spec.require_size(size)
    folder = stage_folder(name, size, seed)
    if not folder.is_dir() and processes() > 1:
        # Training it here would wait for processes of this launch that wait for the stage.
        with _beside((f"{name}-seed{seed}" if name in SEEDED else name,), size):
            return folder
    if (
        not folder.is_dir() or _lock_of(folder).exists()
    ):  # a lock next to a stage was left by a killed process, and is taken and removed
        needs = {need: resolve(need, size=size) for need in STAGES[name].needs}
        _build(name, folder, needs, size, seed)
    return folder


def _lock_of(folder: Path) -> Path:
    """The lock under which a stage is built."""
    return folder.with_name(f".{folder.name}.lock")


def build_all(size: str = "full", *, seeds: Sequence[int] = (0,)) -> None:
    """Build the stages that most trainings need and that are missing: judge and verifier in a process of their own next to
    the others. Stages that few trainings need, such as ``world/grammar``, are built by the first that does.

    Args:
        size: of the world.
        seeds: of ``world/xe``.

    Raises:
        UsageError: a stage could not be built.
    """
    from tellapart.world import load_world

    load_world("web", size=size)  # both processes need it: built once, before they part
    with _beside(("world/judge", "world/verifier"), size):
        resolve("world/listener", size=size)
        for seed in seeds:
            resolve("world/xe", size=size, seed=seed)


def stage_folder(name: str, size: str, seed: int) -> Path:
    """Where a stage is kept: named after everything that decides its weights."""
    label = f"{name.removeprefix('world/')}{f'-seed{seed}' if name in SEEDED else ''}"
    return cache_dir() / "world" / f"{spec.version()}-{size}-stages" / f"{label}-{_key(name, size, seed)}"


def features_root() -> Path:
    """Where features of stages are kept, each set in a folder that is named after its stage."""
    return cache_dir() / "world" / "features"


def _key(name: str, size: str, seed: int) -> str:
    stage = STAGES[name]
    needs = [_key(need, size, SEED) for need in stage.needs]
    decides = [REVISION, _world_version(name), name, size, seed, stage.schedules[size], needs]
    text = json.dumps(decides, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _world_version(name: str) -> str:
    """That of the data which a stage learns from."""
    if not name.startswith("world/video-"):
        return spec.version()
    from tellapart.world.video import spec as moving

    return moving.version()


def _stage_and_seed(path: str, seed: int) -> tuple[str, int]:
    path = ALIASES.get(path, path)
    name, said = path, re.fullmatch(rf"({'|'.join(SEEDED)})-seed(\d+)", path)
    if said is not None:
        name, named = said[1], int(said[2])
        if seed not in (0, named):
            raise UsageError(f"{path} and seed={seed} name two different seeds: give one of them.")
        seed = named
    if name not in STAGES:
        raise UsageError(
            f"{path!r} is not part of the built-in world: choose one of {', '.join(STAGES)}; or a start captioner's seed, as in "
            "world/xe-seed1."
        )
    return name, seed if name in SEEDED else SEED


def _build(name: str, folder: Path, needs: dict[str, Path], size: str, seed: int) -> None:
    """Train the stage into ``folder``, unless another process does so meanwhile, which is waited for."""
    with in_turn(_lock_of(folder), folder):
        if not folder.is_dir():
            _build_alone(name, folder, needs, size, seed)


def _build_alone(name: str, folder: Path, needs: dict[str, Path], size: str, seed: int) -> None:
    from tellapart.captioners.modes import quiet
    from tellapart.world.schedule import Schedule, Task, one_thread

    for left in folder.parent.glob(f".{folder.name}-*"):  # of builds that were killed
        shutil.rmtree(left, ignore_errors=True)
    stage, began = STAGES[name], time.process_time()
    logger.warning("note: building %s of the built-in world, once; it is kept in %s.", name, folder.parent)
    with first_folder(folder) as temporary, quiet(), _from_its_start(name):
        task = Task(name, temporary / "model", Schedule(**stage.schedules[size]), needs, size, seed)
        task.folder.mkdir()
        history = _builder(stage)(task)
        for part in task.folder.iterdir():
            part.rename(temporary / part.name)
        task.folder.rmdir()
        if stage.use:
            from tellapart.world.probe import PROBE

            with one_thread():
                write_json(temporary / PROBE, _probe(name)(temporary, size=size))
        about = {"stage": name, "size": size, "seed": seed, "schedule": asdict(task.schedule)}
        write_json(temporary / "stage.json", about | {"cpu_seconds": time.process_time() - began, "history": history})


@contextmanager
def _from_its_start(name: str) -> Iterator[None]:
    """Ctrl-C says what becomes of the stage, and not of a run that the user has not got."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(
            f"stopped while building {name}: the same command builds this part of the world again, and keeps those before it."
        ) from stopped


def _probe(name: str) -> Callable[..., dict[str, Any]]:
    """What measures a listener or matching head of the world that the stage is of."""
    if name.startswith("world/video-"):
        from tellapart.world.video.probe import probe_listener

        return probe_listener
    from tellapart.world.probe import probe_folder

    return probe_folder


def _builder(stage: Stage) -> Callable[[Any], list[dict[str, Any]]]:
    # Imported here: a stage that is in the cache is found without loading what trains it.
    from importlib import import_module

    module = import_module(f"tellapart.world.{stage.module}")
    return vars(module)[stage.builder]


def _sized(path: str, size: str) -> tuple[str, str, int]:
    name, seed = _stage_and_seed(path, 0)
    return name, size, seed


LAUNCH = re.compile(r"(RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE|MASTER|TORCHELASTIC|ACCELERATE)_.*)")
"""Variables by which torchrun and accelerate tell a process that it is one of several."""


def _alone(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is none of a launch of several."""
    return {name: value for name, value in environment.items() if not LAUNCH.fullmatch(name)}


@contextmanager
def _beside(names: Sequence[str], size: str) -> Iterator[None]:
    """Build stages in another process while the block runs, and wait for it at the end; an error ends that process."""
    missing = [name for name in names if not stage_folder(*_sized(name, size)).is_dir()]
    if not missing:
        yield
        return
    what = " and ".join(missing)
    command = [sys.executable, "-m", __spec__.name, "--size", size, "--stage", *missing]
    theirs, ours = os.pipe()  # closed when this process ends; Popen's own would be closed by communicate
    process = subprocess.Popen(  # noqa: S603  # this program
        [*command, "--end_with_stdin"],
        stdin=theirs,
        stderr=subprocess.PIPE,
        text=True,
        env=_alone(os.environ) | {"OMP_NUM_THREADS": "1"},
    )
    os.close(theirs)
    try:
        yield
        with bar(f"waiting for {what}", None):
            said = process.communicate()[1]
        if process.returncode:
            last = said.strip().splitlines()[-1:] or ["no output"]
            raise UsageError(f"{what} could not be built: {last[0]}; run it alone with {' '.join(command[1:])}.")
    finally:
        process.terminate()
        process.wait()
        os.close(ours)


def main(argv: list[str] | None = None) -> None:
    """Build all stages, or some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(spec.SPLIT_SIZES), default="full")
    parser.add_argument("--end_with_stdin", action="store_true", help="end when the pipe of standard input is closed")
    parser.add_argument("--stage", nargs="+", help="these instead of all, such as world/judge or world/xe-seed1")
    options = parser.parse_args(argv)
    if options.end_with_stdin:
        end_with(0)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # an exit cleans up what is half built, the signal's own does not
    for stage in options.stage or ():
        resolve(stage, size=options.size)
    if not options.stage:
        build_all(options.size)


if __name__ == "__main__":
    main()
