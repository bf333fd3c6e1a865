"""``leaderboard.md``: the table, its picture, and how to read both."""

from __future__ import annotations

from pathlib import Path

from tellapart.experiments.bench.bench import POINTS, Bench
from tellapart.experiments.bench.entries import Entry
from tellapart.experiments.bench.picture import draw
from tellapart.experiments.bench.seconds import TIMED
from tellapart.experiments.bench.table import COLUMNS, PLANE, TOGETHER, table
from tellapart.experiments.negclip_rows import NEGCLIP_ROWS
from tellapart.experiments.study_dico import RATE_OF
from tellapart.experiments.world_rows import STARTS
from tellapart.experiments.world_run import CIDER_FLOOR, ROWS
from tellapart.files import write_text

PAGE, PICTURE = "leaderboard.md", "leaderboard"
TITLES = {"selected": "The selected checkpoint", "last": "The last step"}


def write(bench: Bench, docs: Path) -> Path:
    """Write page and picture into a folder; returns the page's path.

    Args:
        bench: finished.
        docs: the folder.

    Raises:
        UsageError: matplotlib is not installed.
    """
    lines = {point: bench.lines(point) for point in POINTS}
    draw(docs / PICTURE, lines["selected"])
    parts = [_head(bench), f"![recall against CIDEr]({PICTURE}.png)"]
    parts += [f"## {TITLES[point]}\n\n{table(found)}" for point, found in lines.items()]
    parts.append("## Where each row's point was chosen\n\n" + _origins(bench))
    write_text(docs / PAGE, "\n\n".join(parts) + "\n")
    return docs / PAGE


def _head(bench: Bench) -> str:
    base = bench.base
    seeds = ", ".join(map(str, bench.seeds))
    plane, together = (" and ".join(COLUMNS[key][0] for key in keys) for keys in (PLANE, TOGETHER))
    return f"""# Every method in one table

Made by `tellapart bench world`: every row began with `xe` and had {base.steps} steps of {base.images} images, unless behind its
name stands what its training had instead; how many captions of an image it draws, from one to five, is the method's own. Learning
rate and knob are those that its study chose on **val** with the first seed{_inherited(bench)}
(PSST's chose rates at one weight; the weight here is, of its four, the one with the highest val listener R@1{_own(bench)});
seeds {seeds} (mean ± standard deviation). **Test**, greedy captions; mBLEU-4 of five samples an image. *selected* is
the checkpoint with the highest val listener R@1 among those whose val CIDEr is at least {CIDER_FLOOR} of step 0's.
The listener is the reward of many rows, the judge of none;
exact_recall counts what is true of the image. Higher is better but for Self-BLEU, mBLEU-4 (both: how alike captions
are) and hallucinated; detail and words say nothing by themselves. CIDEr, METEOR and mBLEU-4 are printed times 100.

`*` marks rows that no other beats in both {plane} (means over seeds; ringed in the picture's first panel). The last
columns count the rows that a row dominates, and by which it is dominated, in {together} together. A step's CPU seconds
are the mean of {TIMED}, on one thread, one row at a time."""


def _inherited(bench: Bench) -> str:
    """The rows whose learning rate their study took from the row that they vary."""
    said = [f"`{entry.row}` (of `{RATE_OF[entry.row]}`)" for entry in bench.entries if entry.row in RATE_OF]
    return f", but for learning rates that were not searched: {', '.join(said)}" if said else ""


def _own(bench: Bench) -> str:
    """How the points of our own recipe were chosen, where its rows are shown."""
    rows = [f"`{entry.row}`" for entry in bench.entries if entry.row in NEGCLIP_ROWS]
    if not rows:
        return ""
    said = "the points of {} were chosen over all seeds, by how many of the other rows they dominate on val"
    return "; " + said.format(", ".join(rows))


def _origins(bench: Bench) -> str:
    headings = ["row", "method", "begins with", "steps", "images a step", "learning rate", "knob", "chosen on"]
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    for entry in bench.entries:
        setting, start = entry.setting(bench.base, bench.seeds[0]), entry.row in STARTS
        cells = [entry.row, f"`{entry.method}`", "-" if start else entry.start]
        cells += (
            ["-"] * 4 if start else [str(setting.steps), str(setting.images), f"{entry.learning_rate:g}", _knob(entry)]
        )
        lines.append("| " + " | ".join([*cells, f"[{entry.page}]({entry.page})"]) + " |")
    return "\n".join(lines)


def _knob(entry: Entry) -> str:
    return "-" if entry.knob is None else f"{ROWS[entry.row].knob} {entry.knob:g}"
