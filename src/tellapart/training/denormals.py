"""Numbers too small for float32's usual form, which processors may compute with a hundred times more slowly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def flushed() -> bool:
    """Whether this thread's results below 1.2e-38, float32's smallest normal number, become 0."""
    return (torch.full((1,), 2e-38) * 0.1).item() == 0


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Results below 1.2e-38 are 0 within, on processors that can do so; afterwards it is as it was before.

    The softmax of a sure captioner is full of such numbers, and each may take over a hundred cycles: on an Intel Xeon,
    ``world_ved_dico`` with ten steps took 13.1 s of CPU time, and 7.2 s so. Only this thread and those that it starts within are
    changed: torch's own threads follow where the first work for them is within, as models are loaded.

    Example::

        with denormals_flushed():
            train(objective, data, config)
    """
    before = flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
