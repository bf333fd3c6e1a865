"""What of a model learns, and whether its activations are kept or computed again."""

from __future__ import annotations

import re
from typing import Any, Literal

from tellapart.captioners.families.base import Family
from tellapart.errors import UsageError

Train = Literal["decoder", "bridge", "all"]
"""All but the image tower; what stands between the image tower and a language model that stays as it is; everything."""


def freeze(family: Family, train: Train) -> None:
    """Freeze what is not to learn, and the parameters that no caption loss reaches, so that no optimiser or reducer waits for
    their gradient.

    Raises:
        UsageError: the choice is unknown, or this family has no bridge.
    """
    if train not in ("decoder", "bridge", "all"):
        raise UsageError(
            f"train={train!r} is unknown: choose 'decoder' (all but the image tower), 'bridge' (what joins it to a language "
            "model) or 'all'."
        )
    if train == "bridge":
        _freeze_all_but_bridge(family)
    unused = re.compile(family.never_used(family.model.config))
    for name, parameter in family.model.named_parameters():
        if unused.match(name):
            parameter.requires_grad_(False)
    if train == "decoder":
        family.vision.requires_grad_(False)


def _freeze_all_but_bridge(family: Family) -> None:
    """A model in half precision keeps what learns in float32, where steps of training are not rounded away."""
    if family.bridge is None:
        raise UsageError(
            f"train='bridge' needs a model with a part between image tower and language model, such as BLIP-2's Q-Former, and "
            f"{family.model.config.model_type} has none: choose 'decoder'."
        )
    for name, parameter in family.model.named_parameters():
        learns = re.fullmatch(family.bridge, name) is not None
        parameter.requires_grad_(learns)
        if learns:
            parameter.data = parameter.data.float() if parameter.dtype.itemsize < 4 else parameter.data


def checkpoint_layers(model: Any) -> None:
    """Have a model of transformers compute its layers again on the way back, where it is in train mode."""
    # transformers 5.23 renamed it and warns about the old name.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
