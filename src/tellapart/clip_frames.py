"""A CLIP vision tower over the frames of a clip, for captioners and listeners; transformers has no class for it.

Importing this module makes the tower known to ``AutoConfig`` and ``AutoModel``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    CLIPVisionConfig,
    CLIPVisionModel,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.bert.modeling_bert import BertEncoder


class ClipFramesConfig(PreTrainedConfig):
    """Configuration of ``ClipFrames``.

    Args:
        tower: fields of the tower's ``CLIPVisionConfig``; the encoder is as wide as the tower.
        num_frames: frames of every clip.
        num_hidden_layers: layers over the tokens of all frames; 0 leaves only temporal positions.
        num_attention_heads: heads of each.
        intermediate_size: width of each layer's feed-forward part.
        dropout: rate in train mode, of activations and of attention.
        differences: whether each token is also given what has changed since the frame before.
    """

    model_type: ClassVar[str] = "clip_frames"

    tower: dict[str, Any] | None = None
    num_frames: int = 8
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    dropout: float = 0.1
    differences: bool = False
    hidden_size: int = 768


def bert_layers(config: Any) -> BertEncoder:
    """Layers over image states; ``config`` has ``hidden_size``, and the fields of ``ClipFramesConfig`` that say how they are
    made."""
    layers = BertConfig(
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        attn_implementation="sdpa",
    )
    return BertEncoder(layers)


class ClipFrames(PreTrainedModel):
    """The tower's states of every frame, each with the position of its frame, through layers that see all frames.

    ``F`` frames of ``P`` tokens (the class token first) are one sequence of ``F * P`` tokens. A learned embedding of the frame's
    position is added to all tokens of a frame, as the space-time embeddings of TimeSformer (Bertasius et al., ICML 2021,
    section 3.1, "joint space-time attention"), and layers of BERT follow. With ``differences`` a projection of the token's change
    since the frame before is added, too (Wang et al., CVPR 2021, "TDN", take differences of feature maps): that something has
    changed need not be inferred by comparing what was there with what is.

    Example::

        config = ClipFramesConfig(tower=CLIPVisionConfig().to_dict(), num_frames=8)
        states = ClipFrames(config)(pixel_values).last_hidden_state  # [B, 8, 3, 224, 224] -> [B, 8 * 50, 768]
    """

    config_class = ClipFramesConfig
    main_input_name = "pixel_values"
    base_model_prefix = "clip_frames"

    def __init__(self, config: ClipFramesConfig) -> None:
        super().__init__(config)
        self.tower = CLIPVisionModel(CLIPVisionConfig(**(config.tower or {})))
        config.hidden_size = width = self.tower.config.hidden_size
        self.temporal_position = nn.Embedding(config.num_frames, width)
        self.norm = nn.LayerNorm(width)
        if config.differences:
            self.change = nn.Linear(width, width, bias=False)
        self.encoder = bert_layers(config)
        self.post_init()

    def tower_states(self, pixel_values: Tensor) -> Tensor:
        """``[B, F * P, width]``: the tower's states of ``[B, F, 3, H, W]`` frames, one frame after the other.

        Raises:
            ValueError: there are not ``num_frames`` frames.
        """
        if pixel_values.dim() != 5 or pixel_values.shape[1] != self.config.num_frames:
            raise ValueError(
                f"a clip_frames tower reads [B, {self.config.num_frames}, 3, H, W], not {list(pixel_values.shape)}"
            )
        states = self.tower(pixel_values=pixel_values.flatten(0, 1)).last_hidden_state
        return states.reshape(len(pixel_values), -1, states.shape[-1])

    def encoded(self, states: Tensor) -> Tensor:
        """``[B, F * P, width]``: tower states with temporal positions, through the layers."""
        frames, count = self.config.num_frames, states.shape[1] // self.config.num_frames
        position = self.temporal_position(torch.arange(frames, device=states.device))
        seen = self.norm(states)
        placed = seen + position.repeat_interleave(count, dim=0)
        if self.config.differences:
            # The first frame has none before it.
            placed = placed + self.change(seen - torch.cat([seen[:, :count], seen[:, :-count]], dim=1))
        return self.encoder(placed).last_hidden_state if self.config.num_hidden_layers else placed

    def pooled(self, encoded: Tensor) -> Tensor:
        """``[B, width]``: the mean over frames and patches, without the frames' class tokens."""
        return encoded.unflatten(1, (self.config.num_frames, -1))[:, :, 1:].mean(dim=(1, 2))

    def forward(self, pixel_values: Tensor, **_: Any) -> BaseModelOutputWithPooling:
        """Tower and layers; ``pooler_output`` is ``pooled``."""
        states = self.encoded(self.tower_states(pixel_values))
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=self.pooled(states))


AutoConfig.register(ClipFramesConfig.model_type, ClipFramesConfig, exist_ok=True)
AutoModel.register(ClipFramesConfig, ClipFrames, exist_ok=True)
