"""Recipes of ``tellapart train-listener``: the same YAML, flags and training options as those of ``train``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from tellapart.errors import UsageError
from tellapart.recipe.adapters import check_adapter_dropout
from tellapart.recipe.flags import given_options
from tellapart.recipe.options import Given, Option, plain
from tellapart.recipe.recipe import FileOptions, merged, without_evaluation
from tellapart.recipe.schema import TRAINING, Catalogue, Schema, Section
from tellapart.recipe.sections import (
    DataSection,
    HeadSection,
    HingeSection,
    ListenerEvaluationSection,
    PacSection,
    TrainedListenerSection,
)
from tellapart.training.config import TrainConfig

if TYPE_CHECKING:
    from tellapart.recipe.listener_build import BuiltListener
    from tellapart.training.run import Run

SECTIONS: dict[str, Any] = {
    "listener": TrainedListenerSection,
    "data": DataSection,
    "head": HeadSection,
    "hinge": HingeSection,
    "pac": PacSection,
    "evaluation": ListenerEvaluationSection,
    TRAINING: TrainConfig,
}
"""Section -> its options."""

TOP = {
    "grammar": Option(
        "grammar", bool, False, "also train a head that tells captions from corrupted ones (Cho et al., 2022)"
    ),
    "loss": Option(
        "loss",
        Literal["contrastive", "hinge", "pac"],
        "contrastive",
        "the symmetric InfoNCE of CLIP, or the hinge of the hardest negatives (VSE++, PSST's first stage), or InfoNCE with "
        "generated positives (PAC-S; --pac for short)",
    ),
}
"""Options outside the sections."""

OF_CAPTIONERS = ("method", "captioner", "reward", "objective")
"""Keys that only recipes of ``train`` have."""


@cache
def listener_schema() -> Schema:
    """The schema of a listener's recipe."""
    return Schema({name: Section.of(kind) for name, kind in SECTIONS.items()}, TOP)


@dataclass(frozen=True)
class ListenerRecipe:
    """The training of a listener with every option resolved and checked.

    Args:
        name: of the file it came from.
        listener: what is trained.
        data: what it is trained on.
        head: numbers of the grammar head.
        hinge: numbers of the hinge loss.
        pac: positives and numbers of positive-augmented training.
        evaluation: evaluation during training.
        grammar: whether a grammar head is trained.
        loss: ``contrastive``, ``hinge`` or ``pac``.
        training: numbers of the loop.
        resolved: all of it, as a recipe is written.

    Example:
        >>> recipe = ListenerRecipe.load("world_listener_pac", {"training.max_steps": 20})
        >>> run = recipe.train("runs/pac")
        >>> run.output_dir / "listener"
    """

    name: str
    listener: TrainedListenerSection
    data: DataSection
    head: HeadSection
    hinge: HingeSection
    pac: PacSection
    evaluation: ListenerEvaluationSection
    grammar: bool
    loss: str
    training: TrainConfig
    resolved: dict[str, Any]
    catalogue: Catalogue = field(compare=False, repr=False, default_factory=Catalogue)

    @classmethod
    def load(
        cls, source: str | Path | Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None
    ) -> ListenerRecipe:
        """Read a recipe of a listener; arguments as for ``Recipe.load``.

        Raises:
            UsageError: the file cannot be read or is of a captioner, or something in it or in the overrides is unknown, of a
                wrong type, or contradicts something else.
        """
        return load_listener(source, dict(overrides or {}))

    @property
    def schema(self) -> Schema:
        """Its schema."""
        return listener_schema()

    @property
    def trains(self) -> str:
        """The weights that train: ``text``, ``all``, ``projections`` or ``lora``."""
        if self.listener.lora is not None:
            return "lora"
        return "projections" if self.loss == "pac" and self.listener.train is None else self.listener.trains

    def to_yaml(self) -> str:
        """The resolved recipe; reading it back gives the same recipe."""
        return yaml.safe_dump(self.resolved, sort_keys=False, allow_unicode=True)

    def revisions(self) -> dict[str, int]:
        """Of the losses; those that contrast have a temperature that learns at its limit since their second."""
        return {self.loss: 1 if self.loss == "hinge" else 2}

    def key(self) -> str:
        """12 hex digits of everything that decides the numbers and differs from its default; models and data count by content."""
        from tellapart.recipe.fingerprint import key_of

        return key_of(self)

    def build(self) -> BuiltListener:
        """Load models and data, and put the training together.

        Raises:
            UsageError: a part is missing, broken, or does not go with another.
        """
        from tellapart.recipe.listener_build import build

        return build(self)

    def train(self, output_dir: str | Path | None = None, *, overwrite: bool = False) -> Run:
        """Build and train; the selected listener is kept in ``listener/`` of the output folder.

        Args:
            output_dir: in place of the recipe's.
            overwrite: delete what an earlier training left there.

        Raises:
            UsageError: the folder holds another training, or a part is missing or broken.
        """
        from tellapart.recipe.listener_build import train

        given = {} if output_dir is None else {"training.output_dir": str(output_dir)}
        return train(load_listener(self.resolved, given) if given else self, overwrite=overwrite)


