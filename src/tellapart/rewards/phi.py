"""The contrastive term of VLRM-RS: how well each caption finds its image, and its image it, among all of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS_AT_ONCE = 1024
"""Rows of the matrix of cosines held at a time: in float64 and with 4096 columns, 32 MiB."""


def phi(image_embeddings: Tensor, text_embeddings: Tensor) -> Tensor:
    """``Phi`` of VLRM-RS (Dzabraev, Kunitsyn and Ivaniuta 2024, section 3.5): ``D`` standardised over the batch, where
    ``D_i = softmax_j(S_ij)[i] * softmax_j(S_ji)[i]`` and ``S_ij`` is the cosine of image i and text j, without a
    temperature.

    Cosines lie within [-1, 1], so all ``D`` of a batch are near ``1 / B ** 2`` and differ in late digits: at B = 4096
    float32 would round most of them away. Everything is computed in float64, from ``log D`` relative to its largest
    value, which standardising cancels; so no epsilon is added to the standard deviation either.

    Neither the paper nor its code says whether a batch is that of one device or of all: here it is the whole effective
    batch, so gather the embeddings of all micro-batches and devices first. The standard deviation is the unbiased one.

    Args:
        image_embeddings: ``[B, D]``, the image of each caption; norms do not matter.
        text_embeddings: ``[B, D]``, the captions, in the same order.

    Returns:
        ``[B]`` float32 without gradient, of mean 0 and standard deviation 1 over the batch; zeros where all ``D`` are
        equal, or B is 1.

    Raises:
        ValueError: the two are not of one shape ``[B, D]``.
    """
    if image_embeddings.ndim != 2 or image_embeddings.shape != text_embeddings.shape:
        raise ValueError(
            f"embeddings of shape {tuple(image_embeddings.shape)} and {tuple(text_embeddings.shape)}: give [B, D]"
        )
    where = image_embeddings.device
    images, texts = (_unit(part) for part in (image_embeddings, text_embeddings.to(where)))
    own = (images * texts).sum(dim=1)
    over_texts, over_images = torch.zeros_like(own), torch.zeros_like(own)
    for start in range(0, len(images), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        exponentials = (images[rows] @ texts.T).exp()  # of cosines: at most e
        over_texts[rows] = exponentials.sum(dim=1)
        over_images += exponentials.sum(dim=0)
    log_d = 2 * own - over_texts.log() - over_images.log()
    # D relative to its largest value, minus 1: differences keep their digits however small they are.
    relative = torch.expm1(log_d - log_d.max()) if len(log_d) else log_d
    return _standardised(relative).to(where, torch.float32)


def _unit(embeddings: Tensor) -> Tensor:
    """``[B, D]`` float64 of unit norm, on the CPU where the device has no float64."""
    found = embeddings.detach()
    found = found.cpu() if found.device.type == "mps" else found
    return torch.nn.functional.normalize(found.double(), dim=1)


def _standardised(values: Tensor) -> Tensor:
    """Of mean 0 and unbiased standard deviation 1; zeros where the values differ by rounding only."""
    centred = values - values.mean() if len(values) else values
    spread = centred.abs().max() if len(values) > 1 else 0.0
    # A sum of B float64 terms is off by some 1e-16 times its size: below that there is nothing to standardise.
    return centred / values.std() if spread > 1e-14 else torch.zeros_like(values)
