"""Draws that depend on names alone, and are the same on every machine and in every version of Python."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def drawn_number(seed: int, *names: str) -> int:
    """A number of 64 bits that a seed and names decide."""
    text = "\x1f".join([str(seed), *names])
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def shuffled(names: Iterable[str], seed: int, *of: str) -> list[str]:
    """Names in an order that the seed and ``of`` decide; the names beside one do not change whether it comes first."""
    return sorted(names, key=lambda name: (drawn_number(seed, *of, name), name))
