"""What of a model learns, and whether its activations are kept or computed again."""

from __future__ import annotations

import re
from typing import Any

from tellapart.captioners.families.base import Family


def freeze(family: Family, *, vision: bool) -> None:
    """Freeze the parameters that no caption loss reaches, so that no optimiser or reducer waits for their gradient.

    Args:
        family: the model.
        vision: whether the image tower is frozen, too.
    """
    unused = re.compile(family.never_used(family.model.config))
    for name, parameter in family.model.named_parameters():
        if unused.match(name):
            parameter.requires_grad_(False)
    if vision:
        family.vision.requires_grad_(False)


def checkpoint_layers(model: Any) -> None:
    """Have a model of transformers compute its layers again on the way back, where it is in train mode."""
    # transformers 5.23 renamed it and warns about the old name.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
