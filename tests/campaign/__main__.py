"""``python -m tests.campaign``: attack the package for some minutes, or for as many tries as the goal names."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from . import warm
from .forks import Fork, reap_orphans, threads
from .given import Given, make_given
from .kinds import KINDS
from .tries import Kind, Room, Row, numbers, reproduce, table


def main(argv: list[str] | None = None) -> int:
    """Run the campaign; 1 if a try failed."""
    options = _options(argv)
    chosen = [kind for kind in KINDS if not options.only or kind.name in options.only]
    root = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        reap_orphans()
        given = _made(root / "given")
        room = Room(given, root, options.seed)
        if options.number is not None:
            return _again(chosen[0], room, options.number, options.keep)
        rows = _campaign(chosen, room, options)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"\nseed {options.seed}, commit {_commit()}\n\n{table(rows, options.seed)}")
    return int(any(row.failures for row in rows))


def _options(argv: list[str] | None) -> argparse.Namespace:
    names = [kind.name for kind in KINDS]
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, help="time for all kinds together")
    parser.add_argument(
        "--tries", type=float, help="share of the goal's tries to make, such as 0.1; without --minutes, 1"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides every try")
    parser.add_argument("--only", action="append", choices=names, metavar="KIND", help=f"one of {', '.join(names)}")
    parser.add_argument("--try", dest="number", type=int, help="make this try of the kind, and show what it did")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the folders of tries that failed")
    options = parser.parse_args(argv)
    if options.number is not None and len(options.only or ()) != 1:
        parser.error("--try needs --only KIND")
    return options


def _made(root: Path) -> Given:
    """Write what commands start from, and import what they need; this process itself computes nothing before it forks."""
    root.mkdir(parents=True)
    warm.imports(root.parent)
    made = Fork(lambda: bool(make_given(root)) - 1, root.parent / "said").wait(300)
    if made.code:
        raise SystemExit(f"the campaign cannot begin:\n{made.err}")
    if threads() > 1:
        raise SystemExit("the campaign cannot begin: forks would lose a thread of this process")
    from .given import given_at

    return given_at(root)


def _campaign(chosen: list[Kind], room: Room, options: argparse.Namespace) -> list[Row]:
    rows, began = [], time.monotonic()
    left = sum(kind.share for kind in chosen)
    for kind in chosen:
        spent = time.monotonic() - began
        until = float("inf")
        if options.minutes is not None:  # what an earlier kind has left over is shared
            until = began + spent + (60 * options.minutes - spent) * kind.share / left
            left -= kind.share
        share = 1.0 if options.tries is None and options.minutes is None else options.tries
        count = 10**9 if share is None else max(1, round(kind.goal * share))
        rows.append(_tried(kind, room, numbers(count, until), options.keep))
        row = rows[-1]
        print(f"{kind.name}: {row.tries} tries, {len(row.failures)} failures, {row.seconds:.0f} s", flush=True)
    return rows


def _tried(kind: Kind, room: Room, turns: Iterator[int], keep: Path | None) -> Row:
    row, began = Row(kind.name), time.monotonic()
    attack = kind.begin(room)
    for number in turns:
        try:
            what, faults = attack(number)
        except Exception as error:  # the other tries are worth having
            what, faults = "", [f"the campaign itself failed: {type(error).__name__}: {error}"[:2000]]
        row.tries += 1
        if faults:
            row.failures.append((number, what, faults))
            print(f"FAILED {reproduce(kind.name, room.seed, number)}\n  {what}", flush=True)
            print("".join(f"  - {fault}\n" for fault in faults), end="", flush=True)
            if keep is not None:
                _keep(room, keep / f"{kind.name}-{room.seed}-{number}")
    row.seconds = time.monotonic() - began
    return row


def _again(kind: Kind, room: Room, number: int, keep: Path | None) -> int:
    what, faults = kind.begin(room)(number)
    print(what)
    print("\n".join(f"- {fault}" for fault in faults) or "nothing was wrong.")
    if keep is not None:
        _keep(room, keep / f"{kind.name}-{room.seed}-{number}")
    return int(bool(faults))


def _keep(room: Room, folder: Path) -> None:
    for name in ("try", "said", "item"):
        if (room.scratch / name).exists():
            shutil.copytree(room.scratch / name, folder / name, dirs_exist_ok=True, symlinks=True)


def _commit() -> str:
    here = Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
