"""The parts that methods and rewards are given besides the captioner: their names, their sections, and how they are built.

Importing this module must stay cheap: ``train --help`` reads it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.errors import UsageError
from tellapart.installed import Offers
from tellapart.names import loaded, resolve, summary_of
from tellapart.recipe.adapters import check_adapter_dropout
from tellapart.recipe.options import plain

if TYPE_CHECKING:
    from tellapart.captioners.huggingface import HuggingFaceCaptioner
    from tellapart.captioners.noise import ImageNoise
    from tellapart.data.dataset import CaptionDataset, Collate
    from tellapart.data.features.base import FeatureSet
    from tellapart.data.preferences import Preferences
    from tellapart.data.questions import Questions
    from tellapart.listeners.clip import ClipListener
    from tellapart.listeners.late import LateListener
    from tellapart.listeners.neighbours import Neighbours
    from tellapart.objectives.discriminator import OtherCaptions
    from tellapart.recipe.recipe import Recipe
    from tellapart.rewards.discriminator import Discriminator
    from tellapart.rewards.distances import Distance
    from tellapart.rewards.grammar import Grammar
    from tellapart.rewards.language_model import LanguageModel
    from tellapart.rewards.matchers import AnyMatcher
    from tellapart.rewards.question_answering import Reader
    from tellapart.rewards.reference import DocumentFrequencies

OWN_LISTENER = "own_listener"


@dataclass(frozen=True)
class PartKind:
    """A part that methods and rewards may need, by the name of their argument.

    Args:
        summary: what it is, in a line.
        target: the function that builds it, or ``"module:attribute"`` of it. It is called with ``Parts`` and the part's
            section, or, where there is no ``section``, with ``Parts`` and its own keyword arguments, which are the options.
        section: ``"module:Dataclass"`` of its options.
        plain: whether it has no options, and so no section in a recipe.
        learns: whether it is trained with the captioner, with its own learning rate.
    """

    summary: str
    target: str | Callable[..., Any]
    section: str | None = None
    plain: bool = False
    learns: bool = False

    @staticmethod
    def of(value: Any) -> PartKind:
        """A part as packages and plugin files offer it: a ``PartKind``, or the function that builds it.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(value, PartKind):
            return value
        summary = summary_of(value, "part")
        options = [p for p in inspect.signature(value).parameters.values() if p.kind is p.KEYWORD_ONLY]
        return PartKind(summary, value, plain=not options)

    def load(self) -> Callable[..., Any]:
        """Its builder, imported now."""
        return loaded(self.target)

    def options(self) -> Any:
        """The source of its options: a dataclass, or the function that builds it."""
        return resolve(self.section) if self.section else self.load()


_HERE, _SECTIONS = "tellapart.recipe.parts", "tellapart.recipe.sections"

