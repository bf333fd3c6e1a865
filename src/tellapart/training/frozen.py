"""Large frozen models (listeners, matchers, language models) in shards, and the turns that processes take to read them.

A part of such a model is gathered by all processes or by none. Processes read it at different times and not equally often: their
captions differ in number and length, and some image embeddings are cached. So no process gathers a part alone. Before each
part, every process says which one it wants, and the lowest is gathered by all. A process that wants nothing gathers along until
the others want nothing either (``Turns.finish``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

LARGE = 2**30
"""Bytes of weights from which on a frozen model is cut; smaller ones are copied to every device."""

LARGE_EMBEDDING = LARGE // 16
"""Bytes from which on a cut model's embeddings and heads, which are in no layer, are cut as well."""

_ALONG, _WHOLE = "gather_along", "whole_weights"


def parts_of(model: nn.Module) -> list[nn.Module]:
    """What of a frozen model is cut and gathered part by part: its layers, large embeddings and large heads.

    Empty where the model is small, or its weights are packed (quantized). A part that shares a weight with another one, such as
    a tied embedding, stays whole. So does all that is in no part.
    """
    parameters = list(model.parameters())
    if sum(parameter.nbytes for parameter in parameters) < LARGE:
        return []
    if not all(parameter.is_floating_point() for parameter in parameters):
        return []
    owners = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    return [part for part in dict.fromkeys(_parts(model)) if _alone(part, owners)]


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(module, nn.ModuleList) and type(child).forward is not nn.Module.forward:
            yield child
        elif isinstance(child, (nn.Embedding, nn.Linear)):
            if sum(parameter.nbytes for parameter in child.parameters()) >= LARGE_EMBEDDING:
                yield child
        elif not isinstance(
            child, nn.MultiheadAttention
        ):  # it reads the weights of its linear layer, and does not call it
            yield from _parts(child)


def _alone(part: nn.Module, owners: Counter[int]) -> bool:
    inside = Counter(id(parameter) for module in part.modules() for parameter in module._parameters.values())
    parameters = [id(parameter) for parameter in part.parameters()]
    return bool(parameters) and all(inside[key] == owners[key] for key in parameters)


class Turns:
    """The order in which all processes gather the parts of frozen models; without parts, every call does nothing.

    A part's forward waits for its turn. Whatever is exchanged otherwise, such as rows over devices or the shards of a captioner,
    must come after ``finish`` on every process: a process that waits there gathers no part.

    Args:
        models: cut in place; their ``parts_of`` are not empty. Their ``state_dict`` gives whole weights, on the CPU.
        mesh: the processes.
    """

    def __init__(self, models: Sequence[nn.Module] = (), mesh: DeviceMesh | None = None) -> None:
        self.models = list(models)
        self._parts: list[Any] = [part for model in models for part in parts_of(model)]
        if not self._parts:
            return
        # Numbers on the CPU, so that no process waits for its device; the others may wait for a whole evaluation.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(hours=12))
        for model in models:
            model.requires_grad_(False)
        for index, part in enumerate(self._parts):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
            setattr(part, _ALONG, _nothing)
            setattr(part, _WHOLE, partial(_whole, part))
            for name in (_ALONG, _WHOLE):
                register_fsdp_forward_method(part, name)
            part.register_forward_pre_hook(self._waiting(index), prepend=True)
            part.register_state_dict_post_hook(self._completing(index))

    def finish(self) -> None:
        """Gather along until no process reads a frozen model any more; every process must call this."""
        if self._parts:
            self._wait_for(len(self._parts))

    def _wait_for(self, wanted: int) -> None:
        while (chosen := self._agreed(wanted)) != wanted:
            with torch.no_grad():
                getattr(self._parts[chosen], _ALONG)()

    def _agreed(self, wanted: int) -> int:
        lowest = torch.tensor(wanted)
        dist.all_reduce(lowest, dist.ReduceOp.MIN, group=self._group)
        return int(lowest)

    def _waiting(self, index: int) -> Callable[..., None]:
        def wait(module: nn.Module, inputs: Any) -> None:
            self._wait_for(index)

        return wait

    def _completing(self, index: int) -> Callable[..., None]:
        def complete(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
            self._wait_for(index)
            with torch.no_grad():
                state.update({f"{prefix}{name}": value for name, value in getattr(module, _WHOLE)().items()})

        return complete


def _nothing() -> None:
    """What a process does with a part that it gathers for another one."""


def _whole(part: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in part.named_parameters()}
