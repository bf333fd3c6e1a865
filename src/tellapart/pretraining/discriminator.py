"""A discriminator pre-trained against a start model: built on first use, kept in the cache, found by content."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tellapart.captioners.base import Captioner
from tellapart.data.corruptions import vocabulary_of
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.loader import TrainingData
from tellapart.draws import mix_seeds, seed_torch, uniforms
from tellapart.errors import UsageError
from tellapart.files import cache_dir, first_folder, read_json, write_json
from tellapart.launch import is_main, processes
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.remember import RememberingTexts
from tellapart.objectives.discriminator import DiscriminatorPretraining, Draw, OtherCaptions
from tellapart.pretraining.discriminator_accuracy import HeldOut, measure, tell
from tellapart.pretraining.discriminator_settings import DiscriminatorSettings
from tellapart.pretraining.start_captions import (
    StartCaptions,
    WithCorrupted,
    alone,
    captioner_digest,
    data_digest,
    digest,
    on_any,
    plain,
    start_captions,
)
from tellapart.rewards.discriminator import KINDS, Discriminator, load_discriminator
from tellapart.rewards.discriminator_verdict import AccuracyWatch
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.types import Batch

REVISION = 2
"""To be raised when the code of a discriminator changes in a way that its settings do not tell."""

ABOUT = "pretraining.json"
_SAVES = 10

CollateExamples = Callable[[Sequence[Example]], Batch]


def pretrained_discriminator(
    captioner: Captioner,
    listener: ClipListener,
    dataset: CaptionDataset,
    collate: CollateExamples,
    settings: DiscriminatorSettings,
    *,
    held_out: CaptionDataset | None = None,
) -> Discriminator:
    """The discriminator that a training with WTF-RL starts from.

    Pre-training draws the start model's captions once per image, then learns from strings and the listener's embeddings alone.
    Its result is kept in the cache by content: the start model's and the listener's weights, the data's ids, references and
    sizes of image files, the settings. An interrupted one is taken up again; a second process that wants the same waits for the
    first. The accuracy on images it never saw is logged, and a useless discriminator is reported with a warning.

    Args:
        captioner: the start model; not changed.
        listener: gives embeddings; images it does not know are embedded now.
        dataset: the training images, each with references.
        collate: makes the captioner's batches.
        settings: kind and pre-training.
        held_out: images to measure on; none keeps ``settings.held_out`` of ``dataset`` out of pre-training instead.

    Returns:
        On the captioner's device, and watching its accuracy from now on.

    Raises:
        UsageError: an image has no references, or a saved discriminator cannot be used.
    """
    know_images(listener, dataset)
    if settings.path is not None:
        discriminator: Discriminator = load_discriminator(settings.path, listener)
    elif settings.pretraining_steps == 0:
        discriminator = new_discriminator(listener, settings)
    else:
        discriminator, _ = pretrain(captioner, listener, dataset, collate, settings, held_out=held_out)
    discriminator.watch = AccuracyWatch()
    return discriminator.to(next(captioner.parameters()).device)


def new_discriminator(listener: ClipListener | RememberingTexts, settings: DiscriminatorSettings) -> Discriminator:
    """One with random weights, which follow from ``settings.seed``."""
    options = {"see_image": settings.see_image} if settings.kind == "text" else {}
    with torch.random.fork_rng(devices=[]):
        seed_torch(mix_seeds("discriminator", settings.kind, settings.seed))
        return KINDS[settings.kind](listener, **options)


def pretrain(
    captioner: Captioner,
    listener: ClipListener,
    dataset: CaptionDataset,
    collate: CollateExamples,
    settings: DiscriminatorSettings,
    *,
    held_out: CaptionDataset | None = None,
) -> tuple[Discriminator, HeldOut | None]:
    """Pre-train, or take from the cache; arguments as in ``pretrained_discriminator``.

    Returns:
        The discriminator and its accuracy on images it never learned from; None without such images.

    Raises:
        UsageError: an image has no references, or an id names one picture in ``dataset`` and another in ``held_out``.
    """
    dataset.require_references("a discriminator")
    learned, held = _split(dataset, settings) if held_out is None else (dataset, held_out)
    key = _key(captioner, listener, dataset, held_out, settings)
    folder = cache_dir() / "discriminators" / f"{settings.kind}-{key}"
    know_images(listener, dataset)
    if held_out is not None:  # by content, not by id: it may be of other data
        listener.cache_images(held_out)
    with alone(folder):
        # Together, or one process would wait in a training for another that found the result in a cache of its own.
        if on_any(not (folder / ABOUT).is_file()):
            memory = RememberingTexts(listener)
            discriminator = new_discriminator(memory, settings)

            def drawn(source: CaptionDataset, ids: Sequence[str]) -> StartCaptions:
                return start_captions(captioner, source, ids, collate, settings.decoding(), seed=settings.seed)

            ids = _visited(learned, settings)
            all_visited = len(ids) == len(learned)
            # With the held-out images in their places, the batches are the same whichever images are held out.
            captions = drawn(dataset, dataset.ids if all_visited else ids)
            history = _train(discriminator, learned, captions, settings, folder)
            found = None
            if held is not None:
                drawn_before = held_out is None and all_visited
                fake = captions if drawn_before else drawn(held_out or dataset, held.ids)
                memory.forget()  # the texts of the last step, which are unknown to a process that resumes behind it
                found = asdict(measure(discriminator, held, fake, captioner, seed=settings.seed))
            _keep(discriminator, folder, {"settings": _plain(settings), "held_out": found, "history": history})
        _remove_unfinished(folder)  # also what a process left that was killed here
    about = read_json(folder / ABOUT)
    result = HeldOut(**about["held_out"]) if about["held_out"] else None
    tell(settings.kind, result)
    return load_discriminator(folder, listener), result


def know_images(listener: ClipListener, dataset: CaptionDataset) -> None:
    """Embed the images, unless the listener knows their ids."""
    try:
        listener.encode_ids(dataset.ids)
    except UsageError:
        listener.cache_images(dataset)


def _split(dataset: CaptionDataset, settings: DiscriminatorSettings) -> tuple[CaptionDataset, CaptionDataset | None]:
    """``(to learn from, held out)``: chosen by id, the same whatever the order of the images."""
    count = min(settings.held_out, len(dataset) // 10)
    if not count:
        return dataset, None
    rank = uniforms(dataset.ids, 1, mix_seeds("held out", settings.seed))[:, 0].argsort().tolist()
    chosen = set(rank[:count])
    parts: tuple[list[Example], list[Example]] = ([], [])
    for place, example in enumerate(dataset.examples):
        parts[place in chosen].append(example)
    return tuple(CaptionDataset(part, name=dataset.name) for part in parts)  # type: ignore[return-value]


def _config(learned: CaptionDataset, settings: DiscriminatorSettings, work: Path) -> TrainConfig:
    return TrainConfig(
        output_dir=work,
        learning_rate=settings.learning_rate or KINDS[settings.kind].learning_rate,
        max_steps=settings.pretraining_steps,
        per_device_train_batch_size=_share(learned, settings),
        logging_steps=max(1, settings.pretraining_steps // 20),
        save_steps=max(1, settings.pretraining_steps // _SAVES),
        save_total_limit=1,
        seed=settings.seed,
        resume_from_checkpoint="last" if any(work.glob("checkpoint-*")) else None,
    )


def _share(learned: CaptionDataset, settings: DiscriminatorSettings) -> int:
    """Images of a step that fall to each process."""
    return max(1, min(settings.batch_size, len(learned)) // processes())


def _visited(learned: CaptionDataset, settings: DiscriminatorSettings) -> list[str]:
    """The images that pre-training will see: all, or the first ones of an order that the seed decides.

    So the batches of a short pre-training are among those of a longer one.
    """
    needed = settings.pretraining_steps * _share(learned, settings) * processes()
    ids = learned.ids
    if needed >= len(ids):
        return ids
    rank = uniforms(ids, 1, mix_seeds("visited", settings.seed))[:, 0].argsort().tolist()
    return [ids[place] for place in rank[:needed]]


def _train(
    discriminator: Discriminator,
    learned: CaptionDataset,
    captions: StartCaptions,
    settings: DiscriminatorSettings,
    folder: Path,
) -> list[dict[str, Any]]:
    # Another number of processes may make other steps, which a checkpoint of this one cannot resume.
    work = folder.with_name(f"{folder.name}-{_share(learned, settings) * processes()}-unfinished")
    images = CaptionDataset([e for e in learned.examples if e.id in captions.texts], name=learned.name)
    # Strings and cached embeddings are all it reads: no image is opened.
    data = TrainingData(images, Collate({}))
    draw: Draw = captions
    if settings.corrupted:
        vocabulary = vocabulary_of(plain(text) for texts in images.references.values() for text in texts)
        draw = WithCorrupted(captions, captions.read, settings.corrupted, vocabulary)
    others = OtherCaptions(images.references) if settings.mismatched else None
    objective = DiscriminatorPretraining(discriminator, draw, captions.read, others)
    try:
        return train(objective, data, _config(images, settings, work)).history
    except KeyboardInterrupt as error:
        # It is not a run of the user's, so that there is nothing to resume by hand.
        where = str(error).partition(";")[0] or "stopped"
        raise KeyboardInterrupt(
            f"the pre-training of the discriminator {where}; the same command resumes from its last checkpoint"
        ) from error


def _keep(discriminator: Discriminator, folder: Path, about: dict[str, Any]) -> None:
    with first_folder(folder) as temporary:
        discriminator.save(temporary)
        write_json(temporary / ABOUT, about)


def _remove_unfinished(folder: Path) -> None:
    """Remove the checkpoints of a pre-training that is finished, of any number of processes."""
    if is_main():
        for work in folder.parent.glob(f"{folder.name}-*unfinished"):
            shutil.rmtree(work, ignore_errors=True)


def _key(
    captioner: Captioner,
    listener: ClipListener,
    dataset: CaptionDataset,
    held_out: CaptionDataset | None,
    settings: DiscriminatorSettings,
) -> str:
    held = None if held_out is None else data_digest(held_out)
    models = [captioner_digest(captioner), listener.fingerprint()]
    return digest(REVISION, models, data_digest(dataset), held, _plain(settings))


def _plain(settings: DiscriminatorSettings) -> dict[str, Any]:
    """The settings that decide the weights."""
    return {name: value for name, value in asdict(settings).items() if name != "path"}
