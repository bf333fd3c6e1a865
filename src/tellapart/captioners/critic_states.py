"""Hidden states of a captioner's captions for a critic: read without touching the captioner, under an adapter of its own."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tellapart.captioners.adapters import LoraOptions, add_lora
from tellapart.captioners.base import Encoded
from tellapart.captioners.modes import eval_mode, layers_checkpointed
from tellapart.captioners.saving import copy_adapter
from tellapart.captioners.scoring import token_states
from tellapart.errors import UsageError
from tellapart.types import Rollout

if TYPE_CHECKING:
    from tellapart.captioners.huggingface import HuggingFaceCaptioner

Place = tuple[Tensor, Tensor]
"""Row and column of each of M tokens, ``[M]`` long each."""


class OwnStates:
    """The captioner's own hidden states, without gradients."""

    def __init__(self, captioner: HuggingFaceCaptioner) -> None:
        self.captioner = captioner

    def __call__(self, rollout: Rollout, encoded: Encoded) -> tuple[Tensor, Place]:
        """``[M, D]`` states that predict the M real tokens, and where these are."""
        with eval_mode(self.captioner), torch.no_grad():
            return _read(self.captioner.family, rollout, encoded, share_prefix=True)

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

    A twin of the captioner's modules carries the adapter, by peft. Its other weights *are* the captioner's, the same memory seen
    anew before every pass, and take no gradient; so it costs the adapter alone, and drawing, scoring and saving of the
    captioner go on as if there were none.

    Args:
        captioner: whose states.
        lora: the adapter.

    Raises:
        UsageError: the captioner trains an adapter itself, or has no projections to adapt.
    """

    def __init__(self, captioner: HuggingFaceCaptioner, lora: LoraOptions) -> None:
        if captioner.has_lora:
            raise UsageError(
                "critic.lora cannot stand beside captioner.lora, whose adapter is on the same projections: set one of the "
                "two to null."
            )
        self.captioner, model, family = captioner, captioner.family.model, captioner.family
        targets = _targets(captioner, lora)
        twin = _twin_of(model)
        self._weights = [
            pair for pair in zip(twin.parameters(), model.parameters(), strict=True) if pair[0] is not pair[1]
        ]
        self._buffers = [
            (mine, own, name)
            for mine, own in zip(twin.modules(), model.modules(), strict=True)
            for name in own._buffers
        ]
        self.family = type(family)(twin, family.processors, family.prompt)
        self.network: Any = add_lora(self.family, replace(lora, target_modules=targets)).eval()

    def parameters(self) -> dict[str, nn.Parameter]:
        """Name -> weight of the adapter."""
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def train(self, mode: bool) -> None:
        """Switch the adapter's dropout on or off; the model below it has none."""
        for name, module in self.network.named_modules():
            if name.rpartition(".")[0].endswith("lora_dropout"):
                module.train(mode)

    def __call__(self, rollout: Rollout, encoded: Encoded) -> tuple[Tensor, Place]:
        """``[M, D]`` states that predict the M real tokens, with gradients for the adapter, and where these are."""
        self._tie()
        checkpointed = self.captioner.checkpoints_layers and torch.is_grad_enabled()
        with layers_checkpointed(self.network if checkpointed else nn.Identity()):
            return _read(self.family, rollout, encoded, share_prefix=not checkpointed)

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


def _twin_of(model: nn.Module) -> Any:
    """Modules of their own around the same memory; weights of other kinds (8 or 4 bits) are shared as they are."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(p.data, requires_grad=False) if type(p) is nn.Parameter else p for p in model.parameters()
    }
    memo |= {id(buffer): buffer for buffer in model.buffers()}
    return copy.deepcopy(model, memo).eval()


def _read(family: Any, rollout: Rollout, encoded: Encoded, *, share_prefix: bool) -> tuple[Tensor, Place]:
    device = encoded.states.device
    given = (rollout.image.to(device), rollout.tokens.to(device), rollout.mask.to(device))
    return token_states(family, encoded, *given, share_prefix=share_prefix)
