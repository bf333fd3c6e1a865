"""Pages of one HTML file: templates and scripts inside them, and what their content security policy lets run."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tellapart.files import write_text


def write_page(path: Path, package: str, *, scripts: tuple[str, ...] = (), **values: Any) -> Path:
    """Write a package's ``page.html`` with its style and scripts in it, in one rename; returns its path.

    Args:
        path: the HTML file.
        package: where ``page.html``, ``page.css`` and the scripts are; ``one_file.html`` and ``one_file.css`` have what all pages
            share.
        scripts: files of its own code, in the order in which they run after plotly.js. Without any, plotly.js is left out.
        values: what else the template names.
    """
    import jinja2

    layout = jinja2.DictLoader({"one_file.html": _asset("tellapart.evaluation", "one_file.html")})
    environment = jinja2.Environment(loader=layout, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    plotly, script = _plotly() if scripts else "", "".join(_asset(package, name) for name in scripts)
    page = environment.from_string(_asset(package, "page.html")).render(
        **values,
        style=_asset("tellapart.evaluation", "one_file.css") + _asset(package, "page.css"),
        plotly=plotly,
        script=script,
        hashes=[_hash(plotly), _hash(script)] if scripts else [],
    )
    write_text(path, page)
    return path


def download(kind: str, text: str) -> str:
    """A file as an address inside a page, for a link with ``download``.

    Args:
        kind: its media type, such as ``text/csv``.
        text: of the file.
    """
    return f"data:{kind};charset=utf-8,{quote(text)}"


def _asset(package: str, name: str) -> str:
    """A file of a package, with line ends as browsers read them (the script's hash depends on it)."""
    return files(package).joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _plotly() -> str:
    """The source of plotly.js, as it can be embedded in a page."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def _hash(script: str) -> str:
    """The hash of a script that the content security policy allows."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
