"""SPICE (Anderson, Fernando, Johnson and Gould, ECCV 2016), by the authors' own program: Java and Stanford CoreNLP.

A caption is parsed into objects, attributes and relations; the score is the F measure of these against those of all
references together, with WordNet synonyms counted as equal.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tellapart.errors import UsageError
from tellapart.files import cache_dir, read_json, write_text
from tellapart.progress import bar

# The program that defines SPICE, as its authors published it: what it needs on this machine, and one run of it.

ALL = "All"
PARTS = ("Object", "Attribute", "Relation", "Color", "Cardinality", "Size")
"""Kinds of what is compared, as the program calls them; the paper calls the fifth "count"."""

Scores = dict[str, dict[str, float | None]]
"""Kind -> ``f``, ``pr`` and ``re``, 0 to 1; null where the references have nothing of that kind."""

JARS = "spice-*.jar"
CORENLP = "stanford-corenlp-3.6.0"
ZIP = "nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip"
LAST_JAVA = 14
"""Later ones have no JavaScript, with which the jar writes its scores: it would read every caption, and then fail."""

_JAVA_CLASS = re.compile(r"(?:\w+\.)+\w*(?:Exception|Error)\b")
_X86 = frozenset({"x86_64", "amd64"})


@dataclass(frozen=True)
class SpiceProgram:
    """The jar with a Java to run it.

    Args:
        jar: the program; its libraries are in ``lib`` next to it.
        java: the executable.
        heap: most memory Java may take, such as ``8G``.
        timeout: seconds that one run may take.
    """

    jar: Path
    java: str
    heap: str = "8G"
    timeout: float = 3600.0

    @staticmethod
    def find(jar: Path | None = None, *, heap: str = "8G", timeout: float = 3600.0) -> SpiceProgram:
        """The program, if all its parts are on this machine. Nothing is started or fetched to find out.

        Args:
            jar: the jar or its folder; null takes that of an installed pycocoevalcap.
            heap: most memory Java may take.
            timeout: seconds that one run may take.

        Raises:
            UsageError: a part is missing: which, and where to put it.
        """
        program = _jar(jar)
        java = shutil.which("java", path=_java_path())
        lacks = [*_lacking_libraries(program), *_lacking_java(java)]
        if lacks or java is None:
            reasons, remedies = zip(*lacks, strict=True)
            raise UsageError(f"SPICE is left out, because {' and '.join(reasons)}: {', and '.join(remedies)}.")
        return SpiceProgram(program, java, heap, timeout)

    def fingerprint(self) -> str:
        """A hash of the jar, and of the names and sizes of its libraries."""
        digest = hashlib.sha256(self.jar.read_bytes())
        for path in filter(Path.is_file, (self.jar.parent / name for name in _libraries(self.jar))):
            digest.update(f"{path.name} {path.stat().st_size}".encode())
        return digest.hexdigest()

    def run(self, captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[Scores]:
        """The jar's scores of each caption.

        Whatever ends the run early (the time limit, Ctrl-C, an error) also ends Java.

        Raises:
            UsageError: Java fails, takes too long, or writes something else.
        """
        rows = enumerate(zip(captions, references, strict=True))
        items = [{"image_id": i, "test": text, "refs": list(targets)} for i, (text, targets) in rows]
        with TemporaryDirectory(prefix="tellapart-spice-") as folder:
            asked, told, log = (Path(folder) / name for name in ("captions.json", "scores.json", "messages.txt"))
            asked.write_text(json.dumps(items), encoding="ascii")  # Java reads it in the machine's own encoding
            code = self._started([str(asked), "-out", str(told), "-subset", "-silent", *self._parses()], log)
            messages = log.read_text(encoding="utf-8", errors="replace")
            if code != 0:
                raise self._failure(f"stopped with exit code {code}", messages)
            try:
                found = read_json(told)
                scores = {item["image_id"]: _kept(item["scores"]) for item in found}
                return [scores[i] for i in range(len(items))]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise self._failure("wrote no scores", messages) from error

    def _started(self, words: Sequence[str], log: Path) -> int:
        """The exit status of Java, whose messages go to ``log``."""
        command = [self.java, f"-Xmx{self.heap}", "-jar", str(self.jar), *words]
        with log.open("wb") as file:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)  # noqa: S603  # a list of words, no shell
            except OSError as error:
                raise UsageError(
                    f"SPICE is left out, because {self.java} cannot be started ({error}): reinstall Java."
                ) from error
            try:
                return process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                raise UsageError(
                    f"SPICE is left out, because one run of its Java took more than {self.timeout:g} s: give a larger "
                    "--spice_timeout; what was scored so far is kept."
                ) from None
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def _parses(self) -> list[str]:
        """Where the jar keeps the parses of captions; its database knows no other processors."""
        if platform.machine().lower() not in _X86:
            return []
        folder = cache_dir() / "spice" / "parses"
        folder.mkdir(parents=True, exist_ok=True)
        return ["-cache", str(folder)]

    def _failure(self, what: str, messages: str) -> UsageError:
        path = cache_dir() / "spice" / "java_messages.txt"
        write_text(path, messages)
        return UsageError(
            f"SPICE is left out, because its Java {what} ({java_error(messages)}; all of it is in {path}): mend that, with "
            "another --spice_heap if memory ran out; what was scored so far is kept."
        )


def _kept(found: dict[str, Any]) -> Scores:
    """The cached part of the jar's output for a caption."""
    return {kind: {name: found[kind][name] for name in ("f", "pr", "re")} for kind in (ALL, *PARTS)}


