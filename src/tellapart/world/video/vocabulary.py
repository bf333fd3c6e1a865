"""The words of the moving world, and a tokenizer over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.world import spec as still
from tellapart.world.grammar import BACKGROUND_WORDS, COLOUR_WORDS, SHAPE_WORDS, SIZE_WORDS, TEXTURE_WORDS
from tellapart.world.video import spec
from tellapart.world.video.grammar import AND, THEN, VERB_WORDS
from tellapart.world.vocabulary import tokenizer_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MAX_LENGTH = 48
"""The longest caption of three objects, two of which move, has 43 tokens; with its two special ones it fits."""

MAX_NEW_TOKENS = 46
"""What a captioner may write."""


def _words() -> list[str]:
    sources = (
        [word for prefix in spec.PREFIXES for word in prefix.split()],
        ["a", "an", *SIZE_WORDS, *TEXTURE_WORDS, *COLOUR_WORDS, still.ANY_SHAPE, *SHAPE_WORDS],
        ["in", "the", *still.ROWS, *still.COLUMNS],
        [*VERB_WORDS, *spec.DIRECTIONS, ",", THEN, AND],
        ["on", *BACKGROUND_WORDS, "background"],
    )
    return list(dict.fromkeys(word for source in sources for word in source))


WORDS = _words()
"""Every word of captions, and the comma."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer: pad 0, bos 1, unk 2, eos 3, then ``WORDS``; decoding puts no space before a comma."""
    return tokenizer_of(WORDS, MAX_LENGTH, joins_commas=True)
