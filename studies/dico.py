"""The page on DiCO: what its paper compares it with, its neighbours of today, and both at equal recall."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tellapart.evaluation.columns import describe
from tellapart.metrics.correlation import spearman
from tellapart.metrics.curves import interpolate
from tellapart.sweep.claims import Claim, Seeds, markdown_table, over_seeds, said
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from tellapart.sweep.tasks import Task
from tellapart.sweep.trainings import option

OURS, KL = "dico", "scst-CLIP+KL"
CURVES = {OURS: "dico, beta", KL: "scst-CLIP+KL, kl_coef"}
"""Row -> the row of its curve."""

LARGE = "(lr 0.0003)"
OVER_STEPS = ("CIDEr", "listener_CLIPScore", "listener_R@1", "grammatical", "exact_recall@1")
AT_STOP = (*OVER_STEPS, "listener_RefCLIPScore")
REFERENCE_BASED = {"clip_s": "listener_RefCLIPScore", "pac_s": "RefPAC-S", "cider_d": "CIDEr"}
"""Reward -> its reference-based version, by which the paper selects; CIDEr is its own."""
OVER_KNOB = ("listener_CLIPScore", "PAC-S", *AT_STOP)
EQUAL = ("CIDEr", "grammatical", "exact_recall@1")
EQUAL_RECALLS = (35.0, 40.0, 50.0, 60.0)
"""Listener R@1 at which training curves are read, in percent."""


def sections(study: Study) -> Iterator[str]:
    """The parts of the page between the tables and what was expected."""
    rows = {name: tasks for name, tasks in study.shown().items() if tasks[0].trains}
    yield _steps(study, rows)
    yield _stops(study, rows)
    yield _knobs(study)
    yield _equal(study, rows)
    yield _taus(study)


def _steps(study: Study, rows: Mapping[str, Sequence[Task]]) -> str:
    """The paper's Figure 4."""
    watched = {name: [task.watched() for task in tasks] for name, tasks in rows.items()}
    steps = sorted({step for curves in watched.values() for curve in curves for step in curve})
    parts = [
        "## Over steps (val, greedy)\n\nThe paper's Figure 4: every row at its learning rate, mean ± standard deviation."
    ]
    for key in OVER_STEPS:
        lines = [
            [name, *(str(Seeds([describe(key).scale * curve[step][key] for curve in curves])) for step in steps)]
            for name, curves in watched.items()
        ]
        parts.append(
            f"### {study.file.heading(key)}\n\n{markdown_table(['row', *(f'step {step}' for step in steps)], lines)}"
        )
    return "\n\n".join(parts)


def _stops(study: Study, rows: Mapping[str, Sequence[Task]]) -> str:
    """The checkpoint that the paper's rule takes: the earliest step with the highest reference-based version of the reward."""
    lines = []
    for name, tasks in rows.items():
        rule, curves = stopped_by(tasks[0]), [task.watched() for task in tasks]
        stops = [_earliest_best(curve, rule) for curve in curves]
        at = [curve[stop] for curve, stop in zip(curves, stops, strict=True)]
        cells = [str(Seeds([describe(key).scale * one[key] for one in at])) for key in AT_STOP]
        lines.append([name, study.file.heading(rule), ", ".join(map(str, stops)), *cells])
    return f"""## At the paper's stopping point (val, greedy)

The paper selects the step with the highest reference-based version of the reward: RefCLIP-S by the listener for CLIP-S, and
RefPAC-S for PAC-S. CIDEr is reference-based already.

{markdown_table(["row", "selected by", "step of each seed", *map(study.file.heading, AT_STOP)], lines)}"""


def stopped_by(task: Task) -> str:
    """The metric that the paper's rule selects a row's checkpoint by."""
    (entry,) = task.recipe["reward"]
    return REFERENCE_BASED[entry["name"]]


def _earliest_best(curve: Mapping[int, Mapping[str, float]], metric: str) -> int:
    """The first step at which a metric is highest."""
    return max(sorted(curve), key=lambda step: curve[step][metric])


