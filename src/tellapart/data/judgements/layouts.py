"""Readers of published judgements, one function per layout.

Each takes a file and returns a set, or nothing where the file is of another layout. Sources of the files are in
docs/how-to/people.md.
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from tellapart.data.captions import read_json, read_text
from tellapart.data.formats.rows import Row, delimited_rows, find_column, json_rows
from tellapart.data.judgements.records import Judgements, Preference, Rated
from tellapart.data.parquet import columns_of, rows_of
from tellapart.errors import UsageError

EXPERT, CROWD, COMPOSITE, THUMB = "flickr8k-expert", "flickr8k-cf", "composite", "thumb"
SUGARCREPE, CAPARENA = "sugarcrepe", "caparena"

References = Mapping[str, tuple[str, ...]]
"""File name of an image, or its number, -> its human captions."""

Layout = Callable[[Path, References], Judgements | None]


def references_of(references: References, image: str) -> tuple[str, ...]:
    """The captions of an image by its file name, else by the number in it (``COCO_val2014_000000000974.jpg``, ``974``)."""
    if image in references:
        return references[image]
    digits = Path(image).stem.rpartition("_")[2]
    return references.get(str(int(digits)), ()) if digits.isdigit() else ()


# Flickr8k (Hodosh, Young and Hockenmaier, 2013): the distribution's own tables, and the JSON of CLIPScore's and PAC-S's code.


def flickr8k_tables(path: Path, references: References) -> Judgements | None:
    """``ExpertAnnotations.txt`` or ``CrowdFlowerAnnotations.txt`` next to ``Flickr8k.token.txt``.

    Expert pairs whose caption is one of the image's own are left out, as SPICE's and CLIPScore's authors do. Of the crowd's, such
    captions stay, and are not references of their image.

    Raises:
        UsageError: the captions are not there.
    """
    if path.name not in ("ExpertAnnotations.txt", "CrowdFlowerAnnotations.txt"):
        return None
    texts = _token_file(path.parent / "Flickr8k.token.txt", path)
    own: dict[str, list[str]] = defaultdict(list)
    for name, text in texts.items():
        own[name.partition("#")[0]].append(text)
    rows = [line.split("\t") for line in read_text(path).splitlines() if line.strip()]
    if path.name.startswith("Expert"):
        judged = [Rated(row[0], texts[row[1]], tuple(own[row[0]]), tuple(map(float, row[2:5]))) for row in rows]
        return Judgements(EXPERT, tuple(row for row in judged if row.caption not in row.references))
    judged = [Rated(row[0], texts[row[1]], tuple(own[row[0]]), (float(row[2]),)) for row in rows]
    return Judgements(CROWD, without_judged(judged))


def _token_file(path: Path, asked: Path) -> dict[str, str]:
    if not path.is_file():
        raise UsageError(
            f"{asked.name} names captions by number, but {path} is missing: put Flickr8k.token.txt next to it."
        )
    pairs = (line.split("\t", 1) for line in read_text(path).splitlines() if "\t" in line)
    return {pair[0]: pair[1] for pair in pairs}


def without_judged(rows: Iterable[Rated]) -> tuple[Rated, ...]:
    """The rows, with every caption that is judged of an image taken out of that image's references, as CLIPScore's code does."""
    rows = list(rows)
    judged: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        judged[row.image].add(row.caption)
    found = []
    for row in rows:
        left = tuple(text for text in row.references if text not in judged[row.image])
        found.append(Rated(row.image, row.caption, left, row.ratings, row.system, row.aspects))
    return tuple(found)


def clipscore_json(path: Path, references: References) -> Judgements | None:
    """``flickr8k.json``, ``crowdflower_flickr8k.json``, ``composite.json``: image -> ``ground_truth`` and ``human_judgement``.

    One judgement is one rating there, so an expert's caption comes three times.
    """
    value = read_json(path) if path.suffix == ".json" else None
    if not isinstance(value, dict) or not value or not all(_judged_image(image) for image in value.values()):
        return None
    rows = [
        Rated(
            Path(judged.get("image_path") or image["image_path"]).name,
            _clean(judged["caption"]),
            tuple(map(_clean, image["ground_truth"])),
            (float(judged["rating"]),),
        )
        for image in value.values()
        for judged in image["human_judgement"]
    ]
    return Judgements(_named(path), tuple(rows))


def _judged_image(value: Any) -> bool:
    return isinstance(value, dict) and "human_judgement" in value and "ground_truth" in value


def _clean(text: str) -> str:
    return " ".join(text.split())


def _named(path: Path) -> str:
    """What protocols call a file of a known set, by its name or else by its folder's; else its own name."""
    parts = {"crowdflower": CROWD, "expert": EXPERT, "composite": COMPOSITE, "polaris": "polaris", "nebula": "nebula"}
    for name in (path.stem.lower(), *(parent.name.lower() for parent in list(path.parents)[:2])):
        known = next((of_set for part, of_set in parts.items() if part in name), None)
        if known is not None:
            return known
    return EXPERT if path.stem.lower() == "flickr8k" else path.stem


