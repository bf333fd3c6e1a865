"""Every metric against every set of judgements, protocol by protocol."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tellapart.data.judgements.records import Judgements, Preference, Rated
from tellapart.evaluation.people.protocols import PAIRS, Protocol, Statistic, off, rated_protocols
from tellapart.evaluation.people.scorers import Row, Scorer, Scores
from tellapart.metrics.correlation import kendall, pearson

PUBLISHED_MODELS = ("CLIPScore", "RefCLIPScore", "PAC-S", "RefPAC-S")
"""Metrics whose published values hold for one model only."""


@dataclass(frozen=True)
class Figure:
    """One metric under one protocol.

    Args:
        protocol: what is measured, and its published values.
        metric: its name.
        value: the statistic times 100; not a number where all ratings or all scores are equal.
        judgements: how many ratings or pairs.
        published: the published value as printed, or nothing.
    """

    protocol: Protocol
    metric: str
    value: float
    judgements: int
    published: str = ""

    @property
    def marked(self) -> bool:
        """Whether it is not the published value."""
        return bool(self.published) and off(self.value, self.published)

    @property
    def text(self) -> str:
        """The value as printed, a dash where there is none."""
        return "-" if math.isnan(self.value) else f"{self.value:.2f}"

    def to_json(self) -> dict[str, object]:
        """What the file of figures has."""
        return {
            "protocol": self.protocol.name,
            "statistic": self.protocol.statistic,
            "metric": self.metric,
            "value": None if math.isnan(self.value) else self.value,  # JSON has no NaN
            "judgements": self.judgements,
            "published": float(self.published) if self.published else None,
            "marked": self.marked,
        }


@dataclass(frozen=True)
class Measured:
    """One set.

    Args:
        name: of the set.
        figures: by protocol and metric.
        systems: of sets that name what wrote the captions: metric, or ``people``, -> system -> mean; empty for others.
    """

    name: str
    figures: list[Figure]
    systems: dict[str, dict[str, float]]


def measure(
    judgements: Judgements, scorers: Sequence[Scorer], *, same_models: Iterable[str] = (), whole: bool = True
) -> Measured:
    """The figures of one set.

    Args:
        judgements: the set.
        scorers: what scores captions. A scorer that needs references is given the rows that have some.
        same_models: metrics of ``PUBLISHED_MODELS`` that are measured with the published model.
        whole: whether the set is complete; published values are not shown next to figures of a part.

    Example:
        >>> (judgements,) = read_judgements(Path("flickr8k.json"))
        >>> {figure.metric: round(figure.value, 1) for figure in measure(judgements, [TextScorer()]).figures}["CIDEr"]
        43.9
    """
    comparable = set(same_models)
    systems: dict[str, dict[str, float]] = {}
    if judgements.rated:
        rows = [Row(row.image, row.caption, row.references) for row in judgements.rated]
        scores = _scores(rows, scorers)
        figures, systems = _rated(judgements, scores), system_means(judgements.rated, scores)
    else:
        figures = _pairs(judgements.name, judgements.pairs, scorers)
    shown = [_with_published(figure, comparable) if whole else figure for figure in figures]
    return Measured(judgements.name, shown, systems)


def system_means(rows: Sequence[Rated], scores: Scores) -> dict[str, dict[str, float]]:
    """Metric, or ``people``, -> system -> mean over its captions; empty where the set names no systems."""
    names = np.array([row.system for row in rows])
    if not all(names):
        return {}
    columns = {"people": np.array([np.mean(row.ratings) for row in rows])} | scores
    systems = list(dict.fromkeys(names.tolist()))
    return {
        key: {name: float(np.nanmean(values[names == name])) for name in systems} for key, values in columns.items()
    }


def _with_published(figure: Figure, comparable: set[str]) -> Figure:
    published = figure.protocol.published.get(figure.metric, "")
    if not published or (figure.metric in PUBLISHED_MODELS and figure.metric not in comparable):
        return figure
    return Figure(figure.protocol, figure.metric, figure.value, figure.judgements, published)


def statistic_of(kind: Statistic, scores: np.ndarray, ratings: np.ndarray) -> float:
    """The statistic times 100; scores and ratings ``[N]``. Not a number of fewer than two."""
    if len(scores) < 2:
        return math.nan
    if kind == "pearson":
        return 100 * pearson(scores, ratings)
    return 100 * kendall(scores, ratings)[kind == "tau_c"]


def _rated(judgements: Judgements, scores: Scores) -> list[Figure]:
    rows = judgements.rated
    figures = []
    for protocol in rated_protocols(judgements.name):
        kept = [place for place, row in enumerate(rows) if protocol.keep(row)]
        ratings = [_ratings(rows[place], protocol) for place in kept]
        repeated = np.repeat(np.array(kept, np.int64), np.array([len(own) for own in ratings], np.int64))
        flat = np.array([value for own in ratings for value in own])
        for metric, values in scores.items():
            scored = np.isfinite(values[repeated])
            value = statistic_of(protocol.statistic, values[repeated][scored], flat[scored])
            figures.append(Figure(protocol, metric, value, int(scored.sum())))
    if judgements.name in ("polaris", "nebula"):
        figures += _order_within_images(judgements.name, rows, scores)
    return figures


def _ratings(row: Rated, protocol: Protocol) -> tuple[float, ...]:
    return (row.aspects[protocol.rating],) if protocol.rating else row.ratings


def _order_within_images(name: str, rows: Sequence[Rated], scores: Scores) -> list[Figure]:
    """Share of pairs of captions of one image, with different mean ratings, that a metric orders as people do."""
    of_image: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        of_image.setdefault(row.image, []).append(place)
    means = np.array([np.mean(row.ratings) for row in rows])
    pairs = [(a, b) for own in of_image.values() for a in own for b in own if means[a] > means[b]]
    if not pairs:
        return []
    better, worse = (np.array(side) for side in zip(*pairs, strict=True))
    protocol = Protocol(
        f"{name} pairs", "accuracy", about="Captions of one image with different ratings; ties are wrong."
    )
    return [_accuracy(protocol, metric, values[better], values[worse]) for metric, values in scores.items()]


def _accuracy(protocol: Protocol, metric: str, better: np.ndarray, worse: np.ndarray) -> Figure:
    """A tie is wrong: a metric that separates nothing must not look good (SugarCrepe's code does the same)."""
    scored = np.isfinite(better) & np.isfinite(worse)
    value = 100 * float(np.mean(better[scored] > worse[scored])) if scored.any() else float("nan")
    return Figure(protocol, metric, value, int(scored.sum()))


def _pairs(name: str, pairs: Sequence[Preference], scorers: Sequence[Scorer]) -> list[Figure]:
    rows = [Row(pair.image, text, pair.references) for pair in pairs for text in (pair.better, pair.worse)]
    scores = _scores(rows, scorers)
    groups = list(dict.fromkeys(pair.group for pair in pairs))
    figures = []
    for group in groups if len(groups) < 2 else ["", *filter(None, groups)]:
        protocol = Protocol(f"{name} {group}".strip(), "accuracy", about=PAIRS.get(name, "") if not group else "")
        of_group = np.array([not group or pair.group == group for pair in pairs])
        for metric, values in scores.items():
            figures.append(_accuracy(protocol, metric, values[0::2][of_group], values[1::2][of_group]))
    return figures


def _scores(rows: Sequence[Row], scorers: Sequence[Scorer]) -> Scores:
    """Metric -> ``[N]``; not a number for rows that a scorer needs references of and that have none."""
    found: Scores = {}
    for scorer in scorers:
        places = [place for place, row in enumerate(rows) if row.references or not scorer.needs_references]
        if not places:
            continue
        for metric, values in scorer([rows[place] for place in places]).items():
            column = np.full(len(rows), np.nan)
            column[places] = values
            found[metric] = column
    return found
