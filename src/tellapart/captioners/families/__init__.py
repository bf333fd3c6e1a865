"""Model families by the ``model_type`` of their configuration: a class, or a function that chooses one by it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.captioners.families.base import Family, Processors

FAMILIES = {
    "vision-encoder-decoder": "tellapart.captioners.families.encoder_decoder:encoder_decoder",
    "blip": "tellapart.captioners.families.blip:Blip",
    "llava": "tellapart.captioners.families.llava:Llava",
    "llava_next_video": "tellapart.captioners.families.llava_next_video:LlavaNextVideo",
    "paligemma": "tellapart.captioners.families.paligemma:PaliGemma",
    "idefics3": "tellapart.captioners.families.idefics3:Idefics3",
    "smolvlm": "tellapart.captioners.families.idefics3:Idefics3",
    "blip-2": "tellapart.captioners.families.blip2:blip2",
    "florence2": "tellapart.captioners.families.florence2:Florence2",
    "instructblip": "tellapart.captioners.families.instructblip:instructblip",
    "git": "tellapart.captioners.families.git:Git",
    "qwen2_vl": "tellapart.captioners.families.qwen_vl:Qwen2VL",
    "qwen2_5_vl": "tellapart.captioners.families.qwen_vl:Qwen2VL",
    "qwen3_vl": "tellapart.captioners.families.qwen_vl:Qwen3VL",
    "fc_lstm": "tellapart.captioners.families.lstm:FcLstmFamily",
    "att2in2": "tellapart.captioners.families.lstm:AttentiveLstmFamily",
    "updown": "tellapart.captioners.families.lstm:AttentiveLstmFamily",
}


def family_class(config: Any) -> type[Family]:
    """The family that reads models of this configuration.

    Raises:
        UsageError: there is none.
    """
    model_type = config.model_type
    if model_type not in FAMILIES:
        raise UsageError(
            f"model_type {model_type!r} is not a known captioner ({', '.join(sorted(FAMILIES))} are): for another one, "
            "write a CrossDecoder (the decoder attends to the image) or a PrefixDecoder (the image is part of its sequence) "
            "of tellapart.captioners.families - special_tokens, encode, project, embedding, text, logits, vision, lora_targets - "
            "and name it in FAMILIES."
        )
    module, name = FAMILIES[model_type].split(":")
    target = getattr(import_module(module), name)
    return target if isinstance(target, type) else target(config)


def require_several_images(config: Any) -> None:
    """Raise where a prompt to models of this configuration cannot hold several images.

    Raises:
        UsageError: naming families whose prompts can.
    """
    if not family_class(config).several_images:
        raise UsageError(
            f"a captioner of type {config.model_type!r} reads one image per prompt: name a Qwen-VL, Idefics3, SmolVLM or LLaVA, "
            "or leave lookalikes_in_prompt out."
        )


def family_of(model: Any, processors: Processors, prompt: str | None = None) -> Family:
    """``model`` read by its family.

    Raises:
        UsageError: no family knows this type of model, or its configuration lacks a token id.
    """
    family = family_class(model.config)(model, processors, prompt)
    family.require_known_tokens()
    return family
