"""Raters' answers on disk: each is safe before the next item is shown."""

from __future__ import annotations

import sqlite3
import threading
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tellapart.errors import UsageError

LONGEST_NAME = 60
"""Letters of a rater's name."""
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that show what follows in another direction."""

MODEL = "model: "
"""What the names of raters that are models begin with, and no person's."""

_TABLES = """
CREATE TABLE IF NOT EXISTS raters (key TEXT PRIMARY KEY, name TEXT NOT NULL, started TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    rater TEXT NOT NULL REFERENCES raters (key),
    item TEXT NOT NULL,
    choice TEXT NOT NULL,
    first TEXT NOT NULL,
    seconds REAL,
    answered TEXT NOT NULL,
    UNIQUE (rater, item)
);
"""


@dataclass(frozen=True)
class Answer:
    """What a rater said of an item.

    Args:
        number: grows with every answer and is never used again.
        rater: as the rater wrote it first; of a model its name behind ``MODEL``.
        item: its id.
        choice: one of the question's choices, or ``unsure``.
        first: which of the choices was shown first (left, or above); a model answers in both orders.
        seconds: from the showing to the answer, as the page measured it; None if it did not.
        answered: when, UTC, ISO 8601.
    """

    number: int
    rater: str
    item: str
    choice: str
    first: str
    seconds: float | None
    answered: str


class Answers:
    """The answers of a study, in an SQLite file; may be used from several threads and processes.

    Every change is a transaction of its own in a write-ahead log that reaches the disk before the call returns
    (``synchronous=FULL``): neither a killed server nor a power cut loses an answer that was acknowledged.

    Raises:
        UsageError: it is not a file of answers.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            self._base = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = FULL")
            self._base.executescript(_TABLES)
        except sqlite3.Error as error:
            raise UsageError(f"{path} holds no answers ({error}): move it away, or name another folder.") from error

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def enter(self, name: str, *, model: bool = False) -> str:
        """Make a rater known; returns the key under which answers are kept.

        Names that differ only in capitals, white space or Unicode form are one rater's.

        Args:
            name: as the rater writes it.
            model: whether the rater is a model, whose name is marked as one; of one that is too long the end is kept, since
                folders of one place differ there.

        Raises:
            UsageError: the name cannot be used.
        """
        shown = marked(name) if model else _tidy(name)
        if not model and is_model(key_of(shown)):
            raise UsageError(f"names that begin with {MODEL.strip()!r} are those of models: give another.")
        kinds = {unicodedata.category(letter) for letter in shown}
        seen = any(kind[0] in "LNPS" for kind in kinds)
        if not seen or len(shown) > LONGEST_NAME or kinds & {"Cc", "Cs"} or _TURNING & set(shown):
            raise UsageError(f"the name {shown[:LONGEST_NAME]!r} cannot be used: give 1 to {LONGEST_NAME} letters.")
        key = key_of(shown)
        with self._lock:
            self._base.execute("INSERT OR IGNORE INTO raters VALUES (?, ?, ?)", (key, shown, _now()))
        return key

    def name_of(self, key: str) -> str | None:
        """The name of the rater with this key, as it was given first; None if ``enter`` never gave the key."""
        with self._lock:
            found = self._base.execute("SELECT name FROM raters WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def record(self, key: str, item: str, choice: str, *, first: str, seconds: float | None = None) -> bool:
        """Keep an answer; False, and nothing changes, where the rater has answered the item before."""
        row = (key, item, choice, first, seconds, _now())
        columns = "(rater, item, choice, first, seconds, answered)"
        with self._lock:
            done = self._base.execute(f"INSERT OR IGNORE INTO answers {columns} VALUES (?, ?, ?, ?, ?, ?)", row)  # noqa: S608  # names of our own columns
            return done.rowcount == 1

    def withdraw(self, key: str, number: int) -> bool:
        """Take an answer back if it is the rater's last; False, and nothing changes, if it is not."""
        last = "(SELECT MAX(number) FROM answers WHERE rater = ?)"
        with self._lock:
            done = self._base.execute(
                f"DELETE FROM answers WHERE rater = ? AND number = ? AND number = {last}",  # noqa: S608  # no text of others
                (key, number, key),
            )
            return done.rowcount == 1

    def of(self, key: str) -> dict[str, int]:
        """Item -> number of each answer of a rater, the first answered first."""
        with self._lock:
            rows = self._base.execute("SELECT item, number FROM answers WHERE rater = ? ORDER BY number", (key,))
            return dict(rows.fetchall())

    def raters(self) -> list[str]:
        """Names, in the order in which they began."""
        with self._lock:
            return [name for (name,) in self._base.execute("SELECT name FROM raters ORDER BY rowid").fetchall()]

    def all(self) -> list[Answer]:
        """Every answer, in the order given."""
        with self._lock:
            rows = self._base.execute(
                "SELECT number, name, item, choice, first, seconds, answered FROM answers JOIN raters ON rater = key "
                "ORDER BY number"
            ).fetchall()
        return [Answer(*row) for row in rows]


def marked(model: str) -> str:
    """The name of a rater that is a model: of a model's name as much of the end as fits."""
    return f"{MODEL}{_tidy(model)[-(LONGEST_NAME - len(MODEL)) :].lstrip()}"


def key_of(rater: str) -> str:
    """The key of a rater's name: equal for names that differ only in capitals or Unicode form."""
    return unicodedata.normalize("NFKC", rater).casefold()


def _tidy(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name).split())


def is_model(rater: str) -> bool:
    """Whether a rater's name is marked as a model's."""
    return rater.casefold().startswith(MODEL.strip())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
