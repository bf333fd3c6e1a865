"""What the trainings of a study came to, without their weights, in one archive: a study continues from it on another machine."""

from __future__ import annotations

import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

from tellapart.data.tars import members_within, reading_tar
from tellapart.errors import UsageError, reason_of
from tellapart.evaluation.results import METRICS_FILE, PER_IMAGE_FILE
from tellapart.files import beside
from tellapart.locks import NAME as LOCK
from tellapart.locks import Lock, TakenError
from tellapart.recipe.fingerprint import NOTED
from tellapart.run_files import LOG_FILE
from tellapart.sweep.notes import NOTES
from tellapart.sweep.records import DONE_FILE
from tellapart.sweep.tasks import (
    MEASURED,
    POINTS,
    SECONDS_FILE,
    SECONDS_OF_ALL,
    TRAINED_FILE,
    Task,
    distinct,
    has_weights,
    read_done,
)

COLUMNS = ("id", "caption", "exact_recall@1", "truthful")
"""What is kept of each image: the columns that pages read."""

KEPT = "kept"
"""Folder of unpacked archives. Each has its own folder, since two may hold the same training from two machines."""

LONGEST = 1 << 26
"""Bytes of a member: an archive may come from anybody."""


def keep(tasks: Iterable[Task], archive: Path, *, whole: bool = False, notes: Iterable[Path] = ()) -> int:
    """Write what is done of trainings and measurements; the same results give the same bytes.

    Weights are left out, and so is most of the log of what was only searched. Each training's folder is named by what decides
    it, so that results of other recipes, data or revisions of a method are never taken for its own.

    Args:
        tasks: of the study, or some of them.
        archive: is replaced where its content differs.
        whole: the tasks are all of a finished study, so that what else the archive has is dropped.
        notes: files of ``Notes``.

    Returns:
        The number of trainings and start models in it.

    Raises:
        OSError: it cannot be written.
        UsageError: it is a folder, or damaged.
    """
    members = {} if whole else _read(archive)
    for task in distinct(tasks):
        if (task.folder / TRAINED_FILE).is_file():  # perhaps trained again, into another captioner
            members = {
                n: c for n, c in members.items() if not (n.startswith(f"{task.folder.name}/") and n.endswith(NOTED))
            }
        members |= {f"{task.folder.name}/{name}": content for name, content in _of_task(task)}
    members |= {f"{NOTES}/{file.name}": file.read_bytes() for file in notes}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(members):
            told = tarfile.TarInfo(name)
            told.size = len(members[name])
            tar.addfile(told, io.BytesIO(members[name]))
    if members and not _holds(archive, packed.getvalue()):  # compressing takes many times as long as reading
        with beside(archive) as temporary:
            temporary.write_bytes(lzma.compress(packed.getvalue(), preset=9))
    return len({name.partition("/")[0] for name in members} - {NOTES})


def _holds(archive: Path, packed: bytes) -> bool:
    """Whether an archive has this content already."""
    try:
        return lzma.decompress(archive.read_bytes()) == packed
    except (OSError, lzma.LZMAError):
        return False


def restore(archive: Path, root: Path) -> Path:
    """Unpack an archive into a folder of its own below the folder of all trainings, for ``Sweep(kept=...)``.

    A training below ``points/`` with the same results is completed there, since it may have weights. Otherwise the archive
    replaces what an older one left, except for trainings that have weights. While another process trains in ``root``, existing
    folders stay as they are.

    Args:
        archive: need not exist; its folder is made, so that a place that cannot be written fails before hours of training.
        root: the study's ``--output_dir``.

    Returns:
        The folder.

    Raises:
        OSError: the archive's folder cannot be made.
        UsageError: the archive is a folder, or damaged.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    folder, held = kept_folder(archive, root), dict[str, dict[str, bytes]]()
    for name, content in _read(archive).items():
        training, _, file = name.partition("/")
        held.setdefault(training, {})[file] = content
    with _alone(root) if held else nullcontext(True) as alone:
        for name, files in held.items():
            if name == NOTES:
                _put(folder / name, files, over=True)
            elif alone or not ((root / POINTS / name).exists() or (folder / name).exists()):
                _unpack(files, root / POINTS / name, folder / name)
    return folder


def kept_folder(archive: Path, root: Path) -> Path:
    """The folder that ``restore`` unpacks an archive into."""
    return root / KEPT / archive.name.removesuffix(".xz").removesuffix(".tar")


@contextmanager
def _alone(root: Path) -> Iterator[bool]:
    """Whether no other process runs trainings below a folder; none begins before the block ends."""
    try:
        with Lock(root / LOCK, "unpacking results into"):
            yield True
    except TakenError:
        yield False


def _unpack(files: Mapping[str, bytes], own: Path, place: Path) -> None:
    """Complete the training of these results, or put them into the archive's own folder."""
    trained_again = any(map(has_weights, place.glob("checkpoint-*")))
    if _agrees(own, files):
        _put(own, files)
        if not trained_again:
            shutil.rmtree(place, ignore_errors=True)  # of an earlier time, and in the way of the one with weights
    elif _agrees(place, files):
        _put(place, files)
    elif not trained_again:
        shutil.rmtree(place, ignore_errors=True)
        _put(place, files)


