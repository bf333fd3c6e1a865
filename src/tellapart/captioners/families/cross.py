"""Families whose decoder reads the image through cross-attention."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache

from tellapart.captioners.base import Encoded
from tellapart.captioners.decoder import Beginning, Decoder
from tellapart.captioners.families.base import Family
from tellapart.captioners.linear import Rows


class CrossDecoder(Family):
    """A decoder that reads the image through cross-attention and starts from one or more start tokens."""

    def new_cache(self) -> Cache:
        """Self-attention keys and values, and those of the image, which never grow."""
        return EncoderDecoderCache(DynamicCache(), DynamicCache())

    def prefix(self, encoded: Encoded, cache: Cache) -> Tensor:
        """The start tokens, once per image: their keys and values and the image's are shared by all its captions."""
        start = self.before_captions(encoded)
        seen = self.project(encoded)
        return self.text(self.embed(start), seen.states, seen.mask, cache)[:, -1]

    def beginning(self, decoder: Decoder, encoded: Encoded, embed: Rows) -> Beginning:
        """The start tokens."""
        start, seen = self.before_captions(encoded), self.project(encoded)
        places = torch.arange(start.shape[1], device=start.device)
        hidden = decoder.placed(embed(start), places)
        return Beginning(hidden, start.shape[1], states=seen.states, mask=seen.mask)

    def decode_embedded(self, embeddings: Tensor, encoded: Encoded, image: Tensor, cache: Cache) -> Tensor:
        """Hidden states from the text decoder, attending to each row's image."""
        mask = self.cross_mask(encoded)
        # The image's keys and values are cached: the states are only looked at for their shape.
        states = encoded.states[:1, :1].expand(len(embeddings), self.cross_length(encoded), -1)
        return self.text(embeddings, states, None if mask is None else mask[image], cache)

    def teacher_forced(self, tokens: Tensor, encoded: Encoded, image: Tensor) -> Tensor:
        """Start tokens and captions at once."""
        seen = self.project(encoded).select(image)
        start = self.before_captions(encoded)[image]
        words = torch.cat([start, tokens[:, :-1]], dim=1)
        return self.text(self.embed(words), seen.states, seen.mask, None)[:, start.shape[1] - 1 :]

    def project(self, encoded: Encoded) -> Encoded:
        """Image states as the cross-attention takes them, and their mask; belongs to the text side, so trains with it."""
        return encoded

    def cross_mask(self, encoded: Encoded) -> Tensor | None:
        """The mask that ``project`` gives, without computing the states."""
        return encoded.mask

    def cross_length(self, encoded: Encoded) -> int:
        """How many states ``project`` gives an image."""
        return encoded.states.shape[1]

    @abstractmethod
    def text(self, embeddings: Tensor, states: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        """The text decoder's last hidden states ``[n, t, D]``.

        Args:
            embeddings: ``[n, t, D']``, following on from ``cache`` if there is one; left as they are.
            states: ``[n, P, D']`` projected image states; arbitrary once their keys and values are in ``cache``.
            mask: ``[n, P]``, or none when every state is real.
            cache: extended in place; none computes everything again.
        """
