"""The world's verifiers: late-interaction listeners whose every word is checked, so that a false word vetoes a caption.

``world/verifier`` is what rewards are made of; ``world/judge`` is another such model from another tower, other seeds and texts
of other habits, and is never a reward. Both learn from exact truth: texts of many kinds about the web's scenes, each
compared with its own picture and another one of the same cluster, with the first wrong word as the label.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.init import orthogonal_

from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.draws import mix_seeds, seeded
from tellapart.listeners.late import LateListener
from tellapart.listeners.late_model import LateConfig, LateModel
from tellapart.objectives.first_wrong_word import NOTHING_WRONG, FirstWrongWord, Read, Readings
from tellapart.world import build_tokenizer, load_scenes, load_world, spec
from tellapart.world.backbone import AttributeHeads, image_processor, load_heads
from tellapart.world.blip2 import STD
from tellapart.world.grammar import BACKGROUND_WORDS, COLOUR_WORDS, PLURAL_WORDS, SHAPE_WORDS, SIZE_WORDS, TEXTURE_WORDS
from tellapart.world.prefixes import Reading, read
from tellapart.world.sayings import Habits, draw_texts
from tellapart.world.scenes import VALUES, pick
from tellapart.world.schedule import History, Task
from tellapart.world.vocabulary import MAX_LENGTH, text_tower

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

STRENGTH = 2.0
"""Norm of what a word's embedding holds of its meaning at the start."""

JUDGE = Habits(annotator=0.35, full=0.2, related=0.45, colour=0.85, size=0.45, texture=0.5, place=0.5, background=0.45)
"""What the judge's texts say: more of what annotators write, and longer texts."""

PLACE_WORDS = {"top": (0, 1), "above": (0, 1), "bottom": (2, 3), "below": (2, 3), "left": (0, 2), "right": (1, 3)}
"""Word of place -> the cells it points at."""


def make_verifier(tower: Any, heads: AttributeHeads) -> LateListener:
    """A late-interaction listener around a trained tower and what its heads read; the rest has random weights.

    Words that name an attribute or a place start from the class that the heads read. Without that start it takes
    several times as many steps before a word's meaning is found.

    Args:
        tower: a ``CLIPVisionModel``.
        heads: its reading heads.
    """
    tokenizer, read_by = build_tokenizer(), heads.of_tokens()
    sizes = [head.out_features for head in read_by]
    return late_listener(tower, joined(read_by), sizes, image_processor(), tokenizer, _meanings(tokenizer, sizes))


def joined(heads: Sequence[torch.nn.Linear]) -> dict[str, torch.Tensor]:
    """The weights of several heads as those of one, which gives all their logits side by side."""
    return {part: torch.cat([getattr(head, part).detach() for head in heads]) for part in ("weight", "bias")}


def late_listener(
    tower: Any,
    reading: Mapping[str, torch.Tensor],
    sizes: Sequence[int],
    images: Any,
    tokenizer: PreTrainedTokenizerFast,
    meanings: torch.Tensor,
    *,
    longest: int = MAX_LENGTH,
) -> LateListener:
    """A listener around a trained tower, whose words start from what they mean; the rest is drawn from torch's global generator.

    Args:
        tower: a ``CLIPVisionModel`` or ``ClipFrames``.
        reading: ``weight`` ``[classes, width]`` and ``bias`` ``[classes]`` of what reads the tower's tokens.
        sizes: how many of the classes each head has.
        images: the tower's image processor.
        tokenizer: of the texts.
        meanings: ``[V, classes]``, 1 where a word names a class.
        longest: number of tokens of the longest text.
    """
    vision = tower.config.to_dict() | {"model_type": tower.config.model_type}
    model = LateModel(LateConfig(vision=vision, text=text_tower(tokenizer, longest=longest), readings=list(sizes)))
    model.vision_model.load_state_dict(tower.state_dict())
    model.reading.load_state_dict(dict(reading))
    with torch.no_grad():
        _start_from_meanings(model, meanings)
    return LateListener(model, images, tokenizer)


