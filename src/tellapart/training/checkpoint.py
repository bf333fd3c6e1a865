"""Checkpoints: complete or absent, readable without unpickling code, and enough to resume to exactly the same weights."""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn
from torch.distributed.tensor import DTensor

from tellapart.errors import UsageError, quoted, reason_of
from tellapart.files import (
    checkpoints,
    disk_errors,
    fresh_folder,
    put_back,
    read_json,
    remove_half_written,
    write_json,
)
from tellapart.run_files import LOG_FILE, NONFINITE_FILE, RECORD_FILE, STATE_FILE
from tellapart.training.config import TrainConfig
from tellapart.training.devices import Devices
from tellapart.training.optim import Optimizer
from tellapart.training.sharded_checkpoint import finite, read_shards, write_shards
from tellapart.training.sharding import Shards
from tellapart.training.state import State, state_of

OPTIMIZER = "optimizer.pt"
SHARDS = "shards"
"""Folder of what learns and its optimiser states in a run with ``training.shard``, in place of ``optimizer.pt``: files of
safetensors, of which each holds what one process held."""
WEIGHTS = "model.safetensors"
RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
"""Variable in which torchrun says how often it starts the processes again."""
FILES = (RECORD_FILE, LOG_FILE, STATE_FILE, NONFINITE_FILE)
"""What the loop writes next to the checkpoints."""

# Options that may differ on resuming without a word: they do not touch what is computed.
_LENGTH = {"max_steps", "num_train_epochs"}
"""Options that only lengthen or shorten a run whose learning rate does not depend on its length."""

_FREE = {
    "output_dir",
    "resume_from_checkpoint",
    "report_to",
    "dataloader_num_workers",
    "save_total_limit",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "shard",
}


_CUT = {"per_device_train_batch_size"}
"""What of these does touch it where dropout is on: masks follow the rows of a micro-batch, on whichever device it is."""


class NonFiniteError(UsageError):
    """Training produced a number that is not finite; nothing of it was written as weights."""


def save(folder: Path, optimizer: Optimizer, state: State) -> None:
    """Write a checkpoint, in one rename.

    Every part that learns has a folder of its own: what its ``save(folder)`` writes where it has one (a captioner
    writes what plain ``transformers`` can load), else ``model.safetensors``.

    Raises:
        NonFiniteError: a weight is not finite.
        OSError: the disk is full, or cannot be written to; it names the checkpoint.
    """
    if (name := _not_finite(optimizer)) is not None:
        raise _refused(name, folder, state)
    with fresh_folder(folder, durable=True) as temporary:
        for part, module in optimizer.modules.items():
            (temporary / part).mkdir()
            _save_part(module, temporary / part)
        torch.save(optimizer.state(), temporary / OPTIMIZER)
        write_json(temporary / STATE_FILE, vars(state))


def save_together(
    folder: Path, optimizer: Optimizer, state: State, shards: Shards, devices: Devices, *, loadable: bool
) -> None:
    """Write a checkpoint in shards, in one rename; every process must call this, and see the same folder.

    Args:
        folder: of the checkpoint.
        optimizer: of the run.
        state: of the run.
        shards: its captioners in shards.
        devices: its processes.
        loadable: write each part's own folder, too (see ``save``), gathered on the main process.

    Raises:
        NonFiniteError: a weight is not finite.
        OSError: the disk is full, or cannot be written to.
    """
    names = devices.gather_objects(_not_finite(optimizer))
    if any(name is not None for name in names):
        raise _refused(next(name for name in names if name is not None), folder, state)
    with _together(folder, devices) as temporary, disk_errors(folder):
        write_shards(temporary / SHARDS, optimizer)
        for part, module in optimizer.modules.items() if loadable else ():
            with shards.whole(module, main=devices.is_main):
                if devices.is_main:
                    (temporary / part).mkdir()
                    _save_part(module, temporary / part)
        if devices.is_main:
            write_json(temporary / STATE_FILE, vars(state))


