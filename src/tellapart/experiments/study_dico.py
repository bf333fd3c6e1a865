"""The page on DiCO: what its paper compares it with, its neighbours of today, and both at equal recall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.experiments.dico_rows import BETA, CANDIDATES, KL_IN_LOSS, KL_IN_REWARD
from tellapart.experiments.jobs import require, run_jobs
from tellapart.experiments.study import Study
from tellapart.experiments.study_curves import CurveStudy, at_fixed, common_middle
from tellapart.experiments.study_dico_readings import KL, OURS, said, sections, swept_rhos
from tellapart.experiments.study_plan import Claim, Columns, Plan, Reader, Seeds
from tellapart.experiments.world_run import ROWS, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

RATES = (3e-5, 1e-4, 3e-4)
"""The middle of the grid; of its ends, 1e-5 learned little and 1e-3 destroyed every captioner in world.md."""

KNOBS = {OURS: BETA, KL: KL_IN_REWARD}
"""Value of the knob in the tables, of rows that have one."""

SWEPT: Mapping[str, tuple[float, tuple[float, ...]]] = {
    OURS: (3e-5, (0.05, 0.1, 0.2, 0.5)),
    KL: (1e-4, (0.003, 0.01, 0.03, 0.1)),
}
"""Row -> the learning rate chosen in world.md, and the values of its knob there."""

RATE_OF = {
    "dico-PAC": OURS,
    "scst-PAC": "scst-CLIP",
    "scst-PAC+KL": KL,
    "scst-CLIP, beams": "scst-CLIP",
}
"""Rows that take the learning rate of another, from which they differ by their reward or baseline alone."""

LARGE, AT_LARGE = 3e-4, ("scst-CLIP", KL, OURS)
"""A learning rate at which self-critical training may collapse, and the rows that are measured there, too."""

NEIGHBOURS = ("dpo", "rloo", "grpo")
ROWS_SHOWN = (
    OURS,
    "dico-PAC",
    "scst-CIDEr",
    "scst-CLIP",
    KL,
    "scst-CLIP, beams",
    "scst-PAC",
    "scst-PAC+KL",
    *NEIGHBOURS,
)

SCORES: Columns = {
    "listener_CLIPScore": ("CLIP-S", 100.0),
    "PAC-S": ("PAC-S", 100.0),
    "listener_RefCLIPScore": ("RefCLIP-S", 100.0),
    "RefPAC-S": ("RefPAC-S", 100.0),
    "listener_R@1": ("listener R@1", 1.0),
    "listener_MRR": ("listener MRR", 100.0),
    "judge_R@1": ("judge R@1", 1.0),
    "exact_recall@1": ("exact_recall@1", 1.0),
}

WRITING: Columns = {
    "CIDEr": ("CIDEr", 100.0),
    "Bleu_4": ("BLEU-4", 100.0),
    "grammatical": ("grammatical", 1.0),
    "truthful": ("truthful", 1.0),
    "hallucinated": ("hallucinated", 1.0),
    "detail": ("detail", 1.0),
    "Self-BLEU": ("Self-BLEU", 1.0),
    "distinct_captions": ("distinct", 1.0),
    "repetition": ("repetition", 1.0),
    "mean_length": ("words", 1.0),
}

INTRODUCTION = f"""DiCO (Moratelli et al., BMVC 2024) on the built-in world, with what its paper compares it with and with
today's neighbours. `CLIP` and `PAC` are CLIP-S of the world's listener and PAC-S of the same listener after positive-augmented
training; `+KL` is a KL term in the reward (coefficient {KL_IN_REWARD:g}). `dico` has beta {BETA:g} and tau 1/300, and so has
`dpo`, which puts all weight on the worst candidate; `rloo` has a KL term in the reward ({KL_IN_REWARD:g}), `grpo` one in the loss
({KL_IN_LOSS:g}). `dico` and `dpo` compare {CANDIDATES} beams, the others draw {CANDIDATES} samples, but for
`scst-CLIP, beams`: the paper's own comparator, whose trajectories are the beams and whose baseline is their mean. The other
`scst` rows have the greedy caption as baseline, as in [world.md](world.md). What the methods are is in
[dico](../methods/dico.md) and [neighbours](../methods/neighbours.md). How to read it:
[world-dico-analysis.md](world-dico-analysis.md). Made by `make study STUDY=dico`."""


@dataclass(frozen=True)
class DicoStudy(CurveStudy):
    """Rows at their own learning rate, some at a large one, too, and two rows over their knob at a fixed rate."""

    def grid(self, row: str) -> list[Setting]:
        """The learning rates at one value of the knob, or all values of a row that is tried on val only."""
        values = (KNOBS[row],) if row in KNOBS else ROWS[row].values
        return [
            replace(self.base, row=row, learning_rate=rate, knob=value, seed=self.seeds[0])
            for value in values
            for rate in ROWS[row].learning_rates or self.learning_rates
            if row not in self.rate_of
        ]

    def curve(self, row: str) -> list[Setting]:
        """One setting a value of the knob, at the rate of ``SWEPT``."""
        rate, values = SWEPT[row]
        return [replace(self.base, row=row, learning_rate=rate, knob=value, seed=self.seeds[0]) for value in values]

    def measured(self) -> Iterator[tuple[str, list[Setting]]]:
        """The rows at their own rate, then those at the large one; curves have a table of their own."""
        return Study.measured(self)

    def protocol(self) -> str:
        """How a point was chosen, for the head of the page."""
        rates, seeds = ", ".join(f"{rate:g}" for rate in self.learning_rates), ", ".join(map(str, self.seeds))
        others = "; ".join(f"`{row}` takes that of `{other}`" for row, other in self.rate_of.items())
        return f"""learning rates {rates}
