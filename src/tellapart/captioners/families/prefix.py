"""Families whose decoder reads image and prompt as the beginning of its own sequence."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache, DynamicCache

from tellapart.captioners.base import Encoded
from tellapart.captioners.blocks import decoder_of
from tellapart.captioners.cache import FixedCache, can_be_fixed
from tellapart.captioners.decoder import Beginning, Decoder
from tellapart.captioners.families.base import Family
from tellapart.captioners.fixed import FixedCachedSteps
from tellapart.captioners.linear import Linear, Rows
from tellapart.captioners.steps import Steps
from tellapart.errors import UsageError


class PrefixDecoder(Family):
    """A decoder-only model: ``[prefix | caption]``, where image states are among the embeddings of the prompt.

    ``encode`` keeps the prompt in ``Encoded.inputs`` as ``input_ids [B, P]`` with one image token for each image state,
    padded on the left, and ``attention_mask [B, P]``.
    """

    def new_cache(self) -> Cache:
        """Keys and values of prefix and caption."""
        return DynamicCache()

    def prefix(self, encoded: Encoded, cache: Cache) -> Tensor:
        """Image and prompt, once per image."""
        embeddings, mask = self.prefix_embeddings(encoded), self.prefix_mask(encoded)
        images = torch.arange(len(embeddings), device=embeddings.device)
        return self.text(embeddings, mask, self.prefix_positions(encoded), encoded, images, cache)[:, -1]

    def by_parts(self, linear: Linear) -> Decoder | None:
        """OPT and Llama's kin, Gemma among them; other language models are read through their modules."""
        return decoder_of(self.body, linear)

    def beginning(self, decoder: Decoder, encoded: Encoded, embed: Rows) -> Beginning:
        """Image and prompt."""
        mask = self.prefix_mask(encoded).bool()
        first = self.caption_positions(encoded, torch.arange(len(mask), device=mask.device), 0, 1)[..., 0]
        first = first[0] if first.dim() == 2 else first  # words have the same position on all axes
        hidden = self.placed_prefix(decoder, self.prefix_embeddings(encoded, embed), encoded)
        angles = decoder.angles(self.prefix_positions(encoded), hidden)
        own = torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool, device=mask.device)
        both = own.tril() | self.both_ways(encoded, mask.shape[1])
        if bool(mask.all()):
            return Beginning(hidden, first, both[None, None], angles=angles)
        # What pads the left sees itself: a row that sees nothing would have no number.
        seen = both & mask[:, None, None] | own.tril().triu()
        return Beginning(hidden, first, seen, mask, angles=angles)

    def placed_prefix(self, decoder: Decoder, embeddings: Tensor, encoded: Encoded) -> Tensor:
        """``[B, P, D]``: what the decoder's first layer reads, given ``prefix_embeddings``."""
        return decoder.placed(embeddings, self.prefix_positions(encoded))

    def both_ways(self, encoded: Encoded, width: int) -> Tensor:
        """``[width, width]`` bool: columns of the prefix that see later ones; here none."""
        return torch.zeros(width, width, dtype=torch.bool, device=encoded.states.device)

    def cached_steps(
        self, encoded: Encoded, cache: Cache, first: Tensor, *, count: int, longest: int, beams: bool
    ) -> Steps:
        """In memory that stays where reading is recorded, attention takes masks as they are, and layers see everything before."""
        config = self.model.config.get_text_config()
        takes_masks = config._attn_implementation == "sdpa" and can_be_fixed(cache, config)
        if not takes_masks or not self.replays(first.device):
            return super().cached_steps(encoded, cache, first, count=count, longest=longest, beams=beams)
        return FixedCachedSteps(
            self, encoded, cache, first, count=count, longest=longest, beams=beams, recorder=self.recorder
        )

    def decode_embedded(self, embeddings: Tensor, encoded: Encoded, image: Tensor, cache: Cache) -> Tensor:
        """Hidden states of caption words that follow the cached prefix."""
        real, count = self.prefix_mask(encoded)[image], embeddings.shape[1]
        if isinstance(cache, FixedCache):
            positions = self.caption_positions(encoded, image, cache.read, count)
            return self.text(embeddings, cache.seen(real), positions, encoded, image, cache)
        read = cache.get_seq_length() - self.width(encoded)
        positions = self.caption_positions(encoded, image, read, count)
        mask = self._extended(real, read + count)
        return self.text(embeddings, mask, positions, encoded, image, cache)

    def teacher_forced(self, tokens: Tensor, encoded: Encoded, image: Tensor) -> Tensor:
        """Prefix and captions at once."""
        count = tokens.shape[1] - 1
        words = self.embed(tokens[:, :-1])
        embeddings = torch.cat([self.prefix_embeddings(encoded)[image], words], dim=1)
        mask = self._extended(self.prefix_mask(encoded)[image], count)
        first = self.prefix_positions(encoded)
        positions = torch.cat([first[..., image, :], self.caption_positions(encoded, image, 0, count)], dim=-1)
        return self.text(embeddings, mask, positions, encoded, image, None)[:, self.width(encoded) - 1 :]

    @staticmethod
    def _extended(mask: Tensor, count: int) -> Tensor:
        return torch.cat([mask, mask.new_ones(len(mask), count)], dim=1)

    def before_captions(self, encoded: Encoded) -> Tensor:
        """The prompt's tokens, one for each image state among them."""
        if "input_ids" not in encoded.inputs:
            return super().before_captions(encoded)
        ids = encoded.inputs["input_ids"]
        # An image token may lie beyond the vocabulary.
        return ids.masked_fill(~self.prefix_mask(encoded).bool() | (ids >= self.vocab_size), -1)

    def width(self, encoded: Encoded) -> int:
        """Columns of the prefix, padding counted."""
        return self.prefix_mask(encoded).shape[1]

    def prefix_mask(self, encoded: Encoded) -> Tensor:
        """``[B, P]``, 1 where the prefix is real."""
        return encoded.inputs["attention_mask"]

    def prefix_positions(self, encoded: Encoded) -> Tensor:
        """``[B, P]`` positions (``[axes, B, P]`` where a model has several axes) of the prefix, from 0."""
        return (self.prefix_mask(encoded).long().cumsum(dim=1) - 1).clamp(min=0)

    def caption_positions(self, encoded: Encoded, image: Tensor, first: int | Tensor, count: int) -> Tensor:
        """``[n, count]`` (or with axes first) positions of a caption's tokens ``first`` (or ``[1]``) to ``first + count - 1``."""
        lengths = self.prefix_mask(encoded).long().sum(dim=1)[image]
        return lengths[:, None] + first + torch.arange(count, device=lengths.device)

    def prefix_embeddings(self, encoded: Encoded, embed: Rows | None = None) -> Tensor:
        """``[B, P, D]``: the prompt's embeddings with the image's states in place of the image tokens.

        Args:
            encoded: states of B images.
            embed: embeds the words; none: ``embed`` of the family.
        """
        ids = encoded.inputs["input_ids"]
        place = ids == self.image_token
        states = self.project(encoded)
        if encoded.mask is not None:
            states = states[encoded.mask]
        words = (embed or self.embed)(ids.masked_fill(place, 0))
        return words.masked_scatter(place[:, :, None], states.to(words.dtype))

    def with_prompts(
        self, encoded: Encoded, inputs: dict[str, Tensor], image: Tensor, rows: dict[str, Tensor]
    ) -> Encoded:
        """``encoded`` with a row for each prompt instead of each image.

        Args:
            encoded: of B images.
            inputs: what it was encoded from.
            image: ``[N]``, the image of each row.
            rows: ``input_ids`` and ``attention_mask``, ``[N, P]``, padded on the left.
        """
        chosen = encoded.select(image)
        return dataclasses.replace(chosen, inputs=chosen.inputs | rows)

    def prompt_rows(self, inputs: dict[str, Tensor], image: Sequence[int], prompts: Sequence[str]) -> dict[str, Tensor]:
        """Rows for ``with_prompts``: an image's own tokens, then those of a prompt; all end in the last column.

        Args:
            inputs: ``input_ids`` and ``attention_mask`` of the images, with the family's own prompt.
            image: the image of each row.
            prompts: N of them.

        Raises:
            UsageError: the family's own prompt does not end the rows of ``inputs``.
        """
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        whole = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
        usual = self.after_image(self.prompt)
        if any(row[-len(usual) :] != usual for row in whole):
            raise UsageError(
                f"the processor of this {self.model.config.model_type} writes the prompt inseparably from the "
                "image: choose another model."
            )
        after = {prompt: self.after_image(prompt) for prompt in dict.fromkeys(prompts)}
        rows = [whole[row][: -len(usual)] + after[prompt] for row, prompt in zip(image, prompts, strict=True)]
        return left_padded([torch.tensor(row, device=ids.device) for row in rows], self.pad)

    def after_image(self, prompt: str) -> list[int]:
        """The tokens that follow the image's in a row that asks ``prompt``."""
        raise NotImplementedError(f"{type(self).__name__} is not asked in words")

    @property
    @abstractmethod
    def image_token(self) -> int:
        """The id of one image state in the prompt."""

    @abstractmethod
    def project(self, encoded: Encoded) -> Tensor:
        """``[B, P', D]`` image states in the decoder's space; belongs to the text side, so it trains with it."""

    @property
    def body(self) -> Any:
        """The decoder below its head, a module of transformers; ``text`` calls it."""
        raise NotImplementedError(f"{type(self).__name__} names no body: give one, or write its text")

    def further(self, encoded: Encoded, image: Tensor, width: int, cache: Cache | None) -> dict[str, Any]:
        """What else the body is given for ``width`` columns of the rows' images; nothing here."""
        return {}

    def text(
        self, embeddings: Tensor, mask: Tensor, positions: Tensor, encoded: Encoded, image: Tensor, cache: Cache | None
    ) -> Tensor:
        """The decoder's last hidden states ``[n, t, D]``.

        Args:
            embeddings: ``[n, t, D]``, following on from ``cache`` if there is one.
            mask: ``[n, everything so far]``, 1 where the sequence is real.
            positions: ``[n, t]``, or with axes first.
            encoded: the images, for what is neither embedding nor mask.
            image: ``[n]``, the image of each row.
            cache: extended in place; none computes everything again. It is empty when the prefix is read.
        """
        return self.body(
            inputs_embeds=embeddings,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
            **self.further(encoded, image, embeddings.shape[1], cache),
        ).last_hidden_state


def left_padded(rows: Sequence[Tensor], pad: int) -> dict[str, Tensor]:
    """``input_ids`` and ``attention_mask``, ``[N, P]``, of rows of tokens, so that all end in the last column."""
    # The mask is made of ones, not compared with padding: the padding token may occur in a prompt.
    real = [torch.ones_like(row) for row in rows]
    return {
        "input_ids": pad_sequence(list(rows), batch_first=True, padding_value=pad, padding_side="left"),
        "attention_mask": pad_sequence(real, batch_first=True, padding_side="left"),
    }