@contextmanager
def _together(folder: Path, devices: Devices) -> Iterator[Path]:
    """A ``fresh_folder`` with a folder of shards, made by the main process and known to all."""
    if not devices.is_main:
        yield Path(devices.from_main(None))
        return
    with fresh_folder(folder, durable=True) as temporary:
        (temporary / SHARDS).mkdir()
        yield Path(devices.from_main(str(temporary)))


def _not_finite(optimizer: Optimizer) -> str | None:
    """The first parameter of which this process holds a number that is not finite."""
    named = ((f"{part}.{name}", p) for part, parameters in optimizer.parts.items() for name, p in parameters.items())
    return next((name for name, parameter in named if not finite(parameter)), None)


def _refused(name: str, folder: Path, state: State) -> NonFiniteError:
    return NonFiniteError(
        f"{name} holds values that are not finite at step {state.step}, so {folder} was not written: lower learning_rate and "
        "resume from the last checkpoint."
    )


def _save_part(module: nn.Module, folder: Path) -> None:
    write = getattr(module, "save", None)
    if callable(write):
        write(folder)
    else:
        save_model(module, str(folder / WEIGHTS))


def load(folder: Path, optimizer: Optimizer) -> None:
    """Read weights and optimiser back, in place.

    Raises:
        UsageError: something is missing, damaged or of another model.
    """
    if (folder / SHARDS).is_dir():
        read_shards(folder / SHARDS, optimizer)
        return
    if any(isinstance(parameter, DTensor) for parameter in optimizer.parameters):
        raise UsageError(
            f"{folder} was written without shards, which processes in shards cannot read: resume with training.shard none, or "
            "in one process."
        )
    for part, module in optimizer.modules.items():
        _load_part(module, folder / part)
    try:
        states = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise _incomplete(folder, f"{OPTIMIZER} cannot be read") from error
    optimizer.load_state(states)


def _load_part(module: nn.Module, folder: Path) -> None:
    read = getattr(module, "load_weights", None)
    if not folder.is_dir():
        raise _incomplete(folder.parent, f"it lacks {folder.name}/")
    if callable(read):
        read(folder)
        return
    try:
        load_model(module, str(folder / WEIGHTS))
    except (OSError, SafetensorError) as error:
        raise _incomplete(folder.parent, f"{folder.name}/{WEIGHTS} cannot be read") from error
    except RuntimeError as error:
        raise UsageError(
            f"{folder} holds weights of another model: resume with the objective that wrote them."
        ) from error


def read_state(folder: Path) -> State:
    """Where the run that wrote the checkpoint stood.

    Raises:
        UsageError: the folder is missing, or is not a complete checkpoint.
    """
    if not folder.is_dir():
        raise UsageError(
            f"resume_from_checkpoint={str(folder)!r} does not exist: name a checkpoint-N folder, or 'last'."
        )
    try:
        state = state_of(read_json(folder / STATE_FILE))
    except (OSError, ValueError, TypeError) as error:
        raise _incomplete(folder, f"{STATE_FILE} cannot be read: {reason_of(error)}") from error
    if not (folder / OPTIMIZER).is_file() and not (folder / SHARDS).is_dir():
        raise _incomplete(folder, f"it lacks {OPTIMIZER}")
    return state


def _incomplete(folder: Path, what: str) -> UsageError:
    return UsageError(
        f"{folder} is not a complete checkpoint ({what}): restore it, or delete it and resume from another."
    )


def find(config: TrainConfig) -> Path | None:
    """The checkpoint to resume from, or None to start from step 0.

    Raises:
        UsageError: no checkpoint exists, or resuming would overwrite what a run has already written.
    """
    choice, present = config.resume_from_checkpoint, checkpoints(config.output_dir)
    if not choice:
        if present:
            raise UsageError(
                f"output_dir={str(config.output_dir)!r} already holds a run ({list(present.values())[-1].name}): "
                "choose another folder, or set resume_from_checkpoint=last."
            )
        return None
    if choice is not True and str(choice) != "last":
        folder, own = Path(choice), config.output_dir.resolve()
        if present and own not in (folder.resolve().parent, folder.parent.resolve()):
            if int(os.environ.get(RESTARTS, "0")) > 0:
                return list(present.values())[-1]  # of the branch that the launcher began with the same command
            raise UsageError(
                f"output_dir={str(config.output_dir)!r} already holds a run ({list(present.values())[-1].name}), and {choice} is "
                "of another one: choose another folder, or set resume_from_checkpoint=last."
            )
        return folder
    if not present and int(os.environ.get(RESTARTS, "0")) > 0:
        return None  # the launcher gives the same command before the first checkpoint and after it
    if not present:
        raise UsageError(
            f"resume_from_checkpoint={choice!r} finds no checkpoint in {str(config.output_dir)!r}: "
            "leave it out to start."
        )
    return list(present.values())[-1]


