"""Signs in a run's log that training goes wrong, each told in a plain sentence.

The rules need nothing but ``metrics.jsonl``. They compare an evaluation with the one before training, since what is usual
differs from data to data. Apart from the CIDEr floor, which a run's own ``best_floor`` replaces, the limits are rules of thumb:
an alarm says where to look, not what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tellapart.evaluation.log_columns import EVAL_PREFIX, describe_log

Curve = Sequence[tuple[int, float]]
"""``(step, value)`` pairs by rising step."""


@dataclass(frozen=True)
class Rule:
    """A limit that a logged value must not pass.

    Args:
        name: short, unique; what a program asks for.
        key: of the log.
        limit: value at the first step -> the limit, both on the log's scale.
        above: whether the values above the limit are the wrong ones.
        says: what it means and where to look, for a reader who does not know the metric.
    """

    name: str
    key: str
    limit: Callable[[float], float]
    above: bool
    says: str

    def wrong(self, value: float, limit: float) -> bool:
        """Whether ``value`` is past the limit."""
        return value > limit if self.above else value < limit


@dataclass(frozen=True)
class Alarm:
    """A rule that was broken.

    Args:
        rule: its name.
        key: of the log.
        step: the first step past the limit.
        limit: on the log's scale.
        lasting: whether the last logged value is past it, too.
        text: what it means, and the values.
        points: the steps and values past the limit.
    """

    rule: str
    key: str
    step: int
    limit: float
    lasting: bool
    text: str
    points: tuple[tuple[int, float], ...]


def _share(part: float) -> Callable[[float], float]:
    return lambda start: part * start


def _plus(points: float) -> Callable[[float], float]:
    return lambda start: start + points


RULES = (
    Rule(
        "likeness",
        "eval_CIDEr",
        _share(0.6),
        False,
        "Captions no longer read like the references: train less or slower.",
    ),
    Rule("grammar", "eval_grammatical", _share(0.9), False, "The reward does not see grammar: weigh in one that does."),
    Rule(
        "fluency",
        "eval_perplexity",
        _share(1.5),
        True,
        "A language model finds the captions less and less likely: tie them more to the start model.",
    ),
    Rule(
        "unfinished",
        "eval_unfinished",
        _plus(5.0),
        True,
        "Captions run into the longest length: the captioner unlearns to stop, or max_new_tokens is too small.",
    ),
    Rule(
        "drawn unfinished",
        "completions/clipped_ratio",
        _plus(0.1),
        True,
        "Captions drawn for training run into max_new_tokens: their rewards are of cut sentences.",
    ),
    Rule("bad endings", "eval_bad_endings", _plus(5.0), True, "Captions stop on words like 'a' or 'of'."),
    Rule("repetition", "eval_repetition", _plus(10.0), True, "Captions say the same words again and again."),
    Rule(
        "longer", "eval_mean_length", _share(1.5), True, "Captions grow: the reward may pay for words, not for truth."
    ),
    Rule("shorter", "eval_mean_length", _share(0.67), False, "Captions shrink: the reward may pay for saying little."),
    Rule(
        "one caption",
        "eval_most_common_caption",
        _plus(10.0),
        True,
        "One caption is given to ever more images: the captioner collapses, and a lower learning rate often helps.",
    ),
    Rule("invention", "eval_hallucinated", _plus(5.0), True, "Captions name more that their images do not show."),
    Rule("objects", "eval_CHAIRs", _plus(5.0), True, "More captions mention objects that their images lack."),
)
"""What is looked for in every log; a rule whose metric was not logged says nothing."""

JUDGE_FALLS = 2.0
"""Points of recall that the judge may lose while the reward's own listener gains."""


def find_alarms(curves: Mapping[str, Curve], *, floor: Mapping[str, float] | None = None) -> list[Alarm]:
    """The rules that a log broke, by the step at which they first were.

    Args:
        curves: key of the log -> values over steps; the first value is what later ones are compared to.
        floor: metric -> share of its first value that must be kept, such as a run's ``best_floor``; it replaces the rule of
            the same metric.
    """
    kept = {EVAL_PREFIX + name.removeprefix(EVAL_PREFIX): share for name, share in (floor or {}).items()}
    rules = [replace(r, limit=_share(kept[r.key])) if r.key in kept and not r.above else r for r in RULES]
    known = {rule.key for rule in rules if not rule.above}
    rules += [Rule("floor", key, _share(part), False, _FLOOR) for key, part in kept.items() if key not in known]
    found = [alarm for rule in rules if (alarm := _broken(rule, curves.get(rule.key, ()))) is not None]
    divided = _judge_disagrees(curves)
    return sorted([*found, *([divided] if divided else [])], key=lambda alarm: alarm.step)


_FLOOR = "The run's best_floor asks for more, so no such checkpoint is selected."


def _broken(rule: Rule, curve: Curve) -> Alarm | None:
    if len(curve) < 2:
        return None
    limit = rule.limit(curve[0][1])
    past = tuple((step, value) for step, value in curve[1:] if rule.wrong(value, limit))
    if not past:
        return None
    return _alarm(rule.name, rule.key, curve, past, limit, rule.says)


def _alarm(name: str, key: str, curve: Curve, past: tuple[tuple[int, float], ...], limit: float, says: str) -> Alarm:
    column = describe_log(key)
    step, value = past[0]
    (began, first), (end, last) = curve[0], curve[-1]
    values = [f"{column.text(first)} at step {began}", f"{column.text(value)} at step {step}"]
    values += [f"{column.text(last)} at the last, {end}"] if step != end else []
    text = f"{says} {column.label}: {', '.join(values)}; the limit is {column.text(limit)}."
    return Alarm(name, key, step, limit, past[-1][0] == end, text, past)


def _judge_disagrees(curves: Mapping[str, Curve]) -> Alarm | None:
    """The reward's own listener hears captions better than before, a judge that is no part of the reward worse."""
    key = f"{EVAL_PREFIX}judge_R@1"
    judge, listener = curves.get(key, ()), dict(curves.get(f"{EVAL_PREFIX}listener_R@1", ()))
    if len(judge) < 2 or judge[0][0] not in listener:
        return None
    began, limit = judge[0][0], judge[0][1] - JUDGE_FALLS
    past = tuple((s, v) for s, v in judge[1:] if v < limit and listener.get(s, 0.0) > listener[began])
    if not past:
        return None
    rise = f"from {listener[began]:.1f} to {listener[past[0][0]]:.1f}"
    says = (
        f"The reward's listener hears more than before ({rise}) and the judge less: captions please one listener alone."
    )
    return _alarm("judge", key, judge, past, limit, says)
