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

import torch
from torch import Tensor

_log = logging.getLogger(__name__)


class Replayed:
    """A function of tensors that is recorded at its second call on CUDA, and from then on replayed; elsewhere it is called.

    The first call makes what libraries make once. Recording takes about as long as a call. A graph holds addresses: the
    function must read and write the same memory at every call, launch the same work, and never wait for the device.

    Args:
        function: from tensors ``[...]`` to one; its arguments have the same shapes at every call.

    Example::

        double = Replayed(lambda rows: 2 * rows)
        double(torch.ones(2))  # [2, 2]
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self._function = function
        self._given: tuple[Tensor, ...] | None = None
        self._recorded: tuple[torch.cuda.CUDAGraph, Tensor] | None = None
        self._records = True

    def __call__(self, *given: Tensor) -> Tensor:
        """What the function gives, which the next call leaves as it is."""
        if not self._records or not given[0].is_cuda:
            return self._function(*given)
        if self._given is None:
            self._given = tuple(part.clone() for part in given)
            return self._function(*given)
        for kept, part in zip(self._given, given, strict=True):
            kept.copy_(part)
        if self._recorded is None:
            try:
                self._recorded = _recorded(self._function, self._given)
            except RuntimeError as error:
                # Layers of models to come may wait for the device, which a graph cannot.
                _log.warning("words are read without a CUDA graph, which is slower: %s", error)
                self._records = False
                _place.cache_clear()  # its memory still counts as being recorded to
                return self._function(*given)
        graph, found = self._recorded
        graph.replay()
        return found.clone()


def _recorded(function: Callable[..., Tensor], given: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of the function, and where it writes its result; the function is not carried out."""
    place = _place(given[0].device.index)
    graph = torch.cuda.CUDAGraph()
    with _recording(graph, place):
        found = function(*given)
    return graph, found


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, place: _Place) -> Iterator[None]:
    """Records what is asked for inside. ``torch.cuda.graph`` would also collect garbage and return all free memory, which takes
    longer than drawing."""
    place.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(place.stream):
        graph.capture_begin(pool=place.pool, capture_error_mode="thread_local")
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
