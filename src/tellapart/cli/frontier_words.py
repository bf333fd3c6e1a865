"""The command line of ``tellapart frontier``: recipes, each with its grid, and what concerns all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tellapart.cli.command import grouped_lines, help_head
from tellapart.errors import UsageError
from tellapart.evaluation.columns import require_metric
from tellapart.recipe.flags import NoValue, full_name, known_key, short_name, split_words
from tellapart.recipe.options import Given, Text, options_of, types_of
from tellapart.recipe.recipe import schema_of
from tellapart.recipe.schema import Catalogue
from tellapart.recipe.shipped import is_recipe
from tellapart.recipe.words import read_options
from tellapart.sweep.curves import Method

REPEATED = ("grid", "label", "add", "at")
"""Options that may be given several times, the first two for each recipe."""

MOST_SEEDS = 1000
"""That a number of seeds may ask for."""

OF_ONE_TRAINING = ("overwrite_output_dir", "resume_from_checkpoint", "print_config")
NO_KNOBS = {"seed": "seeds", "output_dir": "output_dir"}
PUSHING = ("push_to_hub", "hub_model_id", "hub_private_repo")


@dataclass(frozen=True, kw_only=True)
class FrontierOptions:
    """Options of ``tellapart frontier``; all other options are those of ``tellapart train`` and apply to every recipe.

    Args:
        grid: KEY=V1,V2,... for any option of the preceding recipe; several keys make a product. The first key with several
            values is the knob along the curve; each combination of the others is a separate curve.
        label: name of the preceding recipe in tables and pictures; null takes its file's name.
        add: the --output_dir of another frontier, whose curves are drawn too; may be given several times.
        at: METRIC=V1,V2,... to read the curves at, as tables print the metric (CIDEr 120 is 1.2); null chooses values.
        seeds: number of seeds, counted up from the recipe's own, or a list of seeds such as 3,5 (a single one as 3,).
        redraw_start: a seed redraws the start captioner of the built-in world, too (world/xe becomes world/xe-seed1).
        split: part of the data to measure on; null takes the recipe's evaluation.split, val by default.
        num_beams: beams of the measured captions; null takes the recipe's evaluation.num_beams.
        samples: also draw N captions per image at random and N by beam search, and measure them as sets; null takes the recipe's
            evaluation.samples, 0 draws none.
        meteor: also measure METEOR.
        language_model: also measure perplexity under this causal language model: a model folder or a Hugging Face id.
        grammar: also measure the mean probability under this grammar head: a folder, or world/grammar.
        output_dir: folder of the trainings, tables, pictures and the page; an interrupted frontier resumes there.
        kept: archive of results without weights, such as kept.tar.xz: its trainings are not repeated; it is updated when the
            frontier ends or is stopped.
        workers: trainings at a time, one thread each.
        images: example images on the page.
        title: heading of the page.
        picture: draw PNG and SVG; needs matplotlib (pip install 'tellapart[plot]').
        dry_run: check every recipe, list the trainings and which are done, and train nothing.
    """

    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "what is trained": ("grid", "label", "seeds", "redraw_start", "kept", "workers", "dry_run"),
        "how points are measured": ("split", "num_beams", "samples", "meteor", "language_model", "grammar"),
        "page and pictures": ("output_dir", "add", "at", "images", "title", "picture"),
    }
    grid: str | None = None
    label: str | None = None
    add: str | None = None
    at: str | None = None
    seeds: str = "3"
    redraw_start: bool = True
    split: str | None = None
    num_beams: int | None = None
    samples: int | None = None
    meteor: bool = False
    language_model: str | None = None
    grammar: str | None = None
    output_dir: Path = Path("runs/frontier")
    kept: Path | None = None
    workers: int = 2
    images: int = 8
    title: str = "The frontier of recall and naturalness"
    picture: bool = True
    dry_run: bool = False


@dataclass(frozen=True)
class Words:
    """A command line, taken apart.

    Args:
        methods: recipes with their grids.
        overrides: options of ``train`` for all of them.
        added: folders of other frontiers.
        at: metric -> values to read off at, as printed.
        options: the command's own.
    """

    methods: list[Method]
    overrides: dict[str, str]
    added: list[Path]
    at: dict[str, list[float]]
    options: FrontierOptions


OPTIONS = options_of(FrontierOptions)


EXAMPLES = (
    "tellapart frontier world_ved_dico --grid objective.beta=0.05,0.1,0.2 --seeds 3",
    "tellapart frontier world_ved_dico world_ved_scst_clip_kl --grid objective.kl_coef=0.1,1",
)
"""Shown in the help."""


def frontier_help() -> str:
    """The command's own options, for ``--help``."""
    lines = help_head(
        "frontier RECIPE --grid KEY=V1,V2,... [RECIPE --grid ...] [--option value ...]",
        "Train every point of a grid with several seeds (or resume where an earlier call stopped), measure each, and draw recall "
        "against how captions read. Options of tellapart train apply to all recipes.",
        EXAMPLES,
    )
    return "\n".join([*lines, *grouped_lines(OPTIONS, FrontierOptions.groups)])


