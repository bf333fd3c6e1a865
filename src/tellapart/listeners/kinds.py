"""The kind of listener in a folder, found without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tellapart.errors import UsageError
from tellapart.files import read_object

FOLDER = "listener"
"""Name of the listener's folder in a run and in its checkpoints."""

CHECKPOINTS = (".pth", ".pt")
"""Endings of files with a CLIP in OpenAI's layout."""

SETTINGS = "listener.json"
"""What tellapart writes next to a listener's weights."""

VSE = "vse"
"""``model_type`` of a recurrent listener over image features."""

LATE = "late_interaction"
"""``model_type`` of a listener whose words check the tokens of the image."""


def is_checkpoint(path: str | Path) -> bool:
    """Whether a path names a file with a CLIP in OpenAI's layout, which lacks a tokenizer and an image processor."""
    return Path(path).suffix in CHECKPOINTS


def trained_folder(path: str | Path) -> str | Path:
    """Where the listener is that a run of ``train-listener`` has kept; ``path`` itself, if it is not such a run."""
    folder = Path(path).expanduser() / FOLDER
    return folder if folder.is_dir() else path


def is_vse(path: str | Path) -> bool:
    """Whether a folder, or the run or checkpoint that it is of, holds a VSE."""
    return _read(path, "config.json").get("model_type") == VSE


def is_late(path: str | Path) -> bool:
    """Whether a folder, or the run or checkpoint that it is of, holds a late-interaction listener."""
    return _read(path, "config.json").get("model_type") == LATE


def require_cosines(listener: Any, who: str) -> None:
    """Raise where a listener compares word by word.

    Args:
        listener: any listener.
        who: the reward or method that needs cosines, as an error names it.

    Raises:
        UsageError: it has none.
    """
    if not hasattr(listener, "encode_texts"):
        raise UsageError(
            f"the listener {listener.name!r} compares word by word and has no cosines, which {who} needs: use it with the "
            "rewards truth, likelihood or lookalikes, and name a CLIP or SigLIP here."
        )


def reads_features(path: str | Path) -> bool:
    """Whether a folder, or the run or checkpoint that it is of, holds a listener that never sees a picture."""
    return is_vse(path) and not _read(path, SETTINGS).get("images")


def _read(path: str | Path, name: str) -> dict[str, Any]:
    """A JSON file of a listener's folder; empty if there is none."""
    return read_object(Path(trained_folder(path)).expanduser() / name)
