"""What a launcher such as torchrun or accelerate tells each of its processes, without torch."""

from __future__ import annotations

import os


def processes() -> int:
    """Processes of this launch."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this process writes and speaks for its launch."""
    return os.environ.get("RANK", "0") == "0"
