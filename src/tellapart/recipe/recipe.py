"""The recipe: the one description of a training, read from YAML, overridden by flags or a program, checked, built and run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tellapart.errors import UsageError
from tellapart.names import listed, require_known
from tellapart.recipe.flags import (
    NoValue,
    flat_rewards,
    flatten,
    full_name,
    given_options,
    known_key,
    short_name,
)
from tellapart.recipe.options import Given, Text, fits, from_text, in_words, plain
from tellapart.recipe.parts import USUAL
from tellapart.recipe.read_yaml import Written, read_yaml
from tellapart.recipe.schema import OBJECTIVE, REWARD, TRAINING, Catalogue, Schema, captioner_schema
from tellapart.recipe.shipped import find_recipe

if TYPE_CHECKING:
    from tellapart.objectives.method import Method
    from tellapart.recipe.build import Built
    from tellapart.recipe.sections import CaptionerSection, DataSection, EvaluationSection, ListenerSection
    from tellapart.training.config import TrainConfig
    from tellapart.training.run import Run

logger = logging.getLogger(__name__)

LEARNERS_OPTIONS = ("learning_rate", "max_grad_norm", "max_grad_value")
"""Options of the training that may differ for each part that learns."""


@dataclass(frozen=True)
class RewardEntry:
    """An entry of ``reward``.

    Args:
        name: of the reward.
        weight: factor in the sum.
        options: the reward's own.
        parts: name -> section of parts that this reward has for itself.
    """

    name: str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A training with every option resolved and checked: data, captioner, reward, objective, evaluation and their numbers.

    Args:
        name: of the file it came from.
        method: key of ``METHODS``.
        captioner: what is trained.
        data: what it is trained on.
        listener: the retriever used as reward, and the first one of the evaluation.
        reward: the rewards, with their weights.
        parts: what else the method and the rewards need -> its section, or none.
        objective: keyword arguments of the method's class.
        evaluation: evaluation during training.
        training: numbers of the loop.
        resolved: all of it, as a recipe is written.
        schema: its options.
        catalogue: methods, rewards and parts by name.

    Example:
        >>> recipe = Recipe.load("world_ved_dico", {"objective.beta": 0.1, "training.seed": 1})
        >>> run = recipe.train("runs/x")
        >>> run.best.step, run.best.value
    """

    name: str = field(compare=False)
    method: str
    captioner: CaptionerSection
    data: DataSection
    listener: ListenerSection
    reward: tuple[RewardEntry, ...]
    parts: Mapping[str, Any]
    objective: Mapping[str, Any]
    evaluation: EvaluationSection
    training: TrainConfig
    resolved: dict[str, Any]
    schema: Schema = field(compare=False, repr=False)
    catalogue: Catalogue = field(compare=False, repr=False)

    @classmethod
    def load(
        cls,
        source: str | Path | Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        *,
        plugins: Sequence[str | Path] = (),
    ) -> Recipe:
        """Read a recipe.

        Args:
            source: a YAML file, the name of a shipped recipe (``world_ved_dico``), or a mapping; None begins with nothing.
            overrides: dotted option -> value, such as ``{"objective.beta": 0.1, "reward.cider_d": 0.5}``.
            plugins: Python files that bring methods, rewards or parts; they are run.

        Raises:
            UsageError: the recipe cannot be read, or an option is unknown, missing or of a wrong type. Whether sections go
                together is checked when it is built.
        """
        given = dotted(overrides or {})
        return load_with(source, given, lambda schema: given, Catalogue.load(plugins))

    @property
    def kind(self) -> Method:
        """The method."""
        return self.catalogue.methods[self.method]

    def users(self, part: str) -> list[str]:
        """Who needs a part of the recipe, in words: the method, and rewards that have none of their own."""
        found = [f"method {self.method}"] if part in self.kind.needs else []
        for entry in self.reward:
            if part in self.catalogue.rewards[entry.name].needs and entry.parts.get(part) is None:
                found.append(f"reward.{entry.name}")
        return found

    def replaced(self, overrides: Mapping[str, Any]) -> Recipe:
        """This recipe with other options.

        Raises:
            UsageError: one is unknown, or of a wrong type.
        """
        given, written = dotted(overrides), self.resolved
        if (
            given.get("method", self.method) != self.method
        ):  # an option that was not written is not kept for the other method
            usual = self.schema.defaults
            kept = {name: value for name, value in self.objective.items() if value != usual.get(f"{OBJECTIVE}.{name}")}
            written = written | {OBJECTIVE: plain(kept)}
        again = load_with(written, given, lambda schema: given, self.catalogue)
        return replace(again, name=self.name)

    def to_yaml(self) -> str:
        """The resolved recipe; reading it back gives the same recipe."""
        return yaml.safe_dump(self.resolved, sort_keys=False, allow_unicode=True)

    def key(self) -> str:
        """12 hex digits of everything that decides the numbers and differs from its default; models and data count by content."""
        from tellapart.recipe.fingerprint import key_of

        return key_of(self)

    def revisions(self) -> dict[str, int]:
        """Method and rewards -> the revision that their classes carry."""
        targets = {self.method: self.kind.load()}
        targets |= {f"reward.{entry.name}": self.catalogue.rewards[entry.name].load() for entry in self.reward}
        return {name: getattr(target, "revision", 1) for name, target in targets.items()}

    def build(self, *, dry_run: bool = False) -> Built:
        """Load models and data, and put the training together.

        Args:
            dry_run: leave out what takes long, such as pre-training a discriminator.

        Raises:
            UsageError: a part is missing, broken, or does not go with another.
        """
        from tellapart.recipe.build import build

        return build(self, dry_run=dry_run)

    def train(
        self,
        output_dir: str | Path | None = None,
        *,
        resume: bool = False,
        overwrite: bool = False,
        controls: bool = False,
    ) -> Run:
        """Build and train; checkpoints, logs and evaluations go to the output folder.

        Args:
            output_dir: in place of the recipe's.
            resume: continue the training in that folder from its last checkpoint, if there is one.
            overwrite: delete what an earlier training left there.
            controls: allow rewards that are controls of studies, such as the oracle.

        Returns:
            The run; ``run.best`` is the selected checkpoint.

        Raises:
            UsageError: the folder holds another training, or a part is missing or broken.
        """
        from tellapart.recipe.run import train

        given = {} if output_dir is None else {"training.output_dir": str(output_dir)}
        recipe = self.replaced(given) if given else self
        if resume and any(recipe.training.output_dir.glob("checkpoint-*")):
            recipe = recipe.replaced({"training.resume_from_checkpoint": "last"})
        return train(recipe, overwrite=overwrite, controls=controls)


