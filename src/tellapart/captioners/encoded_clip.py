"""A CLIP vision tower with an encoder on top, as the encoder of a ``VisionEncoderDecoderModel``: the captioner of DiCO's paper,
which transformers has no class for.

Importing this module makes the encoder known to ``AutoConfig`` and ``AutoModel``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput

from tellapart.clip_frames import bert_layers


class EncodedClipConfig(PreTrainedConfig):
    """Configuration of ``EncodedClip``.

    Args:
        tower: fields of the tower's ``CLIPVisionConfig``.
        hidden_size: width of the encoder.
        num_hidden_layers: its layers.
        num_attention_heads: heads of each.
        intermediate_size: width of each layer's feed-forward part.
        dropout: rate in train mode, of activations and of attention.
    """

    model_type: ClassVar[str] = "encoded_clip"

    tower: dict[str, Any] | None = None
    hidden_size: int = 512
    num_hidden_layers: int = 3
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    dropout: float = 0.1


class EncodedClip(PreTrainedModel):
    """The tower's states of all patches (and of its class token), projected to the encoder's width and encoded.

    Moratelli et al. (BMVC 2024; released code): a linear layer, then layers of BERT (normalised after each part). Their tower is
    frozen, projection and encoder are trained with the decoder.
    """

    config_class = EncodedClipConfig
    main_input_name = "pixel_values"
    base_model_prefix = "encoded_clip"

    def __init__(self, config: EncodedClipConfig) -> None:
        super().__init__(config)
        self.tower = CLIPVisionModel(CLIPVisionConfig(**(config.tower or {})))
        self.projection = nn.Linear(self.tower.config.hidden_size, config.hidden_size)
        self.encoder = bert_layers(config)
        self.post_init()

    def encoded(self, states: Tensor) -> Tensor:
        """``[B, P, hidden_size]`` from the tower's ``[B, P, width]``."""
        return self.encoder(self.projection(states)).last_hidden_state

    def forward(self, pixel_values: Tensor, **_: Any) -> BaseModelOutput:
        """Tower and encoder."""
        return BaseModelOutput(last_hidden_state=self.encoded(self.tower(pixel_values=pixel_values).last_hidden_state))


AutoConfig.register(EncodedClipConfig.model_type, EncodedClipConfig, exist_ok=True)
AutoModel.register(EncodedClipConfig, EncodedClip, exist_ok=True)