SHIPPED: dict[str, PartKind] = {
    "listener": PartKind(
        "the dual encoder (CLIP, SigLIP) of the reward, and the first retriever of the evaluation",
        f"{_HERE}:listener",
        f"{_SECTIONS}:ListenerSection",
    ),
    "language_model": PartKind(
        "a causal language model, which gives the log-probability of a caption as text",
        f"{_HERE}:language_model",
        f"{_SECTIONS}:LanguageModelSection",
    ),
    "matcher": PartKind(
        "the model that scores how well a caption fits its image",
        f"{_HERE}:matcher",
        f"{_SECTIONS}:MatcherSection",
    ),
    OWN_LISTENER: PartKind(
        "the captioner's own listener, which may be trained with it",
        "tellapart.recipe.own_listener:build_own_listener",
        f"{_SECTIONS}:OwnListenerSection",
        learns=True,
    ),
    "neighbours": PartKind(
        "look-alikes of the training images, with which contrastive rewards compare captions",
        f"{_HERE}:neighbours",
        f"{_SECTIONS}:NeighboursSection",
    ),
    "discriminator": PartKind(
        "distinguishes human captions from generated ones, pre-trained against the start captioner",
        f"{_HERE}:discriminator",
        "tellapart.pretraining.discriminator_settings:DiscriminatorSettings",
        learns=True,
    ),
    "grammar": PartKind("the frozen grammar head", f"{_HERE}:grammar", f"{_SECTIONS}:GrammarSection"),
    "distance": PartKind(
        "the distance between two captions drawn for one image",
        f"{_HERE}:distance",
        f"{_SECTIONS}:DistanceSection",
    ),
    "critic": PartKind(
        "is trained with the captioner to predict the returns of its captions",
        "tellapart.recipe.critics:build_critic",
        f"{_SECTIONS}:CriticSection",
        learns=True,
    ),
    "penalties": PartKind(
        "which words of captions are penalised",
        "tellapart.recipe.critics:build_penalties",
        f"{_SECTIONS}:PenaltiesSection",
    ),
    "gallery": PartKind(
        "the training images among which a caption must identify its own",
        f"{_HERE}:gallery",
        f"{_SECTIONS}:GallerySection",
    ),
    "noise": PartKind(
        "a random input of the captioner in addition to the image; its projection is trained with the captioner",
        f"{_HERE}:noise",
        f"{_SECTIONS}:NoiseSection",
        learns=True,
    ),
    "preferences": PartKind(
        "pairs of captions of the training images, of which one is preferred",
        f"{_HERE}:preferences",
        f"{_SECTIONS}:PreferencesSection",
    ),
    "unlabelled": PartKind(
        "images without captions that join every step",
        "tellapart.recipe.unlabelled:build_unlabelled",
        f"{_SECTIONS}:UnlabelledSection",
    ),
    "reader": PartKind(
        "a text-only model that answers questions from captions", f"{_HERE}:reader", f"{_SECTIONS}:ReaderSection"
    ),
    "questions": PartKind(
        "multiple-choice questions about the training images", f"{_HERE}:questions", f"{_SECTIONS}:QuestionsSection"
    ),
    "other_captions": PartKind(
        "people's captions of other training images, which do not fit", f"{_HERE}:other_captions", plain=True
    ),
    "scenes": PartKind("what is in the pictures of the built-in world", f"{_HERE}:scenes", plain=True),
    "document_frequencies": PartKind(
        "in how many training images each n-gram of the references occurs", f"{_HERE}:document_frequencies", plain=True
    ),
}
"""Argument of a method or a reward -> the part that it is given."""

PARTS: Offers[PartKind] = Offers(SHIPPED, "tellapart.parts", "part", PartKind.of)
"""The same, and those that installed packages bring."""


