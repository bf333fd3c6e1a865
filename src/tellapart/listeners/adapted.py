"""A listener that learns by low-rank adapters in both towers, and is saved without them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from tellapart.errors import UsageError, reason_of
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.trained import TrainedListener

LAYERS = r"(text_model|vision_model)\.encoder\.layers\.\d+\.(self_attn\.(q|k|v|out)_proj|mlp\.fc[12])"
"""The linear layers of both towers, which PAC-S++ adapts; the projections stay."""

ADAPTER = "lora.safetensors"
"""The adapters alone, next to the saved model: what resuming a training reads."""

_NAME = "default"  # peft's, of an adapter that was not named


class AdaptedListener(TrainedListener):
    """A listener both towers of which learn low-rank updates (Hu et al., ICLR 2022), as PAC-S++ was trained (Sarto et al.,
    2024); everything else stays as it is.

    It is saved with the updates added to its weights, as a listener like any other.

    Args:
        listener: changed in place: its layers get adapters, which add nothing at first.
        r: rank of the updates.
        alpha: they are scaled by ``alpha / r``.
        dropout: before them, where dropout is on.
        target_modules: regular expression of the whole names of the layers that get one; none takes ``LAYERS``.

    Raises:
        UsageError: it matches no layer, or a number cannot be used.
    """

    def __init__(
        self,
        listener: ClipListener,
        *,
        r: int = 4,
        alpha: float = 8.0,
        dropout: float = 0.0,
        target_modules: str | None = None,
    ) -> None:
        from peft import LoraConfig, inject_adapter_in_model

        super().__init__(listener)
        listener.model.requires_grad_(False)
        targets = target_modules or LAYERS
        try:
            config = LoraConfig(r=r, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets, bias="none")
            inject_adapter_in_model(config, listener.model)
        except (ValueError, re.error) as error:
            raise UsageError(f"listener.lora cannot be used ({reason_of(error)}): correct it.") from error

    def save(self, folder: Path) -> None:
        """Write what ``ClipListener.from_pretrained`` reads, and the adapters next to it; replaces ``folder``."""
        self.merged().save(folder)
        safetensors.torch.save_file(self._adapter(), folder / ADAPTER)

    def load_weights(self, folder: Path) -> None:
        """Read the adapters back in place; the weights below them are those that the training began with.

        Raises:
            UsageError: they are missing, damaged, or of another model.
        """
        try:
            saved = safetensors.torch.load_file(folder / ADAPTER)
            if saved.keys() != self._adapter().keys():
                raise ValueError("its adapters are of other layers")
            self.model.load_state_dict(saved, strict=False)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(
                f"{folder} lacks the adapters of this listener ({reason_of(error)}): resume with the recipe that wrote it."
            ) from error

    def merged(self) -> ClipListener:
        """A listener of its own, without adapters, whose weights hold their updates."""
        own = self.listener
        model = type(own.model)(own.model.config)
        model.load_state_dict(self._merged_weights())
        return ClipListener.from_parts(model, own.image_processor, own.tokenizer, name=own.name, prefix=own.prefix)

    def _adapter(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.listener.model.state_dict().items() if ".lora_" in name}

    def _merged_weights(self) -> dict[str, Tensor]:
        """The weights under the names of a model without adapters."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        model: Any = self.listener.model
        adapter = self._adapter()
        weights = {
            name.replace(".base_layer.", "."): value
            for name, value in model.state_dict().items()
            if name not in adapter
        }
        for name, layer in model.named_modules():
            if isinstance(layer, BaseTunerLayer):
                weights[f"{name}.weight"] = weights[f"{name}.weight"] + layer.get_delta_weight(_NAME)
        return weights
