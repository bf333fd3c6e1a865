"""What the methods' papers lead one to expect on the world, decided by the study's own numbers."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tellapart.evaluation.bootstrap import paired_bootstrap
from tellapart.evaluation.results import EvaluationResult, result_folders

if TYPE_CHECKING:
    from tellapart.experiments.study import Study
    from tellapart.experiments.world_run import Setting


@dataclass(frozen=True)
class Claim:
    """An expectation, whether it holds, and the numbers that decided."""

    text: str
    holds: bool
    evidence: str


@dataclass(frozen=True)
class Seeds:
    """One metric of one row over seeds."""

    values: list[float]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.values)

    def __str__(self) -> str:
        spread = f" ± {statistics.stdev(self.values):.1f}" if len(self.values) > 1 else ""
        return f"{self.mean:.1f}{spread}"

    def above(self, other: Seeds) -> bool:
        """Whether even the lowest seed lies above the other row's highest."""
        return min(self.values) > max(other.values)


class Reader:
    """Looks up test metrics of a study's rows under greedy decoding."""

    def __init__(self, study: Study) -> None:
        self.study, self.rows = study, dict(study.measured())

    def metric(self, row: str, key: str, *, point: str = "selected", factor: float = 1.0) -> Seeds:
        """A metric over seeds."""
        tested = [self.study.tested(setting) for setting in self.rows[row]]
        return Seeds([factor * test[point]["greedy"][key] for test in tested])

    def per_image(self, setting: Setting, key: str, point: str) -> np.ndarray:
        """``[images]`` values of one seed."""
        folders = result_folders(self.study.root / setting.key() / point)
        greedy = next(folder for folder in folders if "greedy" in folder.name)
        return np.asarray(EvaluationResult.load(greedy).per_image[key], dtype=np.float64)

    def interval(self, row: str, key: str, *, point: str = "selected") -> tuple[float, float]:
        """95 % paired-bootstrap interval over images of the row's gain over xe, seeds averaged first."""
        ours = np.mean([self.per_image(s, key, point) for s in self.rows[row]], axis=0)
        start = np.mean([self.per_image(s, key, "selected") for s in self.rows["xe"]], axis=0)
        _, low, high = paired_bootstrap(start, ours)
        return float(low), float(high)


def claims(study: Study) -> list[Claim]:
    """Every expectation of the page, on test with greedy decoding."""
    reader = Reader(study)
    collapses = [_collapse(reader, name) for name in reversed(study.collapses())]
    return [*collapses, *_dico(reader), *_cider(study, reader)]


def _collapse(reader: Reader, row: str) -> Claim:
    grammatical = reader.metric(row, "grammatical", point="last")
    recall, start = reader.metric(row, "listener_R@1", point="last"), reader.metric("xe", "listener_R@1")
    return Claim(
        f"{row} collapses: at its last step below 10 % grammatical while listener R@1 is far above xe's.",
        max(grammatical.values) < 10 and recall.above(start),
        f"grammatical {grammatical}, listener R@1 {recall} against {start}.",
    )


def _dico(reader: Reader) -> list[Claim]:
    grammatical = reader.metric("dico", "grammatical")
    recall, start = reader.metric("dico", "listener_R@1"), reader.metric("xe", "listener_R@1")
    exact, exact_start = reader.metric("dico", "exact_recall@1"), reader.metric("xe", "exact_recall@1")
    low, high = reader.interval("dico", "exact_recall@1")
    return [
        Claim(
            "dico at its selected checkpoint is above 90 % grammatical.",
            min(grammatical.values) > 90,
            f"{grammatical}.",
        ),
        Claim(
            "dico at its selected checkpoint has a listener R@1 at least 25 points over xe's.",
            recall.mean - start.mean >= 25 and recall.above(start),
            f"{recall} against {start}.",
        ),
        Claim(
            "dico at its selected checkpoint has an exact_recall@1 above xe's.",
            exact.above(exact_start) and low > 0,
            f"{exact} against {exact_start}; gain over images [{low:.1f}, {high:.1f}].",
        ),
    ]


def _cider(study: Study, reader: Reader) -> list[Claim]:
    rows = ["xe", *study.rows]
    cider = {row: reader.metric(row, "CIDEr", factor=100.0) for row in rows}
    alike = {row: reader.metric(row, "Self-BLEU") for row in rows}
    ours = "scst-CIDEr"
    return [
        Claim(
            "scst-CIDEr has the highest CIDEr.",
            all(cider[ours].above(cider[row]) for row in rows if row != ours),
            "; ".join(f"{row} {value}" for row, value in cider.items()) + ".",
        ),
        Claim(
            "scst-CIDEr has the lowest diversity (highest Self-BLEU).",
            all(alike[ours].above(alike[row]) for row in rows if row != ours),
            "; ".join(f"{row} {value}" for row, value in alike.items()) + ".",
        ),
    ]
