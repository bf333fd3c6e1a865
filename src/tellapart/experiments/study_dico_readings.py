"""What the page on DiCO reads from logs and curves: over steps, over knobs, and at equal recall."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tellapart.experiments.dico_rows import TAU, TAUS
from tellapart.experiments.study_curves import CurveStudy, at_fixed, common_middle
from tellapart.experiments.study_plan import Seeds, markdown_table
from tellapart.metrics.correlation import spearman
from tellapart.metrics.curves import interpolate

if TYPE_CHECKING:
    from tellapart.experiments.study import Study
    from tellapart.experiments.world_run import Setting

OURS, KL = "dico", "scst-CLIP+KL"

OVER_STEPS = {
    "CIDEr": ("CIDEr", 100.0),
    "listener_CLIPScore": ("CLIP-S", 100.0),
    "listener_R@1": ("listener R@1", 1.0),
    "grammatical": ("grammatical", 1.0),
    "exact_recall@1": ("exact_recall@1", 1.0),
}
AT_STOP = OVER_STEPS | {"listener_RefCLIPScore": ("RefCLIP-S", 100.0)}
OVER_KNOB = {"listener_CLIPScore": ("CLIP-S", 100.0), "PAC-S": ("PAC-S", 100.0)} | AT_STOP
EQUAL = {key: OVER_STEPS[key] for key in ("CIDEr", "grammatical", "exact_recall@1")}
EQUAL_RECALLS = (35.0, 40.0, 50.0, 60.0)
"""Listener R@1 at which training curves are read, in percent."""


def sections(study: Study) -> list[str]:
    """The parts of the page between the tables and what was expected."""
    assert isinstance(study, CurveStudy)
    return [_steps(study), _stops(study), _knobs(study), _equal(study), _taus(study)]


def said(found: Seeds | None) -> str:
    """A cell of a table."""
    return "unreached" if found is None else str(found)


def history(study: Study, setting: Setting) -> list[dict[str, Any]]:
    """The lines of a training's log."""
    path = study.root / setting.key() / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def watched(study: Study, setting: Setting) -> dict[int, dict[str, float]]:
    """Step -> its metrics on val."""
    lines = [line for line in history(study, setting) if "eval_CIDEr" in line]
    return {
        line["step"]: {k.removeprefix("eval_"): v for k, v in line.items() if k.startswith("eval_")} for line in lines
    }


def logged(study: Study, setting: Setting, key: str) -> float | None:
    """Mean of a figure over the steps that were logged, or none."""
    values = [line[key] for line in history(study, setting) if key in line]
    return statistics.fmean(values) if values else None


def swept_rhos(study: CurveStudy, row: str, key: str, *, point: str = "last") -> list[float | None]:
    """Spearman's rho of knob and metric on test under greedy decoding, one a seed."""
    curve = study.curve(row)
    seeds = zip(*(study.seeded(setting) for setting in curve), strict=True)
    knobs = [setting.knob or 0.0 for setting in curve]
    metrics = [np.array([study.tested(one)[point]["greedy"][key] for one in seed]) for seed in seeds]
    rhos = [float(spearman(np.array(knobs), values)[0]) for values in metrics]
    return [None if math.isnan(rho) else rho for rho in rhos]


def _rows(study: Study) -> dict[str, list[Setting]]:
    """The trained rows of the tables."""
    return {name: settings for name, settings in study.measured() if settings[0].steps}


def _steps(study: Study) -> str:
    """The paper's Figure 4."""
    rows = {name: [watched(study, one) for one in settings] for name, settings in _rows(study).items()}
    steps = sorted({step for curves in rows.values() for curve in curves for step in curve})
    parts = [
        "## Over steps (val, greedy)\n\nThe paper's Figure 4: every row at its learning rate, mean ± standard deviation."
    ]
    for key, (heading, factor) in OVER_STEPS.items():
        lines = [
            [name, *(str(Seeds([factor * curve[step][key] for curve in curves])) for step in steps)]
            for name, curves in rows.items()
        ]
        parts.append(f"### {heading}\n\n{markdown_table(['row', *(f'step {step}' for step in steps)], lines)}")
    return "\n\n".join(parts)


def _stops(study: Study) -> str:
    """The checkpoint that the paper's rule takes."""
    lines = []
    for name, settings in _rows(study).items():
        curves = [watched(study, one) for one in settings]
        stops = [_stop(curve) for curve in curves]
        cells = [
            str(Seeds([factor * curve[stop][key] for curve, stop in zip(curves, stops, strict=True)]))
            for key, (_, factor) in AT_STOP.items()
        ]
        lines.append([name, ", ".join(map(str, stops)), *cells])
    return f"""## At the paper's stopping point (val, greedy)

The step with the highest RefCLIP-S by the listener (the paper selects by the reference-based version of its reward).

{markdown_table(["row", "step of each seed", *(heading for heading, _ in AT_STOP.values())], lines)}"""