are tried with seed {self.seeds[0]} and chosen on **val** ({others}); then seeds {seeds} at the chosen
point, mean ± standard deviation."""

    def run(self, *, workers: int) -> None:
        """Train and measure the rows, then the points of the curves.

        Raises:
            UsageError: a training failed; the others are kept.
        """
        from tellapart.world.stages import resolve

        for stage in {stage for row in self.plan.rows for stage in ROWS[row].stages}:
            resolve(stage, size=self.base.size)  # once, before trainings beside one another ask for it
        super().run(workers=workers)
        points = [one for row in SWEPT for setting in self.curve(row) for one in self.seeded(setting)]
        require(run_jobs(self.jobs(points, test=True), "curves on test", workers=workers))


def make(plan: Plan, root: Path, base: Setting) -> DicoStudy:
    """The study, with its learning rates."""
    return DicoStudy(plan, root, base, learning_rates=RATES, rate_of=RATE_OF)


def at_large(study: Study) -> dict[str, Setting]:
    """Name of a further row -> its setting at the large rate."""
    return {
        f"{row} (lr {LARGE:g})": replace(study.base, row=row, learning_rate=LARGE, knob=KNOBS.get(row))
        for row in AT_LARGE
    }


def claims(study: Study) -> list[Claim]:
    """What the paper shows and what was left open in world.md, on test with greedy decoding."""
    assert isinstance(study, DicoStudy)
    reader = Reader(study)
    return [*_scores(reader), *_collapse(reader), *_beta(study), *_at_equal_recall(study)]


def _scores(reader: Reader) -> Iterator[Claim]:
    for row, key in (("dico", "listener_CLIPScore"), ("dico-PAC", "PAC-S")):
        heading = SCORES[key][0]
        ours = reader.metric(row, key, factor=100)
        for other in ("xe", "scst-CIDEr"):
            theirs = reader.metric(other, key, factor=100)
            yield Claim(f"{row} has a higher {heading} than {other}.", ours.above(theirs), f"{ours} against {theirs}.")
    cider = {row: reader.metric(row, "CIDEr", factor=100) for row in ("xe", *ROWS_SHOWN)}
    best = all(cider["scst-CIDEr"].above(value) for row, value in cider.items() if row != "scst-CIDEr")
    yield Claim("scst-CIDEr has the highest CIDEr.", best, "; ".join(f"{row} {v}" for row, v in cider.items()) + ".")


def _collapse(reader: Reader) -> Iterator[Claim]:
    """The picture of the paper's Figure 4, at the large rate and at the last step."""
    found = {row: reader.metric(f"{row} (lr {LARGE:g})", "grammatical", point="last") for row in AT_LARGE}
    scst, dico = found["scst-CLIP"], found[OURS]
    yield Claim(
        f"At {LARGE:g} scst-CLIP has lost the language by the last step (below 50 % grammatical in every seed).",
        max(scst.values) < 50,
        f"{scst}: {_seeds(scst)}.",
    )
    yield Claim(
        f"At {LARGE:g} dico holds: at least 90 % grammatical at the last step in every seed.",
        min(dico.values) >= 90,
        f"{dico}: {_seeds(dico)}; {KL} {_seeds(found[KL])}.",
    )


def _seeds(values: Seeds) -> str:
    return ", ".join(f"{value:.1f}" for value in values.values)


def _beta(study: DicoStudy) -> Iterator[Claim]:
    """The paper's Figure 5."""
    for key, sign, text in (
        ("CIDEr", 1, "A higher beta keeps more CIDEr (Spearman's rho above 0 in every seed)."),
        ("listener_CLIPScore", -1, "A higher beta gains less CLIP-S (Spearman's rho below 0 in every seed)."),
    ):
        rhos = swept_rhos(study, OURS, key)
        evidence = ", ".join("undefined" if rho is None else f"{rho:.2f}" for rho in rhos)
        yield Claim(text, all(rho is not None and sign * rho > 0 for rho in rhos), f"rho {evidence}.")


def _at_equal_recall(study: DicoStudy) -> Iterator[Claim]:
    """Both over their knobs, in the middle of the listener R@1 that all their seeds enclose."""
    value = common_middle(study, (OURS, KL), "listener_R@1")
    for key, factor in (("CIDEr", 100.0), ("grammatical", 1.0), ("exact_recall@1", 1.0)):
        text = f"At equal listener R@1 dico and {KL} differ in {WRITING.get(key, (key, 1.0))[0]} beyond the spread of seeds."
        if value is None:
            yield Claim(text, False, "no listener R@1 is enclosed by all seeds of both.")
            continue
        ours, theirs = _both(study, value, key, factor)
        apart = ours is not None and theirs is not None and (ours.above(theirs) or theirs.above(ours))
        yield Claim(text, apart, f"dico {said(ours)}, {KL} {said(theirs)} at listener R@1 {value:.1f}.")


def _both(study: DicoStudy, value: float, key: str, factor: float) -> Sequence[Seeds | None]:
    return [at_fixed(study, row, "listener_R@1", value, key, factor=factor) for row in (OURS, KL)]


PLAN = Plan(
    page="world-dico.md",
    title="DiCO and its neighbours on the world",
    introduction=INTRODUCTION,
    rows=ROWS_SHOWN,
    tables={"scores and retrieval": SCORES, "writing": WRITING},
    claims=claims,
    further=at_large,
    on_val=("dico, tau",),
    further_measures=("pac",),
    sections=sections,
)
