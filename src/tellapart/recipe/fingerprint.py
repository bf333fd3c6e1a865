"""Settings that decide the numbers of a training: options other than defaults, models and data by content, revisions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.data.folder import walk
from tellapart.data.formats.patterns import expand, is_pattern
from tellapart.errors import UsageError
from tellapart.files import with_weights, write_text
from tellapart.recipe.flags import flat_rewards, full_name
from tellapart.recipe.options import plain
from tellapart.recipe.schema import GIVEN, REWARD, Schema
from tellapart.run_files import RECORD_FILE, STATE_FILE

if TYPE_CHECKING:
    from tellapart.recipe.listener import ListenerRecipe
    from tellapart.recipe.recipe import Recipe

MOVING_WORLD = "world/video"
"""Data, not a stage."""

PATHS = {
    "base",
    "captioner",
    "captions",
    "claims",
    "features",
    "grammar",
    "image_encoder",
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
    "phrases",
    "questions",
    "reader",
    "tower",
    "verifier",
    "vocabulary",
    "vqa_score",
}
"""Last part of the options that name models or data."""

IDLE = frozenset(
    {
        "data.allow_private",
        "training.output_dir",
        "training.resume_from_checkpoint",
        "training.report_to",
        "training.logging_steps",
        "training.save_steps",
        "training.save_total_limit",
        "training.dataloader_num_workers",
        "captioner.logits_budget",
        "matcher.device",
        "matcher.batch_size",
    }
)
"""Options that change no number."""

ON_HACK = ("training.on_hack", "training.hack_patience")
"""Options that change nothing as long as the first only warns."""

NOTED = ".digest"
"""End of the name of a file with the digest of a folder."""

MAY_CHANGE = ("training", "evaluation")
"""Sections in which a run may be resumed with other options: how long it trains, and how it is evaluated."""

READ = frozenset(
    [
        *(".safetensors", ".bin", ".pth", ".pt", ".json", ".jsonl", ".txt", ".csv", ".tsv", ".parquet", ".yaml"),
        *(".npy", ".npz", ".h5", ".hdf5", ".tar", ".model", ".caption", ".token", ".ndjson"),
    ]
)
"""Files of a folder that count by content; others, such as pictures, by name and size."""


def key_of(recipe: Recipe | ListenerRecipe, *further: object, sections: Sequence[str] = ()) -> str:
    """12 hex digits that differ whenever what decides the numbers does.

    What counts: every option that differs from its default and is not ``IDLE``; every model and data set that is named, by
    content; the revision of the method and of the rewards, which their classes raise when they compute something else; and
    plugin files.

    Args:
        recipe: of the training.
        further: what else decides, such as how a result is measured.
        sections: these alone count; empty counts all.
    """
    resolved = {name: value for name, value in recipe.resolved.items() if not sections or name in sections}
    size = recipe.data.size
    decides = _by_content(decisions(resolved, recipe.schema), size)
    named = {name: value for name, value in flat(resolved, recipe.schema).items() if _names_content(name, value)}
    content = {name: content_of(value, size) for name, value in named.items()}
    revisions = {} if sections else recipe.revisions()
    plugins = [digest(path) for path in recipe.catalogue.plugins]
    told = [decides, content, revisions, plugins, _by_content(list(further), size)]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


_DATA = {"path", "images", "features", "questions"}
"""Last part of options that name data, where a section holds data rather than a model."""

_HOW_MEASURED = (
    *("split", "held_out", "path", "images", "features", "limit"),
    *("num_beams", "no_repeat_ngram_size", "min_new_tokens", "max_new_tokens"),
)
"""Options of an evaluation that change every figure."""


def contents_of(recipe: Recipe | ListenerRecipe) -> dict[str, str]:
    """What a training is made of, its data left out -> what changes with its content: models by option, plugin files, and the
    revisions of method and rewards."""
    named = {
        name: value
        for name, value in flat(recipe.resolved, recipe.schema).items()
        if _names_content(name, value) and not _names_data(name)
    }
    found = {name: content_of(value, recipe.data.size) for name, value in named.items()}
    found |= {f"the plugin {path.name}": digest(path) for path in recipe.catalogue.plugins}
    return found | {f"what {name} computes": str(revision) for name, revision in recipe.revisions().items()}


def _names_data(name: str) -> bool:
    section, _, option = name.rpartition(".")
    return section in ("data", "unlabelled", "evaluation") and option in _DATA


def measured_by(recipe: Recipe | ListenerRecipe) -> str:
    """12 hex digits of the images that an evaluation captions and of how it draws, which adding a measure does not change; empty
    without an evaluation."""
    section = recipe.resolved.get("evaluation") or {}
    if section.get("split") is None and section.get("held_out") is None:
        return ""
    told = {name: section[name] for name in _HOW_MEASURED if name in section}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _by_content(value: Any, size: str, key: str = "") -> Any:
    """A value with the models and data that it names by content."""
    if isinstance(value, Mapping):
        return {name: _by_content(inner, size, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_by_content(inner, size, key) for inner in value]
    return content_of(value, size) if _names_content(key, value) else value


def flat(resolved: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Dotted option -> value of a resolved recipe; an optional section is also listed by its own name.

    Recipes of earlier versions are read as well: options of the training next to the sections, and a mapping of rewards.
    """
    found: dict[str, Any] = {}
    for name, value in resolved.items():
        if name == REWARD:
            for key, (inner, _) in flat_rewards(value or [], REWARD).items():
                found |= _flat(key, inner, schema)
        else:
            found |= _flat(full_name(name), value, schema)
    return {key: value for key, value in found.items() if not (_WEIGHT.match(key) and value == 0)}


