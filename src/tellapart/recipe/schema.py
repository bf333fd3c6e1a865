"""Schema of a recipe: its sections as one pydantic model, with the types, defaults and help of every option."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from inspect import cleandoc, getdoc
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

from pydantic import BaseModel, Field, create_model

from tellapart.errors import UsageError
from tellapart.names import require_known
from tellapart.objectives import METHODS
from tellapart.objectives.method import Method
from tellapart.recipe.options import (
    CONFIG,
    HELP_WIDTH,
    REQUIRED,
    Given,
    MadeOnce,
    Option,
    help_lines,
    model_of,
    options_of,
    records_in,
    takes_mapping,
    types_of,
    validated,
)
from tellapart.recipe.parts import PARTS, PartKind
from tellapart.recipe.plugins import Offered, offered_by
from tellapart.recipe.sections import CaptionerSection, DataSection, EvaluationSection
from tellapart.rewards import REWARDS
from tellapart.rewards.kinds import RewardKind
from tellapart.training.config import TrainConfig

TRAINING = "training"
REWARD = "reward"
OBJECTIVE = "objective"


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The methods, rewards and parts that recipes can name; equal to itself only, so that schemas can be kept per catalogue.

    Args:
        methods: name -> method.
        rewards: name -> reward.
        parts: name -> part.
        plugins: files that brought some of them.
    """

    methods: Mapping[str, Method] = field(default_factory=lambda: METHODS)
    rewards: Mapping[str, RewardKind] = field(default_factory=lambda: REWARDS)
    parts: Mapping[str, PartKind] = field(default_factory=lambda: PARTS)
    plugins: tuple[Path, ...] = ()

    @staticmethod
    def load(plugins: Sequence[str | Path] = ()) -> Catalogue:
        """Shipped and installed parts, and those of files.

        Raises:
            UsageError: a file cannot be run, or brings what is taken or of another kind.
        """
        if not plugins:
            return _installed()
        methods, rewards, parts = METHODS, REWARDS, PARTS
        for path in map(Path, plugins):
            offered = offered_by(path)
            methods = methods.extended(offered.methods, str(path))
            rewards = rewards.extended(offered.rewards, str(path))
            parts = parts.extended(offered.parts, str(path))
            _require_parts(offered, rewards, parts, path)
        return Catalogue(methods, rewards, parts, tuple(map(Path, plugins)))


@lru_cache(maxsize=1)
def _installed() -> Catalogue:
    """Shipped and installed parts: one catalogue, since schemas are kept per catalogue."""
    return Catalogue()


def _require_parts(
    offered: Offered, rewards: Mapping[str, RewardKind], parts: Mapping[str, PartKind], path: Path
) -> None:
    """Raise where a reward of a file asks for what there is not, or a part takes the name of a section."""
    for name in offered.rewards:
        unknown = next((need for need in rewards[name].needs if need not in (*parts, "captioner", "dataset")), None)
        if unknown is not None:
            raise UsageError(
                f"the reward {name!r} of {path} has an argument {unknown!r} without a default, which is not a part: name a class "
                f"or function that makes the reward, whose arguments are parts ({', '.join(parts)}, captioner, dataset) or "
                "keyword-only options."
            )
    taken = next((name for name in offered.parts if name in SECTIONS), None)
    if taken is not None:
        raise UsageError(f"{path} offers a part {taken!r}, the name of a section: rename it.")


SECTIONS = ("method", "captioner", "data", REWARD, OBJECTIVE, "evaluation", TRAINING)
"""Names that no part can have."""


