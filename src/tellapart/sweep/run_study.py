"""Run a study from the command line: ``python studies/dico.py``, or ``python -m tellapart.sweep.run_study FILE.yaml``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from tellapart.errors import UsageError, explain, printable, without_secrets
from tellapart.sweep.builds import note_builds, of_other_builds
from tellapart.sweep.claims import Claim
from tellapart.sweep.kept import keep, restore
from tellapart.sweep.notes import NOTES, Notes
from tellapart.sweep.references import reference_rows
from tellapart.sweep.study import Derive, Study
from tellapart.sweep.study_file import StudyFile, read_study, seeds_of
from tellapart.sweep.study_page import write_page
from tellapart.sweep.tasks import Task

SIZES = ("full", "small")

OTHER_BUILDS = (
    "{kept} has trainings of other weights of {stages}, from another processor. A difference between them and those that are "
    "trained now is not of the methods alone (docs/how-to/studies.md)."
)

WAITING = (
    "{waiting} of {known} trainings and measurements are to be done; models of the built-in world that they lack come first. "
    "--dry_run lists them."
)

Claims = Callable[[Study], Iterable[Claim]]
Sections = Callable[[Study], Iterable[str]]
Prepare = Callable[[StudyFile, str, bool], StudyFile]
"""File, size of the world, and whether to build what its rows need -> the file that counts."""
Write = Callable[[Study, Path], Path]


def run(
    path: str | Path,
    *,
    claims: Claims | None = None,
    sections: Sections | None = None,
    derive: Derive | None = None,
    prepare: Prepare | None = None,
    kind: type[Study] = Study,
    write: Write | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Train what is missing, measure it, and write the page; a mistake of the user ends it with one sentence.

    Args:
        path: of the study file, or of the Python file next to it.
        claims: decides what was expected.
        sections: further parts of the page.
        derive: further metrics, of saved captions.
        prepare: changes the study file for a size of the world, and builds what its rows need unless nothing is to be trained.
        kind: of study, where points are chosen in another way.
        write: writes another page than a study's usual one.
        argv: the words of the command line; the process's own by default.
    """
    file = Path(path).with_suffix(".yaml") if Path(path).suffix == ".py" else Path(path)
    options = _options(file, argv)
    try:
        for name in ("workers", "steps"):
            if (value := getattr(options, name)) is not None and value < 1:
                raise UsageError(f"--{name} is {value}: it must be at least 1.")
        if options.dry_run:
            with TemporaryDirectory() as unpacked:  # nothing is left where the trainings would go
                study = _study(file, options, derive, prepare, kind, Path(unpacked))
                study.check()
                sys.stdout.write(listed(study))
            return
        study = _study(file, options, derive, prepare, kind, options.output_dir)
        study.check()
        whole = not options.rows  # claims and sections read rows that may be left out
        page = write or (lambda done, docs: _page(done, docs, claims if whole else None, sections if whole else None))
        written, tasks, name = None, known(study), Path(study.file.page).stem
        waiting = [task for task in tasks if not task.done()]
        if other := of_other_builds(waiting, study.notes, name):
            sys.stderr.write(f"note: {OTHER_BUILDS.format(kept=options.kept, stages=', '.join(other))}\n")
        if waiting:
            sys.stderr.write(f"{WAITING.format(waiting=len(waiting), known=len(tasks))}\n")
        try:
            study.run(workers=options.workers)
            written = page(study, options.docs)
        finally:
            note_builds(known(study), study.notes, name, alone=len(waiting) == len(tasks))
            if options.kept:
                usual = options.size == SIZES[0] and not (options.rows or options.seeds or options.steps)
                keep(known(study), options.kept, whole=usual and written is not None, notes=study.notes.used)
        sys.stdout.write(f"{written}\n")
    except (UsageError, OSError, KeyboardInterrupt) as error:
        _end(error)


@contextmanager
def kept_notes(archive: Path | None, root: Path, *, usual: bool) -> Iterator[Notes]:
    """The notes of a program that trains no captioner; a mistake of the user ends it with one sentence.

    Args:
        archive: takes the notes at the end, also when the program is stopped.
        root: its ``--output_dir``.
        usual: whether it measures all that its page shows, so that other notes leave the archive.
    """
    finished = False
    try:
        notes = Notes((restore(archive, root) if archive else root) / NOTES, root / NOTES)
        try:
            yield notes
            finished = True
        finally:
            if archive:
                keep([], archive, whole=usual and finished, notes=notes.used)
    except (UsageError, OSError, KeyboardInterrupt) as error:
        _end(error)


def _end(error: UsageError | OSError | KeyboardInterrupt) -> NoReturn:
    """End the program with one sentence, and the exit code that ``tellapart`` has for it."""
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write(f"{error or 'interrupted'}\n")
        sys.exit(130)
    sys.stderr.write(printable(without_secrets(f"error: {explain(error, 'the system says no more')}")) + "\n")
    sys.exit(2)


