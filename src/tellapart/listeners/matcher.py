"""Matching heads: models trained to tell, from image and text together, whether the text is of the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from tellapart.errors import UsageError, reason_of
from tellapart.files import existing
from tellapart.listeners.loading import backbone, called, complete, model_digest, vocabulary_of
from tellapart.listeners.matching import MATCHING_FAMILIES
from tellapart.listeners.pairs import Precision
from tellapart.listeners.tokenized import TokenizedMatcher
from tellapart.processors import read_image_processor, read_tokenizer

MATCH = 1
"""Which of the two logits means "the text is of the image", in BLIP and BLIP-2."""


class ItmMatcher(TokenizedMatcher):
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
        """See ``from_pretrained``."""
        kind = model.config.model_type
        if kind not in MATCHING_FAMILIES:
            known = ", ".join(MATCHING_FAMILIES)
            raise UsageError(f"a matcher of type {kind!r} is not supported: use a model of type {known}.")
        family = MATCHING_FAMILIES[kind][1]
        sizes: dict[str, Any] = {"limit": family.positions(model), "batch_size": batch_size}
        super().__init__(model, image_processor, tokenizer, name=name, autocast=autocast, **sizes)
        self._family = family

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
            processor = read_image_processor(source)
            tokenizer = read_tokenizer(source)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(
                f"the matcher {path} cannot be loaded ({reason_of(error)}): check the folder or the id."
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

    def score(self, logits: Tensor) -> Tensor:
        """The positive logit, before the softmax."""
        return logits[:, MATCH]

    def _pairs(self, inputs: dict[str, Tensor], image: list[int], texts: list[str]) -> Tensor:
        """Texts go through the head in batches of their length, whichever image they are of."""
        tower = next(self.model.vision_model.parameters())
        ids, of = self.ids(texts), torch.tensor(image, dtype=torch.long)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        logits = torch.zeros(len(ids), 2)
        states = self._family.image_states(self.model, inputs["pixel_values"].to(tower.device, tower.dtype))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            tokens, mask = self.pad([ids[i] for i in rows])
            logits[rows] = (
                self._family.logits(self.model, states[of[rows].to(states.device)], tokens, mask).float().cpu()
            )
        return logits
