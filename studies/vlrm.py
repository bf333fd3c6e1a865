"""The page on VLRM: what a matcher's reward does to a captioner that sees no captions, and what each part brings."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from tellapart.files import read_json
from tellapart.sweep.claims import Claim, markdown_table
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from tellapart.sweep.tasks import Task
from tellapart.sweep.trainings import option
from tellapart.world.phrases import wording
from tellapart.world.probe import PROBE
from tellapart.world.stages import resolve

START, VLRM, RS, LINEAR = "blip2", "vlrm", "vlrm_rs", "vlrm, linear value head"
PUBLISHED = "vlrm, published"
BEAM, LAST = "beam 5", "last"
"""What is expected is read under beam search, the paper's decoding, at the last step: the paper selects no checkpoint."""

WATCHED = 10
"""Last steps over which the critic is judged."""


def derive(captions: Mapping[str, str]) -> dict[str, float]:
    """How captions are worded: colours, and phrases that VLRM penalises."""
    return wording(captions)[0]


def sections(study: Study) -> Iterator[str]:
    """What the matcher knows, and how the critics did."""
    yield _matcher(study)
    yield _critics(study)


def _matcher(study: Study) -> str:
    size = option(study.measured[START][0].recipe, "data.size")
    found = study.noted("matcher", lambda: read_json(resolve("world/itm", size=size) / PROBE), {"itm": "world/itm"})
    right = markdown_table(["asked", "right (%)"], [[name, f"{v:.1f}"] for name, v in found["accuracy"].items()])
    logits = markdown_table(
        ["text", "mean logit of a match"], [[kind, f"{value:.2f}"] for kind, value in found["match"].items()]
    )
    return f"## What the matcher knows (val)\n\n{right}\n\n{logits}"


def critic_figures(task: Task) -> dict[str, float]:
    """How well a training's critic did over its last steps.

    Returns:
        ``explained``: mean share of the returns' variance that the values explain, 1 at best and below 0 where they are worse
        than a constant; ``worst``: the lowest of a step; ``value_loss``: mean squared error; ``grad_norm``: the largest norm of
        the critic's gradient in the whole run, before it was clamped.
    """
    steps = [line for line in task.history if "value_loss" in line]
    last = steps[-WATCHED:]
    explained = [line["explained_variance"] for line in last]
    return {
        "explained": statistics.fmean(explained),
        "worst": min(explained),
        "value_loss": statistics.fmean(line["value_loss"] for line in last),
        "grad_norm": max(line["grad_norm/critic"] for line in steps),
    }


def _critics(study: Study) -> str:
    lines = []
    for name, tasks in study.measured.items():
        for task in tasks if name != START else ():
            found = critic_figures(task)
            cells = [f"{found[key]:.2f}" for key in ("explained", "worst", "value_loss")]
            lines.append([name, str(task.seed), *cells, f"{found['grad_norm']:.1f}"])
    heads = ["row", "seed", "variance explained", "its worst step", "value loss", "largest gradient norm"]
    return f"## The critics (last {WATCHED} steps)\n\n{markdown_table(heads, lines)}"


def claims(study: Study) -> Iterator[Claim]:
    """What the paper shows, on test with beam 5 at the last step."""
    asked = {
        "mean_length": "longer captions",
        "detail": "more detailed captions",
        "color_coverage": "more captions with a colour",
        "judge_R@1": "a higher judge R@1",
        "exact_recall@1": "a higher exact_recall@1",
    }
    for row in (VLRM, PUBLISHED, RS):
        for key, what in asked.items():
            ours = study.read(row, key, point=LAST, decoding=BEAM)
            start = study.read(START, key, decoding=BEAM)
            yield Claim(f"{row} has {what} than {START}.", ours.above(start), f"{ours} against {start}.")
    for key in ("judge_R@1", "judge_MRR", "exact_recall@1"):
        ours, theirs = (study.read(row, key, point=LAST, decoding=BEAM) for row in (RS, VLRM))
        yield Claim(f"{RS} is over {VLRM} in {key.replace('_', ' ')}.", ours.above(theirs), f"{ours} against {theirs}.")
    ours, theirs = (study.read(row, "grammatical", point=LAST, decoding=BEAM) for row in (RS, VLRM))
    yield Claim(f"{RS} is under {VLRM} in grammatical captions.", theirs.above(ours), f"{ours} against {theirs}.")
    yield _linear(study)


def _linear(study: Study) -> Claim:
    """Seed by seed: both begin with the same captioner."""
    linear, residual = ([critic_figures(task)["explained"] for task in study.measured[row]] for row in (LINEAR, VLRM))
    written, usual = (study.read(row, "grammatical", point=LAST, decoding=BEAM) for row in (LINEAR, VLRM))
    seeds = zip(linear, residual, written.values, usual.values, strict=True)
    return Claim(
        f"The linear value head is unstable in every seed: over the last {WATCHED} steps it explains less than half of the "
        "variance that the residual one explains, or at the last step at least 10 points fewer captions are grammatical.",
        all(ours < theirs / 2 or now <= before - 10 for ours, theirs, now, before in seeds),
        f"explained {_each(linear)} against {_each(residual)}, grammatical {written} against {usual}.",
    )


def _each(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections, derive=derive)
