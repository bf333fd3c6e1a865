"""What of a recipe does not go with ``training.shard``, found before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.recipe.recipe import Recipe

RECURRENT = ("new/fc_lstm", "new/att2in2", "new/updown")
"""Captioners without layers that can be gathered one by one."""


def check_sharding(recipe: Recipe) -> None:
    """Raise where a recipe asks for shards of what cannot be cut.

    Raises:
        UsageError: naming the option to change.
    """
    shard = recipe.training.shard
    what = None if shard == "none" else not_shardable(recipe)
    if what is not None:
        raise UsageError(f"training.shard={shard} does not go with {what}: set training.shard to none.")


def not_shardable(recipe: Recipe) -> str | None:
    """What of the recipe keeps its captioner from being trained in shards, in words; none: nothing does."""
    captioner = recipe.captioner
    if captioner.quantization is not None:
        return f"captioner.quantization={captioner.quantization}, whose packed weights cannot be cut"
    if captioner.use_liger_kernel:
        return "captioner.use_liger_kernel, which reads the weights of the output embedding as a whole"
    if captioner.model_name_or_path in RECURRENT:
        return f"{captioner.model_name_or_path}, a recurrent captioner"
    for name, kind in recipe.catalogue.parts.items():
        if kind.learns and recipe.users(name) and recipe.parts.get(name) is not None:
            return f"{name}, which may train with the captioner"
    if recipe.kind.through_words or not getattr(recipe.kind.load(), "shards", False):
        return f"method {recipe.method}"
    return None
