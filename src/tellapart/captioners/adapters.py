"""Low-rank adapters on a captioner's text side."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.captioners.families.base import Family


@dataclass(frozen=True)
class LoraOptions:
    """Low-rank adaptation (Hu et al., ICLR 2022): the base stays frozen, each targeted projection gets a rank-r update.

    Args:
        r: rank of the update.
        alpha: the update is scaled by ``alpha / r``.
        dropout: dropout before the update, in train mode only.
        target_modules: regular expression that must match whole module names; none takes the family's own, which names
            text-side projections only.

    Raises:
        ValueError: ``r`` or ``alpha`` is not positive, or ``dropout`` not in [0, 1).
    """

    r: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: str | None = None

    def __post_init__(self) -> None:
        if self.r < 1 or self.alpha <= 0 or not 0 <= self.dropout < 1:
            raise ValueError(f"LoRA needs r >= 1, alpha > 0 and dropout in [0, 1), not {self}")


def adapted(family: Family, lora: LoraOptions | None, folder: Path | None) -> Any:
    """The family's model, in a ``PeftModel`` if a new adapter or one saved in ``folder`` is to be trained.

    Raises:
        UsageError: both are given, or the model of a new adapter could not be found again.
    """
    if lora and folder:
        raise UsageError(f"{folder} already is a LoRA adapter: leave lora out to continue training it.")
    if lora and not family.model.name_or_path:
        raise UsageError("lora needs a model that can be found again: save it to a folder and load it from there.")
    if lora:
        return add_lora(family, lora)
    return load_lora(family, folder) if folder else family.model


@contextmanager
def _without_advice() -> Iterator[None]:
    with warnings.catch_warnings():
        # GPT-2's Conv1D stores its weight transposed: peft notices, corrects the setting and says so for every layer.
        warnings.filterwarnings("ignore", message="fan_in_fan_out")
        # peft asks transformers 5.23 by a name that it deprecated.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        yield


def add_lora(family: Family, options: LoraOptions) -> Any:
    """A new adapter on the family's model, which is changed in place; returns the ``PeftModel`` around it.

    Raises:
        UsageError: the targets match nothing, or something outside the text side.
    """
    from peft import LoraConfig, get_peft_model

    targets = options.target_modules or family.lora_targets
    config = LoraConfig(
        r=options.r,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=targets,
        bias="none",
    )
    with _without_advice():
        try:
            adapted = get_peft_model(family.model, config)
        except ValueError as error:
            raise UsageError(f"LoRA target_modules={targets!r} match no module of this model: correct them.") from error
    check_targets(family, targets)
    return adapted


def load_lora(family: Family, folder: Path) -> Any:
    """The adapter saved in ``folder`` on the family's model, ready to train on.

    Raises:
        UsageError: it reaches into the image tower.
    """
    from peft import PeftModel

    with _without_advice():
        adapted = PeftModel.from_pretrained(family.model, str(folder), is_trainable=True)
    check_targets(family, f"those of {folder}")
    return adapted


def adapted_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Name -> module, of every module that carries an adapter."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}


def check_targets(family: Family, targets: str) -> None:
    """Refuse adapters that are nowhere, or in the image tower (where a bare name like ``q_proj`` ends up silently).

    Raises:
        UsageError: naming the first misplaced module.
    """
    adapted = adapted_modules(family.model)
    if not adapted:
        raise UsageError(f"LoRA target_modules={targets!r} match no module of this model: correct them.")
    tower = {id(module) for module in family.vision.modules()}
    outside = [name for name, module in adapted.items() if id(module) in tower]
    if outside:
        raise UsageError(
            f"LoRA target_modules={targets!r} match {outside[0]!r} in the image tower: anchor them to the text side, "
            f"as in {family.lora_targets!r}."
        )


def is_untrained(model: nn.Module) -> bool:
    """Whether every adapter still adds exactly nothing."""
    return all(
        not bool(weight.weight.any())
        for module in adapted_modules(model).values()
        for weight in getattr(module, "lora_B", {}).values()
    )
