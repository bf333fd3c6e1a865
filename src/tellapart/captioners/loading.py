"""Reading and writing a captioner's folder: model or adapter, image processor, tokenizer, manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import tellapart.captioners.encoded_clip
import tellapart.captioners.lstm
import tellapart.clip_frames  # noqa: F401  # all three make their models known to transformers
from tellapart.captioners.families import family_class
from tellapart.captioners.families.base import Family, Processors
from tellapart.captioners.modes import quiet
from tellapart.captioners.quantized import device_map, keep_differentiable, quantization_config
from tellapart.errors import UsageError, quoted, reason_of
from tellapart.files import names_a_path, read_json, require_files
from tellapart.model_size import require_possible
from tellapart.processors import read_image_processor, read_tokenizer, require_usable
from tellapart.progress import quiet_loading

MANIFEST = "tellapart.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Parts:
    """The content of a folder or hub repository.

    Args:
        model: the model, on the CPU.
        processors: its image processor and its tokenizer.
        manifest: what tellapart wrote next to them, else empty.
        adapter: folder of a LoRA adapter that is still to be put on the model.
    """

    model: Any
    processors: Processors
    manifest: dict[str, Any]
    adapter: Path | None = None


def source(name_or_path: str | Path) -> str:
    """An existing folder as an absolute path, or a hub id unchanged.

    Raises:
        UsageError: it is written like a path, and there is no such folder; or the folder holds a pipe or a device.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        require_files(path)
        return str(path.resolve())
    text = str(name_or_path)
    if path.exists():
        raise UsageError(f"captioner {text} is a file: name the folder that holds config.json.")
    if names_a_path(text):
        raise UsageError(f"captioner folder {text} does not exist: correct the path.")
    return text


def _read(what: str, files: str, name: str, load: Any, **options: Any) -> Any:
    """``load(name, **options)``, its failures turned into one sentence."""
    try:
        with quiet():
            return load(name, **options)
    except Exception as error:  # each reader has its own exceptions, and all mean that the folder will not do
        if Path(name).is_dir():
            raise UsageError(
                f"folder {name} lacks a usable {what} ({reason_of(error)}): add or repair {files}."
            ) from error
        raise UsageError(
            f"captioner {name!r} is not a folder here, and the Hugging Face hub gave no {what} for it "
            f"({reason_of(error, 100)}): check the spelling, the connection and HF_HUB_OFFLINE."
        ) from error


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value < 1 << 31


_MANIFEST: dict[str, Callable[[Any], bool]] = {
    "prompt": lambda value: value is None or isinstance(value, str),
    "max_caption_tokens": _is_count,
    "num_frames": lambda value: value is None or _is_count(value),
    "length_buckets": lambda value: value is None or (isinstance(value, list) and all(map(_is_count, value))),
    "changed_parts": lambda value: isinstance(value, list) and all(isinstance(part, str) for part in value),
}
"""What is read of a manifest -> whether a value can be meant."""


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """tellapart's manifest of a folder; empty for plain transformers ones.

    Raises:
        UsageError: it cannot be read, or has a value of a wrong kind.
    """
    path = Path(folder) / MANIFEST
    found = _object(path) if path.is_file() else {}
    for name, fits in _MANIFEST.items():
        if name in found and not fits(found[name]):
            raise UsageError(f"{path} has {name} {quoted(found[name])}, which cannot be: restore or remove the file.")
    return found


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        found = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not readable JSON ({reason_of(error)}): restore or remove it.") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no JSON object: restore or remove it.")
    return found


def _base_of(adapter: Path) -> tuple[str, str | None]:
    """``(folder or hub id, revision)`` of the model an adapter was trained on.

    Raises:
        UsageError: the adapter does not say, or its base is gone.
    """
    path = adapter / "adapter_config.json"
    settings = _object(path)
    base = settings.get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        raise UsageError(f"{path} names no base_model_name_or_path: write the model it was trained on there.")
    try:
        return source(base), settings.get("revision")
    except UsageError as error:
        raise UsageError(f"{path} names {base} as its base, which does not exist: correct the path there.") from error


def _read_config(name: str, revision: str | None) -> Any:
    from transformers import AutoConfig

    return _read("model configuration", "config.json", name, AutoConfig.from_pretrained, revision=revision)


def read_config(name_or_path: str | Path) -> Any:
    """The configuration of a captioner's model, or of the model that an adapter sits on; reads no weights.

    Raises:
        UsageError: it is missing or unreadable.
    """
    name = source(name_or_path)
    adapter = (Path(name) / "adapter_config.json").is_file()
    return _read_config(*(_base_of(Path(name)) if adapter else (name, None)))


def _read_model(name: str, dtype: str, revision: str | None, quantization: Any = None) -> Any:
    from transformers import AutoModelForImageTextToText

    require_possible(name, revision)
    config = _read_config(name, revision)
    unused = re.compile(family_class(config).never_used(config))
    load = AutoModelForImageTextToText.from_pretrained
    options: dict[str, Any] = {"revision": revision, "dtype": DTYPES[dtype], "output_loading_info": True}
    if quantization is not None:
        options["quantization_config"] = quantization_config(quantization, config, DTYPES[dtype])
        options["device_map"] = device_map()
    model, report = _read("model", "config.json and model.safetensors", name, load, **options)
    if missing := sorted(key for key in report["missing_keys"] if not unused.match(key)):
        raise UsageError(
            f"{name} has no weights for {missing[0]!r} (and {len(missing) - 1} more): "
            "give a checkpoint that was trained to caption."
        )
    if quantization is not None:
        keep_differentiable(model)
    return model


def read_parts(
    name_or_path: str | Path,
    *,
    dtype: str = "float32",
    revision: str | None = None,
    quantization: str | None = None,
) -> Parts:
    """Everything a captioner is made of, from a folder or the hub.

    Processors are read by the family: for several of them ``AutoProcessor`` gives a bare tokenizer, or fails. A LoRA
    adapter's model is found through its ``adapter_config.json``.

    Raises:
        UsageError: something is missing, unreadable, or of an unknown family.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype={dtype!r} is unknown: choose {', '.join(DTYPES)}.")
    name = source(name_or_path)
    adapter = Path(name) if (Path(name) / "adapter_config.json").is_file() else None
    base, base_revision = _base_of(adapter) if adapter else (name, revision)
    with quiet_loading(base):
        model = _read_model(base, dtype, base_revision, quantization)
    # An adapter's folder usually holds the processors too; what it lacks is read from the model's folder.
    places = [(name, revision), (base, base_revision)]
    return Parts(model, _read_processors(family_class(model.config), places), read_manifest(name), adapter)


def _read_processors(family: type[Family], places: list[tuple[str, str | None]]) -> Processors:
    """Image processor and tokenizer, or a family's own processor, from the first of the places that has them."""

    def read(what: str, file: str, load: Any, **options: Any) -> Any:
        own = places[0] == places[-1] or (Path(places[0][0]) / file).is_file()
        name, revision = places[0] if own else places[-1]
        return _read(what, file, name, load, revision=revision, **options)

    if family.joint_processor is not None:
        joint = read(
            "processor", "processor_config.json", lambda name, **given: require_usable(family.load_joint(name, **given))
        )
        return Processors(joint.image_processor, joint.tokenizer, joint)
    return Processors(
        read("image processor", "preprocessor_config.json", read_image_processor)
        if not family.reads_features
        else None,
        read("tokenizer", "tokenizer_config.json", read_tokenizer),
    )
