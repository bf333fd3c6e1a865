"""BLIP-2 with OPT and with T5, small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import processors
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    BlipImageProcessorPil,
    OPTConfig,
    T5Config,
)

from pictures import CAPTIONS
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny_models import redraw, word_tokenizer

PROMPT = "a photo of"


def tiny_blip2(
    folder: Path | None = None,
    *,
    language: str = "opt",
    captions: Sequence[str] = CAPTIONS,
    vocab: int = 80,
    width: int = 32,
    std: float = 0.25,
    eos_logit: float = 4.0,
    seed: int = 0,
    **options,
) -> HuggingFaceCaptioner:
    """A ``Blip2ForConditionalGeneration`` with 4 queries in eval mode, saved to ``folder`` first if one is given."""
    tokenizer = word_tokenizer([*captions, PROMPT], vocab - 1)
    template = {"opt": "<s> $A", "t5": "$A </s>"}[language]
    specials = [("<s>", 1), ("</s>", 3)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(template, None, specials)
    processor = Blip2Processor(BlipImageProcessorPil(size={"height": 32, "width": 32}), tokenizer, num_query_tokens=4)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "num_attention_heads": 4}
    tower = sizes | {"image_size": 32, "patch_size": 16}
    qformer = sizes | {"vocab_size": 50, "encoder_hidden_size": width, "cross_attention_frequency": 1}
    config = Blip2Config(
        vision_config=tower,
        qformer_config=qformer,
        text_config=_text(language, len(tokenizer), width),
        num_query_tokens=4,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    config.use_decoder_only_language_model = language == "opt"
    model = Blip2ForConditionalGeneration(config)
    redraw(model, std=std, seed=seed)
    _favour_eos(model, language, eos_logit)
    parts = (model, processor.image_processor, processor.tokenizer)
    if folder is None:
        return HuggingFaceCaptioner.from_parts(*parts, processor=processor, **options).eval()
    HuggingFaceCaptioner.from_parts(*parts, processor=processor).save(Path(folder))
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()


def _text(language: str, vocabulary: int, width: int) -> OPTConfig | T5Config:
    if language == "t5":
        return T5Config(
            vocab_size=vocabulary,
            d_model=width,
            d_kv=8,
            d_ff=2 * width,
            num_layers=2,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=3,
        )
    return OPTConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        ffn_dim=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        word_embed_proj_dim=width,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=3,
        pad_token_id=0,
    )


def _favour_eos(model: Blip2ForConditionalGeneration, language: str, amount: float) -> None:
    """No head here has a bias: shift a last norm along EOS's own direction, or scale EOS's row."""
    with torch.no_grad():
        row = model.language_model.lm_head.weight[3]
        if language == "opt":
            norm = model.language_model.get_decoder().final_layer_norm
            norm.bias += amount * row / row.square().sum()
        else:
            row *= amount
