"""LLaVA-NeXT-Video, small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaNextImageProcessorPil,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
)

from pictures import CAPTIONS
from tellapart.captioners.families.llava_next_video import LlavaNextVideo
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny.prompted import llama_tokenizer
from tiny_models import redraw


def tiny_llava_next_video(
    folder: Path | None = None,
    *,
    captions: Sequence[str] = CAPTIONS,
    vocab: int = 128,
    std: float = 0.25,
    eos_logit: float = 2.5,
    seed: int = 0,
    pool: str = "average",
    crop: int = 64,
    **options,
) -> HuggingFaceCaptioner:
    """A ``LlavaNextVideoForConditionalGeneration`` (CLIP of three layers, Llama) in eval mode, saved to ``folder`` if given.

    A frame of 64 x 64 pixels is 4 x 4 states, pooled to 2 x 2 tokens. ``eos_logit`` multiplies the logit of EOS.
    """
    words = [*captions, LlavaNextVideo.default_prompt, "USER: ASSISTANT:\n"]
    tokenizer = llama_tokenizer(words, vocab, ["<image>", "<video>"])
    processor = LlavaNextImageProcessorPil(
        size={"shortest_edge": 64}, crop_size={"height": crop, "width": crop}, image_grid_pinpoints=[[64, 64]]
    )
    sizes = {"num_attention_heads": 4, "num_hidden_layers": 2}
    tower = sizes | {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3}
    config = LlavaNextVideoConfig(
        vision_config=CLIPVisionConfig(**tower, image_size=64, patch_size=16),
        text_config=LlamaConfig(
            **sizes,
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_key_value_heads=2,
            max_position_embeddings=512,
            bos_token_id=1,
            eos_token_id=3,
            pad_token_id=0,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=[[64, 64]],
        spatial_pool_mode=pool,
    )
    model = LlavaNextVideoForConditionalGeneration(config)
    redraw(model, std=std, seed=seed)
    with torch.no_grad():
        model.lm_head.weight[3] *= eos_logit
    if folder is None:
        return HuggingFaceCaptioner.from_parts(model, processor, tokenizer, **options).eval()
    HuggingFaceCaptioner.from_parts(model, processor, tokenizer).save(Path(folder))
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()
