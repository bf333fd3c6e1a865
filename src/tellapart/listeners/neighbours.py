"""The nearest images of images, by id, in memory and in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.errors import UsageError, reason_of
from tellapart.files import beside

_ABOUT = b"tellapart"


class Neighbours:
    """For each image, the ids of the k images nearest to it, nearest first.

    Args:
        ids: N image ids.
        gallery: ids of the images that can be neighbours.
        rows: ``[N, k]`` the neighbours of each image, as positions in ``gallery``.
        similarities: ``[N, k]`` cosines, in falling order.
        about: how they were found, for the reader; plain JSON values.

    Attributes:
        ids: as given.
        about: as given.
        path: the file they were read from or written to last, if any.
    """

    def __init__(
        self,
        ids: Sequence[str],
        gallery: Sequence[str],
        rows: np.ndarray,
        similarities: np.ndarray,
        *,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.ids, self.about = list(ids), dict(about or {})
        self._gallery, self._rows, self._similarities = list(gallery), rows, similarities.astype(np.float32)
        self._position = {name: i for i, name in enumerate(self.ids)}
        self.path: Path | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def k(self) -> int:
        """Neighbours of each image."""
        return self._rows.shape[1]

    def of(self, ids: Sequence[str]) -> list[list[str]]:
        """For each of M ids the k ids of its nearest images, nearest first.

        Raises:
            UsageError: an id is not known.
        """
        return [[self._gallery[row] for row in rows] for rows in self._rows[self._positions(ids)].tolist()]

    def similarities(self, ids: Sequence[str]) -> np.ndarray:
        """``[M, k]`` float32: the cosine (-1 to 1) of each of M images to its neighbours.

        Raises:
            UsageError: an id is not known.
        """
        return self._similarities[self._positions(ids)]

    def _positions(self, ids: Sequence[str]) -> list[int]:
        try:
            return [self._position[name] for name in ids]
        except KeyError as error:
            raise UsageError(
                f"image {error.args[0]!r} has no mined neighbours: mine those of the data set that holds it."
            ) from error

    @classmethod
    def random(cls, ids: Sequence[str], k: int, seed: int = 0) -> Neighbours:
        """k other images of each at random, all different, as a control for mined ones. An image's neighbours depend on ids and
        seed only. Similarities are NaN: nothing was compared.

        Args:
            ids: N image ids.
            k: neighbours of each image.
            seed: of the draw.

        Raises:
            UsageError: there are fewer than k other images.

        Example:
            >>> Neighbours.random(["a", "b", "c"], 1).of(["a"])
            [['c']]
        """
        from tellapart.draws import mix_seeds  # and torch, which files of neighbours are read without

        if not 0 < k < len(ids):
            raise UsageError(
                f"k is {k}, but each of {len(ids)} images has {len(ids) - 1} others: ask for 1 to that many."
            )
        rows = np.empty((len(ids), k), dtype=np.int64)
        for place, name in enumerate(ids):
            drawn = np.random.default_rng(mix_seeds(seed, name)).choice(len(ids) - 1, k, replace=False)
            rows[place] = drawn + (drawn >= place)  # so that none is the image itself
        return cls(ids, ids, rows, np.full((len(ids), k), np.nan), about={"random": True, "seed": seed})

    def save(self, path: str | Path) -> None:
        """Write a Parquet file with the columns ``id``, ``neighbours`` (list of ids) and ``similarities`` (list of
        floats), in one rename.

        Raises:
            OSError: it cannot be written.
        """
        import pyarrow
        import pyarrow.parquet

        path = Path(path)
        ends = pyarrow.array(np.arange(len(self.ids) + 1, dtype=np.int32) * self.k)
        names = pyarrow.array(self._gallery, pyarrow.string()).take(pyarrow.array(self._rows.ravel()))
        columns = {
            "id": pyarrow.array(self.ids, pyarrow.string()),
            "neighbours": pyarrow.ListArray.from_arrays(ends, names),
            "similarities": pyarrow.ListArray.from_arrays(ends, pyarrow.array(self._similarities.ravel())),
        }
        table = pyarrow.table(columns).replace_schema_metadata({_ABOUT: json.dumps(self.about)})
        with beside(path) as temporary:
            pyarrow.parquet.write_table(table, temporary, write_page_checksum=True)
        self.path = path

    @classmethod
    def load(cls, path: str | Path) -> Neighbours:
        """Read a file of ``save``, or of another tool with the same columns.

        Raises:
            UsageError: the file is missing, damaged, or holds something else.
        """
        import pyarrow
        import pyarrow.parquet

        path = Path(path)
        if not path.is_file():
            raise UsageError(f"{path} does not exist: write it with tellapart mine --output.")
        try:
            table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
            ids, lists = table["id"].to_pylist(), table["neighbours"].combine_chunks()
            similarities = table["similarities"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            names = lists.flatten().dictionary_encode()
            rows, k = names.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(lists[0])
            lengths = lists.value_lengths()
            if (
                not k
                or set(lengths.to_pylist()) != {k}
                or lengths != table["similarities"].combine_chunks().value_lengths()
            ):
                raise ValueError("its rows differ in length")
            if None in ids or lists.flatten().null_count:
                raise ValueError("it has rows or neighbours without an id")
            ids, gallery = list(map(str, ids)), list(map(str, names.dictionary.to_pylist()))
            _check_rows(ids, gallery, rows.reshape(-1, k))
            about = json.loads((table.schema.metadata or {}).get(_ABOUT, b"{}"))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, pyarrow.ArrowException) as error:
            reason = reason_of(error)
            raise UsageError(
                f"{path} is not a file of neighbours ({reason}): write it again with tellapart mine."
            ) from error
        found = cls(ids, gallery, rows.reshape(-1, k), similarities.reshape(-1, k), about=about)
        found.path = path
        return found


def _check_rows(ids: Sequence[str], gallery: Sequence[str], rows: np.ndarray) -> None:
    """Raise where an id has two rows, or an image is its own neighbour."""
    if len(set(ids)) < len(ids):
        raise ValueError("an image has two rows")
    place = {name: number for number, name in enumerate(gallery)}
    own = np.array([place.get(name, -1) for name in ids])
    itself = np.flatnonzero((rows == own[:, None]).any(axis=1))
    if len(itself):
        raise ValueError(f"image {ids[itself[0]]!r} is its own neighbour")
