"""What is logged of drawn captions: spreads only where an image has several."""

import torch

from tellapart.objectives.common import rollout_logs
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
