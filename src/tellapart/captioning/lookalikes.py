"""The look-alikes of a collection on disk, for the processes that caption it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tellapart.files import fresh_folder, read_json, write_text
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.neighbours import Neighbours

_IDS, _ROWS, _EMBEDDINGS = "ids.json", "rows.npy", "embeddings.npy"


class Lookalikes(Mapping[str, list[str]]):
    """Image id -> ids of its look-alikes, nearest first; with the images' embeddings, which stay on disk.

    Args:
        folder: what ``write`` wrote.
    """

    def __init__(self, folder: Path) -> None:
        self._ids: list[str] = read_json(folder / _IDS)
        self._row = {name: row for row, name in enumerate(self._ids)}
        self._rows = np.load(folder / _ROWS, mmap_mode="r", allow_pickle=False)
        self._embeddings = np.load(folder / _EMBEDDINGS, mmap_mode="r", allow_pickle=False)

    @staticmethod
    def write(folder: Path, near: Neighbours, listener: ClipListener) -> None:
        """Replace ``folder`` by the look-alikes that ``near`` tells, all of them among its images, which the listener knows."""
        row = {name: i for i, name in enumerate(near.ids)}
        with fresh_folder(folder) as temporary:
            write_text(temporary / _IDS, json.dumps(near.ids))
            rows = np.array([[row[other] for other in others] for others in near.of(near.ids)], np.int32)
            np.save(temporary / _ROWS, rows)
            np.save(temporary / _EMBEDDINGS, listener.encode_ids(near.ids).float().cpu().numpy())

    def __getitem__(self, name: str) -> list[str]:
        return [self._ids[row] for row in self._rows[self._row[name]]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def embed(self, ids: Sequence[str]) -> Tensor:
        """``[M, D]`` float32, unit norm."""
        return torch.from_numpy(self._embeddings[[self._row[name] for name in ids]])
