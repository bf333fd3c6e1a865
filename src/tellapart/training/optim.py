"""One optimiser for all parts of an objective: each has its own learning rate and its own clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from tellapart.errors import UsageError
from tellapart.training.config import TrainConfig
from tellapart.training.sharding import whole

_COURSES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def learning_rate_factor(
    kind: str, step: int, total: int, warmup: float, *, interval: Fraction | None = None, gamma: float = 1.0
) -> float:
    """Factor of the highest learning rate at step ``step``, counted from 0.

    Equal to Hugging Face's ``get_scheduler`` of that name. ``step``, which it lacks, is torch's ``StepLR``:
    ``gamma ** floor(step / interval)``, warm-up on top.

    Args:
        kind: ``constant``, ``linear``, ``cosine`` or ``step``.
        step: of the optimiser.
        total: steps of the run.
        warmup: steps; below 1 a fraction of ``total``.
        interval: of ``step``, in steps, exact: a float would miss a boundary.
        gamma: of ``step``.
    """
    warmup = math.ceil(warmup * total) if warmup < 1 else warmup
    fallen = 1.0 if interval is None else gamma ** (step // interval)
    if step < warmup:
        return fallen * step / warmup
    if interval is not None:
        return fallen
    return _COURSES[kind](min(1.0, (step - warmup) / max(1, total - warmup)))


def trained_parts(objective: nn.Module) -> dict[str, nn.Module]:
    """Name -> child of the objective that has something to learn, in the order of definition.

    Raises:
        UsageError: nothing can learn.
        ValueError: the objective holds parameters itself, outside its children.
    """
    if any(parameter.requires_grad for parameter in objective.parameters(recurse=False)):
        raise ValueError("an objective's own parameters belong to no child: wrap them in a module of their own")
    parts = {name: child for name, child in objective.named_children() if trainable(child)}
    if not parts:
        raise UsageError(
            f"{type(objective).__name__} has no trainable parameter: train at least one part of the captioner."
        )
    return parts


def trainable(module: nn.Module) -> dict[str, Parameter]:
    """Name -> parameter that learns; a shared one appears once."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def require_full_precision(parts: dict[str, dict[str, Parameter]]) -> None:
    """Raise where weights in half precision are to learn: most steps are smaller than their rounding, and are lost.

    Raises:
        UsageError: naming the first such weight.
    """
    for part, named in parts.items():
        for name, parameter in named.items():
            if parameter.dtype in (torch.bfloat16, torch.float16):
                held = str(parameter.dtype).removeprefix("torch.")
                raise UsageError(
                    f"{part}.{name} is held in {held}, which rounds most steps of training away: load the model with "
                    "dtype float32 (bf16=true still computes in bfloat16), or train a LoRA adapter."
                )


def clip_gradients(
    parts: dict[str, Sequence[Parameter]], max_norm: dict[str, float], max_value: dict[str, float]
) -> dict[str, Tensor]:
    """Clip each part's gradients on its own, and return the norm each had before.

    Args:
        parts: name -> parameters.
        max_norm: name -> largest L2 norm over all parameters of that part; 0 or absent clips nothing.
        max_value: name -> largest magnitude of an entry; a part named here is not clipped by norm.
    """
    norms = {}
    for name, parameters in parts.items():
        learning = [parameter for parameter in parameters if parameter.grad is not None]
        norms[name] = whole(nn.utils.get_total_norm([p.grad for p in learning if p.grad is not None]))
        if max_value.get(name) and learning:  # torch refuses an empty list, that of a part whose turn it is not
            nn.utils.clip_grad_value_(learning, max_value[name])
        elif max_norm.get(name):
            nn.utils.clip_grads_with_norm_(learning, max_norm[name], norms[name])
    return norms


@dataclass(frozen=True)
class Settings:
    """The options of a run that may differ between parts, spelled out for each part.

    Raises:
        UsageError: an option names a part that does not learn, or a learning rate is missing.
    """

    learning_rate: dict[str, float]
    max_norm: dict[str, float]
    max_value: dict[str, float]

    @staticmethod
    def of(config: TrainConfig, names: Sequence[str]) -> Settings:
        """The options of ``config`` for the parts ``names``."""
        rates = _per_part("learning_rate", config.learning_rate, names)
        for name in names:
            if name not in rates:
                raise UsageError(f"learning_rate={config.learning_rate} leaves out {name!r}: add a number for it.")
        return Settings(
            rates,
            _per_part("max_grad_norm", config.max_grad_norm, names),
            _per_part("max_grad_value", config.max_grad_value, names),
        )


def _per_part(option: str, value: float | dict[str, float] | None, names: Sequence[str]) -> dict[str, float]:
    if not isinstance(value, dict):
        return {} if value is None else dict.fromkeys(names, value)
    for name in value:
        if name not in names:
            raise UsageError(f"{option} names {name!r}, which does not learn: the parts are {', '.join(names)}.")
    return value