_WEIGHT = re.compile(r"reward\.[^.]+\.weight$")


def _flat(name: str, value: Any, schema: Schema) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not schema.holds_members(name):
        return {name: value}
    found: dict[str, Any] = {name: GIVEN} if name in schema.defaults else {}
    for key, inner in value.items():
        found |= _flat(f"{name}.{key}", inner, schema)
    return found


def decisions(resolved: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Dotted option -> value of what decides the numbers and differs from its default; an option that came later is thus no
    difference to a recipe that has not got it.

    Args:
        resolved: a recipe, perhaps of an earlier version.
        schema: of recipes now; what it does not know is left out, rewards excepted.
    """
    values = flat(resolved, schema)
    idle = {*IDLE, *(ON_HACK if values.get(ON_HACK[0], "warn") == "warn" else ())}
    return {
        name: value
        for name, value in values.items()
        if _PART_OF_REWARD.sub("", name) not in idle
        and (name in schema.defaults or name.startswith(f"{REWARD}."))
        and plain(schema.defaults.get(name, _NOTHING)) != value
    }


_NOTHING = object()
_PART_OF_REWARD = re.compile(r"^reward\.[^.]+\.")


def run_decisions(resolved: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The same of what must stay for a run to be resumed."""
    found = decisions(resolved, schema)
    return {name: value for name, value in found.items() if name.partition(".")[0] not in MAY_CHANGE}


def _names_content(name: str, value: Any) -> bool:
    if name.endswith("lora.tower"):  # text or image, and no model
        return False
    return isinstance(value, str) and value != GIVEN and name.rpartition(".")[2] in PATHS


@cache
def _digest_as_of(path: Path, state: tuple[tuple[str, int, int], ...]) -> str:
    return digest(path)


def _state(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files at a path, without reading them."""
    files = [path] if path.is_file() else _files(path)
    return tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def _files(folder: Path) -> list[Path]:
    """The files below a folder that those who read data find: also behind links to folders, and no hidden ones."""
    return sorted(file for place, names in walk(folder) for name in names if (file := Path(place, name)).is_file())


def content_of(name: str, size: str) -> str:
    """Identity of a model or data set: the digest of its content, or the one that ``note_content`` wrote; else its name."""
    if name == "world":
        from tellapart.world import spec

        return f"world {spec.version()} {size}"
    if name == MOVING_WORLD:
        from tellapart.world.video import spec as moving

        return f"world/video {moving.version()} {size}"
    from tellapart.world.stages import features_root, stage_folder

    if stage := world_stage(name):
        return stage_folder(stage[0], size, stage[1]).name
    path = Path(name).expanduser()
    if path.parent == features_root():
        return f"features {path.name}"  # as for stages: what made them, not what this machine's kernels made of it
    if path.exists():
        return _digest_as_of(path, _state(path))
    if files := _matching(name):
        digests = [f"{file.name} {_digest_as_of(file, _state(file))}" for file in files]
        return hashlib.sha256("\n".join(digests).encode(errors="surrogateescape")).hexdigest()[:24]
    noted = _note_of(path)
    return noted.read_text(encoding="utf-8").strip() if noted.is_file() else name


def _matching(name: str) -> list[Path]:
    """The files of a pattern such as ``shards/{00..03}.tar``; none for anything else, and where one does not exist."""
    pattern = str(Path(name).expanduser())
    if "://" in name or not is_pattern(pattern):
        return []
    try:
        files = [Path(path) for path in expand(pattern)]
    except UsageError:  # said where the data are read
        return []
    return files if all(file.is_file() for file in files) else []


def note_content(folder: Path) -> Path:
    """Write the digest of a folder into a file next to it, which stays where the folder is left out; returns the file."""
    write_text(_note_of(folder), _digest_as_of(folder, _state(folder)) + "\n")
    return _note_of(folder)


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + NOTED)


def key_of_models(names: Sequence[str], size: str, *further: object) -> str:
    """12 hex digits of models, data sets and further settings of a measurement."""
    told = [[content_of(name, size) for name in names], _by_content(list(further), size)]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


def world_stage(name: str) -> tuple[str, int] | None:
    """``world/xe-seed1`` -> ``("world/xe", 1)``; None for anything that is not a stage of the built-in world.

    Raises:
        UsageError: the built-in world has no such stage.
    """
    if not name.startswith("world/") or name == MOVING_WORLD:
        return None
    from tellapart.world.schedules import ALIASES, STAGES
    from tellapart.world.stages import resolve

    said = re.fullmatch(r"(.+)-seed(\d+)", name)
    stage, seed = (said[1], int(said[2])) if said else (name, 0)
    stage = ALIASES.get(stage, stage)
    if stage not in STAGES:
        resolve(name)  # says which there are
    return stage, seed


def stages_of(value: Any, key: str = "") -> set[str]:
    """The stages of the built-in world that a recipe names."""
    if isinstance(value, Mapping):
        return {stage for name, inner in value.items() for stage in stages_of(inner, name)}
    if isinstance(value, list):
        return {stage for inner in value for stage in stages_of(inner, key)}
    named = isinstance(value, str) and key in PATHS and value.startswith("world/") and value != MOVING_WORLD
    return {value} if named else set()


def digest(path: Path) -> str:
    """24 hex digits of a file, of a folder, or of the weights that a run would be read for."""
    hashed = hashlib.sha256()
    if path.is_file():
        _read(path, hashed)
        return hashed.hexdigest()[:24]
    folder = _weights(path)
    measured = {folder / "eval", folder / "start"} if (folder / STATE_FILE).is_file() else set()
    files = (found for found in _files(folder) if found.name != "optimizer.pt")
    for file in (found for found in files if not measured & set(found.parents)):  # a checkpoint may have been scored
        hashed.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size}\n".encode(errors="surrogateescape"))
        if file.suffix.lower() in READ:
            _read(file, hashed)
    return hashed.hexdigest()[:24]


def _weights(folder: Path) -> Path:
    """Of a run the checkpoint that is read, since its logs and measurements may still change."""
    if not (folder / RECORD_FILE).is_file():
        return folder
    return next((place for place in with_weights(folder) if place.is_dir()), folder)


def _read(file: Path, hashed: Any) -> None:
    with open(file, "rb") as opened:
        while block := opened.read(1 << 20):
            hashed.update(block)
