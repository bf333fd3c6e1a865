"""The folder of a discriminator: its weights, and what they are for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from tellapart.errors import UsageError
from tellapart.files import write_json

WEIGHTS, DESCRIPTION = "model.safetensors", "discriminator.json"


def write_folder(module: nn.Module, described: dict[str, Any], folder: Path) -> None:
    """Weights and description, into a folder that may exist."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(module, str(folder / WEIGHTS))
    write_json(folder / DESCRIPTION, {"format": 1, **described})


def read_description(folder: Path) -> dict[str, Any]:
    """``kind``, ``options`` and ``listener`` of a saved discriminator.

    Raises:
        UsageError: the folder holds none, or it cannot be read.
    """
    try:
        described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        return {name: described[name] for name in ("kind", "options", "listener")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder} holds no discriminator ({DESCRIPTION} cannot be read): give a folder that one was saved to, or a "
            "checkpoint with a discriminator/ in it."
        ) from error


def read_weights(module: nn.Module, expected: dict[str, Any], folder: Path) -> None:
    """Copy the folder's weights into ``module``.

    Args:
        module: what is read into.
        expected: what the folder must say of itself.
        folder: what :func:`write_folder` wrote.

    Raises:
        UsageError: they are missing or damaged, or are of another kind, of other options or for another listener.
    """
    found = read_description(folder)
    for name, what in (("kind", "kind"), ("options", "options"), ("listener", "listener (a hash of its weights)")):
        if found[name] != expected[name]:
            raise UsageError(
                f"{folder} holds a discriminator of another {what}, {_short(found[name])} instead of "
                f"{_short(expected[name])}: use it with what it was trained with, or train a new one."
            )
    try:
        load_model(module, str(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UsageError(f"{folder / WEIGHTS} cannot be read: restore it, or train the discriminator anew.") from error


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) else json.dumps(value)
