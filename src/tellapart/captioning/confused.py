"""A page of the images whose captions suit a look-alike at least as well: both pictures, both captions, what differs marked."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from importlib.resources import files
from pathlib import Path
from typing import Any

from tellapart.captioning.gate import CONFUSED, words
from tellapart.captioning.records import Caption, Item, Row
from tellapart.errors import UsageError
from tellapart.files import write_text

MOST = 200
"""Pairs on a page, the worst."""

_HEAD = 1024
_TITLE = b"<title>Images that stay confused</title>"
"""What tells such a page from others, near its beginning."""

SIDE = 480
"""Longest side of a picture in pixels."""


def require_own_page(path: Path) -> None:
    """Raise if another file has the place of this page.

    Raises:
        UsageError: naming the file.
    """
    with suppress(FileNotFoundError), path.open("rb") as file:
        first = file.read(_HEAD)
        if first and _TITLE not in first:
            raise UsageError(
                f"{path} is not a page of confused images, and would be replaced by one: rename or move it."
            )


def write_confused(path: Path, rows: Sequence[Row], items: Iterable[Item]) -> int:
    """Write the page, worst pairs first, and return how many images stay confused; without any, the file is removed.

    Args:
        path: the HTML file.
        rows: all images with captions.
        items: the collection.
    """
    import jinja2

    by_id = {item.id: item for item in items}  # which may lack a rival of a run that was stopped
    confused = [(item, caption) for item, caption in rows if CONFUSED in caption.flags and caption.rival in by_id]
    if not confused:
        path.unlink(missing_ok=True)
        return 0
    confused.sort(key=lambda row: row[1].margin or 0.0)
    said = {item.id: caption.caption for item, caption in rows}
    told = f"{len(confused)} of {len(rows)} captions suit a look-alike at least as well as their own image, by the listener."
    told += f" The {MOST} worst are shown." if len(confused) > MOST else ""
    told += " Words that the other caption lacks at their place are marked."
    template = (files("tellapart.captioning") / "confused.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    pairs = [_pair(item, caption, by_id, said) for item, caption in confused[:MOST]]
    write_text(path, environment.from_string(template).render(told=told, pairs=pairs))
    return len(confused)


def marked(caption: str, other: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The words of both captions, each with whether it is missing at its place in the other; case and punctuation do not count.

    Example:
        >>> marked("a red cup", "a blue cup")
        ([('a', False), ('red', True), ('cup', False)], [('a', False), ('blue', True), ('cup', False)])
    """
    left, right = caption.split(), other.split()
    plain_left, plain_right = ([" ".join(words(word)) or word for word in side] for side in (left, right))
    same = SequenceMatcher(None, plain_left, plain_right, autojunk=False)
    kept_left, kept_right = set[int](), set[int]()
    for block in same.get_matching_blocks():
        kept_left.update(range(block.a, block.a + block.size))
        kept_right.update(range(block.b, block.b + block.size))
    return (
        [(word, i not in kept_left) for i, word in enumerate(left)],
        [(word, i not in kept_right) for i, word in enumerate(right)],
    )


def _pair(item: Item, caption: Caption, by_id: Mapping[str, Item], said: Mapping[str, str]) -> dict[str, Any]:
    rival = by_id[str(caption.rival)]
    own, other = marked(caption.caption, said.get(rival.id, ""))
    return {
        "sides": [_side(item, own), _side(rival, other)],
        "told": f"Cosine of the first caption with its own image minus that with the other: {caption.margin or 0.0:.3f}.",
    }


def _side(item: Item, shown: list[tuple[str, bool]]) -> dict[str, Any]:
    return {"name": item.image.name, "words": shown, "picture": _picture(item)}


def _picture(item: Item) -> str | None:
    try:
        picture = item.image.open()
    except UsageError:  # it has gone since
        return None
    picture.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    picture.convert("RGB").save(data, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
