"""Signs of a failing training, each with its limit and the setting to change.

A rule holds a logged value against an early one of the same log (see ``Rule``), since what is usual differs from data to
data; some have a limit of their own. Apart from the CIDEr floor, which a run's own ``best_floor`` replaces, the limits are rules
of thumb: a verdict says where to look, not what is wrong. docs/how-to/doctor.md tells where each limit comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

# What a rule is: a key, a limit, and the logged value that later ones are held against.

Logged: TypeAlias = tuple[int, float]
"""A step, and what was logged at it."""


def from_first(first: Logged | None, spoken: Logged | None) -> Logged | None:
    """The first logged value, of evaluations that of step 0.

    Args:
        first: that value.
        spoken: the value of the first evaluation of a captioner that forms captions; none before it.
    """
    return first


def from_spoken(first: Logged | None, spoken: Logged | None) -> Logged | None:
    """The first evaluation of a captioner that forms captions: for metrics that are worst, or best, before it does.

    Args:
        first: see ``from_first``.
        spoken: see ``from_first``.
    """
    return spoken


def from_higher(first: Logged | None, spoken: Logged | None) -> Logged | None:
    """The higher of the two: for metrics that an untrained captioner scores low on, so that both step 0 and later gains count.

    Args:
        first: see ``from_first``.
        spoken: see ``from_first``.
    """
    return max((one for one in (first, spoken) if one), key=lambda one: one[1], default=None)


@dataclass(frozen=True)
class Rule:
    """A limit that a logged value must not pass.

    Args:
        name: short; what a program asks for. Rules of one name are one verdict that several keys can give.
        key: of the log.
        limit: the value at the start -> the limit, both on the log's scale.
        above: whether the values above the limit are the wrong ones.
        says: what it means and which setting to change, for a reader who does not know the metric.
        start: which value it is held against: ``from_first``, ``from_spoken`` or ``from_higher``.
        absolute: whether the first value can be wrong already, since the limit does not follow it (everywhere).
        looks: logged values in a row that must be wrong before a warning; single steps of training are noisy.
        rises: a key that must be above its own start meanwhile.
        size: whether the sign of the value does not matter.
        measured_by: the setting that has the key measured, where not every evaluation does.
        change: whether training may be meant to do this, so that it is reported and not warned of.
    """

    name: str
    key: str
    limit: Callable[[float], float]
    above: bool
    says: str
    start: Callable[[Logged | None, Logged | None], Logged | None] = from_first
    absolute: bool = False
    looks: int = 1
    rises: str | None = None
    size: bool = False
    measured_by: str = ""
    change: bool = False

    def wrong(self, value: float, limit: float) -> bool:
        """Whether ``value`` is past the limit."""
        value = abs(value) if self.size else value
        return value > limit if self.above else value < limit


def share(part: float) -> Callable[[float], float]:
    """A limit at ``part`` of the value at the start."""
    return lambda first: part * first


def plus(points: float, most: float = math.inf) -> Callable[[float], float]:
    """A limit ``points`` above (below 0: below) the value at the start, and never above ``most``."""
    return lambda first: min(first + points, most)


def at(value: float) -> Callable[[float], float]:
    """The same limit for every start."""
    return lambda first: value


EVAL_PREFIX = "eval_"
LOG_PREFIX = "doctor/"
"""What keys begin with: of evaluations, and of the doctor's own counts."""

NON_FINITE = f"{LOG_PREFIX}non_finite"
"""Logged as 1 by a training that stops because a number of its is not finite."""

SPEAKS = {"eval_repetition": 50.0, "eval_most_common_caption": 50.0}
"""What an evaluation of a captioner that forms captions has at most. An untrained one repeats one word, or gives
every image the same caption: as it learns, captions get shorter and name more, which is not a fault."""

_SLOWER = "lower learning_rate or max_steps"
_TIE = "tie the captioner to its start (objective.kl_coef or objective.beta, where the method has one)"
_NOTHING_TO_MATCH = (
    "The reward is nearly 0 for all captions: check that data.path's references are in the captions' language and words, or give "
    "reward another part a weight."
)
_NEARLY_0 = {"reward": 1e-4, "rewards/cider_d": 1e-3, "rewards/meteor": 1e-3, "rewards/clip_s": 1e-3}
"""Contrastive rewards go through 0 on their way, so that the sum must be nearer to it than the parts that never are there."""

