"""GitForCausalLM: a CLIP image tower in front of a BERT-like decoder's own sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationConfig
from transformers.masking_utils import create_causal_mask

from tellapart.captioners.base import Encoded
from tellapart.captioners.blocks import Bert
from tellapart.captioners.decoder import Decoder
from tellapart.captioners.families.base import ASKED, Processors, first_given
from tellapart.captioners.families.prefix import PrefixDecoder
from tellapart.captioners.linear import Linear, Rows
from tellapart.errors import UsageError


class Git(PrefixDecoder):
    """``GitForCausalLM`` for single images: ``[image | [CLS] prompt | caption [SEP]]``.

    Image states see each other in both directions and carry no position of the text; words count from 0 after them.
    The model's own ``forward`` takes pixels only, so its parts are called here in its order: then an image's states
    serve all its captions.
    """

    lora_targets = r"git\.encoder\..*\.(query|value)"
    image_token = -1  # none: images come before the words, not among them

    def __init__(self, model: Any, processors: Processors, prompt: str | None = None) -> None:
        if frames := model.config.num_image_with_embedding:
            raise UsageError(
                f"this GIT model reads {frames} frames of a video (num_image_with_embedding in its config.json): "
                "give one that was trained on single images."
            )
        super().__init__(model, processors, prompt)

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """[CLS] and the prompt, [SEP] and [PAD]: BOS, EOS and padding of the configuration."""
        config, tokenizer = self.model.config, self.tokenizer
        start = first_given("bos", [config.bos_token_id, tokenizer.cls_token_id])
        eos = first_given("eos", [config.eos_token_id, tokenizer.sep_token_id])
        pad = first_given("pad", [config.pad_token_id, tokenizer.pad_token_id])
        return [start, *self.prompt_ids()], [eos] if isinstance(eos, int) else list(eos), pad

    def neutralise(self) -> None:
        """Keep the token ids, drop the rest."""
        eos = self.eos[0] if len(self.eos) == 1 else self.eos
        self.model.generation_config = GenerationConfig(
            bos_token_id=self.start[0], eos_token_id=eos, pad_token_id=self.pad
        )

    @property
    def vision(self) -> nn.Module:
        """The CLIP image tower."""
        return self.model.git.image_encoder

    @property
    def resizable(self) -> Any:
        """The whole model."""
        return self.model

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The tower's last hidden state."""
        return Encoded(self.model.git.image_encoder(pixel_values=inputs["pixel_values"]).last_hidden_state)

    def project(self, encoded: Encoded) -> Tensor:
        """The visual projection."""
        return self.model.git.visual_projection(encoded.states)

    def prefix_mask(self, encoded: Encoded) -> Tensor:
        """Image and start tokens, all of them real."""
        size, images = encoded.states.shape[:2]
        columns = images + len(self.start) + self._asked(encoded)
        return torch.ones((size, columns), dtype=torch.bool, device=encoded.states.device)

    @staticmethod
    def _asked(encoded: Encoded) -> int:
        """Tokens that captions are asked by, after the start tokens."""
        return encoded.inputs[ASKED].shape[1] if ASKED in encoded.inputs else 0

    def prefix_positions(self, encoded: Encoded) -> Tensor:
        """From 0 at [CLS]; those of the image are not looked at."""
        size, images = encoded.states.shape[:2]
        columns = torch.arange(-images, len(self.start) + self._asked(encoded), device=encoded.states.device)
        return columns.clamp(min=0).expand(size, -1)

    def caption_positions(self, encoded: Encoded, image: Tensor, first: int | Tensor, count: int) -> Tensor:
        """Following on from the start tokens."""
        before = len(self.start) + self._asked(encoded) + first
        return (before + torch.arange(count, device=image.device)).expand(len(image), -1)

    def prefix_embeddings(self, encoded: Encoded, embed: Rows | None = None) -> Tensor:
        """The projected image, then the start tokens' word embeddings."""
        states = self.project(encoded)
        start = torch.tensor(self.start, device=states.device).expand(len(states), -1)
        if ASKED in encoded.inputs:
            start = torch.cat([start, encoded.inputs[ASKED]], dim=1)
        words = (embed or self.embed)(start)
        return torch.cat([states.to(words.dtype), words], dim=1)

    @property
    def embedding(self) -> nn.Module:
        """Word embeddings; ``text`` adds positions, to words only."""
        return self.model.git.embeddings.word_embeddings

    def text(
        self, embeddings: Tensor, mask: Tensor, positions: Tensor, encoded: Encoded, image: Tensor, cache: Cache | None
    ) -> Tensor:
        """The decoder's last layer."""
        git, before = self.model.git, 0 if cache is None else cache.get_seq_length()
        images = max(encoded.states.shape[1] - before, 0)  # columns of the image that are yet to be read
        # The model adds positions in place: its input must not be used elsewhere.
        words = git.embeddings(inputs_embeds=embeddings[:, images:].clone(), position_ids=positions[:, images:])
        states = torch.cat([embeddings[:, :images].to(words.dtype), words], dim=1)
        # One block sees itself in both directions: the image (0); words (-1) look back only.
        blocks = torch.full(states.shape[:2], -1, device=states.device)
        blocks[:, :images] = 0
        seen = create_causal_mask(git.config, states, mask, cache, block_sequence_ids=blocks)
        return git.encoder(states, seen, cache, use_cache=cache is not None).last_hidden_state

    def by_parts(self, linear: Linear) -> Decoder:
        """The text decoder."""
        return Bert(self.model.git, linear)

    def placed_prefix(self, decoder: Decoder, embeddings: Tensor, encoded: Encoded) -> Tensor:
        """Words have positions, image states have none."""
        images = encoded.states.shape[1]
        words = decoder.placed(embeddings[:, images:], self.prefix_positions(encoded)[:, images:])
        return torch.cat([embeddings[:, :images].to(words.dtype), words], dim=1)

    def both_ways(self, encoded: Encoded, width: int) -> Tensor:
        """Image states see each other."""
        image = torch.arange(width, device=encoded.states.device) < encoded.states.shape[1]
        return image & image[:, None]

    @property
    def head(self) -> Any:
        """The output embedding."""
        return self.model.output