def _options(file: Path, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=f"Run the study {file.name}, or resume it.")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/study"), help="folder of all trainings")
    parser.add_argument("--docs", type=Path, default=Path("docs/results"), help="folder of the page")
    parser.add_argument(
        "--rows", help="rows with semicolons between them, without claims; their start captioners are shown, too"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        help="seeds of the measured points of every row; the first one also searches, or all where the file has search_seeds",
    )
    parser.add_argument("--steps", type=int, help="of every training, instead of those of recipes and rows")
    parser.add_argument("--size", choices=SIZES, default=SIZES[0], help="of the built-in world")
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time, one thread each")
    parser.add_argument(
        "--kept",
        type=Path,
        help="archive of results without weights, such as studies/kept/sle.tar.xz: its trainings are not repeated; it is updated "
        "when the study ends or is stopped",
    )
    parser.add_argument("--dry_run", action="store_true", help="list what is done and what is not, and train nothing")
    return parser.parse_args(argv)


def _study(
    path: Path,
    options: argparse.Namespace,
    derive: Derive | None,
    prepare: Prepare | None,
    kind: type[Study],
    unpacked: Path,
) -> Study:
    file = read_study(path)
    _require_own_page(path, options.docs / file.page)
    if options.rows is not None:
        names = {name.strip() for name in options.rows.split(";") if name.strip()}
        if not names:
            raise UsageError("--rows names no row: name some, with semicolons between them, or leave it out.")
        file = file.keeping(names)
    if options.steps:
        file = file.without("training.max_steps")
    if options.seeds:
        file = file.seeded(seeds_of(options.seeds, "--seeds"))
    common = {"data.size": options.size} | ({"training.max_steps": options.steps} if options.steps else {})
    wanted = options.kept and (options.kept.exists() or not options.dry_run)  # restoring makes the archive's folder
    kept = restore(options.kept, unpacked) if wanted else None
    how: dict[str, Any] = {"common": common, "derive": derive, "kept": kept}
    if prepare is None:
        return kind(file, options.output_dir, **how)
    how["build"] = lambda: prepare(file, options.size, True)
    if (kept is not None and kept.is_dir()) or options.dry_run:
        study = kind(prepare(file, options.size, False), options.output_dir, **how)
        if options.dry_run or all(task.done() for task in known(study)):
            return study
    return kind(prepare(file, options.size, True), options.output_dir, **how)


def _require_own_page(path: Path, page: Path) -> None:
    """Raise where the page would replace the study's file, or the introduction that is read from next to it."""
    if page.resolve() in (path.resolve(), path.with_suffix(".md").resolve()):
        what = "the study's file" if page.resolve() == path.resolve() else "where its introduction is read from"
        raise UsageError(
            f"{path} writes its page to {page}, which is {what}: name another page, or another folder as --docs."
        )


def _page(study: Study, docs: Path, claims: Claims | None, sections: Sections | None) -> Path:
    return write_page(
        study,
        docs / study.file.page,
        claims=[*claims(study)] if claims else [],
        sections=[*sections(study)] if sections else [],
        references=_references(study) if study.file.references else {},
    )


def _references(study: Study) -> dict[str, dict[str, float]]:
    """Rows of given captions -> their metrics."""
    meteor = bool(study.file.measure.get("meteor"))
    first = next(iter(study.measured.values()))[0].recipe

    def made() -> dict[str, dict[str, float]]:
        return {row.name: row.metrics for row in reference_rows(first, study.file.split, meteor=meteor)}

    found: dict[str, dict[str, float]] = study.noted("references", made, meteor)
    return found


def known(study: Study) -> list[Task]:
    """The tasks of a study but those that are not known yet: of points that are not chosen, and of rows that begin with a
    captioner that is not trained."""
    tasks = [*study.searching(), *study.plain()]
    if all(task.done() for task in tasks):
        every = (task for each in study.measured.values() for task in each)
        folders = {task.folder for task in tasks}
        tasks += [task for task in every if task.folder not in folders]
    return tasks


def listed(study: Study) -> str:
    """The trainings of a study that are known, and which are done, a line each."""
    tasks = known(study)
    lines = [f"{'done ' if task.done() else 'to do'}  {task.name}" for task in tasks]
    return "\n".join([*lines, f"{sum(task.done() for task in tasks)} of {len(tasks)} are done", ""])


if __name__ == "__main__":
    if sys.argv[1:2] in (["--help"], ["-h"]):
        _options(Path("FILE.yaml"), ["--help"])
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        _end(UsageError("name a study file first, such as studies/dico.yaml."))
    run(sys.argv[1], argv=sys.argv[2:])
