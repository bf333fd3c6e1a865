"""Small recurrent captioners, and features for them."""

from __future__ import annotations

from typing import Any

import torch

from pictures import CAPTIONS
from tellapart.captioners.fresh import fresh_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.types import Batch
from tiny_models import redraw

KINDS = ("fc_lstm", "att2in2", "updown")
WIDTH = 6


def tiny_lstm(kind: str, *, eos_bias: float = 1.0, hidden_size: int = 8, seed: int = 0) -> HuggingFaceCaptioner:
    """Wide random weights, so that images and words matter; ``eos_bias`` is added to the logit of EOS."""
    captioner = fresh_captioner(kind, CAPTIONS, feature_size=WIDTH, hidden_size=hidden_size, min_count=1)
    redraw(captioner.family.model, std=0.6, seed=seed)
    with torch.no_grad():
        captioner.family.model.head.bias[captioner.family.eos[0]] += eos_bias
    return captioner.eval()


def features(kind: str, count: int, *, seed: int = 0) -> dict[str, torch.Tensor]:
    """What a captioner of this kind reads: vectors, or 2 to 4 regions with their mask."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "fc_lstm":
        return {"features": torch.randn(count, WIDTH, generator=generator)}
    mask = torch.arange(4) < torch.tensor([2 + i % 3 for i in range(count)])[:, None]
    return {"features": torch.randn(count, 4, WIDTH, generator=generator) * mask[:, :, None], "mask": mask}


def batch(kind: str, count: int, **options: Any) -> Batch:
    """So many images with two captions each."""
    references = [[CAPTIONS[(2 * i) % 64], CAPTIONS[(2 * i + 9) % 64]] for i in range(count)]
    return Batch([f"image-{i}" for i in range(count)], references, {"captioner": features(kind, count, **options)})