@dataclass(frozen=True)
class Section:
    """A section of a recipe.

    Args:
        options: by name.
        kind: the dataclass of the section, or none where it is made of ``options``.
        optional: whether null leaves it out.
        absent: whether it is left out unless something of it is given.
        help: what it is, in a line.
    """

    options: Mapping[str, Option]
    kind: type[Any] | None = None
    optional: bool = False
    absent: bool = False
    help: str = ""

    @staticmethod
    def of(kind: Any, *, skip: Sequence[str] = (), optional: bool = False, absent: bool = False) -> Section:
        """The section of a dataclass or of a callable's keyword arguments."""
        record = dataclasses.is_dataclass(kind)
        help = cleandoc(getdoc(kind) or "").partition("\n\n")[0]
        return Section(options_of(kind, skip=skip), kind if record else None, optional, absent, " ".join(help.split()))

    def field(self, name: str) -> tuple[Any, Any]:
        """The section as a field of a model."""
        made: Any = self.kind or model_of(name, self.options)
        kind: Any = Annotated[self.kind, MadeOnce()] if self.kind else made
        required = any(option.default is REQUIRED for option in self.options.values())
        default: dict[str, Any] = {} if required else {"default_factory": made}
        if self.absent:
            default = {"default": None}
        return kind | None if self.optional else kind, Field(description=self.help or None, **default)


