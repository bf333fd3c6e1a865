"""Tables in a Markdown page, between marks that name them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median


def write_table(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``.

    Args:
        page: the Markdown file; it has both marks.
        name: of the table.
        lines: of the table.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text().partition(begin)
    body = "\n".join(lines)
    page.write_text(f"{before}{begin}\n{body}\n{end}{rest.partition(end)[2]}")


def spread(ratios: Sequence[float], digits: int = 0) -> str:
    """The median with the least and greatest."""
    low, middle, high = (f"{value:.{digits}f}" for value in (min(ratios), median(ratios), max(ratios)))
    return f"{middle} [{low}-{high}]"
