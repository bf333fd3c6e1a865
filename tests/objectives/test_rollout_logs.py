"""What is logged of drawn captions: spreads only where an image has several."""

import pytest
import torch

from tellapart.errors import UsageError
from tellapart.objectives.common import rollout_logs, score
from tellapart.rewards.mix import Mix
from tellapart.types import Batch, Rollout


def drawn(image):
    count = len(image)
    batch = Batch([str(i) for i in range(max(image) + 1)], [[] for _ in range(max(image) + 1)], {})
    mask = torch.ones(count, 2, dtype=torch.bool)
    return Rollout(
        batch, torch.tensor(image), ["a"] * count, torch.tensor([[5, 1]] * count), mask, torch.ones(count).bool()
    )


def test_spread_among_the_captions_of_an_image():
    logs = rollout_logs(drawn([0, 0, 1, 1]), torch.tensor([1.0, 3.0, 2.0, 2.0]))
    torch.testing.assert_close(logs["reward_std"], torch.tensor([2.0**0.5, 2.0**0.5, 0.0, 0.0]))
    assert logs["frac_reward_zero_std"].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_one_caption_an_image_has_no_spread_to_tell_of():
    """Else every run of a method that draws one would look as if its rewards taught nothing."""
    logs = rollout_logs(drawn([0, 1]), torch.tensor([1.0, 2.0]))
    assert set(logs) == {"reward", "completions/mean_length", "completions/clipped_ratio"}


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (torch.ones(1), r"a tensor of shape \[1\]"),
        (torch.tensor(0.5), r"a tensor of shape \[\]"),
        (torch.ones(3, 1), r"a tensor of shape \[3, 1\]"),
        ([1.0, 2.0, 3.0], "a list"),
    ],
)
def test_a_reward_is_one_number_per_caption(values, found):
    """One number for all was added to every caption, and taught nothing."""

    def brevity(rollout):
        return values

    with pytest.raises(UsageError, match=f"reward 'brevity' gives {found} for 3 captions: let it give a tensor"):
        score(brevity, drawn([0, 0, 1]))
    if isinstance(values, torch.Tensor):
        with pytest.raises(UsageError, match=f"reward 'short' gives {found} for 3 captions"):
            score(Mix({"long": lambda rollout: torch.ones(3), "short": brevity}), drawn([0, 0, 1]))