# Lines of JSON: THumB (Kasai et al., 2022), and Flickr8k with the texts in the lines.


def json_lines(path: Path, references: References) -> Judgements | None:
    """``.jsonl`` of THumB (``SYS, hyp, image, P, R, human_score``), or of rows with ``candidate`` and ratings.

    Rows with ``candidate`` have ``image``, ``refs``, and ``ratings``, or ``P``, ``R`` and ``total``. Rows of ``image``,
    ``caption_id`` and ``share_yes`` find their texts in ``flickr8k_captions.json`` next to them.
    """
    if path.suffix != ".jsonl":
        return None
    rows = [row for _, row in json_rows(path)]
    keys = set(rows[0]) if rows else set()
    for needed, read in _LINES.items():
        if keys.issuperset(needed):
            return read(path, rows, references)
    return None


def _thumb(path: Path, rows: list[dict[str, Any]], references: References) -> Judgements:
    """The references of an image are its captions without the one that THumB rates as ``Human``."""
    human = {row["image"]: _clean(row["hyp"]) for row in rows if row["SYS"] == "Human"}
    found = []
    for row in rows:
        texts = (text for text in references_of(references, row["image"]) if _clean(text) != human.get(row["image"]))
        aspects = {"P": float(row["P"]), "R": float(row["R"])}
        found.append(Rated(row["image"], row["hyp"], tuple(texts), (float(row["human_score"]),), row["SYS"], aspects))
    return Judgements(THUMB, tuple(found), bare=True)


def _thumb_with_references(path: Path, rows: list[dict[str, Any]], references: References) -> Judgements:
    return Judgements(
        THUMB,
        tuple(
            Rated(
                row["image"],
                row["candidate"],
                tuple(row["refs"]),
                (float(row["total"]),),
                row.get("system", ""),
                {"P": float(row["P"]), "R": float(row["R"])},
            )
            for row in rows
        ),
    )


def _with_ratings(path: Path, rows: list[dict[str, Any]], references: References) -> Judgements:
    kept = [row for row in rows if not row.get("own_caption")]
    name = _named(path)
    found = [
        Rated(row["image"], row["candidate"], tuple(row["refs"]), tuple(map(float, row["ratings"]))) for row in kept
    ]
    return Judgements(name, tuple(found))


def _crowd_by_number(path: Path, rows: list[dict[str, Any]], references: References) -> Judgements:
    file = path.parent / "flickr8k_captions.json"
    if not file.is_file():
        raise UsageError(f"{path.name} names captions by number, but {file} is missing: put the captions next to it.")
    texts = read_json(file)
    judged = []
    for row in rows:
        image, _, number = row["caption_id"].partition("#")
        judged.append(
            Rated(row["image"], texts[image][int(number)], tuple(texts[row["image"]]), (float(row["share_yes"]),))
        )
    return Judgements(CROWD, without_judged(judged))


_LINES: dict[tuple[str, ...], Callable[[Path, list[dict[str, Any]], References], Judgements]] = {
    ("SYS", "hyp", "human_score"): _thumb,
    ("candidate", "total", "P", "R"): _thumb_with_references,
    ("candidate", "ratings", "refs"): _with_ratings,
    ("caption_id", "share_yes"): _crowd_by_number,
}
"""Fields that tell a layout of lines -> its reader."""

