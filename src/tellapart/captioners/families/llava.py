"""LlavaForConditionalGeneration: an image tower, two linear layers, and a language model that reads their output."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.base import Processors
from tellapart.captioners.families.prompted import Prompted
from tellapart.errors import UsageError


class Llava(Prompted):
    """``LlavaForConditionalGeneration`` with a tower of fixed size (CLIP, SigLIP): LLaVA 1.5 and its kin.

    The states are those of the layers that ``vision_feature_layer`` names, usually the last but one: what follows it in
    the tower is never used. Asked for a caption in the words of LLaVA 1.5's training data.
    """

    joint_processor: ClassVar[str | None] = "LlavaProcessor"
    lora_targets = r".*language_model\..*\.(q_proj|k_proj|v_proj|o_proj)"
    default_prompt = "Provide a one-sentence caption for the provided image."
    plain_template = "USER: {image}\n{prompt} ASSISTANT:"

    def __init__(self, model: Any, processors: Processors, prompt: str | None = None) -> None:
        kind = model.config.vision_config.model_type
        if kind == "pixtral":
            raise UsageError(
                f"the image tower of this LLaVA is a {kind!r}, whose images have no fixed size: "
                "use a checkpoint with a CLIP or SigLIP tower."
            )
        if processors.joint is not None and processors.joint.patch_size is None:
            raise UsageError(
                "the processor cannot tell how many image tokens to write: in processor_config.json, set patch_size to "
                f"{model.config.vision_config.patch_size}, vision_feature_select_strategy to "
                f"{model.config.vision_feature_select_strategy!r} and num_additional_image_tokens to 1 for a CLIP tower."
            )
        super().__init__(model, processors, prompt)

    @classmethod
    def never_used(cls, config: Any) -> str:
        """The tower's layers behind the deepest one that is read, and its pooling."""
        depth = config.vision_config.num_hidden_layers
        deepest = max(layer % (depth + 1) for layer in _layers(config))
        unread = "".join(rf"|layers\.{layer}" for layer in range(deepest, depth))
        return rf"model\.vision_tower\.(.*\.)?(post_layernorm|head{unread})\."

    @property
    def vision(self) -> nn.Module:
        """The image tower, without the projector."""
        return self.model.model.vision_tower

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """Hidden states of the layers that are read, side by side, without [CLS] unless the configuration keeps it."""
        return self.seen(inputs, self.chosen(inputs["pixel_values"]))

    def chosen(self, pixels: Tensor) -> Tensor:
        """``[N, P, D]`` states of pictures ``[N, 3, H, W]``."""
        config = self.model.config
        output = self.vision(pixels, output_hidden_states=_layers(config))
        chosen = [output.hidden_states[layer] for layer in _layers(config)]
        states = chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=-1)
        return states[:, 1:] if config.vision_feature_select_strategy == "default" else states

    def project(self, encoded: Encoded) -> Tensor:
        """The projector."""
        return self.model.model.multi_modal_projector(encoded.states)

    @property
    def body(self) -> Any:
        """The language model."""
        return self.model.model.language_model


def _layers(config: Any) -> list[int]:
    layers = config.vision_feature_layer
    return [layers] if isinstance(layers, int) else list(layers)
