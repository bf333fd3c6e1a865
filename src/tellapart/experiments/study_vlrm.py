"""The page on VLRM: what a matcher's reward does to a captioner that sees no captions, and what each part brings."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.experiments.study_curves import CurveStudy
from tellapart.experiments.study_plan import Claim, Columns, Plan, Reader, Seeds
from tellapart.experiments.vlrm_rows import LINEAR, METHODS, TRIED, VLRM_CHANGES, VLRM_ROWS
from tellapart.world.matcher_probe import PROBE
from tellapart.world.stages import resolve

if TYPE_CHECKING:
    from tellapart.experiments.study import Study
    from tellapart.experiments.world_run import Setting

START, VLRM, RS = "blip2", "vlrm", "vlrm_rs"
IMAGES, STEPS = 512, 40
"""The effective batch of the world's runs, where the paper has 4096; 20,480 captions a run."""

DECODING, LAST = "beam5", "last"
"""What is expected is read under beam search, the paper's decoding, at the last step: the paper selects no checkpoint."""

WATCHED = 10
"""Last steps over which the critic is judged."""

RETRIEVAL: Columns = {
    "judge_R@1": ("judge R@1", 1.0),
    "judge_MRR": ("judge MRR", 100.0),
    "listener_R@1": ("listener R@1", 1.0),
    "listener_MRR": ("listener MRR", 100.0),
    "exact_recall@1": ("exact_recall@1", 1.0),
}

WRITING: Columns = {
    "detail": ("detail", 1.0),
    "hallucinated": ("hallucinated", 1.0),
    "mean_length": ("words", 1.0),
    "color_coverage": ("with a colour", 1.0),
    "distinct_colors": ("colours", 1.0),
    "listed_phrases": ("listed phrases", 1.0),
    "grammatical": ("grammatical", 1.0),
    "truthful": ("truthful", 1.0),
    "repetition": ("repetition", 1.0),
    "unfinished": ("unfinished", 1.0),
    "CIDEr": ("CIDEr", 100.0),
}

INTRODUCTION = f"""VLRM and VLRM-RS (Dzabraev et al., 2024) on the built-in world. `blip2` is the world's BLIP-2 as teacher
forcing leaves it; only its queries, Q-Former and projection learn. The reward is the positive logit of the world's matcher
(`world/itm`), with the mean log-probability under `world/language_model` in `vlrm`, and with 0.3 Phi of the reward listener in
`vlrm_rs`; no training reads a human caption. Listed phrases are the world's openers (`data/world/phrases.txt`); beside
colours, prepositions and articles, sizes, textures, places and "and" may be said twice. One caption is drawn for each image, at
temperature 1 with nothing cut off, and all tokens count alike, where the paper has temperature 2, top-k 6 and the mean over
each caption: rows of their own show what these do here. *colours* are different colour words a caption; MRR is printed times
100. How to read it: [world-vlrm-analysis.md](world-vlrm-analysis.md). Made by `make study STUDY=vlrm`. The learning rates are
{", ".join(f"{rate:g}" for rate in TRIED)} of the captioner and one of the critic; rows that change one thing of `vlrm` take its
learning rate and one seed."""


def make(plan: Plan, root: Path, base: Setting) -> CurveStudy:
    """The study: more images a step than others have, and what is changed in vlrm at its rate, with one seed."""
    rates = dict.fromkeys(VLRM_CHANGES, VLRM)
    return CurveStudy(plan, root, replace(base, images=IMAGES), one_seed=tuple(VLRM_CHANGES), rate_of=rates)


def sections(study: Study) -> list[str]:
    """What the matcher knows, and how the critics did."""
    return [_matcher(study), _critics(study)]


def _matcher(study: Study) -> str:
    found = json.loads((resolve("world/itm", size=study.base.size) / PROBE).read_text(encoding="utf-8"))
    lines = ["| asked | right (%) |", "|---|---|"]
    lines += [f"| {name} | {value:.1f} |" for name, value in found["accuracy"].items()]
    lines += ["", "| text | mean logit of a match |", "|---|---|"]
    lines += [f"| {kind} | {value:.2f} |" for kind, value in found["match"].items()]
    return "## What the matcher knows (val)\n\n" + "\n".join(lines)


