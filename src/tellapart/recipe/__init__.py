"""Recipes: one description of a training, read, checked, built and run."""

from __future__ import annotations

from typing import Any

__all__ = ["ListenerRecipe", "Recipe"]


def __getattr__(name: str) -> Any:
    """The two kinds of recipes, imported on first use."""
    if name == "Recipe":
        from tellapart.recipe.recipe import Recipe

        return Recipe
    if name == "ListenerRecipe":
        from tellapart.recipe.listener import ListenerRecipe

        return ListenerRecipe
    raise AttributeError(f"module 'tellapart.recipe' has no attribute {name!r}")
