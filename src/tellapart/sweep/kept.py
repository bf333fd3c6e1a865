"""What the trainings of a study came to, without their weights, in one archive: a study continues from it on another machine."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from tellapart.errors import UsageError, reason_of
from tellapart.evaluation.results import METRICS_FILE, PER_IMAGE_FILE
from tellapart.files import beside, read_json
from tellapart.sweep.records import DONE_FILE
from tellapart.sweep.tasks import LOG_FILE, MEASURED, POINTS, SECONDS_FILE, SECONDS_OF_ALL, TRAINED_FILE, Task, distinct

COLUMNS = ("id", "caption", "exact_recall@1", "truthful")
"""What is kept of each image: the columns that pages read."""

LONGEST = 1 << 26
"""Bytes of a member: an archive may come from anybody."""


def keep(tasks: Iterable[Task], archive: Path, *, whole: bool = False) -> int:
    """Write what is done of trainings and measurements; the same results give the same bytes.

    Weights are left out, and so is most of the log of what was only searched. Each training's folder is named by what decides
    it, so that results of other recipes, data or revisions of a method are never taken for its own.

    Args:
        tasks: of the study, or some of them.
        archive: is replaced where its content differs.
        whole: the tasks are all of a finished study, so that what else the archive has is dropped.

    Returns:
        The number of trainings and start models in it.

    Raises:
        OSError: it cannot be written.
        UsageError: it is a folder, or damaged.
    """
    members = {} if whole else _read(archive)
    for task in distinct(tasks):
        members |= {f"{task.folder.name}/{name}": content for name, content in _of_task(task)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(members):
            told = tarfile.TarInfo(name)
            told.size = len(members[name])
            tar.addfile(told, io.BytesIO(members[name]))
    written = lzma.compress(packed.getvalue(), preset=9)
    if members and not (archive.is_file() and archive.read_bytes() == written):
        with beside(archive) as temporary:
            temporary.write_bytes(written)
    return len({name.partition("/")[0] for name in members})


def restore(archive: Path, root: Path) -> None:
    """Put what ``keep`` wrote below the folder of all trainings; what is there stays.

    Args:
        archive: need not exist; its folder is made, so that a place that cannot be written fails before hours of training.
        root: the study's ``--output_dir``.

    Raises:
        OSError: the archive's folder cannot be made.
        UsageError: the archive is a folder, or damaged.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    members = _read(archive)
    markers = {name: _marker(name) for name in members}
    there = {marker for marker in set(markers.values()) if (root / POINTS / marker).exists()}
    for name in sorted(members, key=lambda name: (name == markers[name], name)):  # markers come last
        if markers[name] not in there:
            with beside(root / POINTS / name) as temporary:
                temporary.write_bytes(members[name])


def _marker(name: str) -> str:
    """The file which says that what another belongs to, a training or a measurement of it, is done."""
    folder, _, rest = name.partition("/")
    if rest in (TRAINED_FILE, LOG_FILE):
        return f"{folder}/{TRAINED_FILE}"
    return name if rest == SECONDS_FILE else "/".join([folder, *rest.split("/")[:2], DONE_FILE])


def _read(archive: Path) -> dict[str, bytes]:
    """Name -> content; nothing of an archive that is not there."""
    if archive.is_dir():
        raise UsageError(f"{archive} is a folder: name a file for what is kept, such as {archive / 'kept.tar.xz'}.")
    try:
        return dict(_members(archive)) if archive.exists() else {}
    except (OSError, EOFError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
        raise UsageError(f"{archive} cannot be read ({reason_of(error)}): restore or delete it.") from error


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive, mode="r:xz") as tar:
        for told in tar:
            inside = not (told.name.startswith("/") or ".." in PurePosixPath(told.name).parts)
            if not (told.isfile() and inside and told.size <= LONGEST):
                raise ValueError(f"{told.name!r} is not a file of a training")
            file = tar.extractfile(told)
            assert file is not None
            yield told.name, file.read()


def _of_task(task: Task) -> Iterator[tuple[str, bytes]]:
    """Name within the task's folder -> content, of what is done."""
    if task.trains and (task.folder / TRAINED_FILE).is_file():
        yield TRAINED_FILE, (task.folder / TRAINED_FILE).read_bytes()
        yield LOG_FILE, _log(task)
    for place in task.measures:
        if (task.folder / place / DONE_FILE).is_file():
            yield from _measured(task.folder, place)
    if (task.folder / SECONDS_FILE).is_file():
        yield SECONDS_FILE, (task.folder / SECONDS_FILE).read_bytes()


def _log(task: Task) -> bytes:
    """All of a measured training; of one that was only searched the evaluations, and a line with the seconds of all steps."""
    if (task.folder / MEASURED).is_dir():
        return (task.folder / LOG_FILE).read_bytes()
    evaluated = [line for line in task.history if any(key.startswith("eval_") for key in line)]
    kept = [{k: v for k, v in line.items() if k == "step" or k.startswith("eval_")} for line in evaluated]
    last = {"step": task.steps_of["last"], SECONDS_OF_ALL: round(3600 * task.hours, 3)}
    return "".join(f"{json.dumps(line)}\n" for line in [*kept, last]).encode()


def _measured(folder: Path, place: str) -> Iterator[tuple[str, bytes]]:
    yield f"{place}/{DONE_FILE}", (folder / place / DONE_FILE).read_bytes()
    for evaluation in sorted({each["folder"] for each in read_json(folder / place / DONE_FILE).values()}):
        within = f"{place}/{evaluation}"
        yield f"{within}/{METRICS_FILE}", (folder / within / METRICS_FILE).read_bytes()
        yield f"{within}/{PER_IMAGE_FILE}", _columns(folder / within / PER_IMAGE_FILE)


def _columns(file: Path) -> bytes:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file) as opened:
        table = opened.read(columns=[name for name in COLUMNS if name in opened.schema_arrow.names])
    written = io.BytesIO()
    # the archive's own compression finds what evaluations share
    pyarrow.parquet.write_table(table, written, compression="none", use_dictionary=False, write_statistics=False)
    return written.getvalue()
