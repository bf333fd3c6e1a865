"""The words of the world, and a tokenizer over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tellapart.world import spec
from tellapart.world.grammar import (
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    PLURAL_WORDS,
    SHAPE_WORDS,
    SIZE_WORDS,
    TEXTURE_WORDS,
    plural,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# The end token must not have id 2: CLIP's text tower takes that for a sign of its first, faulty configurations and then
# pools at the largest id instead of at the end.
SPECIAL_TOKENS = ("<pad>", "<bos>", "<unk>", "<eos>")
MAX_LENGTH = 40
"""The longest caption of three objects has 36 words; with its two special tokens it fits."""

MAX_NEW_TOKENS = 38
"""The same without the special tokens, with two words to spare: what a captioner may write."""


def _words() -> list[str]:
    sources = (
        [word for prefix in spec.PREFIXES for word in prefix.split()],
        ["a", "an", *spec.NUMBERS, *SIZE_WORDS, *TEXTURE_WORDS, *COLOUR_WORDS],
        [spec.ANY_SHAPE, plural(spec.ANY_SHAPE), *SHAPE_WORDS, *PLURAL_WORDS],
        [word for relation in spec.RELATIONS for word in relation.split()],
        [spec.SYNONYMS["and"], "in", "the", *spec.ROWS, *spec.COLUMNS],
        ["on", *BACKGROUND_WORDS, "background"],
    )
    return list(dict.fromkeys(word for source in sources for word in source))


WORDS = _words()
"""Every word of captions, full descriptions and alternative texts."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer: pad 0, bos 1, unk 2, eos 3, then ``WORDS``.

    Texts become ``<bos> words <eos>``; ``add_special_tokens=False`` leaves the words alone. Decoding gives the words back,
    one space apart.
    """
    return tokenizer_of(WORDS, MAX_LENGTH)


def tokenizer_of(
    words: Sequence[str], longest: int, *, joins_commas: bool = False, keeps_marks: bool = False
) -> PreTrainedTokenizerFast:
    """A word-level tokenizer: pad 0, bos 1, unk 2, eos 3, then ``words``.

    Args:
        words: distinct ones.
        longest: most tokens of a text.
        joins_commas: decode without a space before commas.
        keeps_marks: cut texts at white space only, for words with hyphens and apostrophes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pad, bos, unk, eos = SPECIAL_TOKENS
    ids = {word: i for i, word in enumerate((*SPECIAL_TOKENS, *words))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unk))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if keeps_marks else pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}", special_tokens=[(bos, ids[bos]), (eos, ids[eos])]
    )
    if joins_commas:
        tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        unk_token=unk,
        eos_token=eos,
        model_max_length=longest,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def text_tower(tokenizer: PreTrainedTokenizerFast, *, longest: int = MAX_LENGTH) -> dict[str, int]:
    """Settings of a CLIP text tower that reads the world's words: what ``CLIPTextConfig`` takes."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": longest,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
