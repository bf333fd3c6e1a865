"""Reading frozen models from folders, hub ids and OpenAI's checkpoint files, and telling them apart."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from tellapart.errors import UsageError, reason_of
from tellapart.files import existing
from tellapart.listeners.kinds import is_checkpoint
from tellapart.listeners.openai_layout import convert_openai_clip, read_state_dict
from tellapart.model_size import require_possible
from tellapart.ops import require_finite
from tellapart.processors import read_image_processor, read_tokenizer
from tellapart.progress import quiet_loading

PAC_BASE = "openai/clip-vit-base-patch32"
"""Whose tokenizer and image processor go with the published PAC-S checkpoint of CLIP ViT-B/32."""

_PASSING = frozenset(("_name_or_path", "architectures", "dtype", "transformers_version", "processor_class"))
"""Entries of configurations that change on saving or loading, though no embedding depends on them."""


def load_dual_encoder(path: str | Path, dtype: str, *, base: str | Path | None = None) -> tuple[Any, Any, Any]:
    """Model, image processor and tokenizer of CLIP, SigLIP or SigLIP 2.

    Args:
        path: a folder, a Hugging Face id, or a ``.pth`` or ``.pt`` file with a CLIP in OpenAI's layout.
        dtype: of the weights.
        base: for such a file, the model that it was trained from: its tokenizer, image processor, activation and number of
            heads; by default ``PAC_BASE``. A folder or id has its own.

    Raises:
        UsageError: something is missing, broken, or of another kind.
    """
    from transformers import AutoConfig

    file = Path(path).expanduser()
    if not is_checkpoint(file):
        return _load(existing(path, "listener"), dtype)
    _require_file(file)
    state, source = read_state_dict(file), str(base or PAC_BASE)
    try:
        config = AutoConfig.from_pretrained(existing(source, "base"))
        processor, tokenizer = _processors(existing(source, "base"))
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{path} has no tokenizer of its own, and {source} cannot be loaded ({reason_of(error)}): name a folder of the "
            "model that it was trained from (base, --pac_base)."
        ) from error
    if config.model_type != "clip":
        raise UsageError(f"{source} is a {config.model_type!r} model, but {path} was trained from a CLIP: name that.")
    model = convert_openai_clip(state, str(path), like=config).to(getattr(torch, dtype))
    _check_fit(model, processor, tokenizer, str(path), source)
    return model, processor, tokenizer


def complete(kind: Any, source: str, dtype: str) -> Any:
    """A transformers model of class ``kind`` with all of its weights.

    Raises:
        UsageError: weights are missing or not finite.
        ValueError: they cannot be read; a pickle that holds more than tensors, for one, is not opened.
    """
    require_possible(source)
    try:
        with quiet_loading(source):
            model, report = kind.from_pretrained(source, dtype=dtype, output_loading_info=True)
    except (UsageError, OSError, ValueError, RuntimeError, SafetensorError):
        raise
    except Exception as error:  # such as those of unpickling
        raise ValueError(reason_of(error)) from error
    if missing := sorted(report["missing_keys"]):
        raise UsageError(f"{source} lacks {len(missing)} weights, first {missing[0]!r}: give all of the model.")
    require_finite(model, f"model {source}")
    return model


def model_digest(model: nn.Module, *described: Any) -> str:
    """A hash of a transformers model's configuration and weights, and of whatever else is ``described``."""
    digest = hashlib.sha256(json.dumps([lasting(part) for part in described], sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def vocabulary_of(tokenizer: Any) -> list[tuple[str, int]]:
    """Words and ids, in the order of the ids."""
    return sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])


def lasting(config: Any) -> Any:
    """A configuration without its passing entries, at any depth."""
    if isinstance(config, dict):
        return {str(key): lasting(value) for key, value in config.items() if key not in _PASSING}
    return config


def backbone(config: Any) -> str:
    """A model's image side in words."""
    tower = config.vision_config
    pixels = getattr(tower, "image_size", None)
    size = f"{tower.num_patches} patches" if pixels is None else f"{pixels} pixels"
    return f"{config.model_type}, {tower.num_hidden_layers} layers of width {tower.hidden_size}, patch {tower.patch_size}, {size}"


def called(path: str | Path) -> str:
    """Name of a model in results: its hub id, or the name of its folder or file."""
    local = Path(path).expanduser()
    return local.resolve().name if local.exists() else str(path)


def require_dual_encoder(path: str | Path) -> None:
    """Raise if ``path`` cannot be a CLIP, SigLIP or SigLIP 2, going by its configuration; reads no weights.

    Args:
        path: as that of ``load_dual_encoder``; of a checkpoint file only whether it is there.

    Raises:
        UsageError: it does not exist, or is of another kind.
    """
    if is_checkpoint(path):
        _require_file(Path(path).expanduser())
        return
    source = existing(path, "listener")
    try:
        _class_of(source)
    except UsageError:
        raise
    except Exception as error:
        raise _unusable(source, error) from error


def _require_file(file: Path) -> None:
    if not file.is_file():
        raise UsageError(f"the checkpoint {file} does not exist: check the path.")


def _class_of(source: str) -> Any:
    """The class that a configuration asks for."""
    from transformers import AutoConfig, CLIPModel, Siglip2Model, SiglipModel

    from tellapart.listeners.clip4clip import Clip4Clip

    classes: dict[str, Any] = {
        "clip": CLIPModel,
        "siglip": SiglipModel,
        "siglip2": Siglip2Model,
        "clip4clip": Clip4Clip,
    }
    kind = AutoConfig.from_pretrained(source, trust_remote_code=False).model_type
    if kind not in classes:
        raise UsageError(f"{source} is a {kind!r} model: a listener must be one of {', '.join(classes)}.")
    return classes[kind]


def _unusable(source: str, error: Exception) -> UsageError:
    """What to say of a folder that will not do; each reader has its own exceptions."""
    if "trust_remote_code" in str(error):
        return UsageError(
            f"{source} needs code of its own repository, which is never run here: name a CLIP, Long-CLIP, SigLIP or SigLIP 2 "
            "that transformers itself loads."
        )
    return UsageError(f"the listener {source} cannot be loaded ({reason_of(error)}): check the folder or the id.")


def _load(source: str, dtype: str) -> tuple[Any, Any, Any]:
    try:
        model, (processor, tokenizer) = complete(_class_of(source), source, dtype), _processors(source)
    except UsageError:
        raise
    except Exception as error:
        raise _unusable(source, error) from error
    known = model.config.text_config.vocab_size
    written = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    if (highest := max((token for token in written if token is not None), default=0)) >= known:
        raise UsageError(
            f"the tokenizer of {source} has a special token with id {highest}, but the model knows ids from 0 to {known - 1}: "
            "restore its tokenizer_config.json."
        )
    return model, processor, tokenizer


def _processors(source: str) -> tuple[Any, Any]:
    return read_image_processor(source), read_tokenizer(source)


def _check_fit(model: Any, processor: Any, tokenizer: Any, path: str, source: str) -> None:
    """Raise unless the base's tokenizer and image processor are for a model of these shapes."""
    from PIL import Image

    side = processor(images=[Image.new("RGB", (8, 8))], return_tensors="pt")["pixel_values"].shape[-1]
    found = {"image size": (side, model.config.vision_config.image_size)}
    found["vocabulary"] = (len(tokenizer), model.config.text_config.vocab_size)
    for what, (theirs, own) in found.items():
        if theirs != own:
            raise UsageError(
                f"{source} has {what} {theirs}, but {path} needs {own}: name the model that it was trained from (base, "
                "--pac_base)."
            )
