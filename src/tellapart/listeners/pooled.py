"""States of a text tower before its projection into the space shared with images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener

PROJECTIONS = {
    "clip": "text_projection",
    "clip4clip": "text_projection",
    "siglip": "text_model.head",
    "siglip2": "text_model.head",
}
"""``config.model_type`` -> the layer that projects a text's pooled feature."""


def pooled_width(listener: ClipListener) -> int:
    """D of the features below: the width of the text tower."""
    return int(listener.model.config.text_config.hidden_size)


def embed_and_pool(listener: ClipListener, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Embeddings ``[M, E]`` (unit norm) and pooled features before the projection ``[M, D]`` of one forward pass.

    Both carry gradients where they are enabled. The texts get the listener's prefix and are cut where they are too long, as
    in ``embed_texts``.

    Raises:
        UsageError: the listener pools the sentences of a text, which have a feature each.
    """
    if listener.text_pooling != "whole":
        raise UsageError(
            f"the listener pools texts by {listener.text_pooling}, but their features are asked for: open it with whole."
        )
    with _read_by(_projection(listener)) as read:
        embeddings = listener.embed_texts(texts)
    return embeddings, read[0]


def encode_pooled(listener: ClipListener, texts: Sequence[str]) -> Tensor:
    """``[M, D]`` float32 pooled features, no gradient, in eval mode; each distinct text is read once."""
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return torch.zeros(0, pooled_width(listener), device=listener.device)
    batches = [[distinct[i] for i in batch] for batch in listener.text_batches(distinct)]
    place = {text: i for i, text in enumerate(chain.from_iterable(batches))}
    model, training, features = listener.model, listener.model.training, []
    model.eval()
    try:
        # As in encode_texts: rounded by the caller's autocast, features would decide between texts that are nearly alike.
        with torch.no_grad(), torch.autocast(listener.device.type, enabled=False):
            for batch in batches:
                features.append(embed_and_pool(listener, batch)[1].float())
    finally:
        model.train(training)
    return torch.cat(features)[[place[text] for text in texts]]


def _projection(listener: ClipListener) -> nn.Module:
    return listener.model.get_submodule(PROJECTIONS[listener.model.config.model_type])


@contextmanager
def _read_by(layer: nn.Module) -> Iterator[list[Tensor]]:
    """What the layer is given while the block runs: the very feature it projects, wherever the model pools."""
    read: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any) -> None:
        read.append(inputs[0])

    handle = layer.register_forward_pre_hook(keep)
    try:
        yield read
    finally:
        handle.remove()
