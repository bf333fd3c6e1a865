"""Listeners trained with a captioner, and retrievers of any kind, from what a user calls them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError, reason_of
from tellapart.listeners.clip import ClipListener, Pooling
from tellapart.listeners.image_vectors import MADE_BY, ClipVectors, ImageVectors, StoredVectors
from tellapart.listeners.kinds import is_late, is_vse, trained_folder
from tellapart.listeners.late import LateListener
from tellapart.listeners.soft_clip import SoftClip
from tellapart.listeners.trained import TrainedListener, freeze_temperature, freeze_vision
from tellapart.listeners.vse import Vse, images_of
from tellapart.listeners.words import Words
from tellapart.recipe.models import captioner_folder, device, is_world, listener_folder, load_listener, model_folder

if TYPE_CHECKING:
    from tellapart.data.features.base import FeatureSet
    from tellapart.recipe.sections import NewVseSection

logger = logging.getLogger(__name__)

IMAGES = "images"
"""Name of the listener whose image embeddings a VSE reads."""


def words_of(captioner: HuggingFaceCaptioner) -> Words:
    """A captioner's vocabulary."""
    return Words(captioner.tokenizer, captioner.family.vocab_size, tuple(captioner.eos_token_ids))


def load_soft_listener(
    path: str,
    captioner: HuggingFaceCaptioner,
    *,
    name: str = "listener",
    prefix: str | None = None,
    size: str = "full",
    features: FeatureSet | None = None,
) -> SoftClip | Vse:
    """A listener that reads distributions over the captioner's words, on this process's device.

    Call its ``cache_images`` with the images it is to look at. ``.listener`` is what retrieves with its weights.

    Args:
        path: a CLIP (folder, hub id, world/listener) or a VSE, or a run that trained one.
        captioner: whose words.
        name: key of its tensors in ``batch.inputs``.
        prefix: put before every text by a CLIP; none takes its own.
        size: of the built-in world.
        features: what a VSE reads of images, where it was trained on such; read from the captioner's tensors where a batch
            has them.

    Raises:
        UsageError: the model is missing or of another kind, or its vocabulary lacks a word of the captioner.
    """
    words = words_of(captioner)
    if not is_vse(path):
        return SoftClip(load_listener(path, name=name, prefix=prefix, size=size), words)
    _refuse_prefix(path, prefix)
    reads = None if features is None else captioner.name
    return load_vse(path, name=name, size=size, features=features, reads=reads, words=words)


def load_any_listener(
    path: str,
    captioner: HuggingFaceCaptioner,
    *,
    name: str = "listener",
    prefix: str | None = None,
    size: str = "full",
    features: FeatureSet | None = None,
) -> SoftClip | Vse | TrainedListener:
    """A listener for methods that need no gradient through words: one that reads texts where it cannot read the captioner's
    ids. Image side and temperature of a CLIP or SigLIP are frozen.

    Args:
        path: as in ``load_soft_listener``, or a SigLIP.
        captioner: as there.
        name: as there.
        prefix: as there.
        size: as there.
        features: as there.

    Raises:
        UsageError: the model does not exist, or is a VSE without some word of the captioner.
    """
    if is_vse(path):
        return load_soft_listener(path, captioner, name=name, prefix=prefix, size=size, features=features)
    listener = load_listener(path, name=name, prefix=prefix, size=size)
    try:
        return SoftClip(listener, words_of(captioner))
    except UsageError:
        freeze_vision(listener)
        freeze_temperature(listener)
        return TrainedListener(listener)


def load_retriever(
    path: str,
    *,
    name: str,
    prefix: str | None = None,
    size: str = "full",
    base: str | None = None,
    features: FeatureSet | None = None,
    text_pooling: Pooling = "whole",
) -> ClipListener | LateListener | Vse:
    """A retriever of images by captions: a CLIP, a SigLIP, a late-interaction listener or a VSE, on this process's device.

    Args:
        path: as in ``load_soft_listener``, or a SigLIP or a ``.pth`` file.
        name: key of its tensors in ``batch.inputs``.
        prefix: put before every text by a CLIP; none takes its own.
        size: of the built-in world.
        base: has the tokenizer and image processor of a ``.pth`` file.
        features: what a VSE reads of images, where it was trained on such.
        text_pooling: how a CLIP or SigLIP reads long texts.

    Raises:
        UsageError: the model does not exist or is of another kind.
    """
    late = names_late(path, size)
    if not late and not is_vse(path):
        return load_listener(path, name=name, prefix=prefix, size=size, base=base, text_pooling=text_pooling)
    if late:
        return load_only_late(path, name=name, size=size, prefix=prefix, base=None, text_pooling=text_pooling)
    _refuse_options(path, prefix, None, text_pooling)
    return load_vse(path, name=name, size=size, features=features)


