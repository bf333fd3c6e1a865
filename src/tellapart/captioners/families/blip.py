"""BlipForConditionalGeneration: a ViT and a BERT-like decoder that attends to it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Cache, GenerationConfig

from tellapart.captioners.base import Encoded
from tellapart.captioners.blocks import Bert
from tellapart.captioners.decoder import Decoder
from tellapart.captioners.families.base import first_given
from tellapart.captioners.families.cross import CrossDecoder
from tellapart.captioners.linear import Linear


class Blip(CrossDecoder):
    """``BlipForConditionalGeneration``: captions start at the configuration's BOS and end at [SEP].

    The wrapper's own ``forward`` starts captions at [CLS] and its ``generate`` rewrites the prompt it is given, so only
    the text decoder is used here.
    """

    lora_targets = r"text_decoder\..*\.(query|value)"

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """BOS and the prompt, SEP and PAD of the text configuration."""
        text = self.model.config.text_config
        start = first_given("bos", [text.bos_token_id])
        eos = first_given("sep", [getattr(text, "sep_token_id", None), self.tokenizer.sep_token_id])
        return [start, *self.prompt_ids()], [eos], first_given("pad", [text.pad_token_id, self.tokenizer.pad_token_id])

    def neutralise(self) -> None:
        """Keep the token ids, drop the rest."""
        for part in (self.model, self.model.text_decoder):
            part.generation_config = GenerationConfig(
                bos_token_id=self.start[0], eos_token_id=self.eos[0], pad_token_id=self.pad
            )

    @property
    def vision(self) -> nn.Module:
        """The vision model."""
        return self.model.vision_model

    @property
    def resizable(self) -> Any:
        """The text decoder."""
        return self.model.text_decoder

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The vision model's last hidden state."""
        return Encoded(self.model.vision_model(pixel_values=inputs["pixel_values"]).last_hidden_state)

    @property
    def embedding(self) -> nn.Module:
        """The text decoder's word embeddings; it adds positions, then normalises."""
        return self.model.text_decoder.bert.embeddings.word_embeddings

    def text(self, embeddings: Tensor, states: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        """The decoder's last layer, before the prediction head."""
        return self.model.text_decoder.bert(
            # It adds positions in place: its input must not be used elsewhere.
            inputs_embeds=embeddings.clone(),
            encoder_hidden_states=states,
            encoder_attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
            is_decoder=True,
        ).last_hidden_state

    def by_parts(self, linear: Linear) -> Decoder:
        """The text decoder."""
        return Bert(self.model.text_decoder.bert, linear)

    @property
    def head(self) -> Any:
        """The last layer of the prediction head."""
        return self.model.text_decoder.cls.predictions.decoder

    def before_head(self, hidden: Tensor) -> Tensor:
        """The prediction head's layer before it."""
        return self.model.text_decoder.cls.predictions.transform(hidden)