class Parts:
    """The parts of one training; each is built when it is first asked for.

    Args:
        recipe: names them.
        captioner: what is trained.
        dataset: the training images.
        collate: makes the captioner's batches.
        features: what the captioner reads instead of pictures.
        dry_run: leave out what takes long, such as pre-training a discriminator.
    """

    def __init__(
        self,
        recipe: Recipe,
        captioner: HuggingFaceCaptioner,
        dataset: CaptionDataset,
        collate: Collate,
        features: FeatureSet | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        self.recipe, self.captioner, self.dataset = recipe, captioner, dataset
        self.collate, self.features, self.dry_run = collate, features, dry_run
        self.processors: dict[str, Any] = {}
        """Name -> what turns pictures into the tensors of a part that looks at the images of every batch."""
        self.skipped: list[tuple[str, str]] = []
        """Id and reason of images of a part's own that are left out because they cannot be read."""
        self._built: dict[str, Any] = {}

    @property
    def size(self) -> str:
        """Of the built-in world."""
        return self.recipe.data.size

    def __call__(self, name: str, own: Any = None) -> Any:
        """A part.

        Args:
            name: of the part, ``captioner`` or ``dataset``.
            own: a section in place of the recipe's, of a reward that has a part of its own.

        Raises:
            UsageError: it is missing or broken.
        """
        given = {"captioner": self.captioner, "dataset": self.dataset}
        if name in given:
            return given[name]
        section = self.recipe.parts.get(name) if own is None else own
        key = f"{name} {json.dumps(plain(section), sort_keys=True, default=str)}"
        if key not in self._built:
            kind = self.recipe.catalogue.parts[name]
            same = own is None or own == self.recipe.parts.get(name)
            if kind.plain:
                self._built[key] = kind.load()(self)
            elif kind.section is None:
                self._built[key] = None if section is None else kind.load()(self, **vars(section))
            else:
                named = "label" in inspect.signature(kind.load()).parameters and not same
                self._built[key] = kind.load()(self, section, **({"label": self._label(name)} if named else {}))
        return self._built[key]

    def _label(self, name: str) -> str:
        """A name of its own for the tensors of a part besides the recipe's."""
        return f"{name} {sum(key.startswith(f'{name} ') for key in self._built) + 1}"


def listener(parts: Parts, section: Any, *, label: str = "listener") -> ClipListener | LateListener:
    """The retriever that a reward or a method asks, which knows the training images or reads them with each batch."""
    from tellapart.recipe.models import load_listener, require_fit
    from tellapart.recipe.soft_listeners import load_only_late, names_late

    late = names_late(section.path, parts.size)
    found = (load_only_late if late else load_listener)(
        section.path,
        name=label,
        prefix=section.prefix,
        size=parts.size,
        base=section.base,
        text_pooling=section.text_pooling,
    )
    require_fit(section.path, "truth" if late else "similarity", data=parts.recipe.data.path, size=parts.size)
    if not late and parts.recipe.data.reads_as_they_come:
        parts.processors[found.name] = found.process
    else:
        found.cache_images(parts.dataset)
    return found


def language_model(parts: Parts, section: Any) -> LanguageModel:
    """The causal language model."""
    from tellapart.recipe.models import load_language_model

    return load_language_model(section.path, dtype=section.dtype, size=parts.size)


def matcher(parts: Parts, section: Any, *, label: str = "matcher") -> AnyMatcher:
    """The matcher; a dual encoder embeds the training images before the first step where it may."""
    from tellapart.listeners.dual import DualMatcher
    from tellapart.listeners.late import LateListener
    from tellapart.recipe.models import load_matcher

    found = load_matcher(section, size=parts.size, name=label)
    if parts.recipe.data.reads_as_they_come or not isinstance(found, DualMatcher | LateListener):
        parts.processors[found.name] = found.process
    else:
        found.know_images(parts.dataset)
    return found


def neighbours(parts: Parts, section: Any) -> Neighbours | None:
    """The look-alikes of the training images: read, or mined and kept in the cache; or other images at random."""
    from tellapart.listeners.neighbours import Neighbours

    read = _neighbours_read(parts.recipe)
    if section is None or not read:
        return None
    if section.kind == "random":
        return Neighbours.random(parts.dataset.ids, section.k)
    if section.path is not None:
        found = Neighbours.load(section.path)
        if section.k not in (found.k, type(section)().k):
            raise UsageError(
                f"neighbours.k is {section.k}, but {section.path} has {found.k} neighbours of each image: leave neighbours.k "
                "out, or mine as many."
            )
        _check_neighbours(found, section.path, parts.dataset, read)
        return found
    from tellapart.listeners.mining import mine
    from tellapart.recipe.soft_listeners import load_miner

    if section.listener is not None and section.listener != parts.recipe.listener.path:
        looks = load_miner(section.listener, name="neighbours", size=parts.size)
    else:
        looks = parts("listener")
    return mine(looks, parts.dataset, section.k)


def _check_neighbours(found: Neighbours, path: Path, dataset: CaptionDataset, rank: int) -> None:
    """Raise now, not in the middle of the training, where a file of neighbours does not fit the training images."""
    if found.k < rank:
        raise UsageError(
            f"objective.neighbour_ranks asks for neighbour {rank}, but {path} has {found.k} of each image: mine more "
            "with tellapart mine --k, or lower the ranks."
        )
    for name, row in zip(dataset.ids, found.of(dataset.ids), strict=True):
        strangers = [near for near in row if near not in dataset.position]
        if strangers:
            raise UsageError(
                f"{path} gives image {name!r} the neighbour {strangers[0]!r}, which is not a training image: mine the training "
                "images alone."
            )


def discriminator(parts: Parts, section: Any) -> Discriminator | None:
    """The discriminator, pre-trained against the start captioner where it is not in the cache."""
    if section is None:
        return None
    from tellapart.pretraining.discriminator import pretrained_discriminator

    settings = replace(section, pretraining_steps=0) if parts.dry_run else section
    return pretrained_discriminator(parts.captioner, parts("listener"), parts.dataset, parts.collate, settings)


def grammar(parts: Parts, section: Any) -> Grammar:
    """The frozen judge of grammar, on this process's device."""
    from tellapart.recipe.models import load_grammar

    return load_grammar(section.path, size=parts.size)


def gallery(parts: Parts, section: Any) -> list[str]:
    """Ids of training images, evenly spread where not all are wanted."""
    ids = parts.dataset.ids
    if section is None or section.images is None:
        return ids
    count = min(section.images, len(ids))
    return [ids[place * len(ids) // count] for place in range(count)]


def preferences(parts: Parts, section: Any) -> Preferences:
    """The pairs of the training images.

    Raises:
        UsageError: the file cannot be read, or is about other images.
    """
    from tellapart.data.preferences import preferences_of, read_preferences

    return preferences_of(read_preferences(section.path), parts.dataset)


def noise(parts: Parts, section: Any) -> ImageNoise | None:
    """Noise for the captioner's image states, whose first weights follow from the recipe's seed.

    Raises:
        UsageError: a number cannot be used.
    """
    if section is None:
        return None
    from tellapart.captioners.noise import ImageNoise
    from tellapart.draws import seeded
    from tellapart.recipe.options import as_usage_errors

    device = parts.captioner.device
    states = parts.captioner.encode(parts.collate([parts.dataset[0]]).to(device)).states
    with as_usage_errors("noise"), seeded("noise", parts.recipe.training.seed):
        return ImageNoise(states.shape[-1], size=section.size, scale=section.scale).to(device)


def reader(parts: Parts, section: Any) -> Reader:
    """The reader that answers questions from captions.

    Raises:
        UsageError: the model does not exist or cannot answer.
    """
    from tellapart.recipe.questions import load_reader

    return load_reader(section.path, data=parts.recipe.data.path, dtype=section.dtype, size=parts.size)


def questions(parts: Parts, section: Any) -> Questions:
    """About the training images.

    Raises:
        UsageError: there are none.
    """
    from tellapart.recipe.questions import load_questions

    data = parts.recipe.data
    return load_questions(
        section.path, parts.dataset, data=data.path, split=data.split, size=parts.size, most=section.most
    )


def other_captions(parts: Parts) -> OtherCaptions:
    """Of the training images.

    Raises:
        UsageError: fewer than two of them have captions.
    """
    from tellapart.objectives.discriminator import OtherCaptions

    return OtherCaptions(parts.dataset.references)


def scenes(parts: Parts) -> Mapping[str, Any]:
    """Image id -> what is in the picture.

    Raises:
        UsageError: the images are not those of the built-in world.
    """
    if parts.recipe.data.path != "world":
        raise UsageError(
            f"reward oracle knows the pictures of the built-in world only, not {parts.recipe.data.path}: it is a control, use "
            "truth with a matcher instead."
        )
    from tellapart.world import load_scenes

    return load_scenes(parts.recipe.data.split, size=parts.size)


def document_frequencies(parts: Parts) -> DocumentFrequencies:
    """Of the training captions."""
    from tellapart.rewards.reference import DocumentFrequencies

    return DocumentFrequencies.from_references(parts.dataset.references)


def distance(parts: Parts, section: Any) -> Distance:
    """The distance between captions of an image.

    Raises:
        UsageError: it needs references that the data lack.
    """
    from tellapart.rewards.distances import CiderDistance, bleu_distance, edit_distance
    from tellapart.rewards.reference import DocumentFrequencies

    def cider() -> Distance:
        parts.dataset.require_references("distance.kind=cider")
        return CiderDistance(DocumentFrequencies.from_references(parts.dataset.references, end=""))

    makers: dict[str, Callable[[], Distance]] = {
        "bleu": lambda: bleu_distance,
        "edit": lambda: edit_distance,
        "cider": cider,
    }
    return makers["bleu" if section is None else section.kind]()


def check_parts(recipe: Recipe) -> None:
    """Raise where methods, rewards and the sections of their parts contradict each other; nothing is loaded for it.

    Raises:
        UsageError: naming the option to change.
    """
    from tellapart.recipe.critics import check_critic
    from tellapart.recipe.own_listener import check_own_listener

    check_own_listener(recipe)
    check_critic(recipe)
    _check_adapters(recipe)
    for name in recipe.kind.required:
        if recipe.parts.get(name) is None:
            raise UsageError(
                f"method {recipe.method} cannot learn without {name}: leave {name}: null out of the recipe."
            )
    for name, what in _NAMED.items():
        users = recipe.users(name)
        section = recipe.parts.get(name)
        if users and (section is None or getattr(section, what.option) is None):
            raise UsageError(f"{users[0]} needs {what.a}: set {name}.{what.option} to {what.such_as}.")
        _check_own_parts(recipe, name, what)
        given = None if section is None or users or name == "listener" else getattr(section, what.option)
        if given is not None:
            raise UsageError(f"{name}.{what.option} is {given}, but nothing asks it: leave {name} out.")
    _check_neighbours_read(recipe)
    unlabelled = recipe.parts.get("unlabelled")
    if unlabelled is not None and unlabelled.path is None and unlabelled != type(unlabelled)():
        raise UsageError(
            "unlabelled.path names no images, so the section's other options do nothing: set it, or leave them out."
        )
    if recipe.evaluation.pac_base is not None and recipe.evaluation.pac is None:
        raise UsageError("evaluation.pac_base is what the file of evaluation.pac was trained from: set that, too.")
    _check_bases(recipe)


def _check_adapters(recipe: Recipe) -> None:
    """Raise where dropout of the captioner's or the critic's adapters does nothing."""
    sections = {"captioner": recipe.captioner, **recipe.parts}
    found = {f"{name}.lora": getattr(section, "lora", None) for name, section in sections.items()}
    check_adapter_dropout(found, recipe.training)


def _check_bases(recipe: Recipe) -> None:
    """Raise where a model that has a tokenizer of its own is given another's."""
    from tellapart.listeners.kinds import is_checkpoint
    from tellapart.recipe.sections import ListenerSection

    said = {"evaluation.pac_base": (recipe.evaluation.pac_base, recipe.evaluation.pac)}
    sections = {"listener": recipe.listener, **recipe.parts}
    for entry in recipe.reward:
        sections |= {f"reward.{entry.name}.{name}": section for name, section in entry.parts.items()}
    for name, section in sections.items():
        if isinstance(section, ListenerSection):
            said[f"{name}.base"] = (section.base, section.path)
    for name, (base, path) in said.items():
        if base is not None and path is not None and not is_checkpoint(path):
            raise UsageError(f"{name} is for .pth files, and {path} has a tokenizer of its own: leave {name} out.")


def _check_own_parts(recipe: Recipe, name: str, what: _Named) -> None:
    """Raise where a reward has a part of its own that names no model."""
    for entry in recipe.reward:
        if name in entry.parts and getattr(entry.parts[name], what.option) is None:
            part = f"reward.{entry.name}.{name}"
            raise UsageError(f"{part}.{what.option} is missing: set it to {what.such_as}, or leave {part} out.")


@dataclass(frozen=True)
class _Named:
    """A part that is a model with a name, in words for errors."""

    a: str
    option: str
    such_as: str


_NAMED: Mapping[str, _Named] = {
    "listener": _Named("a listener", "path", "a CLIP model, such as world/listener"),
    "language_model": _Named("a language model", "path", "a causal one, such as gpt2"),
    "reader": _Named("a reader", "path", "an instruct language model, or exact on the built-in world"),
    "questions": _Named("questions", "path", "a file, references, or world"),
    "matcher": _Named("a matcher", "model", "one such as Salesforce/blip-itm-base-coco or world/itm"),
    "grammar": _Named("a grammar head", "path", "a run of train-listener --grammar, or world/grammar"),
}


USUAL = {
    "listener.path": ("world/listener", "openai/clip-vit-base-patch32"),
    "own_listener.path": ("world/listener", "openai/clip-vit-base-patch32"),
    "matcher.model": ("world/itm", "Salesforce/blip-itm-base-coco"),
    "language_model.path": ("world/language_model", "gpt2"),
    "grammar.path": ("world/grammar", "runs/coco_clip_grammar"),
    "reader.path": ("exact", "Qwen/Qwen2.5-3B-Instruct"),
    "questions.path": ("world", "references"),
}
"""Option that names a model -> the usual one on the built-in world, and on photos, for recipes that get another method."""


def _ranks(recipe: Recipe) -> list[int]:
    """Which neighbours the objective reads: none where captions are compared with captions only."""
    options = {**recipe.objective, **recipe.kind.fixed}
    return [] if options.get("direction") == "i2t" else options.get("neighbour_ranks") or []


def _neighbours_read(recipe: Recipe) -> int:
    """How many neighbours an image must have: those of the objective's highest rank, or one where a reward compares with all."""
    ranks = _ranks(recipe) if "neighbours" in recipe.kind.needs else []
    return max([*ranks, *(1 for _ in _comparing(recipe))], default=0)


def _comparing(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Rewards that compare with neighbours, by their names in a recipe, and the sections of these."""
    for entry in recipe.reward:
        if "neighbours" in recipe.catalogue.rewards[entry.name].needs:
            yield f"reward.{entry.name}", entry.parts.get("neighbours") or recipe.parts.get("neighbours")


def _check_neighbours_read(recipe: Recipe) -> None:
    """Raise where neighbours are missing, or cannot be found as the recipe says."""
    for name, section in _comparing(recipe):
        if section is None:
            raise UsageError(f"neighbours is null, but {name} compares with them: leave neighbours: null out.")
        _check_kind(recipe, section)
    ranks = _ranks(recipe)
    if "neighbours" not in recipe.kind.needs or not ranks:
        return
    section = recipe.parts["neighbours"]
    if section is None:
        raise UsageError("neighbours is null, but objective.neighbour_ranks asks for some: set the ranks to [].")
    _check_kind(recipe, section)
    if section.path is None and section.k < max(ranks):
        raise UsageError(
            f"objective.neighbour_ranks asks for neighbour {max(ranks)}, but neighbours.k is {section.k}: raise k."
        )


def _check_kind(recipe: Recipe, section: Any) -> None:
    """Raise where random neighbours are given what finds nearest ones, or nothing finds these."""
    if section.kind == "random" and (section.path is not None or section.listener is not None):
        raise UsageError(
            "neighbours.kind random reads no file and asks no listener: leave neighbours.path and .listener out."
        )
    if section.path is not None and section.listener is not None:
        raise UsageError("neighbours.path holds neighbours that were mined: leave neighbours.listener out.")
    if section.kind == "nearest" and section.path is section.listener is recipe.listener.path is None:
        raise UsageError(
            "neighbours are mined by a listener: set neighbours.listener to a CLIP, such as world/listener."
        )
