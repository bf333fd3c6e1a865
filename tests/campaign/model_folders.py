"""Strange model folders: files missing, cut or of another shape, numbers that are not finite, and planted code of every kind."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from .data_files import ODD
from .fuzz import Tray, fuzzing
from .tries import Room
from .verdict import WRONG, faults_of

CHANGES = (
    "missing",
    "cut",
    "byte",
    "json",
    "shape",
    "dtype",
    "nan",
    "lacking",
    "pickle",
    "zip pickle",
    "auto_map",
    "optimizer",
    "link",
)


class Planted:
    """Unpickling it makes the canary."""

    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.canary,)


@st.composite
def _folders(draw: Any) -> tuple[str, list[tuple[str, int, Any]]]:
    """Which folder, and changes: kind, where, value."""
    change = st.tuples(
        st.sampled_from(CHANGES), st.integers(0, 10**6), st.sampled_from([each for each in ODD if each != "\ud800"])
    )
    return draw(st.sampled_from(("captioner", "listener", "run"))), draw(st.lists(change, min_size=1, max_size=2))


def _attempt(drawn: tuple[str, list[tuple[str, int, Any]]], tray: Tray) -> list[str]:
    which, changes = drawn
    folder = tray.folder / which
    shutil.copytree(sources(tray.room)[which], folder)
    for change, place, value in changes:
        _change(folder, change, place, value, str(tray.canary))
    faults = []
    for words in commands(which, folder, tray):
        outcome = tray.call(*words)
        faults += [f"{words[0]}: {fault}" for fault in faults_of(outcome)]
        broken = {"nan", "shape"} & {change for change, _, _ in changes}
        if broken and which != "run" and outcome.code != WRONG:
            faults.append(f"{words[0]}: exit code {outcome.code} with weights that are {broken}")
    return faults


def sources(room: Room) -> dict[str, Path]:
    """The folders that are changed: of a captioner, of a listener, of a run."""
    return {
        "captioner": room.given.materials.captioner,
        "listener": room.given.materials.listener,
        "run": room.given.run,
    }


def commands(which: str, folder: Path, tray: Tray) -> list[tuple[object, ...]]:
    """What reads such a folder."""
    given = tray.room.given
    caption = (
        "caption",
        given.data,
        "--format",
        "unlabelled",
        "--max_new_tokens",
        4,
        "--num_workers",
        0,
        "--resample",
        0,
    )
    if which == "captioner":
        return [(*caption, "--captioner", folder, "--output", tray.folder / "c.jsonl")]
    if which == "listener":
        rerank = ("--n", 2, "--rerank", "clip_s", "--listener", folder)
        return [(*caption, "--captioner", given.materials.captioner, *rerank, "--output", tray.folder / "c.jsonl")]
    recipe = json.loads((given.root / "run.yaml").read_text()) | {"output_dir": str(folder), "max_steps": 5}
    (tray.folder / "recipe.yaml").write_text(json.dumps(recipe))
    return [
        ("train", tray.folder / "recipe.yaml", "--resume_from_checkpoint", "last"),
        ("score", folder, "--data", given.data),
    ]


def _change(folder: Path, change: str, place: int, value: Any, canary: str) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = files[place % len(files)]
    weights = sorted(folder.rglob("model.safetensors"))
    weight = weights[place % len(weights)] if weights else None
    if change == "missing":
        file.unlink()
    elif change in ("cut", "byte"):
        data = bytearray(file.read_bytes())
        at = place % max(1, len(data))
        file.write_bytes(data[:at] if change == "cut" else data[:at] + bytes([place % 256]) + data[at + 1 :])
    elif change == "link":
        file.unlink()
        file.symlink_to("/dev/zero" if place % 2 else "/nowhere")
    elif change == "json":
        _spoil([path for path in files if path.suffix == ".json"], place, value)
    elif change == "optimizer":
        for path in folder.rglob("optimizer.pt"):
            torch.save({"captioner": Planted(canary)}, path)
    elif change == "auto_map":
        _plant_code(folder, canary)
    elif weight is not None:
        _change_weights(weight, change, place, canary)


def _spoil(files: list[Path], place: int, value: Any) -> None:
    if not files:
        return
    path = files[place % len(files)]
    try:
        content = json.loads(path.read_text())
    except ValueError:
        return
    if isinstance(content, dict) and content:
        content[sorted(content)[place % len(content)]] = value
    else:
        content = value
    path.write_text(json.dumps(content))


def _plant_code(folder: Path, canary: str) -> None:
    code = f"import os\nos.mkdir({canary!r})\n"
    for path in [path for path in folder.rglob("*config*.json") if path.is_file()]:
        (path.parent / "planted.py").write_text(code)
        content = {}
        if path.stat().st_size < 10**6:
            with suppress(ValueError):  # an earlier change may have broken it
                content = json.loads(path.read_text())
        if isinstance(content, dict):
            names = (
                "AutoConfig",
                "AutoModel",
                "AutoModelForVision2Seq",
                "AutoTokenizer",
                "AutoImageProcessor",
                "AutoProcessor",
            )
            content["auto_map"] = dict.fromkeys(names, "planted.Planted")
            content["trust_remote_code"] = True
            path.write_text(json.dumps(content))


def _change_weights(path: Path, change: str, place: int, canary: str) -> None:
    if "pickle" in change:
        other = path.with_name("pytorch_model.bin")
        path.unlink()
        if change == "pickle":
            other.write_bytes(pickle.dumps(Planted(canary)))
        else:
            torch.save({"weight": Planted(canary)}, other)
        return
    try:
        tensors = load_file(path)
    except Exception:  # an earlier change has damaged it
        return
    names = [name for name, tensor in sorted(tensors.items()) if tensor.is_floating_point() and tensor.dim() == 2]
    name = names[place % len(names)]
    if change == "nan":
        tensors[name].view(-1)[place % tensors[name].numel()] = float("nan")
    elif change == "shape":
        tensors[name] = tensors[name][:-1].clone()
    elif change == "dtype":
        tensors[name] = tensors[name].to(torch.float16)
    else:
        del tensors[name]
    save_file(tensors, path, metadata={"format": "pt"})


MODEL_FOLDERS = fuzzing("models", 100, 0.05, _folders(), _attempt, seconds=90)
