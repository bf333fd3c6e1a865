"""One training of a frontier, in a process of its own: ``python -m tellapart.cli.frontier_point ASKED --output_dir FOLDER``.

It trains as ``tellapart train`` does (going on where a killed process stopped) and measures as ``tellapart score`` does.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tellapart.cli.console import note
from tellapart.cli.frontier_plan import DONE_FILE
from tellapart.cli.main import BAD_USAGE, INTERRUPTED, explain, plain_warnings, told_remarks
from tellapart.errors import UsageError
from tellapart.experiments.frontier.records import START
from tellapart.files import write_json, write_text

CAPTIONER = "captioner"
RECIPE_FILE, TRAINED_FILE = "asked.yaml", "trained.json"


def main(argv: list[str] | None = None) -> int:
    """Train and measure; an error is one sentence, the last that the process says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("asked", type=Path, help="what to do, a file within the folder")
    parser.add_argument("--output_dir", type=Path, required=True)
    options = parser.parse_args(argv)
    try:
        with plain_warnings(), told_remarks():
            carry_out(options.output_dir, options.output_dir / options.asked)
        return 0
    except KeyboardInterrupt as stopped:
        note(str(stopped) or "interrupted.")
        return INTERRUPTED
    except (UsageError, OSError) as error:
        note(f"error: {explain(error)}")
        return BAD_USAGE


def carry_out(folder: Path, asked_file: Path) -> None:
    """Do what ``asked_file`` says, and write ``done.json`` beside it: checkpoint -> step, and folder of its evaluation.

    Raises:
        UsageError: the recipe or the measurement cannot be carried out.
    """
    asked = json.loads(asked_file.read_text(encoding="utf-8"))
    recipe = asked["recipe"]
    models = {START: (0, recipe["captioner"]["model_name_or_path"])}
    if asked["trains"]:
        models = _models(folder, trained(folder, recipe))
    measured: dict[int, str] = {}
    done = {}
    for name, (step, model) in models.items():
        if step not in measured:  # where the last step is the selected one, it is measured once
            measured[step] = _measure(model, f"{asked['name']}, {name}", asked, asked_file.parent / name)
        done[name] = {"step": step, "folder": measured[step]}
    write_json(asked_file.parent / DONE_FILE, done)


def _models(folder: Path, steps: dict[str, int | None]) -> dict[str, tuple[int, str]]:
    """Checkpoint -> its step, and what to measure."""
    folder = folder.resolve()  # a relative "world/..." would be read as a stage of the built-in world
    places = {"selected": folder / "best", "last": folder / f"checkpoint-{steps['last']}"}
    found = {name: (step, str(places[name])) for name, step in steps.items() if step is not None}
    if (places["last"] / CAPTIONER).is_dir():
        return found
    name, (step, _) = next(iter(found.items()))  # only a listener has learned: the run itself tells both
    return {name: (step, str(folder))}


def trained(folder: Path, recipe: dict[str, Any]) -> dict[str, int | None]:
    """Train unless that is done; ``{"selected": step or None, "last": step}``."""
    told = folder / TRAINED_FILE
    if not told.exists():
        from tellapart.cli.train import check_output_dir, clear, train
        from tellapart.recipe.build import build
        from tellapart.recipe.load import load_recipe

        write_text(folder / RECIPE_FILE, yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True))
        words = [str(folder / RECIPE_FILE), "--output_dir", str(folder)]
        if any(folder.glob("checkpoint-*")):
            words += ["--resume_from_checkpoint", "last"]
        else:
            clear(folder)  # what a process left that was killed before its first checkpoint
        asked = load_recipe(words)
        check_output_dir(asked)
        run = train(asked, build(asked))
        write_json(told, {"selected": run.best.step if run.best else None, "last": run.step})
    return json.loads(told.read_text(encoding="utf-8"))


def _measure(model: str, name: str, asked: dict[str, Any], target: Path) -> str:
    """Measure one model; the folder of its evaluation, relative to that of ``done.json``."""
    from tellapart.cli.score_captioner import measure
    from tellapart.cli.score_options import ScoreOptions
    from tellapart.recipe.runs import made_by

    result = measure(model, ScoreOptions(name=name, **asked["measure"]), run=made_by(asked["recipe"]))
    return result.save(target).relative_to(target.parent).as_posix()


if __name__ == "__main__":
    sys.exit(main())
