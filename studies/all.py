"""Every study on the built-in world, one after the other: what is kept is not trained again, and all pages are written anew.

A study that fails does not stop the others. At the end a table says what each took; the exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tellapart.sweep.claims import markdown_table
from tellapart.sweep.study_file import read_study

STUDIES = ("world", "truth", "sharp", "wtf_rl", "dico", "sle", "psst", "vlrm", "video", "table", "negclip")
"""Those with a file of rows; negclip compares itself with the rows of table."""

OTHERS = {
    "frontier": ("--output_dir", "--docs", "--size", "--workers", "--kept", "--dry_run"),
    "apart": ("--output_dir", "--docs", "--size", "--kept"),
    "pac": ("--output_dir", "--docs", "--size", "--kept"),
}
"""Programs that have no file of rows -> the options that they take."""

FRONTIER_TABLES = "frontier-tables.md"

HERE = Path(__file__).parent
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


def command(name: str, options: argparse.Namespace) -> list[str]:
    """The words that run a study."""
    given = {f"--{key}": getattr(options, key) for key in ("output_dir", "docs", "size", "workers")}
    given |= {"--kept": HERE / "kept" / f"{name}.tar.xz"} if options.size == "full" else {}
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
    options = parser.parse_args(argv)
    rows = []
    others = [name for name, takes in OTHERS.items() if not options.dry_run or "--dry_run" in takes]
    for name in (*STUDIES, *others):
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        code = subprocess.run(command(name, options), check=False).returncode
        if code == 130:
            sys.exit(code)
        page = "" if code else page_of(name)
        told = hours(options.docs / page) if page else ("-", "-")
        rows.append([name, *told, "" if code == 0 else f"failed with {code}"])
    if not options.dry_run:
        sys.stdout.write(markdown_table(["study", "trainings", "hours of one thread", ""], rows) + "\n")
    sys.exit(1 if any(row[-1] for row in rows) else 0)


if __name__ == "__main__":
    main()