def load_listener(
    source: str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any] | Callable[[Schema], Mapping[str, Any]],
) -> ListenerRecipe:
    """A recipe of a listener; ``overrides`` may wait for its schema.

    Raises:
        UsageError: as ``ListenerRecipe.load``.
    """
    schema = listener_schema()
    file = FileOptions.of(source)
    strange = next((key for key in OF_CAPTIONERS if key in file.written.values), None)
    if strange is not None:
        raise UsageError(
            f"{file.path or 'the recipe'} has {strange}, so it is a recipe of a captioner: run it with tellapart train."
        )
    flat = file.flat(schema, None)
    asked = overrides(schema) if callable(overrides) else overrides
    given = given_options(asked, schema)
    flat = without_evaluation(merged(flat, given), given)
    name = file.path.stem if file.path is not None else "listener"
    flat.setdefault(f"{TRAINING}.output_dir", Given(str(Path("runs") / name), "output_dir"))
    read = schema.read(flat)
    resolved = {key: getattr(read, key) for key in TOP} | {key: plain(getattr(read, key)) for key in SECTIONS}
    recipe = ListenerRecipe(name=name, resolved=resolved, **{key: getattr(read, key) for key in (*SECTIONS, *TOP)})
    _check(recipe)
    return recipe


def _check_training(recipe: ListenerRecipe) -> None:
    """Raise where the loop is asked for what only captioners have."""
    if recipe.training.on_hack != "warn":
        raise UsageError(
            f"on_hack={recipe.training.on_hack} watches the captions of a captioner that learns, but train-listener trains none: "
            "leave on_hack out."
        )
    if recipe.training.shard != "none":
        raise UsageError(
            f"shard={recipe.training.shard} cuts captioners, but train-listener trains none: leave shard out."
        )


def _check(recipe: ListenerRecipe) -> None:
    _check_listener(recipe)
    _check_pac(recipe)
    _check_training(recipe)
    check_adapter_dropout({"listener.lora": recipe.listener.lora}, recipe.training)
    if recipe.grammar and recipe.listener.trains == "all":
        raise UsageError("--grammar trains the text side only: set listener.train to text, or leave --grammar out.")
    if recipe.grammar and recipe.loss != "contrastive":
        raise UsageError("--grammar trains with the contrastive loss: leave loss out.")
    if recipe.training.per_device_train_batch_size < 2:
        raise UsageError(
            f"the {recipe.loss} loss compares an image with the others of its batch: set per_device_train_batch_size to 2 or "
            "more."
        )
    if recipe.loss != "hinge" and recipe.hinge != HingeSection():
        raise UsageError("hinge has options, but the loss is another: set loss to hinge, or leave hinge out.")
    if not recipe.grammar and recipe.head != HeadSection():
        raise UsageError("head has options, but no head is trained: give --grammar, or leave head out.")


def _check_pac(recipe: ListenerRecipe) -> None:
    """Raise where positive-augmented training lacks its positives, or another training is given what only it has."""
    section, listener = recipe.pac, recipe.listener
    if recipe.loss != "pac":
        if section != PacSection():
            raise UsageError("pac has options, but the loss is another: set loss to pac, or leave pac out.")
        if listener.lora is not None or listener.train == "projections":
            option = "lora" if listener.lora is not None else "train projections"
            raise UsageError(f"listener.{option} is of the loss pac: set loss to pac, or leave it out.")
        return
    if listener.lora is not None and listener.train is not None:
        raise UsageError(
            f"listener.lora trains adapters, not {listener.train}: leave listener.train or listener.lora out."
        )
    if section.captions is not None and section.captioner is not None:
        raise UsageError("pac.captions and pac.captioner both give the generated captions: leave one of them out.")
    if section.caption_weight and section.captions is None and section.captioner is None:
        raise UsageError(
            "the loss pac needs generated captions: set pac.captions to a file that tellapart caption wrote, or pac.captioner "
            "to the captioner that is to write them, such as world/xe."
        )


def _check_listener(recipe: ListenerRecipe) -> None:
    """Raise where a recurrent listener lacks something, or another one is given what only such a one has."""
    section, features = recipe.listener, recipe.data.features
    if not section.is_recurrent and features is not None:
        raise UsageError(
            "data.features are of captioners and of recurrent listeners (listener.path new/vse), but this listener reads "
            "images: leave data.features out."
        )
    if not section.is_new:
        for option in ("vocabulary", "image_encoder", "new"):
            if getattr(section, option) is not None:
                raise UsageError(f"listener.{option} is of new/vse, but the listener is {section.path}: leave it out.")
    if section.is_recurrent:
        _check_recurrent(recipe)


def _check_recurrent(recipe: ListenerRecipe) -> None:
    """Raise where a recurrent listener is given what only others have, or a new one lacks something."""
    section, features = recipe.listener, recipe.data.features
    if recipe.grammar or recipe.loss != "hinge":
        raise UsageError(f"{section.path} is a recurrent listener, which learns by the hinge loss: set loss to hinge.")
    if section.prefix is not None:
        raise UsageError(f"{section.path} is a recurrent listener, which puts no words before texts: leave prefix out.")
    if not section.is_new:
        return
    if section.train == "text":
        raise UsageError("new/vse has no trained image side to keep: leave listener.train out.")
    if section.vocabulary is None:
        raise UsageError(
            "new/vse needs a captioner's words: set listener.vocabulary to a captioner's run or folder, or world/xe."
        )
    if (features is None) == (section.image_encoder is None):
        raise UsageError(
            "new/vse reads either image features (data.features) or the image embeddings of a CLIP "
            "(listener.image_encoder, such as world/listener): set one of them."
        )
