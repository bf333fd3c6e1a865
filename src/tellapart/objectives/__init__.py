"""The training methods: one file each, listed here by name. Nothing heavy is imported until a method is chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """What the command line needs to know of a method before importing it.

    Args:
        summary: one line for the table of methods.
        target: ``module:class`` of the objective.
        needs_references: whether training images must have human captions, whatever the reward.
        needs_reward: whether the objective takes a reward.
        paper: where the method comes from.
    """

    summary: str
    target: str
    needs_references: bool
    needs_reward: bool
    paper: str


METHODS: dict[str, Method] = {
    "xe": Method(
        "teacher forcing on human captions: the start model of every other method",
        "tellapart.objectives.xe:XE",
        needs_references=True,
        needs_reward=False,
        paper="Williams & Zipser (1989); captioning: Vinyals et al. (2015)",
    ),
    "scst": Method(
        "REINFORCE with a greedy, leave-one-out or beam-mean baseline, optionally held to the start model by KL",
        "tellapart.objectives.scst:SCST",
        needs_references=False,
        needs_reward=True,
        paper="Rennie et al. (2017)",
    ),
    "dico": Method(
        "the best of k beams against the weighted others, relative to the start model",
        "tellapart.objectives.dico:DiCO",
        needs_references=False,
        needs_reward=True,
        paper="Moratelli et al. (2024)",
    ),
}
