"""What learns and its optimiser states, written and read by all processes together (torch.distributed.checkpoint).

Each process writes what it holds, in files of safetensors: reading them runs no code, and any number of processes can read what
any other number wrote.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from tellapart.errors import UsageError
from tellapart.training.optim import Optimizer

_WEIGHT, _STATE = "weight", "optimizer"


def write_shards(folder: Path, optimizer: Optimizer) -> None:
    """Write every part that learns and its optimiser states; every process must call this.

    Args:
        folder: exists, and is empty.
        optimizer: of the run.

    Raises:
        OSError: the disk is full, or cannot be written to.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _disk_errors(), _quiet():
        dcp.save(_held(optimizer), storage_writer=writer, no_dist=not dist.is_initialized())


def read_shards(folder: Path, optimizer: Optimizer) -> None:
    """Read weights and optimiser states back, in place; every process must call this.

    Raises:
        UsageError: something is missing, damaged or of another model.
    """
    reader = HuggingFaceStorageReader(str(folder))
    try:
        items = reader.read_metadata().state_dict_metadata.items()
        saved = {name: tuple(item.size) for name, item in items if isinstance(item, TensorStorageMetadata)}
        optimizer.expect({name.removeprefix(f"{_STATE}.") for name in saved if name.startswith(f"{_STATE}.")})
        held = _held(optimizer)
        if {name: tuple(value.shape) for name, value in held.items()} != saved:
            raise UsageError(
                f"{folder} holds weights of another model, or of other parts: resume with the recipe of the run that wrote it."
            )
        with _quiet(), torch.no_grad():
            dcp.load(held, storage_reader=reader, no_dist=not dist.is_initialized())
    except (OSError, CheckpointException, RuntimeError, ValueError) as error:
        raise UsageError(
            f"{folder} cannot be read: restore it, or delete its checkpoint and resume from another."
        ) from error


def _held(optimizer: Optimizer) -> dict[str, Tensor]:
    weights = {
        f"{_WEIGHT}.{part}.{name}": parameter.detach()
        for part, named in optimizer.parts.items()
        for name, parameter in named.items()
    }
    states = {
        f"{_STATE}.{name}.{key}": value for name, state in optimizer.state().items() for key, value in state.items()
    }
    return weights | states


def finite(tensor: Tensor) -> bool:
    """Whether all numbers that this process holds of a tensor are finite."""
    here = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return bool(torch.isfinite(here).all())


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Give the error of the first process that could not write the type that such errors have elsewhere."""
    try:
        yield
    except CheckpointException as failure:
        for error in failure.failures.values():
            if isinstance(error[0] if isinstance(error, tuple) else error, OSError):
                raise (error[0] if isinstance(error, tuple) else error) from failure
        raise


@contextmanager
def _quiet() -> Iterator[None]:
    """No advice from torch about the number of processes."""
    log = logging.getLogger("torch.distributed.checkpoint")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is meant
            yield
    finally:
        log.setLevel(before)
