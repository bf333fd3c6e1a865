"""Document frequencies in files: ours, and the pickled tables of the field, read without running what is in them.

Ours is an ``.npz`` of plain arrays, written and read without pickle: ``header``, the bytes of a JSON object with ``words``
(a list), ``images`` and ``end``; ``pairs`` and ``totals`` as in ``DocumentFrequencies.from_arrays``. Or a ``.json`` for
people: ``{"images": 5000, "end": "", "counts": {"a dog": 12, ...}}``, n-grams of 1 to 4 words with a space between
them. A table with an end token has it as a line break, in ``end`` and in its n-grams.
"""

from __future__ import annotations

import io
import json
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tellapart.errors import UsageError
from tellapart.files import write_bytes, write_json
from tellapart.metrics.frequencies import END, DocumentFrequencies
from tellapart.metrics.ngrams import Ngram

_END_IN_JSON, _EOS = "\n", "<eos>"
_HARMLESS = {
    ("collections", "defaultdict"): defaultdict,
    ("collections", "OrderedDict"): OrderedDict,
    **{(module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in (dict, float, int)},
}
"""All that a table of numbers needs; any other name in a pickle is refused."""


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
        UsageError: there is no such file, or it is no such table.
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
    except (pickle.UnpicklingError, BadZipFile, ValueError, KeyError, TypeError, IndexError, EOFError) as error:
        raise UsageError(f"{path} is no table of document frequencies ({error}): count them anew.") from error
    _check(frequencies, path)
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
        raise ValueError("an n-gram continues one that does not stand before it")
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
    return DocumentFrequencies(counts, images, _EOS if (_EOS,) in counts else "")
