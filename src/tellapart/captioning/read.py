"""Reading and preprocessing images in threads, ahead of the drawing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tellapart.captioning.feature_ids import feature_id
from tellapart.captioning.records import Item
from tellapart.data.center_crop import center_square
from tellapart.data.remote.images import fetch_ahead
from tellapart.errors import UsageError
from tellapart.frames import Opened, Opener, Processor
from tellapart.types import Batch

if TYPE_CHECKING:
    from tellapart.data.features.base import FeatureInputs

R = TypeVar("R")


@dataclass(frozen=True)
class Read:
    """Images that were read together.

    Args:
        items: those that are to be captioned, in the batch's order; the batch may have further images after them.
        batch: they as tensors, on the CPU; none when no image could be read.
        errors: image id -> why it could not be read.
    """

    items: list[Item]
    batch: Batch | None
    errors: dict[str, str] = field(default_factory=dict)


class _One(NamedTuple):
    """An image that was opened, and under which id each set of features has it."""

    item: Item
    pictures: Opened
    names: dict[str, str]


class Reader:
    """Decodes images and runs each processor on them; an image that cannot be read becomes a sentence.

    Args:
        processors: name of a model -> its processor. Without any, no picture is opened.
        features: name of a model -> what it reads of images.
        center_crop: cut each picture to its largest centred square first.
        distractors: a batch's images -> further images to read with them, which are not captioned.
    """

    def __init__(
        self,
        processors: Mapping[str, Processor],
        *,
        features: Mapping[str, FeatureInputs] | None = None,
        center_crop: bool = False,
        distractors: Callable[[Sequence[Item]], Sequence[Item]] | None = None,
    ) -> None:
        self.processors, self.features, self.center_crop = dict(processors), dict(features or {}), center_crop
        self.distractors = distractors
        self._opener = Opener(self.processors)

    def __call__(self, items: Sequence[Item]) -> Read:
        """The images as one batch. Without references: nothing here looks at them."""
        if self.distractors is None:
            return self._read(items)
        own = {item.id for item in items}
        whole = self._read([*items, *self.distractors(items)])  # together, so that processors pad them alike
        read = [item for item in whole.items if item.id in own]
        errors = {name: error for name, error in whole.errors.items() if name in own}
        return Read(read, whole.batch if read else None, errors)

    def _read(self, items: Sequence[Item]) -> Read:
        opened: list[_One] = []
        failed = fetch_ahead(item.image for item in items) if self.processors else {}
        errors = {item.id: failed[item.image.name] for item in items if item.image.name in failed}
        for item in items:
            if item.id in errors:
                continue
            try:
                names = {name: feature_id(look_up.features, item) for name, look_up in self.features.items()}
                for name, look_up in self.features.items():
                    look_up([names[name]])
                pictures = self._opener.open(item.image, cut=center_square if self.center_crop else None)
                opened.append(_One(item, pictures, names))
            except UsageError as error:
                errors[item.id] = str(error)
        try:
            return self._batch(opened, errors)
        except (ValueError, TypeError, ArithmeticError, OSError, RuntimeError):  # an image no processor can take
            fit = [one for one in opened if self._fits(one, errors)]
            return self._batch(fit, errors)

    def _batch(self, opened: Sequence[_One], errors: dict[str, str]) -> Read:
        items = [one.item for one in opened]
        if not items:
            return Read([], None, errors)
        ids = [item.id for item in items]
        inputs = self._opener.inputs([one.pictures for one in opened])
        for name, look_up in self.features.items():
            inputs |= {name: look_up([one.names[name] for one in opened])}
        return Read(items, Batch(ids, [[] for _ in items], inputs, [item.context for item in items]), errors)

    def _fits(self, one: _One, errors: dict[str, str]) -> bool:
        item = one.item
        try:
            self._opener.inputs([one.pictures])
        except (ValueError, TypeError, ArithmeticError, OSError, RuntimeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
            errors[item.id] = f"{item.image.name} cannot be prepared for the model ({reason}): resize or remove it."
            return False
        return True


Take = Callable[[bool], "list[Item] | None"]
"""The next batch; none when there are no more, or, unless asked to wait, none at the moment."""


def taking(batches: Iterator[list[Item]]) -> Take:
    """The batches of an iterator, one per call."""
    return lambda wait: next(batches, None)


def read_ahead(take: Take, read: Callable[[list[Item]], R], *, threads: int) -> Iterator[R]:
    """Batches read in order while earlier ones are in use, by ``threads`` threads; 0 reads when asked."""
    if threads < 1:
        while (items := take(True)) is not None:
            yield read(items)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="read")
    waiting: deque[Future[R]] = deque()
    try:
        while True:
            while len(waiting) <= threads and (items := take(not waiting)) is not None:
                waiting.append(pool.submit(read, items))
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