def _start_from_meanings(model: LateModel, meanings: torch.Tensor) -> None:
    """Let the embedding of a word hold the classes it names, and its first check look for them."""
    for parameter in model.text_model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=STD)
    states = model.vision_model.config.hidden_size
    classes, dim = meanings.shape[1], model.config.dim
    embeddings = model.text_model.get_input_embeddings().weight
    held = STRENGTH * orthogonal_(torch.empty(classes, embeddings.shape[1]))
    shown = orthogonal_(torch.empty(classes, dim))
    embeddings += meanings @ held
    model.linear.weight[:, states:] += STRENGTH * shown.T
    model.queries.weight[:dim] += STRENGTH / embeddings.shape[1] ** 0.5 * (torch.linalg.pinv(held) @ shown).T


def _meanings(tokenizer: Any, sizes: Sequence[int]) -> torch.Tensor:
    """``[V, classes]``: 1 where a word names a class that the heads read."""
    starts = np.cumsum([0, *sizes]).tolist()
    meanings = torch.zeros(len(tokenizer), starts[-1])
    named = zip(VALUES.values(), (SHAPE_WORDS | PLURAL_WORDS, COLOUR_WORDS, SIZE_WORDS, TEXTURE_WORDS), strict=True)
    groups = [(values, words, start) for (values, words), start in zip(named, starts, strict=False)]
    groups.append((tuple(spec.BACKGROUNDS), BACKGROUND_WORDS, starts[len(VALUES) + 1]))
    for values, words, start in groups:
        for word, value in words.items():
            meanings[tokenizer.convert_tokens_to_ids(word), start + values.index(value)] = 1.0
    for word, cells in PLACE_WORDS.items():
        for cell in cells:
            meanings[tokenizer.convert_tokens_to_ids(word), starts[len(VALUES)] + cell] = 1.0
    return meanings


def reader(
    scenes: Mapping[str, Any],
    draw_texts: Callable[[Any, random.Random], list[str]],
    read: Callable[[str], Reading],
    *,
    another: bool = False,
) -> Read:
    """Draws texts about scenes, each compared with its own picture and one of its cluster.

    Args:
        scenes: image id -> scene, in the order of the split.
        draw_texts: texts about a scene.
        read: the reading of a text.
        another: whether each text is also compared with any other picture.
    """
    names, row = list(scenes), {name: i for i, name in enumerate(scenes)}

    def draw(ids: Sequence[str], seed: int) -> Readings:
        found = Readings([], [], [], [])
        for name in ids:
            rng = random.Random(mix_seeds(seed, name))
            first = row[name] - row[name] % spec.CLUSTER_SIZE
            mate = names[first + rng.randrange(min(spec.CLUSTER_SIZE, len(names) - first))]
            images = [name, mate, *([pick(rng, names)] if another else [])]
            for text in draw_texts(scenes[name], rng):
                reading = read(text)
                for image in dict.fromkeys(images):
                    wrong = reading.first_wrong(scenes[image])
                    found.text.append(len(found.texts))
                    found.images.append(image)
                    found.first_wrong.append(NOTHING_WRONG if wrong is None else wrong)
                found.texts.append(text)
        return found

    return draw


def build_verifier(task: Task) -> History:
    """Train a verifier that rewards, with the one tower that the stage needs."""
    (backbone,) = task.needs.values()
    return _build(task, backbone, Habits())


def build_judge(task: Task) -> History:
    """Train the judge: another tower, other weights, and texts that say other things."""
    return _build(task, task.needs["world/judge-backbone"], JUDGE)


def _build(task: Task, backbone: Path, habits: Habits) -> History:
    from transformers import CLIPVisionModel

    with seeded(task.name, task.seed):
        listener = make_verifier(CLIPVisionModel.from_pretrained(backbone), load_heads(backbone))
    dataset = load_world("web", size=task.size)
    scenes = load_scenes("web", size=task.size)
    objective = FirstWrongWord(listener, reader(scenes, partial(draw_texts, habits=habits), read))
    objective.know_images(dataset)
    history = task.fit(objective, TrainingData(dataset, Collate({})))
    listener.model.eval()
    listener.save(task.folder)
    return history
