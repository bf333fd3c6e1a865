"""Random numbers that belong to an image, not to its place in a batch.

Sampling keyed by image id makes a run independent of how its batch is cut: the same captions are drawn on one device or
two, in one micro-batch or four.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def mix_seeds(*parts: int | str) -> int:
    """A 63-bit seed from any numbers and strings; equal parts give equal seeds on every machine."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_torch(seed: int) -> None:
    """``torch.manual_seed``, which without an accelerator writes down three times where it was called, for one that may come."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def base_seed() -> int:
    """The next seed from torch's global generator (which the training loop re-seeds before every micro-batch)."""
    return int(torch.randint(0, 2**62, (1,)).item())


def uniforms(ids: Sequence[str], count: int, seed: int) -> Tensor:
    """``[len(ids), count]`` float64 in [0, 1): row i depends on ``seed`` and ``ids[i]`` only."""
    rows = np.empty((len(ids), count))
    for row, image_id in enumerate(ids):
        _generator(seed, image_id).random(out=rows[row])
    return torch.from_numpy(rows)


def gumbels(ids: Sequence[str], count: int, seed: int) -> Tensor:
    """``[len(ids), count]`` float64 of the standard Gumbel distribution: row i depends on ``seed`` and ``ids[i]`` only."""
    rows = np.empty((len(ids), count))
    for row, image_id in enumerate(ids):
        _generator(seed, image_id).standard_exponential(out=rows[row])
    return torch.from_numpy(rows).log_().neg_()


def normals(ids: Sequence[str], count: int, seed: int) -> Tensor:
    """``[len(ids), count]`` float64 of the standard normal distribution: row i depends on ``seed`` and ``ids[i]`` only."""
    rows = np.empty((len(ids), count))
    for row, image_id in enumerate(ids):
        _generator(seed, image_id).standard_normal(out=rows[row])
    return torch.from_numpy(rows)


def _generator(seed: int, image_id: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(mix_seeds(seed, image_id)))


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """While the block runs, torch's global generator is as these parts decide (weights are drawn from it); then as it was."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(mix_seeds(*parts))
        yield
