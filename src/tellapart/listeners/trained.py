"""A listener as something that learns: what of it trains, and checkpoints that are listeners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import Parameter

from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.loading import complete, first_line
from tellapart.types import Batch

FOLDER = "listener"
"""Name of the listener's folder in a run and in its checkpoints."""

_VISION = ("vision_model", "visual_projection")


class TrainedListener(nn.Module):
    """The part of an objective that is a listener's model; its folder in a checkpoint loads as a listener, and in plain
    transformers.

    Args:
        listener: a ``ClipListener``, whose model is this module's child.
    """

    def __init__(self, listener: ClipListener) -> None:
        super().__init__()
        self.model: nn.Module = listener.model
        self.listener = listener

    def save(self, folder: Path) -> None:
        """Write what ``ClipListener.from_pretrained`` reads; replaces ``folder``."""
        self.listener.save(folder)

    def load_weights(self, folder: Path) -> None:
        """Read weights back in place.

        Raises:
            UsageError: they are missing, damaged, or of another model.
        """
        try:
            saved = complete(type(self.model), str(folder), "float32")
            self.model.load_state_dict(saved.state_dict())
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(
                f"{folder} lacks the weights of this listener ({first_line(error)}): resume with the model that wrote it."
            ) from error


def trained_folder(path: str | Path) -> str | Path:
    """Where the listener is that a run of ``train-listener`` has kept; ``path`` itself, if it is no such run."""
    folder = Path(path).expanduser() / FOLDER
    return folder if folder.is_dir() else path


def vision_parameters(listener: ClipListener) -> Iterator[Parameter]:
    """All that decides an image's embedding: the tower and, where it is a layer of its own, its projection."""
    for name in _VISION:
        part = getattr(listener.model, name, None)
        if part is not None:
            yield from part.parameters()


def freeze_vision(listener: ClipListener) -> None:
    """Let images keep their embeddings; only the text side and the temperature learn."""
    for parameter in vision_parameters(listener):
        parameter.requires_grad_(False)


def vision_learns(listener: ClipListener) -> bool:
    """Whether anything that decides an image's embedding is trained."""
    return any(parameter.requires_grad for parameter in vision_parameters(listener))


def image_embeddings(listener: ClipListener, batch: Batch) -> Tensor:
    """``[B, D]``, unit norm: with gradients if the image side learns, else without, from the listener's cache where the
    batch holds no tensors.

    Raises:
        UsageError: there are neither tensors nor cached embeddings of an image.
    """
    if not vision_learns(listener):
        with torch.no_grad():
            return listener.encode_images(batch)
    return listener.embed_images(batch.inputs[listener.name]["pixel_values"])
