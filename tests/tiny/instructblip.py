"""InstructBLIP with OPT, with T5 and with a Llama as Vicuna is one, small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import processors
from transformers import (
    BlipImageProcessorPil,
    InstructBlipConfig,
    InstructBlipForConditionalGeneration,
    InstructBlipProcessor,
    LlamaConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    T5Config,
)

from pictures import CAPTIONS
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny.blip2 import _favour_eos, _text
from tiny.prompted import llama_tokenizer
from tiny_models import bert_tokenizer, redraw, word_tokenizer

PROMPT = "a short image description:"


def tiny_instructblip(
    folder: Path | None = None,
    *,
    language: str = "opt",
    captions: Sequence[str] = CAPTIONS,
    vocab: int = 120,
    width: int = 32,
    std: float = 0.25,
    eos_logit: float = 4.0,
    seed: int = 0,
    **options,
) -> HuggingFaceCaptioner:
    """An ``InstructBlipForConditionalGeneration`` with 4 queries in eval mode, saved to ``folder`` first if given."""
    tokenizer = _tokenizer(language, [*captions, PROMPT], vocab - 1)
    images = BlipImageProcessorPil(size={"height": 32, "width": 32})
    processor = InstructBlipProcessor(images, tokenizer, bert_tokenizer([*captions, PROMPT]), num_query_tokens=4)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = InstructBlipConfig(
        vision_config=sizes | {"image_size": 32, "patch_size": 16},
        qformer_config=sizes | {"vocab_size": 60, "encoder_hidden_size": width, "max_position_embeddings": 32},
        text_config=_language(language, len(tokenizer), width),
        num_query_tokens=4,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    model = InstructBlipForConditionalGeneration(config)
    redraw(model, std=std, seed=seed)
    _favour_eos(model, language, eos_logit)
    if folder is None:
        return HuggingFaceCaptioner.from_parts(model, images, tokenizer, processor=processor, **options).eval()
    HuggingFaceCaptioner.from_parts(model, images, tokenizer, processor=processor).save(Path(folder))
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()


def _tokenizer(language: str, texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    if language == "llama":
        return llama_tokenizer(texts, size)
    tokenizer = word_tokenizer(texts, size)
    template = {"opt": "<s> $A", "t5": "$A </s>"}[language]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        template, None, [("<s>", 1), ("</s>", 3)]
    )
    return tokenizer


def _language(language: str, vocabulary: int, width: int) -> LlamaConfig | OPTConfig | T5Config:
    if language != "llama":
        return _text(language, vocabulary, width)
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=3,
        pad_token_id=0,
    )
