"""``tellapart score`` from a cold start to its exit, against a script that does the same with pycocoevalcap.

Both read COCO results and COCO annotations, cut words, and print Bleu_1..4, ROUGE_L and CIDEr; ours also prints
intervals and style, and writes its files. Processes take turns; CPU time is that of a process and all that it started
(the Java tokenizer), memory the largest resident set of any of them. Bytecode is compiled before.

    python benchmarks/score.py RESULTS ANNOTATIONS
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PAIRS = 5

PEER = """
import json, sys
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

results, annotations = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
said = {row["image_id"]: [row] for row in results}
references = {image_id: [] for image_id in said}
for row in annotations["annotations"]:
    references[row["image_id"]].append(row)
tokenizer = PTBTokenizer()
references, said = tokenizer.tokenize(references), tokenizer.tokenize(said)
scores = dict(zip(("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4"), Bleu(4).compute_score(references, said, verbose=0)[0]))
scores["ROUGE_L"] = float(Rouge().compute_score(references, said)[0])
scores["CIDEr"] = float(Cider().compute_score(references, said)[0])
print(json.dumps(scores))
"""


def measured(command: list[str]) -> tuple[float, int, dict[str, float]]:
    """CPU seconds and largest resident set in MB of a process and its children, and the scores that it printed last."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{command[0]} ended with {process.returncode}")
        out.seek(0)
        printed = out.read()
    value = json.loads(printed[printed.index("{") :])
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024, value.get("metrics", value)


def main() -> None:
    """Print medians, their ratio and both tools' scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="COCO results json")
    parser.add_argument("annotations", type=Path, help="COCO annotations json")
    given = parser.parse_args()
    files = [str(given.results), str(given.annotations)]
    with tempfile.TemporaryDirectory() as folder:
        ours = [sys.executable, "-m", "tellapart.cli", "score", files[0], "--references", files[1], "--json"]
        commands = {
            "pycocoevalcap": [sys.executable, "-c", PEER, *files],
            "tellapart score": [*ours, "--output_dir", folder],
        }
        runs: dict[str, list[tuple[float, int, dict[str, float]]]] = {name: [] for name in commands}
        for turn in range(PAIRS + 1):
            for name, command in commands.items():
                found = measured(command)
                runs[name] += [found] if turn else []  # the first compiles bytecode
    medians = {name: statistics.median(seconds for seconds, _, _ in found) for name, found in runs.items()}
    for name, found in runs.items():
        spread = f"{min(s for s, _, _ in found):.2f} to {max(s for s, _, _ in found):.2f}"
        memory = max(memory for _, memory, _ in found)
        ratio = medians["pycocoevalcap"] / medians[name]
        print(f"{name:16} {medians[name]:6.2f} CPU s ({spread})  {memory:5} MB  {ratio:5.1f}x")
    for key, value in runs["pycocoevalcap"][0][2].items():
        print(f"    {key:8} {value:.12f}  {runs['tellapart score'][0][2][key]:.12f}")


if __name__ == "__main__":
    main()
