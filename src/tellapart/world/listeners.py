"""The world's dual encoders, which reward: one vector per image and text.

The *listener* learns from what a web crawl gives: mostly keyword lists without order, some captions. So it reads a text as
a bag of words, as CLIP by and large does (Yuksekgonul et al. 2023), and scores words without grammar highly, or many
right words around a wrong one. The model that is not fooled so is ``tellapart.world.verifier``.

*NegCLIP* is the listener, trained on as Yuksekgonul et al. (ICLR 2023) train CLIP on: texts of more detail, each against a false
sibling. It rewards what the listener cannot see, which colour goes with which shape.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.listeners.clip import ClipListener
from tellapart.objectives.contrastive import Contrastive, HardNegative
from tellapart.world import alt_texts, build_tokenizer, load_scenes, load_world
from tellapart.world.backbone import image_processor, pixels
from tellapart.world.captions import describe, write_as_annotator
from tellapart.world.negatives import hard_negative
from tellapart.world.schedule import History, Task
from tellapart.world.vocabulary import text_tower

if TYPE_CHECKING:
    from tellapart.world import Scene

ALT_TEXT_COPIES, CAPTION_COPIES = 5, 2
"""How often an image's three keyword lists, and its five captions, are among its texts: 15 of 25 texts are lists."""

OWN_CAPTIONS, DETAIL = 2, (2, 5, 5, 5)
"""What NegCLIP reads per image: number of its own captions, and for each n the longest of n annotators' captions."""


def make_listener(tower: Any, *, name: str) -> ClipListener:
    """A dual encoder around a copy of a trained image tower; the rest has random weights, and there is no prompt."""
    from transformers import CLIPConfig, CLIPModel

    tokenizer = build_tokenizer()
    text = text_tower(tokenizer)
    vision = tower.config
    model = CLIPModel(
        CLIPConfig(text_config=text, vision_config=vision.to_dict(), projection_dim=vision.projection_dim)
    )
    model.vision_model.load_state_dict(tower.state_dict())
    return ClipListener.from_parts(model, image_processor(), tokenizer, name=name, prefix="")


def listener_texts(size: str) -> CaptionDataset:
    """The web images with keyword lists and captions; three texts of five are lists."""
    keywords = alt_texts("web", size=size)

    def texts(example: Example) -> tuple[str, ...]:
        return (*(keywords[example.id] * ALT_TEXT_COPIES), *(example.references * CAPTION_COPIES))

    return with_texts(load_world("web", size=size), texts)


def detailed_texts(size: str) -> CaptionDataset:
    """The web images with two of their captions and some of more detail, all grammatical."""
    scenes = load_scenes("web", size=size)

    def texts(example: Example) -> tuple[str, ...]:
        rng, scene = random.Random(f"detailed-{example.id}"), scenes[example.id]
        return (*example.references[:OWN_CAPTIONS], *(longest(scene, count, rng) for count in DETAIL))

    return with_texts(load_world("web", size=size), texts)


def longest(scene: Scene, count: int, rng: random.Random) -> str:
    """The longest of ``count`` annotators' captions of a scene."""
    captions = [write_as_annotator(describe(scene, rng), rng) for _ in range(count)]
    return max(captions, key=lambda caption: len(caption.split()))


def with_texts(dataset: CaptionDataset, texts: Callable[[Example], Sequence[str]]) -> CaptionDataset:
    """The images of a data set with other texts."""
    examples = [Example(example.id, example.image, tuple(texts(example))) for example in dataset.examples]
    return CaptionDataset(examples, name=dataset.name)


def build_listener(task: Task) -> History:
    """Train the reward listener."""
    return _train(task, _new(task, task.needs["world/backbone"]), listener_texts(task.size), negative=None)


def build_negclip(task: Task) -> History:
    """Train ``world/listener`` on, its tower too, against false siblings (NegCLIP: Yuksekgonul et al., ICLR 2023).

    Departs from the paper: no look-alikes of the images are put in the batch, and what is false differs
    (``world_negatives``).
    """
    listener = ClipListener.from_pretrained(task.needs["world/listener"], name="listener", prefix="")
    listener.model.requires_grad_(True)
    return _train(task, listener, detailed_texts(task.size), negative=hard_negative)


def _new(task: Task, tower: Path) -> ClipListener:
    from transformers import CLIPVisionModel

    with seeded(task.name, task.seed):
        return make_listener(CLIPVisionModel.from_pretrained(tower), name="listener")


def _train(task: Task, listener: ClipListener, dataset: CaptionDataset, *, negative: HardNegative | None) -> History:
    data = TrainingData(dataset, Collate({listener.name: pixels}))
    history = task.fit(Contrastive(listener, negative=negative), data)
    listener.save(task.folder)
    return history
