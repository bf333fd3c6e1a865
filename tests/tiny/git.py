"""GIT, small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import CLIPImageProcessorPil, GitConfig, GitForCausalLM

from pictures import CAPTIONS
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny_models import _finish, bert_tokenizer, redraw


def tiny_git(
    folder: Path | None = None,
    *,
    captions: Sequence[str] = CAPTIONS,
    vocab: int | None = 64,
    width: int = 32,
    vision_width: int = 16,
    std: float = 0.25,
    eos_logit: float = 4.0,
    seed: int = 0,
    **options,
) -> HuggingFaceCaptioner:
    """A ``GitForCausalLM`` of 5 image states in eval mode, saved to ``folder`` first if one is given."""
    tokenizer = bert_tokenizer(captions, vocab)
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4}
    tower = layers | {"hidden_size": vision_width, "intermediate_size": 2 * vision_width}
    config = GitConfig(
        vision_config=tower | {"image_size": 32, "patch_size": 16},
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        max_position_embeddings=96,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
        **layers,
    )
    model = GitForCausalLM(config)
    redraw(model, std=std, seed=seed)
    with torch.no_grad():
        model.output.bias[3] += eos_logit
    processor = CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    return _finish(model, processor, tokenizer, folder, options)