def _stop(curve: Mapping[int, Mapping[str, float]]) -> int:
    """The earliest step with the highest RefCLIP-S."""
    return max(curve, key=lambda step: curve[step]["listener_RefCLIPScore"])


def _knobs(study: CurveStudy) -> str:
    """The paper's Figure 5, and the same for the comparator."""
    parts = ["## Over the knob (test, greedy, last step)\n\nThe paper's Figure 5, at one learning rate a row."]
    for row in (OURS, KL):
        curve = study.curve(row)
        lines = [_knob_line(study, setting) for setting in curve]
        rhos = {key: [rho for rho in swept_rhos(study, row, key) if rho is not None] for key in OVER_KNOB}
        lines.append(["*Spearman's rho, mean (seeds)*", *(_rho(values) for values in rhos.values()), ""])
        heads = [
            f"{row}, lr {curve[0].learning_rate:g}",
            *(heading for heading, _ in OVER_KNOB.values()),
            "effective losers",
        ]
        parts.append(markdown_table(heads, lines))
    return "\n\n".join(parts)


def _knob_line(study: CurveStudy, setting: Setting) -> list[str]:
    seeds = study.seeded(setting)
    tested = [study.tested(one)["last"]["greedy"] for one in seeds]
    cells = [str(Seeds([factor * one[key] for one in tested])) for key, (_, factor) in OVER_KNOB.items()]
    losers = [found for one in seeds if (found := logged(study, one, "effective_losers")) is not None]
    return [f"{setting.knob:g}", *cells, f"{statistics.fmean(losers):.2f}" if losers else "-"]


def _rho(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f} ({', '.join(f'{value:.2f}' for value in values)})" if values else "-"


def _equal(study: CurveStudy) -> str:
    """What the text keeps where listeners find equally many images."""
    middle = common_middle(study, (OURS, KL), "listener_R@1")
    parts = ["## At equal listener R@1"]
    if middle is not None:
        lines = [
            [row, *(said(at_fixed(study, row, "listener_R@1", middle, k, factor=f)) for k, (_, f) in EQUAL.items())]
            for row in (OURS, KL)
        ]
        heads = [f"over the knob, at R@1 {middle:.1f} (test, last step)", *(heading for heading, _ in EQUAL.values())]
        parts.append(markdown_table(heads, lines))
    rows = _rows(study)
    for key, (heading, factor) in EQUAL.items():
        lines = [
            [name, *(said(over_steps(study, settings, at, key, factor)) for at in EQUAL_RECALLS)]
            for name, settings in rows.items()
        ]
        heads = [f"{heading} over steps (val)", *(f"R@1 {at:g}" for at in EQUAL_RECALLS)]
        parts.append(markdown_table(heads, lines))
    parts.append(
        "Each seed is read on its own curve, on a line between neighbours; *unreached* where one lacks the value."
    )
    return "\n\n".join(parts)


def over_steps(study: Study, settings: Sequence[Setting], at: float, key: str, factor: float) -> Seeds | None:
    """A metric on val where listener R@1 has a value, read on each seed's own training curve.

    Returns:
        One value a seed; none where a seed's curve does not reach the value.
    """
    curves = [list(watched(study, one).values()) for one in settings]
    found = [interpolate([one["listener_R@1"] for one in c], [one[key] for one in c], at) for c in curves]
    values = [factor * one for one in found if one is not None]
    return Seeds(values) if len(values) == len(found) else None


def _taus(study: CurveStudy) -> str:
    """Temperatures of the losers' weights, with the first seed."""
    tried = dict(zip(TAUS, study.grid("dico, tau"), strict=True))
    middle = next(setting for setting in study.curve(OURS) if setting.knob == 0.2)
    lines = []
    for tau, setting in sorted({**tried, TAU: middle}.items()):
        last = list(watched(study, replace(setting, seed=study.seeds[0])).values())[-1]
        losers = logged(study, setting, "effective_losers")
        cells = [f"{factor * last[key]:.1f}" for key, (_, factor) in OVER_STEPS.items()]
        lines.append([f"1/{1 / tau:.0f}", "-" if losers is None else f"{losers:.2f}", *cells])
    heads = ["tau", "effective losers", *(heading for heading, _ in OVER_STEPS.values())]
    title = f"## Over tau (val, greedy, last step, seed {study.seeds[0]}, lr {middle.learning_rate:g})"
    return f"{title}\n\n{markdown_table(heads, lines)}"
