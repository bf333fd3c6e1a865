"""A page of the captions to review, with their images; of those that suit a look-alike at least as well with both pictures and
both captions, where what differs is marked."""

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
from tellapart.captioning.review import flagged_first
from tellapart.errors import UsageError
from tellapart.files import write_text

MOST = 200
"""Captions on a page, the worst."""

_HEAD = 1024
_TITLES = b"<title>Captions to review</title>", b"<title>Images that stay confused</title>"
"""What tells such a page, also of an earlier version, from others, near its beginning."""

SIDE = 480
"""Longest side of a picture in pixels."""


def require_own_page(path: Path) -> None:
    """Raise if another file has the place of this page.

    Raises:
        UsageError: naming the file.
    """
    with suppress(FileNotFoundError), path.open("rb") as file:
        first = file.read(_HEAD)
        if first and not any(title in first for title in _TITLES):
            raise UsageError(
                f"{path} is not a page of captions to review, and would be replaced by one: rename or move it."
            )


def write_review_page(path: Path, rows: Sequence[Row], items: Iterable[Item]) -> int:
    """Write the page, in the order of the review, and return how many captions have a fault; without any, the file is removed.

    Args:
        path: the HTML file.
        rows: all images with captions.
        items: the collection.
    """
    import jinja2

    flagged = flagged_first(rows)
    if not flagged:
        path.unlink(missing_ok=True)
        return 0
    by_id = {item.id: item for item in items}  # which may lack a rival of a run that was stopped
    said = {item.id: caption.caption for item, caption in rows}
    confused = sum(CONFUSED in caption.flags for _, caption in flagged)
    told = [f"{len(flagged)} of {len(rows)} captions have a fault."]
    told += [f"The {MOST} worst are shown."] if len(flagged) > MOST else []
    if confused:
        told += [
            f"{confused} suit a look-alike at least as well as their own image, by the listener. Such a look-alike is shown, "
            "too, and words that the other caption lacks at their place are marked."
        ]
    template = (files("tellapart.captioning") / "review_page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    entries = [_entry(item, caption, by_id, said) for item, caption in flagged[:MOST]]
    write_text(path, environment.from_string(template).render(told=" ".join(told), entries=entries))
    return len(flagged)


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


def _entry(item: Item, caption: Caption, by_id: Mapping[str, Item], said: Mapping[str, str]) -> dict[str, Any]:
    told = [f"Faults: {', '.join(caption.flags)}."]
    rival = by_id.get(str(caption.rival)) if CONFUSED in caption.flags else None
    if rival is None:
        plain = [(word, False) for word in caption.caption.split()]
        return {"sides": [_side(item, plain)], "told": told[0]}
    own, other = marked(caption.caption, said.get(rival.id, ""))
    told += [f"Cosine of the first caption with its own image minus that with the other: {caption.margin or 0.0:.3f}."]
    return {"sides": [_side(item, own), _side(rival, other)], "told": " ".join(told)}


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
