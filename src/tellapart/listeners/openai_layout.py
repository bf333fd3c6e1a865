"""CLIP checkpoints in the layout of OpenAI's own code, as transformers models.

Forks of that code save such files, among them the published checkpoints of PAC-S (Sarto et al. 2023) and of Long-CLIP (Zhang et
al. 2024): a pickled dict of tensors, often under ``"state_dict"`` and in float16. They are read with ``weights_only``, so nothing
in them is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tellapart.errors import UsageError

_HEAD_WIDTH = 64
"""Of every attention head of CLIP's vision transformers and text encoders (Radford et al. 2021, table 20)."""

_NESTED = ("state_dict", "model")
_NO_WEIGHTS = frozenset(("input_resolution", "context_length", "vocab_size"))
_WHOLE = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "logit_scale": "logit_scale",
}
_LONG, _LONG_KEPT = "positional_embedding_res", 20
"""Of Long-CLIP: positions from the 20th on have embeddings of their own (section 3.1; those before are the original CLIP's)."""

_TRANSPOSED = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}
_NORMS = {
    "visual.ln_pre": "vision_model.pre_layrnorm",  # spelt so in transformers
    "visual.ln_post": "vision_model.post_layernorm",
    "ln_final": "text_model.final_layer_norm",
}
_TOWERS = {"visual.transformer": "vision_model.encoder.layers", "transformer": "text_model.encoder.layers"}
_BLOCK = {
    "attn.out_proj": "self_attn.out_proj",
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file, by name.

    Raises:
        UsageError: it cannot be read, or holds more than tensors.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the path.") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise UsageError(
            f"{path} is not a file of plain tensors, or not all of it: give a state dict that torch.load reads with "
            "weights_only (not a TorchScript archive), or a folder in transformers' form."
        ) from error
    for key in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise UsageError(f"{path} holds no state dict: give a file with the tensors of a CLIP model.")
    found = {name.removeprefix("module."): value for name, value in content.items() if isinstance(value, Tensor)}
    return {name: value for name, value in found.items() if name not in _NO_WEIGHTS}


def convert_openai_clip(state: Mapping[str, Tensor], source: str = "the checkpoint", *, like: Any = None) -> Any:
    """A float32 ``CLIPModel`` in eval mode with the weights of a state dict in OpenAI's layout.

    The configuration follows from the tensors' shapes. What shapes do not tell is as in OpenAI's models (attention heads 64
    wide, quick GELU) unless ``like`` says otherwise; OpenCLIP's later models have plain GELU.

    Args:
        state: the tensors, of any floating type.
        source: what errors call it.
        like: ``CLIPConfig`` of the model that it was trained from.

    Raises:
        UsageError: it is not a CLIP in that layout, or one with a ResNet.
    """
    from transformers import CLIPModel

    state = _with_long_positions(state, source)
    if "visual.layer1.0.conv1.weight" in state:
        raise UsageError(f"{source} holds a CLIP with a ResNet, which transformers lacks: give one with a ViT.")
    needed = [*_WHOLE, *_TRANSPOSED, *(f"{name}.{kind}" for name in _NORMS for kind in ("weight", "bias"))]
    missing = [name for name in needed if name not in state]
    if missing:
        raise UsageError(f"{source} lacks {missing[0]!r}: give a state dict of a CLIP with a ViT in OpenAI's layout.")
    converted: dict[str, Tensor] = {}
    try:
        for name, tensor in state.items():
            converted |= _converted(name, tensor.float(), source)
        model = CLIPModel(_config(state, like))
        report = model.load_state_dict(converted, strict=False)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).strip().split("\n")[-1].strip()
        raise UsageError(f"{source} has tensors that do not fit together ({reason}): give the whole file.") from error
    if report.missing_keys or report.unexpected_keys:
        name = (report.missing_keys or report.unexpected_keys)[0]
        raise UsageError(f"{source} does not make a whole CLIP ({name!r}): give the whole file.")
    return model.eval()


