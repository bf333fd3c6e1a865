"""The world's image-text matching model: what VLRM's captioner is rewarded by; the judge stays held out.

It begins with tower, queries, Q-Former and word embeddings of the world's BLIP-2 (seed 0): published matcher and captioner, too,
go back to one Q-Former (Li et al. 2023, section 3). From random weights it would take many times as long before it compared
anything. It learns from the web's captions, which the captioner has never seen.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.loader import TrainingData
from tellapart.data.world import build_tokenizer, load_scenes, load_world
from tellapart.data.world.captions import describe_fully, write_as_annotator
from tellapart.data.world.vocabulary import MAX_LENGTH
from tellapart.experiments.world_backbone import pixels
from tellapart.experiments.world_blip2 import QFORMER, QUERIES, image_processor, vision_config
from tellapart.experiments.world_listeners import longest, with_texts
from tellapart.experiments.world_matcher_probe import PROBE, probe_matcher
from tellapart.experiments.world_negatives import replace_attribute, swap_attributes, swap_relation
from tellapart.experiments.world_training import History, Task, one_thread, seeded
from tellapart.files import write_json
from tellapart.listeners.matcher import ItmMatcher
from tellapart.objectives.matching_head import MatchingHead

OWN_CAPTIONS, DETAIL, FULL = 2, (5, 5), 2
"""It reads, for each image, so many of its captions, for each number n the longest of n annotators' captions, and so many that
say everything: sizes, textures and backgrounds are seldom said, and without these it does not look at them."""

RATES = {replace_attribute: 0.5, swap_attributes: 0.3, swap_relation: 0.2}
"""How often each kind of false text is tried first. Words are never shuffled: no matching head is taught what grammar is."""


def false_text(text: str, rng: np.random.Generator) -> str:
    """A caption with something wrong in it; the caption itself where nothing can be put wrong ("two shapes")."""
    first = int(np.searchsorted(np.cumsum(list(RATES.values())), rng.random(), side="right"))
    makers = list(RATES)
    tried = (make(text, rng) for make in (makers[first], *makers))
    return next((found for found in tried if found is not None), text)


def matcher_texts(size: str) -> CaptionDataset:
    """The web images with captions of all lengths, all grammatical and true."""
    scenes = load_scenes("web", size=size)

    def texts(example: Example) -> tuple[str, ...]:
        rng, scene = random.Random(f"matcher-{example.id}"), scenes[example.id]
        full = (write_as_annotator(describe_fully(scene, rng), rng) for _ in range(FULL))
        return (*example.references[:OWN_CAPTIONS], *(longest(scene, count, rng) for count in DETAIL), *full)

    return with_texts(load_world("web", size=size), texts)


def make_matcher(captioner: Path) -> ItmMatcher:
    """A ``Blip2ForImageTextRetrieval`` that begins with a captioner's weights; how it reads texts and its head are random."""
    from transformers import Blip2Config, Blip2ForConditionalGeneration, Blip2ForImageTextRetrieval

    tokenizer = build_tokenizer()
    qformer = QFORMER | {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": MAX_LENGTH + 8,
        "pad_token_id": tokenizer.pad_token_id,
        "use_qformer_text_input": True,
    }
    config = Blip2Config(
        vision_config=vision_config(),
        qformer_config=qformer,
        num_query_tokens=QUERIES,
        image_text_hidden_size=64,
        image_token_index=None,  # with one the model would cut the first words off
    )
    model, given = Blip2ForImageTextRetrieval(config), Blip2ForConditionalGeneration.from_pretrained(captioner)
    model.vision_model.load_state_dict(given.vision_model.state_dict())
    model.qformer.load_state_dict(given.qformer.state_dict(), strict=False)
    with torch.no_grad():
        model.query_tokens.copy_(given.query_tokens)
        # The captioner has one word more, which stands for the image.
        words = given.language_model.get_input_embeddings().weight[: len(tokenizer)]
        model.embeddings.word_embeddings.weight.copy_(words)
    return ItmMatcher(model, image_processor(), tokenizer, batch_size=256)


def build_itm(task: Task) -> History:
    """Teach it which captions of the web go with which pictures; what it can tell stands beside it."""
    with seeded(task.name, task.seed):
        matcher = make_matcher(task.needs["world/blip2"])
    objective = MatchingHead(matcher, negative=false_text)
    history = task.fit(objective, TrainingData(matcher_texts(task.size), Collate({matcher.name: pixels})))
    matcher.model.eval()
    for part in (matcher.model, matcher.tokenizer, matcher.image_processor):
        part.save_pretrained(task.folder)
    with one_thread():
        write_json(task.folder / PROBE, probe_matcher(matcher, size=task.size))
    return history
