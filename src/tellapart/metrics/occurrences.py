"""How often the n-grams of captions occur in each reference of their image: exact, by bit masks.

For a word of a caption and a reference, bit ``j`` of a mask says that the reference has that word at place ``j``. The mask of
the n-gram that begins at word ``i`` is that of the n-1 words before its end, and the mask of word ``i + n - 1`` shifted by
``n - 1`` places. Its number of bits is the number of occurrences. So one operation on a machine word compares an n-gram with
a whole reference.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tellapart.metrics.ngrams import Numbered

_BITS = 64


def occurrences(
    captions: Numbered, image: np.ndarray, references: Numbered, sizes: np.ndarray, orders: int
) -> Iterator[np.ndarray]:
    """For each order from 1 on ``[R, T]``: how often the n-gram at each word occurs in each reference of its image.

    R is the largest number of references; images with fewer have zeros there. Where an n-gram would run over the end of its
    caption the number has no meaning.

    Args:
        captions: T words in all.
        image: ``[N]``, which image each caption is of.
        references: of B images, one image after the other, numbered like the captions.
        sizes: ``[B]``, references of each image.
        orders: longest n-gram; at most 64.
    """
    longest = int(references.lengths.max(initial=1))
    stride = _BITS - orders + 1
    pieces = 1 if longest <= _BITS else -(-(longest - orders + 1) // stride)
    lanes = int(sizes.max(initial=0)) * pieces
    masks = _masks_of_pieces(captions, image, references, sizes, pieces, stride, lanes)
    same, begins = masks, _begins(masks.dtype, pieces, stride, lanes)
    for order in range(1, orders + 1):
        if order > 1:
            longer = masks[:, order - 1 :] >> masks.dtype.type(order - 1)
            same = same[:, : longer.shape[1]] & longer
        counts = np.bitwise_count(same if pieces == 1 else same & begins)
        if order > 1:
            whole = np.zeros((lanes, len(captions.words)), np.uint8)
            whole[:, : counts.shape[1]] = counts
            counts = whole
        yield counts if pieces == 1 else counts.reshape(-1, pieces, len(captions.words)).sum(axis=1, dtype=np.uint32)


def word_masks(captions: Numbered, image: np.ndarray, references: Numbered, sizes: np.ndarray) -> np.ndarray:
    """``[R, T]``: at which places of each reference of its image a word of a caption stands, one bit for each place.

    Args:
        captions: T words in all.
        image: ``[N]``, which image each caption is of.
        references: of B images, none longer than 64 words.
        sizes: ``[B]``, references of each image.
    """
    return _masks_of_pieces(captions, image, references, sizes, 1, _BITS, int(sizes.max(initial=0)))


class Lanes:
    """Values of all references as a table with one column for each image.

    Args:
        sizes: ``[B]``, references of each image.
    """

    def __init__(self, sizes: np.ndarray) -> None:
        self.count, self.images = int(sizes.max(initial=0)), len(sizes)
        lane = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._cells = lane * self.images + np.repeat(np.arange(self.images), sizes)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """``[R, B]``, 0 where an image has fewer references, of ``values``, one for each reference."""
        table = np.zeros(self.count * self.images, values.dtype)
        table[self._cells] = values
        return table.reshape(self.count, self.images)


def _begins(kind: np.dtype, pieces: int, stride: int, lanes: int) -> np.ndarray:
    """``[lanes, 1]``: the places of each piece of a reference where n-grams are counted: pieces overlap."""
    begins = np.full((lanes // pieces, pieces, 1), (1 << stride) - 1 if pieces > 1 else 0, np.uint64)
    begins[:, -1] = np.iinfo(np.uint64).max
    return begins.reshape(lanes, 1)


def _masks_of_pieces(
    captions: Numbered,
    image: np.ndarray,
    references: Numbered,
    sizes: np.ndarray,
    pieces: int,
    stride: int,
    lanes: int,
) -> np.ndarray:
    """``[lanes, T]``: positions of the captions' words in each piece of a reference."""
    bits = int(references.lengths.max(initial=1)) if pieces == 1 else _BITS
    kind = np.dtype(np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.uint64)
    of_image = np.repeat(np.arange(len(sizes)), sizes)  # of each reference
    lane = (np.arange(len(of_image)) - np.repeat(np.cumsum(sizes) - sizes, sizes)) * pieces
    owners = references.owners
    place = np.arange(len(references.words)) - np.repeat(references.starts, references.lengths)
    # numbers from 1 on for the words that references have, 0 for all others
    top = int(references.words.max(initial=-1)) + 1
    number = np.zeros(top + 1, np.intp)
    number[references.words] = 1
    known = np.flatnonzero(number)
    number[known] = np.arange(1, len(known) + 1)
    # one row of masks for each word of an image's references: the row of the place where it stands last
    width = len(known) + 1
    at = of_image.take(owners) * width + number.take(references.words)
    rows = np.zeros(len(sizes) * width, np.int32)
    rows[at] = np.arange(1, len(at) + 1)
    count = len(at) + 1
    table = np.zeros(lanes * count, kind)
    cells = lane.take(owners) * count + rows.take(at)
    if pieces == 1:
        np.add.at(table, cells, kind.type(1) << place.astype(kind))
    else:
        for piece in range(pieces):
            inside = np.flatnonzero((place >= piece * stride) & (place < piece * stride + _BITS))
            bit = kind.type(1) << (place[inside] - piece * stride).astype(kind)
            np.add.at(table, cells[inside] + piece * count, bit)
    words = np.minimum(captions.words, top)
    asked = np.repeat(image * width, captions.lengths) + number.take(words)
    return table.reshape(lanes, count).take(rows.take(asked), axis=1)
