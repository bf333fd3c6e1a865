"""Memory that scoring takes for each caption, from the files to the files."""

import json
import os
import random
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

WORDS = [f"word{n}" for n in range(3000)]
WEIGHTS = [*accumulate(1 / (n + 1) for n in range(len(WORDS)))]


def made_up(folder: Path, images: int) -> list[str]:
    """The command that scores captions of some images with one reference each, 10 words a caption on average."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, cum_weights=WEIGHTS, k=rng.randint(8, 12))) for _ in range(2 * images)]
    captions, references = folder / "captions.json", folder / "references.json"
    captions.write_text(json.dumps([{"image_id": n, "caption": texts[n]} for n in range(images)]))
    listed = [{"id": n, "file_name": f"{n:012}.jpg"} for n in range(images)]
    annotations = [{"id": n, "image_id": n, "caption": texts[images + n]} for n in range(images)]
    references.write_text(json.dumps({"images": listed, "annotations": annotations}))
    words = ["score", str(captions), "--references", str(references), "--output_dir", str(folder / "scored")]
    return [sys.executable, "-m", "tellapart.cli", *words, "--bootstrap", "2"]


def peak(folder: Path, images: int) -> int:
    """Bytes of the process that scores, at the highest point."""
    process = subprocess.Popen(made_up(folder, images), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_bytes_per_caption(tmp_path):
    """Two texts of 60 characters and their words, 16 numbers and 16 sums of 8 bytes are 496 bytes; the largest step adds some.

    As Python objects a caption took 2,800 bytes.
    """
    small, large = peak(tmp_path, 10_000), peak(tmp_path, 30_000)
    assert (large - small) / 20_000 < 1300
