"""The process group as the loop uses it: sums, rows, objects. On one device every call is the identity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration
from torch import Tensor
from torch.nn import Parameter

from tellapart.errors import UsageError
from tellapart.training.config import TrainConfig
from tellapart.training.meeting import init_method

BUCKET = 2**24  # numbers summed in one collective: large enough to be fast, small next to the gradients themselves


class Devices:
    """Where this process computes and who else does; devices, process group and trackers are accelerate's.

    Args:
        config: the run's options; ``report_to`` and ``bf16`` are read here.

    Raises:
        UsageError: the tracker's package is missing, or the launcher asks for float16.
    """

    def __init__(self, config: TrainConfig) -> None:
        if config.report_to != "none" and find_spec(config.report_to) is None:
            raise UsageError(f"report_to={config.report_to!r} needs a package: pip install {config.report_to}.")
        self.accelerator = Accelerator(
            # By default, it lets processes of one launch run alone, each as if it were the only one.
            cpu=not torch.accelerator.is_available(),
            log_with=None if config.report_to == "none" else config.report_to,
            project_config=ProjectConfiguration(
                project_dir=str(config.output_dir), logging_dir=str(config.output_dir / "runs")
            ),
            # The other ranks wait while the main one evaluates, which may take far longer than a step.
            kwargs_handlers=[InitProcessGroupKwargs(init_method=init_method(), timeout=timedelta(hours=12))],
        )
        if self.accelerator.mixed_precision == "fp16":
            raise UsageError("mixed_precision='fp16' of the launcher is not supported: use bf16, or none.")
        self.bf16 = config.bf16 or self.accelerator.mixed_precision == "bf16"
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.world_size: int = self.accelerator.num_processes
        self.is_main = self.rank == 0

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision, when asked for. Not the accelerator's own: that is fixed for the life of the process."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def sum(self, tensor: Tensor) -> Tensor:
        """The elementwise sum over devices."""
        if self.world_size == 1:
            return tensor
        total = tensor.to(self.device, copy=True)
        dist.all_reduce(total)
        return total.to(tensor.device)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any device; every device gets the same answer."""
        return bool(self.sum(torch.tensor(float(flag))) > 0)

    def gather(self, tensor: Tensor) -> Tensor:
        """Rows of all devices, in rank order; their number may differ, further dimensions may not."""
        if self.world_size == 1:
            return tensor
        sizes = self.gather_objects(len(tensor))
        kind = tensor.dtype
        rows = tensor.detach().to(self.device, torch.uint8 if kind == torch.bool else kind)
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        joined = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        return joined.to(tensor.device, kind)

    def gather_objects(self, value: Any) -> list[Any]:
        """One value per device, in rank order."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def from_main(self, value: Any) -> Any:
        """The main device's value, on every device."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Return once every device has come here."""
        if self.world_size > 1:
            dist.barrier()

    def same_start(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors by the main device's: parts made at random may differ between processes."""
        for tensor in tensors if self.world_size > 1 else ():
            value = tensor.data.to(self.device)
            dist.broadcast(value, src=0)
            tensor.data.copy_(value)

    def sum_gradients(self, parameters: Sequence[Parameter]) -> None:
        """Sum gradients over devices, once; a parameter without one on some devices counts as 0 there.

        A parameter that has no gradient on any device keeps none, so the optimiser leaves it alone.
        """
        if self.world_size == 1:
            return
        present = self.sum(torch.tensor([float(p.grad is not None) for p in parameters], dtype=torch.float64))
        gradients = []
        for parameter, devices in zip(parameters, present.tolist(), strict=True):
            if devices > 0:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            total = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(total)
            for gradient, part in zip(bucket, total.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(part.view_as(gradient))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or sum(t.numel() for t in bucket) + tensor.numel() > BUCKET):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