def rhos(study: Study, row: str, key: str) -> list[float | None]:
    """Spearman's rho of knob and metric on test under greedy decoding at the last step, one per seed."""
    knobs = study.curve(CURVES[row])
    seeds = zip(*(study.metrics(shown, "last") for shown in knobs.values()), strict=True)
    values = [np.array([one[key] for one in seed]) for seed in seeds]
    found = [float(spearman(np.array([*knobs]), each)[0]) for each in values]
    return [None if math.isnan(rho) else rho for rho in found]


def _knobs(study: Study) -> str:
    """The paper's Figure 5, and the same for the comparator."""
    parts = ["## Over the knob (test, greedy, last step)\n\nThe paper's Figure 5, at one learning rate per row."]
    for row, curve in CURVES.items():
        lines = []
        for value, shown in study.curve(curve).items():
            cells = [str(study.read(shown, key, point="last")) for key in OVER_KNOB]
            lines.append([f"{value:g}", *cells, _losers(study.measured[shown])])
        lines.append(["*Spearman's rho, mean (seeds)*", *(_rho(rhos(study, row, key)) for key in OVER_KNOB), ""])
        rate = option(study.measured[shown][0].recipe, "training.learning_rate")
        parts.append(
            markdown_table([f"{row}, lr {rate:g}", *map(study.file.heading, OVER_KNOB), "effective losers"], lines)
        )
    return "\n\n".join(parts)


def _rho(found: Sequence[float | None]) -> str:
    values = [rho for rho in found if rho is not None]
    return f"{statistics.fmean(values):.2f} ({', '.join(f'{value:.2f}' for value in values)})" if values else "-"


def logged(task: Task, key: str) -> float | None:
    """Mean of a figure over the steps that were logged, or none."""
    values = [line[key] for line in task.history if key in line]
    return statistics.fmean(values) if values else None


def _losers(tasks: Sequence[Task]) -> str:
    """Effective losers of trainings that have them, the mean over seeds."""
    known = [found for task in tasks if (found := logged(task, "effective_losers")) is not None]
    return f"{statistics.fmean(known):.2f}" if known else "-"


def _equal(study: Study, rows: Mapping[str, Sequence[Task]]) -> str:
    """What the text keeps where listeners find equally many images."""
    parts = ["## At equal listener R@1"]
    middle = study.common_middle(list(CURVES.values()), "listener_R@1")
    if middle is not None:
        lines = [
            [row, *(said(study.at_fixed(curve, "listener_R@1", middle, key)) for key in EQUAL)]
            for row, curve in CURVES.items()
        ]
        parts.append(
            markdown_table(
                [f"over the knob, at R@1 {middle:.1f} (test, last step)", *map(study.file.heading, EQUAL)], lines
            )
        )
    for key in EQUAL:
        lines = [[name, *(said(over_steps(tasks, at, key)) for at in EQUAL_RECALLS)] for name, tasks in rows.items()]
        heads = [f"{study.file.heading(key)} over steps (val)", *(f"R@1 {at:g}" for at in EQUAL_RECALLS)]
        parts.append(markdown_table(heads, lines))
    parts.append(
        "Each seed is read on its own curve, on a line between neighbours; *unreached* where one lacks the value."
    )
    return "\n\n".join(parts)


def over_steps(tasks: Sequence[Task], at: float, key: str) -> Seeds | None:
    """A metric on val where listener R@1 has a value, read on each seed's own training curve; none where a seed lacks it."""
    curves = [list(task.watched().values()) for task in tasks]
    found = [interpolate([one["listener_R@1"] for one in c], [one[key] for one in c], at) for c in curves]
    values = [describe(key).scale * one for one in found if one is not None]
    return Seeds(values) if len(values) == len(found) else None