def resume(config: TrainConfig, fresh: State, optimizer: Optimizer, total: int) -> State:
    """Where the run begins: at ``fresh``, or at a checkpoint, which is then loaded.

    Args:
        config: of the run.
        fresh: where it would begin.
        optimizer: gets the checkpoint's state.
        total: steps that the run is to have.

    Raises:
        UsageError: see ``find``, ``read_state``, ``check_resumable`` and ``load``; or another run's checkpoint has all steps
            already.
    """
    folder = find(config)
    if folder is None:
        return fresh
    state = read_state(folder)
    check_resumable(folder, state, fresh)
    if state.step >= total and folder.resolve().parent != config.output_dir.resolve():
        raise UsageError(
            f"{folder} has {state.step} steps, and the run is to have {total}, so there is nothing left to train: raise "
            "max_steps or num_train_epochs, or name an earlier checkpoint."
        )
    load(folder, optimizer)
    return state


def keep_best(config: TrainConfig, state: State, total: int) -> int | None:
    """See that ``best/`` holds the checkpoint that the resumed run had selected, of a run in another folder by a copy.

    Args:
        config: the run's options.
        state: of the checkpoint that the run resumes from.
        total: steps of the whole run.

    Returns:
        The step that it holds: the selected one; or a later one, which was selected after the checkpoint was written and before a
        kill, and which the run comes to again. None where it holds neither, which a warning has said.
    """
    step, source = state.selection["best"]["step"], find(config)
    own = config.output_dir / "best"
    present = step_of(own)
    first = state.step if state.unevaluated else state.step + 1
    later = present is not None and first <= present <= total and config.evaluates_after(present, total)
    if present == step or later:
        return present
    other = None if source is None else source.resolve().parent / "best"
    if other is not None and not own.exists() and step_of(other) == step:
        with fresh_folder(own, durable=True) as temporary:
            shutil.copytree(other, temporary, dirs_exist_ok=True)
        return step
    warnings.warn(
        f"the checkpoint of step {step}, which was the best so far, is not in {own}: the best is chosen anew, among the "
        "evaluations that follow.",
        stacklevel=2,
    )
    return None


def set_aside_best(output_dir: Path) -> None:
    """Rename a ``best/`` that the run did not select: readers would take it for the selected checkpoint."""
    own = output_dir / "best"
    if not own.exists():
        return
    aside = output_dir / f"best-before-{step_of(own)}"
    shutil.rmtree(aside, ignore_errors=True)
    own.rename(aside)
    warnings.warn(
        f"{own} was selected by other options than the run has now, or by steps that a stop undid: it is kept as {aside.name}.",
        stacklevel=2,
    )


def step_of(folder: Path) -> int | None:
    """The step of a checkpoint; none where there is no whole one."""
    try:
        return read_state(folder).step
    except UsageError:
        return None


