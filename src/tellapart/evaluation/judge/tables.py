"""Results as a Markdown page, and every answer as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from tellapart.evaluation.columns import markdown_cell
from tellapart.evaluation.judge.answers import Answer
from tellapart.evaluation.judge.study import READS_BETTER, WHICH_IMAGE, Study
from tellapart.files import harmless_cell

COLUMNS = (
    "rater",
    "item",
    "question",
    "run",
    "image",
    "distractor",
    "caption_a",
    "caption_b",
    "shown_first",
    "choice",
    "right",
    "seconds",
    "answered",
)
NOTHING = "–"


def to_csv(study: Study, answers: Sequence[Answer]) -> str:
    """A row an answer, in the order given.

    ``run`` is a, b or ab (both wrote the caption, or both are compared); ``right`` is 1 or 0 for *which image*. A cell that a
    spreadsheet would take for a formula has an apostrophe before it.
    """
    items = {item.id: item for item in study.items}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for answer in answers:
        item = items.get(answer.item)
        if item is None:
            continue
        which = item.question == WHICH_IMAGE
        captions = ["", ""]
        for run in item.runs:
            captions[run] = item.captions[0 if which else run]
        right = int(answer.choice == "target") if which else ""
        row = [answer.rater, item.id, item.question, "".join("ab"[run] for run in item.runs), item.images[0]]
        row += [item.images[1] if which else "", *captions, answer.first, answer.choice]
        seconds = "" if answer.seconds is None else f"{answer.seconds:.3f}"
        rows.writerow([*map(harmless_cell, row), right, seconds, answer.answered])
    return text.getvalue()


def to_markdown(summary: Mapping[str, Any]) -> str:
    """The results as a person reads them.

    Args:
        summary: as ``summarize`` makes it.
    """
    names = [markdown_cell(summary["runs"][key]) for key in ("a", "b")]
    raters = ", ".join(f"{markdown_cell(r['name'])} ({r['answers']} of {r['items']})" for r in summary["raters"])
    lines = [
        f"# Judged captions: {names[0]} and {names[1]}",
        "",
        f"Raters and their answers: {raters or 'none yet'}.",
        "",
    ]
    if summary[WHICH_IMAGE]["asked"]:
        lines += _which_image(summary, names)
    if summary[READS_BETTER]["asked"]:
        lines += _reads_better(summary, names)
    lines += _models(summary, names)
    notes = [text for text in summary["about"].values() if isinstance(text, str) and text]
    lines += [
        "## How this was measured",
        "",
        *(f"- {markdown_cell(text)}" for text in [*notes, *summary["methods"].values()]),
    ]
    return "\n".join(lines) + "\n"


def _which_image(summary: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    found = summary[WHICH_IMAGE]
    lines = ["## Which image does the caption describe?", ""]
    lines += [
        "| run | accuracy | 95 % interval | items | right | wrong | undecided | answers right |",
        "|---" * 8 + "|",
    ]
    for name, row in zip(names, found["runs"], strict=True):
        answers = f"{row['answers_right']} of {row['answers']}"
        cells = [
            name,
            percent(row["share"]),
            _interval(row),
            *(str(row[k]) for k in ("items", "right", "wrong", "undecided")),
        ]
        lines.append("| " + " | ".join([*cells, answers]) + " |")
    paired = found["paired"]
    lines += ["", f"Judged: {found['judged']} of {found['asked']} items. Guessing is right in half of them."]
    if paired["images"]:
        lines.append(
            f"Of {paired['images']} images judged for both runs, {names[0]} alone is right in {paired['only_a']}, {names[1]} "
            f"alone in {paired['only_b']} (sign test, p = {paired['p_value']:.3g})."
        )
    return [*lines, _agreement(found["agreement"]), ""]


def _reads_better(summary: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    found = summary[READS_BETTER]
    lines = ["## Which caption reads better?", ""]
    lines += [f"| prefer {names[1]} | 95 % interval | for {names[0]} | for {names[1]} | undecided |", "|---" * 5 + "|"]
    cells = [percent(found["share"]), _interval(found), *(str(found[key]) for key in ("a", "b", "undecided"))]
    lines += ["| " + " | ".join(cells) + " |", ""]
    test = "" if found["p_value"] is None else f" Sign test: p = {found['p_value']:.3g}."
    lines.append(f"Judged: {found['judged']} of {found['asked']} items, {found['answers']} answers.{test}")
    return [*lines, _agreement(found["agreement"]), ""]


def _models(summary: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """One row per model."""
    if not summary["models"]:
        return []
    a, b = names
    headings = ["model", f"prefer {b}", "95 % interval", "undecided", f"accuracy of {a}", f"accuracy of {b}"]
    headings += ["same caption in both orders", "answers for the first shown", "agrees with people"]
    lines = ["## Models as judges", "", "| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    for row in summary["models"]:
        better, which, bias = row[READS_BETTER], row[WHICH_IMAGE], row["position_bias"] or {}
        same = bias["consistent"] / bias["items"] if bias.get("items") else None
        people = f"{percent(row['with_people']['share'])} of {row['with_people']['items']}"
        cells = [markdown_cell(row["rater"]), percent(better["share"]), _interval(better), str(better["undecided"])]
        cells += [percent(run["share"]) for run in which["runs"]]
        cells += [percent(same), percent(bias.get("share_first")), people if row["with_people"]["items"] else NOTHING]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _agreement(found: Mapping[str, Any]) -> str:
    if not found["items"]:
        return "Agreement: no item has two answers yet."
    kappa = "undefined, all answers are alike" if found["kappa"] is None else f"{found['kappa']:.2f}"
    return (
        f"Agreement of {found['raters']} raters over {found['items']} items: {percent(found['observed'])} of pairs, "
        f"{found['kind']}'s kappa {kappa}."
    ).replace("Fleiss's", "Fleiss'")


def percent(value: float | None) -> str:
    """``62.5 %``."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def _interval(row: Mapping[str, Any]) -> str:
    return NOTHING if row["interval"] is None else f"[{', '.join(f'{100 * end:.1f}' for end in row['interval'])}]"
