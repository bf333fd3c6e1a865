"""What was found in a large file, on disk, so that it is gone through once."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tellapart.files import cache_dir, read_json, write_text

logger = logging.getLogger(__name__)

VERSION = 2
"""To be raised when files are gone through otherwise."""


def remembered(kind: str, path: Path, find: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What ``find`` gives for a file; known from an earlier time if its path, size and time of change are the same.

    Args:
        kind: what is looked for; names the folder under the cache folder.
        path: the file.
        find: goes through it; what it gives must be JSON. A finding with a ``problem`` is not kept: the file may be whole
            the next time.

    Raises:
        OSError: the file is not there.
    """
    stat = path.stat()
    key = json.dumps([VERSION, str(path.absolute()), stat.st_size, stat.st_mtime_ns])
    stored = cache_dir() / "unlabelled" / kind / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    try:
        known = read_json(stored)
        if isinstance(known, dict):
            return known
    except (OSError, ValueError):  # not there, or damaged
        pass
    found = find(path)
    if not found.get("problem"):
        try:
            write_text(stored, json.dumps(found))
        except OSError as error:
            logger.warning("%s cannot be written (%s): %s is gone through again next time.", stored, error, path)
    return found
