"""The page on our own recipe: chosen on val over seeds by what the table over everything counts, then each part left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tellapart.errors import UsageError
from tellapart.experiments.bench.entries import ENTRIES
from tellapart.experiments.bench.table import TOGETHER, Line, dominates
from tellapart.experiments.jobs import require, run_jobs
from tellapart.experiments.negclip_rows import NEGCLIP_ROWS, RATES
from tellapart.experiments.study import Study
from tellapart.experiments.study_plan import Claim, Columns, Plan, Reader, Seeds
from tellapart.experiments.world_run import TRAINED, Setting

FREE, WITHOUT_KL = "scst-NegCLIP+KL", "scst-NegCLIP"
"""The recipe that needs no captions, and what is left of it without its tie to the start model."""

TRIED = (FREE, "dico-NegCLIP", "dico-CIDEr", "scst-NegCLIP+KL+CIDEr", "dico-NegCLIP+CIDEr")

PLAIN = {"scst-NegCLIP+KL+CIDEr": "scst-CLIP+KL+CIDEr", "dico-NegCLIP+CIDEr": "dico-CLIP+CIDEr"}
"""Row of two rewards -> the same with the plain listener, at the same point."""

ALONE = {
    "scst-NegCLIP+KL+CIDEr": ("scst-CIDEr", FREE),
    "dico-NegCLIP+CIDEr": ("dico-CIDEr", "dico-NegCLIP"),
}
"""Row of two rewards -> each of them alone, at its own point: CIDEr, NegCLIP."""

COMPARED = ("scst-CIDEr", "scst-CLIP+KL", "scst-PAC+KL", "dico", "st_multinomial", "luo2018")
"""Rows of the table over everything that are laid beside, at their points there."""

SHOWN: Columns = {
    "listener_R@1": ("listener R@1", 1.0),
    "judge_R@1": ("judge R@1", 1.0),
    "exact_recall@1": ("exact_recall@1", 1.0),
    "CIDEr": ("CIDEr", 100.0),
    "grammatical": ("grammatical", 1.0),
    "truthful": ("truthful", 1.0),
    "hallucinated": ("hallucinated", 1.0),
    "detail": ("detail", 1.0),
    "Self-BLEU": ("Self-BLEU", 1.0),
    "mean_length": ("words", 1.0),
}
ON_VAL = ("CIDEr", "exact_recall@1", "grammatical", "truthful", "listener_R@1")

INTRODUCTION = """Rewards by CLIP on the built-in world make captions long and false, because the world's listener does not see
which colour goes with which shape. `NegCLIP` is CLIP-S by `world/negclip`: the same listener, trained on against captions with
one thing exchanged or wrong (Yuksekgonul et al., ICLR 2023). `+KL` is a KL term of 0.01 in the reward, `+CIDEr` is CIDEr-D beside
CLIP-S, with the weight that is the knob. `scst` has the greedy baseline and five samples, `dico` beta 0.2, tau 1/300 and five
beams. How to read it, and what was tried before: [world-negclip-analysis.md](world-negclip-analysis.md). Made by
`make study STUDY=negclip`, after `tellapart bench world`, whose rows it is held against."""


@dataclass(frozen=True)
class NegclipStudy(Study):
    """A grid that is chosen over all seeds, by how a point stands among the rows of the table over everything, on val."""

    @cached_property
    def table(self) -> list[Line]:
        """The rows of the table over everything on val, at the selected checkpoint.

        Raises:
            UsageError: one of them was not trained.
        """
        entries = [entry for entry in ENTRIES if entry.row not in NEGCLIP_ROWS]
        return [self.line(entry.row, self.seeded(entry.setting(self.base, 0))) for entry in entries]

    def line(self, name: str, settings: list[Setting]) -> Line:
        """What was noted on val, over seeds.

        Raises:
            UsageError: it was not trained.
        """
        missing = [one for one in settings if not (self.root / one.key() / TRAINED).exists()]
        if missing:
            raise UsageError(f"{name} is not trained under {self.root}: run `tellapart bench world` first.")
        return Line(name, [self.trained(one)["val"] for one in settings])

    def standing(self, line: Line) -> tuple[int, int]:
        """How many rows of the table a point dominates on val, and how many dominate it."""
        won = sum(dominates(line, other, TOGETHER) for other in self.table)
        return won, sum(dominates(other, line, TOGETHER) for other in self.table)

    def chosen(self, row: str) -> Setting:
        """The point that the fewest rows dominate, then the one that dominates the most, then exact recall."""
        if row not in TRIED:
            return super().chosen(row)
        return max(self.grid(row), key=self._merit)

    def _merit(self, setting: Setting) -> tuple[int, int, float]:
        line = self.line(setting.row, self.seeded(setting))
        won, lost = self.standing(line)
        return -lost, won, line.mean("exact_recall@1")

    @property
    def recipe(self) -> Setting:
        """The best of all points, by the same rule."""
        return max((self.chosen(row) for row in TRIED), key=self._merit)

    def protocol(self) -> str:
        """How a point was chosen, for the head of the page."""
        seeds = ", ".join(map(str, self.seeds))
        return f"""learning rates and values of the knob
