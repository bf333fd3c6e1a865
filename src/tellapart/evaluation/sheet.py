"""A table of runs and metrics as text: Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tellapart.evaluation.columns import Column, markdown_cell

ARROWS = {1: r"$\uparrow$", -1: r"$\downarrow$", 0: ""}

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


@dataclass(frozen=True)
class Cell:
    """A number of a table.

    Args:
        value: on its stored scale; None where it was not measured.
        spread: standard deviation over seeds, where there are several.
        aside: what Markdown adds in brackets, such as the difference to the first run.
        starred: whether LaTeX marks it, since it clearly differs from the first run's.
    """

    value: float | None
    spread: float | None = None
    aside: str = ""
    starred: bool = False


@dataclass(frozen=True)
class Row:
    """The scores of one run, or of the runs of one recipe with several seeds.

    Args:
        name: of the row.
        cells: one per column.
        runs: how many runs were averaged.
    """

    name: str
    cells: Sequence[Cell]
    runs: int = 1


@dataclass(frozen=True)
class Sheet:
    """Rows of numbers under the headings of metrics.

    Args:
        columns: the metrics.
        rows: one per run.
        caption: what the differences mean, and how the numbers were measured.
        measured: the caption without what it says of differences, which LaTeX leaves out.
        star: what LaTeX's star means.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    caption: str
    measured: str
    star: str = ""

    @property
    def pooled(self) -> bool:
        """Whether a row pools several runs."""
        return any(row.runs > 1 for row in self.rows)

    def to_markdown(self) -> str:
        """One row per run, one column per metric, with differences; for a README or a paper draft."""
        heading = ["run", *(markdown_cell(column.label) for column in self.columns)]
        lines = [_barred(heading), "|---" * len(heading) + "|"]
        for row in self.rows:
            cells = zip(row.cells, self.columns, strict=True)
            lines.append(_barred([markdown_cell(row.name), *(_marked(cell, column) for cell, column in cells)]))
        return "\n".join([*lines, "", *self.caption.splitlines()]) + "\n"

    def to_latex(self) -> str:
        """A booktabs table of the printed values. The best value of a column is bold, as printed: ties are bold together. A star
        marks what clearly differs from the first run."""
        best = [self._best(place) for place in range(len(self.columns))]
        headings = [f"{latex_text(column.label)} {ARROWS[column.better]}".strip() for column in self.columns]
        starred = any(cell.starred for row in self.rows for cell in row.cells)
        lines = [f"% {line}" for line in [*self.measured.splitlines(), *([self.star] if starred else [])]]
        lines += [f"\\begin{{tabular}}{{l{'r' * len(self.columns)}}}", r"\toprule"]
        lines += [" & ".join(["", *headings]).strip() + r" \\", r"\midrule"]
        for row in self.rows:
            cells = zip(row.cells, self.columns, best, strict=True)
            lines.append(" & ".join([latex_text(row.name), *(_typeset(*cell) for cell in cells)]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def _best(self, place: int) -> str | None:
        """The best value of a column as printed; None where no direction is better, or there is one row."""
        column = self.columns[place]
        values = [row.cells[place].value for row in self.rows]
        measured = [value for value in values if value is not None and value == value]
        if not column.better or len(measured) < 2:
            return None
        return column.text(max(measured, key=lambda value: value * column.better))

    def to_csv(self) -> str:
        """One row per run, one column per metric by its name in ``metrics.json``, on the stored scale, unrounded.

        Where runs are pooled, ``runs`` counts them and ``<metric>_std`` is the spread.
        """
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        keys = [name for c in self.columns for name in ((c.key, f"{c.key}_std") if self.pooled else (c.key,))]
        writer.writerow(["run", *(["runs"] if self.pooled else []), *keys])
        for row in self.rows:
            numbers = [n for cell in row.cells for n in ((cell.value, cell.spread) if self.pooled else (cell.value,))]
            writer.writerow([row.name, *([row.runs] if self.pooled else []), *numbers])
        return written.getvalue()


def latex_text(text: str) -> str:
    """Text with LaTeX's special characters escaped, on one line."""
    return " ".join(re.sub(r"[\\~^&%$#_{}]", lambda found: _LATEX[found[0]], text).split())


def _barred(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _marked(cell: Cell, column: Column) -> str:
    return with_spread(cell, column) + (f" ({cell.aside})" if cell.aside else "")


def with_spread(cell: Cell, column: Column) -> str:
    """``12.3 ± 0.4`` as printed."""
    text = column.text(cell.value)
    return text if cell.spread is None else f"{text} ± {column.text(cell.spread)}"


def _typeset(cell: Cell, column: Column, best: str | None) -> str:
    text = column.text(cell.value)
    shown = (rf"\textbf{{{text}}}" if text == best else text) + ("$^{*}$" if cell.starred else "")
    return shown if cell.spread is None else rf"{shown} {{\scriptsize $\pm$ {column.text(cell.spread)}}}"
