"""METEOR's data for English: function words, synonyms and paraphrases, read from an installed pycocoevalcap.

The paraphrase table (62 MB packed, 5.3 million lines) is compiled once into arrays under the cache folder and mapped into
memory from there, so that only what is looked up is read.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import logging
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tellapart.errors import UsageError
from tellapart.files import cache_dir, first_folder, fresh_folder
from tellapart.progress import bar

logger = logging.getLogger(__name__)

MISSING = "METEOR needs data that pycocoevalcap ships: pip install 'tellapart[meteor]'."
JAR, TABLE = "meteor-1.5.jar", "data/paraphrase-en.gz"
_VERSION = "2"
_ARRAYS = ("phrases", "starts", "paraphrases", "words", "synset_starts", "synsets")
_DETACHED = (
    *(
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    *(("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    *(("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
)
"""Endings that WordNet's morphology takes off, in the order they are tried."""


def key_of(text: str) -> int:
    """63-bit hash of a word or phrase."""
    return int.from_bytes(_hash(text.encode()), "little") >> 1


@dataclass(frozen=True)
class Resources:
    """METEOR's data for English.

    Args:
        function_words: words that weigh less.
        exceptions: irregular form -> its base forms.
        phrases: ``[P]`` sorted keys of all phrases of the table.
        starts: ``[P + 1]`` where each one's lines begin, those that have it on the left.
        paraphrases: the right phrase of each line; lines of one left phrase stay in the table's order.
        words: ``[W]`` sorted keys of the words of WordNet.
        synset_starts: ``[W + 1]`` where each one's synsets begin.
        synsets: their numbers.
    """

    function_words: frozenset[str]
    exceptions: dict[str, tuple[str, ...]]
    phrases: np.ndarray
    starts: np.ndarray
    paraphrases: np.ndarray
    words: np.ndarray
    synset_starts: np.ndarray
    synsets: np.ndarray

    def phrase_numbers(self, phrases: Iterable[str]) -> np.ndarray:
        """The number of each phrase in the table, -1 where it has no paraphrase."""
        return _find(self.phrases, phrases)

    def synset_sets(self, words: list[str]) -> list[frozenset[int]]:
        """The synsets of each word: its own and those of its base form.

        A base form is that of an irregular form, else the first one in WordNet that taking off an ending gives.
        """
        forms = [self._forms(word) for word in words]
        flat = [form for group in forms for _, form in group]
        rows = iter(_find(self.words, flat).tolist())
        found = []
        for group in forms:
            synsets: set[int] = set()
            based = False
            for detached, _ in group:
                row = next(rows)
                if row < 0 or (detached and based):
                    continue
                based |= detached
                synsets.update(self.synsets[self.synset_starts[row] : self.synset_starts[row + 1]].tolist())
            found.append(frozenset(synsets))
        return found

    def _forms(self, word: str) -> list[tuple[bool, str]]:
        own = [(False, word)]
        if word in self.exceptions:
            return own + [(False, base) for base in self.exceptions[word]]
        if len(word) < 3 or word.endswith("ss"):
            return own
        return own + [(True, word[: -len(end)] + new) for end, new in _DETACHED if word.endswith(end)]


def source() -> Path | None:
    """The folder of METEOR's files in an installed pycocoevalcap, None if there is none."""
    spec = importlib.util.find_spec("pycocoevalcap")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "meteor"
        if (folder / JAR).is_file() and (folder / TABLE).is_file() and importlib.util.find_spec("nltk"):
            return folder
    return None


