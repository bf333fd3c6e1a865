"""Decoding one image to the end, to learn whether it is broken, what is odd about it and what it looks like."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tellapart.data.decoding import examine
from tellapart.data.images import ImageError, ImageSource
from tellapart.data.phash import Signature, signature


@dataclass(frozen=True)
class Inspected:
    """What one image is like.

    Args:
        broken: the sentence that says why it cannot be used; None if it can.
        kinds: what is unusual about it, in words (:func:`~tellapart.data.decoding.examine`).
        content: SHA-256 of the encoded bytes.
        signature: what it looks like; None if it is all of one colour.
    """

    broken: str | None = None
    kinds: tuple[str, ...] = ()
    content: str = ""
    signature: Signature | None = None


def inspect(image: ImageSource) -> Inspected:
    """Read and decode one image; that it is broken is told, not raised."""
    try:
        data = image.read()
        found = examine(data, image.name)
    except ImageError as error:
        return Inspected(broken=str(error))
    content = hashlib.sha256(data).hexdigest()
    return Inspected(None, found.kinds, content, signature(found.image))
