"""Qwen3-VL: Qwen2-VL whose first decoder layers also read deeper layers of the image tower."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Cache

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.qwen2_vl import Qwen2VL


class Qwen3VL(Qwen2VL):
    """``Qwen3VLForConditionalGeneration``.

    Deepstack (Meng et al., NeurIPS 2024): states of several layers of the tower, each through a merger of its own, are added
    to the image tokens after the first layers of the language model. Caption tokens get none.
    """

    plain_template = (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{prompt}<|im_end|>\n<|im_start|>assistant\n"
    )

    @property
    def mergers(self) -> list[nn.Module]:
        """The last layer's merger, then those of the layers before."""
        visual = self.model.model.visual
        return [visual.merger, *visual.deepstack_merger_list]

    def further(self, encoded: Encoded, image: Tensor, width: int, cache: Cache | None) -> dict[str, Any]:
        """The image tokens among ``width`` columns, and what is added to them; nothing once the prefix is cached."""
        if "deepstack" not in encoded.inputs or (cache is not None and cache.get_seq_length() > 0):
            return {}
        assert encoded.mask is not None
        place = encoded.inputs["input_ids"][image] == self.image_token
        real = encoded.mask[image]
        layers = encoded.inputs["deepstack"].unbind(dim=1)
        return {
            "visual_pos_masks": nn.functional.pad(place, (0, width - place.shape[1])),
            "deepstack_visual_embeds": [
                self.merged(merger, states)[image][real]
                for merger, states in zip(self.mergers[1:], layers, strict=True)
            ],
        }
