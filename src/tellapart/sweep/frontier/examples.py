"""What the page shows of every point: numbers, and captions of the same few images next to the start model's."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError
from tellapart.evaluation.columns import all_columns, describe, main_columns
from tellapart.evaluation.report.curves import MARKERS, colour, place_of_marker, swatch
from tellapart.evaluation.report.pictures import data_uri
from tellapart.metrics.curves import t_interval
from tellapart.sweep.frontier.readings import CONFIDENCE, band, best_point, first_recalls, naturalness, recalls
from tellapart.sweep.frontier.tables import TITLES, present, starts, verdict
from tellapart.sweep.records import START, Curve, Point, Training, metric_keys, values


def page_data(curves: Sequence[Curve], dataset: CaptionDataset | None, *, images: int, seed: int = 0) -> dict[str, Any]:
    """All that the page draws, as plain data.

    Args:
        curves: of all methods.
        dataset: the images that were captioned; captions of what it lacks, or of what cannot be read, are shown without
            pictures.
        images: how many captions of each model, all of the same images, drawn at random.
        seed: of this draw.

    Raises:
        UsageError: an evaluation cannot be read.
    """
    keys = metric_keys(curves)
    x, y = naturalness(keys), recalls(keys)
    ids = _chosen(curves, images, seed)
    shown = {"x": (x or [""])[0], "y": (first_recalls(keys) or [""])[-1]}
    begun = starts(curves)
    best = best_point(curves, present(curves)[0], shown["x"], shown["y"]) if present(curves) else None
    return {
        "x": x,
        "y": y,
        "shown": shown,
        "best": best,
        "verdict": "" if best is None else verdict(curves, *best, shown["x"], shown["y"]),
        "checkpoints": {name: TITLES[name] for name in present(curves)},
        "main": [column.key for column in main_columns(keys)],
        "columns": {column.key: _column(column.key) for column in all_columns(keys)},
        "curves": [
            _curve(curve, number, ids, (x, y), [point for _, point in begun]) for number, curve in enumerate(curves)
        ],
        "starts": [{"label": label, "point": _point(point, ids, [START])} for label, point in begun],
        "images": [_image(dataset, image_id) for image_id in ids],
        "confidence": f"{100 * CONFIDENCE:g} %",
    }


def _column(key: str) -> dict[str, Any]:
    column = describe(key)
    return {name: getattr(column, name) for name in ("label", "scale", "digits", "better", "about")}


def _chosen(curves: Sequence[Curve], count: int, seed: int) -> list[str]:
    first = next((measured for curve in curves for measured in curve.all_measured()), None)
    ids = [] if first is None or not count else list(first.result().captions)
    return [ids[i] for i in sorted(random.Random(seed).sample(range(len(ids)), min(count, len(ids))))]


def _image(dataset: CaptionDataset | None, image_id: str) -> dict[str, Any]:
    if dataset is None or image_id not in dataset.position:
        return {"id": image_id, "references": []}
    example = dataset[dataset.position[image_id]]
    told = {"id": image_id, "references": [text.strip() for text in example.references]}
    try:
        source, pixelated = data_uri(example.image.open())
    except (UsageError, OSError):  # after hours of training the rest of the page must not be lost with a picture
        return told
    return {**told, "source": source, "pixelated": pixelated}


def _curve(
    curve: Curve, number: int, ids: Sequence[str], axes: tuple[Sequence[str], Sequence[str]], begun: Sequence[Point]
) -> dict[str, Any]:
    pairs = [(x, y) for x in axes[0] for y in axes[1]]
    bands = {name: {f"{x} {y}": _rounded(band(curve, name, x, y)) for x, y in pairs} for name in present([curve])}
    about = {name: getattr(curve, name) for name in ("label", "method", "recipe", "knob")}
    look = {"colour": colour(number), "marker": MARKERS[place_of_marker(number)], "swatch": swatch(number)}
    points = [
        {
            **_point(point, ids, present([curve])),
            "changes": {name: _changes(point, name) for name in present([curve])},
            "begins": _begins(point, begun),
        }
        for point in curve.points
    ]
    return {**about, **look, "points": points, "bands": bands}


def _begins(point: Point, begun: Sequence[Point]) -> dict[str, Any]:
    """The start of a point, by its place among all starts, and of each training, by its place there; None where it is not
    known."""
    own, scores = point.begins(), [[t.checkpoints[START].metrics for t in each.trainings] for each in begun]
    place = next((i for i, held in enumerate(scores) if own and all(one.metrics in held for one in own.values())), None)
    held = [] if place is None else scores[place]
    trainings = [held.index(own[t.seed].metrics) if held and t.seed in own else None for t in point.trainings]
    return {"start": place, "trainings": trainings}


def _point(point: Point, ids: Sequence[str], checkpoints: Iterable[str]) -> dict[str, Any]:
    return {
        "label": point.label(),
        "settings": {key: str(value) for key, value in point.settings.items()},
        "trainings": [_training(training, ids) for training in point.trainings],
        "means": {name: _means(point, name) for name in checkpoints},
        "failed": {str(seed): why for seed, why in point.failed.items()},
    }


def _means(point: Point, checkpoint: str) -> dict[str, tuple[float, float | None]]:
    keys = metric_keys([Curve("", "", "", None, (point,))])
    found = {key: values(point, checkpoint, key) for key in keys}
    return {key: t_interval(each, CONFIDENCE) for key, each in found.items() if each}


def _changes(point: Point, checkpoint: str) -> dict[str, tuple[float, float | None]]:
    """Metric -> mean difference from the training's own start model, and half the width of its t-interval over seeds."""
    found: dict[str, list[float]] = {}
    for training in point.trainings:
        before = {} if training.start is None else training.start.metrics
        after = training.checkpoints[checkpoint].metrics if checkpoint in training.checkpoints else {}
        for key in after.keys() & before.keys():
            if math.isfinite(after[key] - before[key]):
                found.setdefault(key, []).append(after[key] - before[key])
    return {key: t_interval(each, CONFIDENCE) for key, each in found.items()}


def _training(training: Training, ids: Sequence[str]) -> dict[str, Any]:
    checkpoints = {}
    for name, measured in training.checkpoints.items():
        captions = measured.result().captions if ids else {}
        checkpoints[name] = {
            "step": measured.step,
            "metrics": {key: value for key, value in measured.metrics.items() if math.isfinite(value)},
            "captions": [captions.get(image_id) for image_id in ids],
        }
    return {"seed": training.seed, "checkpoints": checkpoints}


def _rounded(drawn: Sequence[tuple[float, float, float]]) -> list[list[float]]:
    """Enough digits for a picture."""
    return [[float(f"{value:.4g}") for value in sample] for sample in drawn]