@cache
def load_resources() -> Resources:
    """METEOR's data, compiled first if need be.

    Raises:
        UsageError: pycocoevalcap or nltk is not installed.
    """
    folder = source()
    if folder is None:
        raise UsageError(MISSING)
    digest = hashlib.blake2b(_VERSION.encode(), digest_size=8)
    for name in (JAR, TABLE):
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "md5").digest())
    place = cache_dir() / "meteor" / digest.hexdigest()
    try:
        arrays = _arrays(place)
    except (OSError, ValueError):  # none, or damaged
        with (fresh_folder if place.is_dir() else first_folder)(place) as temporary:
            _compile(folder, temporary)
        arrays = _arrays(place)
    with zipfile.ZipFile(folder / JAR) as jar:
        function_words = frozenset(jar.read("function/english.words").decode().split())
        lines = jar.read("synonym/english.exceptions").decode().split("\n")
    exceptions: dict[str, tuple[str, ...]] = {}
    for base, forms in zip(lines[::2], lines[1::2], strict=False):
        for form in forms.split():
            exceptions[form] = (*exceptions.get(form, ()), base)
    return Resources(function_words, exceptions, **arrays)


def _arrays(place: Path) -> dict[str, np.ndarray]:
    return {name: np.load(place / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}


def _compile(folder: Path, place: Path) -> None:
    """Write the arrays; some 12 seconds."""
    logger.warning("METEOR's tables are compiled once, which takes some 12 seconds.")
    with zipfile.ZipFile(folder / JAR) as jar:
        lines = jar.read("synonym/english.synsets").decode().split("\n")
    keys = np.array([key_of(word) for word in lines[: len(lines) // 2 * 2 : 2]], np.int64)
    order = np.argsort(keys)
    rows = [[int(number) for number in line.split()] for line in lines[1::2]]
    rows = [rows[n] for n in order.tolist()]
    np.save(place / "words.npy", keys[order])
    np.save(place / "synset_starts.npy", _starts(np.array([len(row) for row in rows])))
    np.save(place / "synsets.npy", np.array([number for row in rows for number in row], np.int32))
    first, second = _read_table(folder / TABLE)
    phrases, numbers = np.unique(np.concatenate([first, second]), return_inverse=True)
    left, right = numbers[: len(first)], numbers[len(first) :]
    np.save(place / "phrases.npy", phrases)
    np.save(place / "starts.npy", _starts(np.bincount(left, minlength=len(phrases))))
    np.save(place / "paraphrases.npy", right[np.argsort(left, kind="stable")].astype(np.int32))


def _read_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The keys of both phrases of every line; the lines are probability, phrase, phrase."""
    firsts, seconds, rest = list[np.ndarray](), list[np.ndarray](), b""
    with gzip.open(path, "rb") as file, bar("compiling METEOR's paraphrases", None) as running:
        while block := file.read(1 << 24):
            block = rest + block
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            ends = ends[: len(ends) // 3 * 3]
            rest = block[ends[-1] + 1 if len(ends) else 0 :]
            keys = _keys_of_phrases(block, ends)
            firsts.append(keys[::2])
            seconds.append(keys[1::2])
            running.advance(len(keys) // 2)
    return np.concatenate(firsts), np.concatenate(seconds)


def _keys_of_phrases(block: bytes, ends: np.ndarray) -> np.ndarray:
    """``[2 N]`` what ``key_of`` gives for the second and third of every three lines, which end at ``ends``."""
    import pyarrow as pa

    starts = np.concatenate([[0], ends + 1]).astype(np.int32)
    lines = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(starts), pa.py_buffer(block)])
    # Of a block most phrases occur more than once.
    coded = lines.filter(pa.array(np.arange(len(ends)) % 3 > 0)).dictionary_encode()
    hashes = b"".join(_hash(line[:-1]) for line in coded.dictionary.to_pylist())
    return (np.frombuffer(hashes, "<u8") >> np.uint64(1)).astype(np.int64)[coded.indices.to_numpy()]


def _hash(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).digest()


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def _find(table: np.ndarray, texts: Iterable[str]) -> np.ndarray:
    keys = np.array([key_of(text) for text in texts], np.int64)
    rows = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return np.where(np.asarray(table)[rows] == keys, rows, -1)
