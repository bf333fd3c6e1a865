"""A reward for using what is known of an image, as far as the image confirms it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tellapart.lengths import WORD
from tellapart.listeners.pairs import PairMatcher, require_probabilities
from tellapart.ranges import OpenUnitFloat, in_range
from tellapart.rewards.claims import probability_of_match
from tellapart.types import Rollout

SMALL_WORDS = frozenset(
    (
        *(
            "a",
            "an",
            "the",
            "and",
            "or",
            "but",
            "as",
            "at",
            "by",
            "for",
            "from",
            "in",
            "into",
            "of",
            "on",
            "to",
            "with",
        ),
        *(
            "are",
            "be",
            "has",
            "have",
            "is",
            "was",
            "were",
            "will",
            "it",
            "its",
            "our",
            "s",
            "so",
            "than",
            "that",
            "their",
        ),
        *("them", "they", "this", "we", "you", "your"),
    )
)
"""Words of a context that no image can confirm: our list."""

TEMPLATE = "a photo of {word}"


def context_words(text: str) -> list[str]:
    """The different words of a text in lower case, without small words and numbers."""
    found = (word.casefold() for word in WORD.findall(text))
    return list(dict.fromkeys(word for word in found if word not in SMALL_WORDS and not word.isdigit()))


class ConfirmedContext:
    """Share of the words of an image's context that the image confirms and the caption says, 0 to 1.

    ``(1 / |W|) sum_{w in W} said(w) confirmed(w)``: W are the different words of the context without small words and numbers,
    ``said`` is 1 where the caption has the word, ``confirmed`` is 1 where a matcher gives the image and "a photo of w" a
    probability of a match of ``least`` or more. A word that the image does not confirm adds nothing, said or not. It is not a
    penalty either: mix the reward with truth. An image without context words gives 0. Words are compared as they are spelt:
    "boots" does not say "boot".

    Args:
        matcher: a frozen matching head or a model that is asked a question.
        least: lowest probability (0 to 1) that confirms a word.
        template: what the matcher reads, with ``{word}``.

    Raises:
        ValueError: ``least`` is not between 0 and 1, or ``template`` has no place for the word.
        UsageError: the matcher is a dual encoder.

    Example:
        >>> reward = ConfirmedContext(ItmMatcher.from_pretrained("Salesforce/blip-itm-base-coco"))
        >>> batch = Collate({**captioner_inputs, **matcher_inputs})([Example("1", image, context="Red boots, new in")])
        >>> reward(captioner.tokenize(batch, ["red boots on a shelf"], torch.tensor([0])))  # 2 of red, boots, new
        tensor([0.6667])
    """

    @in_range
    def __init__(self, matcher: PairMatcher, *, least: OpenUnitFloat = 0.5, template: str = TEMPLATE) -> None:
        if "{word}" not in template:
            raise ValueError(f"template={template!r} must hold {{word}}")
        require_probabilities(matcher, "the matcher of reward context")
        self.matcher, self.least, self.template = matcher, least, template

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, 0 to 1, without gradient."""
        contexts = rollout.batch.contexts or [""] * len(rollout.batch)
        known = [context_words(context) for context in contexts]
        said = [set(context_words(text)) for text in rollout.texts]
        images = rollout.image.tolist()
        asked = list(
            dict.fromkeys(
                (image, word)
                for image, words in zip(images, said, strict=True)
                for word in known[image]
                if word in words
            )
        )
        confirmed = self._confirmed(rollout, asked)
        values = [
            sum((image, word) in confirmed for word in known[image] if word in words) / max(len(known[image]), 1)
            for image, words in zip(images, said, strict=True)
        ]
        return torch.tensor(values, dtype=torch.float32, device=rollout.image.device)

    def _confirmed(self, rollout: Rollout, asked: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
        """Those (image, word) that the matcher confirms; only words that some caption says are asked."""
        if not asked:
            return set()
        texts = [self.template.replace("{word}", word) for _, word in asked]
        pairs = Rollout.of_texts(rollout.batch, [place for place, _ in asked], texts)
        probability = probability_of_match(self.matcher.rollout_logits(pairs))
        return {pair for pair, sure in zip(asked, probability.tolist(), strict=True) if sure >= self.least}
