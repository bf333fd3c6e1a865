"""PaliGemmaForConditionalGeneration, 1 and 2: a SigLIP tower, one linear layer, and a Gemma."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.prompted import Prompted

if TYPE_CHECKING:
    from PIL import Image


class PaliGemma(Prompted):
    """``PaliGemmaForConditionalGeneration``: image and prompt are read in both directions, the caption from left to right.

    Positions begin at 1. The processor writes BOS between image and prompt and a line break after the prompt.
    """

    joint_processor = "PaliGemmaProcessor"
    lora_targets = r".*language_model\..*\.(q_proj|k_proj|v_proj|o_proj)"
    default_prompt = "caption en"
    several_images = False  # the published checkpoints answer short commands about one image

    @classmethod
    def never_used(cls, config: Any) -> str:
        """The tower's pooling, where it has one."""
        return r"model\.vision_tower\.(.*\.)?head\."

    def lead(self, prompt: str) -> str:
        """Nothing: the caption begins a line."""
        return ""

    def after_image(self, prompt: str) -> list[int]:
        """BOS, the prompt and a line break, as the processor writes them behind the image."""
        place, bos = self.processors.joint.image_token, self.tokenizer.bos_token
        return self.tokens_after(place, f"{bos}{self.asking(prompt).rendered().partition(place)[2]}\n")

    @property
    def vision(self) -> nn.Module:
        """The image tower, without the projector."""
        return self.model.model.vision_tower

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The tower's last hidden state."""
        return self.seen(inputs, self.vision(inputs["pixel_values"]).last_hidden_state)

    def project(self, encoded: Encoded) -> Tensor:
        """The projector."""
        return self.model.model.multi_modal_projector(encoded.states)

    def prefix_positions(self, encoded: Encoded) -> Tensor:
        """From 1."""
        return super().prefix_positions(encoded) + 1

    def caption_positions(self, encoded: Encoded, image: Tensor, first: int | Tensor, count: int) -> Tensor:
        """On from the prefix."""
        return super().caption_positions(encoded, image, first, count) + 1

    def text(
        self, embeddings: Tensor, mask: Tensor, positions: Tensor, encoded: Encoded, image: Tensor, cache: Cache | None
    ) -> Tensor:
        """What leaves Gemma's last norm."""
        gemma = self.body
        options: dict[str, Any] = {
            "config": gemma.config,
            "inputs_embeds": embeddings,
            "attention_mask": mask,
            "past_key_values": cache,
        }
        if cache is None or cache.get_seq_length() == 0:
            columns = torch.arange(embeddings.shape[1], device=embeddings.device)
            # Columns of one block, 0, see each other; a caption's, -1, see what precedes them.
            block = torch.where(columns < self.width(encoded), 0, -1)
            options["block_sequence_ids"] = block.expand(len(embeddings), -1)
        masks = create_causal_mask(**options)
        if getattr(gemma.config, "sliding_window", None) is not None:
            masks = {"full_attention": masks, "sliding_attention": create_sliding_window_causal_mask(**options)}
        return gemma(
            inputs_embeds=embeddings,
            attention_mask=masks,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state

    def both_ways(self, encoded: Encoded, width: int) -> Tensor:
        """Image and prompt see each other."""
        return torch.ones(width, width, dtype=torch.bool, device=encoded.states.device)

    @property
    def body(self) -> Any:
        """Gemma, or Gemma 2, which is read through its modules."""
        return self.model.model.language_model

    @property
    def softcap(self) -> float | None:
        """That of Gemma 2."""
        return getattr(self.model.config.get_text_config(), "final_logit_softcapping", None)

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """Without the labels and token types that the processor adds for its own way of training."""
        inputs = super().process(images)
        return {name: inputs[name] for name in ("pixel_values", "input_ids", "attention_mask")}
