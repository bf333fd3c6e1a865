"""The command line of what is done with one setting in a process of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tellapart.experiments.world_run import Setting, add_setting, setting_of


def on_one_thread(work: Callable[[Setting, Path], None], argv: Sequence[str] | None, description: str | None) -> None:
    """Parse a setting and ``--output_dir``, and do the work.

    Raises:
        UsageError: the setting's row is unknown.
    """
    import torch

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output_dir", type=Path, required=True)
    add_setting(parser)
    options: dict[str, Any] = vars(parser.parse_args(argv))
    folder = options.pop("output_dir")
    work(setting_of(options), folder)
