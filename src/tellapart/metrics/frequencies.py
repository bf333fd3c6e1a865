"""Document frequencies: the number of images in whose references an n-gram occurs, by which CIDEr weighs n-grams."""

from __future__ import annotations

import io
import json
import math
import pickle
import zlib
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tellapart.errors import UsageError
from tellapart.files import write_bytes, write_json
from tellapart.metrics.ngrams import GrowingVocabulary, Ngram, Numbered, number_words
from tellapart.metrics.ptb import ptb_tokenize

ORDERS = (1, 2, 3, 4)
END = "<end of caption>"
"""The token that closes a finished caption where the end is to count; it has spaces, so no tokenised word equals it."""

FEW_IMAGES = 100
"""Below this many images, document frequencies say little and CIDEr-D is hard to compare."""

_BUCKET = 4
_IMAGES_AT_ONCE = 10_000
_PAIRS_AT_ONCE = 1 << 20
"""Pairs that are put into a table together."""
_AT_ONCE = 1 << 18
"""N-grams of the text that are sorted together: more take no less time, and memory for each."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class PairTable:
    """Finds the number of a pair of numbers, for many at once: a hash table in arrays. It compares whole pairs.

    A key lies in its bucket of 4 or, where that is full, in the next: one look at one line of memory is mostly enough.

    Args:
        first: ``[K]``, below 2**31.
        second: ``[K]``, below 2**31; all pairs differ.
        numbers: ``[K]``, the number of each pair.
    """

    def __init__(self, first: np.ndarray, second: np.ndarray, numbers: np.ndarray) -> None:
        bits = max(len(first).bit_length() - 1, 2)
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._keys = np.full((1 << bits, _BUCKET), -1, np.int64)
        self._numbers = np.zeros((1 << bits) * _BUCKET, np.int32)
        used = np.zeros(1 << bits, np.int8)
        for start in range(0, len(first), _PAIRS_AT_ONCE):
            some = slice(start, start + _PAIRS_AT_ONCE)
            self._insert((first[some].astype(np.int64) << 32) | second[some], numbers[some], used)

    def _insert(self, keys: np.ndarray, numbers: np.ndarray, used: np.ndarray) -> None:
        """Put keys into the table; ``used`` counts the places taken of each bucket."""
        buckets = self._buckets(keys)
        while len(keys):
            order = np.argsort(buckets, kind="stable")
            keys, numbers, buckets = keys[order], numbers[order], buckets[order]
            place = used[buckets] + np.arange(len(keys)) - np.searchsorted(buckets, buckets)
            fits = place < _BUCKET
            self._keys[buckets[fits], place[fits]] = keys[fits]
            self._numbers[buckets[fits] * _BUCKET + place[fits]] = numbers[fits]
            np.add.at(used, buckets[fits], np.int8(1))
            keys, numbers, buckets = keys[~fits], numbers[~fits], (buckets[~fits] + 1) & self._mask

    def _buckets(self, keys: np.ndarray) -> np.ndarray:
        return ((keys.view(np.uint64) * _SPREAD) >> self._shift).view(np.int64)

    def find(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """``[M]``: the number of each pair, -1 where it is not in the table."""
        keys = (first.astype(np.int64) << 32) | second
        found = np.full(len(keys), -1, np.int32)
        waiting, buckets = np.arange(len(keys)), self._buckets(keys)
        while len(waiting):
            there = self._keys.take(buckets, axis=0)
            hits = np.flatnonzero(there == keys[:, None])
            rows = hits >> 2
            found[waiting.take(rows)] = self._numbers.take((buckets.take(rows) << 2) + (hits & 3))
            full = there[:, -1] != -1
            full[rows] = False
            on = np.flatnonzero(full)
            waiting, buckets, keys = waiting[on], (buckets[on] + 1) & self._mask, keys[on]
        return found


class DocumentFrequencies:
    """In the references of how many images each n-gram occurs. Scoring never adds to it.

    Longer n-grams of a single image are left out: they weigh exactly as much as n-grams never seen (idf = log of the
    number of images), and they are three quarters of the table. The n-grams make a tree: each is the number of its
    first words and its last word, so that equal means equal, whatever the size of the vocabulary.

    Args:
        counts: n-gram of up to 4 words -> number of images.
        images: number of images counted.
        end: token that closes every reference (and every finished caption scored with these counts); "" for none.

    Raises:
        ValueError: an n-gram is of no or more than 4 words.
    """

    def __init__(self, counts: Mapping[Ngram, int], images: int, end: str = "") -> None:
        words: dict[str, int] = {word: i for i, word in enumerate(dict.fromkeys(w for gram in counts for w in gram))}
        numbers: dict[Ngram, int] = {(word,): i for word, i in words.items()}
        pairs: list[tuple[int, int]] = []
        for gram in sorted(counts, key=len):
            if not 1 <= len(gram) <= len(ORDERS):
                raise ValueError(f"document frequencies are of n-grams of 1 to {len(ORDERS)} words, not {len(gram)}")
            for order in range(2, len(gram) + 1):
                if gram[:order] not in numbers:
                    pairs.append((numbers[gram[: order - 1]], words[gram[order - 1]]))
                    numbers[gram[:order]] = len(numbers)
        totals = np.array([counts.get(gram, 0) for gram in numbers], np.int64)
        self._set(words, np.array(pairs, np.int32).reshape(-1, 2), totals, images, end)

    def _set(self, words: dict[str, int], pairs: np.ndarray, totals: np.ndarray, images: int, end: str) -> None:
        self.words, self.pairs, self.totals, self.images, self.end = words, pairs, totals, int(images), end
        log_images = math.log(max(images, 1))
        self._idf = log_images - np.log(np.maximum(np.append(totals, 1), 1.0))  # the last is that of the unseen
        self._table = PairTable(pairs[:, 0], pairs[:, 1], np.arange(len(words), len(totals)))

    @classmethod
    def from_arrays(
        cls, words: Sequence[str], pairs: np.ndarray, totals: np.ndarray, images: int, end: str = ""
    ) -> DocumentFrequencies:
        """Out of the arrays that a table consists of.

        Args:
            words: V words, numbered 0 to V - 1; each is an n-gram of one word.
            pairs: ``[K, 2]``: longer n-grams, numbered from V on: number of the n-gram without its last word, and
                number of that word.
            totals: ``[V + K]``: images of each n-gram.
            images: number of images counted.
            end: token that closes references; "" for none.
        """
        made = cls.__new__(cls)
        made._set({word: i for i, word in enumerate(words)}, pairs, totals, images, end)
        return made

    @classmethod
    def from_references(cls, references: Mapping[str, Sequence[str]], *, end: str = END) -> DocumentFrequencies:
        """Count raw references (image id -> captions), tokenised here and, by default, closed by ``end``: for a
        reward."""
        return cls.from_tokens({name: ptb_tokenize(texts, alone=True) for name, texts in references.items()}, end=end)

    @classmethod
    def from_tokens(
        cls, references: Mapping[str, Sequence[str]] | Sequence[Sequence[str]], *, end: str = ""
    ) -> DocumentFrequencies:
        """Count references that are tokenised already; without an end token this is the metric's "corpus" mode.

        Args:
            references: those of each image, by id or in a row.
            end: closes each of them; "" for none.
        """
        closing = [end] if end else []
        words = GrowingVocabulary()
        numbers, lengths, sizes = array("i"), array("q"), array("q")
        rest = iter(references.values() if isinstance(references, Mapping) else references)
        while some := [*islice(rest, _IMAGES_AT_ONCE)]:  # the split text of all at once would be large
            rows = [caption.split() + closing for texts in some for caption in texts]
            part = number_words(rows, words)
            numbers.frombytes(part.words.tobytes())
            lengths.frombytes(part.lengths.tobytes())
            sizes.extend(map(len, some))
        captions = Numbered(np.frombuffer(numbers, np.int32), np.frombuffer(lengths, np.int64))
        return cls.from_numbered(list(words), captions, np.frombuffer(sizes, np.int64), end=end)

    @classmethod
    def from_numbered(
        cls, words: Sequence[str], references: Numbered, sizes: np.ndarray, *, end: str = ""
    ) -> DocumentFrequencies:
        """Count references whose words are numbers.

        Args:
            words: the word of each number, from 0 on.
            references: of all images, those of an image one after the other.
            sizes: ``[B]``, references of each image.
            end: the word that closes each of them already; "" for none.
        """
        images = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        pairs, totals = _count(references, images, len(words))
        return cls.from_arrays(words, pairs, totals, len(sizes), end)

    @cached_property
    def counts(self) -> dict[Ngram, int]:
        """N-gram -> number of images, where at least 2; made when first asked for."""
        grams: list[Ngram] = [(word,) for word in self.words]
        names = list(self.words)
        for prefix, word in self.pairs.tolist():
            grams.append((*grams[prefix], names[word]))
        return {gram: count for gram, count in zip(grams, self.totals.tolist(), strict=True) if count > 1}

    def idf(self, captions: Numbered) -> np.ndarray:
        """``[4, T]``: the weight of the n-gram that begins at each word; without meaning where it would run over the end.

        Args:
            captions: numbered by ``words`` of this table; greater numbers are words it lacks.
        """
        weights = np.full((len(ORDERS), len(captions.words)), self._idf[-1])
        remaining = captions.remaining
        places = np.flatnonzero(captions.words < len(self.words))
        ngrams = captions.words.take(places)
        weights[0, places] = self._idf.take(ngrams)
        for order in range(2, len(ORDERS) + 1):
            on = np.flatnonzero((ngrams >= 0) & (remaining.take(places) >= order))
            places = places.take(on)
            ngrams = self._table.find(ngrams.take(on), captions.words.take(places + (order - 1)))
            weights[order - 1, places] = self._idf.take(ngrams, mode="wrap")
        return weights


def _count(captions: Numbered, images: np.ndarray, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """The tree of n-grams in at least two images, and in how many images each is (see ``from_arrays``).

    What follows an n-gram of one image is of one image too, so each order looks only where the last one found two. N-grams
    that begin with the same word are counted together, some words at a time: what they take is needed for these only.

    Args:
        captions: all references.
        images: ``[N]``, the image each caption is of; captions of an image follow one another.
        vocabulary: V, number of words.
    """
    ends, size = np.cumsum(captions.lengths), int(images.max(initial=0)) + 1
    tree = [_Level() for _ in ORDERS]
    for first, last, places in _by_first_word(captions.words, vocabulary):
        caption = np.searchsorted(ends, places, side="right")
        image, left = images[caption], np.minimum(ends[caption] - places, len(ORDERS)).astype(np.int8)
        del caption
        ngrams, numbers = captions.words[places] - first, np.arange(first, last, dtype=np.int32)
        counts = _images_of(ngrams, image, last - first, size)
        tree[0].totals.append(counts)
        for order, level in zip(ORDERS[1:], tree[1:], strict=True):
            on = np.flatnonzero((counts[ngrams] > 1) & (left >= order))
            places, left, image = places[on], left[on], image[on]
            keys = ngrams[on].astype(np.int64) * vocabulary + captions.words[places + (order - 1)]
            keys, ngrams = np.unique(keys, return_inverse=True)
            counts = _images_of(ngrams, image, len(keys), size)
            numbers = level.add(numbers, keys, counts, vocabulary)
    before = 0
    for earlier, level in pairwise(tree):
        for pairs in level.pairs:
            pairs[:, 0] += before
        before += sum(map(len, earlier.totals))
    pairs = np.concatenate([np.empty((0, 2), np.int32), *(part for level in tree for part in level.pairs)])
    return pairs, np.concatenate([np.empty(0, np.int64), *(part for level in tree for part in level.totals)])


class _Level:
    """N-grams of one order, numbered from 0 on."""

    def __init__(self) -> None:
        self.pairs: list[np.ndarray] = []
        self.totals: list[np.ndarray] = []
        self._known = 0

    def add(self, prefixes: np.ndarray, keys: np.ndarray, counts: np.ndarray, vocabulary: int) -> np.ndarray:
        """Keep those of several images.

        Args:
            prefixes: numbers of n-grams of the order before.
            keys: ``[K]``, place in ``prefixes`` times ``vocabulary`` plus the last word, rising.
            counts: ``[K]``, images.
            vocabulary: number of words.

        Returns:
            ``[K]``: numbers, without meaning for those that are not kept.
        """
        kept = counts > 1
        prefix, word = np.divmod(keys[kept], vocabulary)
        self.pairs.append(np.stack([prefixes[prefix], word.astype(np.int32)], axis=1))
        self.totals.append(counts[kept])
        numbers = self._known + np.cumsum(kept, dtype=np.int32) - 1
        self._known += len(word)
        return numbers


def _by_first_word(words: np.ndarray, vocabulary: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Ranges of words, about ``_AT_ONCE`` of whose are in the text, and where they are.

    Yields:
        ``(first, last, places)``: the words from ``first`` to before ``last``, and all their places, ascending.
    """
    starts = range(0, len(words), _AT_ONCE)
    counts = sum(
        (np.bincount(words[i : i + _AT_ONCE], minlength=vocabulary) for i in starts), np.zeros(vocabulary, np.int64)
    )
    before = np.cumsum(counts)
    inner = np.unique(np.searchsorted(before, np.arange(_AT_ONCE, len(words), _AT_ONCE)) + 1)
    edges = [0, *inner[inner < vocabulary].tolist(), vocabulary]
    part = np.repeat(np.arange(len(edges) - 1, dtype=np.uint16), np.diff(edges))[words]
    for number, (first, last) in enumerate(pairwise(edges)):
        yield first, last, np.flatnonzero(part == number)


