"""Tiny CLIP and SigLIP models by configuration, with a word-level tokenizer built in the process."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
)

WORDS = [
    "a",
    "photo",
    "depicts",
    "the",
    "red",
    "dog",
    "cat",
    "on",
    "big",
    "blue",
    "bus",
    "and",
    "two",
    "of",
    "runs",
    "sofa",
]
LIMIT = 12
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = SIZES | {"image_size": 16, "patch_size": 8}


def tokenizer(specials=("<pad>", "<bos>", "<unk>", "<eos>"), *, template="<bos> $A <eos>") -> PreTrainedTokenizerFast:
    """One id a word, special tokens first in the order given."""
    vocabulary = {word: i for i, word in enumerate([*specials, *WORDS])}
    if "<eos>" not in vocabulary:
        vocabulary["<eos>"] = len(vocabulary)
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if template:
        used = [(token, vocabulary[token]) for token in template.split() if token != "$A"]
        core.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )


def clip_parts(*, seed: int = 0, eos: int | None = None, words: PreTrainedTokenizerFast | None = None):
    torch.manual_seed(seed)
    words = words or tokenizer()
    text = SIZES | {
        "vocab_size": len(words),
        "max_position_embeddings": LIMIT,
        "eos_token_id": words.eos_token_id if eos is None else eos,
        "bos_token_id": words.bos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=VISION, projection_dim=8))
    sizes = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    return model, CLIPImageProcessor(**sizes), words


def siglip_parts(*, seed: int = 0):
    torch.manual_seed(seed)
    words = tokenizer(template="$A <eos>")
    text = SIZES | {"vocab_size": len(words), "max_position_embeddings": LIMIT, "projection_size": 16}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=VISION))
    return model, SiglipImageProcessor(size={"height": 16, "width": 16}), words


PARTS = {"clip": clip_parts, "siglip": siglip_parts}
