"""What decides the numbers of a training: its recipe with every model and data set by content instead of by name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tellapart.files import checkpoints

PATHS = {
    "base",
    "features",
    "grammar",
    "images",
    "itm",
    "judge",
    "language_model",
    "listener",
    "model",
    "model_name_or_path",
    "pac",
    "pac_base",
    "path",
}
"""Last part of the options that name models or data."""

WITHOUT_EFFECT = (
    "output_dir",
    "resume_from_checkpoint",
    "report_to",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "dataloader_num_workers",
)
"""Options of the loop that change no weight."""

ON_HACK = ("on_hack", "hack_patience")
"""Options that change nothing as long as the first only warns."""

LATER: dict[str, Any] = {
    "matcher.model": None,
    "reward.itm": 0.0,
    "reward.phi": 0.0,
    "reward.ref_clip_s": 0.0,
    "reward.pac_s": 0.0,
    "reward.ref_pac_s": 0.0,
    "captioner.quantization": None,
    "captioner.transformer": None,
    "data.seconds_between": 0.0,
    "data.shuffle_window": None,
    "evaluation.held_out": None,
    "evaluation.min_new_tokens": 0,
}
"""Options that came after results had been kept, with the value at which they (and, of a model, the rest of its section) change
nothing: left out there, so that the results are found again."""

READ = (".safetensors", ".bin", ".pth", ".pt", ".json", ".jsonl", ".txt", ".csv", ".tsv", ".parquet", ".yaml")
"""Files of a folder that count by content; others, such as pictures, by name and size."""


class Fingerprints:
    """Hashes of what recipes name; each file is read once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def key(self, recipe: Mapping[str, Any], *further: object) -> str:
        """12 hex digits that differ whenever what decides the numbers does.

        Args:
            recipe: resolved, or some sections of one with ``data`` among them.
            further: what else decides.
        """
        decides = what_decides(recipe)
        size = decides["data"]["size"]
        text = json.dumps([self._by_content(decides, size), *further], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def of(self, name: str, size: str) -> str:
        """What a model or data set is known by: its content where it is on this disk, else its name."""
        known = f"{name} {size}" if name.partition("/")[0] == "world" else name
        if known not in self._known:
            self._known[known] = self._found(name, size)
        return self._known[known]

    def _found(self, name: str, size: str) -> str:
        if name == "world":
            from tellapart.world import spec

            return f"world {spec.version()} {size}"
        if stage := world_stage(name):
            from tellapart.world.stages import stage_folder

            return stage_folder(stage[0], size, stage[1]).name
        path = Path(name).expanduser()
        return digest(path) if path.exists() else name

    def _by_content(self, value: Any, size: str, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {name: self._by_content(inner, size, name) for name, inner in value.items()}
        return self.of(value, size) if isinstance(value, str) and key in PATHS else value


def what_decides(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without what changes no number: options of that kind, and later ones at the value that does nothing."""
    idle = ON_HACK if recipe.get("on_hack", "warn") == "warn" else ()
    counted = {name: value for name, value in recipe.items() if name not in (*WITHOUT_EFFECT, *idle)}
    kept = {name: dict(value) if isinstance(value, Mapping) else value for name, value in counted.items()}
    for name, unused in LATER.items():
        section, _, option = name.partition(".")
        of = kept.get(section)
        if not of or option not in of or of[option] != unused:
            continue
        if option == "model":
            del kept[section]
        else:
            del of[option]
    return kept


def world_stage(name: str) -> tuple[str, int] | None:
    """``world/xe-seed1`` -> ``("world/xe", 1)``; None for what is no stage of the built-in world.

    Raises:
        UsageError: the built-in world has no such stage.
    """
    if not name.startswith("world/"):
        return None
    from tellapart.world.schedules import STAGES
    from tellapart.world.stages import resolve

    said = re.fullmatch(r"(.+)-seed(\d+)", name)
    stage, seed = (said[1], int(said[2])) if said else (name, 0)
    if stage not in STAGES:
        resolve(name)  # says which there are
    return stage, seed


def stages_of(value: Any, key: str = "") -> set[str]:
    """The stages of the built-in world that a recipe names."""
    if isinstance(value, Mapping):
        return {stage for name, inner in value.items() for stage in stages_of(inner, name)}
    return {value} if isinstance(value, str) and key in PATHS and value.startswith("world/") else set()


def digest(path: Path) -> str:
    """24 hex digits of a file, of a folder, or of the weights that a run would be read for."""
    hashed = hashlib.sha256()
    if path.is_file():
        _read(path, hashed)
        return hashed.hexdigest()[:24]
    folder = _weights(path)
    for file in sorted(found for found in folder.rglob("*") if found.is_file() and found.name != "optimizer.pt"):
        hashed.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size}\n".encode(errors="surrogateescape"))
        if file.suffix.lower() in READ:
            _read(file, hashed)
    return hashed.hexdigest()[:24]


def _weights(folder: Path) -> Path:
    """Of a run the checkpoint that is read, since its logs and measurements may still change."""
    if not (folder / "run.json").is_file():
        return folder
    return next(
        (place for place in (folder / "best", *reversed(checkpoints(folder).values())) if place.is_dir()), folder
    )


def _read(file: Path, hashed: Any) -> None:
    with open(file, "rb") as opened:
        while block := opened.read(1 << 20):
            hashed.update(block)
