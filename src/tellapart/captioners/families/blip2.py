"""Blip2ForConditionalGeneration: a ViT, a Q-Former that reads it with learned queries, and a language model."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationConfig

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.base import Family, Processors, as_list, first_given
from tellapart.captioners.families.cross import CrossDecoder
from tellapart.captioners.families.prefix import PrefixDecoder


def blip2(config: Any) -> type[Family]:
    """The family of a configuration: with a decoder (OPT) or with an encoder and a decoder (T5)."""
    return Blip2Decoder if config.use_decoder_only_language_model else Blip2EncoderDecoder


class _Blip2(Family):
    """What both kinds share: the image tower is the ViT; queries, Q-Former and projection train with the text side."""

    joint_processor = "Blip2Processor"
    parts = MappingProxyType(
        {"query_tokens": "query_tokens", "qformer": r"qformer\..*", "projection": r"language_projection\..*"}
    )
    vision_lora_targets = r"vision_model\..*\.self_attn\.(qkv|projection)"

    @property
    def vision(self) -> nn.Module:
        """The vision model, without the Q-Former."""
        return self.model.vision_model

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The vision model's last hidden state."""
        return Encoded(self.model.vision_model(pixel_values=inputs["pixel_values"]).last_hidden_state)

    def queried(self, encoded: Encoded) -> Tensor:
        """``[B, queries, D]``: what the queries read in the image, in the language model's space."""
        states, queries = encoded.states, self.model.query_tokens
        read = self.model.qformer(
            query_embeds=queries.expand(len(states), -1, -1), encoder_hidden_states=states.to(queries.dtype)
        ).last_hidden_state
        # Published weights keep the Q-Former in float32 whatever the rest is held in.
        return self.model.language_projection(read.to(self.model.language_projection.weight.dtype))

    def __init__(self, model: Any, processors: Processors, prompt: str | None = None) -> None:
        super().__init__(model, processors, prompt)
        # As the published processor writes it: OPT's begins with BOS, T5's ends with EOS.
        self.words: list[int] = self.tokenizer(self.prompt)["input_ids"]

    def neutralise(self) -> None:
        """Keep the token ids, drop the rest."""
        eos = self.eos[0] if len(self.eos) == 1 else self.eos
        ids = {"eos_token_id": eos, "pad_token_id": self.pad}
        if self.start:
            ids["decoder_start_token_id"] = self.start[0]
        for part in (self.model, self.model.language_model):
            part.generation_config = GenerationConfig(**ids)


class Blip2Decoder(_Blip2, PrefixDecoder):
    """BLIP-2 with a decoder-only language model: ``[queries, BOS, prompt | caption]``.

    Published OPT weights end a caption with a line break, which is the ``eos_token_id`` of their text configuration.
    """

    lora_targets = r"language_model\..*\.(q_proj|v_proj)"
    asks_in_words = True

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """EOS and PAD of the text configuration; captions follow the prompt directly."""
        self.prompt_ids()
        text = self.model.config.text_config
        eos = as_list(first_given("eos", [text.eos_token_id, self.tokenizer.eos_token_id]))
        return [], eos, first_given("pad", [text.pad_token_id, self.tokenizer.pad_token_id, eos[0]])

    @property
    def image_token(self) -> int:
        """The token of one query; checkpoints from before it was written down have it in their tokenizer."""
        known = self.tokenizer.get_vocab().get("<image>")
        return first_given("image", [self.model.config.image_token_index, known])

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The vision model's last hidden state, and the same prompt for every image."""
        states = super().encode(inputs).states
        words = [self.image_token] * self.model.config.num_query_tokens + self.words
        ids = torch.tensor(words, device=states.device).expand(len(states), -1)
        return Encoded(states, inputs={"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    @property
    def shortest_prefix(self) -> int:
        """The queries, BOS and the prompt."""
        return self.model.config.num_query_tokens + len(self.words)

    def longest_after(self, encoded: Encoded) -> int | None:
        """After the longest prompt: OPT has a table of positions, beyond which it cannot be read."""
        return self.left(int(self.prefix_mask(encoded).sum(dim=1).max()))

    def caption_positions(self, encoded: Encoded, image: Tensor, first: int | Tensor, count: int) -> Tensor:
        """On from the prefix, within the model's positions."""
        found = super().caption_positions(encoded, image, first, count)
        places = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        # A short caption after a long prompt may be padded to the length of another one, beyond the last position.
        return found if places is None else found.clamp(max=places - 1)

    def after_image(self, prompt: str) -> list[int]:
        """BOS and the prompt."""
        return self.tokenizer(prompt)["input_ids"]

    def project(self, encoded: Encoded) -> Tensor:
        """Q-Former and projection."""
        return self.queried(encoded)

    @property
    def embedding(self) -> nn.Module:
        """The language model's input embeddings."""
        return self.model.language_model.get_input_embeddings()

    @property
    def body(self) -> Any:
        """The language model below its head."""
        return self.model.language_model.get_decoder()

    @property
    def head(self) -> Any:
        """The language model's output embedding."""
        return self.model.language_model.lm_head


class Blip2EncoderDecoder(_Blip2, CrossDecoder):
    """BLIP-2 with T5: its encoder reads ``[queries, prompt, EOS]``, its decoder attends to that."""

    lora_targets = r"language_model\.decoder\..*\.(q|v)"
    default_prompt = "a photo of"

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """T5 starts from its padding id."""
        text = self.model.config.text_config
        start = first_given("decoder_start", [text.decoder_start_token_id, text.pad_token_id])
        return [start], as_list(first_given("eos", [text.eos_token_id])), first_given("pad", [text.pad_token_id])

    def project(self, encoded: Encoded) -> Encoded:
        """Q-Former, projection and T5's encoder over queries and prompt."""
        read = self.queried(encoded)
        ids = torch.tensor(self.words, device=read.device).expand(len(read), -1)
        words = self.model.language_model.get_input_embeddings()(ids)
        states = torch.cat([read, words.to(read.dtype)], dim=1)
        return Encoded(self.model.language_model.get_encoder()(inputs_embeds=states).last_hidden_state)

    def cross_length(self, encoded: Encoded) -> int:
        """Queries and prompt."""
        return self.model.config.num_query_tokens + len(self.words)

    @property
    def embedding(self) -> nn.Module:
        """The word embeddings of T5's decoder."""
        return self.model.language_model.decoder.get_input_embeddings()

    def text(self, embeddings: Tensor, states: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        """T5's decoder, scaled as its head expects it."""
        language_model = self.model.language_model
        hidden = language_model.decoder(
            inputs_embeds=embeddings,
            encoder_hidden_states=states,
            encoder_attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state
        return hidden * language_model.model_dim**-0.5 if language_model.config.scale_decoder_outputs else hidden

    @property
    def head(self) -> Any:
        """The language model's output embedding."""
        return self.model.language_model.lm_head
