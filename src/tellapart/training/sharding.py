"""Captioners in shards: weights, gradients and optimiser states cut between processes, by torch's ``fully_shard`` (FSDP2).

Zhao et al. (VLDB 2023) and Rajbhandari et al. (ZeRO, SC 2020) describe the scheme. ``full`` gathers one layer at a time while
captions are scored; ``grad_op`` keeps layers gathered from the first pass to the backward pass. In both, captions are drawn with
all weights gathered, since processes whose captions end at different steps would otherwise wait for each other for ever. For
the same reason captions are scored by as many calls of each layer on every process (``Family.lockstep``). Large frozen models
are cut as well, and processes take turns to read them (``frozen.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from tellapart.captioners.base import Captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner, ReferenceCaptioner
from tellapart.errors import UsageError
from tellapart.training.config import TrainConfig
from tellapart.training.devices import Devices
from tellapart.training.frozen import Turns, parts_of
from tellapart.training.memory import frozen_models

ENTRIES = ("encode", "encode_together", "generate", "generate_with_greedy", "draw", "continue_from", "own_words")
"""Methods of a captioner that read its weights, besides ``forward``."""

_BEGIN = "begin_sharded"


def require_shardable(objective: nn.Module, shard: str) -> None:
    """Raise where an objective's captioner cannot be trained in shards.

    Args:
        objective: the objective.
        shard: ``training.shard``, other than ``none``.

    Raises:
        UsageError: naming what does not fit.
    """
    name = type(objective).__name__
    leave = "set training.shard to none"
    if not getattr(objective, "shards", False):
        raise UsageError(f"{name} cannot train with training.shard={shard}: {leave}.")
    for part, child in objective.named_children():
        if not any(parameter.requires_grad for parameter in child.parameters()):
            continue
        if not isinstance(child, HuggingFaceCaptioner):
            raise UsageError(f"training.shard={shard} trains captioners only, not {name}'s {part}: {leave}.")
        if not child.family.layers:
            kind = child.family.model.config.model_type
            raise UsageError(f"a {kind} captioner has no layers to shard: {leave}.")
        if getattr(child.family.model, "is_quantized", False):
            raise UsageError(
                f"training.shard={shard} cannot cut quantized weights: {leave}, or load the captioner unquantized."
            )


def references_of(objective: Any) -> list[HuggingFaceCaptioner]:
    """The frozen copies of captioners that an objective holds."""
    return [value.captioner for value in vars(objective).values() if isinstance(value, ReferenceCaptioner)]


def large_models(frozen: Iterable[nn.Module], captioners: Iterable[nn.Module]) -> list[nn.Module]:
    """Those frozen models that are cut between processes.

    Args:
        frozen: models that objective and evaluation hold.
        captioners: what trains, and its frozen copies, which are cut in another way; a model that shares weights with them stays
            whole.
    """
    taken = {id(parameter) for captioner in captioners for parameter in captioner.parameters()}
    found: list[nn.Module] = []
    for model in frozen:
        own = {id(parameter) for parameter in model.parameters()}
        if not own & taken and parts_of(model):
            found.append(model)
            taken |= own
    return found


@dataclass
class Shards:
    """The captioners of a run that are in shards; none in a run of one process or without ``training.shard``.

    Args:
        captioners: trained ones.
        references: frozen copies of them.
        full: whether layers are gathered one by one while captions are scored.
        bf16: whether layers compute in bfloat16.
        turns: in which other frozen models are read.
    """

    captioners: list[HuggingFaceCaptioner] = field(default_factory=list)
    references: list[HuggingFaceCaptioner] = field(default_factory=list)
    full: bool = False
    bf16: bool = False
    turns: Turns = field(default_factory=Turns)

    @staticmethod
    def cut(objective: nn.Module, config: TrainConfig, devices: Devices, evaluator: Any = None) -> Shards:
        """Cut, in place, the captioners of an objective, the references that it holds, and the large frozen models of its
        reward and of the evaluation.

        With ``bf16``, weights in half precision that are to learn become float32 layer by layer: the whole model never
        exists in float32.
        """
        if config.shard == "none":
            return Shards()
        captioners = [child for child in objective.children() if isinstance(child, HuggingFaceCaptioner)]
        held = references_of(objective)
        if devices.world_size == 1:
            for captioner in captioners if devices.bf16 else ():
                if any(p.requires_grad and p.dtype.itemsize < 4 for p in captioner.parameters()):
                    captioner.float()
            return Shards()
        full = config.shard == "full"
        mesh = init_device_mesh(devices.device.type, (devices.world_size,))
        # First, since these models are on the device already.
        frozen = [model for holder in (objective, evaluator) for model in frozen_models(holder).values()]
        turns = Turns(large_models(frozen, [objective, *held]), mesh)
        for captioner in captioners:
            _shard(captioner, mesh, gather_by_layer=full, bf16=devices.bf16)
            captioner.family.lockstep, captioner.may_remember = True, False
        for reference in held:
            _shard_reference(reference, mesh, bf16=devices.bf16)
            reference.family.lockstep = True
        shards = Shards(captioners, held, full, devices.bf16, turns)
        for captioner in (*captioners, *held):
            captioner.register_forward_pre_hook(shards._end_turns, prepend=True)
        return shards

    def __bool__(self) -> bool:
        return bool(self.captioners)

    @contextmanager
    def gathered(self, *, references: bool = False) -> Iterator[None]:
        """All weights of the captioners are on every process while the block runs, and are read without any exchange.

        Every process must enter the block; what runs inside may differ between them.

        Args:
            references: gather the references' weights, too.
        """
        chosen = self.captioners + (self.references if references else [])
        for captioner in chosen:
            getattr(captioner, _BEGIN)()  # the root must be called before its layers are gathered
            for module in _fsdp(captioner):
                module.unshard()
                module.set_reshard_after_forward(False, recurse=False)
            captioner.family.lockstep = False
        try:
            yield
        finally:
            for captioner in chosen:
                self._scatter(captioner)

    @contextmanager
    def without_advice(self) -> Iterator[None]:
        """Without torch's warning of layers that return views: no family changes what a layer returned in place, or its
        gradients would not be those of one process."""
        with warnings.catch_warnings():
            if self:
                warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
            yield

    def _end_turns(self, captioner: Any, inputs: Any) -> None:
        if captioner.family.lockstep:  # its layers are about to be gathered
            self.turns.finish()

    def _scatter(self, captioner: HuggingFaceCaptioner) -> None:
        reference = captioner in self.references
        captioner.family.lockstep = True
        for module in _fsdp(captioner):
            module.reshard()
            by_layer = self.full and module is not captioner
            module.set_reshard_after_forward(by_layer or reference, recurse=False)

    @contextmanager
    def whole(self, module: nn.Module, *, main: bool) -> Iterator[None]:
        """On the main process, the module's shards are replaced by whole float32 tensors on the CPU while the block runs.

        Every process must enter the block. With an adapter, only what learns becomes whole.

        Args:
            module: a child of the objective.
            main: whether this is the main process.
        """
        adapted = isinstance(module, HuggingFaceCaptioner) and module.has_lora
        made: dict[int, Parameter] = {}
        swapped: list[tuple[nn.Module, str, Parameter]] = []
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if not isinstance(parameter, DTensor) or (adapted and not parameter.requires_grad):
                    continue
                if id(parameter) not in made:
                    value = parameter.detach().full_tensor()
                    made[id(parameter)] = Parameter(
                        value.cpu() if main else value.new_empty(0), parameter.requires_grad
                    )
                swapped.append((part, name, parameter))
        try:
            for part, name, parameter in swapped if main else ():
                part._parameters[name] = made[id(parameter)]
            yield
        finally:
            for part, name, parameter in swapped if main else ():
                part._parameters[name] = parameter


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every process must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _fsdp(captioner: nn.Module) -> list[Any]:
    return [module for module in captioner.modules() if isinstance(module, FSDPModule)]


def _shard(captioner: HuggingFaceCaptioner, mesh: DeviceMesh, *, gather_by_layer: bool, bf16: bool) -> None:
    _shard_layers(captioner, mesh, gather_by_layer=gather_by_layer, bf16=bf16)
    # What is in no layer (embeddings, norms, head) stays gathered until the backward pass, and computes in float32.
    fully_shard(captioner, mesh=mesh, reshard_after_forward=False)
    setattr(captioner, _BEGIN, _nothing)
    for name in (*ENTRIES, _BEGIN):
        register_fsdp_forward_method(captioner, name)


def _shard_reference(reference: HuggingFaceCaptioner, mesh: DeviceMesh, *, bf16: bool) -> None:
    _shard_layers(reference, mesh, gather_by_layer=True, bf16=bf16)
    # Nothing differentiates it, so nothing would free its weights later.
    fully_shard(reference, mesh=mesh, reshard_after_forward=True)
    setattr(reference, _BEGIN, _nothing)
    register_fsdp_forward_method(reference, _BEGIN)


def _shard_layers(captioner: HuggingFaceCaptioner, mesh: DeviceMesh, *, gather_by_layer: bool, bf16: bool) -> None:
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    captioner.family.reads_parts = not bf16  # the policy casts what a layer is called with, not what its parts are
    for layer in captioner.family.layers:
        if bf16:
            _widen(layer)
        fully_shard(layer, mesh=mesh, reshard_after_forward=gather_by_layer, mp_policy=policy)
    if bf16:
        _widen(captioner)


def _nothing() -> None:
    """Called on entering a block of gathered weights."""


def _widen(module: nn.Module) -> None:
    """What learns, in float32: in half precision most steps would be rounded away."""
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dtype.itemsize < 4:
            parameter.data = parameter.data.float()


def is_sharded(captioner: Captioner) -> bool:
    """Whether a training has cut the captioner: one process alone can no longer read it."""
    return isinstance(captioner, FSDPModule)
