"""The commands that write, each as a command that can be stopped, and what resumes it."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tellapart.cli.main import main

from .forks import Fork
from .given import Given


@dataclass(frozen=True)
class Place:
    """Where a try happens.

    Args:
        folder: everything that the command writes is below it.
        given: what it starts from.
    """

    folder: Path
    given: Given

    @property
    def out(self) -> Path:
        """The output."""
        return self.folder / "out"


@dataclass(frozen=True)
class Target:
    """A command that writes.

    Args:
        name: in messages.
        run: runs the command in this process; gives its exit code.
        resume: what a user does after a stop; by default the same command.
        prepare: makes what the command changes.
        weight: how often it is chosen.
        lost: place -> what the command had acknowledged and that is not there, as faults.
        codes: exit codes that it documents for what it cannot do.
    """

    name: str
    run: Callable[[Place], int]
    resume: Callable[[Place], int] | None = None
    prepare: Callable[[Place], None] = lambda place: None
    weight: float = 1.0
    lost: Callable[[Place], list[str]] = lambda place: []
    codes: tuple[int, ...] = (0, 2)

    def again(self, place: Place) -> int:
        """Run what resumes the command."""
        return (self.resume or self.run)(place)


RECIPE = "recipe.yaml"


def training(method: str, **changes: Any) -> Target:
    """``train`` with one method."""
    return _trainer("train", method, lambda given: given.recipe(method, **changes))


def _trainer(verb: str, name: str, recipe: Callable[[Given], dict[str, Any]]) -> Target:
    def prepare(place: Place) -> None:
        (place.folder / RECIPE).write_text(json.dumps(recipe(place.given) | {"output_dir": str(place.out)}))

    def words(place: Place) -> list[str]:
        return [verb, str(place.folder / RECIPE)]

    def resume(place: Place) -> int:
        # As the command's own messages say: once there is a checkpoint, with this option.
        more = ["--resume_from_checkpoint", "last"] if any(place.out.glob("checkpoint-*")) else []
        return main([*words(place), *more])

    return Target(f"{verb} {name}".strip(), lambda place: main(words(place)), resume, prepare)


def _listener_recipe(given: Given) -> dict[str, Any]:
    recipe: dict[str, Any] = {"grammar": True, "listener": {"path": str(given.materials.listener)}}
    recipe |= {"data": {"path": str(given.materials.data), "split": "train"}, "evaluation": {"split": "val"}}
    recipe |= {"learning_rate": 1e-3, "max_steps": 4, "save_steps": 1, "per_device_train_batch_size": 4}
    return recipe | {"logging_steps": 1, "metric_for_best_model": "R@1_mean"}


def captioning(name: str, output: str, *options: str, processes: int = 1, weight: float = 1.0) -> Target:
    """``caption`` of the album.

    Args:
        name: of the form.
        output: file or folder below the output folder.
        options: further words.
        processes: that share the work. They are forked from this process, which has imported what they need.
        weight: how often it is chosen.
    """

    def run(place: Place) -> int:
        from tellapart.captioning import workers

        workers._context = lambda imports: multiprocessing.get_context("fork")  # type: ignore[assignment,return-value]
        given = place.given
        more = [word.format(listener=given.materials.listener) for word in options]
        words = ["caption", given.album, "--captioner", given.materials.captioner, "--do_sample", "--resample", "1"]
        words += ["--max_new_tokens", 8, "--batch_size", 2, "--num_workers", 0, "--num_processes", processes]
        return main([*map(str, words), "--output", str(place.out / output), *more])

    return Target(f"caption, {name}, {processes} process{'es' * (processes > 1)}", run, weight=weight)


def _frontier() -> Target:
    def prepare(place: Place) -> None:
        evaluation = {"path": str(place.given.materials.data), "split": "val", "max_new_tokens": 6}
        changes = {"metric_for_best_model": None, "evaluation": evaluation, "max_steps": 2}
        (place.folder / RECIPE).write_text(json.dumps(place.given.recipe("dico", **changes)))

    def run(place: Place) -> int:
        from tellapart.sweep import jobs

        jobs.subprocess.Popen = _ForkedModule  # type: ignore[misc,assignment]
        jobs.POLL_SECONDS = 0.05
        words = ["frontier", place.folder / RECIPE, "--grid", "objective.beta=0.1,0.2", "--seeds", 1]
        words += ["--picture", "false", "--images", 2, "--output_dir", place.out]
        return main(list(map(str, words)))

    # Where a training fails, the page is still written from the others, and the exit code is 1.
    return Target("frontier", run, prepare=prepare, weight=0.5, codes=(0, 1, 2))


class _ForkedModule:
    """In place of ``subprocess.Popen`` for ``python -m module``: forked from this process, which has imported everything."""

    def __init__(self, command: list[str], *, stdout: Any, **options: Any) -> None:
        module, arguments = command[2], command[3:]

        def work() -> int:
            self.stdin.close()
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__")
            return 0

        theirs, ours = os.pipe()
        self.stdin = open(ours, "wb")  # noqa: SIM115  # closed by who waits for this process, or when this one ends
        self._fork = Fork(work, Path(stdout.name).parent, said=stdout.fileno(), stdin=theirs)
        os.close(theirs)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        if self._fork.ended():
            self.returncode = self._fork.code
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._fork.send(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for its end."""
        self._fork.wait(60)
        self.returncode = self._fork.code
        return self.returncode


