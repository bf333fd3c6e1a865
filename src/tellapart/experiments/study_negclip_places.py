"""The part of our own recipe's page that says what is false in captions, and which listener pays for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tellapart.evaluation.results import EvaluationResult, result_folders
from tellapart.experiments.places import KINDS, human_captions, paid, shares
from tellapart.experiments.study_plan import Seeds, markdown_table
from tellapart.experiments.world import World

if TYPE_CHECKING:
    from tellapart.experiments.study import Study
    from tellapart.experiments.world_run import Setting


def places(study: Study) -> str:
    """Which rows say where things are, how much of it is true, and what each listener pays for saying it."""
    heads = ["row", "captions that say a place", "true of these", "true of the others"]
    lines = [[name, *_said(study, settings)] for name, settings in study.measured()]
    return f"""## Places (test, greedy, selected checkpoint)

How many captions say where a thing is ("in the top left", "left of"), and how many percent are true of these and of the others.

{markdown_table(heads, lines)}

What CLIP-S gains by the places in people's captions, which are true, with each of the world's listeners: against the same
captions without them ("and" for a relation), and against the opposite places. Test, one caption an image.

{markdown_table(*_payment(study))}"""


def _said(study: Study, settings: Sequence[Setting]) -> Iterable[str]:
    found = []
    for setting in settings:
        folders = result_folders(study.root / setting.key() / "selected")
        result = EvaluationResult.load(next(folder for folder in folders if "greedy" in folder.name))
        found.append(shares(list(result.captions.values()), result.per_image["truthful"]))
    for values in zip(*found, strict=True):
        known = [value for value in values if not math.isnan(value)]
        yield str(Seeds(known)) if known else "-"


def _payment(study: Study) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of the second table."""
    world = World.load(study.base.size)
    dataset = world.dataset("test")
    captions = {kind: human_captions(dataset, kind) for kind in KINDS}
    heads = ["listener"]
    for kind in KINDS:
        heads += [f"{kind} ({len(captions[kind])} captions): against none", "against the opposite"]
    lines = []
    for listener in (world.listener, world.pac, world.negclip, world.judge):
        listener.cache_images(dataset)
        gains = [gain for kind in KINDS for gain in paid(listener, captions[kind])]
        lines.append([listener.name, *(f"{gain:+.3f}" for gain in gains)])
    return heads, lines
