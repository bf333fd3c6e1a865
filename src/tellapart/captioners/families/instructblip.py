"""InstructBlipForConditionalGeneration: BLIP-2 whose Q-Former reads the prompt too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.base import CONTEXT, Family, Processors
from tellapart.captioners.families.blip2 import Blip2Decoder, Blip2EncoderDecoder, _Blip2
from tellapart.errors import UsageError


def instructblip(config: Any) -> type[Family]:
    """The family of a configuration: with a decoder (Vicuna, OPT) or with an encoder and a decoder (T5)."""
    return InstructBlipDecoder if config.use_decoder_only_language_model else InstructBlipEncoderDecoder


class _InstructBlip(_Blip2):
    """The prompt goes to the language model and, as BERT tokens, next to the queries of the Q-Former."""

    joint_processor = "InstructBlipProcessor"
    # What the authors ask for a caption (Dai et al., NeurIPS 2023, appendix).
    default_prompt = "A short image description:"

    def __init__(self, model: Any, processors: Processors, prompt: str | None = None) -> None:
        if processors.joint is None:
            raise UsageError(
                "an InstructBLIP model needs its processor, which has two tokenizers: give processor= too."
            )
        super().__init__(model, processors, prompt)
        asked = self.prompt.replace(CONTEXT, "")  # the same for all images
        self.question: list[int] = processors.joint.qformer_tokenizer(asked)["input_ids"]

    @classmethod
    def never_used(cls, config: Any) -> str:
        """What the Q-Former's last layer makes of the prompt: only its queries are read on."""
        last = config.qformer_config.num_hidden_layers - 1
        return rf"qformer\.encoder\.layer\.{last}\.(intermediate|output)\."

    def queried(self, encoded: Encoded) -> Tensor:
        """``[B, queries, D]``: what the queries read in prompt and image, in the language model's space."""
        qformer, queries = self.model.qformer, self.model.query_tokens
        size, dtype = len(encoded.states), qformer.embeddings.layernorm.weight.dtype
        question = torch.tensor(self.question, device=queries.device).expand(size, -1)
        read = qformer(
            input_ids=question,
            query_embeds=queries.to(dtype).expand(size, -1, -1),
            encoder_hidden_states=encoded.states.to(dtype),
        ).last_hidden_state
        projection = self.model.language_projection
        return projection(read[:, : queries.shape[1]].to(projection.weight.dtype))


class InstructBlipDecoder(_InstructBlip, Blip2Decoder):
    """InstructBLIP with a decoder-only language model: ``[queries, BOS, prompt | caption]``."""

    def prompt_ids(self) -> list[int]:
        """The prompt's tokens; Vicuna's tokenizer begins every text as after a space, so captions need none then."""
        ids = super().prompt_ids()

        def words(text: str) -> list[int]:
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]

        if self.caption_lead and words(f"{self.prompt} a") == ids + words("a"):
            self.caption_lead = ""
        return ids


class InstructBlipEncoderDecoder(_InstructBlip, Blip2EncoderDecoder):
    """InstructBLIP with T5: its encoder reads ``[queries, prompt, EOS]``, its decoder attends to that."""
