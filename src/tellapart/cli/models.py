"""Models and data from what a user calls them: runs, folders, Hugging Face ids, stages of the built-in world."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.cli.schema import CaptionerSection
from tellapart.data.load import load_dataset
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.types import Decoding

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset

WORLD = "world"
CAPTIONER = "captioner"
"""Folder of the captioner within a checkpoint."""


def device() -> torch.device:
    """The accelerator that this process is to use, or the CPU."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        return torch.device("cpu")
    return torch.device(kind.type, int(os.environ.get("LOCAL_RANK", "0")) if kind.type == "cuda" else 0)


def device_of(module: nn.Module) -> torch.device:
    """Where a module is."""
    return next(module.parameters()).device


def load_captioner(section: CaptionerSection, *, size: str = "full") -> HuggingFaceCaptioner:
    """The captioner of a recipe, or of a command's option.

    Raises:
        UsageError: there is no such model, or it cannot be used so.
    """
    with as_usage_errors("captioner"):
        return HuggingFaceCaptioner.from_pretrained(
            captioner_folder(section.model_name_or_path, size=size),
            train=section.train,
            lora=None if section.lora is None else LoraOptions(**asdict(section.lora)),
            dtype=section.dtype,
            gradient_checkpointing=section.gradient_checkpointing,
        )


def captioner_folder(name: str, *, size: str = "full") -> str | Path:
    """Where the weights are: a run's selected checkpoint (else its last one), a stage of the world, or ``name`` itself.

    Raises:
        UsageError: a run has no checkpoint.
    """
    if is_world(name):
        return build_stage(name, size)
    folder = Path(name).expanduser()
    if (folder / CAPTIONER).is_dir():
        return folder / CAPTIONER
    if not (folder / "run.json").is_file():
        return name
    steps = {path.parent.name.removeprefix("checkpoint-"): path for path in folder.glob(f"checkpoint-*/{CAPTIONER}")}
    last = max(filter(str.isdigit, steps), key=int, default=None)
    best = folder / "best" / CAPTIONER
    if best.is_dir():
        return best
    if last is None:
        raise UsageError(f"the run {name} has no checkpoint yet: let it train on, or name another.")
    return steps[last]


def build_stage(name: str, size: str) -> Path:
    """The folder of a stage of the built-in world, which is built if it is not there.

    Raises:
        UsageError: there is no such stage.
    """
    from tellapart.experiments.world_stages import resolve

    return resolve(name, size=size)


def is_world(name: str) -> bool:
    """Whether a model's name is that of a stage of the built-in world."""
    return name.startswith(f"{WORLD}/")


def load_listener(path: str, *, name: str, prefix: str | None = None, size: str = "full") -> ClipListener:
    """A retriever, on this process's device.

    Raises:
        UsageError: there is no such model, or it is of another kind.
    """
    folder = build_stage(path, size) if is_world(path) else path
    return ClipListener.from_pretrained(folder, name=name, prefix=prefix).to(device())


def load_data(
    path: str, split: str, *, images: Path | None, format: str | None, size: str, limit: int | None
) -> CaptionDataset:
    """A split of the built-in world, or of data on disk.

    Raises:
        UsageError: it does not exist, is broken or empty.
    """
    if path != WORLD:
        return load_dataset(path, split=split, images=images, format=format, limit=limit)  # type: ignore[arg-type]
    from tellapart.data.world import load_world

    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}: keep at least 1 image.")
    return load_world(split, size=size)[:limit]  # type: ignore[arg-type]


def decoding(num_beams: int, max_new_tokens: int, *, no_repeat_ngram_size: int = 0) -> Decoding:
    """How captions are drawn.

    Raises:
        UsageError: a number cannot be used.
    """
    with as_usage_errors("decoding"):
        return Decoding(num_beams=num_beams, max_new_tokens=max_new_tokens, no_repeat_ngram_size=no_repeat_ngram_size)


@contextmanager
def as_usage_errors(what: str) -> Iterator[None]:
    """Turn a constructor's complaint about its arguments into a sentence for the user."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{what}: {str(error).rstrip('.')}; change the recipe or the flag.") from error