ACKNOWLEDGED = "acknowledged"
KEPT = " kept"


def _judge() -> Target:
    def prepare(place: Place) -> None:
        from tellapart.data.load import load_dataset
        from tellapart.evaluation.protocol import Protocol
        from tellapart.evaluation.results import EvaluationResult

        dataset = load_dataset(place.given.materials.data, split="val")
        for name in ("xe", "dico"):
            said = {image: f"{name} says picture {image}" for image in dataset.ids}
            protocol = Protocol(dataset.name, 6, "00000000", "greedy")
            EvaluationResult(name, protocol, {"x": 1.0}, said, {}).save(place.folder / name)

    def run(place: Place) -> int:
        from tellapart.evaluation.judge import serve

        serve.serve = lambda study, listening: _answered(study, place)  # type: ignore[assignment]
        runs = [str(place.folder / name) for name in ("xe", "dico")]
        words = ["judge", *runs, "--images", str(place.given.materials.data), "--port", "0", "--num_items", "4"]
        code = main([*words, "--output_dir", str(place.out)])
        return code or main(["judge", "--results", str(place.out)])

    def lost(place: Place) -> list[str]:
        from tellapart.evaluation.judge.study import ANSWERS_FILE

        path, told = place.out / ANSWERS_FILE, place.folder / ACKNOWLEDGED
        lines = told.read_text().splitlines() if told.is_file() else []
        promised = [line.removesuffix(KEPT) for line in lines if line.endswith(KEPT)]  # a torn line is no promise
        if not promised:  # a full disk may have kept even the table from being made
            return []
        if not path.is_file():
            return ["acknowledged answers are gone"]
        with closing(sqlite3.connect(path)) as base:
            kept = [row[0] for row in base.execute("SELECT item FROM answers")]
        gone = [item for item in promised if kept.count(item) != 1]
        return [f"{len(gone)} acknowledged answers are not there once"] if gone else []

    return Target("judge", run, prepare=prepare, lost=lost)


