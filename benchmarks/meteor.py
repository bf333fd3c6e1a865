"""METEOR against meteor-1.5.jar: start-up, memory, scoring and the reward, one thread; or whether both agree.

    python benchmarks/meteor.py --captions REFERENCES.json --results RESULTS.json
    python benchmarks/meteor.py --agreement --captions REFERENCES.json [--results RESULTS.json ...]
        [--without CAPTIONS.json] [--images 2500]

The second form prints how many captions get other statistics or another value than from the jar. Without a result file it takes
the first caption of each image, against the others. ``--without`` leaves out the images of a COCO file, ``--images``
keeps the first ones by id.
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

import numpy as np

from tellapart.metrics import meteor_data
from tellapart.metrics.meteor import meteor, meteor_counts
from tellapart.metrics.ptb import ptb_tokenize


def read(captions: Path, results: Path | None, without: Path | None = None, images: int | None = None):
    references: dict[int, list[str]] = {}
    for row in json.loads(captions.read_text())["annotations"]:
        references.setdefault(row["image_id"], []).append(row["caption"])
    left_out = {row["image_id"] for row in json.loads(without.read_text())["annotations"]} if without else set()
    if results is None:
        said = {image: texts.pop(0) for image, texts in references.items()}
    else:
        said = {row["image_id"]: row["caption"] for row in json.loads(results.read_text())}
    chosen = said.keys() & references.keys() - left_out
    kept = sorted(chosen)[:images] if without or images else [image for image in said if image in chosen]
    rest = iter(ptb_tokenize(text for image in kept for text in references[image]))
    return ptb_tokenize(said[image] for image in kept), [[next(rest) for _ in references[image]] for image in kept]


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


JAVA = [
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


def ask(text: str) -> list[str]:
    """The lines that the jar answers."""
    done = subprocess.run(JAVA, input=text.encode(), cwd=meteor_data.source(), capture_output=True, check=True)
    return done.stdout.decode().splitlines()


def agreement(candidates, references) -> str:
    """Captions whose statistics or values differ from the jar's, and the largest difference."""
    answers = ask(lines(candidates, references).decode())
    *values, corpus = map(float, ask(" ||| ".join(["EVAL", *answers]) + "\n"))
    theirs = np.array([[float(cell) for cell in answer.split()] for answer in answers])
    other = int((meteor_counts(candidates, references) != theirs).any(axis=1).sum())
    own_corpus, own_values = meteor(candidates, references)
    apart = np.abs(own_values - values)
    return (
        f"{len(candidates)} captions, {other} with other statistics, {int((apart > 1e-9).sum())} values differ, "
        f"by at most {apart.max():.2g}; corpus {corpus:.6f} in the jar, {own_corpus - corpus:+.2g} here"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=Path, required=True)
    parser.add_argument("--results", type=Path, nargs="*", default=[])
    parser.add_argument("--agreement", action="store_true")
    parser.add_argument("--without", type=Path)
    parser.add_argument("--images", type=int)
    options = parser.parse_args()
    if options.agreement:
        for results in options.results or [None]:
            pairs = read(options.captions, results, options.without, options.images)
            print(results.stem if results else "human", agreement(*pairs), sep=": ")
    else:
        speed(*read(options.captions, options.results[0], options.without, options.images))


def speed(candidates, references) -> None:
    """Print CPU time and memory of both."""
    meteor_data.load_resources()
    figures = {}
    for name, count in (("first score", 1), ("all", len(candidates))):
        path = Path(tempfile.gettempdir()) / f"meteor-benchmark-{os.getpid()}.json"
        path.write_text(json.dumps([candidates[:count], references[:count]]))
        here = measured([sys.executable, __file__, "--own", str(path)], b"")
        there = measured(JAVA, lines(candidates[:count], references[:count]), meteor_data.source())
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
