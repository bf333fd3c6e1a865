"""The training loop: one function for every objective."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tellapart.data.loader import Cut, TrainingData
from tellapart.draws import mix_seeds, seed_torch
from tellapart.errors import UsageError
from tellapart.files import checkpoints, write_json
from tellapart.run_files import RECORD_FILE, STATE_FILE
from tellapart.training import checkpoint
from tellapart.training.checkpoint import NonFiniteError
from tellapart.training.config import TrainConfig
from tellapart.training.denormals import denormals_flushed
from tellapart.training.devices import Devices
from tellapart.training.doctor import ROLLED_BACK, Doctor, refuse
from tellapart.training.interrupt import Interrupts
from tellapart.training.logs import Means, RunLog, Stopwatch
from tellapart.training.optim import Optimizer
from tellapart.training.run import Run, describe
from tellapart.training.selection import Selection
from tellapart.training.sharding import Shards
from tellapart.training.start import check_captioners, check_together
from tellapart.training.state import State
from tellapart.types import Batch, Objective, StepOutput
from tellapart.verdicts.rules import NON_FINITE

Evaluate = Callable[[Any], dict[str, float]]
"""``objective -> {metric: value}``, called on the main device in eval mode, without gradients."""


def train(
    objective: Objective[Any],
    data: TrainingData,
    config: TrainConfig,
    *,
    evaluate: Evaluate | None = None,
    recipe: dict[str, Any] | None = None,
    contents: Mapping[str, str] | None = None,
    measured: str = "",
) -> Run:
    """Train every part of an objective that can learn.

    A step draws and scores its micro-batches, lets the objective see them together, then back-propagates one piece of
    loss after the other; gradients are summed over devices once, divided by the summed weight and clipped part by part.
    What is drawn follows from seed, step and image alone, so neither the cut into micro-batches and devices, nor the
    number of evaluations, nor stopping and resuming changes the weights. With ``dropout`` the cut does: masks follow the rows of
    a micro-batch, and those of a step begin with the same random numbers.

    Args:
        objective: an ``nn.Module`` whose children are trained; weights change in place (with ``shard``, they stay cut between
            processes). A frozen reference is not a child; on resuming, too, it must have been built from the start model.
        data: the training images.
        config: how to train.
        evaluate: called at the start, every ``eval_steps`` and at the end, with random numbers of its own.
        recipe: whatever made this run, stored in ``run.json``.
        contents: models, plugins and what else it is made of, the data left out -> digest of the content; a resumed run warns
            where one has changed.
        measured: digest of how ``evaluate`` measures. A run that is resumed with another one selects among the evaluations
            that follow.

    Raises:
        UsageError: options cannot be used together, or the checkpoint cannot be resumed from.
        NonFiniteError: a loss, gradient or weight is not finite.
        KeyboardInterrupt: Ctrl-C or SIGTERM; a checkpoint was written at the end of the step.
    """
    with denormals_flushed():
        return _train(_Training.begin(objective, data, config, evaluate, recipe, (dict(contents or {}), measured)))


def _train(training: _Training) -> Run:
    config, total = training.config, training.total_steps
    with training.log.running(config, training.start, total), Interrupts() as interrupts:
        if training.start == 0:
            training.evaluate(0)
        elif training.unevaluated:
            training.finish_step(training.start, stop=False)
            total = training.start if training.ended else total
        for step in training.steps():
            stop = training.devices.any(interrupts.requested)
            training.finish_step(step, stop)
            if training.ended:
                total = step
                break
            if stop and step < total:
                raise KeyboardInterrupt(f"stopped at step {step} of {total}; resume_from_checkpoint=last resumes")
    selected = training.selection.best
    return Run(config.output_dir, total, training.log.history, selected, training.ended, training.shards.turns)


@dataclass
class _Training:
    """One call of ``train``: its parts, wired together by ``begin``."""

    objective: Any  # both an Objective and an nn.Module, which no type can say
    data: TrainingData
    config: TrainConfig
    evaluator: Evaluate | None
    devices: Devices
    cut: Cut
    optimizer: Optimizer
    log: RunLog
    selection: Selection
    doctor: Doctor
    fresh: State
    shards: Shards
    start: int
    total_steps: int
    ended: str
    unevaluated: bool
    """Whether the evaluation after the step that the run resumes from is still to be done."""
    unconfirmed: int | None
    """The step in ``best/`` where it was selected after the checkpoint that the run resumes from was written."""

    @staticmethod
    def begin(
        objective: Any,
        data: TrainingData,
        config: TrainConfig,
        evaluator: Evaluate | None,
        recipe: dict | None,
        told: tuple[dict[str, str], str],
    ) -> _Training:
        """Everything ready for the first step, new or resumed."""
        check_together(objective, config, evaluator is not None)
        devices = Devices(config)
        cut = Cut(
            config.per_device_train_batch_size, config.gradient_accumulation_steps, devices.rank, devices.world_size
        )
        if cut.effective_batch_size > len(data):
            raise UsageError(
                f"a step takes {cut.effective_batch_size} images (per_device_train_batch_size x "
                f"gradient_accumulation_steps x devices), but the data hold {len(data)}: lower the former."
            )
        total = config.total_steps(len(data), cut.effective_batch_size)
        devices.same_start([*objective.parameters(), *objective.buffers()])
        shards = Shards.cut(objective, config, devices, evaluator)
        if not shards:  # else each layer went there when it was cut
            objective.to(devices.device)
        interval = config.lr_interval(len(data), cut.effective_batch_size)
        optimizer = Optimizer(objective, config, total, interval)
        contents, measured = told
        fresh = State(
            0,
            0.0,
            cut.effective_batch_size,
            devices.world_size,
            data.fingerprint(),
            {},
            config.to_dict(),
            contents=contents,
            measured=measured,
        )
        _put_back(config, devices)
        state = checkpoint.resume(config, fresh, optimizer, total)
        if state.step == 0:
            with shards.gathered(), _precision(config, devices):
                check_captioners(objective, data.sample, data.collate)
        devices.wait()  # every rank has seen what was in the folder before it is written to
        if devices.is_main:
            checkpoint.tidy(config.output_dir)
            write_json(config.output_dir / RECORD_FILE, describe(fresh, state.step, total, recipe), durable=True)
            checkpoint.catch_up(config, state)
        unevaluated = state.unevaluated and config.evaluates_after(state.step, total)
        log = RunLog(config, devices, state.step, evaluates=unevaluated)
        comparable = checkpoint.same_measure(state, fresh)
        selection, unconfirmed = Selection(config), None
        if comparable:
            selection, unconfirmed = _selected_before(config, state, log, devices, total)
        if selection.best is None and devices.is_main:
            checkpoint.set_aside_best(config.output_dir)
        doctor = Doctor(config, *((state.doctor, log.history) if comparable else ({}, [])), speaks=devices.is_main)
        ended = state.ended if config.on_hack != "warn" else ""
        if ended:
            doctor.say(ended)
        whole = state.step if ended else max(state.step, total)  # a finished run that is resumed has nothing left to do
        parts = objective, data, config, evaluator, devices, cut, optimizer, log, selection, doctor, fresh, shards
        return _Training(*parts, state.step, whole, ended, unevaluated, unconfirmed)

    def steps(self) -> Iterator[int]:
        """Take the remaining steps; gives the number of steps done after each."""
        seed, workers = self.config.seed, self.config.workers(self.devices.device.type)
        batches = self.data.batches(self.cut, seed=seed, start=self.start, stop=self.total_steps, num_workers=workers)
        for step in range(self.start, self.total_steps) if not self.ended else ():
            watch = Stopwatch()
            with watch.measure("data"):
                micro_batches = next(batches)
            self._step(step, micro_batches, watch)
            yield step + 1

    def _step(self, step: int, micro_batches: list[Batch], watch: Stopwatch) -> None:
        with watch.measure("collect"):
            experiences = self._collect(step, micro_batches)
        means, figures = Means(), dict[str, float]()
        for _ in range(self.objective.turns):
            with watch.measure("collect"):
                experiences = self._prepare(step, experiences)
            with watch.measure("update"), self.shards.without_advice():
                sums = self._backward(step, experiences, means)
                turn = self._apply(step, sums, means, micro_batches)
            # A part learns in one turn: in the others it adds neither loss nor gradient.
            share = 1 / self.objective.turns if self.objective.averages_turns else 1.0
            figures |= {
                k: v if k.startswith("learning_rate") else share * v + figures.get(k, 0.0) for k, v in turn.items()
            }
        done = step + 1
        if self._logs(done):
            figures |= self.data.figures(self.devices.gather_objects)
            self._write(done, {**means.result(self.devices), **figures, **watch.seconds})
        self.log.advance()

    def _logs(self, done: int) -> bool:
        """Whether a step gets a line: every ``logging_steps``, the last one, and before these the rest of a period."""
        here = range(done, done + self.objective.period)
        return any(step % self.config.logging_steps == 0 or step == self.total_steps for step in here)

    def _collect(self, step: int, micro_batches: list[Batch]) -> list[Any]:
        self.objective.eval()
        experiences = []
        reading = self.shards.gathered() if self.shards and self.objective.draws else nullcontext()
        with reading, torch.no_grad(), self.devices.autocast():
            for batch in micro_batches:
                # The same on every device and in every micro-batch: what is drawn is keyed by image.
                _seed_all(mix_seeds(self.config.seed, step))
                experiences.append(self.objective.collect(batch.to(self.devices.device), step))
            self.shards.turns.finish()
        return experiences

    def _prepare(self, step: int, experiences: list[Any]) -> list[Any]:
        self.objective.eval()
        with torch.no_grad(), self.devices.autocast():
            _seed_all(mix_seeds(self.config.seed, step, "prepare"))
            experiences = self.objective.prepare(experiences, self._gather)
            self.shards.turns.finish()
        return experiences

    def _gather(self, tensor: Tensor) -> Tensor:
        self.shards.turns.finish()
        return self.devices.gather(tensor)

    def _backward(self, step: int, experiences: list[Any], means: Means) -> Tensor:
        """``[loss, weight]`` summed over this device; gradients are left on the parameters, logged values in ``means``."""
        self.objective.train(self.config.dropout)
        sums = [torch.zeros(2, device=self.devices.device)]
        for experience in experiences:
            _seed_all(mix_seeds(self.config.seed, step, "losses"))
            pieces = iter(self.objective.losses(experience))
            while (piece := self._next(pieces)) is not None:
                if piece.loss.requires_grad:
                    piece.loss.backward()
                pair = piece.loss.detach(), piece.weight.detach()  # the weight may be counted on the CPU
                sums.append(torch.stack([value.to(self.devices.device, torch.float32) for value in pair]))
                means.add(piece.logs)
        return torch.stack(sums).cpu().double().sum(dim=0)

    def _next(self, pieces: Iterator[StepOutput]) -> StepOutput | None:
        # Only the forward pass runs under autocast, so the generator is advanced inside and back-propagated outside.
        with self.devices.autocast():
            return next(pieces, None)

    def _apply(self, step: int, sums: Tensor, means: Means, micro_batches: list[Batch]) -> dict[str, float]:
        parameters = self.optimizer.parameters
        loss, weight = self.devices.sum(sums).tolist()
        divisor = weight or 1.0  # every piece was on a scale of its own
        if self.shards:
            # They were averaged over devices when they were cut, piece by piece.
            self.optimizer.divide(divisor / self.devices.world_size)
        else:
            self.devices.sum_gradients(parameters)
            self.optimizer.divide(divisor)
        norms = self.optimizer.clip()
        figures = {"loss": loss / divisor}
        figures |= {f"grad_norm/{part}": float(norm) for part, norm in norms.items()}
        # A method that only ranks by the reward has a finite loss all the same, of a step in no direction.
        nonsense = self.devices.any(means.not_finite("reward"))
        if nonsense or not np.isfinite(list(figures.values())).all():
            self._refuse(step + 1, figures | means.result(self.devices), micro_batches)
        rates = self.optimizer.step(step)
        return figures | {f"learning_rate/{part}": rate for part, rate in rates.items()}

    def _refuse(self, step: int, figures: dict[str, float], micro_batches: list[Batch]) -> None:
        ids = self.devices.gather_objects([list(batch.ids) for batch in micro_batches])
        self._write(step, figures | {NON_FINITE: 1.0})
        raise refuse(step, figures, ids, self.config.output_dir, writes=self.devices.is_main)

    def finish_step(self, step: int, stop: bool) -> None:
        """Evaluate and save where due, once ``step`` steps are done.

        A run that is to stop saves at once: who asked for it may not wait for an evaluation, which the resumed run does first.
        """
        last, made_up = step == self.total_steps, self.unevaluated
        evaluates = self.config.evaluates_after(step, self.total_steps)
        self.unevaluated = evaluates and stop and not last
        if evaluates and not self.unevaluated:
            self.evaluate(step)
            self._end_if_hacked(step)
        if not self.unevaluated:
            self._confirm_best(step)
        if last or stop or made_up or self.ended or (self.config.save_steps and step % self.config.save_steps == 0):
            self._save(step, f"checkpoint-{step}")
            if self.devices.is_main:
                checkpoint.prune(self.config.output_dir, self.config.save_total_limit)

    def _confirm_best(self, step: int) -> None:
        """See that ``best/`` is not one of before a kill that this run, once it has come to that step again, did not select."""
        over = step == self.total_steps or bool(self.ended)
        if self.unconfirmed is None or (step < self.unconfirmed and not over):
            return
        self.unconfirmed = None
        if self.devices.from_main(self._best_is_there() if self.devices.is_main else None):
            return
        self.selection.best = None
        if self.devices.is_main:
            checkpoint.set_aside_best(self.config.output_dir)

    def _best_is_there(self) -> bool:
        best = self.selection.best
        return best is not None and checkpoint.step_of(self.config.output_dir / "best") == best.step

    def evaluate(self, step: int) -> None:
        """Evaluate, log, and keep a copy of the model if it is the best so far."""
        if self.evaluator is None:
            return
        self.objective.eval()
        metrics: dict[str, float] | None = None
        with self.shards.gathered(references=True):
            if self.devices.is_main:
                metrics = self._evaluated(self.evaluator)
            self.shards.turns.finish()
            metrics = self.devices.from_main(metrics)
        assert metrics is not None
        self._write(step, {f"eval_{k.removeprefix('eval_')}": v for k, v in metrics.items()})
        # A run that is to end when hacked does not choose what it would be ended for; the start model takes part always.
        hacked = self.config.on_hack != "warn" and step > 0 and self.doctor.hacked > 0
        if not hacked and self.selection.offer(step, metrics):
            self._save(step, "best")

    def _evaluated(self, evaluator: Evaluate) -> dict[str, float]:
        own = [self.devices.device] if self.devices.device.type == "cuda" else []
        with torch.random.fork_rng(own), torch.no_grad(), _precision(self.config, self.devices):
            _seed_all(mix_seeds(self.config.seed, "evaluate"))
            return {name: float(value) for name, value in evaluator(self.objective).items()}

    def _end_if_hacked(self, step: int) -> None:
        """End the run where ``on_hack`` asks for it; to roll back, the weights and optimiser of ``best/`` are put back."""
        if not self.devices.from_main(self.doctor.must_end):
            return
        best, folder = self.selection.best, self.config.output_dir / "best"
        back = best if self.config.on_hack == "rollback" and self._best_is_there() else None
        if back is not None:
            checkpoint.load(folder, self.optimizer)
            self.log.write(step, self._epoch(step), {ROLLED_BACK: float(back.step)})
        self.ended = self.doctor.conclude(step, back)
        self.doctor.say(self.ended)

    def _write(self, step: int, values: dict[str, float]) -> None:
        self.log.write(step, self._epoch(step), values | self.doctor.look(step, values))

    def _save(self, step: int, name: str) -> None:
        self.data.figures(self.devices.gather_objects)  # what was replaced since the last log counts on when resumed
        state = replace(
            self.fresh,
            step=step,
            epoch=self._epoch(step),
            selection=self.selection.state(),
            doctor=self.doctor.state(),
            ended=self.ended,
            unevaluated=self.unevaluated,
        )
        if self.devices.is_main:
            self.log.flush()
        try:
            self._write_checkpoint(self.config.output_dir / name, state)
        except NonFiniteError:
            self._write(step, {NON_FINITE: 1.0})
            raise
        # Without a checkpoint there is nothing to resume from, and a run that is killed begins anew.
        if self.devices.is_main and (name != "best" or checkpoints(self.config.output_dir)):
            write_json(self.config.output_dir / STATE_FILE, vars(state), durable=True)
        self.devices.wait()

    def _write_checkpoint(self, folder: Path, state: State) -> None:
        if self.config.shard != "none":
            # Folders that plain transformers loads are for what is used later: gathering them takes the memory of all weights.
            used = folder.name == "best" or state.step == self.total_steps or bool(self.ended)
            checkpoint.save_together(folder, self.optimizer, state, self.shards, self.devices, loadable=used)
        elif self.devices.is_main:
            checkpoint.save(folder, self.optimizer, state)

    def _epoch(self, step: int) -> float:
        return step * self.cut.effective_batch_size / len(self.data)


def _selected_before(
    config: TrainConfig, state: State, log: RunLog, devices: Devices, total: int
) -> tuple[Selection, int | None]:
    """The selection that a resumed run continues, and the step in ``best/`` where it is a later one than that."""
    selection = Selection(config, state.selection)
    if selection.best is None:
        return selection, None
    if not devices.from_main(selection.keeps_floor(log.evaluation_of(selection.best.step))):
        selection.best = None  # best_floor was raised since
        return selection, None
    held = devices.from_main(checkpoint.keep_best(config, state, total) if devices.is_main else None)
    unconfirmed = held if held != selection.best.step else None
    selection.best = selection.best if held is not None else None
    return selection, unconfirmed


def _put_back(config: TrainConfig, devices: Devices) -> None:
    """Have what a killed process was about to replace in its place, before any process looks there."""
    if devices.is_main:
        checkpoint.put_back_replaced(config.output_dir)
    devices.wait()


def _seed_all(seed: int) -> None:
    seed_torch(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _precision(config: TrainConfig, devices: Devices) -> AbstractContextManager[Any]:
    """What a captioner is read in between steps: the layers of a sharded one are in bfloat16 where ``bf16`` is set."""
    return nullcontext() if config.shard == "none" else devices.autocast()
