"""A critic: predicts the return of a caption at each of its tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tellapart.captioners.adapters import LoraOptions, add_lora
from tellapart.captioners.base import Encoded
from tellapart.captioners.modes import evaluating, layers_checkpointed, quiet
from tellapart.captioners.saving import copy_adapter
from tellapart.captioners.scoring import token_states
from tellapart.errors import UsageError, reason_of
from tellapart.types import Rollout

if TYPE_CHECKING:
    from tellapart.captioners.families.base import Family
    from tellapart.captioners.huggingface import HuggingFaceCaptioner


# What turns hidden states into values: a residual MLP, or one linear layer.

Head = Literal["residual", "linear"]


class ResidualBlock(nn.Module):
    """``x + W_2 GELU(W_1 LayerNorm(x))``, four times as wide inside.

    Args:
        size: D.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.expand, self.contract = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, states: Tensor) -> Tensor:
        """``[M, D]`` from ``[M, D]``."""
        return states + self.contract(nn.functional.gelu(self.expand(self.norm(states))))


class ValueHead(nn.Module):
    """A value for every hidden state, in full precision.

    Args:
        body: ``[M, D] -> [M, D]``.
        size: D.
    """

    def __init__(self, body: nn.Module, size: int) -> None:
        super().__init__()
        self.body, self.value = body, nn.Linear(size, 1)

    def forward(self, states: Tensor) -> Tensor:
        """``[M]`` values of states ``[M, D]`` of any precision."""
        read = self.body(states.to(self.value.weight.dtype))
        # In bfloat16 a value of 10 is rounded by 0.03, more than penalties are often apart.
        with torch.autocast(states.device.type, enabled=False):
            return self.value(read.to(self.value.weight.dtype)).squeeze(-1)


def residual_head(size: int, blocks: int) -> ValueHead:
    """``blocks`` residual blocks, two dense layers with GELU, and a linear layer.

    With 5 blocks at D = 2560 it has 275.3 million weights, the size that Dzabraev et al. (2024) give; its drawing is not in
    the published text, so the arrangement is ours.

    Raises:
        UsageError: ``blocks`` is below 1.
    """
    if blocks < 1:
        raise UsageError(f"critic.blocks={blocks} leaves no residual block: give at least 1, or head linear.")
    dense = [layer for _ in range(2) for layer in (nn.Linear(size, size), nn.GELU())]
    return ValueHead(nn.Sequential(*(ResidualBlock(size) for _ in range(blocks)), *dense), size)


def linear_head(size: int, blocks: int) -> ValueHead:
    """One linear layer, with which training is known to collapse (Dzabraev et al., 2024); ``blocks`` is ignored."""
    return ValueHead(nn.Identity(), size)


_HEADS: dict[str, Callable[[int, int], ValueHead]] = {"residual": residual_head, "linear": linear_head}


def value_head(kind: Head, size: int, blocks: int) -> ValueHead:
    """The head of a name, for states of width ``size``.

    Raises:
        UsageError: the head is unknown, or ``blocks`` is below 1.
    """
    if kind not in _HEADS:
        raise UsageError(f"critic.head={kind!r} is unknown: choose {' or '.join(_HEADS)}.")
    return _HEADS[kind](size, blocks)


# Hidden states of a captioner's captions for a critic: read without changing the captioner, under the critic's adapter.

Place = tuple[Tensor, Tensor]
"""Row and column of each of M tokens, ``[M]`` long each."""


