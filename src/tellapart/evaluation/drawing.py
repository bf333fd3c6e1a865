"""Captions of every image of a data set, drawn so that nothing else changes by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tellapart.captioners.base import Captioner
from tellapart.captioners.modes import evaluating
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.draws import seed_torch
from tellapart.progress import track
from tellapart.types import Decoding, Rollout


def draw_rollouts(
    captioner: Captioner,
    dataset: CaptionDataset,
    collate: Collate,
    decoding: Decoding,
    *,
    batch_size: int = 64,
    seed: int = 0,
    num_workers: int = 0,
    description: str = "captioning",
) -> Iterator[Rollout]:
    """One rollout per batch, in the data set's order; weights, modes and random numbers stay as they are.

    Args:
        captioner: draws.
        dataset: the images.
        collate: makes what the captioner reads.
        decoding: how captions are drawn.
        batch_size: images captioned at once; it changes no caption.
        seed: of sampled captions; the same for every batch, since draws are keyed by image id.
        num_workers: processes that read images.
        description: next to the progress bar.
    """
    device = next(captioner.parameters()).device
    loader: torch.utils.data.DataLoader = torch.utils.data.DataLoader(
        dataset,  # type: ignore[arg-type]  # a sequence serves
        batch_size=batch_size,
        collate_fn=collate,
        num_workers=num_workers,
        pin_memory=num_workers > 0 and device.type == "cuda",
        generator=torch.Generator(),  # else it draws from the global one
    )
    for batch in track(loader, description, total=len(loader)):
        with evaluating(captioner), forked_generators(device):
            seed_torch(seed)
            rollout = captioner.generate(batch.to(device), decoding)
        yield rollout


@contextmanager
def forked_generators(device: torch.device) -> Iterator[None]:
    """Restore torch's generators on the CPU and ``device`` when the block ends, whatever was drawn inside it."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            yield
