"""The content of a folder, such that two undisturbed runs of the same command are equal."""

from __future__ import annotations

import hashlib
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Content = dict[str, str]
"""Path below the folder -> digest of what counts in it."""

ONLY_NAME = "exists"
"""In place of a digest, for files that tell the time."""


def content_of(folder: Path) -> Content:
    """What is in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            found[f"{name}/"] = "folder"
        elif path.is_file():
            found[name] = _digest(path)
    return found


def common(first: Content, second: Content) -> Content:
    """What two undisturbed runs agree on; of files that differ, only that they are there.

    Raises:
        AssertionError: they do not agree on which files there are, or on weights, captions or features.
    """
    assert first.keys() == second.keys(), f"undisturbed runs differ: {sorted(first.keys() ^ second.keys())}"
    for name in first:
        if first[name] != second[name]:
            exact = (".safetensors", ".parquet", ".jsonl", ".tar", ".txt", ".npz", ".npy", ".pt")
            assert not name.endswith(exact), f"undisturbed runs differ in {name}"
    return {name: digest if second[name] == digest else ONLY_NAME for name, digest in first.items()}


def differences(expected: Content, found: Content) -> list[str]:
    """Where a folder differs from what it should be, as faults."""
    lacking = sorted(expected.keys() - found.keys())
    further = sorted(found.keys() - expected.keys())
    other = sorted(name for name in expected.keys() & found.keys() if expected[name] not in (found[name], ONLY_NAME))
    told = (("lacks", lacking), ("also holds", further), ("has another", other))
    return [f"the result {what} {', '.join(names[:4])}" for what, names in told if names]


def _digest(path: Path) -> str:
    read = _READERS.get(path.name) or _READERS.get(path.suffix) or (lambda found: found.read_bytes())
    try:
        value = read(path)
    except (ValueError, RuntimeError, EOFError, pickle.UnpicklingError, tarfile.TarError):  # torn
        value = path.read_bytes()
    content = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _lines(path: Path) -> list[Any]:
    """Rows of JSON, without what a clock says."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        {key: value for key, value in row.items() if "second" not in key} if isinstance(row, dict) else row
        for row in rows
    ]


_RESUMED = ("resume_from_checkpoint", "resumed_at_step")
"""What tells that a run was resumed."""


def _run(path: Path) -> str:
    """A description of a run, as if it had not been resumed."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not any(name in line for name in _RESUMED))


def _members(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        return [(member.name, archive.extractfile(member).read()) for member in archive if member.isfile()]  # type: ignore[union-attr]


def _saved(path: Path) -> str:
    """What torch saved, whatever the order and the identity of its keys."""
    return _told(torch.load(path, weights_only=True))


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return repr(sorted((str(key), _told(each)) for key, each in value.items()))
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.numpy().tobytes()).hexdigest() + str((value.dtype, value.shape))
    return repr(value)


_READERS: dict[str, Callable[[Path], Any]] = {
    "run.json": _run,
    "trainer_state.json": _run,
    "recipe.yaml": _run,
    "acknowledged": lambda path: b"",  # a rater's notes, which a kill may cut
    "log.txt": lambda path: b"",  # of a job: it is continued
    ".jsonl": _lines,
    ".tar": _members,
    ".pt": _saved,
}
