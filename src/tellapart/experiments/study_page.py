"""The page of a study: tables with spreads, and each expectation with the numbers that decide it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.experiments.study_plan import Claim, Columns
from tellapart.experiments.world_rows import STARTS
from tellapart.experiments.world_run import CIDER_FLOOR, Setting
from tellapart.files import write_text
from tellapart.world.probe import require_probe
from tellapart.world.stages import resolve

if TYPE_CHECKING:
    from tellapart.experiments.study import Study

POINTS = ("selected", "last")
DECODINGS = {"greedy": "greedy", "beam5": "beam 5"}


def write_page(study: Study, path: Path, *, references: dict[str, dict[str, float]]) -> None:
    """Write the study's page.

    Args:
        study: finished.
        path: of the Markdown file.
        references: name of a row of given captions -> its metrics on test.
    """
    sections = [_head(study), _probe(study)]
    for decoding, heading in DECODINGS.items():
        for name, columns in study.plan.tables.items():
            title = f"## Test, {heading}" + (f": {name}" if name else "")
            sections.append(f"{title}\n\n{_table(study, decoding, columns, references)}")
    if study.plan.sets:
        sections.append("## Test, five captions an image\n\n" + _table(study, "sets", study.plan.sets, {}))
    sections += study.plan.sections(study)
    sections.append("## What was expected\n\n" + "\n".join(_claim(claim) for claim in study.plan.claims(study)))
    sections.append(f"## The grid on val (seed {study.seeds[0]})\n\n" + _grid(study))
    write_text(path, "\n\n".join(sections) + "\n")


def _head(study: Study) -> str:
    base = study.base
    return f"""# {study.plan.title}

{study.plan.introduction}

One protocol for every method: {base.steps} steps of {base.images} images; {study.protocol()}
A seed redraws the start captioner ({", ".join(study.plan.starts)}) and the post-training; world, listener and judge
stay fixed. Evaluated on val every {base.eval_steps} steps. *selected* is the checkpoint with the highest val listener R@1
among those whose val CIDEr is at least {CIDER_FLOOR} of step 0's; *last* is the last step. The first tables are on **test**.
CIDEr and BLEU are printed times 100, words are counted, everything else is in percent."""


def _probe(study: Study) -> str:
    """What the listeners know, on val."""
    names = study.plan.probed
    probes = [require_probe(resolve(f"world/{name}", size=study.base.size)) for name in names]
    lines = ["| asked | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for key in probes[0]["accuracy"]:
        lines.append(f"| {key} | " + " | ".join(f"{probe['accuracy'][key]:.1f}" for probe in probes) + " |")
    for kind in probes[0]["recall"]:
        cells = " | ".join(f"{probe['recall'][kind]['t2i_R@1']:.1f}" for probe in probes)
        lines.append(f"| R@1 of the text *{kind}* | {cells} |")
    blind = [name for name, probe in zip(names, probes, strict=True) if probe["order_blind"]]
    said = f"Order-blind: {', '.join(blind) or 'none'}."
    return f"## What {', '.join(names[:-1])} and {names[-1]} know (val, %)\n\n" + "\n".join(lines) + f"\n\n{said}"


def _table(study: Study, decoding: str, columns: Columns, references: dict[str, dict[str, float]]) -> str:
    lines = ["| row | point | " + " | ".join(heading for heading, _ in columns.values()) + " |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    for name, settings in study.measured():
        for point in POINTS:
            values = [study.tested(setting).get(point, {}).get(decoding) for setting in settings]
            if all(values):
                measured = [value for value in values if value]
                cells = [
                    _spread([v[key] for v in measured if key in v], factor) for key, (_, factor) in columns.items()
                ]
                lines.append(f"| {name} | {'-' if name in STARTS else point} | " + " | ".join(cells) + " |")
    for name, metrics in references.items():
        cells = [f"{metrics[key] * factor:.1f}" if key in metrics else "-" for key, (_, factor) in columns.items()]
        lines.append(f"| *{name}* | - | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(values: Sequence[float], factor: float) -> str:
    if not values:
        return "-"
    mean = factor * statistics.fmean(values)
    return f"{mean:.1f} ± {factor * statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def _claim(claim: Claim) -> str:
    return f"- **{'Holds' if claim.holds else 'Does not hold'}**: {claim.text} Measured: {claim.evidence}"


def _grid(study: Study) -> str:
    lines = [
        "| row | knob | learning rate | selected step | R@1 | CIDEr | grammatical | last: R@1 | CIDEr | grammatical |"
    ]
    lines.append("|---" * 10 + "|")
    for row in (*study.plan.rows, *study.plan.on_val):
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