def java_error(messages: str) -> str:
    """The line of Java's messages that names the error."""
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    named = [line for line in lines if _JAVA_CLASS.search(line) and not line.startswith("at ")]
    return named[0] if named else ", ".join(lines[:2]) or "without a word"


def _jar(given: Path | None) -> Path:
    """The jar itself."""
    if given is not None and given.is_file():
        return given
    folder = given
    if folder is None:
        package = find_spec("pycocoevalcap")  # nothing of it is imported: its own class would start a download
        places = package.submodule_search_locations if package is not None else None
        folder = Path(next(iter(places))) / "spice" if places else None
    found = sorted(folder.glob(JARS)) if folder is not None else []
    if not found:
        where = f"{given} holds no {JARS}" if given is not None else "its jar is missing"
        raise UsageError(
            f"SPICE is left out, because {where}: install pycocoevalcap, which has it, or name the jar with --spice_jar."
        )
    return found[-1]


def _libraries(jar: Path) -> list[str]:
    """The files that the jar needs next to it.

    Raises:
        UsageError: it is not a jar.
    """
    try:
        with zipfile.ZipFile(jar) as file:
            manifest = file.read("META-INF/MANIFEST.MF").decode()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"SPICE is left out, because {jar} is not a jar ({error}): name another with --spice_jar."
        ) from error
    joined = re.sub(r"\r?\n ", "", manifest)  # long lines continue after a space
    found = re.search(r"^Class-Path: (.*)$", joined, re.MULTILINE)
    return found[1].split() if found else []


def _lacking_libraries(jar: Path) -> list[tuple[str, str]]:
    """``(what is missing, what to do)``."""
    missing = [Path(name) for name in _libraries(jar) if not (jar.parent / name).is_file()]
    if not missing:
        return []
    stanford = all(path.name.startswith(CORENLP) for path in missing)
    what = "Stanford CoreNLP 3.6.0 is missing" if stanford else f"{len(missing)} libraries of {jar.name} are missing"
    source = f" (from {ZIP})" if any(path.name.startswith(CORENLP) for path in missing) else ""
    names = " and ".join(path.name for path in missing)
    return [(what, f"put {names}{source} into {jar.parent / missing[0].parent}")]


