"""Captioners that begin with random weights and the words of the training captions."""

from __future__ import annotations

from collections.abc import Iterable

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.lstm import LSTMS
from tellapart.captioners.vocabulary import build_tokenizer
from tellapart.errors import UsageError


def fresh_captioner(
    model_type: str,
    captions: Iterable[str],
    *,
    feature_size: int,
    hidden_size: int = 512,
    dropout: float = 0.5,
    min_count: int = 5,
    max_caption_tokens: int = 20,
) -> HuggingFaceCaptioner:
    """An untrained recurrent captioner over image features; its weights come from torch's global generator.

    Args:
        model_type: ``fc_lstm`` or ``att2in2``.
        captions: the training captions, whose words it will know.
        feature_size: width of the features.
        hidden_size: width of words, states and attention.
        dropout: before and after the LSTM, where a training leaves dropout on.
        min_count: words that are rarer become ``<unk>``.
        max_caption_tokens: human captions are cut to this many words, their end counted.

    Raises:
        UsageError: the type is unknown, a number cannot be used, or no word is frequent enough.
    """
    if model_type not in LSTMS:
        raise UsageError(
            f"new/{model_type} is no captioner to start from: choose {' or '.join(f'new/{k}' for k in LSTMS)}."
        )
    if hidden_size < 1 or min_count < 1 or not 0 <= dropout < 1:
        raise UsageError(
            f"captioner.new has hidden_size {hidden_size}, min_count {min_count}, dropout {dropout}: give whole numbers of "
            "at least 1, and a dropout from 0 to below 1."
        )
    tokenizer = build_tokenizer(captions, min_count=min_count)
    config_class, model_class = LSTMS[model_type]
    config = config_class(
        feature_size=feature_size, hidden_size=hidden_size, vocab_size=len(tokenizer), dropout=dropout
    )
    if hasattr(config, "attention_size"):
        config.attention_size = hidden_size
    return HuggingFaceCaptioner.from_parts(model_class(config), None, tokenizer, max_caption_tokens=max_caption_tokens)
