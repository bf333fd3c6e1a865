"""Idefics3 and SmolVLM, small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlamaConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessorPil,
)

from pictures import CAPTIONS
from tellapart.captioners.families.idefics3 import Idefics3
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny.prompted import byte_tokenizer, finish

TEMPLATE = (
    "<s>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""In the manner of Idefics3: it writes BOS itself, and ends every turn."""

SPECIALS = [
    "<image>",
    "<fake_token_around_image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
]
KINDS = {
    "idefics3": (Idefics3ForConditionalGeneration, Idefics3Config, Idefics3ImageProcessorPil),
    "smolvlm": (SmolVLMForConditionalGeneration, SmolVLMConfig, SmolVLMImageProcessorPil),
}


def tiny_idefics3(
    folder: Path | None = None,
    *,
    kind: str = "idefics3",
    captions: Sequence[str] = CAPTIONS,
    vocab: int = 400,
    width: int = 32,
    vision_width: int = 16,
    std: float = 0.25,
    eos_logit: float = 4.0,
    seed: int = 0,
    **options,
) -> HuggingFaceCaptioner:
    """An ``Idefics3ForConditionalGeneration`` (or SmolVLM) in eval mode, saved to ``folder`` first if one is given.

    The longest side of an image is made 32 pixels, then it is cut into tiles of 16 (an image of 2:1 into 1 x 2, a square
    one into 2 x 2) and one small whole: each tile has 4 x 4 patches and 4 states. ``eos_logit`` multiplies the logit of
    the end of an utterance, so that captions end early.
    """
    model_class, config_class, processor_class = KINDS[kind]
    texts = [*captions, Idefics3.default_prompt, "User: Assistant:\n"]
    tokenizer = byte_tokenizer(texts, vocab, SPECIALS, bos=True)
    pixels = processor_class(size={"longest_edge": 32}, max_image_size={"longest_edge": 16})
    processor = Idefics3Processor(pixels, tokenizer, image_seq_len=4, chat_template=TEMPLATE)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4}
    tower = sizes | {
        "hidden_size": vision_width,
        "intermediate_size": 2 * vision_width,
        "image_size": 16,
        "patch_size": 4,
    }
    end = tokenizer.convert_tokens_to_ids("<end_of_utterance>")
    text = LlamaConfig(
        **sizes,
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=[3, end],
        pad_token_id=0,
    )
    config = config_class(
        vision_config=tower,
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    return finish(model_class(config), processor, folder, options, std=std, seed=seed, eos=end, factor=eos_logit)


def tiny_smolvlm(folder: Path | None = None, **options) -> HuggingFaceCaptioner:
    """A ``SmolVLMForConditionalGeneration`` with Idefics3's processor around its image processor."""
    return tiny_idefics3(folder, kind="smolvlm", **options)
