"""Recording what the CPU asks of a GPU for one word, and asking for it again at once.

A decoder reads one word of every caption by hundreds of small operations. A GPU is done with each sooner than Python has asked
for the next. As a CUDA graph, all of them are asked for together.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger(__name__)


Recorder = Callable[[Callable[..., Tensor], tuple[Tensor, ...]], tuple[Any, Tensor]]
"""From a function and its arguments to a graph of it, and to the memory that ``graph.replay()`` writes its result to."""

TRIES = 2
"""Times that recording may fail: what a library does once, at its first call of a kind, may be what a graph cannot hold."""


class Replayed:
    """A function of tensors that is recorded at its second call on CUDA, and from then on replayed; elsewhere it is called.

    The first call makes what libraries make once. Recording takes about as long as a call. A graph holds addresses: the
    function must read and write the same memory at every call, launch the same work, and never wait for the device. A function
    that cannot be recorded is called.

    Args:
        function: from tensors ``[...]`` to one; its arguments have the same shapes at every call.
        record: makes the graph; none: CUDA's, for arguments there.

    Example::

        double = Replayed(lambda rows: 2 * rows)
        double(torch.ones(2))  # [2, 2]
    """

    def __init__(self, function: Callable[..., Tensor], record: Recorder | None = None) -> None:
        self._function, self._record = function, record
        self._given: tuple[Tensor, ...] | None = None
        self._recorded: tuple[Any, Tensor] | None = None
        self._failed = 0

    def __call__(self, *given: Tensor) -> Tensor:
        """What the function gives, which the next call leaves as it is."""
        if self._failed == TRIES or (self._record is None and not given[0].is_cuda):
            return self._function(*given)
        if self._given is None:
            self._given = tuple(part.clone() for part in given)
            return self._function(*given)
        for kept, part in zip(self._given, given, strict=True):
            kept.copy_(part)
        if self._recorded is None:
            try:
                self._recorded = (self._record or recorded)(self._function, self._given)
            except RuntimeError as error:
                return self._without(error, given)
        graph, found = self._recorded
        graph.replay()
        return found.clone()

    def _without(self, error: RuntimeError, given: tuple[Tensor, ...]) -> Tensor:
        """The function's result where it could not be recorded."""
        self._failed += 1
        if self._failed == TRIES:
            _log.warning("words are read without a CUDA graph, which is slower: %s", error)
        return self._function(*given)


def recorded(function: Callable[..., Tensor], given: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A CUDA graph of the function, and where it writes its result; the function is not carried out.

    Raises:
        RuntimeError: it does what a graph cannot hold.
    """
    place = _place(given[0].device.index)
    graph = torch.cuda.CUDAGraph()
    try:
        with _recording(graph, place):
            found = function(*given)
    except RuntimeError:
        _place.cache_clear()  # its memory still counts as being recorded to
        raise
    return graph, found


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, place: _Place) -> Iterator[None]:
    """Records what is asked for inside.

    ``torch.cuda.graph`` would also collect garbage and return all free memory, which takes longer than drawing. In the relaxed
    mode libraries may load a kernel at its first use.
    """
    place.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(place.stream):
        graph.capture_begin(pool=place.pool, capture_error_mode="relaxed")
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # what could not be recorded makes this fail, too
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(place.stream)


class _Place:
    """Where graphs of a device are recorded: one stream, and memory that they share, since one of them runs at a time."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        # Shared memory lives as long as some graph that uses it: this one, of nothing.
        self._kept = torch.cuda.CUDAGraph()
        with warnings.catch_warnings(), _recording(self._kept, self):
            warnings.simplefilter("ignore")  # torch says that the graph is empty


@cache
def _place(device: int) -> _Place:
    with torch.cuda.device(device):
        return _Place()
