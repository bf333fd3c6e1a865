"""CLIP4Clip: a CLIP whose image side reads the frames of a clip; transformers has no class for it.

Importing this module makes the model known to ``AutoConfig`` and ``AutoModel``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, CLIPConfig, CLIPModel, CLIPVisionConfig
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.clip.modeling_clip import CLIPEncoder

from tellapart.errors import UsageError

Temporal = Literal["mean", "transformer"]


class Clip4ClipConfig(CLIPConfig):
    """Configuration of ``Clip4Clip``: that of a CLIP, and how frames become one vector.

    Args:
        num_frames: frames of every clip.
        temporal: ``mean`` or ``transformer``.
        temporal_layers: layers of the transformer; ``mean`` has none.
        temporal_heads: heads of each.
    """

    model_type: ClassVar[str] = "clip4clip"

    num_frames: int = 8
    temporal: str = "mean"
    temporal_layers: int = 4
    temporal_heads: int = 8


class Clip4Clip(CLIPModel):
    """CLIP over frames (Luo et al. 2021, "CLIP4Clip", section 3.3), as a dual encoder.

    Each frame is embedded by CLIP's image side, with its projection. ``mean`` (their parameter-free type) averages the
    frames' unit vectors: the order of frames is lost. ``transformer`` (their sequential type, ``seqTransf``) first adds learned
    positions, runs a transformer over the frames and adds its input again. The clip is compared with texts by cosine. As in
    the released code, frames are normalised before the mean, and the sequential type starts from CLIP's text tower (its
    positions and its first layers) where both are equally wide; else its weights are random.

    Their third type (``tightTransf``) reads text and frames together; it is not a dual encoder. For the same reason the X-CLIP of
    transformers does not fit: its text vectors depend on the clip.

    Example::

        model = Clip4Clip.from_clip(CLIPModel.from_pretrained("openai/clip-vit-base-patch32"), temporal="transformer")
        model.get_image_features(pixel_values).pooler_output  # [B, 8, 3, 224, 224] -> [B, 512]
        ClipListener.from_parts(model, image_processor, tokenizer, prefix="").save(Path("runs/clip4clip"))
    """

    config_class = Clip4ClipConfig

    def __init__(self, config: Clip4ClipConfig) -> None:
        super().__init__(config)
        if config.temporal not in ("mean", "transformer"):
            raise UsageError(f"temporal is {config.temporal!r} in config.json: set it to mean or transformer.")
        if config.temporal == "transformer":
            width, text = config.projection_dim, config.text_config
            layers = CLIPVisionConfig(
                hidden_size=width,
                intermediate_size=text.intermediate_size if text.hidden_size == width else 4 * width,
                num_hidden_layers=config.temporal_layers,
                num_attention_heads=config.temporal_heads,
            )
            layers._attn_implementation = config._attn_implementation
            self.temporal_position = nn.Embedding(config.num_frames, width)
            self.temporal_encoder = CLIPEncoder(layers)
        self.post_init()

    @classmethod
    def from_clip(
        cls,
        clip: CLIPModel,
        *,
        num_frames: int = 8,
        temporal: Temporal = "mean",
        layers: int = 4,
        heads: int | None = None,
    ) -> Clip4Clip:
        """A CLIP's weights over frames.

        Args:
            clip: the CLIP; its weights are copied.
            num_frames: frames of every clip.
            temporal: how frames become one vector.
            layers: of the transformer.
            heads: of each layer; they must divide the width of CLIP's embeddings. None takes those of the text tower that the
                layers start from, and 8 where none do.
        """
        text = clip.text_model
        same = text.config.hidden_size == clip.config.projection_dim
        heads = heads or (text.config.num_attention_heads if same else 8)
        options = {
            key: value for key, value in clip.config.to_dict().items() if key not in ("model_type", "architectures")
        }
        config = Clip4ClipConfig(
            **options, num_frames=num_frames, temporal=temporal, temporal_layers=layers, temporal_heads=heads
        )
        model = cls(config)
        model.load_state_dict(clip.state_dict(), strict=False)
        if temporal == "transformer" and same:
            positions = text.embeddings.position_embedding.weight.detach()
            model.temporal_position.weight.data.copy_(positions[:num_frames])
            for own, theirs in zip(model.temporal_encoder.layers, text.encoder.layers, strict=False):
                own.load_state_dict(theirs.state_dict())
        return model

    def get_image_features(self, pixel_values: Tensor, **_: Any) -> BaseModelOutputWithPooling:
        """``pooler_output [B, D]`` of clips, unit norm.

        Args:
            pixel_values: ``[B, F, 3, H, W]`` frames; or ``[B, F, width]``, the image tower's states of the frames' class tokens,
                for trainings that compute a frozen tower's states once.
        """
        if pixel_values.dim() == 5:
            flat = self.vision_model(pixel_values=pixel_values.flatten(0, 1)).pooler_output
            states = flat.unflatten(0, tuple(pixel_values.shape[:2]))
        else:
            states = self.vision_model.post_layernorm(pixel_values)
        frames = self.visual_projection(states)
        return BaseModelOutputWithPooling(pooler_output=self.pooled(frames))

    def pooled(self, frames: Tensor) -> Tensor:
        """``[B, D]``, unit norm, from embeddings of frames ``[B, F, D]``."""
        if self.config.temporal == "transformer":
            places = torch.arange(frames.shape[1], device=frames.device)
            placed = frames + self.temporal_position(places)
            frames = frames + self.temporal_encoder(inputs_embeds=placed).last_hidden_state
        return nn.functional.normalize(nn.functional.normalize(frames, dim=-1).mean(dim=1), dim=-1)


AutoConfig.register(Clip4ClipConfig.model_type, Clip4ClipConfig, exist_ok=True)
AutoModel.register(Clip4ClipConfig, Clip4Clip, exist_ok=True)
