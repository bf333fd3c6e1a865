"""Memory of the activations of scoring captions with gradients, counted, not estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_layers import GradientCheckpointingLayer

from tellapart.captioners.critic import ValueHead
from tellapart.captioners.liger import liger_numbers
from tellapart.captioners.modes import layers_checkpointed
from tellapart.captioners.scoring import logits_alive
from tellapart.ops import current_device


@dataclass(frozen=True)
class Activations:
    """Bytes that are alive when the gradients of a pass begin.

    Args:
        fixed: whatever the number of captions: copies of weights in another precision, for example.
        each: a caption more.
        passing: for a caption, what is computed again in the backward pass, where layers are checkpointed.
        logits: of the chunk of logits that is differentiated at a time.
    """

    fixed: int
    each: int
    passing: int
    logits: int

    def of(self, captions: int) -> int:
        """Bytes for this number of captions at once."""
        return self.fixed + captions * (self.each + self.passing) + self.logits


def activations(
    family: Any,
    inputs: dict[str, Tensor],
    *,
    tokens: int,
    captions: int,
    vision_learns: bool,
    checkpointed: bool,
    encoder: Any = None,
    head: ValueHead | None = None,
    entropy: bool = False,
    logits_budget: float | None = None,
    use_liger_kernel: bool = False,
) -> Activations:
    """What one pass over captions keeps: it is run over one image's caption and over two, and what autograd saves is counted,
    each piece of memory once, weights left out.

    Weights and inputs may be on the device ``meta``, where nothing is computed and no memory is taken; there every caption
    and prompt counts as unpadded. What captions of one image share is counted for each of them.

    Args:
        family: reads the model, which should be in the mode it trains in.
        inputs: of two images, as the family processes them.
        tokens: length of the captions.
        captions: scored at once.
        vision_learns: whether gradients reach the image tower.
        checkpointed: whether layers are computed again in the backward pass.
        encoder: the family that encodes the images, where ``family`` has no image tower: a critic's reads the captioner's states.
        head: what reads the states instead of the output embedding: a critic's head.
        entropy: whether the loss has the entropies of the words.
        logits_budget: GiB of logits that scoring keeps; none takes the default of the device, for ``meta`` of the one that this
            process would train on.
        use_liger_kernel: whether Liger computes the log-probabilities; what it holds counts as logits.

    Raises:
        RuntimeError: on ``meta``, where this family looks at numbers of the image.
    """
    run = partial(_run, family, encoder or family, tokens=tokens, vision_learns=vision_learns, head=head)
    one, two = ({key: value[:n] for key, value in inputs.items()} for n in (1, 2))
    with _PlausibleNumbers(), layers_checkpointed(family.model if checkpointed else nn.Identity()):
        kept = [_Saved(family.model, head).during(run, given).total for given in (one, two)]
    each, passing = kept[1] - kept[0], 0
    if checkpointed:
        with _PlausibleNumbers(), _without_checkpoints(family.model):
            passing = _Saved(family.model, head).during(run, two).largest_layer // 2
    given = next(iter(inputs.values())).device
    device, count = current_device() if given.type == "meta" else given, captions * tokens * family.vocab_size
    logits = logits_alive(count, device, entropy=entropy, budget=logits_budget)[1]
    if use_liger_kernel and not entropy:
        logits = liger_numbers(captions * tokens, family)
    return Activations(max(kept[0] - each, 0), each, passing, 4 * logits if head is None else 0)


def _run(
    family: Any,
    encoder: Any,
    inputs: dict[str, Tensor],
    *,
    tokens: int,
    vision_learns: bool,
    head: ValueHead | None,
) -> Tensor:
    """One pass, as scoring makes it, up to the states that are turned into logits or values."""
    first = next(iter(inputs.values()))
    words = torch.zeros(len(first), tokens, dtype=torch.long, device=first.device)
    with torch.set_grad_enabled(vision_learns):
        encoded = encoder.encode(inputs)
    states = family.teacher_forced(words, encoded, torch.arange(len(first), device=first.device))
    if head is None:
        return states
    # As the head does it, except for its autocast, which the device meta does not know.
    return head.value(head.body(states.flatten(0, 1).to(head.value.weight.dtype)))


class _Saved:
    """Counts what autograd saves: in all, and within the layer that saves most."""

    def __init__(self, model: nn.Module, head: nn.Module | None) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        parts = [model] if head is None else [model, head]
        held = [tensor for part in parts for tensor in (*part.parameters(), *part.buffers())]
        self.weights = {tensor.untyped_storage()._cdata for tensor in held}
        self.total = self.largest_layer = 0
        self._alive: dict[int, Any] = {}
        self._before: dict[nn.Module, int] = {}

    def during(self, run: Callable[[dict[str, Tensor]], Tensor], inputs: dict[str, Tensor]) -> _Saved:
        """Count while it runs, with gradients."""
        hooks = [layer.register_forward_pre_hook(self._enter) for layer in self.layers]
        hooks += [layer.register_forward_hook(self._leave) for layer in self.layers]
        try:
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved):
                run(inputs)
        finally:
            for hook in hooks:
                hook.remove()
            self._alive.clear()
        return self

    def _pack(self, tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory._cdata not in self.weights and memory._cdata not in self._alive:
            self._alive[memory._cdata] = memory  # held, so that no later memory is taken for it
            self.total += memory.nbytes()
        return tensor

    def _enter(self, layer: nn.Module, given: Any) -> None:
        self._before[layer] = self.total

    def _leave(self, layer: nn.Module, given: Any, made: Any) -> None:
        self.largest_layer = max(self.largest_layer, self.total - self._before[layer])


class _PlausibleNumbers(TorchDispatchMode):
    """On the device ``meta`` there are no numbers to read: where code asks for one (is nothing padded?), it gets yes, or 1."""

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default and given[0].device.type == "meta":
            return True if given[0].dtype == torch.bool else 1
        return function(*given, **(named or {}))


@contextmanager
def _without_checkpoints(model: nn.Module) -> Iterator[None]:
    """Layers keep their activations inside, whatever they were told."""
    on = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer) and m.gradient_checkpointing]
    for layer in on:
        layer.gradient_checkpointing = False
    try:
        yield
    finally:
        for layer in on:
            layer.gradient_checkpointing = True
