"""LLaVA, small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from pictures import CAPTIONS
from tellapart.captioners.families.llava import Llava
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny.prompted import finish, llama_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\n' }}{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endif %}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""In the manner of LLaVA 1.5: images first, then words."""


def tiny_llava(
    folder: Path | None = None,
    *,
    captions: Sequence[str] = CAPTIONS,
    vocab: int = 128,
    width: int = 32,
    vision_width: int = 16,
    layers: int | list[int] = -2,
    strategy: str = "default",
    template: str | None = TEMPLATE,
    std: float = 0.25,
    eos_logit: float = 2.5,
    seed: int = 0,
    **options,
) -> HuggingFaceCaptioner:
    """A ``LlavaForConditionalGeneration`` (CLIP of three layers, Llama) in eval mode, saved to ``folder`` if given.

    ``eos_logit`` multiplies the logit of EOS, so that captions end early.
    """
    tokenizer = llama_tokenizer([*captions, Llava.default_prompt, "USER: ASSISTANT:\n"], vocab, ["<image>"])
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False),
        tokenizer,
        patch_size=16,
        vision_feature_select_strategy=strategy,
        num_additional_image_tokens=1,
        chat_template=template,
    )
    sizes = {"num_attention_heads": 4, "num_hidden_layers": 2}
    tower = sizes | {"hidden_size": vision_width, "intermediate_size": 2 * vision_width, "num_hidden_layers": 3}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**tower, image_size=32, patch_size=16),
        text_config=LlamaConfig(
            **sizes,
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=2 * width,
            num_key_value_heads=2,
            max_position_embeddings=512,
            bos_token_id=1,
            eos_token_id=3,
            pad_token_id=0,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=4,
        vision_feature_layer=layers,
        vision_feature_select_strategy=strategy,
    )
    model = LlavaForConditionalGeneration(config)
    return finish(model, processor, folder, options, std=std, seed=seed, eos=3, factor=eos_logit)
