"""Every study on the built-in world, one after the other: what is kept is not trained again, and all pages are written anew.

A study that fails does not stop the others. At the end a table says what each took; the exit code is 1 if one failed. Of the full
world the table is also written into ``how-to/studies.md``, between its marks.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tellapart.files import write_text
from tellapart.sweep.claims import markdown_table
from tellapart.sweep.page_parts import marked
from tellapart.sweep.study_file import read_study
from tellapart.sweep.tasks import TRAINED_FILE

STUDIES = (
    "world",
    "truth",
    "sharp",
    "wtf_rl",
    "negatives",
    "dico",
    "sle",
    "psst",
    "vlrm",
    "vlrm_seeing",
    "video",
    "table",
    "negclip",
)
"""Those with a file of rows."""

OTHERS = {
    "frontier": ("--output_dir", "--docs", "--size", "--workers", "--kept", "--dry_run"),
    "apart": ("--output_dir", "--docs", "--size", "--kept"),
    "pac": ("--output_dir", "--docs", "--size", "--kept"),
}
"""Programs that have no file of rows -> the options that they take."""

HEADS = ("study", "trainings", "of these also in other studies", "hours of one thread")

MARK = "hours"
"""Name of the table's marks on its page."""

FRONTIER_TABLES = "frontier-tables.md"

HERE = Path(__file__).parent
KEPT = HERE / "kept"
HOURS = re.compile(r"The (\d+) trainings took ([\d.]+) hours")


def hours(page: Path) -> tuple[str, str]:
    """Trainings, and hours of one thread, as the page of a study tells them; dashes where it does not."""
    found = HOURS.search(" ".join(page.read_text(encoding="utf-8").split())) if page.is_file() else None
    return found.groups() if found else ("-", "-")  # type: ignore[return-value]


def page_of(name: str) -> str:
    """The page on which a study tells its hours; empty where it has no trainings."""
    if name in STUDIES:
        return read_study(HERE / f"{name}.yaml").page
    return FRONTIER_TABLES if name == "frontier" else ""


def kept_trainings() -> dict[str, set[str]]:
    """Study -> the folders of the trainings in its archive; a training has the same folder in every study."""
    found = {}
    for archive in sorted(KEPT.glob("*.tar.xz")):
        with tarfile.open(archive) as members:
            files = (Path(name) for name in members.getnames())
            found[archive.name.partition(".")[0]] = {file.parts[0] for file in files if file.name == TRAINED_FILE}
    return found


def told(name: str, docs: Path, kept: Mapping[str, set[str]]) -> list[str]:
    """Trainings of a study, how many of them other studies have, too, and hours.

    Args:
        name: of the study.
        docs: folder of the pages.
        kept: from ``kept_trainings``; empty for another size of the world.
    """
    page = page_of(name)
    trainings, took = hours(docs / page) if page else ("0", "-")
    others = set[str]().union(*(found for other, found in kept.items() if other != name))
    return [trainings, str(len(kept[name] & others)) if name in kept else "-", took]


def write_hours(docs: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write the table into ``how-to/studies.md`` next to the folder of the pages; nothing where there is no such page."""
    page = docs.parent / "how-to" / "studies.md"
    if page.is_file():
        lines = [[f"`{name}`", *cells] for name, *cells in rows]
        write_text(page, marked(page.read_text(encoding="utf-8"), MARK, markdown_table(HEADS, lines)))


def command(name: str, options: argparse.Namespace) -> list[str]:
    """The words that run a study."""
    given = {f"--{key}": getattr(options, key) for key in ("output_dir", "docs", "size", "workers")}
    given |= {"--kept": KEPT / f"{name}.tar.xz"} if options.size == "full" else {}
    takes = OTHERS.get(name, given)
    words = [str(word) for flag, value in given.items() if flag in takes for word in (flag, value)]
    return [sys.executable, str(HERE / f"{name}.py"), *words, *(["--dry_run"] if options.dry_run else [])]


def main(argv: list[str] | None = None) -> None:
    """Run them all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/study"), help="folder of all trainings")
    parser.add_argument("--docs", type=Path, default=Path("docs/results"), help="folder of the pages")
    parser.add_argument("--size", choices=("full", "small"), default="full", help="of the built-in world")
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time, one thread each")
    parser.add_argument("--dry_run", action="store_true", help="list what is done and what is not, and train nothing")
    parser.add_argument(
        "--hours", action="store_true", help="run no study; write the table of hours from pages and archives"
    )
    options = parser.parse_args(argv)
    kept = kept_trainings() if options.size == "full" else {}
    if options.hours:
        write_hours(options.docs, [[name, *told(name, options.docs, kept)] for name in (*STUDIES, *OTHERS)])
        return
    rows = []
    others = [name for name, takes in OTHERS.items() if not options.dry_run or "--dry_run" in takes]
    for name in (*STUDIES, *others):
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        code = subprocess.run(command(name, options), check=False).returncode
        if code == 130:
            sys.exit(code)
        found = ["-"] * 3 if code else told(name, options.docs, kept)
        rows.append([name, *found, "" if code == 0 else f"failed with {code}"])
    failed = any(row[-1] for row in rows)
    if not options.dry_run:
        sys.stdout.write(markdown_table([*HEADS, ""], rows) + "\n")
        if kept and not failed:
            write_hours(options.docs, [row[:-1] for row in rows])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
