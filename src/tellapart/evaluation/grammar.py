"""How grammatical a trained head finds captions."""

from __future__ import annotations

from collections.abc import Mapping

from tellapart.evaluation.measures import Measured
from tellapart.rewards.grammar import Grammar

METRIC = "grammatical_head"


class GrammarMeasure:
    """``grammatical_head``: the mean of the head's probabilities that a caption is grammatical, in percent, and each caption's.

    It is what a classifier says that was taught with artificial faults: a figure to lay runs side by side, not a share of
    grammatical captions. Where the head was the reward, it says nothing of fluency.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.measured_by = {METRIC: grammar.identity()}

    def __call__(self, captions: Mapping[str, str]) -> Measured:
        """The metric, and a row per image."""
        rows = (100.0 * self.grammar.probabilities(list(captions.values())).double().cpu()).tolist()
        return {METRIC: sum(rows) / len(rows)}, {METRIC: rows}