def _put(place: Path, files: Mapping[str, bytes], *, over: bool = False) -> None:
    """Write what is missing, or all that differs; markers of finished work come last."""
    for name in sorted(files, key=lambda name: (name == TRAINED_FILE or name.endswith(DONE_FILE), name)):
        there = (place / name).is_file()
        if not there or (over and (place / name).read_bytes() != files[name]):
            with beside(place / name) as temporary:
                temporary.write_bytes(files[name])


def _agrees(place: Path, files: Mapping[str, bytes]) -> bool:
    """Whether a folder has some of these results, and none that differ."""
    shared = [name for name in files if name.endswith((".json", ".jsonl")) and (place / name).is_file()]
    try:
        return bool(shared) and all(
            content == files[name] or (name == LOG_FILE and _evaluations(content) == _evaluations(files[name]))
            for name in shared
            for content in [(place / name).read_bytes()]
        )
    except ValueError:  # a log that a process was killed in
        return False


def _evaluations(log: bytes) -> list[dict[str, Any]]:
    """What a log says of checkpoints, all that is kept of a training that was only searched."""
    lines = (json.loads(line) for line in log.splitlines())
    return [found for line in lines if (found := {k: v for k, v in line.items() if k.startswith("eval_")})]


def _read(archive: Path) -> dict[str, bytes]:
    """Name -> content; nothing of an archive that is not there."""
    if archive.is_dir():
        raise UsageError(f"{archive} is a folder: name a file for what is kept, such as {archive / 'kept.tar.xz'}.")
    try:
        return dict(_members(archive)) if archive.exists() else {}
    except (OSError, EOFError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
        raise UsageError(f"{archive} cannot be read ({reason_of(error)}): restore it, or name another file.") from error


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    # Unpacked as a whole first: only then its checksum is held against it.
    with io.BytesIO(lzma.decompress(archive.read_bytes())) as packed, reading_tar(packed) as tar:
        for told in members_within(tar):
            inside = not (told.name.startswith("/") or ".." in PurePosixPath(told.name).parts)
            if not (told.isfile() and inside and _is_kept(told.name) and told.size <= LONGEST):
                raise ValueError(f"{told.name!r} is not a file of a training")
            file = tar.extractfile(told)
            assert file is not None
            yield told.name, file.read()


def _is_kept(name: str) -> bool:
    """Whether a member is called as ``keep`` calls them; another archive of the user's would be replaced by it."""
    folder, _, file = name.partition("/")
    return (
        (folder == NOTES and bool(file))
        or file in (TRAINED_FILE, LOG_FILE, SECONDS_FILE)
        or file.startswith((f"{MEASURED}/", "checkpoint-"))
    )


def _of_task(task: Task) -> Iterator[tuple[str, bytes]]:
    """Name within the task's folder -> content, of what is done."""
    if task.trains and (task.folder / TRAINED_FILE).is_file():
        yield TRAINED_FILE, (task.folder / TRAINED_FILE).read_bytes()
        yield LOG_FILE, _log(task)
        captioner = task.captioner()
        if (noted := captioner.with_name(captioner.name + NOTED)).is_file():
            yield f"{captioner.parent.name}/{noted.name}", noted.read_bytes()
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
    done = folder / place / DONE_FILE
    yield f"{place}/{DONE_FILE}", done.read_bytes()
    for evaluation in sorted({name for name, _ in read_done(done).values()}):
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