# Tables: Polaris, Nebula, Composite as published on the Hugging Face hub.

_CAPTION, _SCORE = ("cand", "mt", "caption"), ("human_score", "score")
_IMAGE, _REFERENCES = ("imgid", "file_name", "image_path", "id", "image"), ("refs", "references")


def rated_table(path: Path, references: References) -> Judgements | None:
    """``.csv`` or ``.parquet`` with a caption (``cand`` or ``mt``), ``refs``, a score and the image's name per row."""
    if path.suffix not in (".csv", ".parquet"):
        return None
    rows = _table(path)
    first = next(rows, {})
    caption, score, listed, image = (find_column(first, names) for names in (_CAPTION, _SCORE, _REFERENCES, _IMAGE))
    if caption is None or score is None or listed is None:
        return None
    found = [
        Rated(
            str(row[image]) if image else str(number),
            _clean(row[caption]),
            tuple(map(_clean, _list_in(row[listed], path, number))),
            (_rating(row[score]),),
        )
        for number, row in enumerate(chain([first], rows), 1)
    ]
    return Judgements(_named(path), tuple(found))


def _rating(cell: Any) -> float:
    """NaN where there is none: pandas writes it as an empty cell."""
    empty = cell is None or (isinstance(cell, str) and not cell.strip())
    return math.nan if empty else float(cell)


def _table(path: Path) -> Iterator[Row]:
    if path.suffix == ".csv":
        yield from (row for _, row in delimited_rows(path, ","))
        return
    columns = columns_of(path)
    known = {*_CAPTION, *_SCORE, *_REFERENCES, *_IMAGE} - {*columns.images}  # images themselves are not read
    yield from (row for _, _, row in rows_of(path, [name for name in columns.names if name.lower() in known]))


def _list_in(cell: Any, path: Path, number: int) -> list[str]:
    """References as a list, or as text that Python reads as one."""
    if isinstance(cell, list):
        return cell
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(str(cell))  # reads literals only
        if isinstance(value, list | tuple):
            return [str(text) for text in value]
    raise UsageError(f"row {number} of {path} has references that are not a list: {str(cell)[:60]!r}.")


# Pairs: SugarCrepe (Hsieh et al., 2023), CapArena (Cheng et al., 2025).


def sugarcrepe(path: Path, references: References) -> Judgements | None:
    """``add_att.json`` and the like: number -> ``filename``, ``caption``, ``negative_caption``.

    References are those of ``--references`` without the true caption.
    """
    value = read_json(path) if path.suffix == ".json" else None
    rows = list(value.values()) if isinstance(value, dict) else []
    if not rows or not all(isinstance(row, dict) and "negative_caption" in row for row in rows):
        return None
    found = []
    for row in rows:
        texts = references_of(references, row["filename"])
        left = tuple(text for text in texts if _clean(text) != _clean(row["caption"]))
        found.append(Preference(row["filename"], row["caption"], row["negative_caption"], left, path.stem))
    return Judgements(SUGARCREPE, pairs=tuple(found), bare=True)


def caparena(path: Path, references: References) -> Judgements | None:
    """``caparena_annots_eval.json``: a list of ``img, source1, source2, caption1, caption2, winner, ref``.

    As in the paper's caption-level agreement, battles with the human caption (it is the reference) and ties are left out.
    """
    value = read_json(path) if path.suffix == ".json" else None
    if not isinstance(value, list) or not value or not isinstance(value[0], dict) or "caption1" not in value[0]:
        return None
    found = []
    for row in value:
        sources = (row["source1"], row["source2"])
        if "human" in sources or row["winner"] not in sources:
            continue
        better, worse = ("caption1", "caption2") if row["winner"] == row["source1"] else ("caption2", "caption1")
        refs = (row["ref"],) if row.get("ref") else references_of(references, row["img"])
        found.append(Preference(row["img"], row[better], row[worse], refs, row.get("cluster", "")))
    return Judgements(CAPARENA, pairs=tuple(found), bare=not all(row.get("ref") for row in value))


LAYOUTS: tuple[Layout, ...] = (flickr8k_tables, json_lines, rated_table, clipscore_json, sugarcrepe, caparena)
"""In the order in which a file is tried."""