def _images_of(ngrams: np.ndarray, image: np.ndarray, count: int, size: int) -> np.ndarray:
    """``[count]``: in how many images each n-gram is.

    Args:
        ngrams: ``[T]``, below ``count``.
        image: ``[T]``, below ``size``.
        count: number of n-grams.
        size: number of images.
    """
    return np.bincount(_distinct(ngrams.astype(np.int64) * size + image) // size, minlength=count)


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """Sorted, each once; many times faster on large arrays than ``np.unique``, which hashes here."""
    numbers = np.sort(numbers)
    return numbers[np.append(True, numbers[1:] != numbers[:-1])] if len(numbers) else numbers


# Document frequencies in files: ours, and the pickled tables of the field, read without running what is in them.
#
# Ours is an ``.npz`` of plain arrays, written and read without pickle: ``header``, the bytes of a JSON object with ``words``
# (a list), ``images`` and ``end``; ``pairs`` and ``totals`` as in ``DocumentFrequencies.from_arrays``. Or a ``.json`` for
# people: ``{"images": 5000, "end": "", "counts": {"a dog": 12, ...}}``, n-grams of 1 to 4 words with a space between
# them. A table with an end token has it as a line break, in ``end`` and in its n-grams.

_END_IN_JSON, _EOS = "\n", "<eos>"
_HARMLESS = {
    ("collections", "defaultdict"): defaultdict,
    ("collections", "OrderedDict"): OrderedDict,
    **{(module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in (dict, float, int)},
}
"""All that a table of numbers needs; any other name in a pickle is refused."""

_DAMAGED = (
    AttributeError,
    BadZipFile,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    zlib.error,
)
"""What reading a file that is not a table raises."""


def save_frequencies(frequencies: DocumentFrequencies, path: Path) -> None:
    """Write a table as ``.npz`` or, for people, ``.json`` (which leaves out n-grams of one image).

    Raises:
        UsageError: the name has another ending.
    """
    if path.suffix == ".json":
        end = frequencies.end
        counts = {
            " ".join(_END_IN_JSON if end and word == end else word for word in gram): count
            for gram, count in frequencies.counts.items()
        }
        write_json(path, {"images": frequencies.images, "end": _END_IN_JSON if end else "", "counts": counts})
    elif path.suffix == ".npz":
        header = {"words": list(frequencies.words), "images": frequencies.images, "end": frequencies.end}
        buffer = io.BytesIO()
        content = np.frombuffer(json.dumps(header).encode(), np.uint8)
        np.savez_compressed(buffer, header=content, pairs=frequencies.pairs, totals=frequencies.totals)
        write_bytes(path, buffer.getvalue())
    else:
        raise UsageError(f"document frequencies cannot be written to {path}: end the name in .npz or .json.")


def load_frequencies(path: Path, *, images: int | None = None) -> DocumentFrequencies:
    """Read a table: ``.npz`` or ``.json`` as written here, or a pickle (``.p``, ``.pkl``) of the field.

    Pickles are the ``{"document_frequency": ..., "ref_len": ...}`` of ruotianluo/cider and ImageCaptioning.pytorch (in
    which ``<eos>``, if counted, closes references), or the counts alone, as in coco-caption's ``coco-val-df.p``, whose
    number of images, 40504, must then be given. Only dictionaries, tuples, text and numbers are read.

    Args:
        path: the file.
        images: number of images counted, where the file does not tell.

    Raises:
        UsageError: there is no such file, it is not a table of frequencies, or it is one of another number of images.
    """
    readers = {".npz": _read_npz, ".json": _read_json, ".p": _read_pickle, ".pkl": _read_pickle}
    if path.suffix not in readers:
        raise UsageError(f"document frequencies {path} are of no known kind: give a {', '.join(readers)} file.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"document frequencies {path} cannot be read ({error.strerror}): check the path.") from error
    try:
        frequencies = readers[path.suffix](content, images)
    except _DAMAGED as error:
        raise UsageError(f"{path} is not a table of document frequencies ({error}): count them again.") from error
    _check(frequencies, path)
    if images is not None and images != frequencies.images:
        raise UsageError(
            f"{path} says that it is of {frequencies.images} images, not of {images}: leave their number out."
        )
    return frequencies


def _check(frequencies: DocumentFrequencies, path: Path) -> None:
    top = int(frequencies.totals.max(initial=0))
    if top > frequencies.images:
        raise UsageError(
            f"document frequencies {path} are of {frequencies.images} images, but an n-gram is counted in {top}: "
            "give the number of images that were counted."
        )
    words = [word for word in frequencies.words if word != frequencies.end]
    if len(words) > 10 and all(word.isdecimal() for word in words):
        raise UsageError(
            f"document frequencies {path} count numbers of words, not words: give the table of words (-words.p)."
        )


def _read_npz(content: bytes, images: int | None) -> DocumentFrequencies:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        header = json.loads(arrays["header"].tobytes())
        pairs, totals = arrays["pairs"], arrays["totals"]
    words = header["words"]
    shaped = pairs.ndim == 2 and pairs.shape[1] == 2 and len(totals) == len(words) + len(pairs)
    if not shaped or len(set(words)) != len(words):
        raise ValueError("its arrays do not fit one another")
    earlier = (pairs[:, 0] < np.arange(len(words), len(totals))) & (pairs[:, 1] < len(words)) & (pairs >= 0).all(axis=1)
    if not earlier.all():
        raise ValueError("an n-gram continues one that is not before it")
    return DocumentFrequencies.from_arrays(words, pairs, totals, header["images"], header["end"])


def _read_json(content: bytes, images: int | None) -> DocumentFrequencies:
    table = json.loads(content)
    end = END if table["end"] else ""
    counts = {
        tuple(END if word == table["end"] and end else word for word in gram.split(" ")): int(count)
        for gram, count in table["counts"].items()
    }
    return DocumentFrequencies(counts, int(table["images"]), end)


class _Reader(pickle.Unpickler):
    """Reads dictionaries of numbers and nothing that could run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _HARMLESS:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is not read")
        return _HARMLESS[module, name]


def _read_pickle(content: bytes, images: int | None) -> DocumentFrequencies:
    table = _Reader(io.BytesIO(content), encoding="utf-8", errors="replace").load()
    if not isinstance(table, Mapping):
        raise ValueError("it is not a dictionary")
    raw = table.get("document_frequency", table)
    images = int(table["ref_len"]) if "ref_len" in table else images
    if images is None:
        raise ValueError("it does not tell the number of images, which must be given")
    counts: dict[Ngram, int] = {}
    for gram, count in raw.items():
        if not isinstance(gram, tuple) or not all(isinstance(word, str) for word in gram):
            raise ValueError(f"{gram!r} is not a tuple of words")
        counts[gram] = int(count)
    if not counts:
        raise ValueError("it holds no n-gram")
    return DocumentFrequencies(counts, images, _EOS if (_EOS,) in counts else "")