def load_miner(path: str, *, name: str, prefix: str | None = None, size: str = "full") -> ClipListener | LateListener:
    """The model that finds look-alikes: a CLIP, a SigLIP or a late-interaction listener, on this process's device.

    Args:
        path: a model folder, a Hugging Face id, a run that trained one, or a stage of the built-in world.
        name: key of its tensors in ``batch.inputs``.
        prefix: put before every text by a CLIP; none takes its own.
        size: of the built-in world.

    Raises:
        UsageError: the model does not exist or is of another kind.
    """
    if not names_late(path, size):
        return load_listener(path, name=name, prefix=prefix, size=size)
    _refuse_prefix(path, prefix)
    return load_late(path, name=name, size=size)


def names_late(path: str, size: str = "full") -> bool:
    """Whether a folder, a run or a stage of the built-in world is a late-interaction listener."""
    return is_late(model_folder(path, size=size))


def tell_same(retrievers: Mapping[str, Any]) -> None:
    """Say where the judge is the listener again.

    Args:
        retrievers: of an evaluation, by name.
    """
    listener, judge = retrievers.get("listener"), retrievers.get("judge")
    if listener is not None and judge is not None and listener.fingerprint() == judge.fingerprint():
        logger.warning(
            "note: judge and listener are one model, so the judge tells nothing that the listener does not: name another "
            "retriever as judge."
        )


def load_only_late(
    path: str, *, name: str, size: str, prefix: str | None, base: str | None, text_pooling: Pooling
) -> LateListener:
    """A late-interaction listener, which has no options of a CLIP.

    Raises:
        UsageError: it is damaged, or such an option was given.
    """
    _refuse_options(path, prefix, base, text_pooling)
    return load_late(path, name=name, size=size)


def load_late(path: str, *, name: str, size: str = "full") -> LateListener:
    """A late-interaction listener, on this process's device.

    Raises:
        UsageError: it is damaged.
    """
    return LateListener.from_pretrained(listener_folder(path, size=size), name=name).to(device())


def load_vse(
    path: str,
    *,
    name: str,
    size: str = "full",
    features: FeatureSet | None = None,
    reads: str | None = None,
    words: Words | None = None,
) -> Vse:
    """A VSE, on this process's device; the arguments are those of ``load_retriever`` and of ``Vse``.

    Raises:
        UsageError: it is damaged, or what it reads of images is not there or has changed.
    """
    folder = Path(trained_folder(path)).expanduser()
    about = images_of(folder)
    if about:
        vectors = clip_vectors(about[MADE_BY], size)
        vectors.require(about, folder)
        return Vse.from_pretrained(folder, vectors, name=name, words=words).to(device())
    stored = None if features is None else stored_vectors(features)
    return Vse.from_pretrained(folder, stored, name=name, reads=reads, words=words).to(device())


def fresh_vse(
    section: NewVseSection,
    *,
    vocabulary: str,
    images: ImageVectors,
    name: str,
    size: str = "full",
    seed: int,
) -> Vse:
    """A VSE to be trained, on this process's device.

    Args:
        section: its widths.
        vocabulary: the captioner whose words it is to know.
        images: what it reads of images.
        name: key of its tensors in ``batch.inputs``.
        size: of the built-in world.
        seed: draws its weights.

    Raises:
        UsageError: the captioner does not exist, or a width cannot be used.
    """
    from tellapart.draws import seeded
    from tellapart.processors import read_tokenizer

    folder = captioner_folder(vocabulary, size=size)
    try:
        tokenizer = read_tokenizer(folder)
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise UsageError(
            f"listener.vocabulary is {vocabulary!r}, which has no tokenizer ({reason}): name a captioner's run or folder."
        ) from error
    with seeded("new/vse", seed):
        made = Vse.fresh(tokenizer, images, name=name, word_size=section.word_size, hidden_size=section.hidden_size)
    return made.to(device())


def stored_vectors(features: FeatureSet) -> StoredVectors:
    """Features by image id."""
    from tellapart.data.features.base import FeatureInputs

    return StoredVectors(FeatureInputs(features), features.width)


def clip_vectors(path: str, size: str = "full") -> ClipVectors:
    """The image embeddings of a frozen listener.

    Raises:
        UsageError: the model does not exist or is of another kind.
    """
    listener = load_listener(path, name=IMAGES, size=size)
    named = path if is_world(path) else str(trained_folder(path))
    return ClipVectors(listener, named)


def _refuse_options(path: str, prefix: str | None, base: str | None, text_pooling: Pooling) -> None:
    """Raise where a retriever that is neither CLIP nor SigLIP is given an option of these."""
    if text_pooling != "whole":
        raise UsageError(f"text_pooling is for CLIP and SigLIP, but {path} is neither: leave it out.")
    if base is not None:
        raise UsageError(f"base is for a checkpoint file of a CLIP, but {path} is a folder: leave it out.")
    _refuse_prefix(path, prefix)


def _refuse_prefix(path: str, prefix: str | None) -> None:
    if prefix is not None:
        kind = "VSE" if is_vse(path) else "late-interaction listener"
        raise UsageError(f"{path} is a {kind}, which puts no words before captions: leave the prefix out.")
