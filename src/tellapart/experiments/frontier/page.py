"""The interactive page: one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from tellapart.evaluation.report.curves import safe_json
from tellapart.experiments.frontier.tables import HOW_READ, Table
from tellapart.files import write_text


def write_page(
    path: Path,
    data: Mapping[str, Any],
    *,
    title: str,
    protocol: str,
    tables: Sequence[Table],
    point_tables: Sequence[Table],
    failures: Sequence[str] = (),
) -> Path:
    """Write the page in one rename; returns its path.

    Args:
        path: the HTML file.
        data: of the picture and the panel beside it, as ``page_data`` gives them. Captions in it are shown as text.
        title: heading of the page.
        protocol: how everything was measured.
        tables: what is read off the curves.
        point_tables: every point's numbers.
        failures: a line for each training that failed.
    """
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    plotly, script = _inside(get_plotlyjs()), _asset("page.js")
    page = environment.from_string(_asset("page.html")).render(
        title=title,
        protocol=protocol,
        how_read=HOW_READ,
        data=data,
        encoded=safe_json(data),
        tables=tables,
        point_tables=point_tables,
        failures=failures,
        style=_asset("page.css"),
        plotly=plotly,
        script=script,
        hashes=[_hash(plotly), _hash(script)],
    )
    write_text(path, page)
    return path


def _asset(name: str) -> str:
    """A file of this package, with line ends as browsers read them (the script's hash depends on it)."""
    return files("tellapart.experiments.frontier").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _inside(script: str) -> str:
    """A script as it can stand inside a page."""
    return script.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def _hash(script: str) -> str:
    """What the content security policy calls a script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
