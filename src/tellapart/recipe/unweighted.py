"""Models from their configurations alone, on the device ``meta``: all shapes, no weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.loading import DTYPES
from tellapart.errors import UsageError, reason_of
from tellapart.model_size import require_possible
from tellapart.recipe.models import model_folder

if TYPE_CHECKING:
    from tellapart.recipe.sections import CaptionerSection


class _Words:
    """Replaces a tokenizer, which a configuration alone does not have: some ids, one per word."""

    bos_token_id, eos_token_id, pad_token_id, chat_template = 0, 2, 1, None
    all_special_ids = (0, 1, 2)

    def __len__(self) -> int:
        return len(self.get_vocab())

    def get_vocab(self) -> dict[str, int]:
        return {"<s>": 0, "<pad>": 1, "</s>": 2, "a": 3}

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def __call__(self, text: str, **how: Any) -> dict[str, list[int]]:
        return {"input_ids": [0, *(3 for _ in text.split())]}


def unweighted_captioner(
    section: CaptionerSection, known: Mapping[str, dict[str, Any]]
) -> tuple[HuggingFaceCaptioner, dict[str, Tensor]]:
    """A captioner as a recipe has it, and the tensors of two images.

    Args:
        section: names a folder with a ``config.json``, or one of ``known``.
        known: name -> configuration.

    Raises:
        UsageError: the configuration cannot be read, or its family needs more than a configuration.
    """
    import transformers
    from transformers import AutoConfig, AutoModelForImageTextToText

    from tellapart.captioners.adapters import LoraOptions

    name = section.model_name_or_path
    given = known.get(name)
    if given is None:
        require_possible(str(Path(name).expanduser()))
    try:
        config = (
            AutoConfig.from_pretrained(str(Path(name).expanduser()))
            if given is None
            else transformers.AutoConfig.for_model(**given)
        )
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config, dtype=DTYPES[section.dtype])
        model.name_or_path = name
        captioner = HuggingFaceCaptioner.from_parts(
            model,
            None,
            _Words(),
            prompt=section.prompt or "",
            train=section.train,
            lora=None if section.lora is None else LoraOptions(**vars(section.lora)),
            gradient_checkpointing=section.gradient_checkpointing,
            logits_budget=section.logits_budget,
            use_liger_kernel=section.use_liger_kernel,
        )
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = reason_of(error)
        raise UsageError(
            f"{name} has no weights, and its memory does not follow from its configuration ({reason}): give a whole model."
        ) from error
    vision: Any = getattr(config, "vision_config", None) or getattr(config, "encoder", SimpleNamespace(image_size=224))
    side = vision.image_size
    return captioner, {"pixel_values": torch.empty(2, 3, side, side, dtype=DTYPES[section.dtype], device="meta")}


def configured_model(path: str, dtype: str, *, size: str) -> nn.Module:
    """A frozen model of the class that its configuration names.

    Raises:
        UsageError: the configuration cannot be read, or names no class of transformers.
    """
    import transformers

    folder = str(Path(model_folder(path, size=size)).expanduser())
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        kind = getattr(transformers, (config.architectures or [""])[0])
        with torch.device("meta"):
            return kind._from_config(config, dtype=DTYPES[dtype]).requires_grad_(False)
    except (OSError, ValueError, AttributeError) as error:
        reason = reason_of(error)
        raise UsageError(
            f"the configuration of {path} cannot be read ({reason}): name a folder that has it."
        ) from error
