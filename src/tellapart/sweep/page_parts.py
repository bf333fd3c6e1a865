"""Parts of a page of results: the reading, which people write, and sections that are folded until they are opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tellapart.sweep.tasks import Task

READING = "<!-- From here a person writes. It is kept when the figures are made again. -->"
FIGURES = "<!-- From here the study writes. -->"


def reading(path: Path) -> str:
    """What a person wrote on a page, between its two marks; the marks alone on a page that is new.

    Args:
        path: of the Markdown file, which need not exist.
    """
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    _, opened, rest = text.partition(READING)
    written, closed, _ = rest.partition(FIGURES)
    kept = written.strip() if opened and closed else ""
    return "\n\n".join(part for part in (READING, kept, FIGURES) if part)


def hours_text(trained: Sequence[Task]) -> str:
    """A sentence on how long finished trainings took; ``studies/all.py`` reads it."""
    hours = sum(task.hours for task in trained)
    return f"The {len(trained)} trainings took {hours:.1f} hours of one thread, without their evaluations."


def marked(text: str, name: str, part: str) -> str:
    r"""A page with a generated part in the place between its two marks.

    Args:
        text: of the page, which has both marks.
        name: of the part.
        part: Markdown.

    Raises:
        ValueError: the page lacks a mark.

    Example:
        >>> marked("<!-- hours: begin -->\nold\n<!-- hours: end -->\n", "hours", "new").splitlines()[1]
        'new'
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"the page has no {begin if not opened else end}")
    return f"{before}{begin}\n{part}\n{end}{after}"


def folded(section: str) -> str:
    r"""A section whose heading alone is shown until a reader opens it.

    Args:
        section: Markdown that begins with a heading.

    Example:
        >>> folded("## The grid\n\nA table.").splitlines()[:2]
        ['<details markdown="1">', '<summary>The grid</summary>']
    """
    heading, _, body = section.partition("\n")
    title = heading.lstrip("#").strip().replace("&", "&amp;").replace("<", "&lt;").replace("*", "").replace("`", "")
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{body.strip()}\n\n</details>'
