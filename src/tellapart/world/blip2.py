"""The world's BLIP-2 before post-training: a frozen image tower, a small Q-Former and a small OPT, taught by teacher forcing.

BLIP-2's image tower lacks the first norm of CLIP's, so that the weights of the world's backbone do not fit into it: it is a
stage of its own, taught the same things in the same way. The matcher of ``tellapart.world.itm`` reads it, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.objectives.xe import XE
from tellapart.world import build_tokenizer, load_world, spec
from tellapart.world.backbone import pixels, teach
from tellapart.world.render import SIDE
from tellapart.world.schedule import History, Task
from tellapart.world.vocabulary import MAX_LENGTH

CAPTIONS_PER_IMAGE = 2
QUERIES = 16
"""Of the Q-Former; with eight, textures were told right in 75 % instead of 92 % after as many steps."""

WIDTH = 128

STD = 0.05
"""Of random weights: at this width 0.02, the classes' own, leaves every layer almost without output, and the first hundreds of
steps have no effect."""

QFORMER = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "encoder_hidden_size": WIDTH,
    "cross_attention_frequency": 1,
    "initializer_range": STD,
}
"""Of captioner and matcher; both read the image in every layer."""


def image_processor() -> Any:
    """The preprocessing that captioner and matcher are saved with: 64 x 64, values from -1 to 1."""
    from transformers import BlipImageProcessorPil

    return BlipImageProcessorPil(size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * 3, image_std=[0.5] * 3)


def vision_config() -> dict[str, Any]:
    """The tower's configuration: one token for each cell, and CLS."""
    return {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": spec.CELL,
        "initializer_range": 0.02,  # the class's own, 1e-10, is for weights that are loaded
    }


def build_tower(task: Task) -> History:
    """Teach a ``Blip2VisionModel`` what the backbone is taught."""
    from transformers import Blip2VisionConfig, Blip2VisionModel

    return teach(task, lambda: Blip2VisionModel(Blip2VisionConfig(**vision_config())), image_processor())


def take_tower(model: Any, tower: Path) -> None:
    """Give a BLIP-2 model the weights of a tower, and queries that differ (drawn from torch's generator).

    Transformers leaves all queries zero, for weights that are loaded; equal ones would stay equal.
    """
    from transformers import Blip2VisionModel

    model.vision_model.load_state_dict(Blip2VisionModel.from_pretrained(tower).state_dict())
    torch.nn.init.normal_(model.query_tokens, std=STD)


def make_blip2(tower: Path) -> HuggingFaceCaptioner:
    """A ``Blip2ForConditionalGeneration`` of a trained tower (frozen), a Q-Former and an OPT with random weights.

    As in the published model captions follow queries and BOS directly, without a prompt.
    """
    from tokenizers import processors
    from transformers import Blip2Config, Blip2ForConditionalGeneration, Blip2Processor, OPTConfig

    tokenizer = build_tokenizer()
    bos, eos, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    # As OPT's: BOS before a text and nothing after it.
    template = processors.TemplateProcessing(f"{tokenizer.bos_token} $A", None, [(tokenizer.bos_token, bos)])
    tokenizer.backend_tokenizer.post_processor = template
    processor = Blip2Processor(image_processor(), tokenizer, num_query_tokens=QUERIES)
    text = OPTConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        ffn_dim=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        init_std=STD,
        max_position_embeddings=QUERIES + MAX_LENGTH + 8,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    config = Blip2Config(
        vision_config=vision_config(),
        qformer_config=QFORMER,
        text_config=text,
        num_query_tokens=QUERIES,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    model = Blip2ForConditionalGeneration(config)
    take_tower(model, tower)
    parts = (model, processor.image_processor, processor.tokenizer)
    return HuggingFaceCaptioner.from_parts(*parts, processor=processor, max_caption_tokens=MAX_LENGTH)


def build_blip2(task: Task) -> History:
    """Teach queries, Q-Former, projection and OPT on the training split, as ``world/xe`` is."""
    with seeded(task.name, task.seed):
        captioner = make_blip2(task.needs["world/blip2-backbone"])
    data = TrainingData(load_world("train", size=task.size), Collate({captioner.name: pixels}))
    history = task.fit(XE(captioner, captions_per_image=CAPTIONS_PER_IMAGE), data)
    captioner.eval().save(task.folder)
    return history
