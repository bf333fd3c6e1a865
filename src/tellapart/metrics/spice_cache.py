"""Scores that took long, kept on disk by what they are of."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError

logger = logging.getLogger(__name__)

_AT_ONCE = 500
"""Keys of a query; SQLite allows some thousand."""


class ScoreStore:
    """Key -> anything that JSON can hold, in a file of SQLite; several processes may use it at once.

    A damaged file is removed with a warning, and what it held is scored again.

    Args:
        path: the file.

    Raises:
        UsageError: the file cannot be written or read (on any use).
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, keys: Sequence[str]) -> dict[str, Any]:
        """Those of ``keys`` that are stored."""
        try:
            return self._load(keys)
        except (sqlite3.DatabaseError, ValueError) as error:
            logger.warning("%s is damaged (%s): it is removed and its captions are scored again.", self.path, error)
            self.path.unlink(missing_ok=True)
            return {}

    def add(self, values: Mapping[str, Any]) -> None:
        """Store values, all or none."""
        rows = [(key, json.dumps(value)) for key, value in values.items()]
        with self._open() as connection, connection:
            connection.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", rows)

    def _load(self, keys: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with self._open() as connection:
            for start in range(0, len(keys), _AT_ONCE):
                some = keys[start : start + _AT_ONCE]
                query = f"SELECT key, value FROM scores WHERE key IN ({', '.join('?' * len(some))})"
                found |= {key: json.loads(value) for key, value in connection.execute(query, some)}
        return found

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=60)) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS scores (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
                yield connection
        except (OSError, sqlite3.OperationalError) as error:
            raise UsageError(
                f"the cache {self.path} cannot be used ({error}): make it writable, or set TELLAPART_CACHE to another folder."
            ) from error
