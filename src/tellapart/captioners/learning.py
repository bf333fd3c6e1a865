"""The weights of a model that train, and whether its activations are kept or computed again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tellapart.captioners.families.base import Family
from tellapart.errors import UsageError

Train = Literal["decoder", "bridge", "all"] | Sequence[str]
"""All but the image tower; every part between the image tower and a language model, which both stay frozen; everything; or a list
of such parts by name."""


def freeze(family: Family, train: Train, *, adapted: bool = False) -> None:
    """Freeze what is not to learn, and the parameters that no caption loss reaches, so that no optimiser or reducer waits for
    their gradient.

    Args:
        family: its model is changed.
        train: what learns.
        adapted: whether the model carries adapters. These keep learning, parts that ``train`` names learn with them, and all else
            is frozen.

    Raises:
        UsageError: the choice is unknown, or this family lacks a part.
    """
    if isinstance(train, str) and train not in ("decoder", "bridge", "all"):
        raise UsageError(
            f"train={train!r} is unknown: choose 'decoder' (all but the image tower), 'bridge' (what joins it to a language "
            "model), 'all', or a list of parts."
        )
    if train not in ("decoder", "all"):
        _freeze_all_but(parts_to_train(family, train), family, adapted=adapted)
    unused = re.compile(family.never_used(family.model.config))
    for name, parameter in family.model.named_parameters():
        if unused.match(name):
            parameter.requires_grad_(False)
    if train == "decoder" and not adapted:
        family.vision.requires_grad_(False)


def parts_to_train(family: Family, train: Train) -> tuple[str, ...]:
    """The parts between image tower and language model that a choice names, in the family's order; none for ``decoder`` and
    ``all``.

    Raises:
        UsageError: this family lacks one of them, or the list is empty.
    """
    if train in ("decoder", "all"):
        return ()
    kind, parts = family.model.config.model_type, family.parts
    if train == "bridge":
        if not parts:
            raise UsageError(
                f"train='bridge' needs a model with a part between image tower and language model, such as BLIP-2's Q-Former, "
                f"and {kind} has none: choose 'decoder'."
            )
        return tuple(parts)
    unknown = next((name for name in train if name not in parts), None)
    if unknown is not None or not train:
        named = "names no part" if unknown is None else f"names {unknown!r}"
        if not parts:
            but = "and" if unknown is None else "but"
            raise UsageError(f"train {named}, {but} {kind} has no parts that train alone: choose 'decoder' or 'all'.")
        raise UsageError(f"train {named}, but {kind} has {', '.join(parts)}: name one or several of these.")
    return tuple(name for name in parts if name in train)


def weights_of(family: Family, parts: Sequence[str]) -> Mapping[str, Any]:
    """Full name -> parameter of some parts of a family."""
    pattern = re.compile("|".join(f"(?:{family.parts[name]})" for name in parts) or r"(?!)")
    return {name: value for name, value in family.model.named_parameters() if pattern.fullmatch(name)}


def _freeze_all_but(parts: Sequence[str], family: Family, *, adapted: bool) -> None:
    """A model in half precision keeps what learns in float32, where steps of training are not rounded away."""
    if not adapted:  # else only adapters learn as yet
        family.model.requires_grad_(False)
    for parameter in weights_of(family, parts).values():
        parameter.requires_grad_(True)
        parameter.data = parameter.data.float() if parameter.dtype.itemsize < 4 else parameter.data


def checkpoint_layers(model: Any) -> None:
    """Have a model of transformers compute its layers again in the backward pass, where it is in train mode."""
    # transformers 5.23 renamed it and warns about the old name.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
