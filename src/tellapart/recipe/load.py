"""Recipes: YAML whose schema is the constructors' signatures, overridden by flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from tellapart.errors import UsageError
from tellapart.names import require_known, resolve
from tellapart.objectives import METHODS
from tellapart.pretraining.discriminator_settings import DiscriminatorSettings
from tellapart.recipe.critic_schema import CriticSection, PenaltiesSection
from tellapart.recipe.matchers import MatcherSection
from tellapart.recipe.parse import (
    RECIPE_ENDINGS,
    Arguments,
    Parser,
    add_options,
    help_of,
    known_key,
    option_types,
    parse,
    split_arguments,
)
from tellapart.recipe.read_yaml import read_yaml
from tellapart.recipe.sections import (
    CaptionerSection,
    DataSection,
    DistanceSection,
    EvaluationSection,
    GrammarSection,
    LanguageModelSection,
    ListenerSection,
    NeighboursSection,
    OwnListenerSection,
    RewardSection,
    TrainFlags,
)
from tellapart.training.config import TrainConfig

SECTIONS = {
    "captioner": CaptionerSection,
    "data": DataSection,
    "listener": ListenerSection,
    "language_model": LanguageModelSection,
    "matcher": MatcherSection,
    "reward": RewardSection,
    "evaluation": EvaluationSection,
}
"""Section -> its schema; ``objective`` is the method's own constructor, and the top level is ``TrainConfig``."""

PART_SECTIONS: dict[str, Any] = {
    "own_listener": OwnListenerSection,
    "neighbours": NeighboursSection,
    "discriminator": DiscriminatorSettings,
    "grammar": GrammarSection,
    "distance": DistanceSection,
    "critic": CriticSection,
    "penalties": PenaltiesSection,
}
"""Part of an objective -> the schema of its section, which only recipes of methods that need the part have; null leaves it
out."""

GIVEN_OBJECTS = ("captioner", "reward", "listener", "phi_weight", *PART_SECTIONS)
"""Constructor arguments of an objective that are built from sections of their own."""


@dataclass(frozen=True)
class Recipe:
    """A recipe with every option resolved and checked.

    Args:
        method: key of ``METHODS``.
        captioner: what is trained.
        data: what it is trained on.
        listener: what the reward listens with.
        language_model: what tells the reward how likely captions are as text.
        matcher: what tells the reward how well captions and images go together.
        reward: weights of the rewards.
        parts: what else the method needs -> its section, or none.
        objective: keyword arguments of the method's class.
        evaluation: what the training is watched by.
        training: numbers of the loop.
        flags: what was asked of this invocation only.
        resolved: all of it but the flags, as a recipe is written.
        usual: the same if nothing were given.
    """

    method: str
    captioner: CaptionerSection
    data: DataSection
    listener: ListenerSection
    language_model: LanguageModelSection
    matcher: MatcherSection
    reward: RewardSection
    parts: dict[str, Any]
    objective: dict[str, Any]
    evaluation: EvaluationSection
    training: TrainConfig
    flags: TrainFlags
    resolved: dict[str, Any]
    usual: dict[str, Any]

    def to_yaml(self) -> str:
        """The resolved recipe; reading it back gives the same recipe."""
        return yaml.safe_dump(self.resolved, sort_keys=False, allow_unicode=True)


def load_recipe(argv: Sequence[str]) -> Recipe:
    """The recipe that a command line names, with its flags applied; flags win wherever they stand.

    Raises:
        UsageError: the file cannot be read, or something in it or on the command line is unknown or of a wrong type.
    """
    path = recipe_path(argv)
    written = read_yaml(path) if path else {}
    parser = recipe_parser(chosen_method(argv, written, path))
    return _recipe(parser, read_options(argv, parser, path, written))


def read_options(argv: Sequence[str], parser: Parser, path: Path | None, written: Mapping[str, Any]) -> Any:
    """The options that a recipe's file and a command line give together; flags win wherever they stand.

    Raises:
        UsageError: one is unknown, of a wrong type, or has no place in a file.
    """
    types = option_types(parser)
    flat = flatten(written, types, str(path))
    in_file = {known_key(key, types, where=str(path)): value for key, value in flat.items()}
    for field in fields(TrainFlags):
        if field.name in in_file:
            raise UsageError(f"{field.name} in {path} is not for recipes: give --{field.name} on the command line.")
    given = split_arguments(argv, types)
    _only_word(given, path)
    files = {key: str(path) for key in in_file if key not in given.options}
    return parse(parser, {**in_file, **given.options}, files)


def _only_word(given: Arguments, path: Path | None) -> None:
    """Raise unless the recipe is the only word that belongs to no option."""
    for word in given.positional:
        if path is None or word != str(path) or given.positional.count(word) > 1:
            raise UsageError(f"{word!r} is one word too many: a recipe is one file, everything else is --name VALUE.")
    if path is not None and not given.positional:
        key = next(key for key, value in given.options.items() if value == str(path))
        raise UsageError(f"--{key} has no value but the recipe {path}: write --{key} VALUE.")


