"""What the small prompted captioners share: tokenizers that write spaces as the published ones do, and saving."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny_models import redraw

SPECIALS = ["<pad>", "<s>", "<unk>", "</s>"]
"""Ids 0 to 3."""


def byte_tokenizer(texts: Sequence[str], size: int, extra: Sequence[str] = (), *, bos: bool = False):
    """Byte-level BPE, as of Llama 3, SmolLM and Qwen: a word after a space is another token than the word alone.

    Args:
        texts: what to train on.
        size: tokens, ``extra`` counted; the smallest is 256 and the special ones.
        extra: further special tokens.
        bos: put ``<s>`` before every text unless told not to.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(tokenizer, texts, size, extra, alphabet, bos=bos)


def llama_tokenizer(texts: Sequence[str], size: int, extra: Sequence[str] = ()):
    """BPE as of Llama 1 and 2: every text is written as if a space stood before it, and BOS is put in front."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return _trained(tokenizer, [word for text in texts for word in text.split()], size, extra, ["\n"], bos=True)


def gemma_tokenizer(texts: Sequence[str], size: int, extra: Sequence[str] = ()):
    """BPE as of Gemma: spaces are letters, nothing is put before a text, and a line break is a token of its own."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    words = [[text.split()[0], *(f" {word}" for word in text.split()[1:])] for text in texts]
    return _trained(tokenizer, list(chain.from_iterable(words)), size, extra, ["\n"], bos=False)


def _trained(tokenizer: Tokenizer, texts, size: int, extra, alphabet: list[str], *, bos: bool):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*SPECIALS, *extra], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Words that never occur, so that the vocabulary has the size that was asked for.
    tokenizer.add_tokens([AddedToken(f"word{i}") for i in range(size - tokenizer.get_vocab_size())])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        unk_token="<unk>",
        eos_token="</s>",
        additional_special_tokens=list(extra),
    )


def finish(
    model,
    processor,
    folder: Path | None,
    options: dict,
    *,
    std: float,
    seed: int,
    eos: int,
    factor: float,
    seldom: slice = slice(0),
) -> HuggingFaceCaptioner:
    """Wide weights, then a captioner in eval mode, saved to ``folder`` first if one is given.

    The heads have no bias: the row of ``eos`` is multiplied by ``factor``, so that it is often the likeliest and often
    the least likely; the rows ``seldom`` are divided by 10.
    """
    redraw(model, std=std, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std / 4)
        model.lm_head.weight[eos] *= factor
        model.lm_head.weight[seldom] /= 10
    parts = (model, processor.image_processor, processor.tokenizer)
    if folder is None:
        return HuggingFaceCaptioner.from_parts(*parts, processor=processor, **options).eval()
    HuggingFaceCaptioner.from_parts(*parts, processor=processor).save(Path(folder))
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()