def check_resumable(folder: Path, saved: State, now: State) -> None:
    """Hold a checkpoint against the run that resumes from it.

    Raises:
        UsageError: seed, images per step or data differ, so that it would be another run; or later checkpoints are there.
    """
    pairs = {
        "seed": (saved.config["seed"], now.config["seed"]),
        "number of images per step (per_device_train_batch_size x gradient_accumulation_steps x devices)": (
            saved.effective_batch_size,
            now.effective_batch_size,
        ),
        "data (ids, references, contexts, preferences, neighbours, questions, unlabelled images)": (
            saved.data[:12],
            now.data[:12],
        ),
    }
    for what, (before, after) in pairs.items():
        if before != after:
            raise UsageError(
                f"{folder} was written with another {what}, {before} instead of {after}: resume with the former, "
                "or start in another output_dir."
            )
    later = [path.name for step, path in checkpoints(Path(now.config["output_dir"])).items() if step > saved.step]
    if later:
        raise UsageError(
            f"{folder} is older than {later[-1]} in the same output_dir: remove the later ones, "
            "or choose another output_dir."
        )
    _check_measured(folder, saved, now)
    for what in sorted(saved.contents.keys() & now.contents.keys()):
        if saved.contents[what] != now.contents[what]:
            warnings.warn(
                f"{what} has changed since {folder} was written: the run resumes, but not as it would have without stopping.",
                stacklevel=2,
            )
    free = _FREE | (_LENGTH if _level(saved.config) and _level(now.config) else set())
    free -= _CUT if now.config.get("dropout") else set()
    for name in sorted((set(saved.config) & set(now.config)) - free):
        if saved.config[name] != now.config[name]:
            was, is_now = quoted(saved.config[name], 60), quoted(now.config[name], 60)
            warnings.warn(
                f"{name} was {was} and is now {is_now}: the run resumes, but not as it would have without stopping.",
                stacklevel=2,
            )


def same_measure(saved: State, now: State) -> bool:
    """Whether evaluations measure as before, as far as both states tell."""
    return "" in (saved.measured, now.measured) or saved.measured == now.measured


def _check_measured(folder: Path, saved: State, now: State) -> None:
    """Warn where evaluations measure otherwise than before.

    Raises:
        UsageError: an option compares them with those before.
    """
    if same_measure(saved, now):
        return
    option = "best_floor" if now.config.get("best_floor") else "on_hack"
    if option == "best_floor" or now.config.get("on_hack", "warn") != "warn":
        raise UsageError(
            f"{folder} was evaluated by other options, and {option} compares with the start: resume with the former options of "
            f"the evaluation, or without {option}."
        )
    chosen = (
        ", and the best checkpoint is chosen among those that follow" if now.config.get("metric_for_best_model") else ""
    )
    warnings.warn(
        f"evaluations up to step {saved.step} were made by other options: their figures do not compare with later ones{chosen}.",
        stacklevel=2,
    )


def put_back_replaced(output_dir: Path) -> None:
    """Give checkpoints and ``best/`` their names again that a killed process was about to replace."""
    for old in output_dir.glob(".*.replaced"):
        put_back(old.with_name(old.name.removeprefix(".").removesuffix(".replaced")))


def tidy(output_dir: Path) -> None:
    """Remove what a killed process left half-written; what it was about to replace was put back before."""
    for pattern in (".checkpoint-*", ".best.*"):
        for left in output_dir.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)
    remove_half_written(output_dir, FILES)


def prune(output_dir: Path, limit: int | None) -> None:
    """Remove all but the newest ``limit`` checkpoints; ``best/`` is not one of them and stays."""
    present = list(checkpoints(output_dir).values())
    for folder in present[:-limit] if limit else []:
        # Renamed first: a folder of that name is always complete, whenever this process is killed.
        doomed = folder.with_name(f".{folder.name}.pruned")
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def catch_up(config: TrainConfig, state: State) -> None:
    """Do what a kill between the last checkpoint and the end of its step left undone: the run's own state, and pruning.

    Args:
        config: the run's options.
        state: of the checkpoint that the run resumes from.
    """
    if state.step in checkpoints(config.output_dir):
        write_json(config.output_dir / STATE_FILE, vars(replace(state, config=config.to_dict())), durable=True)
        prune(config.output_dir, config.save_total_limit)


def _level(config: dict[str, Any]) -> bool:
    """Whether the learning rate of a step is the same however long the run is."""
    warmup = config.get("warmup_steps")
    flat = config.get("lr_scheduler_type") in ("constant", "step")
    return flat and isinstance(warmup, int | float) and not 0 < warmup < 1
