"""The page of a study: tables with spreads, and each expectation with the numbers that decide it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING


from tellapart.experiments.study_claims import Claim, claims
from tellapart.experiments.world_run import CIDER_FLOOR, Setting
from tellapart.files import write_text

if TYPE_CHECKING:
    from tellapart.experiments.study import Study

COLUMNS = {
    "CIDEr": ("CIDEr", 100.0),
    "Bleu_4": ("BLEU-4", 100.0),
    "listener_R@1": ("listener R@1", 1.0),
    "listener_i2t_R@1": ("i2t R@1", 1.0),
    "judge_R@1": ("judge R@1", 1.0),
    "exact_recall@1": ("exact_recall@1", 1.0),
    "grammatical": ("grammatical", 1.0),
    "truthful": ("truthful", 1.0),
    "hallucinated": ("hallucinated", 1.0),
    "detail": ("detail", 1.0),
    "Self-BLEU": ("Self-BLEU", 1.0),
    "distinct_captions": ("distinct", 1.0),
    "repetition": ("repetition", 1.0),
    "mean_length": ("words", 1.0),
}
"""Metric -> (heading, factor it is printed with)."""

POINTS = ("selected", "last")
DECODINGS = ("greedy", "beam5")


def write_page(study: Study, path: Path, *, command: str, references: dict[str, dict[str, float]]) -> None:
    """Write the study's page.

    Args:
        study: finished.
        path: of the Markdown file.
        command: what makes it.
        references: name of a row of given captions -> its metrics on test.
    """
    sections = [_head(study, command)]
    for decoding in DECODINGS:
        sections.append(f"## Test, {'greedy' if decoding == 'greedy' else 'beam 5'}\n\n{_table(study, decoding, references)}")
    sections.append("## What was expected\n\n" + "\n".join(_claim(claim) for claim in claims(study)))
    sections.append("## The grid on val (seed 0)\n\n" + _grid(study))
    write_text(path, "\n\n".join(sections) + "\n")


def _head(study: Study, command: str) -> str:
    base = study.base
    rates = ", ".join(f"{rate:g}" for rate in study.learning_rates)
    seeds = ", ".join(map(str, study.seeds))
    return f"""# Results on the world

Made by `{command}`; do not edit by hand.

One protocol for every method: {base.steps} steps of {base.images} images, 5 captions drawn for each; learning rates {rates} and the values
of a method's knob tried with seed {study.seeds[0]}, chosen on **val**; then seeds {seeds} at the chosen point, mean ± standard deviation. A seed
redraws the start captioner `xe` and the post-training; world, listener and judge stay fixed. Evaluated on val every
{base.eval_steps} steps. *selected* is the checkpoint with the highest val listener R@1 among those whose val CIDEr is at least {CIDER_FLOOR} of
step 0's; *last* is the last step. All tables below the grid's are on **test**. CIDEr and BLEU times 100; the rest in percent but words."""


def _table(study: Study, decoding: str, references: dict[str, dict[str, float]]) -> str:
    lines = ["| row | point | " + " | ".join(heading for heading, _ in COLUMNS.values()) + " |"]
    lines.append("|---" * (len(COLUMNS) + 2) + "|")
    for name, settings in study.measured():
        for point in POINTS:
            values = [study.tested(setting).get(point, {}).get(decoding) for setting in settings]
            if all(values):
                cells = [_spread([v[key] for v in values if v], factor) for key, (_, factor) in COLUMNS.items()]
                lines.append(f"| {name} | {point if name != 'xe' else '-'} | " + " | ".join(cells) + " |")
    for name, metrics in references.items():
        cells = [f"{metrics[key] * factor:.1f}" if key in metrics else "-" for key, (_, factor) in COLUMNS.items()]
        lines.append(f"| *{name}* | - | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(values: Sequence[float], factor: float) -> str:
    mean = factor * statistics.fmean(values)
    return f"{mean:.1f} ± {factor * statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def _claim(claim: Claim) -> str:
    return f"- **{'Holds' if claim.holds else 'Does not hold'}**: {claim.text} Measured: {claim.evidence}"


def _grid(study: Study) -> str:
    lines = ["| row | knob | learning rate | selected step | R@1 | CIDEr | grammatical | last: R@1 | CIDEr | grammatical |"]
    lines.append("|---" * 10 + "|")
    for row in study.rows:
        chosen = study.chosen(row)
        for setting in study.grid(row):
            lines.append(_grid_line(study, setting, setting == chosen))
    return "\n".join(lines) + "\n\nIn bold the point that was chosen."


def _grid_line(study: Study, setting: Setting, chosen: bool) -> str:
    noted = study.trained(setting)
    cells = [setting.row, "-" if setting.knob is None else f"{setting.knob:g}", f"{setting.learning_rate:g}"]
    cells.append(str(noted["selected_step"]))
    for values in (noted["val"], noted["val_last"]):
        cells += [f"{values['listener_R@1']:.1f}", f"{100 * values['CIDEr']:.1f}", f"{values['grammatical']:.1f}"]
    return "| " + " | ".join(f"**{cell}**" if chosen else cell for cell in cells) + " |"
