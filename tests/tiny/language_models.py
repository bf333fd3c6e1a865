"""Language models, small."""

from __future__ import annotations

from pathlib import Path

from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
)

from pictures import CAPTIONS
from tiny.prompted import byte_tokenizer, llama_tokenizer
from tiny_models import redraw

VOCABULARY = 300
WIDTH = 16
FAMILIES = ("gpt2", "opt", "llama")


def tiny_language_model(family: str, *, seed: int = 0, std: float = 0.3, positions: int = 64):
    """``(model, tokenizer)`` of two layers; GPT-2's start is its end, OPT's and Llama's tokenizers add BOS by themselves."""
    return {"gpt2": _gpt2, "opt": _opt, "llama": _llama}[family](seed, std, positions)


def saved(folder: Path, family: str = "gpt2", **options) -> Path:
    """The same on disk."""
    for part in tiny_language_model(family, **options):
        part.save_pretrained(folder)
    return folder


def _gpt2(seed: int, std: float, positions: int):
    tokenizer = byte_tokenizer(CAPTIONS, VOCABULARY)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, bos_token="</s>", eos_token="</s>", unk_token="</s>"
    )
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=positions, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=3, eos_token_id=3
    )
    return _drawn(GPT2LMHeadModel(config), seed, std), tokenizer


def _opt(seed: int, std: float, positions: int):
    sizes = {"hidden_size": WIDTH, "word_embed_proj_dim": WIDTH, "ffn_dim": 2 * WIDTH, "num_hidden_layers": 2}
    config = OPTConfig(
        **sizes,
        vocab_size=VOCABULARY,
        num_attention_heads=2,
        max_position_embeddings=positions,
        dropout=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=3,
    )
    return _drawn(OPTForCausalLM(config), seed, std), byte_tokenizer(CAPTIONS, VOCABULARY, bos=True)


def _llama(seed: int, std: float, positions: int):
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=positions,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=3,
    )
    return _drawn(LlamaForCausalLM(config), seed, std), llama_tokenizer(CAPTIONS, VOCABULARY)


def _drawn(model, seed: int, std: float):
    redraw(model, std=std, seed=seed)
    return model.eval()
