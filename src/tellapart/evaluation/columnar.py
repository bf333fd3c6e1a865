"""Columns of plain values as an Arrow table, without the import of pandas that ``pyarrow.array`` costs where it is
installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def arrow_table(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A ``pyarrow.Table`` of columns of text or of numbers.

    Raises:
        ValueError: they differ in length.
    """
    import pyarrow

    arrays = [_array(list(values)) for values in columns.values()]
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise ValueError(f"columns differ in length, expected length {max(lengths)}")
    return pyarrow.Table.from_arrays(arrays, list(columns))


def _array(values: list[Any]) -> Any:
    import pyarrow

    kinds = set(map(type, values))
    if kinds == {str}:
        return _strings(values)
    for kind, arrow, dtype in ((int, pyarrow.int64(), np.int64), (float, pyarrow.float64(), np.float64)):
        if kinds == {kind}:
            buffer = pyarrow.py_buffer(np.array(values, dtype).tobytes())
            return pyarrow.Array.from_buffers(arrow, len(values), [None, buffer])
    return pyarrow.array(values)  # gaps, mixtures and whatever else


def _strings(values: list[str]) -> Any:
    import pyarrow

    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    buffers = [None, pyarrow.py_buffer(ends.tobytes()), pyarrow.py_buffer(b"".join(encoded))]
    return pyarrow.Array.from_buffers(pyarrow.large_string(), len(values), buffers)
