"""The sections of a recipe that say what a captioner is like that begins with random weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NewSection:
    """A recurrent captioner that begins with random weights and the words of the training captions.

    Args:
        hidden_size: width of the words, the LSTM and the attention.
        dropout: before and after the LSTM, where dropout is on.
        min_count: words that occur less often in the training captions are unknown.
        max_caption_tokens: human captions are cut to this many words, their end counted.
    """

    hidden_size: int = 512
    dropout: float = 0.5
    min_count: int = 5
    max_caption_tokens: int = 20


@dataclass(frozen=True, kw_only=True)
class TransformerSection:
    """The captioner of DiCO's paper (Moratelli et al., 2024): a frozen CLIP tower, CLIP's vocabulary, and with random weights an
    encoder on top of the tower and a GPT-2.

    Args:
        tower: the CLIP whose vision tower and vocabulary it takes: a folder, a Hugging Face id or world/listener.
        hidden_size: width of encoder and decoder.
        layers: of the encoder, and of the decoder.
        heads: of each of these layers.
        dropout: in encoder and decoder, where dropout is on.
        max_caption_tokens: human captions are cut to this many tokens, their end counted.
    """

    tower: str = "openai/clip-vit-large-patch14"
    hidden_size: int = 512
    layers: int = 3
    heads: int = 8
    dropout: float = 0.1
    max_caption_tokens: int = 30
