"""One evaluation as numbers, captions and per-image rows, and as files that other tools read."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.data.formats.ids import as_number
from tellapart.errors import UsageError, reason_of
from tellapart.evaluation.columns import main_columns
from tellapart.evaluation.protocol import Protocol
from tellapart.files import fresh_folder, read_json, write_json, write_rows
from tellapart.locks import NAME as LOCK
from tellapart.locks import Lock
from tellapart.packed import Numbers, Texts

METRICS_FILE = "metrics.json"
PER_IMAGE_FILE = "per_image.parquet"
CAPTIONS_FILE = "captions_results.json"
FILES = (PER_IMAGE_FILE, CAPTIONS_FILE, METRICS_FILE)
"""Of an evaluation, in the order that they are put in place: without the last one nothing is read back."""
_PATIENCE = 60.0
"""Seconds that one process waits for another to write its evaluation."""

CHOSE = "chose_checkpoint_by"
"""Key of ``details``: the metric by which these images chose the run's checkpoint."""

SPLIT = "split"
"""Key of ``details``: the split of the data that was asked for in place of the run's own."""


@dataclass(frozen=True, repr=False)
class EvaluationResult:
    """The scores of one captioner or one set of given captions; a notebook shows them as a table.

    A per-image column that carries a metric's name averages to that metric, on the same scale; others (ranks, counts)
    have names of their own.

    Args:
        name: what was measured, as a table's row calls it.
        protocol: how it was measured.
        metrics: name -> number. BLEU, ROUGE_L, CIDEr, CLIPScore and MRR as they are defined (fractions; CIDEr 0 to 10);
            recall, Self-BLEU, world measures and other shares in percent.
        captions: image id -> caption, in the data set's order.
        per_image: column -> one value per image, in the order of ``captions``; None where undefined.
        intervals: metric -> lower and upper end of its bootstrap interval over images, where one was computed.
        details: what else ``metrics.json`` tells: counts, settings of the bootstrap, what was left out.
    """

    name: str
    protocol: Protocol
    metrics: dict[str, float]
    captions: Mapping[str, str]
    per_image: dict[str, Sequence[Any]]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{column.label} {column.text(self.metrics[column.key])}" for column in main_columns(self.metrics)
        )
        return f"EvaluationResult({self.name!r}, {self.protocol.data}, {self.protocol.images:,} images: {shown})"

    def _repr_html_(self) -> str:
        """The main metrics with their intervals, as notebooks show an object."""
        rows = []
        for column in main_columns(self.metrics):
            ends = self.intervals.get(column.key)
            interval = f"[{column.text(ends[0])}, {column.text(ends[1])}]" if ends else ""
            cells = (column.heading, column.text(self.metrics[column.key]), interval)
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
        heading = "<tr><th>metric</th><th>" + escape(self.name) + "</th><th>95 % interval</th></tr>"
        return f"<table>{heading}{''.join(rows)}</table><p>{escape(self.protocol.line())}</p>"

    def to_json(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        value = {"name": self.name, "protocol": self.protocol.to_json(), "metrics": self.metrics}
        value |= {"intervals": self.intervals} if self.intervals else {}
        return value | ({"details": self.details} if self.details else {})

    def save(self, run: Path) -> Path:
        """Write ``run/eval/<protocol slug>/`` in one rename and return it; it replaces an earlier result of the same images and
        decoding, of given captions that of the same name. Where another result is there, digits are added."""
        target = folder_of(run, self.protocol, self.name)
        with fresh_folder(target) as folder:
            self._write(folder)
        return target

    def save_in(self, folder: Path) -> Path:
        """Write the same files into a folder that may hold others; returns it.

        ``metrics.json``, without which nothing is read back, goes first and comes last: a killed process leaves no
        evaluation rather than parts of two. Two processes write in turn.

        Raises:
            UsageError: another process is writing into the folder for a long time.
        """
        with Lock(folder / LOCK, "writing an evaluation into", patience=_PATIENCE):
            (folder / METRICS_FILE).unlink(missing_ok=True)
            with fresh_folder(folder / ".new") as temporary:
                self._write(temporary)
            for name in FILES:
                os.replace(folder / ".new" / name, folder / name)
            (folder / ".new").rmdir()
        return folder

    def _write(self, folder: Path) -> None:
        import pyarrow.parquet

        ids, captions = Texts.of(self.captions), Texts.of(self.captions.values())
        columns: dict[str, Sequence[Any]] = {"id": ids, "caption": captions, **self.per_image}
        write_json(folder / METRICS_FILE, self.to_json())
        write_rows(folder / CAPTIONS_FILE, coco_results(self.captions))
        pyarrow.parquet.write_table(arrow_table(columns), folder / PER_IMAGE_FILE)

    @staticmethod
    def load(folder: Path) -> EvaluationResult:
        """Read what ``save`` wrote.

        Raises:
            UsageError: a file is missing or damaged.
        """
        import pyarrow
        import pyarrow.parquet

        try:
            value = read_metrics(folder / METRICS_FILE)
            with pyarrow.parquet.ParquetFile(folder / PER_IMAGE_FILE) as file:  # read_table would import pandas
                columns = file.read().to_pydict()
            captions = dict(zip(columns.pop("id"), columns.pop("caption"), strict=True))
            protocol = Protocol.from_json(value["protocol"])
            intervals = {key: (low, high) for key, (low, high) in value.get("intervals", {}).items()}
            metrics, details = dict(value["metrics"]), dict(value.get("details", {}))
            return EvaluationResult(value["name"], protocol, metrics, captions, columns, intervals, details)
        except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
            raise UsageError(
                f"{folder} holds no readable evaluation ({reason_of(error)}): evaluate the run again."
            ) from error


def read_metrics(path: Path) -> dict[str, Any]:
    """The content of a ``metrics.json``, which anybody may have changed.

    Raises:
        OSError: it cannot be read.
        ValueError: a value is missing or of a wrong kind.
    """
    value = read_json(path)
    if not isinstance(value, dict) or not {"name", "protocol", "metrics"} <= value.keys():
        raise ValueError("it lacks its name, protocol or metrics")
    wrong = next((name for name, fits in _KINDS.items() if name in value and not fits(value[name])), None)
    if wrong is not None:
        raise ValueError(f"{wrong} is of a wrong kind")
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _is_details(value: Any) -> bool:
    """What is read of them: names, and sentences by metric."""
    if not isinstance(value, dict) or not all(isinstance(value.get(name, ""), str) for name in (CHOSE, SPLIT)):
        return False
    left_out = value.get("left_out", {})
    return isinstance(left_out, dict) and all(isinstance(sentence, str) for sentence in left_out.values())


_KINDS: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str),
    "protocol": lambda value: isinstance(value, dict),
    "metrics": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "intervals": lambda value: isinstance(value, dict) and all(map(_is_interval, value.values())),
    "details": _is_details,
}


