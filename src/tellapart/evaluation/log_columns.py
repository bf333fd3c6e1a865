"""What each key of ``metrics.jsonl`` is called and how it is printed."""

from __future__ import annotations

from tellapart.evaluation.columns import Column, describe
from tellapart.verdicts.rules import EVAL_PREFIX, NON_FINITE

PART_PREFIXES = ("rewards/", "reference/rewards/")
"""Parts of a mixed reward as applied: weighted, so that they sum to the reward; of drawn captions and of human ones."""

TRAINING_COLUMNS = {
    column.key: column
    for column in (
        Column("loss", "loss", 1, 4, 0, "What is minimised; of sequence-level methods its size says little by itself."),
        Column("reward", "reward", 1, 4, 1, "Mean reward of the captions drawn for training."),
        Column("reward_std", "reward, spread", 1, 4, 0, "Deviation among the captions of one image."),
        Column(
            "frac_reward_zero_std",
            "no spread %",
            100,
            1,
            -1,
            "Captions in groups of equal rewards, which teach nothing.",
        ),
        Column("kl", "log-ratio to the start", 1, 4, 0, "Log-probability of the captions, less the start model's."),
        Column("entropy", "entropy", 1, 4, 0, "Of the next word, along the captions."),
        Column("margin", "margin", 1, 4, 0, "How far the winner is ahead of the others, relative to the start model."),
        Column("completions/mean_length", "drawn length", 1, 1, 0, "Tokens of the captions drawn for training."),
        Column("completions/clipped_ratio", "drawn, cut %", 100, 1, -1, "Drawn captions cut at the longest length."),
        Column("reference/reward", "reward of human captions", 1, 4, 0, "Mean reward of the captions people wrote."),
        Column(
            "discriminator/accuracy", "discriminator right %", 100, 1, 0, "Human and drawn captions it tells apart."
        ),
        Column(NON_FINITE, "not finite", 1, 0, -1, "1 where training stopped at a number that was not finite."),
    )
}

FIRST = ("loss", "reward", "kl", "completions/mean_length", "completions/clipped_ratio", "reward_std")
"""What a reader looks at first of what training logs."""


def describe_log(key: str) -> Column:
    """How to print a key of the log; one nobody described is printed as it is, with four digits."""
    if key.startswith(EVAL_PREFIX):
        return describe(key.removeprefix(EVAL_PREFIX))
    return TRAINING_COLUMNS.get(key) or Column(key, key, digits=4)
