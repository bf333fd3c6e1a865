"""Recurrent captioners over image features: what is remembered of a caption is the LSTM's state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.base import Family
from tellapart.captioners.lstm import State
from tellapart.errors import UsageError, quoted

if TYPE_CHECKING:
    from PIL import Image


@dataclass
class LstmCache:
    """The state of n captions, and what their images keep.

    Args:
        state: h and c, ``[n, D]`` each, as the model keeps them; none before the start.
        kept: what each step reads of the B images; shared by their captions, so never selected.
    """

    state: State | None = None
    kept: tuple[Tensor, ...] = ()

    def select(self, index: Tensor) -> LstmCache:
        """The captions at ``index``, in that order, repeats allowed."""
        assert self.state is not None, "only a cache that was begun has rows"
        hidden, cell = self.state
        return replace(self, state=(hidden[index], cell[index]))


class FcLstmFamily(Family):
    """``FcLstm``; features of several regions are averaged."""

    reads_features = True
    recurrent = True

    @property
    def lora_targets(self) -> str:  # type: ignore[override]
        """An LSTM has no projections that adapters are made for.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"a {self.model.config.model_type} captioner is small and trains in full: leave lora out.")

    @property
    def feature_size(self) -> int:
        """The width the model was made for."""
        return self.model.config.feature_size

    @property
    def never_drawn(self) -> list[int]:
        """Rare words, which would be a gap in a caption, and what no caption holds: BOS and padding."""
        config = self.model.config
        # A vocabulary may use one token as several of these; without an EOS no caption would end.
        return [i for i in (config.unk_token_id, config.bos_token_id, config.pad_token_id) if i not in self.eos]

    @property
    def input_dtype(self) -> torch.dtype:
        """The model's own: there is no tower."""
        return self.model.dtype

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """From the configuration.

        Raises:
            UsageError: there is a prompt, which this family does not read.
        """
        config = self.model.config
        if self.prompt:
            raise UsageError(
                f"a {config.model_type} captioner cannot be asked {quoted(self.prompt)}, as it reads an image only: leave prompt "
                "and context out, or choose another captioner."
            )
        return [config.bos_token_id], [config.eos_token_id], config.pad_token_id

    def neutralise(self) -> None:
        """There are no decoding defaults."""

    @property
    def vision(self) -> nn.Module:
        """Nothing: the features come from outside."""
        return nn.ModuleList()

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """Pictures cannot be read.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"the {self.model.config.model_type} captioner reads features, not pictures: make them with tellapart features, "
            "and name their folder (data.features in recipes, --features elsewhere)."
        )

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """``[B, 1, D]``: the features, or the mean of those of an image's regions."""
        features, mask = inputs["features"], inputs.get("mask")
        if features.dim() == 2:
            return Encoded(features[:, None])
        if mask is None:
            return Encoded(features.mean(dim=1, keepdim=True))
        shares = mask[:, :, None].to(features.dtype)
        return Encoded((features * shares).sum(dim=1, keepdim=True) / shares.sum(dim=1, keepdim=True))

    def new_cache(self) -> LstmCache:
        """An empty state."""
        return LstmCache()

    def prefix(self, encoded: Encoded, cache: LstmCache) -> Tensor:
        """BOS, once per image."""
        with torch.autocast(encoded.states.device.type, enabled=False):
            cache.state, cache.kept = self.model.start(encoded.states), self.model.keep(encoded.states, encoded.mask)
        images = torch.arange(len(encoded.states), device=encoded.states.device)
        return self.decode(torch.full_like(images, self.start[0])[:, None], encoded, images, cache)[:, -1]

    @property
    def embedding(self) -> nn.Module:
        """The word embeddings."""
        return self.model.embedding

    def decode_embedded(self, embeddings: Tensor, encoded: Encoded, image: Tensor, cache: LstmCache) -> Tensor:
        """The states after the words; in full precision, since errors of a state add up over words."""
        assert cache.state is not None, "prefix begins the cache"
        kept = tuple(part[image] for part in cache.kept)
        mask = None if encoded.mask is None else encoded.mask[image]
        with torch.autocast(embeddings.device.type, enabled=False):
            states, cache.state = self.model.run(embeddings, cache.state, kept, mask)
        return states

    def teacher_forced(self, tokens: Tensor, encoded: Encoded, image: Tensor) -> Tensor:
        """BOS and captions at once."""
        seen, rows = encoded.select(image), torch.arange(len(tokens), device=tokens.device)
        with torch.autocast(tokens.device.type, enabled=False):
            cache = LstmCache(self.model.start(seen.states), self.model.keep(seen.states, seen.mask))
        words = torch.cat([torch.full_like(tokens[:, :1], self.start[0]), tokens[:, :-1]], dim=1)
        return self.decode(words, seen, rows, cache)

    @property
    def head(self) -> Any:
        """The output layer."""
        return self.model.head


class AttentiveLstmFamily(FcLstmFamily):
    """``Att2in2`` and ``UpDown``."""

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The features of the regions, and which are real.

        Raises:
            UsageError: there is one vector per image.
        """
        if inputs["features"].dim() == 2:
            raise UsageError(
                f"{self.model.config.model_type} captioners attend to regions, but the features are one vector per image: give "
                "features of regions, or of a grid (tellapart features --pool grid)."
            )
        return Encoded(inputs["features"], inputs.get("mask"))
