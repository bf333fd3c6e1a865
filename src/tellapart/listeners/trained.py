"""A listener as something that learns: what of it trains, and checkpoints that are listeners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import Parameter

from tellapart.errors import UsageError, reason_of
from tellapart.listeners.cache import NamedPicture
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.loading import complete
from tellapart.types import Batch


class WithModel(Protocol):
    """A listener around a model, such as a CLIP or a VSE."""

    model: Any


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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.listener!r})"

    @property
    def name(self) -> str:
        """Key of the listener's tensors in ``batch.inputs``."""
        return self.listener.name

    def embed_images(self, batch: Batch) -> Tensor:
        """``[B, D]``, unit norm; see ``image_embeddings``."""
        return image_embeddings(self.listener, batch)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm, with gradients where they are enabled; all texts in one forward pass."""
        return self.listener.embed_texts(texts)

    def cache_images(self, dataset: Iterable[NamedPicture]) -> None:
        """See ``cache_images``; of use only where the image side is frozen."""
        self.listener.cache_images(dataset)

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
                f"{folder} lacks the weights of this listener ({reason_of(error)}): resume with the model that wrote it."
            ) from error


def vision_parameters(listener: WithModel) -> Iterator[Parameter]:
    """All that decides an image's embedding: the tower and, where it is a layer of its own, its projection."""
    for name in _VISION:
        part = getattr(listener.model, name, None)
        if part is not None:
            yield from part.parameters()


def freeze_vision(listener: WithModel) -> None:
    """Let images keep their embeddings; only the text side and the temperature learn."""
    for parameter in vision_parameters(listener):
        parameter.requires_grad_(False)


def freeze_temperature(listener: WithModel) -> None:
    """For losses of cosines, which never reach the temperature of CLIP and the bias of SigLIP."""
    for name in ("logit_scale", "logit_bias"):
        if hasattr(listener.model, name):
            getattr(listener.model, name).requires_grad_(False)


def vision_learns(listener: WithModel) -> bool:
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
    return listener.embed_images(**batch.inputs[listener.name])
