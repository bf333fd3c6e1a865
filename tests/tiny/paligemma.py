"""PaliGemma 1 and 2, small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import (
    Gemma2Config,
    GemmaConfig,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

from pictures import CAPTIONS
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny.prompted import finish, gemma_tokenizer


def tiny_paligemma(
    folder: Path | None = None,
    *,
    captions: Sequence[str] = CAPTIONS,
    vocab: int = 128,
    width: int = 32,
    vision_width: int = 16,
    version: str = "gemma",
    std: float = 0.25,
    eos_logit: float = 4.0,
    seed: int = 0,
    **options,
) -> HuggingFaceCaptioner:
    """A ``PaliGemmaForConditionalGeneration`` of 4 image states in eval mode, saved to ``folder`` first if one is given.

    ``version`` names the language model; "gemma2" has soft caps and a sliding window shorter than its prefix.
    ``eos_logit`` multiplies the logit of EOS, so that captions end early. The vocabulary is 1152 tokens larger than
    ``vocab``: the processor adds them, and captions seldom have one.
    """
    tokenizer = gemma_tokenizer([*captions, "caption en"], vocab, ["<image>"])
    pixels = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    pixels.image_seq_length = 4
    processor = PaliGemmaProcessor(pixels, tokenizer)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4}
    text = sizes | {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "bos_token_id": 1,
        "eos_token_id": 3,
        "pad_token_id": 0,
    }
    soft = {
        "final_logit_softcapping": 8.0,
        "attn_logit_softcapping": 5.0,
        "sliding_window": 5,
        "query_pre_attn_scalar": 8,
    }
    tower = sizes | {"hidden_size": vision_width, "intermediate_size": 2 * vision_width, "vision_use_head": False}
    config = PaliGemmaConfig(
        vision_config=SiglipVisionConfig(**tower, image_size=32, patch_size=16),
        text_config=GemmaConfig(**text) if version == "gemma" else Gemma2Config(**text, **soft),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        projection_dim=width,
        hidden_size=width,
    )
    model = PaliGemmaForConditionalGeneration(config)
    return finish(
        model, processor, folder, options, std=std, seed=seed, eos=3, factor=eos_logit, seldom=slice(vocab, None)
    )
