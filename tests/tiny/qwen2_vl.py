"""Qwen2-VL, small; what it shares with Qwen2.5-VL and Qwen3-VL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer, Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLImageProcessorPil

from pictures import CAPTIONS
from tellapart.captioners.families.qwen_vl import Qwen2VL
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny_models import redraw

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
SPECIALS += ["<|video_pad|>"]
PAD, EOS = 0, 2
PATCH = {"patch_size": 8, "temporal_patch_size": 2}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}

# The published template, as far as one image or video and one prompt need it.
CHAT_TEMPLATE = """
{%- for message in messages -%}
SYSTEM{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string %}{{ message['content'] }}
{%- else %}
{%- for content in message['content'] %}
{%- if content['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif content['type'] == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif 'text' in content %}{{ content['text'] }}
{%- endif %}
{%- endfor %}
{%- endif %}{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""
SYSTEM = """{%- if loop.first and message['role'] != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
"""


def qwen_tokenizer(captions: Sequence[str], size: int, *, system: bool) -> Qwen2Tokenizer:
    """Byte-level pairs learned from captions and prompt: pad ``<|endoftext|>``, eos ``<|im_end|>``.

    Without ``system``, the template writes no system turn, as Qwen3-VL's.
    """
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIALS, show_progress=False)
    prompt = Qwen2VL.plain_template.format(image="", prompt=Qwen2VL.default_prompt)
    for token in SPECIALS:
        prompt = prompt.replace(token, "")
    learned.train_from_iterator([*captions, *[" " + caption for caption in captions], prompt], trainer)
    model = learned_pairs(learned)
    return Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=model["merges"],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIALS[1:],
        chat_template=CHAT_TEMPLATE.replace("SYSTEM", SYSTEM if system else ""),
    )


def learned_pairs(tokenizer: Tokenizer) -> dict[str, Any]:
    """Vocabulary and merges of a trained tokenizer."""
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}


def assembled(
    config_class: Any,
    model_class: Any,
    folder: Path | None,
    *,
    vision: dict[str, Any],
    text: dict[str, Any],
    captions: Sequence[str],
    vocab: int,
    std: float,
    eos_logit: float,
    seed: int,
    max_pixels: int,
    options: dict[str, Any],
) -> HuggingFaceCaptioner:
    """Any of the family: the model drawn wide, its processors, saved and loaded if a folder is given."""
    # As in the published ones, the model has more rows than the tokenizer has words.
    tokenizer = qwen_tokenizer(captions, vocab - 3, system=config_class.model_type != "qwen3_vl")
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("vision_start", "vision_end")}
    text = {"vocab_size": vocab, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2} | text
    config = config_class(
        vision_config=PATCH | {"spatial_merge_size": 2, "num_heads": 4} | vision,
        text_config=text | {"rope_parameters": dict(ROPE), "max_position_embeddings": 256, "pad_token_id": PAD},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        **{f"{name}_token_id": token for name, token in ids.items()},
    )
    model = model_class(config)
    redraw(model, std=std, seed=seed + 1)
    favour_eos(model, eos_logit)
    # What the published ones say; the penalties must not survive.
    model.generation_config.update(eos_token_id=[EOS, PAD], pad_token_id=PAD, repetition_penalty=1.5, do_sample=True)
    processor = Qwen2VLImageProcessorPil(**PATCH, merge_size=2, min_pixels=16 * 16, max_pixels=max_pixels)
    if folder is None:
        return HuggingFaceCaptioner.from_parts(model, processor, tokenizer, **options).eval()
    HuggingFaceCaptioner.from_parts(model, processor, tokenizer).save(Path(folder))
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()


def favour_eos(model: Any, amount: float) -> None:
    """About ``amount`` on the logit of EOS: no part has a bias, so a channel of the text is held constant and read."""
    body = model.model.language_model
    with torch.no_grad():
        body.embed_tokens.weight[:, 0] = 2.0
        for layer in body.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[EOS, 0] = amount


def tiny_qwen2_vl(
    folder: Path | None = None,
    *,
    captions: Sequence[str] = CAPTIONS,
    vocab: int = 160,
    width: int = 32,
    std: float = 0.25,
    eos_logit: float = 8.0,
    seed: int = 0,
    max_pixels: int = 64 * 64,
    **options,
) -> HuggingFaceCaptioner:
    """A ``Qwen2VLForConditionalGeneration`` in eval mode, saved to ``folder`` first if one is given."""
    return assembled(
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        folder,
        vision={"depth": 2, "embed_dim": 32, "hidden_size": width, "mlp_ratio": 2},
        text={"hidden_size": width, "intermediate_size": 2 * width, "bos_token_id": None, "eos_token_id": EOS},
        captions=captions,
        vocab=vocab,
        std=std,
        eos_logit=eos_logit,
        seed=seed,
        max_pixels=max_pixels,
        options=options,
    )
