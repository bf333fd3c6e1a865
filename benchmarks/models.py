"""Fill the table of docs/reference/models.md: every check of tests/family_checks.py on every family's tiny model.

    OMP_NUM_THREADS=1 python benchmarks/models.py [--family BLIP] [--docs docs/reference/models.md]

Each family runs in a process of its own. Memory is what the process's peak resident size rises by during a training,
reset before each by the kernel's ``clear_refs`` (Linux).
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
CHECKS = ("contract", "xe", "scst", "dico", "LoRA xe", "LoRA scst", "LoRA dico", "resume", "plain reload")


def memory(name: str) -> float:
    """A figure of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def with_peak(run: Callable[[], Any]) -> tuple[Any, float]:
    """What ``run`` returns, and the MB its peak lies above the size before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    return run(), memory("VmHWM") - before


def measure(family: str) -> dict[str, Any]:
    """The row of one family: each check's outcome, trained parameters, memory."""
    import torch

    import family_checks as checks

    torch.set_num_threads(1)
    row: dict[str, Any] = {"family": family}
    fits: list[Any] = []

    def attempt(name: str, run: Callable[[], Any]) -> Any:
        try:
            value = run()
        except Exception:
            traceback.print_exc()
            row[name] = False
            return None
        row[name] = True
        return value

    def training(method: str, folder: Path, lora: bool) -> Callable[[], Any]:
        def run() -> tuple[Any, float]:
            result, peak = with_peak(
                lambda: checks.fit(family, method, folder, lora=lora, out=f"{method}-{'lora' if lora else 'full'}")
            )
            checks.check_training(result)
            return result, peak

        return run

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        attempt("contract", lambda: checks.check_contract(family, folder / "contract"))
        checks.fit(family, "dico", folder, out="warm")  # the first run of anything also pays for imports
        for lora in (False, True):
            for method in checks.METHODS:
                done = attempt(f"{'LoRA ' if lora else ''}{method}", training(method, folder, lora))
                if done is not None:
                    fits.append(done[0])
                    row["LoRA parameters" if lora else "parameters"] = done[0].trained
                    row[f"{'LoRA ' if lora else ''}{method} MB"] = done[1]
        attempt(
            "resume",
            lambda: checks.check_resume(family, folder / "resume", checks.fit_for_resuming(family, folder / "resume")),
        )
        attempt("plain reload", lambda: [checks.check_reload(result) for result in fits])
        model = fits[0].captioner.family.model if fits else None
        row["class"] = type(model).__name__
        row["total"] = sum(p.numel() for p in model.parameters()) if model is not None else 0
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line a family."""
    heads = ["family", "class", *CHECKS, "trained / all parameters", "LoRA parameters", "peak MB xe / scst / dico"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        peaks = " / ".join(
            f"{row[f'{method} MB']:.1f}" if f"{method} MB" in row else "-" for method in ("xe", "scst", "dico")
        )
        cells = [row["family"], f"`{row['class']}`", *("yes" if row.get(name) else "**no**" for name in CHECKS)]
        cells += [f"{row.get('parameters', 0):,} / {row['total']:,}", f"{row.get('LoRA parameters', 0):,}", peaks]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace what stands between the marks."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", action="append", help="only this one; may be given several times")
    parser.add_argument("--docs", type=Path, help="page whose table is replaced")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    import family_checks

    rows = []
    for family in options.family or family_checks.TINY:
        words = [sys.executable, __file__, "--one", family]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{family}: {done.stderr}")
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        if not all(rows[-1].get(name) for name in CHECKS):
            print(done.stderr, file=sys.stderr)
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    if options.docs:
        write(options.docs, rows)
        print(f"wrote {options.docs}")
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
