"""A tiny captioner of clips: a CLIP tower over four frames, and GPT-2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil, CLIPVisionConfig, GPT2Config

from pictures import CAPTIONS, images
from tellapart.captioners.fresh import with_gpt2
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.clip_frames import ClipFrames, ClipFramesConfig
from tellapart.types import Batch
from tiny_models import redraw, word_tokenizer

FRAMES = 4


def tiny_tower(*, layers: int = 1, seed: int = 0, differences: bool = False) -> ClipFrames:
    """Width 32, four tokens and a class token per frame; wide random weights."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    tower = CLIPVisionConfig(**sizes, image_size=32, patch_size=16).to_dict()
    model = ClipFrames(
        ClipFramesConfig(
            tower=tower,
            num_frames=FRAMES,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=64,
            dropout=0.0,
            differences=differences,
        )
    )
    redraw(model, std=0.25, seed=seed)
    return model.eval()


def tiny_frames(folder: Path | None = None, *, layers: int = 1, seed: int = 0, **options: Any) -> HuggingFaceCaptioner:
    """The captioner, saved to ``folder`` first if one is given."""
    tokenizer = word_tokenizer(CAPTIONS, 64)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=96, n_embd=32, n_layer=1, n_head=4, add_cross_attention=True
    )
    model = with_gpt2(tiny_tower(layers=layers, seed=seed), config, tokenizer)
    redraw(model.decoder, std=0.25, seed=seed)
    with torch.no_grad():
        row = model.decoder.lm_head.weight[3]
        model.decoder.transformer.ln_f.bias += 4.0 * row / row.square().sum()  # captions end early
    processor = CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    captioner = HuggingFaceCaptioner.from_parts(model, processor, tokenizer, **({} if folder else options))
    if folder is None:
        return captioner.eval()
    captioner.save(folder)
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()


def clips(count: int, *, seed: int = 0) -> list[list[Image.Image]]:
    """Lists of four different pictures."""
    found = images(count * FRAMES, seed=seed)
    return [found[start : start + FRAMES] for start in range(0, len(found), FRAMES)]


def arrays(count: int, *, seed: int = 0) -> list[np.ndarray]:
    """The same as arrays ``[4, 32, 32, 3]``."""
    return [np.stack([np.asarray(frame) for frame in frames]) for frames in clips(count, seed=seed)]


def clip_batch(captioner: HuggingFaceCaptioner, count: int, *, seed: int = 0) -> Batch:
    """``count`` processed clips with two captions each."""
    references = [[CAPTIONS[(2 * i) % 64], CAPTIONS[(2 * i + 9) % 64]] for i in range(count)]
    inputs = {captioner.name: captioner.process(clips(count, seed=seed))}
    return Batch([f"clip-{seed}-{i}" for i in range(count)], references, inputs)