def critic_figures(study: Study, setting: Setting) -> dict[str, float]:
    """How well a training's critic did over its last steps.

    Returns:
        ``explained``: mean share of the returns' variance that the values explain, 1 at best and below 0 where they are worse
        than a constant; ``worst``: the lowest of a step; ``value_loss``: mean squared error; ``grad_norm``: the largest norm of
        the critic's gradient in the whole run, before it was clamped.
    """
    path = study.root / setting.key() / "metrics.jsonl"
    logged = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = [line for line in logged if "value_loss" in line]
    last = steps[-WATCHED:]
    explained = [line["explained_variance"] for line in last]
    return {
        "explained": statistics.fmean(explained),
        "worst": min(explained),
        "value_loss": statistics.fmean(line["value_loss"] for line in last),
        "grad_norm": max(line["grad_norm/critic"] for line in steps),
    }


def _critics(study: Study) -> str:
    lines = [
        "| row | seed | variance explained | its worst step | value loss | largest gradient norm |",
        "|---" * 6 + "|",
    ]
    for row, settings in dict(study.measured()).items():
        for setting in settings if row in VLRM_ROWS else ():
            found = critic_figures(study, setting)
            cells = [f"{found['explained']:.2f}", f"{found['worst']:.2f}"]
            cells += [f"{found['value_loss']:.2f}", f"{found['grad_norm']:.1f}"]
            lines.append(f"| {row} | {setting.seed} | " + " | ".join(cells) + " |")
    return f"## The critics (last {WATCHED} steps)\n\n" + "\n".join(lines)


def claims(study: Study) -> list[Claim]:
    """What the paper shows, on test with beam 5 at the last step."""
    reader = Reader(study)
    return [*_more(reader), *_rs_over_vlrm(reader), _linear(study, reader)]


def _more(reader: Reader) -> Iterator[Claim]:
    asked = {
        "mean_length": "longer captions",
        "detail": "more detailed captions",
        "color_coverage": "more captions with a colour",
        "judge_R@1": "a higher judge R@1",
        "exact_recall@1": "a higher exact_recall@1",
    }
    for row in METHODS:
        for key, what in asked.items():
            ours = reader.metric(row, key, point=LAST, decoding=DECODING)
            start = reader.metric(START, key, decoding=DECODING)
            yield Claim(f"{row} has {what} than {START}.", ours.above(start), f"{ours} against {start}.")


def _rs_over_vlrm(reader: Reader) -> Iterator[Claim]:
    def read(key: str) -> list[Seeds]:
        factor = RETRIEVAL[key][1] if key in RETRIEVAL else 1.0
        return [reader.metric(row, key, factor=factor, point=LAST, decoding=DECODING) for row in (RS, VLRM)]

    for key in ("judge_R@1", "judge_MRR", "exact_recall@1"):
        ours, theirs = read(key)
        yield Claim(f"{RS} is over {VLRM} in {key.replace('_', ' ')}.", ours.above(theirs), f"{ours} against {theirs}.")
    ours, theirs = read("grammatical")
    yield Claim(f"{RS} is under {VLRM} in grammatical captions.", theirs.above(ours), f"{ours} against {theirs}.")


def _linear(study: Study, reader: Reader) -> Claim:
    """Seed 0, since the linear head has no other."""
    linear, residual = (critic_figures(study, reader.rows[row][0]) for row in (LINEAR, VLRM))
    grammatical = [reader.metric(row, "grammatical", point=LAST, decoding=DECODING).values[0] for row in (LINEAR, VLRM)]
    return Claim(
        f"The linear value head is unstable (seed 0): over the last {WATCHED} steps it explains less than half of the variance "
        "that the residual one explains, or at the last step at least 10 points fewer captions are grammatical.",
        linear["explained"] < residual["explained"] / 2 or grammatical[0] <= grammatical[1] - 10,
        f"explained {linear['explained']:.2f} against {residual['explained']:.2f}, grammatical {grammatical[0]:.1f} against "
        f"{grammatical[1]:.1f}.",
    )


PLAN = Plan(
    page="world-vlrm.md",
    title="VLRM on the world",
    introduction=INTRODUCTION,
    rows=tuple(VLRM_ROWS),
    tables={"retrieval": RETRIEVAL, "writing": WRITING},
    claims=claims,
    starts=(START,),
    further_measures=("wording",),
    sections=sections,
)
