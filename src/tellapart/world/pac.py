"""The world's listener trained further on people's captions and on those that its start captioner writes (PAC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.data.loader import TrainingData
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.projections import ProjectionsListener
from tellapart.objectives.positive_augmented import PositiveAugmented
from tellapart.pretraining.start_captions import start_captions
from tellapart.types import Decoding
from tellapart.world import load_world
from tellapart.world.backbone import pixels
from tellapart.world.schedule import History, Task, one_thread
from tellapart.world.vocabulary import MAX_NEW_TOKENS


def build_pac(task: Task) -> History:
    """Train the projections of ``world/listener`` on the training split (Sarto et al., CVPR 2023), with one caption of
    ``world/xe`` per image, drawn greedily. There are no generated images."""
    dataset = load_world("train", size=task.size)
    generated = generated_captions(task.needs["world/xe"], dataset)
    return train_further(task, dataset, generated)


def train_further(
    task: Task, dataset: CaptionDataset, generated: Mapping[str, Sequence[str]], *, caption_weight: float = 0.1
) -> History:
    """Train the projections of ``world/listener`` and save it in the task's folder.

    Args:
        task: its schedule, seed, folder and ``world/listener``.
        dataset: images with people's captions.
        generated: image id -> generated captions.
        caption_weight: of the term with generated captions; 0 is plain contrastive training.
    """
    listener = ClipListener.from_pretrained(task.needs["world/listener"], name="pac", prefix="")
    learner = ProjectionsListener(listener)
    with one_thread():
        learner.cache_images(dataset)
    objective = PositiveAugmented(learner, generated, caption_weight=caption_weight)
    history = task.fit(objective, TrainingData(dataset, Collate({})))
    listener.save(task.folder)
    return history


def generated_captions(start: Path, dataset: CaptionDataset) -> dict[str, list[str]]:
    """One greedy caption of every image by the captioner in ``start``; the cache keeps them."""
    captioner = HuggingFaceCaptioner.from_pretrained(start)
    decoding = Decoding(max_new_tokens=MAX_NEW_TOKENS)
    with one_thread():
        drawn = start_captions(captioner, dataset, dataset.ids, Collate({captioner.name: pixels}), decoding)
    return {image_id: [text] for image_id, text in drawn.texts.items()}