class Optimizer:
    """AdamW with one parameter group for each part, whose learning rates follow from the step alone.

    Args:
        objective: the module whose children are trained.
        config: the run's options.
        total_steps: length of the run, which the learning rate's course is stretched to.
        lr_interval: steps between two changes of the learning rate (``TrainConfig.lr_interval``).

    Raises:
        UsageError: see ``Settings``, ``trained_parts`` and ``require_full_precision``.
    """

    def __init__(
        self, objective: nn.Module, config: TrainConfig, total_steps: int, lr_interval: Fraction | None = None
    ) -> None:
        self.modules = trained_parts(objective)
        self.settings = Settings.of(config, list(self.modules))
        self.parts = _without_repeats(self.modules)
        require_full_precision(self.parts)
        self._factor = lambda step: learning_rate_factor(
            config.lr_scheduler_type,
            step,
            total_steps,
            config.warmup_steps,
            interval=lr_interval,
            gamma=config.lr_step_gamma or 1.0,
        )
        # One pass over the parameters. Torch's default makes one per operation of the update: on a CPU ten times as long.
        kinds = {parameter.device.type for parameter in self.parameters}
        cut = "cpu" in kinds and any(isinstance(parameter, DTensor) for parameter in self.parameters)
        self._fused = kinds in ({"cuda"}, {"cpu"}) and not cut
        self._adamw = torch.optim.AdamW(
            [{"params": list(named.values()), "name": part} for part, named in self.parts.items() if named],
            fused=self._fused or None,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
        )

    @property
    def parameters(self) -> list[Parameter]:
        """Every parameter that learns, once."""
        return [parameter for named in self.parts.values() for parameter in named.values()]

    def divide(self, divisor: float) -> None:
        """Divide all gradients."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if gradients:
            torch._foreach_div_(gradients, divisor)

    def clip(self) -> dict[str, Tensor]:
        """Clip each part; returns the norms before (see ``clip_gradients``)."""
        parts: dict[str, Sequence[Parameter]] = {part: list(named.values()) for part, named in self.parts.items()}
        return clip_gradients(parts, self.settings.max_norm, self.settings.max_value)

    def step(self, step: int) -> dict[str, float]:
        """Apply the gradients as step ``step``, counted from 0, and drop them; returns each part's learning rate."""
        rates = {part: rate * self._factor(step) for part, rate in self.settings.learning_rate.items()}
        for group in self._adamw.param_groups:
            group["lr"] = rates[group["name"]]
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        return rates

    def state(self) -> dict[str, dict[str, Tensor]]:
        """``part.parameter`` -> AdamW's tensors for it; a parameter never used has none."""
        states = {}
        for part, named in self.parts.items():
            for name, parameter in named.items():
                if parameter in self._adamw.state:
                    states[f"{part}.{name}"] = dict(self._adamw.state[parameter])
        return states

    def expect(self, names: Collection[str]) -> None:
        """Make room for the states of these names, ``part.parameter.key``: zeros, to be read into.

        Raises:
            UsageError: a name is of a parameter that this objective does not train.
        """
        known = {f"{part}.{name}": p for part, named in self.parts.items() for name, p in named.items()}
        self._adamw.state.clear()
        for name in names:
            owner, _, key = name.rpartition(".")
            if owner not in known:
                raise _unknown(owner)
            parameter = known[owner]
            scalar = torch.zeros((), device=self._counted(parameter))
            self._adamw.state[parameter][key] = scalar if key == "step" else torch.zeros_like(parameter.detach())

    def _counted(self, parameter: Parameter) -> torch.device:
        """Where AdamW keeps its step count, in float32 whatever the parameter is: on the CPU unless it is fused."""
        return parameter.device if self._fused else torch.device("cpu")

    def load_state(self, states: dict[str, dict[str, Tensor]]) -> None:
        """Take back what ``state`` gave.

        Raises:
            UsageError: it is of parameters that this objective does not train, or of other shapes.
        """
        known = {f"{part}.{name}": p for part, named in self.parts.items() for name, p in named.items()}
        self._adamw.state.clear()  # a parameter that had no state then has none now
        for name, state in states.items():
            if name not in known or state["exp_avg"].shape != known[name].shape:
                raise _unknown(name)
            parameter = known[name]
            counted = self._counted(parameter)
            self._adamw.state[parameter] = {
                key: value.to(counted) if key == "step" else value.to(parameter.device, parameter.dtype)
                for key, value in state.items()
            }


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"the checkpoint's optimiser states hold {name}, which this run does not train in that shape: resume with the model and "
        "the objective of the run that wrote it."
    )


def _without_repeats(modules: dict[str, nn.Module]) -> dict[str, dict[str, Parameter]]:
    """Part -> its parameters by name; one shared between parts belongs to the first."""
    seen: set[int] = set()
    parts: dict[str, dict[str, Parameter]] = {}
    for part, module in modules.items():
        parts[part] = {name: p for name, p in trainable(module).items() if id(p) not in seen}
        seen.update(map(id, parts[part].values()))
    return parts
