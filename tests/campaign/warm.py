"""Importing what commands import, once: a scout runs some of them in a fork and says what it has imported."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path

from .forks import Fork

_NEVER = ("tests", "campaign", "pytest", "_pytest", "torch._C", "faiss")
"""Modules that are not imported beforehand: our own, and those that would start threads."""


def imports(scratch: Path) -> None:
    """Import everything that commands need into this process."""
    names = scratch / "modules"

    def scout() -> int:
        from .given import make_given
        from .targets import TARGETS, Place

        given = make_given(scratch / "scout" / "given")
        os.environ["TELLAPART_CACHE"] = str(scratch / "scout-cache")
        for name in ("train vlrm_rs", "caption, parquet, 1 process", "judge", "bench people", "mine", "features, mean"):
            place = Place(scratch / "scout" / name, given)
            place.folder.mkdir()
            TARGETS[name].prepare(place)
            TARGETS[name].run(place)
        names.write_text("\n".join(sys.modules))
        return 0

    outcome = Fork(scout, scratch / "said").wait(600)
    if outcome.code:
        raise SystemExit(f"the campaign cannot begin:\n{outcome.err}")
    for name in names.read_text().split("\n"):
        if name not in sys.modules and not name.startswith(_NEVER) and not name.startswith("_"):
            with suppress(Exception):
                importlib.import_module(name)
