"""Occurrences of n-grams by bit masks against counts of slices."""

import numpy as np
import pytest

from tellapart.metrics.ngrams import Numbered
from tellapart.metrics.occurrences import occurrences


def numbered(rows: list[list[int]]) -> Numbered:
    return Numbered(
        np.array([word for row in rows for word in row], np.int32), np.array([len(row) for row in rows], np.int64)
    )


@pytest.mark.parametrize("longest", [1, 9, 16, 17, 32, 33, 64, 65, 130, 300])
def test_counts_are_those_of_slices(longest):
    rng = np.random.default_rng(longest)
    sizes = rng.integers(1, 5, 7)
    references = [rng.integers(0, 6, rng.integers(0, longest + 1)).tolist() for _ in range(sizes.sum())]
    references[0] = rng.integers(0, 3, longest).tolist()
    image = rng.integers(0, 7, 20)
    captions = [rng.integers(0, 9, rng.integers(0, 14)).tolist() for _ in image]
    captions[0], image[0] = references[0][-12:], 0
    ends = np.cumsum(sizes).tolist()
    of_image = [references[stop - size : stop] for stop, size in zip(ends, sizes, strict=True)]
    found = list(occurrences(numbered(captions), image, numbered(references), sizes, 4))
    starts = np.cumsum([0, *map(len, captions)])
    for n, counts in enumerate(found, 1):
        assert counts.shape == (sizes.max(), starts[-1])
        for row, caption in enumerate(captions):
            for place in range(len(caption) - n + 1):
                gram = caption[place : place + n]
                expected = [
                    sum(text[i : i + n] == gram for i in range(len(text) - n + 1)) for text in of_image[image[row]]
                ]
                expected += [0] * (sizes.max() - len(expected))
                assert counts[:, starts[row] + place].tolist() == expected
