"""One task of a sweep, in a process of its own: ``python -m tellapart.cli.job ASKED --output_dir FOLDER``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tellapart.cli.console import note
from tellapart.cli.main import BAD_USAGE, INTERRUPTED, collect_seldom, explain, plain_warnings, told_remarks
from tellapart.errors import UsageError
from tellapart.parents import end_with
from tellapart.sweep.tasks import carry_out


def main(argv: list[str] | None = None) -> int:
    """Train and measure; an error is one sentence, the last that the process says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("asked", type=Path, help="what to do, a file within the folder")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--end_with_stdin", action="store_true", help="end when the pipe of standard input is closed")
    options = parser.parse_args(argv)
    if options.end_with_stdin:
        end_with(0)
    try:
        with plain_warnings(), told_remarks():
            carry_out(options.output_dir, options.output_dir / options.asked)
        return 0
    except KeyboardInterrupt as stopped:
        note(str(stopped) or "interrupted.")
        return INTERRUPTED
    except (UsageError, OSError) as error:
        note(f"error: {explain(error)}")
        return BAD_USAGE


if __name__ == "__main__":
    collect_seldom()
    sys.exit(main())
