# ruff: noqa: E501  (tables of strange pieces)
"""Strange data files: JSON, tables, Parquet and tars of every layout with wrong shapes, through the commands that read them."""

from __future__ import annotations

import copy
import csv
import io
import json
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from .fuzz import Tray, fuzzing
from .verdict import faults_of

TEXTS = ["a red circle on a table", "two blue squares"]


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), 90, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


_PNG = _png()

DOCUMENTS: dict[str, Any] = {
    "coco": {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(3)],
        "annotations": [{"id": 9 + i, "image_id": i, "caption": TEXTS[i % 2]} for i in range(3)],
    },
    "karpathy": {
        "images": [
            {
                "filename": f"{i}.png",
                "split": "train",
                "imgid": i,
                "cocoid": i,
                "sentences": [{"raw": TEXTS[0], "tokens": ["a"]}],
            }
            for i in range(3)
        ],
        "dataset": "coco",
    },
    "lavis": [{"image": f"{i}.png", "caption": TEXTS, "image_id": f"x_{i}"} for i in range(3)],
    "clipscore": {f"{i}.png": TEXTS for i in range(3)},
    "sdscripts": {f"{i}.png": {"caption": TEXTS[0], "tags": "a, b"} for i in range(3)},
    "rows": [{"file_name": f"{i}.png", "text": TEXTS[0], "image": f"{i}.png", "caption": TEXTS[1]} for i in range(3)],
    "preferences": [{"image": f"{i}.png", "chosen": TEXTS[0], "rejected": TEXTS[1]} for i in range(3)],
}
"""Whole documents, which are then spoiled."""

_DEEP: Any = "x"
for _ in range(60):
    _DEEP = [_DEEP]

ODD: list[Any] = [
    None, True, 0, -1, 10**30, 1.5, float("nan"), float("inf"), "", " ", "x" * 70_000, "\ud800", "a\x00b", "\x1b[31mred", "../../escaped.png",
    "/etc/passwd", "file:///etc/passwd", "http://127.0.0.1:9/x.png", [], {}, [[]], [None], {"a": {"b": None}}, "\u202egnp.exe", _DEEP, "1.png",
]  # fmt: skip


CHANGES = ("cut", "bytes", "bom", "utf16", "twice", "number", "deep", "nothing", "duplicate")
"""What may befall the file as a whole; half of the files stay as they are."""


@st.composite
def _files(draw: Any) -> tuple[str, Any, str, float, bytes]:
    """Form, document, change of the file, where, and some bytes."""
    kind = draw(st.sampled_from(sorted(DOCUMENTS)))
    document = copy.deepcopy(DOCUMENTS[kind])
    for _ in range(draw(st.integers(0, 3))):
        document = _spoiled(draw, document)
    form = draw(st.sampled_from(_FORMS.get(kind, ("json",))))
    change = draw(st.one_of(st.just(""), st.sampled_from(CHANGES)))
    return form, document, change, draw(st.floats(0, 1)), draw(st.binary(min_size=1, max_size=4))


def _changed(data: bytes, change: str, share: float, some: bytes) -> bytes:
    place = int(share * len(data))
    return {
        "": lambda: data,
        "cut": lambda: data[:place],
        "bytes": lambda: data[:place] + some + data[place + 1 :],
        "bom": lambda: b"\xef\xbb\xbf" + data,
        "utf16": lambda: data.decode("utf-8", errors="replace").encode("utf-16"),
        "twice": lambda: data + data,
        "number": lambda: data.replace(b"1", b"1" * 5000, 1),
        "deep": lambda: b"[" * 100_000,
        "nothing": lambda: b"",
        "duplicate": lambda: data.replace(b'"images"', b'"annotations"'),
    }[change]()