class OwnStates:
    """The captioner's own hidden states, without gradients."""

    def __init__(self, captioner: HuggingFaceCaptioner) -> None:
        self.captioner = captioner

    def __call__(self, rollout: Rollout, encoded: Encoded, row: Tensor) -> tuple[Tensor, Place]:
        """``[M, D]`` states that predict the M real tokens, and where these are.

        Args:
            rollout: N captions.
            encoded: what they were drawn from.
            row: of ``encoded``, for each caption, ``[N]``.
        """
        with evaluating(self.captioner):
            return _read(self.captioner.family, rollout, encoded, row, share_prefix=True)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Nothing learns."""
        return {}

    def train(self, mode: bool) -> None:
        """There is nothing to switch."""

    def save(self, folder: Path) -> None:
        """There is nothing to write."""

    def load_weights(self, folder: Path) -> None:
        """There is nothing to read."""


class AdaptedStates:
    """Hidden states under a LoRA adapter that the captioner itself never meets.

    A copy of the captioner's modules, without the image tower, carries the adapter (by peft). Its other weights share the
    captioner's memory, which is looked up again before every pass, and take no gradient. The copy therefore costs only the
    adapter's memory, and sampling, scoring and saving of the captioner do not change.

    Args:
        captioner: whose states.
        lora: the adapter.

    Raises:
        UsageError: the captioner trains an adapter of its text side itself, or has no projections to adapt.
    """

    def __init__(self, captioner: HuggingFaceCaptioner, lora: LoraOptions) -> None:
        if captioner.adapts_text:
            raise UsageError(
                "critic.lora cannot be combined with captioner.lora, whose adapter is on the same projections: set one of "
                "the two to null, or captioner.lora.tower to image."
            )
        self.captioner, model = captioner, captioner.family.model
        targets = _targets(captioner, lora)
        self._twin = twin = _twin_of(model, captioner.family.vision)
        weights, modules = dict(model.named_parameters()), dict(model.named_modules())
        self._weights = [(mine, weights[name]) for name, mine in twin.named_parameters() if mine is not weights[name]]
        self._buffers = [
            (mine, modules[place], name) for place, mine in twin.named_modules() for name in list(mine._buffers)
        ]
        self.network: Any = add_lora(self.family, replace(lora, target_modules=targets)).eval()

    @property
    def family(self) -> Family:
        """The captioner's, with the copy for its model."""
        # Taken again each time: the captioner may have been given another prompt or number of frames since.
        family = copy.copy(self.captioner.family)
        family.model = self._twin
        return family

    def parameters(self) -> dict[str, nn.Parameter]:
        """Name -> weight of the adapter."""
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def train(self, mode: bool) -> None:
        """Switch the adapter's dropout on or off; the model below it has none."""
        for name, module in self.network.named_modules():
            if name.rpartition(".")[0].endswith("lora_dropout"):
                module.train(mode)

    def __call__(self, rollout: Rollout, encoded: Encoded, row: Tensor) -> tuple[Tensor, Place]:
        """As ``OwnStates`` does, with gradients for the adapter."""
        self._tie()
        checkpointed = self.captioner.checkpoints_layers and torch.is_grad_enabled()
        with layers_checkpointed(self.network if checkpointed else nn.Identity()):
            return _read(self.family, rollout, encoded, row, share_prefix=not checkpointed)

    def _tie(self) -> None:
        """See the captioner's weights where they are now: moving a model to another device gives it other memory."""
        for mine, own in self._weights:
            mine.data = own.data
        for module, owner, name in self._buffers:
            module._buffers[name] = owner._buffers[name]

    def save(self, folder: Path) -> None:
        """Write ``adapter/``, which ``peft.PeftModel.from_pretrained`` puts on the captioner saved with it."""
        self.network.save_pretrained(str(folder / "adapter"), save_embedding_layers=False)

    def load_weights(self, folder: Path) -> None:
        """Read it back, in place."""
        with torch.no_grad():
            copy_adapter(self.network, folder / "adapter")


def _targets(captioner: HuggingFaceCaptioner, lora: LoraOptions) -> str:
    try:
        return lora.target_modules or captioner.family.lora_targets
    except UsageError as error:
        kind = captioner.family.model.config.model_type
        raise UsageError(
            f"critic.lora adapts projections, which a {kind} captioner does not have: set critic.lora to null, so that the "
            "critic reads the captioner's own states."
        ) from error


def _twin_of(model: nn.Module, vision: nn.Module) -> Any:
    """Copies of the modules that share the parameters' memory; quantized weights (8 or 4 bits) are shared unchanged. An empty
    module replaces the image tower, which the twin never runs and whose adapters, if any, are not the critic's."""
    memo: dict[int, Any] = {id(vision): nn.Identity()} | {
        id(p): nn.Parameter(p.data, requires_grad=False) if type(p) is nn.Parameter else p for p in model.parameters()
    }
    memo |= {id(buffer): buffer for buffer in model.buffers()}
    return copy.deepcopy(model, memo).eval()


def _read(family: Any, rollout: Rollout, encoded: Encoded, row: Tensor, *, share_prefix: bool) -> tuple[Tensor, Place]:
    device = encoded.states.device
    given = (row, rollout.tokens.to(device), rollout.mask.to(device))
    states = token_states(family, encoded, *given, share_prefix=share_prefix)
    return states.each(), states.place


WEIGHTS = "model.safetensors"