(*every point tried*, below) are tried with seeds {seeds} and chosen on **val** over the seeds: the point that the fewest rows
of [the table](leaderboard.md) dominate in exact_recall@1, CIDEr and grammatical together, and of these the one that dominates
the most. `{self.recipe.row}` is the best by that rule. Mean ± standard deviation."""

    def run(self, *, workers: int) -> None:
        """Train the grid with every seed, choose, then train what leaves a part out and measure on test.

        Raises:
            UsageError: a training failed, or the table over everything is not trained; what is there is kept.
        """
        _ = self.table  # before hours of training
        tried = [one for row in TRIED for setting in self.grid(row) for one in self.seeded(setting)]
        require(run_jobs(self.jobs(tried, test=False), "grid on val", workers=workers))
        super().run(workers=workers)


def make(plan: Plan, root: Path, base: Setting) -> NegclipStudy:
    """The study."""
    return NegclipStudy(plan, root, base, learning_rates=RATES)


def beside(study: Study) -> dict[str, Setting]:
    """Name of a further row -> its setting: the chosen recipes without their parts, and rows of the table over everything."""
    assert isinstance(study, NegclipStudy)
    found = {WITHOUT_KL: replace(study.chosen(FREE), row=WITHOUT_KL)}
    if (recipe := study.recipe).row in PLAIN:
        found[PLAIN[recipe.row]] = replace(recipe, row=PLAIN[recipe.row])
    return found | {entry.row: entry.setting(study.base, 0) for entry in ENTRIES if entry.row in COMPARED}


def sections(study: Study) -> list[str]:
    """Every point that was tried, on val over seeds."""
    assert isinstance(study, NegclipStudy)
    heads = ["row", "knob", "learning rate", *(SHOWN[key][0] for key in ON_VAL), "dominates", "dominated by"]
    lines = [_tried(study, setting) for row in TRIED for setting in study.grid(row)]
    lines += [_cells(study, line.name, "-", "-", line) for line in study.table if line.name in COMPARED]
    rows = [heads, ["---"] * len(heads), *lines]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
    return [f"## Every point tried (val, greedy, selected checkpoint, {len(study.seeds)} seeds)\n\n{text}"]


def _tried(study: NegclipStudy, setting: Setting) -> list[str]:
    knob = "-" if setting.knob is None else f"{setting.knob:g}"
    line = study.line(setting.row, study.seeded(setting))
    cells = _cells(study, setting.row, knob, f"{setting.learning_rate:g}", line)
    return [f"**{cell}**" for cell in cells] if setting == study.chosen(setting.row) else cells


def _cells(study: NegclipStudy, name: str, knob: str, rate: str, line: Line) -> list[str]:
    measured = [str(line.over_seeds(key, SHOWN[key][1])) for key in ON_VAL]
    return [name, knob, rate, *measured, *map(str, study.standing(line))]


def claims(study: Study) -> list[Claim]:
    """What the recipes are for, on test with greedy decoding at the selected checkpoint."""
    assert isinstance(study, NegclipStudy)
    reader = Reader(study)
    return [*_free(reader), *_recipe(reader, study.recipe.row)]


def _free(reader: Reader) -> Iterator[Claim]:
    for key in ("truthful", "exact_recall@1"):
        heading = SHOWN[key][0]
        for other in ("scst-CLIP+KL", "scst-PAC+KL", "luo2018"):
            yield _above(reader, FREE, other, key, f"{FREE} has a higher {heading} than {other}.")
    yield _above(reader, FREE, WITHOUT_KL, "grammatical", "The KL term keeps grammar.")


def _recipe(reader: Reader, name: str) -> Iterator[Claim]:
    for key in TOGETHER:
        yield _above(reader, name, "scst-CIDEr", key, f"{name} has a higher {SHOWN[key][0]} than scst-CIDEr.")
    if name in PLAIN:
        cider, negclip = ALONE[name]
        yield _above(
            reader, name, PLAIN[name], "truthful", "NegCLIP instead of the plain listener keeps captions true."
        )
        yield _above(reader, name, cider, "exact_recall@1", f"{name} has a higher exact_recall@1 than {cider}.")
        yield _above(reader, name, negclip, "CIDEr", f"{name} has a higher CIDEr than {negclip}.")


def _above(reader: Reader, ours: str, theirs: str, key: str, text: str) -> Claim:
    """Holds if every seed of the one lies above every seed of the other."""
    pair: list[Seeds] = [reader.metric(row, key, factor=SHOWN[key][1]) for row in (ours, theirs)]
    return Claim(text, pair[0].above(pair[1]), f"{pair[0]} against {pair[1]}.")


PLAN = Plan(
    page="world-negclip.md",
    title="A listener that reads who is what: a recipe of our own on the world",
    introduction=INTRODUCTION,
    rows=TRIED,
    tables={"": SHOWN},
    claims=claims,
    further=beside,
    sections=sections,
)
