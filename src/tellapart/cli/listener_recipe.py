"""Recipes of ``tellapart train-listener``: the same YAML, flags and training options as those of ``train``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from tellapart.cli.parse import Parser, add_options, help_of
from tellapart.cli.recipe import read_options, read_yaml, recipe_path, typed_options
from tellapart.cli.schema import DataSection, TrainFlags
from tellapart.errors import UsageError
from tellapart.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class TrainedListenerSection:
    """The dual encoder to be trained.

    Args:
        path: a CLIP or SigLIP model: a folder, a Hugging Face id, or world/listener.
        prefix: words put before each text; null takes what belongs to the model. They are saved with it.
        train: which weights train: the text side and the temperature (text), or everything (all).
    """

    path: str
    prefix: str | None = None
    train: Literal["text", "all"] = "text"


@dataclass(frozen=True, kw_only=True)
class ListenerEvaluationSection:
    """What the training is watched by.

    Args:
        split: the part of the data to retrieve in; null never evaluates.
        path: data to evaluate on when it is not the training data's path.
        images: folder of that path's images; null takes the training data's.
        limit: use only the first so many images; null uses all.
    """

    split: str | None = "val"
    path: str | None = None
    images: Path | None = None
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class HeadSection:
    """The grammar head, trained with --grammar only.

    Args:
        weight: of the head's cross-entropy beside the contrastive loss.
        min_count: words that occur less often in the training captions are never put into a corrupted one.
    """

    weight: float = 1.0
    min_count: int = 1


SECTIONS: dict[str, Any] = {
    "listener": TrainedListenerSection,
    "data": DataSection,
    "head": HeadSection,
    "evaluation": ListenerEvaluationSection,
}
"""Section -> its schema; the top level is ``grammar`` and ``TrainConfig``."""

OF_CAPTIONERS = ("method", "captioner", "reward", "objective")
"""Keys that only recipes of ``train`` have."""


@dataclass(frozen=True)
class ListenerRecipe:
    """A recipe with every option resolved and checked.

    Args:
        listener: what is trained.
        data: what it is trained on.
        head: numbers of the grammar head.
        evaluation: what the training is watched by.
        grammar: whether a grammar head is trained.
        training: numbers of the loop.
        flags: what was asked of this invocation only.
        resolved: all of it but the flags, as a recipe is written.
        usual: the same if nothing were given.
    """

    listener: TrainedListenerSection
    data: DataSection
    head: HeadSection
    evaluation: ListenerEvaluationSection
    grammar: bool
    training: TrainConfig
    flags: TrainFlags
    resolved: dict[str, Any]
    usual: dict[str, Any]

    def to_yaml(self) -> str:
        """The resolved recipe; reading it back gives the same recipe."""
        return yaml.safe_dump(self.resolved, sort_keys=False, allow_unicode=True)


def load_listener_recipe(argv: Sequence[str]) -> ListenerRecipe:
    """The recipe that a command line names, with its flags applied; flags win wherever they stand.

    Raises:
        UsageError: the file cannot be read or is of a captioner, or something in it or on the command line is unknown, of a
            wrong type, or contradicts something else.
    """
    path = recipe_path(argv)
    written = read_yaml(path) if path else {}
    _require_of_listener(written, path)
    parser = listener_parser()
    built, common = typed_options(parser, read_options(argv, parser, path, written))
    recipe = ListenerRecipe(**{name: built[name] for name in SECTIONS}, grammar=built.grammar, **common)
    _check(recipe)
    return recipe


def listener_parser() -> Parser:
    """The options of ``train-listener``."""
    parser = Parser(
        usage="tellapart train-listener RECIPE [--option value ...]",
        description="Train a listener (CLIP, SigLIP) on images and captions as RECIPE (a YAML file) says.",
    )
    parser.add_argument(
        "--grammar",
        type=bool,
        default=False,
        help="also train a head that tells captions from corrupted ones (Cho et al., 2022)",
    )
    for name, kind in SECTIONS.items():
        add_options(parser, kind, name)
    add_options(parser, TrainConfig)
    add_options(parser, TrainFlags)
    return parser


def listener_help() -> str:
    """The options, for ``--help``."""
    return help_of(listener_parser())


def _require_of_listener(written: Mapping[str, Any], path: Path | None) -> None:
    strange = next((key for key in OF_CAPTIONERS if key in written), None)
    if strange is not None:
        raise UsageError(f"{path} has {strange}, so it is a recipe of a captioner: run it with tellapart train.")


def _check(recipe: ListenerRecipe) -> None:
    if recipe.grammar and recipe.listener.train == "all":
        raise UsageError("--grammar trains the text side only: set listener.train to text, or leave --grammar out.")
    if recipe.head.weight < 0 or recipe.head.min_count < 1:
        raise UsageError(
            f"head.weight is {recipe.head.weight} and head.min_count {recipe.head.min_count}: give a weight of 0 or more "
            "and a count of at least 1."
        )
    if recipe.data.features is not None:
        raise UsageError("data.features are of captioners, but a listener reads images: leave data.features out.")
    if not recipe.grammar and recipe.head != HeadSection():
        raise UsageError("head has options, but no head is trained: give --grammar, or leave head out.")
