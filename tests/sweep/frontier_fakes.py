"""Curves whose numbers are chosen, on disk as a frontier's trainings leave them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evaluation.evaluation_fakes import toy_dataset, toy_result
from tellapart.sweep.frontier import Curve, Measured, Point, Training

EVIL = [
    '<script>document.title="hacked"</script>',
    'he said "no" & it\'s <b>bold</b>',
    "قطة سوداء فوق سيارة",
    "👩‍🚀 on a 🐎 beside 3 < 4",
    "",
]
"""What captions may hold, and no page may read as anything but text."""


def measured(folder: Path, step: int, metrics: dict[str, float], captions: list[str]) -> Measured:
    """An evaluation of the toy images, saved."""
    said = dict(zip(toy_dataset().ids, captions, strict=True))
    result = replace(toy_result("toy", seed=0, captions=said), metrics=metrics, per_image={})
    saved = result.save(folder)
    return Measured(step, saved, metrics, result.protocol)


def curve(
    root: Path, label: str, knob: str, points: dict[float, list[tuple[float, float]]], *, last: float = 1.0
) -> Curve:
    """Knob value -> ``(CIDEr, judge R@1)`` of each seed; the last step has ``last`` times the CIDEr."""
    start = measured(root / "start", 0, figures(1.0, 10.0), [f"{caption} at the start" for caption in EVIL])
    made = []
    for value, seeds in points.items():
        trainings = []
        for seed, (cider, recall) in enumerate(seeds):
            folder = root / f"{label}-{value}-{seed}".replace("/", "_")
            words = [f"{caption} {label} {value} seed {seed}".strip() for caption in EVIL[:-1]] + [""]
            selected = measured(folder / "selected", 40, figures(cider, recall), words)
            final = measured(folder / "last", 60, figures(cider * last, recall + 1), words)
            trainings.append(Training(seed, {"selected": selected, "last": final}, start))
        made.append(Point({knob: value}, tuple(trainings)))
    return Curve(label, "dico", "recipes/world_ved_dico.yaml", knob, tuple(made))


def begun_from(one: Curve, *starts: Measured | None) -> Curve:
    """The curve with other start models: of each seed one, at every point; or of each point a sequence of them."""
    points = []
    for place, point in enumerate(one.points):
        own = starts[place] if isinstance(starts[0], list) else starts
        trainings = tuple(replace(t, start=begin) for t, begin in zip(point.trainings, own, strict=True))
        points.append(replace(point, trainings=trainings))
    return replace(one, points=tuple(points))


def figures(cider: float, recall: float) -> dict[str, float]:
    """Metrics that follow from two."""
    more = {"judge_R@5": min(100.0, recall * 1.5), "exact_recall@1": recall / 3, "Self-BLEU": 20 + recall / 4}
    return {"CIDEr": cider, "Bleu_4": cider / 4, "judge_R@1": recall, "grammatical": 60 + 35 * cider, **more}


def two_curves(root: Path) -> list[Curve]:
    """A curve that rises without turning, and one that turns back at its largest value."""
    dico = {
        0.05: [(0.70, 62.0), (0.72, 64.0), (0.71, 60.0)],
        0.1: [(0.80, 55.0), (0.83, 57.0), (0.82, 54.0)],
        0.2: [(0.95, 40.0), (0.93, 42.0), (0.94, 44.0)],
    }
    scst = {
        0.0: [(0.30, 66.0), (0.35, 70.0), (0.32, 68.0)],
        0.01: [(0.75, 50.0), (0.78, 52.0), (0.76, 49.0)],
        0.1: [(0.90, 30.0), (0.88, 28.0), (0.89, 33.0)],
        1.0: [(0.85, 20.0), (0.84, 22.0), (0.86, 21.0)],
    }
    return [
        curve(root, "dico", "objective.beta", dico),
        curve(root, "scst <img src=x onerror=alert(1)> & KL", "objective.kl_coef", scst, last=0.5),
    ]
