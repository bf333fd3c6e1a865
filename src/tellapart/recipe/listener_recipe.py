"""Recipes of ``tellapart train-listener``: the same YAML, flags and training options as those of ``train``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from tellapart.errors import UsageError
from tellapart.recipe.listener_sections import (
    HeadSection,
    HingeSection,
    ListenerEvaluationSection,
    PacSection,
    TrainedListenerSection,
)
from tellapart.recipe.load import read_options, read_yaml, recipe_path, typed_options
from tellapart.recipe.parse import Parser, add_options, help_of
from tellapart.recipe.sections import DataSection, TrainFlags
from tellapart.training.config import TrainConfig

SECTIONS: dict[str, Any] = {
    "listener": TrainedListenerSection,
    "data": DataSection,
    "head": HeadSection,
    "hinge": HingeSection,
    "pac": PacSection,
    "evaluation": ListenerEvaluationSection,
}
"""Section -> its schema; the top level is ``grammar``, ``loss`` and ``TrainConfig``."""

PAC = ("--loss", "pac")
"""What ``--pac`` is short for."""

OF_CAPTIONERS = ("method", "captioner", "reward", "objective")
"""Keys that only recipes of ``train`` have."""


@dataclass(frozen=True)
class ListenerRecipe:
    """A recipe with every option resolved and checked.

    Args:
        listener: what is trained.
        data: what it is trained on.
        head: numbers of the grammar head.
        hinge: numbers of the hinge loss.
        pac: positives and numbers of positive-augmented training.
        evaluation: what the training is watched by.
        grammar: whether a grammar head is trained.
        loss: ``contrastive``, ``hinge`` or ``pac``.
        training: numbers of the loop.
        flags: what was asked of this invocation only.
        resolved: all of it but the flags, as a recipe is written.
        usual: the same if nothing were given.
    """

    listener: TrainedListenerSection
    data: DataSection
    head: HeadSection
    hinge: HingeSection
    pac: PacSection
    evaluation: ListenerEvaluationSection
    grammar: bool
    loss: str
    training: TrainConfig
    flags: TrainFlags
    resolved: dict[str, Any]
    usual: dict[str, Any]

    @property
    def trains(self) -> str:
        """What learns: ``text``, ``all``, ``projections`` or ``lora``."""
        if self.listener.lora is not None:
            return "lora"
        return "projections" if self.loss == "pac" and self.listener.train is None else self.listener.trains

    def to_yaml(self) -> str:
        """The resolved recipe; reading it back gives the same recipe."""
        return yaml.safe_dump(self.resolved, sort_keys=False, allow_unicode=True)


def load_listener_recipe(argv: Sequence[str]) -> ListenerRecipe:
    """The recipe that a command line names, with its flags applied; flags win wherever they stand.

    Raises:
        UsageError: the file cannot be read or is of a captioner, or something in it or on the command line is unknown, of a
            wrong type, or contradicts something else.
    """
    argv = [part for word in argv for part in (PAC if word == "--pac" else (word,))]
    path = recipe_path(argv)
    written = read_yaml(path) if path else {}
    _require_of_listener(written, path)
    parser = listener_parser()
    built, common = typed_options(parser, read_options(argv, parser, path, written))
    recipe = ListenerRecipe(
        **{name: built[name] for name in SECTIONS}, grammar=built.grammar, loss=built.loss, **common
    )
    _check(recipe)
    return recipe


def listener_parser() -> Parser:
    """The options of ``train-listener``."""
    parser = Parser(
        usage="tellapart train-listener RECIPE [--option value ...]",
        description="Train a listener (CLIP, SigLIP, VSE) on images and captions as RECIPE (a YAML file) says.",
    )
    parser.add_argument(
        "--grammar",
        type=bool,
        default=False,
        help="also train a head that tells captions from corrupted ones (Cho et al., 2022)",
    )
    parser.add_argument(
        "--loss",
        type=Literal["contrastive", "hinge", "pac"],
        default="contrastive",
        help="the symmetric InfoNCE of CLIP, or the hinge of the hardest negatives (VSE++, PSST's first stage), or "
        "InfoNCE with generated positives (PAC-S; --pac for short)",
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
    _check_listener(recipe)
    _check_pac(recipe)
    if recipe.training.on_hack != "warn":
        raise UsageError(
            f"on_hack={recipe.training.on_hack} watches the captions of a captioner that learns, but train-listener trains none: "
            "leave on_hack out."
        )
    if recipe.grammar and recipe.listener.trains == "all":
        raise UsageError("--grammar trains the text side only: set listener.train to text, or leave --grammar out.")
    if recipe.head.weight < 0 or recipe.head.min_count < 1:
        raise UsageError(
            f"head.weight is {recipe.head.weight} and head.min_count {recipe.head.min_count}: give a weight of 0 or more "
            "and a count of at least 1."
        )
    if recipe.grammar and recipe.loss != "contrastive":
        raise UsageError("--grammar trains with the contrastive loss: leave loss out.")
    if recipe.loss != "contrastive" and recipe.training.per_device_train_batch_size < 2:
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
    if not section.is_recurrent:
        return
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
