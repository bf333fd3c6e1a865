"""METEOR against meteor-1.5.jar: start-up, memory, scoring and the reward, one thread.

python benchmarks/meteor.py --captions REFERENCES.json --results RESULTS.json
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from tellapart.metrics import meteor_data
from tellapart.metrics.meteor import meteor
from tellapart.metrics.ptb import ptb_tokenize


def read(captions: Path, results: Path):
    references: dict[int, list[str]] = {}
    for row in json.loads(captions.read_text())["annotations"]:
        references.setdefault(row["image_id"], []).append(row["caption"])
    rows = json.loads(results.read_text())
    return ptb_tokenize([row["caption"] for row in rows]), [ptb_tokenize(references[row["image_id"]]) for row in rows]


def measured(command: list[str], text: bytes, folder=None) -> tuple[float, float]:
    """CPU seconds and peak memory in MB of a program and its children."""
    timed = ["/usr/bin/time", "-f", "%U %S %M", *command]
    done = subprocess.run(timed, input=text, cwd=folder, capture_output=True, check=True)
    user, system, peak = done.stderr.decode().split("\n")[-2].split()
    return float(user) + float(system), float(peak) / 1024


def lines(candidates, references) -> bytes:
    pairs = zip(candidates, references, strict=True)
    return "".join(f"{' ||| '.join(['SCORE', *group, caption])}\n" for caption, group in pairs).encode()


def own(path: str) -> None:
    """What the measured process does: score the captions of a file."""
    candidates, references = json.loads(Path(path).read_text())
    meteor(candidates, references)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--captions", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args()
    candidates, references = read(options.captions, options.results)
    meteor_data.load_resources()
    java = [
        "java",
        "-Xmx2G",
        "-XX:ActiveProcessorCount=1",
        "-jar",
        meteor_data.JAR,
        "-",
        "-",
        "-stdio",
        "-l",
        "en",
        "-norm",
    ]
    figures = {}
    for name, count in (("first score", 1), ("all", len(candidates))):
        path = Path(tempfile.gettempdir()) / f"meteor-benchmark-{os.getpid()}.json"
        path.write_text(json.dumps([candidates[:count], references[:count]]))
        here = measured([sys.executable, __file__, "--own", str(path)], b"")
        there = measured(java, lines(candidates[:count], references[:count]), meteor_data.source())
        path.unlink()
        figures[name] = here, there
        print(f"{name}: {here[0]:.2f} CPU s, {here[1]:.0f} MB; jar {there[0]:.2f} CPU s, {there[1]:.0f} MB")
        print(f"  {there[0] / here[0]:.1f} times faster, {there[1] / here[1]:.1f} times less memory")
    scoring = [figures["all"][n][0] - figures["first score"][n][0] for n in (0, 1)]
    print(f"after start-up: {scoring[0]:.2f} CPU s; jar {scoring[1]:.2f} CPU s: {scoring[1] / scoring[0]:.2f} times")
    batch = candidates[:64] * 5, references[:64] * 5
    meteor(*batch)
    began = time.process_time()
    meteor(*batch)
    spent = time.process_time() - began
    print(f"a batch of 64 images x 5 captions: {1000 * spent:.0f} CPU ms, {320 / spent:.0f} captions/s")
    print(f"peak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    own(sys.argv[2]) if sys.argv[1:2] == ["--own"] else main()
