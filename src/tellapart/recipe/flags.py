"""Names of options as people write them: on command lines, in files and in programs."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tellapart.errors import UsageError
from tellapart.names import closest
from tellapart.objectives import METHODS
from tellapart.recipe.options import Given, Text, is_switch, only_switch, takes_mapping
from tellapart.recipe.schema import OBJECTIVE, REWARD, TRAINING, Schema, objective_options
from tellapart.recipe.shipped import RECIPE_ENDINGS
from tellapart.training.config import TrainConfig

logger = logging.getLogger(__name__)

RENAMED = {
    "beam_size": "num_beams",
    "batch_size_per_gpu": "per_device_train_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "lr": "learning_rate",
    "max_completion_length": "max_new_tokens",
    "max_length": "max_new_tokens",
    "train_sample_n": "num_generations",
    "warmup_ratio": "warmup_steps",
    "lora_r": "r",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
}
"""Names of other tools -> ours, compared by an option's last part; accepted with a note."""

GONE = {
    "logging_dir": "logs are written below --output_dir",
    "language_eval": "the evaluation always computes the language metrics",
    "self_critical_after": "train with method xe first, then give its run as --captioner.model_name_or_path",
    "sc_sample_method": "the objective's own options say how captions are drawn",
    "phi": "the weight of Phi is objective.phi_weight of method vlrm_rs",
}
"""Names without a counterpart -> what to do instead."""

_MOST_METHODS = 6
"""That an error names as having an option."""

SWITCH_WORDS = {"true", "false", "yes", "no"}

TRAINING_OPTIONS = frozenset(field.name for field in fields(TrainConfig) if field.init)


def full_name(name: str) -> str:
    """The dotted name of an option; those of the training may be written without their section."""
    first = name.partition(".")[0]
    return f"{TRAINING}.{name}" if first in TRAINING_OPTIONS else name


def short_name(name: str) -> str:
    """The name that help and errors show."""
    name = name.removeprefix(f"{TRAINING}.")
    return name.removesuffix(".weight") if name.startswith(f"{REWARD}.") and name.count(".") == 2 else name


@dataclass(frozen=True)
class NoValue:
    """An option on a command line without a value.

    Args:
        followed_by: the recipe, where that came next.
    """

    followed_by: str = ""


@dataclass(frozen=True)
class Words:
    """A command line, taken apart.

    Args:
        positional: words that belong to no option.
        options: name as it was written, without dashes -> its text.
    """

    positional: list[str]
    options: dict[str, Text | NoValue]


def split_words(argv: Sequence[str], types: Mapping[str, Any], *, recipe: bool = True) -> Words:
    """Take a command line apart: ``--name value``, ``--name=value`` and switches, in any order; ``-`` counts as ``_``.

    With ``recipe``, a word that ends in .yaml or .yml is the recipe and never the value of an option, unless it follows ``=``.

    Args:
        argv: the words.
        types: dotted option name -> its type: a switch takes a value only where it is ``true`` or ``false``.
        recipe: whether a recipe may be among the words.
    """
    positional: list[str] = []
    options: dict[str, Text | NoValue] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return Words(positional + words, options)
        if not word.startswith("--"):
            positional.append(word)
            continue
        name, given, value = word[2:].partition("=")
        name = _underscored(name)
        follows = words[0] if words and not words[0].startswith("--") else None
        if given:
            options[name] = Text(value)
        elif recipe and follows is not None and follows.endswith(RECIPE_ENDINGS):
            options[name] = NoValue(follows)
        elif follows is not None and (
            not only_switch(types.get(name, types.get(full_name(name)))) or follows.lower() in SWITCH_WORDS
        ):
            options[name] = Text(words.pop(0))
        else:
            options[name] = NoValue()
    return Words(positional, options)


def _underscored(name: str) -> str:
    """An option's name as it is written in files; what follows ``best_floor.`` is a metric, which may have a dash."""
    option, metric = re.fullmatch(r"(.*?best[-_]floor\.|)(.*)", name).groups()  # type: ignore[union-attr]
    return option.replace("-", "_") + (metric if option else metric.replace("-", "_"))


def known_key(name: str, types: Mapping[str, Any], *, shown: str) -> str:
    """``name`` as the options call it: itself, or the new name of an old one (said in a note).

    Args:
        name: the dotted name given.
        types: the known options.
        shown: how an error names the option, with ``name`` in it: ``--name`` or ``name in recipe.yaml:3``.

    Raises:
        UsageError: nothing of that name exists; the closest one is named.
    """
    section, _, leaf = name.rpartition(".")
    for full, above in ((name, section), (full_name(name), full_name(section))):
        if full in types or (above in types and takes_mapping(types[above])):
            return full
    dashes = "--" if shown.startswith("--") else ""
    gone = next((part for part in reversed(name.split(".")) if part in GONE), None)
    if gone is not None:
        raise UsageError(f"{shown} has no counterpart here: {GONE[gone]}.")
    found = _renamed(section, RENAMED.get(leaf), types)
    if found is not None:
        logger.warning("note: %s is called %s%s here.", shown, dashes, short_name(found))
        return found
    rewards = {key.split(".")[1]: f"{REWARD}.{key.split('.')[1]}" for key in types if key.startswith(f"{REWARD}.")}
    if name.startswith(f"{REWARD}.") and rewards and name.split(".")[1] not in rewards:
        nearest = closest(name.split(".")[1], rewards)
        told = f"choose one of {', '.join(rewards)}, or name the file of another one with --plugin."
        told = f"did you mean {dashes}{rewards[nearest]}?" if nearest else told
        raise UsageError(f"{shown} is not a reward: {told}")
    belongs = _of_other_methods(name, types, dashes)
    if belongs:
        raise UsageError(f"{shown} is not an option of this method: {belongs}")
    meant = closest(short_name(name), [*map(short_name, types), *GONE])
    remedy = f"did you mean {dashes}{meant}?" if meant else "see --help for the options."
    raise UsageError(f"{shown} is not an option: {remedy}")


