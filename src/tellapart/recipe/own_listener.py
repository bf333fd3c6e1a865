"""The listener that belongs to a captioner: built for a training, watched, and found again in a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError
from tellapart.evaluation.own_listener import NAME, OwnListenerScorer
from tellapart.files import trained_part
from tellapart.frames import Processor
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.late import LateListener
from tellapart.listeners.soft_clip import SoftClip
from tellapart.listeners.trained import TrainedListener, vision_learns, vision_parameters
from tellapart.listeners.vse import Vse
from tellapart.recipe.soft_listeners import load_any_listener, load_retriever, load_soft_listener
from tellapart.relaxation import Relaxation
from tellapart.training.start import two_pictures

if TYPE_CHECKING:
    from tellapart.data.features.base import FeatureSet
    from tellapart.evaluation.scorers import Scorer
    from tellapart.recipe.parts import Parts
    from tellapart.recipe.recipe import Recipe
    from tellapart.recipe.sections import OwnListenerSection

OwnListener = SoftClip | Vse | TrainedListener


def check_own_listener(recipe: Recipe) -> None:
    """Raise where the recipe names none though its method needs one, or asks it to learn though it stays.

    Raises:
        UsageError: naming the option to change.
    """
    method, section = recipe.kind, recipe.parts.get(NAME)
    if NAME not in method.needs:
        return
    if section is None or section.path is None:
        raise UsageError(
            f"method {recipe.method} needs a listener of the captioner's own: set own_listener.path, such as world/listener."
        )
    if section.train == "all" and NAME in method.keeps:
        raise UsageError(f"method {recipe.method} leaves its listener as it is: leave own_listener.train out.")


def build_own_listener(parts: Parts, section: OwnListenerSection | None) -> OwnListener | None:
    """The listener of a recipe's method, which knows the training images or reads them with each batch; none without a path.

    Raises:
        UsageError: there is no such model, or the method needs one that has the captioner's words.
    """
    if section is None or section.path is None:
        return None
    load = load_soft_listener if parts.recipe.kind.through_words else load_any_listener
    own = load(
        section.path, parts.captioner, name=NAME, prefix=section.prefix, size=parts.size, features=parts.features
    )
    if section.train == "all":
        if not isinstance(own.listener, ClipListener):
            raise UsageError(f"own_listener.train is for a CLIP, and {section.path} is none: leave it out.")
        for parameter in vision_parameters(own.listener):
            parameter.requires_grad_(True)
    if not _pictures(own):
        own.cache_images(parts.dataset)
    parts.processors |= _pictures(own)
    return own


def _pictures(own: OwnListener | None) -> dict[str, Processor]:
    """Name -> what turns pictures into the listener's tensors, if its image side learns and so must see them in every step."""
    if own is None or not isinstance(own.listener, ClipListener) or not vision_learns(own.listener):
        return {}
    return {own.name: own.listener.process}


def check_unrolling(recipe: Recipe, captioner: HuggingFaceCaptioner, own: Any, objective: Any, data: Any) -> None:
    """Where gradients are to flow through words, unroll two short captions and let the listener read them.

    Args:
        recipe: names the method.
        captioner: on its device.
        own: its listener.
        objective: whose relaxation is tried.
        data: ``(dataset, collate)`` to take two pictures from.

    Raises:
        UsageError: captioner or listener cannot do it.
    """
    if not recipe.kind.through_words:
        return
    relaxation: Relaxation = objective.relaxation
    dataset, collate = data
    batch = collate(two_pictures(dataset, collate)).to(captioner.device)
    tried = replace(relaxation, max_new_tokens=2)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        soft = captioner.unroll(batch, tried)
        own.embed_words(soft.words, soft.rollout.mask, soft.rollout.finished)


def own_scorers(own: OwnListener | None, watched: CaptionDataset, *, num_workers: int = 0) -> list[Scorer]:
    """The measure of a captioner by its own listener, which receives the images; none without one."""
    if own is None:
        return []
    listener, process = own.listener, _pictures(own).get(NAME)
    if isinstance(listener, ClipListener):
        listener = listener.with_own_images()
    if process is None:
        listener.cache_images(watched)
    return [OwnListenerScorer(listener, watched, process=process, num_workers=num_workers)]


def trained_scorers(
    run: Path, section: OwnListenerSection | None, watched: CaptionDataset, *, size: str, features: FeatureSet | None
) -> list[Scorer]:
    """The measure of a run's captioner by its own listener, trained or frozen; none without one.

    Raises:
        UsageError: the listener is damaged, or its features are missing.
    """
    if section is None or section.path is None:
        return []
    path = str(trained_part(run, NAME) or section.path)
    listener = load_retriever(path, name=NAME, prefix=section.prefix, size=size, features=features)
    assert not isinstance(listener, LateListener), "no method trains one with a captioner"
    listener.cache_images(watched)
    return [OwnListenerScorer(listener, watched)]
