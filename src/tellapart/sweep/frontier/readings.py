"""What is read off curves: one metric where another is fixed, with what the seeds tell of its certainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tellapart.evaluation.columns import Column, describe, listener_metric
from tellapart.metrics.curves import crossings, interpolate, t_interval
from tellapart.sweep.records import Curve, Point, values

CONFIDENCE = 0.95

NATURALNESS = (
    "CIDEr",
    "truthful",
    "grammatical",
    "grammatical_head",
    "perplexity",
    "METEOR",
    "SPICE",
    "Bleu_4",
    "ROUGE_L",
    "Self-BLEU",
    "hallucinated",
    "distinct_captions",
    "repetition",
    "bad_endings",
)
"""Metrics of how captions read, in the order of preference; those that were measured are drawn."""

EXACT = "exact_recall@"
OWN = "own_listener"
UNREACHED = "unreached"
_SAMPLES = 25


@dataclass(frozen=True)
class Reading:
    """A metric of one curve where another metric has a fixed value.

    Args:
        value: mean over the seeds whose curve encloses the fixed value; None if none does.
        half: half the width of the 95 % t-interval over these seeds; None for fewer than two.
        reached: how many seeds that are.
        seeds: of how many.
        passes: the most different values that a seed's curve has there along the knob; above 1 it turns back.
    """

    value: float | None
    half: float | None
    reached: int
    seeds: int
    passes: int

    def text(self, column: Column) -> str:
        """As a table prints it."""
        if self.value is None:
            return UNREACHED
        spread = "" if self.half is None else f" ± {column.text(self.half)}"
        partly = f" ({self.reached} of {self.seeds} seeds)" if self.reached < self.seeds else ""
        return f"{column.text(self.value)}{spread}{partly}" + (" ↺" if self.passes > 1 else "")


def read(curve: Curve, checkpoint: str, fixed: str, at: float, metric: str) -> Reading:
    """``metric`` where ``fixed`` is ``at``: interpolated on each seed's own curve, then averaged over seeds.

    Args:
        curve: of one method.
        checkpoint: ``selected`` or ``last``.
        fixed: name of the metric that is held.
        at: its value, on the stored scale.
        metric: name of the metric to read.
    """
    found, passes, seeds = [], 0, curve.seeds(checkpoint)
    for seed in seeds:
        x, y = curve.path(checkpoint, seed, fixed, metric)
        value = interpolate(x, y, at)
        if value is not None:
            found.append(value)
            passes = max(passes, len({round(passed, 9) for passed in crossings(x, y, at)}))
    if not found:
        return Reading(None, None, 0, len(seeds), 0)
    mean, half = t_interval(found, CONFIDENCE)
    return Reading(mean, half, len(found), len(seeds), passes)


def band(curve: Curve, checkpoint: str, fixed: str, metric: str) -> list[tuple[float, float, float]]:
    """``(x, low, high)``: the pointwise 95 % t-interval over seeds of ``metric`` at each ``x`` of ``fixed`` that the curves
    of all seeds enclose; empty for fewer than two seeds, or if their curves share no range."""
    paths = [curve.path(checkpoint, seed, fixed, metric) for seed in curve.seeds(checkpoint)]
    paths = [(x, y) for x, y in paths if x]
    if len(paths) < 2:
        return []
    low, high = max(min(x) for x, _ in paths), min(max(x) for x, _ in paths)
    if not low < high:
        return []
    found = []
    for i in range(_SAMPLES):
        at = low + (high - low) * i / (_SAMPLES - 1)
        read_off = [value for x, y in paths if (value := interpolate(x, y, min(at, high))) is not None]
        mean, half = t_interval(read_off, CONFIDENCE)
        found.append((at, mean - (half or 0.0), mean + (half or 0.0)))
    return found


def recalls(keys: Sequence[str]) -> list[str]:
    """The recall metrics among ``keys``: text-to-image R@k of every retriever, and exact_recall@k.

    A captioner's own listener comes last of the retrievers, because it is another one for every model; what it makes of human
    captions says nothing of the model's.
    """
    heard = [key for key in keys if (of := listener_metric(key)) is not None and of[1].key.startswith("R@")]
    heard = [key for key in heard if not key.startswith(f"{OWN}_human_")]
    heard.sort(key=lambda key: key.startswith(OWN))
    return heard + [key for key in keys if key.startswith(EXACT)]


def first_recalls(keys: Sequence[str]) -> list[str]:
    """Those with k = 1, which the picture shows."""
    return [key for key in recalls(keys) if key.endswith("@1")]


def naturalness(keys: Sequence[str]) -> list[str]:
    """The metrics of how captions read among ``keys``."""
    return [key for key in NATURALNESS if key in keys]


def best_point(curves: Sequence[Curve], checkpoint: str, x: str, y: str) -> tuple[int, int] | None:
    """``(curve, point)`` with the best compromise between two metrics: the point nearest to the best value of both.

    Each metric is scaled to the range of all points' means over seeds; the distance is Euclidean (compromise programming, Zeleny
    1973). A metric without a better direction, or with the same value everywhere, does not count. None where no point has both
    metrics, or neither metric counts.

    Args:
        curves: of all methods.
        checkpoint: ``selected`` or ``last``.
        x: name of one metric.
        y: name of the other.

    Example:
        >>> best_point(read_curves(Path("runs/frontier")), "selected", "CIDEr", "judge_R@1")
        (0, 2)
    """
    means = {
        (i, j): tuple(math.fsum(found) / len(found) for found in both)
        for i, curve in enumerate(curves)
        for j, point in enumerate(curve.points)
        if all(both := _both(point, checkpoint, x, y))
    }
    losses = [_losses([mean[axis] for mean in means.values()], describe(key).better) for axis, key in enumerate((x, y))]
    if not means or not any(map(any, losses)):
        return None
    distances = [math.hypot(*pair) for pair in zip(*losses, strict=True)]
    return list(means)[distances.index(min(distances))]


def _both(point: Point, checkpoint: str, x: str, y: str) -> tuple[list[float], list[float]]:
    return values(point, checkpoint, x), values(point, checkpoint, y)


def _losses(means: Sequence[float], better: int) -> list[float]:
    """``[n]``: distance from the best value as a share of the range, 0 to 1; zeros where nothing is better."""
    signed = [mean * better for mean in means]
    width = max(signed, default=0.0) - min(signed, default=0.0)
    return [(max(signed) - value) / width if width else 0.0 for value in signed]


def levels(curves: Sequence[Curve], checkpoint: str, key: str) -> list[float]:
    """Three values of a metric at which curves can be compared, on the stored scale.

    A quarter, half and three quarters of the way through the range that every seed of every curve encloses (single points
    apart, which enclose nothing); if there is none, the quartiles of all models. Rounded as tables print them where that
    stays within reach.
    """
    column = describe(key)
    seeds = [curve.path(checkpoint, seed, key, key)[0] for curve in curves for seed in curve.seeds(checkpoint)]
    every = sorted(value for found in seeds for value in found if math.isfinite(value))
    ranges = [(min(found), max(found)) for found in seeds if len(set(found)) > 1]
    if not ranges:
        return []
    low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
    if low < high:
        wanted = [low + (high - low) * part for part in (0.25, 0.5, 0.75)]
    else:
        wanted = [every[round(part * (len(every) - 1))] for part in (0.25, 0.5, 0.75)]
        low, high = every[0], every[-1]
    rounded = [round(value * column.scale, column.digits) / column.scale for value in wanted]
    # rounding must not carry a value out of what the curves reach
    return list(dict.fromkeys(r if low <= r <= high else w for r, w in zip(rounded, wanted, strict=True)))
