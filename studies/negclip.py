"""The page on our own recipe: chosen on val over seeds by its standing in the table over everything, then each part left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tellapart.evaluation.columns import describe, markdown_cell
from tellapart.metrics.scores import CLIP_WEIGHT
from tellapart.sweep.claims import Claim, Seeds, markdown_table
from tellapart.sweep.dominance import TOGETHER, Line, dominates
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study, points_text
from tellapart.sweep.study_file import read_study
from tellapart.sweep.tasks import Setting, Task
from tellapart.sweep.trainings import dataset_of, option
from tellapart.types import Batch
from tellapart.world.grammar import Description, parse
from tellapart.world.grammar import write as write_caption

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.listeners.clip import ClipListener

FREE, WITHOUT_KL = "scst-NegCLIP+KL", "scst-NegCLIP"
"""The recipe whose reward needs no captions, and what is left of it without its tie to the start model."""

OURS, PLAIN, CIDER, NEGCLIP = "dico-NegCLIP+CIDEr", "dico-CLIP+CIDEr", "dico-CIDEr", "dico-NegCLIP"
"""Our recipe of two rewards; with the plain listener at the same point; with either reward alone, each at its own point."""

TABLE = Path(__file__).with_name("table.yaml")
COMPARED = ("scst-CIDEr", "scst-CLIP+KL", "scst-PAC+KL", "dico", "st_multinomial", "luo2018")
LEFT_OUT = (
    FREE,
    CIDER,
    OURS,
    "xe-sharp",
    "dico-truth-sharp",
    "dico-lookalikes-sharp",
    "dico-truth-sharp+CIDEr",
    "sr_pl",
    "g_gan",
)
"""Rows of the table that this study made, or that came after it: they count neither for nor against its points."""

RATES_THEN = {"wtf_rl": 3e-5, "reinforce_joint": 1e-4}
"""Captioner's learning rate of rows whose recipes took another one after this study's points were chosen."""

ON_VAL = ("CIDEr", "exact_recall@1", "grammatical", "truthful", "listener_R@1")
LISTENERS = ("listener", "pac", "negclip")
"""Those that can give CLIP-S."""

MIRRORED = {"left of": "right of", "right of": "left of", "above": "below", "below": "above", "and": "and"}
KINDS = ("cell", "relation")
"""A place of its own ("in the top left"), or one by another object ("left of")."""


class NegclipStudy(Study):
    """A grid that is chosen by how a point stands among the rows of the table over everything, on val."""

    @cached_property
    def rows_of_table(self) -> dict[str, list[Task]]:
        """Row of the table over everything -> its trainings, or the measurements of a start captioner on val, one per seed. Rows
        that only search differently draw nothing on val.

        They belong to this study, too, and are as they were then: its points stay those that were chosen when the table is
        measured again.
        """
        table = Study(read_study(TABLE), self.sweep.root, common=self.sweep.common, kept=self.sweep.kept)
        rows = {name: row.setting for name, row in table.file.rows.items() if name not in LEFT_OUT and not row.measure}
        for name, rate in RATES_THEN.items():
            rows[name] = rows[name].having({"training.learning_rate.captioner": rate})
        return {name: [table.task(name, setting, seed) for seed in self.seeds] for name, setting in rows.items()}

    @cached_property
    def table(self) -> list[Line]:
        """The rows of the table over everything on val at the selected checkpoint. Rows that are one training under two names, as
        ``sll`` and ``scst-CIDEr`` are, count once."""
        found = list[Line]()
        for name, tasks in self.rows_of_table.items():
            line = Line(name, [task.on_val() for task in tasks])
            found += [] if any(line.metrics == other.metrics for other in found) else [line]
        return found

    def line(self, name: str, setting: Setting) -> Line:
        """What a point noted on val, over seeds."""
        return Line(name, [task.on_val() for task in self.tried(name, setting)])

    def standing(self, line: Line) -> tuple[int, int]:
        """How many rows of the table a point dominates on val, and how many dominate it."""
        won = sum(dominates(line, other, TOGETHER) for other in self.table)
        return won, sum(dominates(other, line, TOGETHER) for other in self.table)

    def merit(self, name: str, setting: Setting) -> tuple[float, ...]:
        """The fewest rows that dominate it, then the most that it dominates, then exact recall."""
        line = self.line(name, setting)
        won, lost = self.standing(line)
        return -lost, won, line.mean("exact_recall@1")

    @property
    def rule(self) -> str:
        """The table takes the place of one metric."""
        return "their standing in the table over every method"

    def searching(self) -> list[Task]:
        """Every point with every seed of the search, and the rows of the table."""
        return [*super().searching(), *(task for tasks in self.rows_of_table.values() for task in tasks)]

    @property
    def tried_rows(self) -> list[str]:
        """The rows that are searched."""
        return [name for name, row in self.file.rows.items() if row.grid]


def sections(study: Study) -> Iterator[str]:
    """Every point that was tried, on val over seeds; what is false, and which listener rewards it."""
    assert isinstance(study, NegclipStudy)
    yield _points(study)
    yield places(study)


def _points(study: NegclipStudy) -> str:
    heads = [*(describe(key).label for key in ON_VAL), "dominates", "dominated by"]
    tried = []
    for name in study.tried_rows:
        for setting in study.grid(name):
            point = points_text(study.file.rows[name], setting).removesuffix(", ")
            cells = [markdown_cell(name), point, *_cells(study, study.line(name, setting))]
            tried.append([f"**{cell}**" for cell in cells] if setting == study.chosen(name) else cells)
    others = [[line.name, *_cells(study, line)] for line in study.table if line.name in COMPARED]
    return f"""## Every point tried (val, greedy, selected checkpoint, {len(study.seeds)} seeds)

