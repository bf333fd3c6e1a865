"""Methods, rewards and parts that a Python file brings, named on a command line and never by a recipe."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError


@dataclass(frozen=True)
class Offered:
    """Extensions in a file: its dictionaries ``METHODS``, ``REWARDS`` and ``PARTS``, name -> what an entry point would name."""

    methods: Mapping[str, Any] = field(default_factory=dict)
    rewards: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)


def offered_by(path: Path) -> Offered:
    """Run a file, and take what it offers.

    Args:
        path: a Python file. It is run: name only files that you trust.

    Raises:
        UsageError: it does not exist, fails, or offers nothing.
    """
    if not path.is_file():
        raise UsageError(f"--plugin {path} does not exist: name a Python file with REWARDS, METHODS or PARTS in it.")
    name = f"tellapart_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--plugin {path} is not a Python file: name one that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickles of the file look for it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"--plugin {path} cannot be run ({type(error).__name__}: {error}): correct it.") from error
    offers = [vars(module).get(key, {}) for key in ("METHODS", "REWARDS", "PARTS")]
    wrong = next((offer for offer in offers if not isinstance(offer, Mapping)), None)
    if wrong is not None or not any(offers):
        raise UsageError(
            f"--plugin {path} offers nothing: give it a dictionary such as REWARDS = {{'brevity': Brevity}}, or METHODS or PARTS."
        )
    return Offered(*offers)
