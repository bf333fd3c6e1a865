"""The page on our own recipe: chosen on val over seeds by what the table over everything counts, then each part left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tellapart.errors import UsageError
from tellapart.experiments.bench.entries import ENTRIES
from tellapart.experiments.bench.table import TOGETHER, Line, dominates
from tellapart.experiments.jobs import require, run_jobs
from tellapart.experiments.negclip_rows import NEGCLIP_ROWS
from tellapart.experiments.study import Study
from tellapart.experiments.study_negclip_places import places
from tellapart.experiments.study_plan import Claim, Columns, Plan, Reader, Seeds, markdown_table
from tellapart.experiments.world_run import TRAINED, Setting

FREE, WITHOUT_KL = "scst-NegCLIP+KL", "scst-NegCLIP"
"""The recipe whose reward needs no captions, and what is left of it without its tie to the start model."""

TRIED = (FREE, "dico-NegCLIP", "dico-CIDEr", "scst-NegCLIP+KL+CIDEr", "dico-NegCLIP+CIDEr")

LEFT_OUT = {"dico-NegCLIP+CIDEr": ("dico-CLIP+CIDEr", "dico-CIDEr", "dico-NegCLIP")}
"""Row of two rewards -> the same with the plain listener, at the same point; CIDEr alone and NegCLIP alone, at their own."""

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

INTRODUCTION = """Rewards by CLIP on the built-in world make captions long and false. `NegCLIP` is CLIP-S by `world/negclip`: the
world's listener, trained on against captions with one thing exchanged or wrong (Yuksekgonul et al., ICLR 2023), so that it sees
which attribute is whose. `PAC` is PAC-S by `world/pac`, the listener trained on with generated captions. `+KL` is a KL term of
0.01 in the reward, `+CIDEr` is CIDEr-D beside CLIP-S, with the weight that is the knob. `scst` has the greedy baseline and five
samples, `dico` beta 0.2, tau 1/300 and five beams. How to read it, and what was tried before:
[world-negclip-analysis.md](world-negclip-analysis.md). Made by `make study STUDY=negclip`, after `tellapart bench world`, whose
rows it is held against."""


@dataclass(frozen=True)
class NegclipStudy(Study):
    """A grid that is chosen over all seeds, by how a point stands among the rows of the table over everything, on val."""

    @cached_property
    def table(self) -> list[Line]:
        """The rows of the table over everything on val, at the selected checkpoint, without this study's own. Rows that
        are one training under two names, as ``sll`` and ``scst-CIDEr`` are, count once.

        Raises:
            UsageError: one of them was not trained.
        """
        found = list[Line]()
        for entry in ENTRIES:
            if entry.row not in NEGCLIP_ROWS:
                settings = self.seeded(entry.setting(self.base, 0))
                if any(not (self.root / one.key() / TRAINED).exists() for one in settings):
                    raise UsageError(
                        f"{entry.row} is not trained under {self.root}: run `tellapart bench world --output_dir {self.root}` "
                        "first, with this study's --size and --steps."
                    )
                line = self.line(entry.row, settings)
                found += [] if any(line.metrics == other.metrics for other in found) else [line]
        return found

    def line(self, name: str, settings: list[Setting]) -> Line:
        """What was noted on val, over seeds."""
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

    @property
    def without(self) -> dict[str, Setting]:
        """Rows that leave a part out -> the point that was chosen with it."""
        recipe, found = self.recipe, {WITHOUT_KL: replace(self.chosen(FREE), row=WITHOUT_KL)}
        if recipe.row in LEFT_OUT:
            plain, *_ = LEFT_OUT[recipe.row]
            found[plain] = replace(recipe, row=plain)
        return found

    def protocol(self) -> str:
        """How a point was chosen, for the head of the page."""
        seeds = ", ".join(map(str, self.seeds))
        without, compared = (", ".join(f"`{row}`" for row in rows) for rows in (self.without, COMPARED))
        return f"""the rows of *every point tried* (below) are
