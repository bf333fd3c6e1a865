"""Temporarily putting modules, or transformers itself, into the mode an operation needs, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from tellapart.errors import UsageError


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Eval mode inside, gradients as they are; every submodule's own mode afterwards."""
    training = _in_training(module)
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _in_training(module: nn.Module) -> list[nn.Module]:
    """The module and those below it that are in train mode; one that occurs twice may be named twice."""
    found, left = [], [module]
    # Module.modules() takes 4 times as long, since it writes the name of each, and every drawing and scoring asks.
    while left:
        part = left.pop()
        if part.training:
            found.append(part)
        left.extend(child for child in part._modules.values() if child is not None)
    return found


def plainly(tensor: Tensor) -> bool:
    """Whether operations on a tensor run on a CPU, without gradients and without autocast."""
    return tensor.is_cpu and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


@contextmanager
def in_train_mode(module: nn.Module) -> Iterator[None]:
    """The mode in which a training learns inside; every submodule's own mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients inside; every submodule's own mode afterwards.

    Hugging Face's ``generate`` does neither: in train mode dropout stays on, and with gradient checkpointing the cache
    is silently dropped, so that each token sees only the one before it.
    """
    with eval_mode(module), torch.no_grad():
        yield


RolloutDtype = Literal["float32", "bfloat16", "tf32"]
"""What captions may be drawn in."""


@contextmanager
def drawing_in(dtype: RolloutDtype, device: torch.device) -> Iterator[None]:
    """Matrix products of the block in ``dtype``.

    Args:
        dtype: ``float32`` changes nothing, so a caller's autocast and precision hold; ``bfloat16`` is autocast, which leaves
            the captioner's head in float32; ``tf32`` rounds the factors of all products.
        device: where the captioner is.

    Raises:
        UsageError: ``tf32`` away from CUDA.
    """
    if dtype == "float32":
        yield
    elif dtype == "bfloat16":
        with torch.autocast(device.type, torch.bfloat16):
            yield
    elif device.type != "cuda":
        raise UsageError("rollout_dtype=tf32 needs a CUDA device: set rollout_dtype to bfloat16, or leave it out.")
    else:
        with _tf32():
            yield


@contextmanager
def _tf32() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    name = "allow_tf32"
    wanted: bool | str = True
    try:
        before: bool | str = matmul.allow_tf32
    except RuntimeError:  # torch refuses to read it once a program has set fp32_precision, which came later
        name, wanted, before = "fp32_precision", "tf32", matmul.fp32_precision
    if before == wanted:
        yield
        return
    setattr(matmul, name, wanted)
    try:
        yield
    finally:
        setattr(matmul, name, before)


@contextmanager
def layers_checkpointed(module: nn.Module) -> Iterator[None]:
    """Activation checkpointing in eval mode, that is without dropout.

    Hugging Face checkpoints a layer only when the layer itself is in train mode, and the layers of some families (OPT,
    BART) then also drop out. So layers in eval mode are checkpointed here; those in train mode are left to it. Key-value
    caches must not be passed meanwhile: they would be extended twice.
    """
    layers = [
        part
        for part in module.modules()
        if isinstance(part, GradientCheckpointingLayer) and part.gradient_checkpointing and not part.training
    ]
    for layer in layers:
        # On the instance: a call looks there first, and the recomputation calls the class's own forward.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice from transformers; errors are raised all the same."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