def read_words(argv: Sequence[str]) -> Words:
    """Take a command line apart.

    Raises:
        UsageError: an option is unknown or of a wrong type, or a word belongs to nothing.
    """
    own, words = types_of(OPTIONS), _in_order(argv)
    types = _recipe_types(argv, words)
    given = split_words(words, types | own)
    _refuse_of_one_training(given.options)
    methods, added, at = _belonging(given.positional)
    mine = {name: Given(value, f"--{name}") for name, value in given.options.items() if name in own}
    options: FrontierOptions = FrontierOptions(**vars(read_options(mine, FrontierOptions)))
    _check(options, methods, added)
    overrides = {name: _override(name, value, types, own) for name, value in given.options.items() if name not in own}
    for method in methods:
        method.grid = _knobs(method.grid, types, overrides)
    return Words(methods, overrides, added, at, options)


def _recipe_types(argv: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """Dotted option -> its type, of all recipes that are named."""
    types: dict[str, Any] = {}
    asked: dict[str, Any] = dict(split_words([word for word in words if word.startswith("--reward.")], {}).options)
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word.partition("=")[0] == "--method":
            asked["method"] = Text(word.partition("=")[2] or value)
    for word in argv:
        if is_recipe(word) and not word.startswith("--"):
            types |= schema_of(word, asked, Catalogue.load()).types
    return types


def _knobs(
    grid: Mapping[str, list[str]], types: Mapping[str, Any], overrides: Mapping[str, str]
) -> dict[str, list[str]]:
    """A grid by the names that options have today.

    Raises:
        UsageError: one is unknown, or is also given as one value for all.
    """
    found = {}
    for key, values in grid.items():
        known = key if key.startswith("reward.") else known_key(key, types, shown=f"--grid {key}")
        if full_name(known) in map(full_name, overrides):
            raise UsageError(f"--{key} has one value for all, and --grid {key} varies it: leave one of the two out.")
        found[key if known == full_name(key) or known == key else short_name(known)] = values
    return found


def _refuse_of_one_training(options: Mapping[str, Any]) -> None:
    if "training.output_dir" in options:
        raise UsageError("--training.output_dir is for one training: give --output_dir, which is for all of them.")
    for name in map(short_name, options):
        if name in OF_ONE_TRAINING:
            raise UsageError(f"--{name} is for one training: a frontier resumes automatically, leave it out.")
        if name in PUSHING:
            raise UsageError(
                f"--{name} is for one training: choose a point, and upload its folder with tellapart push."
            )


def _override(name: str, value: Text | NoValue, types: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """An option of ``train`` as it was typed.

    Raises:
        UsageError: it is unknown, or lacks its value.
    """
    if not name.startswith("reward."):
        known_key(name, {**types, **own}, shown=f"--{name}")
    if isinstance(value, Text):
        return value
    if types.get(full_name(name)) is not bool:
        raise UsageError(f"--{name} has no value: write --{name} VALUE.")
    return "true"


def _in_order(argv: Sequence[str]) -> list[str]:
    """The words, with repeated options turned into ``name:value`` words that keep their place among the recipes."""
    words, found = list(argv), []
    while words:
        word = words.pop(0)
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--") or name not in REPEATED:
            found.append(word)
            continue
        taken = [value] if equals else []
        while words and not words[0].startswith("--") and not is_recipe(words[0]):
            if taken and (name not in ("grid", "at") or "=" not in words[0]):
                break
            taken.append(words.pop(0))
        if not taken:
            raise UsageError(f"--{name} has no value: write --{name} {_EXAMPLES[name]}.")
        found += [f"{name}:{each}" for each in taken]
    return found


_EXAMPLES = {"grid": "objective.beta=0.1,0.2", "label": "NAME", "add": "FOLDER", "at": "CIDEr=80,100"}


def _belonging(words: Sequence[str]) -> tuple[list[Method], list[Path], dict[str, list[float]]]:
    """The recipe of each word: a grid before the first recipe is that recipe's, later ones are of the recipe before."""
    methods: list[Method] = []
    added: list[Path] = []
    at: dict[str, list[float]] = {}
    before: list[tuple[str, str]] = []
    for word in words:
        name, _, value = word.partition(":")
        if is_recipe(word) and name not in REPEATED:
            methods.append(Method(Path(word)))
            _give(methods[-1], before)
            before = []
        elif name == "add":
            added.append(Path(value))
        elif name == "at":
            key, texts = assignment("at", value)
            require_metric(key)  # refused now, not after hours of training
            at[key] = at.get(key, []) + [_number(key, text) for text in texts]
        elif name in REPEATED and methods:
            _give(methods[-1], [(name, value)])
        elif name in REPEATED:
            before.append((name, value))
        else:
            raise UsageError(f"{word!r} is not expected: name recipes, and grids as --grid KEY=V1,V2.")
    if before:
        name, value = before[0]
        raise UsageError(f"--{name} {value} belongs to no recipe: name a recipe with it.")
    return methods, added, at


def _give(method: Method, words: Sequence[tuple[str, str]]) -> None:
    """A method its grid and label."""
    for name, value in words:
        if name == "label":
            method.label = value
        else:
            key, texts = assignment("grid", value)
            if short_name(key) in NO_KNOBS:
                raise UsageError(f"--grid {key} is not a knob: give --{NO_KNOBS[short_name(key)]} for all trainings.")
            method.grid[key] = list(dict.fromkeys([*method.grid.get(key, []), *texts]))


def assignment(option: str, text: str) -> tuple[str, list[str]]:
    """``key=a,b`` -> its key and values; commas within brackets separate nothing.

    Raises:
        UsageError: it has another form.
    """
    key, equals, rest = text.partition("=")
    values, depth = [""], 0
    for letter in rest:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    found = [value.strip() for value in values]
    if not (key and equals and all(found)):
        raise UsageError(f"--{option} {text!r} gives no values: write --{option} {_EXAMPLES[option]}.")
    return key, list(dict.fromkeys(found))


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"--at {key}={text} is not a number: give the metric's value as tables print it.")
    return value


def seeds_of(text: str, first: int) -> list[int]:
    """``3`` -> three seeds from ``first`` on; ``4,7`` -> these.

    Raises:
        UsageError: it has another form.
    """
    parts = [part.strip() for part in text.strip("[]() ").split(",")]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if (
        len(numbers) != len([part for part in parts if part])
        or not numbers
        or (len(parts) == 1 and not 1 <= numbers[0] <= MOST_SEEDS)
    ):
        raise UsageError(f"--seeds is {text!r}: give how many (3, at most {MOST_SEEDS}), or a list of them (0,1,2).")
    return list(dict.fromkeys(numbers)) if len(parts) > 1 else list(range(first, first + numbers[0]))


OF_TRAININGS = (
    *(name for name in FrontierOptions.groups["what is trained"] if name not in ("grid", "label", "dry_run")),
    *FrontierOptions.groups["how points are measured"],
)
"""Options that say nothing of curves that are there already."""


def _check(options: FrontierOptions, methods: Sequence[Method], added: Sequence[Path]) -> None:
    if not methods and not added:
        raise UsageError("no recipe was named: give one, such as world_ved_dico, with its --grid.")
    if not methods:
        unused = next((name for name in OF_TRAININGS if getattr(options, name) != getattr(FrontierOptions, name)), None)
        if unused is not None:
            raise UsageError(
                f"--{unused} does nothing without a recipe, since curves of --add are measured: leave it out, or name a recipe."
            )
    for name in ("workers", "num_beams"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}: it must be at least 1.")
    if options.images < 0:
        raise UsageError(f"--images is {options.images}: give 0 or more.")
    if options.samples is not None and (options.samples < 0 or options.samples == 1):
        raise UsageError(f"--samples is {options.samples}: give 2 or more, or 0 for none.")
