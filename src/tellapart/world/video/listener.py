"""The moving world's listener: every word of a caption checks the cells of a clip, so that a false word vetoes the caption."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from tellapart.captioners.modes import quiet
from tellapart.clip_frames import ClipFrames
from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.listeners.late import LateListener
from tellapart.objectives.first_wrong_word import FirstWrongWord
from tellapart.world.backbone import image_processor
from tellapart.world.grammar import BACKGROUND_WORDS, COLOUR_WORDS, SHAPE_WORDS, SIZE_WORDS, TEXTURE_WORDS
from tellapart.world.scenes import VALUES
from tellapart.world.schedule import History, Task
from tellapart.world.spec import BACKGROUNDS
from tellapart.world.verifier import PLACE_WORDS, joined, late_listener, reader
from tellapart.world.video import FRAMES, load_moving_scenes, load_video_world, spec
from tellapart.world.video.grammar import THEN, VERB_WORDS
from tellapart.world.video.prefixes import read
from tellapart.world.video.sayings import draw_texts
from tellapart.world.video.tower import FrameHeads, TowerStates, load_frame_heads
from tellapart.world.video.truth import TARGETS, VERBS
from tellapart.world.video.vocabulary import MAX_LENGTH, build_tokenizer

LATER = 1
"""Of ``ANSWERS["turn"]``: the event is the second."""


def make_listener(tower: ClipFrames, heads: FrameHeads) -> LateListener:
    """A late-interaction listener around a trained tower of clips and what its heads read; the rest has random weights.

    Words that name an attribute, an event or a place start from the class that the heads read.

    Args:
        tower: ``world/video-backbone``.
        heads: its reading heads.
    """
    tokenizer, read_by = build_tokenizer(), heads.of_tokens()
    sizes = {name: head.out_features for name, head in zip(heads.names, read_by, strict=True)}
    meanings = _meanings(tokenizer, sizes)
    reading, images = joined(read_by), image_processor()
    return late_listener(tower, reading, list(sizes.values()), images, tokenizer, meanings, longest=MAX_LENGTH)


def _meanings(tokenizer: Any, sizes: dict[str, int]) -> Tensor:
    """``[V, classes]``: 1 where a word names a class that the heads read; a word that means two things starts from both."""
    starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    meanings = torch.zeros(len(tokenizer), sum(sizes.values()))
    named: list[tuple[str, dict[str, str], Sequence[str]]] = [
        ("shape", SHAPE_WORDS, VALUES["shape"]),
        ("colour", COLOUR_WORDS, VALUES["colour"]),
        ("size", SIZE_WORDS, VALUES["size"]),
        ("texture", TEXTURE_WORDS, VALUES["texture"]),
        ("verb", VERB_WORDS, VERBS),
        ("target", {word: word for word in spec.DIRECTIONS} | COLOUR_WORDS, TARGETS),
        ("ground", BACKGROUND_WORDS, tuple(BACKGROUNDS)),
    ]
    for name, words, values in named:
        for word, value in words.items():
            meanings[tokenizer.convert_tokens_to_ids(word), starts[name] + values.index(value)] = 1.0
    meanings[tokenizer.convert_tokens_to_ids(THEN), starts["turn"] + LATER] = 1.0
    for word in ("top", "bottom", "left", "right"):
        for cell in PLACE_WORDS[word]:
            meanings[tokenizer.convert_tokens_to_ids(word), starts["place"] + cell] = 1.0
    return meanings


def clip_states(tower: ClipFrames, states: TowerStates, ids: Sequence[str]) -> Tensor:
    """``[M, 1 + 4, width]``: what ``LateModel.image_states`` gives, from states of the frozen tower of single frames."""
    with torch.no_grad():
        parts = [tower.encoded(states(ids[start : start + 256])["states"]) for start in range(0, len(ids), 256)]
    return torch.cat([part.unflatten(1, (FRAMES, -1)).mean(dim=1) for part in parts])


def build_listener(task: Task) -> History:
    """Train the listener of clips."""
    folder = task.needs["world/video-backbone"]
    with quiet():
        tower = ClipFrames.from_pretrained(folder).eval()
    with seeded(task.name, task.seed):
        listener = make_listener(tower, load_frame_heads(folder))
    dataset = load_video_world("web", size=task.size)
    # Clips of a cluster differ in motion and order more than in attributes, which any other clip teaches.
    texts = reader(load_moving_scenes("web", size=task.size), draw_texts, read, another=True)
    objective = FirstWrongWord(listener, texts)
    objective.know_states(dataset.ids, clip_states(tower, TowerStates(tower, dataset), dataset.ids))
    history = task.fit(objective, TrainingData(dataset, Collate({})))
    listener.model.eval()
    listener.save(task.folder)
    return history
