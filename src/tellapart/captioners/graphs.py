"""Recording what the CPU asks of a GPU for one word, and asking for it again at once.

A decoder reads one word of every caption by hundreds of small operations. A GPU is done with each sooner than Python has asked
for the next. As a CUDA graph, all of them are asked for together.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger(__name__)


Function = Callable[..., Tensor]
"""From tensors to one, whose arguments have the same shapes at every call."""

Record = Callable[[Function, tuple[Tensor, ...]], tuple[Any, Tensor]]
"""From a function and its arguments to a graph of it, and to the memory that ``graph.replay()`` writes its result to."""

TRIES = 2
"""Times that recording may fail: what a library does once, at its first call of a kind, may be what a graph cannot hold."""


class Recorder:
    """Makes the graphs of a model's functions, until that has failed ``TRIES`` times.

    Args:
        record: makes a graph; none: CUDA's, for arguments there.
    """

    def __init__(self, record: Record | None = None) -> None:
        self.record = record
        self._failed = self._made = 0

    def works(self, given: Tensor) -> bool:
        """Whether functions of such arguments may be recorded."""
        return self._failed < TRIES and (self.record is not None or given.is_cuda)

    def at_once(self, given: Tensor) -> bool:
        """Whether a function need not be called before it is recorded: a function of the model was, and made what libraries
        make once. Under autocast the call before also casts the weights, which a graph would do at each replay."""
        return self._made > 0 and not torch.is_autocast_enabled(given.device.type)

    def __call__(self, function: Function, given: tuple[Tensor, ...]) -> tuple[Any, Tensor] | None:
        """As ``Record``; none where the function does what a graph cannot hold."""
        try:
            found = (self.record or recorded)(function, given)
            self._made += 1
            return found
        except RuntimeError as error:
            self._failed += 1
            if self._failed == TRIES:
                _log.warning("words are read without CUDA graphs, which is slower: %s", error)
            return None


class Replayed:
    """Calls of one function, which is recorded at the second one, or at the first, and from then on replayed.

    Recording takes about as long as a call. A graph holds addresses: the function must read and write the same memory at every
    call, launch the same work, and never wait for the device. A function that cannot be recorded is called, as are all where
    ``recorder`` does not work.

    The function is not kept, since it would keep whatever it reads alive until Python looks for cycles. One thread draws at a
    time: graphs of a device share their memory.

    Args:
        recorder: makes the graph.

    Example::

        replayed = Replayed(Recorder())
        replayed(lambda rows: 2 * rows, torch.ones(2))  # [2, 2]
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._given: tuple[Tensor, ...] | None = None
        self._recorded: tuple[Any, Tensor] | None = None

    def __call__(self, function: Function, *given: Tensor) -> Tensor:
        """What the function gives, which the next call leaves as it is."""
        if self._recorded is None and not self._recorder.works(given[0]):
            return function(*given)
        if self._given is None:
            self._given = tuple(part.clone() for part in given)
            if not self._recorder.at_once(given[0]):
                return function(*given)
        for kept, part in zip(self._given, given, strict=True):
            kept.copy_(part)
        if self._recorded is None:
            self._recorded = self._recorder(function, self._given)
        if self._recorded is None:
            return function(*given)
        graph, found = self._recorded
        graph.replay()
        return found.clone()


def recorded(function: Function, given: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A CUDA graph of the function, and where it writes its result; the function is not carried out.

    Raises:
        RuntimeError: it does what a graph cannot hold.
    """
    device = given[0].device.index
    graph = torch.cuda.CUDAGraph()
    try:
        with _recording(graph, _place(device)):
            found = function(*given)
    except RuntimeError:
        _leave(device)
        raise
    return graph, found


def _leave(device: int) -> None:
    """Give up the place of a recording that failed."""
    pool = _place(device).pool
    _place.cache_clear()
    with suppress(AttributeError, RuntimeError):
        # Some releases of torch go on counting its memory as being recorded to.
        torch._C._cuda_endAllocateToPool(device, pool)
    _place(device)  # the empty recording that it begins with sets random numbers free, too


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, place: _Place) -> Iterator[None]:
    """Records what is asked for inside.

    ``torch.cuda.graph`` would also collect garbage and return all free memory, which takes longer than drawing. In the relaxed
    mode libraries may load a kernel at its first use.
    """
    around = torch.cuda.current_stream(place.stream.device)
    place.stream.wait_stream(around)
    with _without_garbage_collection(), torch.cuda.stream(place.stream):
        graph.capture_begin(pool=place.pool, capture_error_mode="relaxed")
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # what could not be recorded makes this fail, too
                graph.capture_end()
            raise
        graph.capture_end()
    around.wait_stream(place.stream)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A graph that is collected while another is recorded would spoil it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Place:
    """Where graphs of a device are recorded: one stream, and memory that they share, since one of them runs at a time.

    The memory, what reading one word takes besides keys and values, stays with the process.
    """

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
