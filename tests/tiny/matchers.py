"""BLIP and BLIP-2 with image-text matching heads, small, saved to a folder as their hub repositories are."""

from __future__ import annotations

from pathlib import Path

from transformers import (
    Blip2Config,
    Blip2ForImageTextRetrieval,
    BlipConfig,
    BlipForImageTextRetrieval,
    BlipImageProcessorPil,
)

from pictures import CAPTIONS
from tiny_models import bert_tokenizer, redraw

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = SIZES | {"image_size": 32, "patch_size": 16}
WORDS = [*CAPTIONS, "photo of an image dog cat airplane men two"]
LIMIT = 24


def tiny_blip_itm(folder: Path, *, seed: int = 0) -> Path:
    """A ``BlipForImageTextRetrieval``."""
    tokenizer = bert_tokenizer(WORDS)
    text = SIZES | {"vocab_size": len(tokenizer), "encoder_hidden_size": 32, "max_position_embeddings": LIMIT}
    text |= {"bos_token_id": 5, "sep_token_id": 3, "pad_token_id": 0}
    config = BlipConfig(text_config=text, vision_config=VISION, image_text_hidden_size=16)
    return _save(BlipForImageTextRetrieval(config), tokenizer, folder, seed)


def tiny_blip2_itm(folder: Path, *, seed: int = 0) -> Path:
    """A ``Blip2ForImageTextRetrieval`` with 4 queries."""
    tokenizer = bert_tokenizer(WORDS)
    qformer = SIZES | {"vocab_size": len(tokenizer), "encoder_hidden_size": 32, "cross_attention_frequency": 1}
    qformer |= {"max_position_embeddings": LIMIT, "use_qformer_text_input": True, "pad_token_id": 0}
    config = Blip2Config(
        vision_config=VISION,
        qformer_config=qformer,
        num_query_tokens=4,
        image_text_hidden_size=16,
        image_token_index=None,
    )
    return _save(Blip2ForImageTextRetrieval(config), tokenizer, folder, seed)


def _save(model, tokenizer, folder: Path, seed: int) -> Path:
    redraw(model, std=0.25, seed=seed)
    for part in (model, tokenizer, BlipImageProcessorPil(size={"height": 32, "width": 32})):
        part.save_pretrained(folder)
    return folder


TINY_MATCHERS = {"blip": tiny_blip_itm, "blip-2": tiny_blip2_itm}
