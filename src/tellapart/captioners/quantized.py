"""Language models whose frozen weights are held in 8 or 4 bits, by bitsandbytes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any, Literal

from tellapart.captioners.families import family_class
from tellapart.captioners.families.prefix import PrefixDecoder
from tellapart.errors import UsageError

Quantization = Literal["int8", "nf4"]

WHOLE = (
    "vision_model",
    "vision_tower",
    "visual",
    "qformer",
    "language_projection",
    "multi_modal_projector",
    "connector",
    "lm_head",
)
"""Modules that stay as they are: all but the language model, and its head, whose rounding would move every word."""


def quantization_config(quantization: Quantization, config: Any, dtype: Any) -> Any:
    """The configuration with which transformers loads a captioner's language model quantized.

    Args:
        quantization: ``int8`` (LLM.int8, Dettmers et al. 2022) or ``nf4`` (QLoRA, Dettmers et al. 2023).
        config: of the captioner.
        dtype: of what is not quantised, and of the products.

    Raises:
        UsageError: bitsandbytes is not installed, the word is unknown, or the captioner has no language model of its own.
    """
    kinds: dict[str, Callable[[], dict[str, Any]]] = {
        "int8": lambda: {"load_in_8bit": True},
        "nf4": lambda: {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": dtype},
    }
    if quantization not in kinds:
        raise UsageError(f"quantization={quantization!r} is unknown: choose {' or '.join(kinds)}.")
    if not issubclass(family_class(config), PrefixDecoder):
        raise UsageError(
            f"quantization is for captioners around a language model, such as BLIP-2 with OPT, and a {config.model_type!r} is "
            "none: leave it out."
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError(
            f"quantization={quantization} needs bitsandbytes: pip install 'tellapart[quantization]', or leave it out."
        )
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(**kinds[quantization](), llm_int8_skip_modules=list(WHOLE))


def device_map() -> dict[str, int] | None:
    """Where rounded weights are put: on this process's own GPU, not on the first for all; on the CPU where there is none."""
    import torch

    return {"": int(os.environ.get("LOCAL_RANK", "0"))} if torch.cuda.is_available() else None


def keep_differentiable(model: Any) -> None:
    """Have 4-bit layers stay as they can be differentiated: on some CPUs bitsandbytes packs them for good in the first pass
    without gradients, as drawing is."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