def _taus(study: Study) -> str:
    """Temperatures of the losers' weights."""
    tried = [study.tried("dico, tau", setting) for setting in study.grid("dico, tau")]
    measured = study.measured[study.curve(CURVES[OURS])[0.2]]
    published = [task for task in measured if task.seed in study.search_seeds]
    found = {float(option(tasks[0].recipe, "objective.tau")): tasks for tasks in (*tried, published)}
    folders = [task.folder.name for tasks in found.values() for task in tasks]
    # noted, since the steps of what is only tried on val are left out of an archive
    losers = study.noted("losers", lambda: {f"{tau:g}": _losers(tasks) for tau, tasks in found.items()}, folders)
    lines = []
    for tau, tasks in sorted(found.items()):
        last = [task.on_val("last") for task in tasks]
        cells = [str(over_seeds(last, key)) for key in OVER_STEPS]
        lines.append([f"1/{1 / tau:.0f}", losers[f"{tau:g}"], *cells])
    rate = option(published[0].recipe, "training.learning_rate")
    seeds = ", ".join(map(str, study.search_seeds))
    title = f"## Over tau (val, greedy, last step, seeds {seeds}, lr {rate:g})"
    return f"{title}\n\n{markdown_table(['tau', 'effective losers', *map(study.file.heading, OVER_STEPS)], lines)}"


def claims(study: Study) -> Iterator[Claim]:
    """What the paper shows and what was left open in world.md, on test with greedy decoding."""
    yield from _scores(study)
    yield from _collapse(study)
    yield from _beta(study)
    yield from _at_equal_recall(study)


def _scores(study: Study) -> Iterator[Claim]:
    for row, key in ((OURS, "listener_CLIPScore"), ("dico-PAC", "PAC-S")):
        ours = study.read(row, key)
        for other in ("xe", "scst-CIDEr"):
            theirs = study.read(other, key)
            text = f"{row} has a higher {study.file.heading(key)} than {other}."
            yield Claim(text, ours.above(theirs), f"{ours} against {theirs}.")
    cider = {row: study.read(row, "CIDEr") for row in study.shown() if LARGE not in row}
    best = all(cider["scst-CIDEr"].above(value) for row, value in cider.items() if row != "scst-CIDEr")
    yield Claim("scst-CIDEr has the highest CIDEr.", best, "; ".join(f"{row} {v}" for row, v in cider.items()) + ".")


def _collapse(study: Study) -> Iterator[Claim]:
    """The picture of the paper's Figure 4, at the large rate and at the last step."""
    found = {row: study.read(f"{row} {LARGE}", "grammatical", point="last") for row in ("scst-CLIP", KL, OURS)}
    scst, dico = found["scst-CLIP"], found[OURS]
    yield Claim(
        "At 0.0003 scst-CLIP has lost the language by the last step (below 50 % grammatical in every seed).",
        max(scst.values) < 50,
        f"{scst}: {_seeds(scst)}.",
    )
    yield Claim(
        "At 0.0003 dico holds: at least 90 % grammatical at the last step in every seed.",
        min(dico.values) >= 90,
        f"{dico}: {_seeds(dico)}; {KL} {_seeds(found[KL])}.",
    )


def _seeds(values: Seeds) -> str:
    return ", ".join(f"{value:.1f}" for value in values.values)


def _beta(study: Study) -> Iterator[Claim]:
    """The paper's Figure 5."""
    for key, sign, text in (
        ("CIDEr", 1, "A higher beta keeps more CIDEr (Spearman's rho above 0 in every seed)."),
        ("listener_CLIPScore", -1, "A higher beta gains less CLIP-S (Spearman's rho below 0 in every seed)."),
    ):
        found = rhos(study, OURS, key)
        evidence = ", ".join("undefined" if rho is None else f"{rho:.2f}" for rho in found)
        yield Claim(text, all(rho is not None and sign * rho > 0 for rho in found), f"rho {evidence}.")


def _at_equal_recall(study: Study) -> Iterator[Claim]:
    """Both over their knobs, in the middle of the listener R@1 that all their seeds enclose."""
    value = study.common_middle(list(CURVES.values()), "listener_R@1")
    for key in EQUAL:
        text = f"At equal listener R@1 dico and {KL} differ in {study.file.heading(key)} beyond the spread of seeds."
        if value is None:
            yield Claim(text, False, "no listener R@1 is enclosed by all seeds of both.")
            continue
        ours, theirs = (study.at_fixed(curve, "listener_R@1", value, key) for curve in CURVES.values())
        apart = ours is not None and theirs is not None and (ours.above(theirs) or theirs.above(ours))
        yield Claim(text, apart, f"dico {said(ours)}, {KL} {said(theirs)} at listener R@1 {value:.1f}.")


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections)