def _answered(study: Any, place: Place) -> None:
    """A rater who answers everything that is open, in place of the page; each acknowledgement is kept."""
    from tellapart.evaluation.judge.answers import Answers
    from tellapart.evaluation.judge.study import ANSWERS_FILE, WHICH_IMAGE

    answers = Answers(Path(study.folder) / ANSWERS_FILE)
    key = answers.enter("Ann")
    done = answers.of(key)
    acknowledged = os.open(place.folder / ACKNOWLEDGED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for item in study.items:
        if item.id not in done:
            answers.record(key, item.id, "target" if item.question == WHICH_IMAGE else "b", first="a")
            told = f"\n{item.id}{KEPT}\n".encode()
            while told:
                told = told[os.write(acknowledged, told) :]
    os.close(acknowledged)
    answers.close()
    raise KeyboardInterrupt


def _bench() -> Target:
    def run(place: Place) -> int:
        given = place.given
        words = ["bench", "people", given.ratings, "--images", given.materials.photos, "--output_dir", place.out]
        return main([*map(str, words), "--listener", str(given.materials.listener)])

    return Target("bench people", run)


def _world() -> Target:
    def run(place: Place) -> int:
        from tellapart.world.schedules import STAGES

        schedule = STAGES["world/backbone"].schedules["small"]
        schedule.update(steps=4, batch_size=8)
        words = [
            "features",
            "world",
            "--size",
            "small",
            "--model",
            "world/backbone",
            "--limit",
            "4",
            "--batch_size",
            "4",
        ]
        return main([*words, "--num_workers", "0", "--output_dir", str(place.out)])

    return Target("world stage", run, weight=0.5)


def _features(pool: str) -> Target:
    def run(place: Place) -> int:
        words = ["features", place.given.data, "--model", place.given.vision, "--pool", pool, "--batch_size", 2]
        return main([*map(str, words), "--num_workers", "0", "--output_dir", str(place.out)])

    return Target(f"features, {pool}", run)


def _convert(form: str) -> Target:
    def run(place: Place) -> int:
        return main(["data", "convert", str(place.given.data), str(place.out / "data"), "--to", form])

    return Target(f"data convert, {form}", run, weight=0.7)


def _mine() -> Target:
    def run(place: Place) -> int:
        words = ["mine", str(place.given.data), "--listener", str(place.given.materials.listener), "--k", "3"]
        return main([*words, "--output", str(place.out / "near.parquet")])

    return Target("mine", run)


class FolderHub:
    """Stands in for the hub's client: a repository is a folder, and a commit replaces it in one rename."""

    root: Path

    def create_repo(self, *, repo_id: str, **options: Any) -> None:
        """Make the repository."""
        (self.root / repo_id).mkdir(parents=True, exist_ok=True)

    def upload_folder(self, *, repo_id: str, folder_path: Path, **options: Any) -> str:
        """One commit."""
        here, coming = self.root / repo_id, self.root / f"{repo_id}-coming"
        shutil.rmtree(coming, ignore_errors=True)
        shutil.copytree(folder_path, coming, ignore=shutil.ignore_patterns(".*"))
        shutil.rmtree(here)
        coming.rename(here)
        return "https://hub/commit/1"


def _push() -> Target:
    def run(place: Place) -> int:
        import huggingface_hub

        FolderHub.root = place.folder / "hub"
        huggingface_hub.HfApi = FolderHub  # type: ignore[assignment,misc]
        huggingface_hub.get_token = lambda: "hf_" + 20 * "x"  # type: ignore[assignment]
        return main(["push", str(place.out), "--hub_model_id", "me/mine"])

    return Target("push", run, prepare=lambda place: _copy(place.given.run, place.out) and None)


def _copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


WITH_STATE = ("wtf_rl", "psst", "vlrm_rs", "reinforce_joint", "dico", "offline_dpo")
"""Methods that train more than a captioner, or start from more."""

APART = ("--apart", "--listener", "{listener}", "--n", "4")

TRAININGS = [
    *(replace(training(method), weight=1.5) for method in WITH_STATE),
    *(replace(training(method), weight=0.7) for method in ("xe", "scst", "sle", "sr_pl", "g_gan", "grpo")),
]

CAPTIONINGS = [
    captioning("jsonl", "c.jsonl", weight=2.0),
    captioning("jsonl", "c.jsonl", processes=2, weight=2.0),
    captioning("coco", "c.json"),
    captioning("parquet", "c.parquet"),
    captioning("parquet", "c.parquet", processes=2),
    captioning("webdataset", "shards", "--out", "webdataset"),
    captioning("sidecars", "texts", "--out", "sidecars", "--existing", "append"),
    captioning("sidecars", "texts", "--out", "sidecars", "--existing", "append", processes=2),
    captioning("apart", "c.jsonl", *APART, weight=2.0),
]

OTHERS = [
    _trainer("train-listener", "", _listener_recipe),
    _frontier(),
    _judge(),
    _bench(),
    _world(),
    _features("mean"),
    _features("grid"),
    *(_convert(form) for form in ("webdataset", "folder", "karpathy", "metadata-parquet")),
    _mine(),
    _push(),
]

TARGETS = {target.name: target for target in (*TRAININGS, *CAPTIONINGS, *OTHERS)}
