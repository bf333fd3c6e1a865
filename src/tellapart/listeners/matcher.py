"""Matching heads: models trained to tell, from image and text together, whether the text is of the image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.listeners.loading import backbone, called, complete, existing, first_line, model_digest, vocabulary_of
from tellapart.listeners.matching import MATCHING_FAMILIES
from tellapart.listeners.pairs import PairMatcher, Precision

if TYPE_CHECKING:
    from PIL import Image

MATCH = 1
"""Which of the two logits stands for "the text is of the image", in BLIP and BLIP-2."""


class ItmMatcher(PairMatcher):
    """A frozen image-text matching head: BLIP (Li et al. 2022, section 3.2) or BLIP-2 (Li et al. 2023, section 3.1).

    Values equal the model's own forward. Texts are read as they are, without a prompt. As a reward it is the positive logit
    before the softmax, unbounded: of published models typically between -5 and 5.
    """

    def __init__(
        self,
        model: Any,
        image_processor: Any,
        tokenizer: Any,
        *,
        name: str = "matcher",
        batch_size: int = 32,
        autocast: Precision = "float32",
    ) -> None:
        """See :meth:`from_pretrained`."""
        kind = model.config.model_type
        if kind not in MATCHING_FAMILIES:
            known = ", ".join(MATCHING_FAMILIES)
            raise UsageError(f"a matcher of type {kind!r} is not supported: use a model of type {known}.")
        super().__init__(model, name=name, batch_size=batch_size, autocast=autocast)
        self.image_processor, self.tokenizer = image_processor, tokenizer
        self._family = MATCHING_FAMILIES[kind][1]
        self._limit = self._family.positions(self.model)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        name: str = "matcher",
        batch_size: int = 32,
        dtype: Precision = "float32",
        autocast: Precision = "float32",
    ) -> ItmMatcher:
        """A matcher from a folder or a Hugging Face id, such as ``Salesforce/blip-itm-base-coco``.

        Args:
            path: the folder or id.
            name: key of its tensors in ``batch.inputs``.
            batch_size: most images, and most texts, read at once; it changes no value.
            dtype: of the weights.
            autocast: precision of matrix products, for weights in float32.

        Raises:
            UsageError: it does not exist, lacks a part, or is another kind of model.
        """
        import transformers

        source = existing(path, "matcher")
        try:
            kind = transformers.AutoConfig.from_pretrained(source).model_type
            if kind not in MATCHING_FAMILIES:
                known = ", ".join(target for target, _ in MATCHING_FAMILIES.values())
                raise UsageError(f"{path} is a {kind!r} model: a matcher must be one of {known}.")
            model = complete(getattr(transformers, MATCHING_FAMILIES[kind][0]), source, dtype)
            processor = transformers.AutoImageProcessor.from_pretrained(source, backend="pil")
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(
                f"the matcher {path} cannot be loaded ({first_line(error)}): check the folder or the id."
            ) from error
        matcher = cls(model, processor, tokenizer, name=name, batch_size=batch_size, autocast=autocast)
        matcher.source = called(path)
        return matcher

    def describe(self) -> dict[str, Any]:
        """Model, backbone, 12 digits of a hash of its weights, preprocessing and vocabulary, and precision."""
        configs = [self.model.config.to_dict(), self.image_processor.to_dict(), vocabulary_of(self.tokenizer)]
        dtype = str(next(self.model.vision_model.parameters()).dtype).removeprefix("torch.")
        weights = model_digest(self.model, *configs)[:12]
        described = {"model": self.source, "backbone": backbone(self.model.config), "weights": weights}
        return described | {"dtype": dtype, "autocast": self.autocast}

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Of each text whether the model cannot take all of it."""
        return [len(ids) > self._limit for ids in self._all_ids(texts)]

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """RGB images -> ``{"pixel_values": [B, 3, height, width]}``, on the CPU."""
        return {"pixel_values": self.image_processor(images=images, return_tensors="pt")["pixel_values"]}

    def score(self, logits: Tensor) -> Tensor:
        """The positive logit, before the softmax."""
        return logits[:, MATCH]

    def _pairs(self, inputs: dict[str, Tensor], image: list[int], texts: list[str]) -> Tensor:
        """Texts go through the head in batches of their length, whichever image they are of."""
        tower = next(self.model.vision_model.parameters())
        ids, of = self._ids(texts), torch.tensor(image, dtype=torch.long)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        logits = torch.zeros(len(ids), 2)
        states = self._family.image_states(self.model, inputs["pixel_values"].to(tower.device, tower.dtype))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            tokens, mask = self._pad([ids[i] for i in rows])
            logits[rows] = (
                self._family.logits(self.model, states[of[rows].to(states.device)], tokens, mask).float().cpu()
            )
        return logits

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids, at most as many as the model has positions, with the same last one."""
        rows = self._all_ids(texts)
        return [row if len(row) <= self._limit else [*row[: self._limit - 1], row[-1]] for row in rows]

    def _all_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"] if texts else []

    def _pad(self, ids: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """``[n, T]`` ids padded on the right, and their attention mask."""
        width = max(map(len, ids))
        tokens = torch.tensor([row + [self.tokenizer.pad_token_id] * (width - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
        return tokens.to(self.device), mask.to(self.device)
