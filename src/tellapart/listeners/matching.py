"""How each family of matchers is run: its own forward pass in two halves, so that an image's tower runs once."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from tellapart.types import Rollout


class Matcher(Protocol):
    """A frozen model that looks at an image and a text and scores whether the text is of the image. What the score's scale
    is, the matcher says; it is not an ``nn.Module``, so that an objective neither trains nor saves it."""

    name: str

    def process(self, images: list[Any]) -> dict[str, Tensor]:
        """RGB images -> tensors for ``batch.inputs[name]``, one row per image; safe to call in a worker process."""
        ...

    def know_images(self, dataset: Any) -> None:
        """Let images be found by id where a batch has no tensors of them; of examples with ``id`` and ``image``."""
        ...

    def match(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, no gradient, higher is better: each caption with its image."""
        ...

    def describe(self) -> dict[str, Any]:
        """Model, hash of the weights, scale, precision: what a score belongs to."""
        ...


class MatchingFamily(Protocol):
    """The two halves of a model's own forward pass."""

    def image_states(self, model: Any, pixel_values: Tensor) -> Tensor:
        """``[B, L, D]`` of images ``[B, 3, height, width]``: once per image, whatever the texts."""
        ...

    def logits(self, model: Any, states: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """``[N, 2]`` of N texts, each with the states ``[N, L, D]`` of its image."""
        ...

    def positions(self, model: Any) -> int:
        """The longest text in tokens."""
        ...


class BlipMatching:
    """``BlipForImageTextRetrieval``: the head on the first token of a text encoder that attends to the image."""

    def image_states(self, model: Any, pixel_values: Tensor) -> Tensor:
        """The vision tower's last hidden state."""
        return model.vision_model(pixel_values=pixel_values).last_hidden_state

    def logits(self, model: Any, states: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """As the model's forward with ``use_itm_head``; the first token stays [CLS], as there."""
        encoded = model.text_encoder(
            input_ids=input_ids, attention_mask=attention_mask, encoder_hidden_states=states
        ).last_hidden_state
        return model.itm_head(encoded[:, 0])

    def positions(self, model: Any) -> int:
        """Of the text encoder."""
        return model.config.text_config.max_position_embeddings


class Blip2Matching:
    """``Blip2ForImageTextRetrieval``: the head on every query of the Q-Former, logits averaged over the queries."""

    def image_states(self, model: Any, pixel_values: Tensor) -> Tensor:
        """The vision tower's last hidden state."""
        return model.vision_model(pixel_values=pixel_values).last_hidden_state

    def logits(self, model: Any, states: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """As the model's forward with ``use_image_text_matching_head``."""
        queries = model.query_tokens.expand(len(input_ids), -1, -1)
        seen = attention_mask.new_ones(queries.shape[:2])
        encoded = model.qformer(
            query_embeds=model.embeddings(input_ids=input_ids, query_embeds=queries),
            query_length=queries.shape[1],
            attention_mask=torch.cat([seen, attention_mask], dim=1),
            encoder_hidden_states=states,
        ).last_hidden_state[:, : queries.shape[1]]
        return model.itm_head(encoded.to(model.itm_head.weight.dtype)).mean(dim=1)

    def positions(self, model: Any) -> int:
        """Of the Q-Former's text embeddings."""
        return model.config.qformer_config.max_position_embeddings


MATCHING_FAMILIES: dict[str, tuple[str, MatchingFamily]] = {
    "blip": ("BlipForImageTextRetrieval", BlipMatching()),
    "blip-2": ("Blip2ForImageTextRetrieval", Blip2Matching()),
}
"""``config.model_type`` -> class in transformers, and how it is run."""
