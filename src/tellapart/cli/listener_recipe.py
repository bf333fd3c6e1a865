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
from tellapart.listeners.kinds import is_vse
from tellapart.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class NewVseSection:
    """A recurrent listener that begins with random weights (VSE++: Faghri et al., 2018).

    Args:
        word_size: width of the word embeddings.
        hidden_size: width of the GRU, and of the space that images and captions share.
    """

    word_size: int = 512
    hidden_size: int = 1024


@dataclass(frozen=True, kw_only=True)
class TrainedListenerSection:
    """The dual encoder to be trained.

    Args:
        path: a CLIP or SigLIP model: a folder, a Hugging Face id, or world/listener; new/vse, a recurrent listener over
            image features; or a run that trained one.
        prefix: words put before each text; null takes what belongs to the model. They are saved with it.
        train: which weights train: the text side and the temperature (text), or everything (all); null takes all of a
            recurrent listener, the text side of others.
        vocabulary: of new/vse, the captioner whose words it is to know: a run, a folder, a Hugging Face id, or world/xe.
        image_encoder: of new/vse without data.features, a CLIP whose image embeddings it reads, such as world/listener.
        new: what new/vse is like; null takes the defaults.
    """

    path: str
    prefix: str | None = None
    train: Literal["text", "all"] | None = None
    vocabulary: str | None = None
    image_encoder: str | None = None
    new: NewVseSection | None = None

    @property
    def is_new(self) -> bool:
        """Whether it begins with random weights."""
        return self.path == NEW_VSE

    @property
    def is_recurrent(self) -> bool:
        """Whether it is a VSE, new or trained."""
        return self.is_new or is_vse(self.path)

    @property
    def trains(self) -> str:
        """``text`` or ``all``."""
        return self.train or ("all" if self.is_recurrent else "text")


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


@dataclass(frozen=True, kw_only=True)
class HingeSection:
    """The hinge loss of the hardest negatives, with --loss hinge only.

    Args:
        margin: by how much an image and its caption should be nearer than others, on the scale of cosines.
        reduction: sum over the images of a batch (as PSST's code), or their mean.
        warmup_steps: begin with so many steps against all others of the batch, where the hardest would be too hard.
    """

    margin: float = 0.2
    reduction: Literal["sum", "mean"] = "sum"
    warmup_steps: int = 0


SECTIONS: dict[str, Any] = {
    "listener": TrainedListenerSection,
    "data": DataSection,
    "head": HeadSection,
    "hinge": HingeSection,
    "evaluation": ListenerEvaluationSection,
}
"""Section -> its schema; the top level is ``grammar``, ``loss`` and ``TrainConfig``."""

NEW_VSE = "new/vse"

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
        evaluation: what the training is watched by.
        grammar: whether a grammar head is trained.
        loss: ``contrastive`` or ``hinge``.
        training: numbers of the loop.
        flags: what was asked of this invocation only.
        resolved: all of it but the flags, as a recipe is written.
        usual: the same if nothing were given.
    """

    listener: TrainedListenerSection
    data: DataSection
    head: HeadSection
    hinge: HingeSection
    evaluation: ListenerEvaluationSection
    grammar: bool
    loss: str
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
        type=Literal["contrastive", "hinge"],
        default="contrastive",
        help="the symmetric InfoNCE of CLIP, or the hinge of the hardest negatives (VSE++, PSST's first stage)",
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
    if recipe.grammar and recipe.listener.trains == "all":
        raise UsageError("--grammar trains the text side only: set listener.train to text, or leave --grammar out.")
    if recipe.head.weight < 0 or recipe.head.min_count < 1:
        raise UsageError(
            f"head.weight is {recipe.head.weight} and head.min_count {recipe.head.min_count}: give a weight of 0 or more "
            "and a count of at least 1."
        )
    if recipe.grammar and recipe.loss != "contrastive":
        raise UsageError("--grammar trains with the contrastive loss: leave loss out.")
    if recipe.loss == "hinge" and recipe.training.per_device_train_batch_size < 2:
        raise UsageError(
            "the hinge loss compares an image with the others of its batch: set per_device_train_batch_size to 2 or more."
        )
    if recipe.loss != "hinge" and recipe.hinge != HingeSection():
        raise UsageError("hinge has options, but the loss is another: set loss to hinge, or leave hinge out.")
    if not recipe.grammar and recipe.head != HeadSection():
        raise UsageError("head has options, but no head is trained: give --grammar, or leave head out.")


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
