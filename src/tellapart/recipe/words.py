"""Recipes from command lines: a recipe, options that override it, and options of one invocation only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from tellapart.errors import UsageError
from tellapart.recipe.flags import NoValue, split_words
from tellapart.recipe.options import Given, is_switch, options_of, record_model, types_of, validated
from tellapart.recipe.schema import Schema
from tellapart.recipe.shipped import RECIPE_ENDINGS, is_recipe

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Options of one invocation that are not part of a recipe.

    Args:
        dry_run: build everything, check the captioner on two images, print the resolved recipe and the memory that it needs, and
            train nothing.
        print_config: print the resolved recipe and stop before anything is built.
        overwrite_output_dir: delete the run in the output folder and start again.
        plugin: a Python file that brings methods, rewards or parts (REWARDS = {"name": MyReward}); it is run. May be repeated.
        push_to_hub: upload the selected captioner with its model card to the Hugging Face hub after training.
        hub_model_id: name of the repository to push to, owner/name.
        hub_private_repo: make the repository private if it does not exist yet.
    """

    dry_run: bool = False
    print_config: bool = False
    overwrite_output_dir: bool = False
    plugin: Path | None = None
    push_to_hub: bool = False
    hub_model_id: str | None = None
    hub_private_repo: bool = False


FLAGS = options_of(TrainFlags)
FLAG_TYPES = types_of(FLAGS)


def recipe_word(argv: Sequence[str]) -> str | None:
    """The recipe among the words of a command line: the first YAML file, else a leading word that is not an option."""
    named = [word for word in argv if not word.startswith("--") and word.endswith(RECIPE_ENDINGS)]
    named += [word for word in argv[:1] if not word.startswith("-")]
    return named[0] if named else None


def read_words(
    argv: Sequence[str],
    load: Callable[[str | None, Mapping[str, Any], Callable[[Schema], Mapping[str, Any]], Sequence[Path]], R],
    more: Mapping[str, Any] | None = None,
) -> tuple[R, TrainFlags]:
    """A recipe with the options of a command line, and the flags; options win at any position.

    Args:
        argv: what follows the command.
        load: recipe, options as far as they decide the schema, schema -> options, plugins -> the recipe.
        more: further dotted options and their types, such as switches that set others.

    Raises:
        UsageError: something is unknown, missing, of a wrong type, or belongs to no option.
    """
    word = recipe_word(argv)
    first = split_words(argv, FLAG_TYPES | dict(more or {}))
    flags = _flags(first.options)

    def options(schema: Schema) -> Mapping[str, Any]:
        words = split_words(argv, schema.types | FLAG_TYPES | dict(more or {}))
        _only(words.positional, word, words.options)
        return {name: value for name, value in words.options.items() if name not in FLAG_TYPES}

    asked = {name: value for name, value in first.options.items() if name not in FLAG_TYPES}
    return load(word, asked, options, _plugins(argv)), flags


def _plugins(argv: Sequence[str]) -> list[Path]:
    """Every ``--plugin`` of a command line."""
    found = [Path(word.partition("=")[2]) for word in argv if word.startswith("--plugin=")]
    return found + [Path(after) for word, after in pairwise(argv) if word == "--plugin"]


def _flags(options: Mapping[str, Any]) -> TrainFlags:
    given = {name: Given(value, f"--{name}") for name, value in options.items() if name in FLAG_TYPES}
    return TrainFlags(**vars(read_options(given, TrainFlags)))


def read_options(given: Mapping[str, Given], kind: Any) -> Any:
    """Checked values of the options of a command.

    Args:
        given: dotted name -> value.
        kind: dataclass of the command's options.

    Raises:
        UsageError: one is missing, lacks its value or is of a wrong type.
    """
    types = types_of(options_of(kind))
    values = {}
    for key, one in given.items():
        if isinstance(one.value, NoValue):
            if not is_switch(types[key]):
                raise UsageError(f"--{key} has no value: write --{key} VALUE.")
            one = Given(True, one.shown)
        values[key] = one
    return validated(record_model(kind), values, types, missing="command")


def _only(positional: Sequence[str], recipe: str | None, options: Mapping[str, Any]) -> None:
    """Raise unless the recipe is the only word that belongs to no option."""
    for word in positional:
        if recipe is None or word != recipe or positional.count(word) > 1:
            raise UsageError(f"{word!r} is not expected: {_instead(word, recipe)}.")


def _instead(word: str, recipe: str | None) -> str:
    """The remedy for a word that belongs to no option."""
    name, equals, value = word.partition("=")
    if equals:
        return f"write --{name} {value}"
    if recipe is None:
        return "name the recipe first"
    if is_recipe(word):
        return f"the recipe is {recipe} already, name one of the two"
    return "name one recipe, and write options as --name VALUE"