def _spoiled(draw: Any, value: Any) -> Any:
    """The document with one of its values changed, taken away or doubled."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 4)) == 0:
        return copy.deepcopy(draw(st.sampled_from(ODD)))
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    change = draw(st.sampled_from(("within", "within", "within", "remove", "rename")))
    if change == "remove":
        del value[key]
    elif change == "rename" and isinstance(value, dict):
        value[draw(st.sampled_from(("", "id", "caption", "../x", "\ud800", "x" * 5000)))] = value.pop(key)
    elif change == "rename":
        value.append(value[key])
    else:
        value[key] = _spoiled(draw, value[key])
    return value


def _json(document: Any) -> tuple[str, bytes]:
    return "data.json", json.dumps(document).encode()


def _lines(document: Any) -> tuple[str, bytes]:
    rows = document if isinstance(document, list) else [document]
    return "data.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode()


def _table(separator: str) -> Callable[[Any], tuple[str, bytes]]:
    def write(document: Any) -> tuple[str, bytes]:
        rows = [row for row in document if isinstance(row, dict)] if isinstance(document, list) else []
        text = io.StringIO()
        names = list(dict.fromkeys(str(name) for row in rows for name in row))
        writer = csv.writer(text, delimiter=separator)
        writer.writerow(names)
        writer.writerows([[row.get(name, "") for name in names] for row in rows])
        return f"data.{'tsv' if separator == chr(9) else 'csv'}", text.getvalue().encode(
            "utf-8", errors="surrogatepass"
        )

    return write


def _parquet(document: Any) -> tuple[str, bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row for row in document if isinstance(row, dict)] if isinstance(document, list) else []

    def bytes_of(values: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        pq.write_table(pa.table(values), buffer)
        return buffer.getvalue()

    columns = {}
    for name in dict.fromkeys(str(name) for row in rows for name in row):
        key, values = name.encode("utf-8", "replace").decode(), [row.get(name) for row in rows]
        try:
            columns[key] = pa.array(values)
            bytes_of({key: columns[key]})  # some arrays exist that no file holds: structures without fields
        except (pa.ArrowException, ValueError, OverflowError, UnicodeEncodeError):
            columns[key] = pa.array([repr(value).encode("utf-8", "replace") for value in values])
    return "data.parquet", bytes_of(columns)


def _tar(document: Any) -> tuple[str, bytes]:
    """A shard whose members are named as the rows' images are, and whose texts are their captions."""
    rows = [row for row in document if isinstance(row, dict)] if isinstance(document, list) else []
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for row in rows:
            name = str(row.get("file_name", "x.png")).encode("utf-8", "replace").decode()[:3000].replace("\x00", "")
            text = json.dumps(row.get("text")).encode()
            for member, data in (
                (name, _PNG),
                (f"{name.rpartition('.')[0]}.txt", text),
                (f"{name.rpartition('.')[0]}.json", text),
            ):
                about = tarfile.TarInfo(member)
                about.size = len(data)
                archive.addfile(about, io.BytesIO(data))
            link = tarfile.TarInfo(f"{name}.link.png")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
    return "data-000000.tar", buffer.getvalue()


WRITERS = {"json": _json, "jsonl": _lines, "csv": _table(","), "tsv": _table("\t"), "parquet": _parquet, "tar": _tar}
_FORMS = {
    "rows": ("jsonl", "csv", "tsv", "parquet", "tar"),
    "lavis": ("json", "jsonl", "parquet"),
    "preferences": ("jsonl", "json"),
}


def _attempt(drawn: tuple[str, Any, str, float, bytes], tray: Tray) -> list[str]:
    form, document, *change = drawn
    name, data = WRITERS[form](document)
    path = tray.folder / name
    path.write_bytes(_changed(data, *change))
    for i in range(3):
        (tray.folder / f"{i}.png").write_bytes(_PNG)
    captions = tray.folder / "captions.json"
    captions.write_text(json.dumps({f"{i}.png": "a dog" for i in range(3)}))
    turns: list[tuple[object, ...]] = [
        ("data", "check", path, "--num_workers", 0),
        (
            "data",
            "convert",
            path,
            tray.folder / "out",
            "--to",
            ("webdataset", "karpathy", "folder", "csv")[tray.number // 4 % 4],
        ),
        ("score", captions, "--references", path, "--missing", "skip"),
        ("score", path, "--references", captions),
    ]
    chosen = [turns[0], turns[1 + tray.number % 3]]
    faults = []
    for words in chosen:
        outcome = tray.call(*words)
        faults += [f"{' '.join(map(str, words[:2]))}: {fault}" for fault in faults_of(outcome, says="to repair")]
    return faults


DATA_FILES = fuzzing("data", 3_000, 0.1, _files(), _attempt, seconds=60)
