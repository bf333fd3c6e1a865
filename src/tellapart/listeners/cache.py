"""Image embeddings on disk, found again by the content of the image.

A store is a folder of immutable safetensors files, each with some embeddings and the keys of their images. A file is
written to a temporary file and renamed, and its name holds a hash of its bytes: a killed process leaves only whole files, several
processes may add at once, and a damaged file is recognised, removed and its images embedded again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import safetensors.torch
import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.files import write_bytes
from tellapart.frames import Picture

logger = logging.getLogger(__name__)

_SUFFIX = ".safetensors"


class NamedPicture(Protocol):
    """An image with an id: what datasets are made of."""

    @property
    def id(self) -> str:
        """Unique among all images of a run."""
        ...

    @property
    def image(self) -> Picture:
        """The picture."""
        ...


def by_id(images: Iterable[NamedPicture]) -> dict[str, NamedPicture]:
    """Id -> image.

    Raises:
        UsageError: an id names two different pictures.
    """
    found = dict[str, NamedPicture]()
    for example in images:
        known = found.setdefault(example.id, example)
        if known is not example and known.image.fingerprint() != example.image.fingerprint():
            raise UsageError(f"image id {example.id!r} names two different pictures: give the data sets distinct ids.")
    return found


class EmbeddingStore:
    """The embeddings of one encoder, on disk.

    Args:
        folder: where; it should be named by everything that determines an embedding besides the image.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, keys: Sequence[str]) -> dict[str, Tensor]:
        """Key -> ``[D]`` float32, of those ``keys`` that are stored."""
        wanted = {_digest(key): key for key in keys}
        found: dict[str, Tensor] = {}
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")) if wanted else []:
            stored = _read(path)
            if stored is None:
                logger.warning("%s is damaged: it is removed and its images are embedded again.", path)
                path.unlink(missing_ok=True)
                continue
            for digest, embedding in zip(stored["keys"].numpy(), stored["embeddings"], strict=True):
                if (key := wanted.get(digest.tobytes())) is not None:
                    found[key] = embedding
        return found

    def add(self, keys: Sequence[str], embeddings: Tensor) -> None:
        """Store ``[M, D]`` embeddings under M keys, in one new file."""
        digests = torch.tensor([list(_digest(key)) for key in keys], dtype=torch.uint8)
        data = safetensors.torch.save({"keys": digests, "embeddings": embeddings.float().cpu().contiguous()})
        write_bytes(self.folder / (hashlib.sha256(data).hexdigest() + _SUFFIX), data)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _read(path: Path) -> dict[str, Tensor] | None:
    """The file's tensors, or None if its bytes are not those that were written."""
    data = path.read_bytes()
    return safetensors.torch.load(data) if hashlib.sha256(data).hexdigest() == path.stem else None


class EmbeddingTable:
    """Embeddings in memory, of any one shape, looked up by image id; ids of equal pictures share one."""

    def __init__(self) -> None:
        self._key_of: dict[str, str] = {}
        self._row_of: dict[str, int] = {}
        self._embeddings = torch.empty(0, 0)

    def add(self, key_of: Mapping[str, str], embedding_of: Mapping[str, Tensor]) -> None:
        """Remember the ids of ``key_of`` (id -> key) with the embeddings of ``embedding_of`` (key -> ``[D]``).

        Raises:
            UsageError: an id is known as that of another picture.
        """
        for name, key in key_of.items():
            if self._key_of.get(name, key) != key:
                raise UsageError(f"image id {name!r} names two different pictures: give the data sets distinct ids.")
        new = [key for key in dict.fromkeys(key_of.values()) if key not in self._row_of]
        if new:
            rows = torch.stack([embedding_of[key] for key in new])
            self._row_of |= {key: row for row, key in enumerate(new, start=len(self._row_of))}
            self._embeddings = torch.cat([self._embeddings, rows]) if len(self._embeddings) else rows
        self._key_of.update(key_of)

    def __contains__(self, key: str) -> bool:
        return key in self._row_of

    def look_up(self, ids: Sequence[str]) -> Tensor:
        """``[M, D]``.

        Raises:
            KeyError: an id is not known.
        """
        return self.of(self.keys(ids))

    def of(self, keys: Iterable[str]) -> Tensor:
        """``[M, D]``, by key."""
        return self._embeddings[[self._row_of[key] for key in keys]]

    def keys(self, ids: Sequence[str]) -> list[str]:
        """The key of each id's picture.

        Raises:
            KeyError: an id is not known.
        """
        return [self._key_of[name] for name in ids]