The last columns count, of {len(study.table)} rows of [the table](leaderboard.md) on val, those that a point dominates and
that dominate it. In bold the chosen point of each row.

{markdown_table(["row", "point", *heads], tried)}

Rows of the table next to them:

{markdown_table(["row", *heads], others)}"""


def _cells(study: NegclipStudy, line: Line) -> list[str]:
    return [*(str(line.over_seeds(key)) for key in ON_VAL), *map(str, study.standing(line))]


def claims(study: Study) -> Iterator[Claim]:
    """What the recipes are for, on test with greedy decoding at the selected checkpoint."""

    def above(ours: str, theirs: str, key: str, text: str) -> Claim:
        first, second = (study.read(row, key) for row in (ours, theirs))
        return Claim(text, first.above(second), f"{first} against {second}.")

    for key, noun in (("truthful", "share of true captions"), ("exact_recall@1", "exact recall")):
        for other in ("scst-CLIP+KL", "scst-PAC+KL", "luo2018"):
            yield above(FREE, other, key, f"{FREE} has a higher {noun} than {other}.")
    yield above(FREE, WITHOUT_KL, "grammatical", "The KL term keeps grammar (against none).")
    nouns = {
        "exact_recall@1": "exact recall",
        "CIDEr": "CIDEr",
        "grammatical": "share of grammatical captions",
        "truthful": "share of true captions",
    }
    for other, keys in (
        ("scst-CIDEr", ("exact_recall@1", "CIDEr", "grammatical")),
        (PLAIN, ("truthful",)),
        (CIDER, ("exact_recall@1",)),
        (NEGCLIP, ("CIDEr",)),
    ):
        for key in keys:
            yield above(OURS, other, key, f"{OURS} has a higher {nouns[key]} than {other}.")


def places(study: Study) -> str:
    """Which rows say where things are, how much of it is true, and what each listener pays for saying it."""
    heads = ["row", "captions that say a place", "true of these", "true of the others"]
    lines = [[markdown_cell(name), *_said(study, tasks)] for name, tasks in study.measured.items()]
    return f"""## Places (test, greedy, selected checkpoint)

How many captions say where a thing is ("in the top left", "left of"), and how many percent are true of these and of the others.

{markdown_table(heads, lines)}

What CLIP-S gains by the places in people's captions, which are true, with each of the world's listeners: against the same
captions without them ("and" for a relation), and against the opposite places. Test, one caption per image.