trained with seeds {seeds} and chosen on **val** over the seeds: the point that the fewest of {len(self.table)} rows of
[the table](leaderboard.md) dominate in exact_recall@1, CIDEr and grammatical together, then the one that dominates the most,
then the one with more exact recall. `{self.recipe.row}` is the best by that rule. Rows that leave
a part out ({without}) stand at the point that was chosen with it; {compared}
at that of their own study, which chose by the listener R@1 of the first seed. Mean ± standard deviation. *Holds*, below, means
that every seed of the one lies beyond every seed of the other."""

    def run(self, *, workers: int) -> None:
        """Train the grid with every seed, choose, then train what leaves a part out and measure on test.

        Raises:
            UsageError: a training failed, or the table over everything is not trained; what is there is kept.
        """
        _ = self.table  # before hours of training
        tried = [one for row in TRIED for setting in self.grid(row) for one in self.seeded(setting)]
        require(run_jobs(self.jobs(tried, test=False), "grid on val", workers=workers))
        super().run(workers=workers)


make = NegclipStudy


def beside(study: Study) -> dict[str, Setting]:
    """Name of a further row -> its setting: the chosen recipes without their parts, and rows of the table over everything."""
    assert isinstance(study, NegclipStudy)
    return study.without | {entry.row: entry.setting(study.base, 0) for entry in ENTRIES if entry.row in COMPARED}


def sections(study: Study) -> list[str]:
    """Every point that was tried, on val over seeds; what is false, and which listener pays for it."""
    assert isinstance(study, NegclipStudy)
    return [_points(study), places(study)]


def _points(study: NegclipStudy) -> str:
    measured = [*(SHOWN[key][0] for key in ON_VAL), "dominates", "dominated by"]
    tried = [_tried(study, setting) for row in TRIED for setting in study.grid(row)]
    others = [[line.name, *_cells(study, line)] for line in study.table if line.name in COMPARED]
    return f"""## Every point tried (val, greedy, selected checkpoint, {len(study.seeds)} seeds)

The last columns count, of {len(study.table)} rows of [the table](leaderboard.md) on val, those that a point dominates and
that dominate it. In bold the chosen point of each row.

{markdown_table(["row", "knob", "learning rate", *measured], tried)}

Rows of the table beside them:

{markdown_table(["row", *measured], others)}"""


def _tried(study: NegclipStudy, setting: Setting) -> list[str]:
    knob = "-" if setting.knob is None else f"{setting.knob:g}"
    line = study.line(setting.row, study.seeded(setting))
    cells = [setting.row, knob, f"{setting.learning_rate:g}", *_cells(study, line)]
    return [f"**{cell}**" for cell in cells] if setting == study.chosen(setting.row) else cells


def _cells(study: NegclipStudy, line: Line) -> list[str]:
    return [*(str(line.over_seeds(key, SHOWN[key][1])) for key in ON_VAL), *map(str, study.standing(line))]


def claims(study: Study) -> list[Claim]:
    """What the recipes are for, on test with greedy decoding at the selected checkpoint."""
    assert isinstance(study, NegclipStudy)
    reader = Reader(study)
    return [*_free(reader), *_recipe(reader, study.recipe.row)]


def _free(reader: Reader) -> Iterator[Claim]:
    for key, noun in (("truthful", "share of true captions"), ("exact_recall@1", "exact recall")):
        for other in ("scst-CLIP+KL", "scst-PAC+KL", "luo2018"):
            yield _above(reader, FREE, other, key, f"{FREE} has a higher {noun} than {other}.")
    yield _above(reader, FREE, WITHOUT_KL, "grammatical", "The KL term keeps grammar (against none).")


def _recipe(reader: Reader, name: str) -> Iterator[Claim]:
    for key, noun in (
        ("exact_recall@1", "exact recall"),
        ("CIDEr", "CIDEr"),
        ("grammatical", "share of grammatical captions"),
    ):
        yield _above(reader, name, "scst-CIDEr", key, f"{name} has a higher {noun} than scst-CIDEr.")
    if name in LEFT_OUT:
        plain, cider, negclip = LEFT_OUT[name]
        yield _above(reader, name, plain, "truthful", f"{name} has a higher share of true captions than {plain}.")
        yield _above(reader, name, cider, "exact_recall@1", f"{name} has a higher exact recall than {cider}.")
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
    probed=("listener", "negclip", "judge"),
)