def _of_other_methods(name: str, types: Mapping[str, Any], dashes: str) -> str:
    """To which methods an unknown number of the objective belongs; empty where this method has one of a similar name."""
    own = [key for key in types if key.startswith(f"{OBJECTIVE}.")]
    if not name.startswith(f"{OBJECTIVE}.") or not own:
        return ""
    options = {method: objective_options(METHODS[method]) for method in METHODS}
    everyone = dict.fromkeys(f"{OBJECTIVE}.{option}" for found in options.values() for option in found)
    meant = name if name in everyone else closest(name, own) or closest(name, everyone)
    if meant is None or meant in own:
        return ""
    having = [method for method, found in options.items() if meant.partition(".")[2] in found]
    further = len(having) - _MOST_METHODS
    of = ", ".join(having) if further < 2 else f"{', '.join(having[:_MOST_METHODS])} and {further} others"
    return f"it belongs to {of}." if meant == name else f"did you mean {dashes}{meant} of {of}?"


def _renamed(section: str, new: str | None, types: Mapping[str, Any]) -> str | None:
    """The option that a name of another tool means."""
    if new is None:
        return None
    renamed = f"{section}.{new}" if section else new
    same_leaf = [key for key in types if key.rsplit(".", 1)[-1] == new]
    known = [name for name in (renamed, full_name(renamed)) if name in types]
    return known[0] if known else same_leaf[0] if len(same_leaf) == 1 else None


def reward_entries(value: Any, where: str) -> Iterator[tuple[str, Any, str]]:
    """``(name, options, place in the list)`` of what is written under ``reward``: a list of entries, or a mapping of weights.

    Raises:
        UsageError: it is neither, or an entry has no name.
    """
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield str(name), entry if isinstance(entry, Mapping) else {"weight": entry}, str(name)
        return
    if not isinstance(value, list):
        raise UsageError(f"{where} is {value!r}: write a list such as [{{name: clip_s, weight: 1.0}}].")
    for place, entry in enumerate(value):
        if isinstance(entry, str):
            entry = {"name": entry}
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise UsageError(f"{where} has the entry {entry!r}: write {{name: clip_s, weight: 1.0}}.")
        yield entry["name"], {key: inner for key, inner in entry.items() if key != "name"}, str(place)


def flat_rewards(value: Any, where: str) -> dict[str, tuple[Any, str]]:
    """``reward.NAME.option`` -> its value, and its place in what was written.

    Raises:
        UsageError: it is not a list of rewards, or names one twice.
    """
    found: dict[str, tuple[Any, str]] = {}
    for name, entry, place in reward_entries(value, where):
        key = f"{REWARD}.{name}"
        if f"{key}.weight" in found:
            raise UsageError(f"{where} has {name!r} twice: give it one weight.")
        found[f"{key}.weight"] = (entry.get("weight", 1.0), place)
        for option, inner in entry.items():
            if option != "weight":
                found[f"{key}.{option}"] = (inner, f"{place}.{option}")
    return found


def flatten(nested: Mapping[str, Any], schema: Schema, shown: Any, prefix: str = "") -> dict[str, Given]:
    """Nested sections -> dotted names as they were written; an option that takes a mapping keeps it.

    Args:
        nested: without ``reward``.
        schema: of the recipe.
        shown: dotted name -> how an error names it.
        prefix: of the names.

    Raises:
        UsageError: a section is not a mapping.
    """
    flat: dict[str, Given] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        full = full_name(name)
        if isinstance(value, Mapping) and not schema.keeps_mapping(full):
            if not value and full in schema.types:
                flat[name] = Given({}, shown(name))
            flat |= flatten(value, schema, shown, f"{name}.")
        elif full in schema.types or not schema.holds_members(full):
            flat[name] = Given(value, shown(name))
        elif value is not None:
            raise UsageError(f"{shown(name)} is {value!r}: write a mapping of options below it.")
    return flat


def given_options(options: Mapping[str, Any], schema: Schema) -> dict[str, Given]:
    """Overrides under their full names, in their order.

    Args:
        options: dotted name -> value; a ``Text`` or ``NoValue`` was typed on a command line.
        schema: of the recipe.

    Raises:
        UsageError: one is unknown, or lacks its value.
    """
    found: dict[str, Given] = {}
    for name, value in options.items():
        shown = f"--{name}" if isinstance(value, Text | NoValue) else name
        key = name
        if key.count(".") == 1 and key.startswith(f"{REWARD}.") and key.partition(".")[2] in schema.known_rewards:
            key = f"{key}.weight"
        key = known_key(key, schema.types, shown=shown)
        if isinstance(value, NoValue):
            if not is_switch(schema.types.get(key)):
                follows = f" but the recipe {value.followed_by}" if value.followed_by else ""
                raise UsageError(f"--{name} has no value{follows}: write --{name} VALUE.")
            value = True
        found[key] = Given(value, shown if shown.startswith("--") else short_name(key))
    return found