def _lacking_java(java: str | None) -> list[tuple[str, str]]:
    """``(what is missing, what to do)``."""
    if java is None:
        return [("there is no Java", f"install Java 8 (at most {LAST_JAVA}) and set JAVA_HOME to it")]
    version = java_version(Path(java))
    if version is not None and version > LAST_JAVA:
        why = f"its jar does not work with Java {version}, only with 8 to {LAST_JAVA}"
        return [(why, "set JAVA_HOME to such a Java")]
    return []


def _java_path() -> str | None:
    """Where Java is looked for: ``$JAVA_HOME/bin`` if that is set, else the usual path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin") if home else None


def java_version(java: Path) -> int | None:
    """The major version of a Java, read from the file ``release`` of its folder; None where there is none."""
    for folder in java.resolve().parents[1:3]:
        try:
            found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', (folder / "release").read_text(encoding="utf-8"), re.M)
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return int(found[1])
    return None


# Scores that took long, kept on disk by what they are of.

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
                query = f"SELECT key, value FROM scores WHERE key IN ({', '.join('?' * len(some))})"  # noqa: S608  # question marks
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


class Spice:
    """Scores captions with the program, a few hundred per run, and none that was scored before.

    Scores are kept under the cache folder by the program, the caption and its references, run by run: what is stopped
    resumes where it was.

    Args:
        program: see ``find``.
        images_a_run: captions of a run. Each run reads the parser's models again, which takes seconds, and the bar moves when one
            has ended.
    """

    def __init__(self, program: SpiceProgram, *, images_a_run: int = 500) -> None:
        self.program, self.images_a_run = program, images_a_run
        self.fingerprint = program.fingerprint()

    def score(self, captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[Scores]:
        """The scores of N captions.

        Args:
            captions: N texts in words joined by spaces, as ``ptb_tokenize`` gives them.
            references: N lists of such texts, none empty.

        Raises:
            UsageError: Java fails, or takes too long.
            ValueError: a caption has no references.
        """
        if not all(references):
            raise ValueError("SPICE needs references of every caption")
        pairs = {_key(pair): pair for pair in zip(captions, references, strict=True)}
        store = ScoreStore(cache_dir() / "spice" / f"scores-{self.fingerprint[:16]}.sqlite")
        known: dict[str, Scores] = store.load(list(pairs))
        missing = [key for key in pairs if key not in known]
        with bar("SPICE (Java)", len(pairs), done=len(pairs) - len(missing)) as running:
            for start in range(0, len(missing), self.images_a_run):
                keys = missing[start : start + self.images_a_run]
                some, targets = zip(*(pairs[key] for key in keys), strict=True)
                found = dict(zip(keys, self.program.run(some, targets), strict=True))
                store.add(found)
                known |= found
                running.advance(len(keys))
        return [known[_key(pair)] for pair in zip(captions, references, strict=True)]


def spice_figures(scores: Sequence[Scores]) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """The metrics of a set, and a column per image: fractions from 0 to 1.

    ``SPICE`` is the mean F over images, as pycocoevalcap 1.2 has it. ``SPICE_Object`` and the other kinds are means over
    the images whose references have something of that kind, as the program's own summary has them.

    Args:
        scores: of each image.
    """
    columns: dict[str, list[Any]] = {
        "SPICE": [found[ALL]["f"] for found in scores],
        "SPICE_precision": [found[ALL]["pr"] for found in scores],
        "SPICE_recall": [found[ALL]["re"] for found in scores],
    }
    columns |= {f"SPICE_{part}": [found[part]["f"] for found in scores] for part in PARTS}
    averaged = [name for name in columns if name not in ("SPICE_precision", "SPICE_recall")]
    defined = {name: [value for value in columns[name] if value is not None] for name in averaged}
    return {name: float(np.mean(values)) for name, values in defined.items() if values}, columns


def _key(pair: tuple[str, Sequence[str]]) -> str:
    """Key of a caption with its references."""
    caption, references = pair
    return hashlib.sha256(json.dumps([caption, *references]).encode()).hexdigest()
