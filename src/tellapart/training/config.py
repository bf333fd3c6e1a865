"""The options of a training run. Imports no torch, so that the command line can show them at once."""

import math
import os
import sys
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from tellapart.errors import UsageError
from tellapart.ranges import (
    HalfOpenUnitFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    require_fields,
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How an objective is trained; the names are those of Hugging Face's and TRL's trainers.

    Options that take a number or a mapping may differ for each part of the objective that learns, such as
    ``{captioner: 1e-6, discriminator: 1e-4}``.

    Args:
        output_dir: Folder for checkpoints, metrics and the description of the run.
        learning_rate: Highest learning rate of AdamW, one number or one for each part that learns.
        max_steps: Optimiser steps in total; overrides ``num_train_epochs``.
        num_train_epochs: Passes over the images, used when ``max_steps`` is not given; fractions are allowed.
        per_device_train_batch_size: Images in a micro-batch on each device.
        gradient_accumulation_steps: Micro-batches whose gradients are added up before an optimiser step.
        warmup_steps: Steps over which the learning rate rises from 0; below 1 it is a fraction of all steps.
        lr_scheduler_type: Learning rate after warm-up: constant, falling to 0 linearly or along half a cosine, or multiplied by
            a factor at equal intervals (step).
        lr_step_epochs: Interval of ``lr_scheduler_type: step`` in passes over the images, counted from the start of the run.
        lr_step_size: The same interval in optimiser steps, instead of ``lr_step_epochs``.
        lr_step_gamma: Factor that ``lr_scheduler_type: step`` multiplies the learning rate by.
        weight_decay: Decoupled weight decay of AdamW, applied to every trained parameter.
        adam_beta1: Decay of AdamW's mean of gradients.
        adam_beta2: Decay of AdamW's mean of squared gradients.
        adam_epsilon: Added to AdamW's denominator.
        max_grad_norm: Clip the gradient of each part that learns to this L2 norm; 0 switches clipping off.
        max_grad_value: Clip each gradient entry to this magnitude, instead of the norm, in the parts it is given for.
        bf16: Compute in bfloat16 by torch's autocast; weights keep their precision.
        shard: Cut the captioner between the processes of a launch (FSDP2): gradients and optimiser states (grad_op), or its
            weights too (full). Both cut large frozen models. none keeps copies on every device; see docs/how-to/scale.md.
        dropout: Keep dropout on during training. Off by default, because captions are sampled without it. With it the weights
            depend on how steps are cut into micro-batches.
        eval_steps: Evaluate every N steps, and at the start and the end; null evaluates at the start and the end only.
        save_steps: Write a checkpoint every N steps, and at the end; null writes one at the end only.
        save_total_limit: Keep only the newest N checkpoints; ``best/`` is never removed.
        logging_steps: Write a line to ``metrics.jsonl`` every N steps; where parts learn in turns, one for the last step of each.
        seed: Decides the order of images and all sampling.
        resume_from_checkpoint: ``last`` (or true) for the newest checkpoint in ``output_dir``, or the folder of one.
        report_to: Where metrics go besides ``metrics.jsonl``.
        dataloader_num_workers: Processes that read images ahead; 0 reads them in the main one. null takes 4 on CUDA (fewer with
            fewer processors), and 0 on a CPU or outside Linux.
        metric_for_best_model: Evaluation metric that selects ``best/``, with or without ``eval_``.
        greater_is_better: Whether a higher value of ``metric_for_best_model`` is better.
        best_floor: Fraction of a metric's value at step 0 that a checkpoint must keep to be selected, such as
            ``{CIDEr: 0.6}``; 1 or more of a metric that is negative there.
        on_hack: What to do once evaluations show reward hacking (docs/how-to/doctor.md): print a warning (warn), end the run
            (stop), or end it with the weights of ``best/`` (rollback).
        hack_patience: Evaluations in a row that must show reward hacking before ``on_hack`` acts.

    Raises:
        UsageError: a value cannot be used.
    """

    output_dir: Path
    learning_rate: PositiveFloat | dict[str, PositiveFloat] = 1e-5
    max_steps: PositiveInt | None = None
    num_train_epochs: PositiveFloat = 1.0
    per_device_train_batch_size: PositiveInt = 8
    gradient_accumulation_steps: PositiveInt = 1
    warmup_steps: NonNegativeFloat = 0
    lr_scheduler_type: Literal["constant", "linear", "cosine", "step"] = "constant"
    lr_step_epochs: PositiveFloat | None = None
    lr_step_size: PositiveInt | None = None
    lr_step_gamma: PositiveFloat | None = None
    weight_decay: NonNegativeFloat = 0.0
    adam_beta1: HalfOpenUnitFloat = 0.9
    adam_beta2: HalfOpenUnitFloat = 0.999
    adam_epsilon: PositiveFloat = 1e-8
    max_grad_norm: NonNegativeFloat | dict[str, NonNegativeFloat] | None = 1.0
    max_grad_value: NonNegativeFloat | dict[str, NonNegativeFloat] | None = None
    bf16: bool = False
    shard: Literal["none", "grad_op", "full"] = "none"
    dropout: bool = False
    eval_steps: PositiveInt | None = None
    save_steps: PositiveInt | None = None
    save_total_limit: PositiveInt | None = None
    logging_steps: PositiveInt = 10
    seed: int = 42
    resume_from_checkpoint: bool | str | None = None
    report_to: Literal["none", "tensorboard", "wandb", "trackio"] = "none"
    dataloader_num_workers: NonNegativeInt | None = None
    metric_for_best_model: str | None = None
    greater_is_better: bool = True
    best_floor: dict[str, float] = field(default_factory=dict)
    on_hack: Literal["warn", "stop", "rollback"] = "warn"
    hack_patience: PositiveInt = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_dir", Path(self.output_dir))
        for name, value in vars(self).items():
            object.__setattr__(self, name, _plain(value))
        try:
            require_fields(self)
        except ValueError as error:
            raise UsageError(f"{error}.") from None
        for name, value in vars(self).items():
            numbers = value.values() if isinstance(value, dict) else [value]
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                raise UsageError(f"{name}={value!r} must be finite.")
        self._require_floor()
        self._require_step_options()
        self._require_metric()
        if self.on_hack != "warn" and self.eval_steps is None:
            raise UsageError(f"on_hack={self.on_hack!r} acts on evaluations during training: set eval_steps too.")
        if self.on_hack == "rollback" and self.metric_for_best_model is None:
            raise UsageError("on_hack='rollback' goes back to the best checkpoint: set metric_for_best_model too.")

    def evaluates_after(self, step: int, total: int) -> bool:
        """Whether a run of ``total`` steps evaluates once ``step`` of them are done."""
        return step == total or (self.eval_steps is not None and step % self.eval_steps == 0)

    def _require_metric(self) -> None:
        if self.metric_for_best_model is not None:
            return
        if self.best_floor:
            raise UsageError(f"best_floor={self.best_floor} selects nothing on its own: set metric_for_best_model too.")
        if not self.greater_is_better:
            raise UsageError("greater_is_better is for metric_for_best_model: set that too, or leave it out.")

    def _require_floor(self) -> None:
        shares = self.best_floor.values() if isinstance(self.best_floor, dict) else [None]
        if any(isinstance(share, bool) or not isinstance(share, int | float) for share in shares):
            raise UsageError(f"best_floor={self.best_floor!r} must be a mapping of metrics to fractions.")

    def _require_step_options(self) -> None:
        given = [name for name in _STEP_OPTIONS if getattr(self, name) is not None]
        if self.lr_scheduler_type != "step" and given:
            raise UsageError(
                f"{given[0]} belongs to lr_scheduler_type step, not to {self.lr_scheduler_type}: set lr_scheduler_type to "
                "step, or leave it out."
            )
        if self.lr_scheduler_type == "step" and (len(given) != 2 or self.lr_step_gamma is None):
            raise UsageError(
                "lr_scheduler_type step needs lr_step_gamma and one interval: set lr_step_epochs or lr_step_size, not both."
            )

    def workers(self, device: str) -> int:
        """Processes that read images ahead, where training is on a device of this type."""
        if self.dataloader_num_workers is not None:
            return self.dataloader_num_workers
        return min(4, os.cpu_count() or 1) if device == "cuda" and sys.platform == "linux" else 0

    def total_steps(self, images: int, effective_batch_size: int) -> int:
        """Optimiser steps of the whole run, for this many images and images per step."""
        if self.max_steps is not None:
            return self.max_steps
        # As it is written: a float's rounding may add a step.
        return max(1, math.ceil(Fraction(str(self.num_train_epochs)) * images / effective_batch_size))

    def lr_interval(self, images: int, effective_batch_size: int) -> Fraction | None:
        """Optimiser steps between two changes of ``lr_scheduler_type: step``, perhaps not whole; none for other types."""
        if self.lr_step_epochs is None:
            return None if self.lr_step_size is None else Fraction(self.lr_step_size)
        return Fraction(str(self.lr_step_epochs)) * images / effective_batch_size

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON can hold them."""
        return {**asdict(self), "output_dir": str(self.output_dir)}


_STEP_OPTIONS = ("lr_step_epochs", "lr_step_size", "lr_step_gamma")


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's, which JSON can hold."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value
