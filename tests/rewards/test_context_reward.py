"""The reward on confirmed words of a context, by arithmetic."""

from __future__ import annotations

import math

import pytest
import torch

from tellapart.rewards.context import ConfirmedContext, context_words
from tellapart.types import Batch, Rollout


class Sure:
    """A matcher that is sure of some words of some images."""

    def __init__(self, sure: dict[tuple[str, str], float]) -> None:
        self.sure, self.asked = sure, []

    def rollout_logits(self, rollout: Rollout) -> torch.Tensor:
        pairs = list(zip(rollout.ids(), rollout.texts, strict=True))
        self.asked += pairs
        chances = [self.sure.get((name, text.removeprefix("a photo of ")), 0.01) for name, text in pairs]
        return torch.tensor([[0.0, math.log(chance / (1 - chance))] for chance in chances])


def rollout(contexts: list[str], image: list[int], texts: list[str]) -> Rollout:
    batch = Batch([str(i) for i in range(2)], [[], []], contexts=contexts)
    nothing = torch.zeros((len(texts), 1), dtype=torch.long)
    return Rollout(batch, torch.tensor(image), texts, nothing, nothing.bool(), nothing[:, 0].bool())


def test_words_are_compared_without_small_ones_and_numbers():
    assert context_words("The Red boots, red & new in 2024: the BOOTS'") == ["red", "boots", "new"]


def test_only_what_the_image_confirms_and_the_caption_says_counts():
    matcher = Sure({("0", "red"): 0.9, ("0", "boots"): 0.5, ("0", "sale"): 0.49, ("1", "red"): 0.2})
    contexts = ["Red boots in our spring sale", "red"]
    said = ["red boots", "a spring sale of red dogs", "blue shoes", "red", "RED boots, red boots"]
    reward = ConfirmedContext(matcher)(rollout(contexts, [0, 0, 0, 1, 0], said))
    # red, boots, spring, sale are known of image 0, of which red and boots are confirmed; red is not, of image 1
    assert reward.tolist() == pytest.approx([2 / 4, 1 / 4, 0, 0, 2 / 4])
    assert ("0", "a photo of blue") not in matcher.asked
    assert len(matcher.asked) == len(set(matcher.asked)) == 5


def test_without_a_context_there_is_nothing_to_say():
    matcher = Sure({})
    assert ConfirmedContext(matcher)(rollout([], [0, 1], ["a dog", ""])).tolist() == [0, 0]
    assert ConfirmedContext(matcher)(rollout(["the 12", ""], [0, 1], ["the 12", "a"])).tolist() == [0, 0]
    assert matcher.asked == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"least": 0.0}, "least=0.0 must be between 0 and 1"),
        ({"least": 1.0}, "least=1.0 must be between 0 and 1"),
        ({"template": "a photo"}, "template='a photo' must hold {word}"),
    ],
)
def test_options_that_cannot_be_used(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        ConfirmedContext(Sure({}), **options)