def recipe_path(argv: Sequence[str]) -> Path | None:
    """The recipe among the words of a command line: the first YAML file, else a leading word that is no option."""
    named = [word for word in argv if not word.startswith("--") and word.endswith(RECIPE_ENDINGS)]
    named += [word for word in argv[:1] if not word.startswith("-")]
    return Path(named[0]) if named else None


def chosen_method(argv: Sequence[str], written: Mapping[str, Any], path: Path | None) -> str:
    """The method that the flags or the recipe name.

    Raises:
        UsageError: none is named, or it is unknown.
    """
    words = [word for given in argv for word in given.partition("=")[::2] if word]
    flagged = [after for word, after in pairwise(words) if word == "--method"]
    method = flagged[-1] if flagged else written.get("method")
    if method is None:
        where = (
            f"{path} names no method: add"
            if path
            else "there is no recipe: name a file such as recipe.yaml, or --method"
        )
        raise UsageError(f"{where} one of {', '.join(METHODS)}.")
    require_known(str(method), METHODS, "a method")
    return str(method)


def recipe_help(argv: Sequence[str]) -> str:
    """The options of ``train``; with a recipe or ``--method``, also those of the method."""
    path = recipe_path(argv)
    written = read_yaml(path) if path else {}
    if path is None and "--method" not in " ".join(argv):
        names = ", ".join(METHODS)
        return f"{help_of(recipe_parser(None))}\n\nName a recipe or --method ({names}) to see the method's options too."
    return help_of(recipe_parser(chosen_method(argv, written, path)))


def recipe_parser(method: str | None) -> Parser:
    """The options of a training with ``method``; without one, those that all methods share."""
    usage = "tellapart train RECIPE [--option value ...]"
    parser = Parser(usage=usage, description="Train a captioner as RECIPE (a YAML file) says.")
    parser.add_argument("--method", type=str, default=method, help="the training method (see: tellapart methods)")
    for name, kind in SECTIONS.items():
        add_options(parser, kind, name)
    if method is not None:
        for name in _part_sections(method):
            default = PART_SECTIONS[name]() if name in METHODS[method].needs else None
            told = cleandoc(PART_SECTIONS[name].__doc__).partition("\n\n")[0]
            parser.add_argument(f"--{name}", type=PART_SECTIONS[name] | None, default=default, help=told)
        add_options(parser, resolve(METHODS[method].target), "objective", skip=(*GIVEN_OBJECTS, *METHODS[method].fixed))
    add_options(parser, TrainConfig)
    add_options(parser, TrainFlags)
    return parser


def _part_sections(method: str) -> list[str]:
    of_reward = ("grammar",) if METHODS[method].needs_reward else ()
    return [name for name in (*METHODS[method].needs, *of_reward) if name in PART_SECTIONS]


def _recipe(parser: Parser, parsed: Any) -> Recipe:
    """Typed sections from parsed options."""
    built, common = typed_options(parser, parsed)
    objective = built.get("objective")
    return Recipe(
        method=built.method,
        **{name: built[name] for name in SECTIONS},
        parts={name: built[name] for name in _part_sections(built.method)},
        objective=objective.as_dict() if objective is not None else {},
        **common,
    )


def typed_options(parser: Parser, parsed: Any) -> tuple[Any, dict[str, Any]]:
    """Sections by name, and what every recipe has: ``training``, ``flags``, ``resolved`` and ``usual``.

    Raises:
        UsageError: a number of the training cannot be used.
    """
    resolved = yaml.safe_load(parser.dump(parsed, format="yaml", skip_unset=False))
    try:
        built = parser.instantiate(parsed)
    except ValueError as error:
        raise error.__cause__ if isinstance(error.__cause__, UsageError) else error from None
    for field in fields(TrainFlags):
        del resolved[field.name]
    try:
        training = TrainConfig(**{field.name: built[field.name] for field in fields(TrainConfig) if field.init})
    except ValueError as error:
        raise UsageError(f"{str(error).rstrip('.')}: change the recipe or the flag.") from error
    flags = TrainFlags(**{field.name: built[field.name] for field in fields(TrainFlags)})
    usual = yaml.safe_load(
        parser.dump(parser.get_defaults(skip_validation=True), skip_unset=False, skip_validation=True)
    )
    return built, {"training": training, "flags": flags, "resolved": resolved, "usual": usual}


def flatten(nested: Mapping[str, Any], types: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Nested sections -> dotted names; an option that takes a mapping keeps it.

    Raises:
        UsageError: a section is not a mapping.
    """
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        holds_options = any(known.startswith(f"{name}.") for known in types)
        if isinstance(value, dict) and (holds_options or name not in types):
            flat.update(flatten(value, types, where, f"{name}."))
        elif name in types or not holds_options:
            flat[name] = value
        elif value is not None:
            raise UsageError(f"{name} in {where} is {value!r}: write a mapping of options below it.")
    return flat