class Critic(nn.Module):
    """Values of hidden states of the captioner's language model, with an adapter that only this pass uses.

    VLRM (Dzabraev, Kunitsyn & Ivaniuta, 2024, section 3): a large head on the language model's states, LoRA on the language
    model while values are computed and never while captions are drawn or scored. The value of a token is read from the state
    that predicts it, so it cannot know the token; it reads the length or context that the caption was asked for. Nothing of a
    loss on values reaches the captioner: image states and the captioner's weights count as constants. Its parameters are the
    head's and the adapter's alone; the captioner is not a child, and is neither trained nor saved through it.

    Without an adapter (an LSTM has no projections to adapt) the captioner's own states are read, without gradients: the
    head is then all that learns. States are read in eval mode; the adapter's dropout follows the mode of the critic.

    Departures: the paper's drawing of the head was not published (see ``residual_head``); it names LoRA of
    6 million weights, which rank 16 on queries and values of OPT-2.7B comes near to (5.2 million).

    Args:
        captioner: whose states are read.
        head: ``residual``, or ``linear``, which is known to collapse.
        blocks: residual blocks; the paper's size is 5 at D = 2560.
        lora: the adapter; none reads the captioner's own states.

    Raises:
        UsageError: the head is unknown or empty, or the captioner cannot be adapted.
    """

    def __init__(
        self,
        captioner: HuggingFaceCaptioner,
        *,
        head: Head = "residual",
        blocks: int = 2,
        lora: LoraOptions | None = None,
    ) -> None:
        super().__init__()
        size = captioner.family.head.in_features
        precise = torch.promote_types(captioner.family.head_dtype, torch.float32)
        self.head = value_head(head, size, blocks).to(captioner.device, precise)
        self.states = OwnStates(captioner) if lora is None else AdaptedStates(captioner, lora)
        self._captioner = (captioner,)  # in a tuple, where nn.Module does not look for children
        # The very parameters of the twin: peft computes with them, the critic owns, moves and saves them.
        self.adapter = nn.ParameterDict({name.replace(".", "/"): p for name, p in self.states.parameters().items()})

    def train(self, mode: bool = True) -> Critic:
        """Switch modes; the captioner's modules are not among them."""
        super().train(mode)
        self.states.train(mode)
        return self

    def fixed_states(self, rollout: Rollout, *, encoded: Encoded | None = None) -> Tensor | None:
        """``[N, T, D]`` states for ``forward``, 0 where masked, which hold until the captioner learns; none: they learn, too.

        Args:
            rollout: captions.
            encoded: their images, if they are known.
        """
        if not isinstance(self.states, OwnStates) or not bool(rollout.mask.any()):
            return None
        states, place = self._read(rollout, encoded)
        return states.new_zeros(*rollout.mask.shape, states.shape[1]).index_put(place, states)

    def forward(self, rollout: Rollout, *, encoded: Encoded | None = None, states: Tensor | None = None) -> Tensor:
        """``[N, T]`` values on the returns' scale, float32 (of a model in float64, float64); 0 where masked.

        Args:
            rollout: captions.
            encoded: their images, if they are known.
            states: ``fixed_states`` of these captions, if they are known.
        """
        if not bool(rollout.mask.any()):
            return self.head.value.weight.new_zeros(rollout.mask.shape)
        if states is None:
            read, place = self._read(rollout, encoded)
        else:
            row, column = rollout.mask.to(states.device).nonzero(as_tuple=True)
            read, place = states[row, column], (row, column)
        values = self.head(read)
        return values.new_zeros(rollout.mask.shape).index_put(place, values)

    def _read(self, rollout: Rollout, encoded: Encoded | None) -> tuple[Tensor, Place]:
        (captioner,) = self._captioner
        with evaluating(captioner):
            encoded, row = captioner.requested(rollout, captioner.encode(rollout.batch) if encoded is None else encoded)
        return self.states(rollout, _detached(encoded), row)

    def save(self, folder: Path) -> None:
        """Write ``model.safetensors`` (the head) and, with LoRA, ``adapter/`` in peft's format."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in self.head.state_dict().items()}, folder / WEIGHTS)
        with quiet():
            self.states.save(folder)

    def load_weights(self, folder: Path) -> None:
        """Read back, in place and bit for bit, what ``save`` wrote.

        Raises:
            UsageError: the folder lacks it, or it is of another critic.
        """
        try:
            self.head.load_state_dict(load_file(folder / WEIGHTS))
            with quiet():
                self.states.load_weights(folder)
        except Exception as error:  # each reader has its own exceptions, and all mean that the folder will not do
            reason = reason_of(error)
            raise UsageError(
                f"folder {folder} lacks the weights of this critic ({reason}): give the folder it was saved to, with the "
                "same critic.head, blocks and lora."
            ) from error


def _detached(encoded: Encoded) -> Encoded:
    inputs = {name: tensor.detach() for name, tensor in encoded.inputs.items()}
    return replace(encoded, states=encoded.states.detach(), inputs=inputs)
