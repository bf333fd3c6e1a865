"""Runs whose recipes differ only in the seed, found and named."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tellapart.errors import UsageError
from tellapart.evaluation.pool import Pool, Pooled
from tellapart.evaluation.report.runs import START_NAME, RunView
from tellapart.evaluation.results import EvaluationResult
from tellapart.recipe.fingerprint import IDLE

SEED = "training.seed"
START = "captioner.model_name_or_path"


def pool_seeds(views: Sequence[RunView], *, start: bool = True) -> Pooled:
    """Rows of runs that differ only in the seed, in the order first met, named by their method.

    Where several rows have one method, the options in which they differ follow the name. A start captioner of the world that
    was redrawn with the seed (``world/xe-seed1``) is not a difference. A run without a recipe is a row of its own.

    Args:
        views: measured runs.
        start: put the models that they began from first, if all runs kept that evaluation; a row for each, with its redraws by
            seed.

    Raises:
        UsageError: no two runs belong together, two are the same training, or some were measured differently.
    """
    groups: dict[str, list[RunView]] = {}
    for view in views:
        groups.setdefault(_key(view), []).append(view)
    for group in groups.values():
        _require_different_seeds(group)
    if len(groups) == len(views):
        raise UsageError(
            "--pool seeds found no two runs that differ only in the seed: leave it out, or name such runs."
        )
    kinds = [_options(group[0]) for group in groups.values()]
    names = [_name(group[0], kinds) for group in groups.values()]
    pools = [Pool(name, [view.result for view in group]) for name, group in zip(names, groups.values(), strict=True)]
    return Pooled.of([*(_starts(views) if start else []), *pools])


def _starts(views: Sequence[RunView]) -> list[Pool]:
    """The start models, each once; those of another name than a seed gives are a row of their own."""
    trained = [view for view in views if view.record is not None]
    starts: dict[str, dict[str, EvaluationResult]] = {}
    for view in trained:
        if view.start is None:
            return []
        said = json.dumps(list(view.start.captions.values()))
        starts.setdefault(str(_options(view).get(START, "")), {})[said] = view.start
    named = {name: START_NAME if len(starts) == 1 else f"{START_NAME} {name}".strip() for name in starts}
    return [Pool(named[name], list(different.values())) for name, different in starts.items()]


def _options(view: RunView) -> dict[str, Any]:
    """Dotted option -> value of what makes the run's training, the seed left out."""
    recipe = view.record.recipe if view.record else {}
    found = {name: value for name, value in _flat(recipe).items() if name not in {*IDLE, SEED}}
    if isinstance(found.get(START), str):
        found[START] = re.sub(r"^(world/.+)-seed\d+$", r"\1", found[START])
    return found


def _flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in section.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def _entry(entry: Mapping[str, Any], whole: bool) -> str:
    """A reward with its weight: ``0.5 cider_d``; if asked for the whole, with its options: ``0.5 cider_d (sigma 3)``."""
    given = {name: value for name, value in entry.items() if name not in ("name", "weight") and value is not None}
    told = ", ".join(f"{name} {_short(value)}" for name, value in given.items()) if whole else ""
    weight = float(entry.get("weight", 1.0))
    shown = f"{'' if weight == 1 else f'{weight:g} '}{entry.get('name', '')}"
    return f"{shown} ({told})" if told else shown


def _key(view: RunView) -> str:
    options = _options(view)
    return json.dumps(options, sort_keys=True, default=str) if options else f"run {view.name} {id(view)}"


def _require_different_seeds(group: Sequence[RunView]) -> None:
    seeds: dict[Any, str] = {}
    for view in group:
        seed = view.record.facts.get("seed") if view.record else None
        if seed in seeds and seed is not None:
            raise UsageError(f"{seeds[seed]} and {view.name} are one training with seed {seed}: name one of them.")
        seeds[seed] = view.name


def _name(view: RunView, kinds: Sequence[Mapping[str, Any]]) -> str:
    """The method, and what sets the row apart from others of that method."""
    mine = _options(view)
    method = mine.get("method")
    if method is None:
        return view.name
    alike = [kind for kind in kinds if kind.get("method") == method]
    names = dict.fromkeys(name for kind in alike for name in kind)
    differing = [name for name in names if any(kind.get(name) != mine.get(name) for kind in alike)]
    told = ", ".join(
        f"{name.removeprefix('training.')} {_apart(mine.get(name), [kind.get(name) for kind in alike])}"
        for name in differing
    )
    return f"{method} ({told})" if told else str(method)


def _apart(value: Any, values: Sequence[Any]) -> str:
    """A value in short, or with everything in it where another one would read the same."""
    others = [other for other in values if other != value]
    return _short(value, whole=any(_short(other) == _short(value) for other in others))


def _short(value: Any, *, whole: bool = False) -> str:
    if isinstance(value, list):
        return " + ".join(_entry(entry, whole) if isinstance(entry, dict) else str(entry) for entry in value)
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