{markdown_table(*study.noted("payment", lambda: _payment(study), {"listener": [f"world/{name}" for name in LISTENERS]}))}"""


def _said(study: Study, tasks: Sequence[Task]) -> Iterable[str]:
    found = []
    for task in tasks:
        measured = study.evaluation(task, "selected")
        assert measured is not None, "every row has a selected checkpoint"
        result = measured.result()
        found.append(shares(list(result.captions.values()), result.per_image["truthful"]))
    for values in zip(*found, strict=True):
        known = [value for value in values if not math.isnan(value)]
        yield str(Seeds(known)) if known else "-"


def _payment(study: Study) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of the second table."""
    from tellapart.listeners.clip import ClipListener
    from tellapart.world.stages import resolve

    recipe = next(iter(study.measured.values()))[0].recipe
    dataset, size = dataset_of(recipe, "test"), option(recipe, "data.size")
    captions = {kind: human_captions(dataset, kind) for kind in KINDS}
    heads = ["listener"]
    for kind in KINDS:
        heads += [f"{kind} ({len(captions[kind])} captions): against none", "against the opposite"]
    lines = []
    for name in LISTENERS:
        listener = ClipListener.from_pretrained(resolve(f"world/{name}", size=size), name=name, prefix="")
        listener.cache_images(dataset)
        gains = [gain for kind in KINDS for gain in paid(listener, captions[kind])]
        lines.append([name, *(f"{gain:+.3f}" for gain in gains)])
    return heads, lines


def says(description: Description, kind: str) -> bool:
    """Whether a caption says a place of a kind of :data:`KINDS`."""
    if kind == "cell":
        return any(phrase.place is not None for phrase in description.phrases)
    return any(relation != "and" for relation in description.relations)


def without_places(description: Description) -> Description:
    """The same with "and" for every relation and no cells."""
    phrases = tuple(replace(phrase, place=None) for phrase in description.phrases)
    return replace(description, phrases=phrases, relations=("and",) * len(description.relations))


def mirrored(description: Description) -> Description:
    """The same in the opposite cells, with the opposite relations."""
    phrases = tuple(
        replace(phrase, place=None if phrase.place is None else (1 - phrase.place[0], 1 - phrase.place[1]))
        for phrase in description.phrases
    )
    return replace(description, phrases=phrases, relations=tuple(MIRRORED[one] for one in description.relations))


def shares(captions: Sequence[str], truthful: Sequence[float]) -> tuple[float, float, float]:
    """Percent of captions that say a place, and how many percent are true of these and of the others (NaN of none).

    Args:
        captions: what was said; one that does not parse says no place.
        truthful: of each, 100 if it is true, else 0.
    """
    parsed = [parse(caption) for caption in captions]
    says_any = [one is not None and any(says(one, kind) for kind in KINDS) for one in parsed]
    placed, others = (
        [t for t, said in zip(truthful, says_any, strict=True) if said == which] for which in (True, False)
    )
    return 100 * len(placed) / len(captions), _mean(placed), _mean(others)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def human_captions(dataset: CaptionDataset, kind: str) -> dict[str, str]:
    """Image -> the first of its references that says a place of a kind, for images with such a reference."""
    found = {}
    for example in dataset.examples:
        said = (text for text in example.references if (one := parse(text)) is not None and says(one, kind))
        if (first := next(said, None)) is not None:
            found[str(example.id)] = first
    return found


@torch.no_grad()
def paid(listener: ClipListener, captions: Mapping[str, str]) -> tuple[float, float]:
    """What CLIP-S gains by the places in captions: against the same without, and against the same mirrored, on the mean.

    Args:
        listener: knows the images.
        captions: id of an image -> a caption.

    Raises:
        ValueError: a caption does not parse.
    """
    described = [one for one in map(parse, captions.values()) if one is not None]
    if len(described) != len(captions):
        raise ValueError(f"{len(captions) - len(described)} of {len(captions)} captions do not parse")
    images = listener.encode_images(Batch(list(captions), [[]] * len(captions)))

    def clip_s(descriptions: Sequence[Description]) -> torch.Tensor:
        texts = listener.encode_texts([write_caption(one) for one in descriptions])
        return CLIP_WEIGHT * (images * texts).sum(dim=1)

    said = clip_s(described)
    others = ([change(one) for one in described] for change in (without_places, mirrored))
    bare, wrong = (clip_s(other) for other in others)
    return (said - bare).mean().item(), (said - wrong).mean().item()


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections, kind=NegclipStudy)
