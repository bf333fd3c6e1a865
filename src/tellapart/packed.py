"""Many texts or numbers in one buffer, which read like lists and dictionaries but take a fraction of their memory.

A text of 50 characters takes 107 bytes as an object in a list, and 58 here; a number 32 bytes, and 8 here.
"""

from __future__ import annotations

from array import array
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import Any, TypeVar

import numpy as np

_BLOCK = 4096
"""Texts that are made objects, or bytes, together."""

_SURROGATES = "surrogatepass"
"""Half a character, as JSON can hold it, stays what it is."""


class _Packed(Sequence[Any]):
    """Equal to any sequence of the same values; a slice is a list."""

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if not isinstance(index, slice):
            place = range(len(self))[index]
            return self._some(place, place + 1)[0]
        start, stop, step = index.indices(len(self))
        return self._some(start, max(start, stop)) if step == 1 else [self[i] for i in range(start, stop, step)]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), _BLOCK):
            yield from self._some(start, min(start + _BLOCK, len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def _some(self, start: int, stop: int) -> list[Any]:
        """The values from one place to another."""
        raise NotImplementedError


class Texts(_Packed, Sequence[str]):
    """Texts as UTF-8, one after the other.

    Args:
        data: all of them.
        ends: ``[N + 1]`` int64: 0, and where each text ends.

    Example::

        texts = Texts.of(["a dog", "a cat"])
        texts[1]  # "a cat"
        texts == ["a dog", "a cat"]  # True
    """

    def __init__(self, data: bytes | bytearray, ends: np.ndarray) -> None:
        self.data, self.ends = data, ends

    @staticmethod
    def of(texts: Iterable[str]) -> Texts:
        """Texts that come one at a time; those that are packed already are not copied."""
        if isinstance(texts, Keyed):
            return texts.ids
        column = texts.column if isinstance(texts, _Values) else texts
        if isinstance(column, Texts):
            return column
        growing = GrowingTexts()
        growing.extend(column)
        return growing.packed()

    def __len__(self) -> int:
        return len(self.ends) - 1

    def _some(self, start: int, stop: int) -> list[str]:
        ends = self.ends[start : stop + 1]
        first = int(ends[0])
        raw, cuts = self.data[first : int(ends[-1])], pairwise((ends - first).tolist())
        if raw.isascii():
            text = raw.decode("ascii")
            return [text[begin:end] for begin, end in cuts]
        return [raw[begin:end].decode("utf-8", _SURROGATES) for begin, end in cuts]

    def take(self, places: np.ndarray) -> Texts:
        """The texts at some places, in that order; these ones where that is all of them."""
        return self if _is_all(places, len(self)) else Texts.of(self[place] for place in places.tolist())


class GrowingTexts:
    """Packs texts that come one at a time."""

    def __init__(self) -> None:
        self._data, self._ends = bytearray(), [np.zeros(1, np.int64)]
        self._waiting: list[str] = []

    def append(self, text: str) -> None:
        """Add one."""
        self._waiting.append(text)
        if len(self._waiting) == _BLOCK:
            self._pack()

    def extend(self, texts: Iterable[str]) -> None:
        """Add several."""
        self._pack()
        rest = iter(texts)
        while some := [*islice(rest, _BLOCK)]:
            self._waiting = some
            self._pack()

    def packed(self) -> Texts:
        """All of them; none can be added afterwards."""
        self._pack()
        return Texts(self._data, np.concatenate(self._ends))

    def _pack(self) -> None:
        some, self._waiting = self._waiting, []
        lengths = [len(text) for text in some]
        data = "".join(some).encode("utf-8", _SURROGATES)
        if len(data) > sum(lengths):
            lengths = [len(text.encode("utf-8", _SURROGATES)) for text in some]
        self._ends.append(len(self._data) + np.cumsum(np.array(lengths, np.int64)))
        self._data += data


class TextLists(_Packed, Sequence[list[str]]):
    """Lists of texts, such as the references of each image.

    Args:
        texts: those of all lists.
        ends: ``[N + 1]`` int64: 0, and where each list ends.
    """

    def __init__(self, texts: Texts, ends: np.ndarray) -> None:
        self.texts, self.ends = texts, ends

    @staticmethod
    def of(lists: Iterable[Sequence[str]]) -> TextLists:
        """Lists that come one at a time."""
        ends = array("q", [0])

        def listed() -> Iterator[Sequence[str]]:
            for some in lists:
                ends.append(ends[-1] + len(some))
                yield some

        texts = Texts.of(chain.from_iterable(listed()))
        return TextLists(texts, np.frombuffer(ends, np.int64))

    @property
    def sizes(self) -> np.ndarray:
        """``[N]``: texts of each list."""
        return np.diff(self.ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def _some(self, start: int, stop: int) -> list[list[str]]:
        ends = self.ends[start : stop + 1]
        first = int(ends[0])
        texts = self.texts[first : int(ends[-1])]
        return [texts[begin:end] for begin, end in pairwise((ends - first).tolist())]

    def take(self, places: np.ndarray) -> TextLists:
        """The lists at some places, in that order; these ones where that is all of them."""
        return self if _is_all(places, len(self)) else TextLists.of(self[place] for place in places.tolist())


class Numbers(_Packed):
    """A column of numbers.

    Args:
        array: ``[N]``.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = np.ascontiguousarray(array)

    def __len__(self) -> int:
        return len(self.array)

    def _some(self, start: int, stop: int) -> list[Any]:
        return self.array[start:stop].tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype, copy=True) if copy else np.asarray(self.array, dtype)


Value = TypeVar("Value")


class Keyed(Mapping[str, Value]):
    """Values by id. Going through them in order takes no more memory; the first look-up of an id indexes all of them.

    Args:
        ids: N different ones.
        column: their values, in that order.
    """

    def __init__(self, ids: Texts, column: Sequence[Value]) -> None:
        self.ids, self.column = ids, column

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.ids)}

    def __getitem__(self, key: str) -> Value:
        return self.column[self._places[key]]

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return repr(dict(self.items()))

    def items(self) -> ItemsView[str, Value]:
        """Ids and values in order."""
        return _Items(self)

    def values(self) -> ValuesView[Value]:
        """Values in order."""
        return _Values(self)

    def sorted_items(self) -> Iterator[tuple[str, Value]]:
        """Ids and values in the order of the ids as text."""
        names = list(self.ids)
        for place in sorted(range(len(names)), key=names.__getitem__):
            yield names[place], self.column[place]


class _Items(ItemsView[str, Value]):
    _mapping: Keyed[Value]

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return zip(self._mapping.ids, self._mapping.column, strict=True)


class _Values(ValuesView[Value]):
    _mapping: Keyed[Value]

    @property
    def column(self) -> Sequence[Value]:
        return self._mapping.column

    def __iter__(self) -> Iterator[Value]:
        return iter(self.column)


def _is_all(places: np.ndarray, count: int) -> bool:
    """Whether places are 0, 1, ... of all that there are."""
    return len(places) == count and bool((places == np.arange(count)).all())
