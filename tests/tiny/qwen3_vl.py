"""Qwen3-VL, small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from pictures import CAPTIONS
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny.qwen2_vl import assembled


def tiny_qwen3_vl(
    folder: Path | None = None,
    *,
    captions: Sequence[str] = CAPTIONS,
    vocab: int = 160,
    width: int = 32,
    std: float = 0.25,
    eos_logit: float = 3.0,
    seed: int = 0,
    max_pixels: int = 64 * 64,
    **options,
) -> HuggingFaceCaptioner:
    """A ``Qwen3VLForConditionalGeneration`` in eval mode, saved to ``folder`` first if one is given.

    Two of the three layers of its tower are read by layers of the decoder.
    """
    tower = {"depth": 3, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": width}
    return assembled(
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        folder,
        vision=tower | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
        text={"hidden_size": width, "intermediate_size": 2 * width, "head_dim": width // 4},
        captions=captions,
        vocab=vocab,
        std=std,
        eos_logit=eos_logit,
        seed=seed,
        max_pixels=max_pixels,
        options=options,
    )