RULES = (
    Rule(
        "likeness",
        "eval_CIDEr",
        share(0.6),
        False,
        f"Captions no longer read like the references: {_SLOWER}, or {_TIE}.",
        start=from_higher,
    ),
    Rule(
        "grammar",
        "eval_grammatical",
        share(0.9),
        False,
        "The reward does not see grammar: lower learning_rate, or weigh in a part that does (reward.grammar or "
        "reward.language_model).",
        measured_by="data.path world",
        start=from_higher,
    ),
    Rule(
        "grammar head",
        "eval_grammatical_head",
        share(0.9),
        False,
        "A trained head finds the captions less and less grammatical: lower learning_rate, or weigh in reward.grammar.",
        measured_by="evaluation.grammar",
        start=from_higher,
    ),
    Rule(
        "fluency",
        "eval_perplexity",
        share(1.5),
        True,
        f"A language model finds the captions less and less likely: {_TIE}, or weigh in reward.language_model.",
        measured_by="evaluation.language_model",
        start=from_spoken,
    ),
    Rule(
        "unfinished",
        "eval_unfinished",
        plus(5.0),
        True,
        "Captions run into the longest length: raise evaluation.max_new_tokens, or, where that is far above the references' "
        "length, lower learning_rate, since the captioner no longer ends its captions.",
        start=from_spoken,
    ),
    Rule(
        "drawn unfinished",
        "completions/clipped_ratio",
        plus(0.1, 0.5),
        True,
        "Captions drawn for training run into objective.max_new_tokens, so their rewards are of cut sentences: raise it, or "
        "lower learning_rate.",
        absolute=True,
        looks=3,
    ),
    Rule(
        "bad endings",
        "eval_bad_endings",
        plus(5.0),
        True,
        "Captions stop on words like 'a' or 'of': raise objective.max_new_tokens, or lower learning_rate.",
        start=from_spoken,
    ),
    Rule(
        "repetition",
        "eval_repetition",
        plus(20.0),
        True,
        "Captions say the same words again and again: lower learning_rate, or weigh in reward.language_model.",
        start=from_spoken,
    ),
    Rule(
        "longer",
        "eval_mean_length",
        share(1.5),
        True,
        f"Captions grow, so the reward may favour words, not truth: {_SLOWER}, or {_TIE}.",
        change=True,
        start=from_spoken,
    ),
    Rule(
        "shorter",
        "eval_mean_length",
        share(0.67),
        False,
        "Captions shrink, so the reward may favour saying little: lower learning_rate, or change the weights of reward.",
        start=from_spoken,
    ),
    Rule(
        "one caption",
        "eval_most_common_caption",
        plus(20.0),
        True,
        "One caption is given to ever more images, so the captioner collapses: lower learning_rate.",
        start=from_spoken,
    ),
    Rule(
        "few distinct",
        "eval_distinct_captions",
        share(0.75),
        False,
        "Different images get the same captions more and more often: lower learning_rate, or change the weights of reward to "
        "one that tells images apart.",
        start=from_spoken,
    ),
    Rule(
        "image ignored",
        "eval_distinct_captions",
        at(5.0),
        False,
        "Nearly all images share a few captions, so the captioner ignores the image: go back to its start and lower "
        "learning_rate; if it started so, name another captioner.model_name_or_path.",
        absolute=True,
    ),
    Rule(
        "invention",
        "eval_hallucinated",
        plus(5.0),
        True,
        f"Captions name more that their images do not show: {_SLOWER}, or weigh in reward.cider_d.",
        measured_by="data.path world",
        start=from_spoken,
    ),
    Rule(
        "objects",
        "eval_CHAIRs",
        plus(5.0),
        True,
        f"More captions mention objects that their images lack: {_SLOWER}, or weigh in reward.cider_d.",
        measured_by="tellapart.evaluation.further.chair_measure, in Python",
        start=from_spoken,
    ),
    Rule(
        "judge",
        "eval_judge_R@1",
        plus(-2.0),
        False,
        "The reward's listener retrieves better than before and the judge worse, so captions fit one listener alone: lower "
        "learning_rate, or set listener.path to another one.",
        rises="eval_listener_R@1",
        measured_by="evaluation.judge",
        start=from_higher,
    ),
    Rule(
        "no spread",
        "frac_reward_zero_std",
        at(0.9),
        True,
        "The captions of an image get equal rewards, so advantages vanish and nothing is learned: raise objective.temperature or "
        "objective.num_generations, or weigh in a finer reward.",
        absolute=True,
        looks=3,
    ),
    *(
        Rule("zero reward", key, at(limit), False, _NOTHING_TO_MATCH, absolute=True, looks=3, size=True)
        for key, limit in _NEARLY_0.items()
    ),
    Rule(
        "non finite",
        NON_FINITE,
        at(0.5),
        True,
        "A loss, gradient or weight was not finite, so training stopped and no weights of that step were written: lower "
        "learning_rate or turn bf16 off, and look at the images in nonfinite.json.",
        absolute=True,
    ),
)
"""What is looked for in every log; a rule whose key was not logged says nothing."""

JUDGE_FELL = Rule("judge fell", "eval_judge_R@1", plus(-2.0), False, "", start=from_higher)
"""Not a warning on its own: only together with a rising reward."""

WORSE = (
    "grammar",
    "grammar head",
    "fluency",
    "repetition",
    "bad endings",
    "unfinished",
    "judge fell",
    "few distinct",
    "one caption",
)
"""Rules of which one must be broken while the reward rises, for ``hacking``."""

HACKING = "hacking"
HACKING_SAYS = (
    f"The reward rises while the captions get worse, so it is being hacked: lower learning_rate, {_TIE}, or weigh in a part that "
    "sees the fault (reward.language_model, reward.grammar, reward.cider_d)."
)

HACKED = (HACKING, "grammar", "grammar head", "fluency", "unfinished", "few distinct", "judge")
"""Verdicts of which one must last for ``--on_hack`` to act; all are changes for the worse, whatever the start was like."""

FLOOR = "floor"
FLOOR_SAYS = (
    "The run's best_floor asks for more, so no such checkpoint is selected: lower learning_rate, or best_floor."
)


def log_key(name: str) -> str:
    """The key that a verdict is logged under."""
    return LOG_PREFIX + name.replace(" ", "_")