def dotted(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides by dotted names, where some were given as mappings of a section's options."""
    found: dict[str, Any] = {}
    for name, value in overrides.items():
        if isinstance(value, Mapping) and "." not in name and full_name(name) == name and name != REWARD:
            found |= {f"{name}.{option}": inner for option, inner in value.items()}
        else:
            found[name] = value
    return found


Options = Callable[[Schema], Mapping[str, Any]]
"""Overrides by name, once it is known what a recipe may say."""


def load_with(
    source: str | Path | Mapping[str, Any] | None, asked: Mapping[str, Any], options: Options, catalogue: Catalogue
) -> Recipe:
    """A recipe whose overrides wait for its schema.

    Args:
        source: a file, a name, a mapping, or nothing.
        asked: the overrides, as far as they decide the schema: ``method`` and ``reward``.
        options: the overrides.
        catalogue: methods, rewards and parts.

    Raises:
        UsageError: as ``Recipe.load``.
    """
    reading = _Reading(source, asked, catalogue)
    flat = reading.flat(options)
    return _made(reading.schema.read(flat), reading.schema, catalogue, reading.name, reading.rewards)


def schema_of(source: str | Path | None, asked: Mapping[str, Any], catalogue: Catalogue) -> Schema:
    """The schema of a recipe, also of an incomplete one; arguments as for ``load_with``."""
    return _Reading(source, asked, catalogue).schema


class _Reading:
    """A recipe while it is read from a file and overrides, before its sections are checked.

    Args:
        source: as for ``load_with``.
        asked: as there.
        catalogue: as there.
    """

    def __init__(
        self, source: str | Path | Mapping[str, Any] | None, asked: Mapping[str, Any], catalogue: Catalogue
    ) -> None:
        self.file = FileOptions.of(source)
        path = self.file.path
        self.before, self.method = _methods(self.file.written.values, asked, path, catalogue)
        self.catalogue, self.kind = catalogue, catalogue.methods[self.method]
        self.name = path.stem if path is not None else self.method
        self.switched = self.before not in (None, self.method)
        """Whether another method than the file's was chosen."""
        self.dropped: list[str] = []
        """What the file says that the other method does not use."""
        self.added: list[str] = []
        """Rewards that it gets because the file has none that it could use."""
        self.weights = self._weights(asked)
        named = dict.fromkeys(key.split(".")[1] for key in (*self.weights, *asked) if key.startswith(f"{REWARD}."))
        self.rewards = [name for name in named if name in catalogue.rewards]
        self.rewards = [name for name in self.rewards if not _removes(asked, name)]
        _require_weights(self.rewards, self.weights, asked)
        before_them = {key.split(".")[1] for key in self.file.rewards}
        removed = [name for name in before_them if name in catalogue.rewards and name not in self.rewards]
        self.spare = {part for name in removed for part in catalogue.rewards[name].needs}
        """Parts of rewards that the overrides remove: their sections in the file are not an error."""
        self.schema = captioner_schema(self.method, catalogue, rewards=self.rewards)

    def _weights(self, asked: Mapping[str, Any]) -> dict[str, Given]:
        """``reward.NAME.option`` -> value: of the file, or as a whole of the overrides; what another method takes of them."""
        found = self.file.rewards
        if REWARD in asked:
            value = asked[REWARD]
            value = from_text(value, None) if isinstance(value, Text) else value
            entries = flat_rewards(value or [], f"--{REWARD}")
            found = {key: Given(inner, f"--{REWARD}") for key, (inner, _) in entries.items()}
        if not self.switched:
            return found
        if not self.kind.needs_reward:
            self.dropped += dict.fromkeys(f"{REWARD}.{key.split('.')[1]}" for key in found)
            return {}
        if not found and not any(key.startswith(f"{REWARD}.") for key in asked):
            self.added += [f"{REWARD}.{name}" for name in self.kind.rewards]
            found = {f"{name}.weight": Given(1.0, name) for name in self.added}
        return found

    def flat(self, options: Options) -> dict[str, Given]:
        """Every option that is given, by its full name.

        Raises:
            UsageError: one is unknown.
        """
        schema = self.schema
        found = self.file.flat(schema, self.dropped if self.switched else None, self.spare)
        for key, one in self.weights.items():
            if key.split(".")[1] in self.rewards or key.split(".")[1] not in self.catalogue.rewards:
                found[known_key(key, schema.types, shown=one.shown)] = one
        asked = options(schema)
        given = {
            name: value
            for name, value in asked.items()
            if name not in (REWARD, "method")
            and not (name.startswith(f"{REWARD}.") and _removes(asked, name.split(".")[1]))
        }
        overrides = given_options(given, schema)
        found = without_evaluation(merged(found, overrides), overrides)
        _spread(found, self.learners, schema.defaults)
        if self.switched:
            self._fit_objective(found, overrides)
            _fit_learners(found, self.learners, "own_listener" in self.kind.needs, self.dropped)
            found |= self._usual(found)
            _tell_switch(self.method, self._told(self.dropped), self.added)
        found["method"] = Given(self.method, "method")
        # two methods on one recipe are two runs
        run = f"{self.name}_{self.method}" if self.switched else self.name
        found.setdefault(f"{TRAINING}.output_dir", Given(str(Path("runs") / run), "output_dir"))
        return found

    def _fit_objective(self, found: dict[str, Given], overrides: Collection[str]) -> None:
        """Drop the file's numbers that the other method has under the same name, but in another range."""
        assert self.before is not None, "the file names the method that is not taken"
        before, now = captioner_schema(self.before, self.catalogue).types, self.schema.types
        for key in [key for key in found if key.startswith(f"{OBJECTIVE}.") and key not in overrides]:
            value = found[key].value
            if key in before and fits(value, before[key]) and not fits(value, now.get(key)):
                self.dropped.append(f"{key} {value} (it takes {in_words(now[key])})")
                del found[key]

    @property
    def learners(self) -> set[str]:
        """The parts that learn."""
        parts = self.catalogue.parts
        return {"captioner", *(n for n in self.kind.needs if n in parts and parts[n].learns)} - {*self.kind.keeps}

    def _usual(self, flat: Mapping[str, Given]) -> dict[str, Given]:
        """The usual models of parts that the other method and its rewards need, where the file names none."""
        needs = {*self.kind.needs, *(need for name in self.rewards for need in self.catalogue.rewards[name].needs)}
        on_world = flat["data.path"].value in ("world", "world/video") if "data.path" in flat else True
        found = {}
        for option, models in USUAL.items():
            given = flat.get(option)
            if option.partition(".")[0] in needs and (given is None or given.value is None):
                found[option] = Given(models[0] if on_world else models[1], option)
        self.added += [f"{option} {given.value}" for option, given in found.items()]
        return found

    def _told(self, dropped: Sequence[str]) -> list[str]:
        """Names of options without those of whole sections that are left out, which are named instead."""
        kept = (*self.schema.sections, *LEARNERS_OPTIONS, REWARD)
        sections = ((name, name.partition(".")[0]) for name in dropped)
        return list(dict.fromkeys(name if section in kept else section for name, section in sections))


def _require_weights(names: Sequence[str], weights: Mapping[str, Given], asked: Mapping[str, Any]) -> None:
    """Raise where an option is given of a reward that the recipe has not got."""
    for name in names:
        key = f"{REWARD}.{name}"
        if not any(known in weights or known in asked for known in (f"{key}.weight", key)):
            raise UsageError(
                f"{key} is not in the recipe, so its options do nothing: give it a weight, such as --{key} 1."
            )


def _removes(asked: Mapping[str, Any], reward: str) -> bool:
    """Whether overrides give a reward the weight 0."""
    value = asked.get(f"{REWARD}.{reward}", asked.get(f"{REWARD}.{reward}.weight"))
    value = from_text(value, None) if isinstance(value, Text) else value
    return value == 0 and not isinstance(value, bool)


def merged(flat: Mapping[str, Given], overrides: Mapping[str, Given]) -> dict[str, Given]:
    """Options with others on top: a section or a mapping that is given as a whole replaces its members."""
    found = dict(flat)
    for key, given in overrides.items():
        found = {name: value for name, value in found.items() if not name.startswith(f"{key}.")}
        found.pop(key, None)
        found[key] = given
    return found


OF_EVALUATION = (
    "eval_steps",
    "metric_for_best_model",
    "greater_is_better",
    "best_floor",
    "on_hack",
    "hack_patience",
)
"""Options of a training that do nothing, or are refused, where nothing is evaluated."""


def without_evaluation(flat: dict[str, Given], overrides: Mapping[str, Given]) -> dict[str, Given]:
    """Where overrides switch the evaluation off, what the file says about its steps and the selection goes with it."""
    split = overrides.get("evaluation.split")
    if split is None or _value(split) is not None or _value(flat.get("evaluation.held_out")) is not None:
        return flat
    of_it = {f"{TRAINING}.{option}" for option in OF_EVALUATION}
    return {n: given for n, given in flat.items() if n in overrides or of_it.isdisjoint({n, n.rpartition(".")[0]})}


def _value(given: Given | None) -> Any:
    """A value; the text of a flag as YAML reads it."""
    value = None if given is None else given.value
    return from_text(value, None) if isinstance(value, Text) else value


@dataclass(frozen=True)
class FileOptions:
    """The options of a file, under the names that it uses.

    Args:
        written: its values and their lines.
        path: of the file; None for a mapping.
    """

    written: Written
    path: Path | None

    @staticmethod
    def of(source: str | Path | Mapping[str, Any] | None) -> FileOptions:
        """Those of a file, the name of a shipped recipe, a mapping, or nothing.

        Raises:
            UsageError: the file does not exist or cannot be read.
        """
        if source is None or isinstance(source, Mapping):
            return FileOptions(Written(dict(source or {}), {}), None)
        path = find_recipe(source)
        return FileOptions(read_yaml(path), path)

    def shown(self, name: str) -> str:
        """How an error names an option."""
        if self.path is None:
            return name
        line = next((self.written.lines[key] for key in (name, full_name(name)) if key in self.written.lines), None)
        return f"{name} in {self.path}" + (f":{line}" if line is not None else "")

    @property
    def rewards(self) -> dict[str, Given]:
        """``reward.NAME.option`` -> value."""
        value = self.written.values.get(REWARD)
        if value is None:
            return {}
        found = flat_rewards(value, self.shown(REWARD))
        return {
            key: Given(inner, self._reward_shown(key, place))
            for key, (inner, place) in found.items()
            if found[".".join([*key.split(".")[:2], "weight"])][0] != 0
        }

    def _reward_shown(self, key: str, place: str) -> str:
        name = key.removesuffix(".weight")
        line = self.written.lines.get(f"{REWARD}.{place}")
        return name if self.path is None else f"{name} in {self.path}" + (f":{line}" if line else "")

    def flat(self, schema: Schema, dropped: list[str] | None, spare: Collection[str] = ()) -> dict[str, Given]:
        """All else under full names.

        Args:
            schema: of the recipe.
            dropped: takes the names of options that the schema has not; none raises on the first.
            spare: sections that are left out where the schema has not got them.

        Raises:
            UsageError: an option is not for recipes, is unknown, or is given under two names.
        """
        values = {key: value for key, value in self.written.values.items() if key not in (REWARD, "method", "$schema")}
        found: dict[str, Given] = {}
        for name, given in flatten(values, schema, self.shown).items():
            if name.partition(".")[0] in ONE_INVOCATION:
                raise UsageError(f"{given.shown} is not for recipes: give --{name} on the command line.")
            section = name.partition(".")[0]
            if section in spare and section not in schema.sections:
                continue
            try:
                key = known_key(name, schema.types, shown=given.shown)
            except UsageError:
                if dropped is None:
                    raise
                dropped.append(name)
                continue
            if key in found:
                raise UsageError(f"{given.shown} is the same option as {found[key].shown}: leave one of the two out.")
            found[key] = given
        return found


ONE_INVOCATION = (
    "dry_run",
    "print_config",
    "overwrite_output_dir",
    "push_to_hub",
    "hub_model_id",
    "hub_private_repo",
    "plugin",
)
"""Options of the command line that are not part of a recipe."""


def _methods(
    written: Mapping[str, Any], asked: Mapping[str, Any], path: Path | None, catalogue: Catalogue
) -> tuple[str | None, str]:
    """The method that the file names, if it does, and the one that counts.

    Raises:
        UsageError: none is named, or it is unknown.
    """
    strange = next((key for key in ("loss", "hinge", "pac", "head") if key in written), None)
    if strange is not None and "method" not in written:
        raise UsageError(
            f"{path} has {strange}, so it is a recipe of a listener: run it with tellapart train-listener."
        )
    before, method = written.get("method"), asked.get("method", written.get("method"))
    if method is None:
        where = (
            f"{path} names no method: add"
            if path
            else "there is no recipe: name a file such as recipe.yaml, or --method"
        )
        raise UsageError(f"{where} one of {listed(list(catalogue.methods))}; tellapart methods describes them.")
    if isinstance(method, NoValue):
        raise UsageError("--method has no value: write --method NAME.")
    for name in (each for each in (method, before) if each is not None):
        require_known(str(name), catalogue.methods, "a method")
    return (None if before is None else str(before)), str(method)


def _spread(flat: dict[str, Given], learners: Collection[str], defaults: Mapping[str, Any]) -> None:
    """Where one number was for all parts that learn, by default at least, and another is given for one of them, the others keep
    the first."""
    for option in LEARNERS_OPTIONS:
        key = f"{TRAINING}.{option}"
        if not any(name.startswith(f"{key}.") for name in flat):
            continue
        given = flat.get(key) or Given(defaults.get(key), "the default")
        value = _value(given)
        if isinstance(value, int | float):
            own = {name: flat.pop(name) for name in list(flat) if name.startswith(f"{key}.")}
            flat[key] = replace(given, value=dict.fromkeys(sorted(learners), value))
            flat.update(own)  # what is given for one part comes after what holds for all


def _fit_learners(flat: dict[str, Given], learners: Collection[str], own_listener: bool, notes: list[str]) -> None:
    """Where another method was chosen: numbers of parts that it has not are dropped, those of its own parts are the captioner's,
    and a checkpoint is selected by a metric that there will be."""
    for option in LEARNERS_OPTIONS:
        key = f"{TRAINING}.{option}"
        given = flat.get(key)
        if given is None or not isinstance(given.value, Mapping):
            continue
        notes += [f"{option}.{name}" for name in given.value if name not in learners]
        kept = {name: value for name, value in given.value.items() if name in learners}
        first = next(iter(kept.values()), None)
        flat[key] = replace(given, value=kept | dict.fromkeys({*learners} - {*kept}, first) if kept else None)
        if not kept:
            del flat[key]
    chosen = f"{TRAINING}.metric_for_best_model"
    selects = str(flat[chosen].value).removeprefix("eval_") if chosen in flat else ""
    if not own_listener and selects.startswith("own_listener"):
        notes.append(f"metric_for_best_model {flat[chosen].value} (CIDEr instead)")
        flat[chosen] = replace(flat[chosen], value="CIDEr")


def _tell_switch(method: str, dropped: Sequence[str], added: Sequence[str]) -> None:
    """One line about what ``--method`` left out and took in."""
    said = []
    if dropped:
        said.append(f"does not use {', '.join(map(short_name, dropped))}, left out")
    if added:
        said.append(f"gets what is usual for it, {', '.join(added)}")
    if said:
        logger.warning("note: method %s %s.", method, "; it ".join(said))


def _made(read: Any, schema: Schema, catalogue: Catalogue, name: str, rewards: Sequence[str]) -> Recipe:
    """The recipe of validated sections."""
    entries = []
    for reward in rewards:
        entry = getattr(read.reward, reward, None) if rewards else None
        if entry is None or entry.weight == 0:
            continue
        needs = catalogue.rewards[reward].needs
        values = {option: getattr(entry, option) for option in schema.rewards[reward]}
        weight = values.pop("weight")
        own = {part: values.pop(part) for part in needs if part in values}
        entries.append(RewardEntry(reward, weight, values, {k: v for k, v in own.items() if v is not None}))
    sections = {section: getattr(read, section) for section in schema.sections}
    objective = {option: getattr(sections[OBJECTIVE], option) for option in schema.sections[OBJECTIVE].options}
    resolved: dict[str, Any] = {"method": read.method}
    for section, value in sections.items():
        resolved[section] = plain(value)
        if section == "listener":
            resolved[REWARD] = [
                {"name": e.name, "weight": e.weight, **plain(e.options), **plain(e.parts)} for e in entries
            ]
    recipe = Recipe(
        name=name,
        method=read.method,
        captioner=sections["captioner"],
        data=sections["data"],
        listener=sections["listener"],
        reward=tuple(entries),
        parts={part: value for part, value in sections.items() if part in catalogue.parts},
        objective=objective,
        evaluation=sections["evaluation"],
        training=sections[TRAINING],
        resolved=resolved,
        schema=schema,
        catalogue=catalogue,
    )
    return recipe
