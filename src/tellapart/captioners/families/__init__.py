"""Model families by the ``model_type`` of their configuration."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.captioners.families.base import Family

FAMILIES = {
    "vision-encoder-decoder": "tellapart.captioners.families.encoder_decoder:EncoderDecoder",
    "blip": "tellapart.captioners.families.blip:Blip",
}


def family_class(model_type: str) -> type[Family]:
    """The family that reads models of this type.

    Raises:
        UsageError: there is none.
    """
    if model_type not in FAMILIES:
        raise UsageError(
            f"model_type {model_type!r} is not a known captioner ({', '.join(sorted(FAMILIES))} are): for another one, "
            "write a tellapart.captioners.families.base.Family (encode, prefix, decode, logits, beam_search, "
            "special_tokens, vision, lora_targets) and name it in FAMILIES."
        )
    module, name = FAMILIES[model_type].split(":")
    return getattr(import_module(module), name)


def family_of(model: Any, tokenizer: Any) -> Family:
    """``model`` read by its family.

    Raises:
        UsageError: no family knows this type of model, or its configuration lacks a token id.
    """
    return family_class(model.config.model_type)(model, tokenizer)
