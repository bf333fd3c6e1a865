"""Adapters (LoRA) of a recipe, checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.recipe.sections import LoraSection
    from tellapart.training.config import TrainConfig


def check_adapter_dropout(adapters: Mapping[str, LoraSection | None], training: TrainConfig) -> None:
    """Raise where adapters have dropout and the training switches it off.

    Args:
        adapters: by the name of their section, such as ``captioner.lora``.
        training: whose ``dropout`` holds for all parts.

    Raises:
        UsageError: naming both options.
    """
    for name, section in adapters.items():
        if section is not None and section.dropout and not training.dropout:
            raise UsageError(
                f"{name}.dropout is {section.dropout:g}, but dropout is off in training: set training.dropout to true, or leave "
                f"{name}.dropout out."
            )
