"""The two families of the COCO recipes and a listener, made tiny by their configurations alone.

As in the checkpoints they stand for, GPT-2 cuts captions into byte-level pieces and has one special token that starts,
ends and pads; BLIP cuts them into word pieces and starts at [DEC]. Each has its own kind of image processor. Weights are
drawn as wide as layers this narrow need: with the usual 0.02 nothing of a photo would reach the captions at first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    BlipImageProcessorPil,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2TokenizerFast,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTImageProcessorPil,
    ViTModel,
)

from listeners.tiny_listeners import clip_parts
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.listeners.clip import ClipListener
from tiny_models import bert_tokenizer

END = "<|endoftext|>"
SIDE, PATCH = 32, 8
TOWER = {"num_hidden_layers": 2, "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH}
STD = 0.1


def byte_tokenizer(captions: Sequence[str]) -> GPT2TokenizerFast:
    """GPT-2's kind of tokenizer, its merges learned from the captions."""
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(captions, vocab_size=1500, min_frequency=1, show_progress=False, special_tokens=[END])
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    return GPT2TokenizerFast(tokenizer_object=learned._tokenizer, **names)


def vit_gpt2(folder: Path, captions: Sequence[str], *, width: int = 64, seed: int = 0) -> Path:
    """A ViT and a GPT-2 with everything around them, written to ``folder``."""
    torch.manual_seed(seed)
    tokenizer = byte_tokenizer(captions)
    sizes = TOWER | {"hidden_size": width, "intermediate_size": 2 * width, "initializer_range": STD}
    end = tokenizer.eos_token_id
    ends = {"bos_token_id": end, "eos_token_id": end}
    text = {"vocab_size": len(tokenizer), "n_positions": 96, "n_embd": width, "n_layer": 2, "n_head": 4}
    text["initializer_range"] = STD
    decoder = GPT2LMHeadModel(GPT2Config(**text, **ends, add_cross_attention=True))
    model = VisionEncoderDecoderModel(encoder=ViTModel(ViTConfig(**sizes)), decoder=decoder)
    model.config.decoder_start_token_id = model.config.eos_token_id = model.config.pad_token_id = end
    return write(folder, model, ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}), tokenizer)


def blip(folder: Path, captions: Sequence[str], *, width: int = 64, seed: int = 0) -> Path:
    """A BLIP with everything around it, written to ``folder``."""
    torch.manual_seed(seed)
    tokenizer = bert_tokenizer([" ".join(re.findall(r"\w+|[^\w\s]", caption)) for caption in captions])
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "initializer_range": STD}
    text = sizes | {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": len(tokenizer),
        "encoder_hidden_size": width,
        "max_position_embeddings": 96,
        "bos_token_id": 5,
        "sep_token_id": 3,
        "pad_token_id": 0,
        "is_decoder": True,
        "use_cache": True,
    }
    model = BlipForConditionalGeneration(
        BlipConfig(text_config=text, vision_config=sizes | TOWER, projection_dim=16, initializer_range=STD)
    )
    return write(folder, model, BlipImageProcessorPil(size={"height": SIDE, "width": SIDE}), tokenizer)


def write(folder: Path, model, image_processor, tokenizer) -> Path:
    """The parts as a folder that ``from_pretrained`` reads, by transformers alone."""
    for part in (model, image_processor, tokenizer):
        part.save_pretrained(folder)
    return folder


MAKERS = {"vit_gpt2": vit_gpt2, "blip": blip}


def load(folder: Path, **options) -> HuggingFaceCaptioner:
    """The captioner in a folder, in eval mode."""
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()


def clip(folder: Path, captions: Sequence[str]) -> Path:
    """A CLIP that reads photos at 16 pixels and the captions' own word pieces, written to ``folder``."""
    tokenizer = byte_tokenizer(captions)
    tokenizer.pad_token = END
    ClipListener.from_parts(*clip_parts(words=tokenizer), prefix="").save(folder)
    return folder
