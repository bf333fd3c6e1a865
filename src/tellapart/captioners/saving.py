"""Writing a captioner's folder, and reading weights back into one that is in memory."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tellapart.captioners.learning import weights_of
from tellapart.captioners.loading import MANIFEST, read_manifest
from tellapart.captioners.modes import quiet
from tellapart.errors import UsageError, reason_of
from tellapart.files import write_json

if TYPE_CHECKING:
    from tellapart.captioners.families.base import Family
    from tellapart.captioners.huggingface import HuggingFaceCaptioner


def write_parts(captioner: HuggingFaceCaptioner, folder: Path) -> None:
    """Everything plain ``transformers`` (with LoRA: ``peft``) needs to load the captioner, and a manifest.

    With LoRA only the adapter is written, whose configuration names the model it belongs to, and the weights of parts that
    train next to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        if captioner.has_lora:
            # Embeddings are never adapted; "auto" would ask the hub whether the vocabulary grew.
            captioner.network.save_pretrained(str(folder), save_embedding_layers=False)
            _write_changed_parts(captioner, folder)
        else:
            captioner.network.save_pretrained(folder)
    processors = captioner.family.processors
    for part in [processors.image, processors.tokenizer] if processors.joint is None else [processors.joint]:
        if part is not None:
            part.save_pretrained(folder)
    model = captioner.family.model
    write_json(
        folder / MANIFEST,
        {
            "format": 1,
            "model_type": model.config.model_type,
            "base_model_name_or_path": model.name_or_path if captioner.has_lora else None,
            "train": captioner.trains,
            "changed_parts": list(captioner.changed_parts) if captioner.has_lora else [],
            "max_caption_tokens": captioner.max_caption_tokens,
            "prompt": captioner.family.prompt,
            **({} if captioner.num_frames is None else {"num_frames": captioner.num_frames}),
            "length_buckets": None if captioner.buckets is None else list(captioner.buckets.bounds),
        },
    )


def read_weights(captioner: HuggingFaceCaptioner, folder: Path) -> None:
    """Copy the folder's weights into the captioner's own tensors, on whatever device they are.

    Raises:
        UsageError: the folder lacks them, or they are of another model.
    """
    try:
        with quiet(), torch.no_grad():
            if captioner.has_lora:
                copy_adapter(captioner.network, folder)
                _copy_changed_parts(captioner.family, folder, captioner.changed_parts)
            else:
                _read_model(captioner, folder)
    except Exception as error:  # each reader has its own exceptions, and all mean that the folder will not do
        raise UsageError(
            f"folder {folder} lacks the weights of this captioner ({reason_of(error)}): give the folder it was saved to."
        ) from error


CHANGED_PARTS = "parts.safetensors"
"""Weights of the parts between image tower and language model that were trained next to an adapter, under the names that they
have in the model of transformers."""


def _write_changed_parts(captioner: HuggingFaceCaptioner, folder: Path) -> None:
    weights = _without_adapters(captioner.family, captioner.changed_parts)
    if weights:
        save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, folder / CHANGED_PARTS)


def read_changed_parts(family: Family, folder: Path) -> tuple[str, ...]:
    """Copy the parts that were saved next to an adapter into the family's model, in float32 as they were trained.

    Returns:
        Their names; none where only the adapter was trained.

    Raises:
        UsageError: they are missing, or of another model.
    """
    parts = tuple(read_manifest(folder).get("changed_parts") or ())
    try:
        for parameter in _without_adapters(family, parts).values():
            parameter.data = parameter.data.float() if parameter.dtype.itemsize < 4 else parameter.data
        with torch.no_grad():
            _copy_changed_parts(family, folder, parts)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UsageError(
            f"folder {folder} lacks the weights of {', '.join(parts)} in {CHANGED_PARTS}, which belong to its adapter ({error}): "
            "restore the file."
        ) from error
    return parts


def _copy_changed_parts(family: Family, folder: Path, parts: Sequence[str]) -> None:
    if parts:
        _copy(dict(_without_adapters(family, parts)), load_file(folder / CHANGED_PARTS))


def _without_adapters(family: Family, parts: Sequence[str]) -> dict[str, Any]:
    """Weights of parts under the names of the bare model; an adapter may sit on one of them."""
    found = weights_of(family, parts)
    return {name.replace(".base_layer.", "."): value for name, value in found.items() if ".lora_" not in name}


def _copy(own: dict[str, Any], saved: dict[str, Any]) -> None:
    if own.keys() != saved.keys():
        raise KeyError(f"tensors differ, the first being {min(own.keys() ^ saved.keys())}")
    for name, tensor in own.items():
        if tensor.shape != saved[name].shape:
            raise ValueError(f"{name} is {tuple(saved[name].shape)} there and {tuple(tensor.shape)} here")
    for name, tensor in own.items():
        tensor.copy_(saved[name])


def _read_model(captioner: HuggingFaceCaptioner, folder: Path) -> None:
    # Through from_pretrained, which knows about shards, tied weights and names that differ on disk. A configuration that was
    # changed since could ask for a model that no memory holds.
    model = captioner.family.model
    saved, report = type(model).from_pretrained(
        str(folder), config=deepcopy(model.config), dtype=model.dtype, output_loading_info=True
    )
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[problem]:
            raise KeyError(f"{problem.replace('_', ' ')}: {sorted(map(str, report[problem]))[0]}")
    _copy(model.state_dict(), saved.state_dict())


def copy_adapter(network: Any, folder: Path) -> None:
    """Copy the adapter saved in ``folder`` into that of a ``PeftModel``, in place."""
    from peft import get_peft_model_state_dict
    from peft.utils import load_peft_weights

    # Views of the adapter's parameters, under the names they have on disk.
    _copy(get_peft_model_state_dict(network, save_embedding_layers=False), load_peft_weights(str(folder), "cpu"))
