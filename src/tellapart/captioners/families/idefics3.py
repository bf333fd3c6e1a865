"""Idefics3ForConditionalGeneration and SmolVLMForConditionalGeneration, whose images are cut into tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.prompted import Prompted

if TYPE_CHECKING:
    from PIL import Image


class Idefics3(Prompted):
    """``Idefics3ForConditionalGeneration`` and ``SmolVLMForConditionalGeneration``, which differ in name only.

    An image is several tiles, depending on its shape; tiles are padded to those of the batch's largest image. Which are
    real is told by the processor's mask: the models' own forward takes every tile of zeros for padding. SmolVLM's
    processor also reads videos, for which it needs packages that images do not; Idefics3's reads the same files.
    """

    joint_processor = "Idefics3Processor"
    lora_targets = r".*text_model\..*\.(q_proj|k_proj|v_proj|o_proj)"
    default_prompt = "Provide a one-sentence caption for this image."
    plain_template = "User:{image}{prompt}<end_of_utterance>\nAssistant:"

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """The end of an utterance comes first among the EOS ids: it is what ends an answer."""
        start, eos, pad = super().special_tokens()
        end = self.tokenizer.convert_tokens_to_ids(self.processors.joint.end_of_utterance_token)
        return start, [end, *(token for token in eos if token != end)], pad

    @property
    def vision(self) -> nn.Module:
        """The vision model, without the connector."""
        return self.model.model.vision_model

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """``pixel_values [B, tiles, 3, H, W]`` and, instead of a mask of pixels, ``patch_mask [B, tiles, h, w]``."""
        inputs = super().process(images)
        size = self.model.config.vision_config.patch_size
        pixels = inputs.pop("pixel_attention_mask").unfold(2, size, size).unfold(3, size, size)
        return inputs | {"patch_mask": pixels.flatten(-2).bool().any(dim=-1)}

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The tower's states of real tiles, neighbouring ones put together as the connector does before it projects."""
        patches, connector = inputs["patch_mask"], self.model.model.connector
        real = patches.flatten(2).any(dim=2)
        read = self.vision(inputs["pixel_values"][real], patch_attention_mask=patches[real]).last_hidden_state
        read = connector.pixel_shuffle(read, connector.scale_factor)
        tiles = read.new_zeros(*real.shape, *read.shape[1:])
        tiles = tiles.index_put(real.nonzero(as_tuple=True), read)
        mask = real[:, :, None].expand(tiles.shape[:3])
        return self.seen(inputs, tiles.flatten(1, 2), mask.flatten(1))

    def project(self, encoded: Encoded) -> Tensor:
        """The connector's linear layer."""
        return self.model.model.connector.modality_projection(encoded.states)

    @property
    def body(self) -> Any:
        """The text model."""
        return self.model.model.text_model
