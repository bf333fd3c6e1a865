"""What vision-language models that answer a prompt have in common: the prompt as text, and as tokens beside the pixels."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.base import as_list, first_given
from tellapart.captioners.families.prefix import PrefixDecoder
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

PROBE = "a"
"""A word, to see how a template and a tokenizer write what follows the prompt."""


class Prompted(PrefixDecoder):
    """A prefix decoder whose own processor turns one prompt and an image into tokens and pixels.

    The prompt is the user's turn of the processor's chat template, image first; a processor without one gets
    ``plain_template``. Rows are padded on the left, so that every caption begins in the same column.
    """

    asks_in_words = True
    plain_template: ClassVar[str] = "{image}{prompt}"
    """The prompt of checkpoints whose processor has no chat template."""

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """No start token (the prompt is the prefix); EOS and PAD of the decoding defaults, else of the text model.

        Raises:
            UsageError: there is no processor, no padding token, or no single place for the image in the prompt.
        """
        if self.processors.joint is None:
            raise UsageError(
                f"a model of type {self.model.config.model_type!r} needs its processor to write the prompt: "
                "give it as processor."
            )
        if self.tokenizer.pad_token_id is None:
            raise UsageError("the tokenizer has no padding token: name a pad_token in tokenizer_config.json.")
        self.caption_lead = self.lead(self.rendered())
        places = [self.model.generation_config, self.model.config.get_text_config(), self.tokenizer]
        eos = as_list(first_given("eos", [getattr(place, "eos_token_id", None) for place in places]))
        return [], eos, first_given("pad", [getattr(place, "pad_token_id", None) for place in places])

    def neutralise(self) -> None:
        """Keep the token ids, drop the rest."""
        self.model.generation_config = GenerationConfig(
            bos_token_id=self.tokenizer.bos_token_id,
            eos_token_id=self.eos[0] if len(self.eos) == 1 else self.eos,
            pad_token_id=self.pad,
        )

    def rendered(self) -> str:
        """The prompt as the processor takes it, with one image in it.

        Raises:
            UsageError: there are more or fewer.
        """
        return self._render()

    def _render(self, answer: str | None = None) -> str:
        joint, place = self.processors.joint, self.processors.joint.image_token
        if not getattr(joint, "chat_template", None):
            text = self.plain_template.format(image=place, prompt=self.prompt)
        else:
            words = [{"type": "text", "text": self.prompt}] if self.prompt else []
            turns: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "image"}, *words]}]
            if answer is not None:
                turns.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
            try:
                text = joint.apply_chat_template(turns, add_generation_prompt=answer is None)
            except Exception as error:  # a template may raise anything
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".:")
                raise UsageError(
                    f"the processor's chat template cannot write a turn with an image and words ({reason}): repair "
                    "chat_template.jinja."
                ) from error
        if text.count(place) != 1:
            raise UsageError(
                f"the prompt {text!r} has {text.count(place)} places for an image instead of one: leave {place} out of "
                "the prompt, and check the processor's chat_template."
            )
        return text

    def lead(self, prompt: str) -> str:
        """What to put before a caption so that the tokenizer writes it as it does after the rendered ``prompt``.

        Where a space stands between the two, some tokenizers write it into the first word, and some write every text as
        if it began with one.
        """
        gap = "" if prompt[-1:].isspace() else " "
        if getattr(self.processors.joint, "chat_template", None):
            answered = self._render(PROBE)
            if answered.startswith(prompt):
                between = answered[len(prompt) :].partition(PROBE)[0]
                gap = between if not between.strip() else gap

        def ids(text: str) -> list[int]:
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]

        whole = ids(prompt + gap + PROBE)
        return next((lead for lead in (gap, "") if whole == ids(prompt) + ids(lead + PROBE)), gap)

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """What the processor makes of the images and the prompt: ``input_ids``, ``attention_mask``, pixels, ..."""
        text, bos = self.rendered(), self.tokenizer.bos_token
        return dict(
            self.processors.joint(
                images=images,
                text=[text] * len(images),
                padding=True,
                padding_side="left",
                # A template that writes BOS itself must not get another one.
                add_special_tokens=not (bos and text.startswith(bos)),
                return_tensors="pt",
            )
        )

    def after_image(self, prompt: str) -> list[int]:
        """The tokens that follow the image's in a row that asks ``prompt``: those of every image, whatever its size.

        Raises:
            UsageError: the prompt has another place for an image.
        """
        place = self.processors.joint.image_token
        return self.tokens_after(place, self.asking(prompt).rendered().partition(place)[2])

    def asking(self, prompt: str) -> Self:
        """The same family, which asks something else."""
        other = copy.copy(self)
        other.prompt = prompt
        return other

    def tokens_after(self, place: str, text: str) -> list[int]:
        """Of ``text`` behind the special token ``place``: some tokenizers write it differently where a text begins."""
        return self.tokenizer(place + text, add_special_tokens=False)["input_ids"][1:]

    @staticmethod
    def kept(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The prompt's tokens, for ``Encoded.inputs``."""
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}

    def seen(self, inputs: dict[str, Tensor], states: Tensor, mask: Tensor | None = None) -> Encoded:
        """States that the prompt has one image token each for.

        Raises:
            UsageError: it has more or fewer; states would end up in other images' places.
        """
        places = (inputs["input_ids"] == self.image_token).sum(dim=1)
        real = states.new_ones(states.shape[:2]) if mask is None else mask
        if not torch.equal(places, real.sum(dim=1).to(places.dtype)):
            raise UsageError(
                f"the processor writes {int(places[0])} image tokens and the model has {int(real[0].sum())} states for "
                "them: give the processor that the model was trained with."
            )
        return Encoded(states, mask, self.kept(inputs))

    @property
    def image_token(self) -> int:
        """The configuration's image token."""
        return self.model.config.image_token_id

    @property
    def vocab_size(self) -> int:
        """Rows of the output embedding."""
        return self.model.lm_head.out_features

    @property
    def embedding(self) -> nn.Module:
        """The text model's input embeddings, scaled if it scales them."""
        return self.model.get_input_embeddings()

    def logits(self, hidden: Tensor) -> Tensor:
        """The output embedding."""
        return self.model.lm_head(hidden)