@dataclass(frozen=True)
class Schema:
    """The sections and top-level options of one kind of recipe.

    Args:
        sections: name -> section, in the order of a resolved recipe.
        top: options outside the sections.
        rewards: name -> options of the entries of ``reward``, for those that are used.
        known_rewards: names that ``reward`` may hold.
    """

    sections: Mapping[str, Section]
    top: Mapping[str, Option]
    rewards: Mapping[str, Mapping[str, Option]] = field(default_factory=dict)
    known_rewards: tuple[str, ...] = ()

    @cached_property
    def types(self) -> dict[str, Any]:
        """Dotted option name -> its type; sections that can be null are among them."""
        types: dict[str, Any] = types_of(self.top)
        for name, section in self.sections.items():
            if section.optional:
                types[name] = type(None)
            types |= types_of(section.options, f"{name}.")
        for name in self.known_rewards:
            types[f"{REWARD}.{name}.weight"] = float
        for name, options in self.rewards.items():
            types |= types_of(options, f"{REWARD}.{name}.")
        return types

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Dotted option name -> its default; those of members of sections that may be left out as well."""
        found: dict[str, Any] = _defaults(self.top)
        for name, section in self.sections.items():
            found |= _defaults(section.options, f"{name}.")
            if section.optional:
                found[name] = None if section.absent else GIVEN
        for name, options in self.rewards.items():
            found |= {
                key: value for key, value in _defaults(options, f"{REWARD}.{name}.").items() if "weight" not in key
            }
        return found

    @cached_property
    def model(self) -> type[BaseModel]:
        """The reader and checker of recipes."""
        fields: dict[str, Any] = {
            option.name: (option.kind, ... if option.default is REQUIRED else option.default)
            for option in self.top.values()
        }
        for name, section in self.sections.items():
            fields[name] = section.field(name)
        if self.rewards:
            entries: dict[str, Any] = {
                name: (model_of(name, options) | None, None) for name, options in self.rewards.items()
            }
            fields[REWARD] = (create_model(REWARD, __config__=CONFIG, **entries), Field(default_factory=dict))
        return create_model("Recipe", __config__=CONFIG, **fields)

    def read(self, flat: Mapping[str, Given]) -> Any:
        """The validated sections of dotted options.

        Raises:
            UsageError: one is missing or of a wrong type.
        """
        for name, section in self.sections.items():
            needs = any(option.default is REQUIRED for option in section.options.values())
            if needs and not section.optional and not any(key.startswith(f"{name}.") for key in flat):
                flat = {name: Given({}, name), **flat}
        return validated(self.model, flat, self.types, missing="recipe")

    def holds_members(self, key: str) -> bool:
        """Whether there are options below this name."""
        return any(known.startswith(f"{key}.") for known in self.types)

    def keeps_mapping(self, key: str) -> bool:
        """Whether a mapping under this name is one value, not a section."""
        return key in self.types and takes_mapping(self.types[key]) and not self.holds_members(key)

    def help(self) -> list[str]:
        """The options as ``--help`` lists them."""
        lines = help_lines(self.top)
        for name, section in self.sections.items():
            if name == "evaluation" and self.known_rewards:
                lines += ["", *self._reward_help()]
            shown = "" if name == TRAINING else f"{name}."
            lines += ["", *wrap(f"{name}: {section.help}".rstrip(" "), HELP_WIDTH), *help_lines(section.options, shown)]
        return lines

    def _reward_help(self) -> list[str]:
        """The rewards that are used with their options, and the names of the others."""
        told = f"{REWARD}: A list of rewards with weights. --{REWARD}.NAME WEIGHT adds one or changes its weight, 0 removes it."
        lines = wrap(told, HELP_WIDTH)
        for name, options in self.rewards.items():
            lines += help_lines(options, f"{REWARD}.{name}.")
        others = ", ".join(name for name in self.known_rewards if name not in self.rewards)
        return [*lines, *wrap(f"  others: {others}", HELP_WIDTH, subsequent_indent=" " * 6)]


GIVEN = "given"
"""Marks a section that is given, where another recipe leaves it out."""


def _defaults(options: Mapping[str, Option], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in options.values():
        name = prefix + option.name
        found[name] = GIVEN if dataclasses.is_dataclass(option.default) else option.default
        for record in records_in(option.kind):
            found |= _defaults(options_of(record), f"{name}.")
    return found


METHOD_OPTION = Option("method", str, REQUIRED, "the training method (see: tellapart methods)")


def captioner_schema(
    method: str | None, catalogue: Catalogue, *, rewards: Iterable[str] = (), others: Iterable[str] = ()
) -> Schema:
    """The schema of a captioner's recipe.

    Args:
        method: its method; none shows what all methods share.
        catalogue: of methods, rewards and parts.
        rewards: names of the rewards that it uses.
        others: parts whose sections it has though neither method nor rewards need them.

    Raises:
        UsageError: a reward or a part is unknown.
    """
    return _captioner_schema(method, catalogue, tuple(rewards), tuple(others))


@lru_cache(maxsize=128)
def _captioner_schema(
    method: str | None, catalogue: Catalogue, rewards: tuple[str, ...], others: tuple[str, ...]
) -> Schema:
    """The schema, built once per kind of recipe: a study reads hundreds of recipes of a few kinds."""
    sections: dict[str, Section] = {"captioner": Section.of(CaptionerSection), "data": Section.of(DataSection)}
    entries: dict[str, dict[str, Option]] = {}
    kind = None if method is None else catalogue.methods[method]
    needs: dict[str, None] = {"listener": None}
    for name in rewards:
        require_known(name, catalogue.rewards, "a reward")
        entries[name] = reward_options(name, catalogue)
        needs |= dict.fromkeys(catalogue.rewards[name].needs)
    for name in (*(kind.needs if kind else ()), *needs, *others):
        if name in catalogue.parts and not catalogue.parts[name].plain and name not in sections:
            needed = (kind is not None and name in kind.needs) or name in needs
            optional = name != "listener"
            sections[name] = Section.of(catalogue.parts[name].options(), optional=optional, absent=not needed)
    if kind is not None:
        sections[OBJECTIVE] = Section(objective_options(kind, catalogue.parts), help="The numbers of the method.")
    sections["evaluation"] = Section.of(EvaluationSection)
    sections[TRAINING] = Section.of(TrainConfig)
    return Schema(sections, {"method": METHOD_OPTION}, entries, tuple(catalogue.rewards))


def objective_options(method: Method, parts: Iterable[str] = PARTS) -> dict[str, Option]:
    """The numbers of a method: the options of its class that are not parts.

    Args:
        method: of a recipe.
        parts: names of what recipes build.
    """
    return options_of(method.load(), skip=("captioner", REWARD, *parts, *method.fixed))


def reward_options(name: str, catalogue: Catalogue) -> dict[str, Option]:
    """The schema of an entry of ``reward``: its weight, the reward's own options, and parts of its own."""
    kind = catalogue.rewards[name]
    options = {"weight": Option("weight", float, 1.0, "factor in the sum of rewards")}
    for option in options_of(kind.load(), skip=(*kind.needs, *kind.fixed)).values():
        if option.name in ("name", "weight"):
            raise UsageError(
                f"the reward {name!r} has an option {option.name!r}, which every entry of reward has: rename it."
            )
        options[option.name] = option
    for part in kind.needs:
        if part in catalogue.parts and not catalogue.parts[part].plain:
            section = Section.of(catalogue.parts[part].options())
            own: Any = (section.kind or model_of(part, section.options)) | None
            options[part] = Option(part, own, None, f"its own {part}; null takes the recipe's")
    return options