def coco_results(captions: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The captions in COCO's results format, row by row; image ids are numbers where all of them are."""
    numeric = all(isinstance(as_number(image_id), int) for image_id in captions)
    return ({"image_id": as_number(i) if numeric else i, "caption": caption} for i, caption in captions.items())


def result_folders(run: Path) -> list[Path]:
    """The evaluations of a run, by name; ``run`` may also be such a folder itself.

    Raises:
        UsageError: there are none.
    """
    if (run / METRICS_FILE).is_file():
        return [run]
    found = sorted(path.parent for path in (run / "eval").glob(f"*/{METRICS_FILE}") if path.parent.name[0] != ".")
    if not found:
        what = f"{run / 'eval'} holds no evaluation" if run.is_dir() else f"{run} does not exist"
        raise UsageError(f"{what}: name the folder of a run that was evaluated, or measure it with tellapart score.")
    return found


def folder_of(run: Path, protocol: Protocol, name: str) -> Path:
    """Where a run keeps, or would keep, its result under a protocol; that of given captions is known by its name, too."""
    plain = run / "eval" / protocol.slug()
    given = [] if protocol.decoding else [name]
    identity = [protocol.data, protocol.digest, protocol.decoding, *given]
    digits = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    numbered = plain.with_name(f"{plain.name}-{digits}")
    if (numbered / METRICS_FILE).is_file():
        return numbered
    try:
        held = read_metrics(plain / METRICS_FILE)
    except (OSError, ValueError):  # there is none, or nothing that could be read again
        return plain
    known = [held["protocol"].get(field) for field in ("data", "digest", "decoding")]
    return plain if [*known, *([held["name"]] if given else [])] == identity else numbered


def find_result(run: Path, protocol: str | None = None) -> EvaluationResult:
    """The run's evaluation under ``protocol`` (a slug or words of it, such as ``test``), or its only one.

    Where it names a decoding that is absent, given captions (human ones, a file) of the same data take its place: no decoding
    applies to them.

    Raises:
        UsageError: there is none, or several and none was named.
    """
    folders = result_folders(run)
    if protocol is not None:
        named = [folder for folder in folders if folder.name == protocol]
        named = named or [folder for folder in folders if f"-{protocol}-" in f"-{folder.name}-"]
        folders = named or [folder for folder in folders if _stands_in(folder.name, protocol)]
        if not folders:
            held = _listed([folder.name for folder in result_folders(run)])
            raise UsageError(f"{run} has no evaluation named {protocol!r}: choose one of {held}, or evaluate it so.")
    if len(folders) > 1:
        held = _listed([folder.name for folder in folders])
        raise UsageError(
            f"{run} has {len(folders)} evaluations: name the protocol to use (--protocol, also by a word of it such as "
            f"test), one of {held}."
        )
    return EvaluationResult.load(folders[0])


def _stands_in(given: str, protocol: str) -> bool:
    """Whether an evaluation is one of given captions that a protocol, or words of it, differs from in the decoding only."""
    found = re.fullmatch("(.+)-given(-[0-9a-f]{8})?", given)
    drawn = re.fullmatch(r"(?:(?P<of>.+)-)?(?:beam|greedy|sampled)(?:-.*)?", protocol)
    return found is not None and drawn is not None and f"-{found[1]}".endswith(f"-{drawn['of'] or ''}".rstrip("-"))


def with_choice(result: EvaluationResult, run: Path) -> EvaluationResult:
    """The result with ``CHOSE`` in its details, if its images chose the run's checkpoint as an evaluation in it says."""
    for path in sorted((run / "eval").glob(f"*/{METRICS_FILE}")):
        try:
            value = read_metrics(path)
        except (OSError, ValueError):  # it says nothing of this result
            continue
        by = value.get("details", {}).get(CHOSE)
        if by and value["protocol"].get("digest") == result.protocol.digest:
            return replace(result, details={**result.details, CHOSE: by})
    return result


def require_comparable(results: Sequence[EvaluationResult]) -> None:
    """Raise unless all results were measured in the same way, on the same images.

    Raises:
        UsageError: naming the first two that differ, and in what.
    """
    if not results:
        raise UsageError("no runs were given: name at least one evaluated run.")
    drawn = next((result for result in results if result.protocol.decoding), results[0])
    # Each with each: two may differ in a retriever or model that the first one lacks.
    for one, other in combinations([drawn, *(result for result in results if result is not drawn)], 2):
        fields = one.protocol.differences(other.protocol)
        if fields:
            mine, others = vars(one.protocol).copy(), vars(other.protocol).copy()
            for values in (mine, others):
                models = values["measured_by"]
                values["measured_by"] = {m: models[m] for m in one.protocol.measured_otherwise(other.protocol)}
            found = ", ".join(f"{f} {mine[f]!r} and {others[f]!r}" for f in fields)
            raise UsageError(
                f"{one.name} and {other.name} were measured differently ({found}): evaluate both under one protocol."
            )
        if other.captions.keys() != one.captions.keys():
            raise UsageError(f"{one.name} and {other.name} caption different images: evaluate both on one split.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


# Columns of plain values as an Arrow table, without the import of pandas that ``pyarrow.array`` costs where pandas is
# installed.


def arrow_table(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A ``pyarrow.Table`` of columns of text or of numbers.

    Raises:
        ValueError: they differ in length.
    """
    import pyarrow

    arrays = [_array(values) for values in columns.values()]
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise ValueError(f"columns differ in length, expected length {max(lengths)}")
    return pyarrow.Table.from_arrays(arrays, list(columns))


def _array(values: Sequence[Any]) -> Any:
    import pyarrow

    if isinstance(values, Texts) and len(values):
        return _strings(values)
    kinds = {int, float} if isinstance(values, Numbers) else set(map(type, values))
    if kinds == {str}:
        return _strings(Texts.of(values))
    for kind, arrow, dtype in ((int, pyarrow.int64(), np.int64), (float, pyarrow.float64(), np.float64)):
        if kinds == {kind} or (isinstance(values, Numbers) and values.array.dtype == dtype):
            buffer = pyarrow.py_buffer(np.asarray(values, dtype))
            return pyarrow.Array.from_buffers(arrow, len(values), [None, buffer])
    return pyarrow.array(list(values))  # gaps, mixtures and whatever else


def _strings(values: Texts) -> Any:
    import pyarrow

    if not values.data.isascii():
        "".join(values).encode()  # raises for half a character, which no file takes
    buffers = [None, pyarrow.py_buffer(values.ends), pyarrow.py_buffer(values.data)]
    return pyarrow.Array.from_buffers(pyarrow.large_string(), len(values), buffers)
