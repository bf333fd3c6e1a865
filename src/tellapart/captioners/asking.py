"""Requests per caption: its length and the image's context, next to the prompt of all images.

A family whose prompt is a text is asked in words. Any other family reads one more token, which comes before the caption like a
prompt. Neither is scored.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.base import ASKED, CONTEXT, Family
from tellapart.captioners.families.prefix import PrefixDecoder
from tellapart.draws import base_seed, uniforms
from tellapart.errors import UsageError
from tellapart.lengths import LengthBuckets, count_words, length_tokens

BUCKET = "bucket"
"""Name of the images' buckets in ``Encoded.inputs``."""

REQUEST = "Use {length}."
"""What is added to a prompt of words, with the bucket's lengths."""


def prepare(family: Family, buckets: LengthBuckets, *, adapted: bool) -> None:
    """Give a family what it needs to be asked for a bucket: nothing if it is asked in words, else tokens.

    Args:
        family: its tokenizer and its model's embeddings grow where the tokens are new.
        buckets: of lengths.
        adapted: whether an adapter trains, which neither trains nor saves embeddings.

    Raises:
        UsageError: the tokens cannot be added, or there are tokens for other buckets.
    """
    if family.asks_in_words:
        family.caption_lead = _lead_after(family, filled(family.prompt, "", REQUEST.format(length=buckets.phrase(0))))
        return
    if adapted:
        raise UsageError(
            "captioner.length_buckets adds tokens to the vocabulary of this captioner, which an adapter does not save: leave "
            "captioner.lora out, or choose a captioner that is asked in words, such as a LLaVA or Qwen-VL."
        )
    if not family.length_ids:
        family.add_tokens(length_tokens(len(buckets)))
    if len(family.length_ids) != len(buckets):
        raise UsageError(
            f"the captioner has tokens for {len(family.length_ids)} length buckets, but captioner.length_buckets makes "
            f"{len(buckets)}: leave it out to take the saved buckets."
        )


def _lead_after(family: Family, prompt: str) -> str:
    """The text between a prompt and a caption."""
    other = copy.copy(family)
    other.prompt = prompt
    other.special_tokens()
    return other.caption_lead


def drawn_buckets(ids: Sequence[str], buckets: LengthBuckets) -> Tensor:
    """``[B]`` buckets drawn evenly, keyed by image id and one number from torch's global generator."""
    numbers = uniforms(ids, 1, base_seed())[:, 0]
    return (numbers * len(buckets)).long().clamp(max=len(buckets) - 1)


def own_buckets(texts: Sequence[str], buckets: LengthBuckets) -> Tensor:
    """``[N]`` buckets of the lengths that captions have."""
    return torch.tensor([buckets.of(count_words(text)) for text in texts], dtype=torch.long)


def filled(prompt: str, context: str, request: str) -> str:
    """A prompt with an image's context in its place, and a request after it."""
    return f"{prompt.replace(CONTEXT, context)} {request}".rstrip() if request else prompt.replace(CONTEXT, context)


def harmless(tokenizer: Any, text: str) -> str:
    """A text for a prompt without the tokenizer's special tokens, which could begin another turn or image."""
    for token in sorted({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}):
        text = text.replace(token, " ") if token.strip() else text
    return text


def with_context(prompt: str) -> str:
    """The prompt with a place for an image's context, at its end unless it has one."""
    return prompt if CONTEXT in prompt else f'{prompt} Known of the image: "{CONTEXT}".'.lstrip()


def reads_context(family: Family) -> bool:
    """Whether the prompt has a place for an image's context.

    Raises:
        UsageError: it has, but the family's prompt is the same for all images.
    """
    found = CONTEXT in family.prompt
    if found and not family.asks_in_words:
        raise UsageError(
            f"a {family.model.config.model_type} captioner cannot read a context per image: leave {CONTEXT} out of the "
            "prompt, or choose a BLIP-2 with OPT, LLaVA, PaliGemma, Idefics3, SmolVLM or Qwen-VL."
        )
    return found


def asked(
    family: Family,
    encoded: Encoded,
    inputs: dict[str, Tensor],
    image: Tensor,
    *,
    buckets: LengthBuckets | None,
    bucket: Tensor | None,
    contexts: Sequence[str],
    context_of: Tensor | None = None,
) -> tuple[Encoded, Tensor]:
    """States with a row for each image and request, and the row of each caption.

    Args:
        family: the model.
        encoded: states of B images.
        inputs: what they were encoded from.
        image: ``[N]``, the image of each caption.
        buckets: of lengths, if captions are asked for them.
        bucket: ``[N]``, that of each caption; none without buckets.
        contexts: of B images, or none at all.
        context_of: ``[N]``, the image whose context is named with each caption; by default its own.
    """
    none = torch.zeros_like(image)
    keys = [image, none if bucket is None else bucket.to(image.device), image if context_of is None else context_of]
    requests, row = torch.stack(keys, dim=1).unique(dim=0, return_inverse=True)
    of = requests[:, 0]
    if not family.asks_in_words:
        ids = torch.tensor(family.length_ids, device=image.device)[requests[:, 1]]
        chosen = encoded.select(of)
        return replace(chosen, inputs={**chosen.inputs, ASKED: ids[:, None]}), row
    assert isinstance(family, PrefixDecoder), "a family that is asked in words"
    prompts = [
        filled(
            family.prompt,
            harmless(family.tokenizer, contexts[place]) if contexts else "",
            "" if buckets is None else REQUEST.format(length=buckets.phrase(which)),
        )
        for _, which, place in requests.tolist()
    ]
    return family.with_prompts(encoded, inputs, of, family.prompt_rows(encoded.inputs, of.tolist(), prompts)), row
