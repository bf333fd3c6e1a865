"""The interactive page: one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tellapart.evaluation import one_file
from tellapart.evaluation.report.curves import safe_json
from tellapart.sweep.frontier.tables import HOW_READ, Table


def write_page(
    path: Path,
    data: Mapping[str, Any],
    *,
    title: str,
    csv: str,
    protocol: str,
    tables: Sequence[Table],
    point_tables: Sequence[Table],
    failures: Sequence[str] = (),
) -> Path:
    """Write the page in one rename; returns its path.

    Args:
        path: the HTML file.
        data: of the picture and the panel next to it, as ``page_data`` gives them. Captions in it are shown as text.
        title: heading of the page.
        csv: every evaluation, for download.
        protocol: how everything was measured.
        tables: what is read off the curves.
        point_tables: every point's numbers.
        failures: a line for each training that failed.
    """
    return one_file.write_page(
        path,
        "tellapart.sweep.frontier",
        scripts=("page.js",),
        title=title,
        csv=one_file.download("text/csv", csv),
        protocol=protocol,
        how_read=HOW_READ,
        data=data,
        encoded=safe_json(data),
        tables=tables,
        point_tables=point_tables,
        failures=failures,
    )
