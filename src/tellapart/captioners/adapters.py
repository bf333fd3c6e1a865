"""Low-rank adapters on a captioner's text side or image tower."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from tellapart.errors import UsageError
from tellapart.ranges import PositiveFloat, PositiveInt, require_fields

if TYPE_CHECKING:
    from tellapart.captioners.families.base import Family


Tower = Literal["text", "image"]


@dataclass(frozen=True)
class LoraOptions:
    """Low-rank adaptation (Hu et al., ICLR 2022): the base stays frozen, each targeted projection gets a rank-r update.

    Args:
        r: rank of the update.
        alpha: the update is scaled by ``alpha / r``.
        dropout: dropout before the update, in train mode only.
        target_modules: regular expression that must match whole module names; none takes the family's own, which names
            projections of the side that ``tower`` says.
        tower: the side that is adapted: ``text`` (everything but the image tower) or ``image``.

    Raises:
        ValueError: a number is outside its range; ``dropout`` is to be in [0, 1).
    """

    r: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    dropout: float = 0.0
    target_modules: str | None = None
    tower: Tower = "text"

    def __post_init__(self) -> None:
        require_fields(self)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout!r} must be in [0, 1)")


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
        UsageError: the targets match nothing, or something on the other side.
    """
    from peft import LoraConfig, get_peft_model

    targets = options.target_modules or _usual_targets(family, options.tower)
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
        except re.error as error:
            raise UsageError(
                f"LoRA target_modules={targets!r} is not a regular expression ({error}): correct it."
            ) from error
    check_targets(family, targets, options.tower)
    return adapted


def _usual_targets(family: Family, tower: Tower) -> str:
    if tower == "text":
        return family.lora_targets
    if family.vision_lora_targets is None:
        raise UsageError(
            f"lora.tower is image, but the projections of a {family.model.config.model_type} captioner's image tower are not "
            "known: name them in lora.target_modules."
        )
    return family.vision_lora_targets


def load_lora(family: Family, folder: Path) -> Any:
    """The adapter saved in ``folder`` on the family's model, ready to train on.

    Raises:
        UsageError: it sits on both sides, text and image tower.
    """
    from peft import PeftModel

    with _without_advice():
        adapted = PeftModel.from_pretrained(family.model, str(folder), is_trainable=True)
    tower = {id(module) for module in family.vision.modules()}
    inside = all(id(module) in tower for module in adapted_modules(family.model).values())
    check_targets(family, f"those of {folder}", "image" if inside else "text")
    return adapted


def adapted_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Name -> module, of every module that carries an adapter."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}


def check_targets(family: Family, targets: str, tower: Tower) -> None:
    """Refuse adapters that are nowhere, or on the other side (a bare name like ``q_proj`` ends up in the image tower silently).

    Raises:
        UsageError: naming the first misplaced module.
    """
    adapted = adapted_modules(family.model)
    if not adapted:
        raise UsageError(f"LoRA target_modules={targets!r} match no module of this model: correct them.")
    image = {id(module) for module in family.vision.modules()}
    wrong = [name for name, module in adapted.items() if (id(module) in image) != (tower == "image")]
    if wrong and tower == "text":
        raise UsageError(
            f"LoRA target_modules={targets!r} match {wrong[0]!r} in the image tower: anchor them to the text side, "
            f"as in {family.lora_targets!r}, or set lora.tower to image."
        )
    if wrong:
        raise UsageError(
            f"LoRA target_modules={targets!r} match {wrong[0]!r}, which is not in the image tower: anchor them to that, or set "
            "lora.tower to text."
        )


def is_untrained(model: nn.Module) -> bool:
    """Whether every adapter still adds exactly nothing."""
    return all(
        not bool(weight.weight.any())
        for module in adapted_modules(model).values()
        for weight in getattr(module, "lora_B", {}).values()
    )
