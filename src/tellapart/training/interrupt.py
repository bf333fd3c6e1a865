"""Stopping politely: the first Ctrl-C or SIGTERM lets the step end, the second does not wait."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_log = logging.getLogger(__name__)


class Interrupts:
    """Catches SIGINT and SIGTERM while the block runs (in the main thread; elsewhere nothing can be caught)."""

    def __init__(self) -> None:
        self.requested = False
        self._process = os.getpid()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self.requested and kind is None:
            raise KeyboardInterrupt(
                "stopped on request; this training had just ended"
            )  # the caller may continue otherwise

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a loader's worker, which ends with the process that it works for
            return
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        _log.warning(
            "stopping after this step and a checkpoint; interrupt again to stop at once without one%s", _limit()
        )


def _limit() -> str:
    """What torchrun leaves for that, if it has launched this process."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    return "; torchrun kills what takes longer than its --shutdown_timeout (by default 30 s)"