def _with_long_positions(state: Mapping[str, Tensor], source: str) -> Mapping[str, Tensor]:
    """The state with one table of text positions, where it has the two of Long-CLIP.

    Its code adds the first table at positions 0 to 19 and the second from 20 on; the other rows of either are never read. One
    table of these rows gives the same sums.
    """
    if _LONG not in state:
        return state
    kept, long = state.get("positional_embedding"), state[_LONG]
    if kept is None or kept.shape != long.shape or len(long) <= _LONG_KEPT:
        raise UsageError(f"{source} has text positions of Long-CLIP that do not fit together: give the whole file.")
    merged = torch.cat([kept[:_LONG_KEPT], long[_LONG_KEPT:]])
    return {name: merged if name == "positional_embedding" else value for name, value in state.items() if name != _LONG}


def _converted(name: str, tensor: Tensor, source: str) -> dict[str, Tensor]:
    """One tensor under its name, or names, in transformers."""
    if name in _WHOLE:
        return {_WHOLE[name]: tensor}
    if name in _TRANSPOSED:
        return {_TRANSPOSED[name]: tensor.T.contiguous()}
    stem, _, kind = name.rpartition(".")
    if stem in _NORMS:
        return {f"{_NORMS[stem]}.{kind}": tensor}
    block = re.fullmatch(r"(visual\.transformer|transformer)\.resblocks\.(\d+)\.(.+)", name)
    if block is not None:
        tower, part = f"{_TOWERS[block[1]]}.{block[2]}", block[3]
        if part in ("attn.in_proj_weight", "attn.in_proj_bias"):
            kind = part.rpartition("_")[2]
            thirds = zip("qkv", tensor.chunk(3), strict=True)
            return {f"{tower}.self_attn.{letter}_proj.{kind}": third.contiguous() for letter, third in thirds}
        stem, _, kind = part.rpartition(".")
        if stem in _BLOCK:
            return {f"{tower}.{_BLOCK[stem]}.{kind}": tensor}
    raise UsageError(f"{source} has a tensor {name!r} that OpenAI's CLIP lacks: give weights without additions.")


def _config(state: Mapping[str, Tensor], like: Any) -> Any:
    """What the shapes tell, and ``like`` for the rest."""
    from transformers import CLIPConfig

    width, _, patch, _ = state["visual.conv1.weight"].shape
    side = round((len(state["visual.positional_embedding"]) - 1) ** 0.5)
    vocabulary, text_width = state["token_embedding.weight"].shape
    end = vocabulary - 1  # OpenAI's code pools at the highest id
    text = _tower(state, "transformer", text_width, getattr(like, "text_config", None)) | {
        "vocab_size": vocabulary,
        "max_position_embeddings": len(state["positional_embedding"]),
        "eos_token_id": end,
        "bos_token_id": end - 1,
        "pad_token_id": end,
    }
    vision = _tower(state, "visual.transformer", width, getattr(like, "vision_config", None))
    vision |= {"image_size": patch * side, "patch_size": patch}
    return CLIPConfig(text_config=text, vision_config=vision, projection_dim=state["text_projection"].shape[1])


def _tower(state: Mapping[str, Tensor], tower: str, width: int, like: Any) -> dict[str, Any]:
    blocks = [re.match(rf"{re.escape(tower)}\.resblocks\.(\d+)\.", name) for name in state]
    inner = state.get(f"{tower}.resblocks.0.mlp.c_fc.weight")
    same = like is not None and like.hidden_size == width
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width if inner is None else len(inner),
        "num_hidden_layers": 1 + max((int(found[1]) for found in blocks if found), default=-1),
        "num_attention_heads": like.num_attention_heads if same else max(width // _HEAD_WIDTH, 1),
        "hidden_act": "quick_gelu" if like is None else like.hidden_act,
    }
