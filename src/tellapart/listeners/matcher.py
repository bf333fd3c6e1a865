"""Matchers: models that read an image and a text together and tell whether the text is of the image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.listeners.cache import NamedPicture, Picture
from tellapart.listeners.loading import backbone, called, complete, existing, first_line, model_digest, vocabulary_of
from tellapart.listeners.matching import MATCHING_FAMILIES
from tellapart.progress import bar
from tellapart.types import Rollout

if TYPE_CHECKING:
    from PIL import Image

MATCH = 1
"""Which of the two logits stands for "the text is of the image", in BLIP and BLIP-2."""


class ItmMatcher:
    """A frozen image-text matching head: BLIP (Li et al. 2022, section 3.2) or BLIP-2 (Li et al. 2023, section 3.1).

    It is no ``nn.Module``, as no listener is. The image tower runs once an image, the text side once a caption; values
    equal the model's own forward. Texts are read as they are, without a prompt.

    Attributes:
        model: the model.
        name: key of its tensors in ``batch.inputs``.
        batch_size: most images, and most texts, read at once.
        source: what the model was loaded from, as results call it.
    """

    def __init__(
        self,
        model: Any,
        image_processor: Any,
        tokenizer: Any,
        *,
        name: str = "matcher",
        batch_size: int = 32,
        autocast: Literal["float32", "bfloat16", "float16"] = "float32",
    ) -> None:
        """See :meth:`from_pretrained`."""
        self.model: Any = model.eval()
        kind = self.model.config.model_type
        if kind not in MATCHING_FAMILIES:
            known = ", ".join(MATCHING_FAMILIES)
            raise UsageError(f"a matcher of type {kind!r} is not supported: use a model of type {known}.")
        self.image_processor, self.tokenizer = image_processor, tokenizer
        self.name, self.batch_size, self.autocast, self.source = name, batch_size, autocast, kind
        self._family = MATCHING_FAMILIES[kind][1]
        self._limit = self._family.positions(self.model)
        self._pictures: dict[str, Picture] = {}

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        name: str = "matcher",
        batch_size: int = 32,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        autocast: Literal["float32", "bfloat16", "float16"] = "float32",
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

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def to(self, device: torch.device | str) -> ItmMatcher:
        """Move the model; returns the matcher."""
        self.model.to(device)
        return self

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

    def know_images(self, dataset: Iterable[NamedPicture]) -> None:
        """Let images be named by id; they are opened when they are asked for."""
        self._pictures.update((example.id, example.image) for example in dataset)

    def match(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32: the positive logit before the softmax, of each caption with its image, without gradient.

        Images come from ``batch.inputs[name]`` if present, else from what :meth:`know_images` was told.

        Raises:
            UsageError: there is neither.
        """
        of_image: dict[int, list[int]] = {}
        for caption, row in enumerate(rollout.image.tolist()):
            of_image.setdefault(row, []).append(caption)
        rows, texts = list(of_image), [[rollout.texts[i] for i in own] for own in of_image.values()]
        given = rollout.batch.inputs.get(self.name)
        if given is None:
            found = self.match_ids([rollout.batch.ids[row] for row in rows], texts)
        else:
            found = []
            for start in range(0, len(rows), self.batch_size):
                some = slice(start, start + self.batch_size)
                found += self._match(given["pixel_values"][rows[some]], texts[some])
        scores = torch.empty(len(rollout))
        for own, logits in zip(of_image.values(), found, strict=True):
            scores[own] = logits[:, MATCH]
        return scores.to(rollout.image.device)

    def match_ids(self, ids: Sequence[str], texts: Sequence[Sequence[str]]) -> list[Tensor]:
        """For each image of ``ids`` the logits ``[n, 2]`` (no match, match) of its n texts, float32 on the CPU.

        Raises:
            UsageError: an image was not told to :meth:`know_images`, or cannot be read.
        """
        unknown = next((name for name in ids if name not in self._pictures), None)
        if unknown is not None:
            raise UsageError(
                f"the matcher {self.name!r} does not know image {unknown!r}: tell it the images of the data set first, or "
                "put its tensors into the batch."
            )
        found: list[Tensor] = []
        with bar(f"{self.name}: matching", len(ids)) as running, ThreadPoolExecutor() as pool:
            for start in range(0, len(ids), self.batch_size):
                some = slice(start, start + self.batch_size)
                images = list(pool.map(lambda name: self._pictures[name].open(), ids[some]))
                found += self._match(self.process(images)["pixel_values"], texts[some])
                running.advance(len(images))
        return found

    @torch.no_grad()
    def _match(self, pixel_values: Tensor, texts: Sequence[Sequence[str]]) -> list[Tensor]:
        """One ``[n, 2]`` an image; texts go through the head in batches of their length, whichever image they are of."""
        tower = next(self.model.vision_model.parameters())
        image = torch.tensor([row for row, own in enumerate(texts) for _ in own], dtype=torch.long)
        ids = self._ids([text for own in texts for text in own])
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        logits = torch.zeros(len(ids), 2)
        # A caller's autocast must not decide between captions that are nearly as good: precision is the matcher's own.
        precision = getattr(torch, self.autocast)
        lower = precision != torch.float32
        with torch.autocast(tower.device.type, precision if lower else None, enabled=lower):
            states = self._family.image_states(self.model, pixel_values.to(tower.device, tower.dtype))
            for start in range(0, len(order), self.batch_size):
                rows = order[start : start + self.batch_size]
                tokens, mask = self._pad([ids[i] for i in rows])
                found = self._family.logits(self.model, states[image[rows].to(states.device)], tokens, mask)
                logits[rows] = found.float().cpu()
        return list(logits.split([len(own) for own in texts]))

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
