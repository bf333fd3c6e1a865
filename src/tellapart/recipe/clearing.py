"""What a training wrote into its output folder, and what of it may be removed for another one to start there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.errors import UsageError
from tellapart.files import checkpoints
from tellapart.listeners.kinds import FOLDER
from tellapart.run_files import LOG_FILE, NONFINITE_FILE, RECORD_FILE, STATE_FILE

if TYPE_CHECKING:
    from tellapart.recipe.listener import ListenerRecipe
    from tellapart.recipe.recipe import Recipe

RECIPE_FILE = "recipe.yaml"
SKIPPED_FILE = "skipped_images.txt"

RUN_FILES = (
    RECORD_FILE,
    LOG_FILE,
    STATE_FILE,
    NONFINITE_FILE,
    RECIPE_FILE,
    SKIPPED_FILE,
    "report.html",
)

_SELECTED = ("best", "best-before-*")
_PARTS = (STATE_FILE, "captioner", FOLDER, "own_listener")
"""What a checkpoint has, or one that somebody has taken something out of."""

_TRACKER = Path("runs") / "tellapart"
_OF_TRACKER = ("events.out.tfevents.*", "hparams.yml")
"""TensorBoard's files, in a folder that accelerate names after the project."""

_OF_DATA = re.compile(r"(data|evaluation|unlabelled)\.path$|.*\.(images|features|captions)$")


def clear(output_dir: Path, *results: str) -> None:
    """Remove what a run has written, and no other file in its folder, such as a model card.

    Args:
        output_dir: of the run.
        results: names of folders with what it made in the end.
    """
    for path in list(written(output_dir, *results)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    logs = sorted((path for path in _logs(output_dir, "**") if path.is_dir()), reverse=True)
    for folder in (*logs, *(output_dir / name for name in ("eval", "start/eval", "start", _TRACKER.parent))):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _logs(output_dir: Path, pattern: str) -> Iterator[Path]:
    """What of TensorBoard's folder a pattern names; nothing where it is the folder of a run of that name."""
    folder = output_dir / _TRACKER
    return iter(()) if (folder / RECORD_FILE).exists() else folder.glob(pattern)


def written(output_dir: Path, *results: str) -> Iterator[Path]:
    """The files and folders that a run has written there, as far as they exist; arguments as for ``clear``.

    Folders whose names others may use, too, such as ``eval`` and ``runs``, count by what is in them.
    """
    from tellapart.evaluation.card import CARD_FILE, is_ours
    from tellapart.evaluation.results import FILES

    if is_ours(output_dir / CARD_FILE):
        yield output_dir / CARD_FILE
    yield from (path for name in (*RUN_FILES, *results) if (path := output_dir / name).exists())
    yield from checkpoints(output_dir).values()
    for pattern in _SELECTED:
        yield from (path for path in output_dir.glob(pattern) if any((path / part).exists() for part in _PARTS))
    for folder in ("eval", "start/eval"):
        found = (output_dir / folder).glob("*")
        yield from (path for path in found if any((path / name).is_file() for name in FILES))
    for pattern in _OF_TRACKER:
        yield from _logs(output_dir, f"**/{pattern}")


def check_unread(recipe: Recipe | ListenerRecipe, *results: str) -> None:
    """Raise where a training would begin by removing what it reads.

    Args:
        recipe: of the training.
        results: as for ``clear``.

    Raises:
        UsageError: naming the option and what it reads.
    """
    from tellapart.recipe.fingerprint import PATHS, flat

    output_dir = recipe.training.output_dir
    gone = [path.resolve() for path in written(output_dir, *results)]
    for option, value in flat(recipe.resolved, recipe.schema).items():
        if not isinstance(value, str) or option.rpartition(".")[2] not in PATHS or not Path(value).exists():
            continue
        read = Path(value).resolve()
        whole = read == output_dir.resolve() and not _OF_DATA.match(option)  # a run that is read as a model
        if gone and (whole or any(path in (read, *read.parents) for path in gone)):
            raise UsageError(
                f"{option} reads {value}, which starting again in {output_dir} would remove: name another --output_dir."
            )
