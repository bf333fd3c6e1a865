"""Strange images: cut, mutated, of odd modes. Reading, ``data check`` and ``caption`` say the same of each."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

from damaged_images import BROKEN, READABLE
from tellapart.data.images import ImageError, ImageFile

from .fuzz import Tray, fuzzing
from .verdict import LONGEST, faults_of

_MAKERS = READABLE | BROKEN


@st.composite
def _images(draw: Any) -> tuple[str, bytes]:
    """Ending and content of a file."""
    kind = draw(st.sampled_from(sorted(_MAKERS)))
    ending, make = _MAKERS[kind]
    data = bytearray(make(np.random.default_rng(draw(st.integers(0, 2**32 - 1)))))
    for _ in range(draw(st.integers(0, 3))):
        data = _mutated(draw, data)
    if draw(st.integers(0, 9)) == 0:
        ending = draw(st.sampled_from((".jpg", ".png", ".gif", ".webp", ".bmp", ".tif")))
    return ending, bytes(data)


def _mutated(draw: Any, data: bytearray) -> bytearray:
    place = draw(st.integers(0, max(0, len(data) - 1)))
    # Headers decide most, and are the smallest part.
    place = place % 64 if draw(st.booleans()) else place
    change = draw(st.sampled_from(("cut", "byte", "bytes", "insert", "double", "zero", "append")))
    some = draw(st.binary(min_size=1, max_size=8))
    if change == "cut":
        return data[:place]
    if change == "byte" and data:
        data[place % len(data)] ^= 1 << draw(st.integers(0, 7))
        return data
    if change in ("bytes", "zero"):
        data[place : place + len(some)] = some if change == "bytes" else bytes(len(some))
        return data
    if change == "insert":
        return data[:place] + some + data[place:]
    return data + (data[place:] if change == "double" else some)


def _attempt(image: tuple[str, bytes], tray: Tray) -> list[str]:
    ending, data = image
    folder = tray.folder / "images"
    folder.mkdir()
    (folder / f"a{ending}").write_bytes(data)
    faults, reason = [], ""
    try:
        opened = ImageFile(folder / f"a{ending}").open()
        if opened.mode != "RGB":
            faults.append(f"opened as {opened.mode}")
    except ImageError as error:
        reason = str(error)
        if len(reason) > LONGEST or "\n" in reason:
            faults.append(f"a refusal of {len(reason)} characters: {reason[:100]}")
    check = tray.call("data", "check", folder, "--json", "--num_workers", 0, "--format", "unlabelled")
    faults += [f"data check: {fault}" for fault in faults_of(check, says='"clean": false')]
    if check.code in (0, 2) and check.out.startswith("{"):
        found = json.loads(check.out)["splits"]
        broken = any(split["broken"] for split in found.values())
        if broken != bool(reason):
            faults.append(f"data check says {'broken' if broken else 'whole'}, reading says {reason or 'whole'}"[:250])
    if tray.number % 5 == 0:
        faults += _captioned(tray, folder, bool(reason))
    return faults


def _captioned(tray: Tray, folder: Any, broken: bool) -> list[str]:
    """``caption`` writes a caption of a whole image and none of a broken one."""
    output = tray.folder / "c.jsonl"
    words = ["caption", folder, "--captioner", tray.room.given.materials.captioner, "--max_new_tokens", 4]
    outcome = tray.call(*words, "--num_beams", 1, "--num_workers", 0, "--resample", 0, "--output", output)
    faults = [f"caption: {fault}" for fault in faults_of(outcome)]
    rows = output.read_text().splitlines() if output.is_file() else []
    if not faults and (outcome.code == 0, len(rows)) != (not broken, int(not broken)):
        faults.append(
            f"caption wrote {len(rows)} captions of a {'broken' if broken else 'whole'} image, exit code {outcome.code}"
        )
    return faults


IMAGES = fuzzing("images", 1_000, 0.08, _images(), _attempt, seconds=60)
