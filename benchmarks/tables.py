"""Tables in a Markdown page, between marks that name them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tellapart.sweep.page_parts import marked


def write_table(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``.

    Args:
        page: the Markdown file; it has both marks.
        name: of the table.
        lines: of the table.
    """
    page.write_text(marked(page.read_text(), name, "\n".join(lines)))


def spread(ratios: Sequence[float], digits: int = 0) -> str:
    """The median with the least and greatest."""
    low, middle, high = (f"{value:.{digits}f}" for value in (min(ratios), median(ratios), max(ratios)))
    return f"{middle} [{low}-{high}]"
