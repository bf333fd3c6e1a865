"""Word-level tokenizers made from captions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
"""Padding, what a captioner reads first, the end of a caption, and any rare word: ids 0 to 3."""

WORD = r"[\p{L}\p{M}\p{N}]+(?:['\-][\p{L}\p{M}\p{N}]+)*"
"""A word: letters and digits, with hyphens and apostrophes inside it. Everything else only separates words."""


def build_tokenizer(captions: Iterable[str], *, min_count: int = 5) -> PreTrainedTokenizerFast:
    """A tokenizer of the words that are in ``captions`` at least ``min_count`` times; others become ``<unk>``.

    Captions are lower-cased, and punctuation is left out, as the metrics leave it out. Words are numbered by falling
    count, equals by the alphabet, so the same captions in any order give the same ids. Decoding puts one space between
    words. No special token is added to a text. (Vocabularies of "more than 5 times", such as the 9,487 words of COCO in
    the code that PSST builds on, are ``min_count=6``.)

    Args:
        captions: the training captions.
        min_count: rarer words are unknown.

    Raises:
        UsageError: no word is frequent enough.
    """
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    reader = _reading(Tokenizer(models.WordLevel({}, unk_token=SPECIAL[3])))
    counts: Counter[str] = Counter()
    for caption in captions:
        text = reader.normalizer.normalize_str(caption)
        counts.update(word for word, _ in reader.pre_tokenizer.pre_tokenize_str(text))
    words = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
    if not words:
        raise UsageError(
            f"no word is in the training captions {min_count} times or more: lower captioner.new.min_count."
        )
    ids = {word: i for i, word in enumerate([*SPECIAL, *words])}
    pad, bos, eos, unk = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=_reading(Tokenizer(models.WordLevel(ids, unk_token=unk))),
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def _reading(tokenizer: Any) -> Any:
    """``tokenizer`` with the way texts are cut into words."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("\u2019", "'"), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)
    return tokenizer
