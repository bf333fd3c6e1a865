"""Qwen2.5-VL, small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from pictures import CAPTIONS
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny.qwen2_vl import EOS, assembled


def tiny_qwen2_5_vl(
    folder: Path | None = None,
    *,
    captions: Sequence[str] = CAPTIONS,
    vocab: int = 160,
    width: int = 32,
    std: float = 0.25,
    eos_logit: float = 4.0,
    seed: int = 0,
    max_pixels: int = 64 * 64,
    **options,
) -> HuggingFaceCaptioner:
    """A ``Qwen2_5_VLForConditionalGeneration`` in eval mode, saved to ``folder`` first if one is given.

    The first layer of its tower sees windows of 2 x 2 tokens only, so that the order of patches matters.
    """
    tower = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": width}
    return assembled(
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        folder,
        vision=tower | {"window_size": 32, "fullatt_block_indexes": [1]},
        text={"hidden_size": width, "intermediate_size": 2 * width, "bos_token_id": None, "eos_token_id": EOS},
        captions=captions,
        vocab=vocab,
        std=std,
        eos_logit=eos_logit,
        seed=seed,
        max_pixels=max_pixels,
        options=options,
    )
