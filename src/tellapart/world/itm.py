"""The world's image-text matching model: the reward of VLRM's captioner; the judge stays held out.

It is BLIP's (Li et al. 2022), where every word looks at the image, around the tower that the world's BLIP-2 has. BLIP-2's own
matching head, where eight queries look, took several times as long before it saw that one word was wrong. It learns from the
web's captions, which the captioner has never seen.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.matcher import ItmMatcher
from tellapart.objectives.matching_head import MatchingHead
from tellapart.world import build_tokenizer, load_scenes, load_world
from tellapart.world.backbone import pixels
from tellapart.world.blip2 import STD, WIDTH, image_processor, vision_config
from tellapart.world.captions import describe_fully, write_as_annotator
from tellapart.world.grammar import parse
from tellapart.world.listeners import longest, with_texts
from tellapart.world.negatives import replace_attribute, swap_attributes, swap_relation
from tellapart.world.schedule import History, Task
from tellapart.world.vocabulary import MAX_LENGTH

if TYPE_CHECKING:
    from transformers import BlipConfig, PreTrainedTokenizerFast

OWN_CAPTIONS, DETAIL, FULL = 2, (5, 5), 2
"""Per image: number of its own captions, for each n the longest of n annotators' captions, and number of full descriptions.
Sizes, textures and backgrounds are seldom said, and without the long texts the model does not look at them."""

LAYERS = 3

COUNTS = (1, 1, 2, 4)

NEGATIVES = 2
"""False texts per image. A text that suits a look-alike is often true of the image, too, which holds back what is learnt from
false words: with one false text, 2,000 steps left textures right in 68 %."""


def replace_some(text: str, rng: np.random.Generator) -> str | None:
    """One, two or four attribute words replaced, one in half of the cases; none if there is nothing to replace.

    What is wrong in four places is found first, and from there what is wrong in one.
    """
    once = false = replace_attribute(text, rng)
    for _ in range(int(rng.choice(COUNTS)) - 1):
        false = false and replace_attribute(false, rng)
    # A word that was replaced twice may mean again what it meant.
    return once if false is None or parse(false) == parse(text) else false


RATES = {replace_some: 0.65, swap_attributes: 0.2, swap_relation: 0.15}
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


def make_matcher(tower: Path) -> ItmMatcher:
    """A ``BlipForImageTextRetrieval`` around a trained tower; all that reads texts is random."""
    from transformers import Blip2VisionModel, BlipForImageTextRetrieval

    tokenizer, given = build_tokenizer(), Blip2VisionModel.from_pretrained(tower)
    vision = vision_config() | {"layer_norm_eps": given.config.layer_norm_eps}
    model = BlipForImageTextRetrieval(matcher_config(tokenizer, vision, longest=MAX_LENGTH))
    model.vision_model.load_state_dict(given.state_dict())
    return ItmMatcher(model, image_processor(), tokenizer, batch_size=256)


def matcher_config(tokenizer: PreTrainedTokenizerFast, vision: Mapping[str, Any], *, longest: int) -> BlipConfig:
    """The configuration of a matcher around a small tower.

    Args:
        tokenizer: of what it reads.
        vision: the tower's configuration.
        longest: most tokens of a text.
    """
    from transformers import BlipConfig

    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "encoder_hidden_size": WIDTH,
        "max_position_embeddings": longest + 8,
        "bos_token_id": tokenizer.bos_token_id,
        "sep_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": STD,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return BlipConfig(text_config=text, vision_config=dict(vision), image_text_hidden_size=64)


def build_itm(task: Task) -> History:
    """Teach it which captions of the web go with which pictures."""
    with seeded(task.name, task.seed):
        matcher = make_matcher(task.needs["world/blip2-backbone"])
    similar = ClipListener.from_pretrained(task.needs["world/listener"], name="similar")
    objective = MatchingHead(matcher, negative=false_text, negatives=NEGATIVES, similar=similar)
    collate = Collate({matcher.name: pixels, similar.name: pixels})
    history = task.fit(objective, TrainingData(matcher_texts(task.size), collate))
    matcher.model.eval()
    for part in (matcher.model, matcher.tokenizer, matcher.image_processor):
        part.save_pretrained(task.folder)
    return history
