"""Florence2ForConditionalGeneration: a DaViT image tower and a BART that reads image and task in its encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationConfig

from tellapart.captioners.base import Encoded
from tellapart.captioners.blocks import Bart
from tellapart.captioners.decoder import Decoder
from tellapart.captioners.families.base import Processors, as_list, first_given
from tellapart.captioners.families.cross import CrossDecoder
from tellapart.captioners.linear import Linear
from tellapart.errors import UsageError


class Florence2(CrossDecoder):
    """``Florence2ForConditionalGeneration``: the encoder reads ``[image | <s> prompt </s>]``, the decoder writes.

    Prompts are those of the published processor, which turns a task such as ``<CAPTION>`` into its question. Captions
    are as BART was trained to write them, ``</s> <s> caption </s>``: both first tokens belong to the start, where
    published weights force the second one.
    """

    lora_targets = r"model\.language_model\..*\.(q_proj|v_proj)"
    joint_processor = "Florence2Processor"
    default_prompt = "<CAPTION>"

    def __init__(self, model: Any, processors: Processors, prompt: str | None = None) -> None:
        super().__init__(model, processors, prompt)
        text = model.config.text_config
        question = self._question()
        self.words: list[int] = [text.bos_token_id, *question, *as_list(text.eos_token_id)[:1]]

    def _question(self) -> list[int]:
        if self.processors.joint is None:
            raise UsageError(
                "a Florence-2 model needs its processor to expand tasks such as <CAPTION>: give processor= as well."
            )
        if not self.prompt:
            return []
        try:
            return self.processors.joint(text=[self.prompt])["input_ids"][0]
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise UsageError(
                f"Florence-2 cannot take the prompt {self.prompt!r} ({reason}): give one task, such as <CAPTION>, or "
                "plain words."
            ) from error

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """From the text configuration: the decoder's start and BOS, EOS, padding."""
        text = self.model.config.text_config
        start = first_given("decoder_start", [text.decoder_start_token_id])
        bos = first_given("bos", [text.bos_token_id])
        eos = as_list(first_given("eos", [text.eos_token_id]))
        return [start, bos], eos, first_given("pad", [text.pad_token_id, self.tokenizer.pad_token_id])

    def neutralise(self) -> None:
        """Keep the token ids and the BOS that begins every caption, drop the rest.

        Plain ``generate`` counts a forced BOS as a new token: it needs one more for the same captions, and divides the
        scores of beams by a length that is one more.
        """
        start, bos = self.start
        self.model.generation_config = GenerationConfig(
            decoder_start_token_id=start,
            bos_token_id=bos,
            forced_bos_token_id=bos,
            eos_token_id=self.eos[0] if len(self.eos) == 1 else self.eos,
            pad_token_id=self.pad,
        )

    @property
    def vision(self) -> nn.Module:
        """The DaViT; the projector behind it trains with the text side."""
        return self.model.model.vision_tower

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The tower's feature map, row by row, and its height: the projector adds positions in two dimensions."""
        features = self.model.model.vision_tower(inputs["pixel_values"]).last_hidden_state
        height = torch.full((len(features),), features.shape[2], device=features.device)
        return Encoded(features.flatten(2).transpose(1, 2), inputs={"height": height})

    def project(self, encoded: Encoded) -> Encoded:
        """What BART's encoder makes of image and prompt."""
        core, states = self.model.model, encoded.states
        features = states.transpose(1, 2).unflatten(2, (int(encoded.inputs["height"][0]), -1))
        image = core.multi_modal_projector(features)
        ids = torch.tensor(self.words, device=states.device).expand(len(states), -1)
        words = core.get_input_embeddings()(ids)
        read = torch.cat([image.to(words.dtype), words], dim=1)
        return Encoded(core.language_model.encoder(inputs_embeds=read).last_hidden_state)

    def cross_length(self, encoded: Encoded) -> int:
        """The image's states, their mean before them, and the prompt after them."""
        return 1 + encoded.states.shape[1] + len(self.words)

    @property
    def embedding(self) -> nn.Module:
        """BART's word embeddings, scaled where the configuration says so."""
        return self.model.model.language_model.decoder.embed_tokens

    def text(self, embeddings: Tensor, states: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        """The last layer of BART's decoder."""
        return self.model.model.language_model.decoder(
            inputs_embeds=embeddings,
            encoder_hidden_states=states,
            encoder_attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state

    def by_parts(self, linear: Linear) -> Decoder:
        """BART's decoder."""
        return Bart(self.model.model.language_model.decoder, linear)

    @property
    def head(self) -> Any:
        """The output embedding, which is the input embedding."""
        return self.model.lm_head
