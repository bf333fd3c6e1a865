"""The world's captioner before post-training: a frozen image tower and a small GPT-2, taught by teacher forcing."""

from __future__ import annotations

from typing import Any

from tellapart.captioners.fresh import with_gpt2
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.objectives.xe import XE
from tellapart.world import build_tokenizer, load_world
from tellapart.world.backbone import image_processor, pixels
from tellapart.world.schedule import History, Task
from tellapart.world.vocabulary import MAX_LENGTH

CAPTIONS_PER_IMAGE = 2


def make_captioner(
    tower: Any, *, tokenizer: Any = None, max_length: int = MAX_LENGTH, width: int = 192, layers: int = 2
) -> HuggingFaceCaptioner:
    """A ``VisionEncoderDecoderModel`` of ``tower`` (frozen) and a GPT-2 with random weights.

    Args:
        tower: of images, or of clips.
        tokenizer: None takes that of the still pictures.
        max_length: longest caption in tokens.
        width: of GPT-2.
        layers: of GPT-2.
    """
    from transformers import GPT2Config

    tokenizer = build_tokenizer() if tokenizer is None else tokenizer
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=max_length + 8,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        n_inner=4 * width,
        add_cross_attention=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = with_gpt2(tower, config, tokenizer)
    return HuggingFaceCaptioner.from_parts(model, image_processor(), tokenizer, max_caption_tokens=max_length)


def build_xe(task: Task) -> History:
    """Teach the captioner on the training split, with the one tower that the stage needs."""
    from transformers import CLIPVisionModel

    with seeded(task.name, task.seed):
        (tower,) = task.needs.values()
        captioner = make_captioner(CLIPVisionModel.from_pretrained(tower))
    data = TrainingData(load_world("train", size=task.size), Collate({captioner.name: pixels}))
    history = task.fit(XE(captioner, captions_per_image=CAPTIONS_PER_IMAGE), data)
    captioner.eval().save(task.folder)
    return history
