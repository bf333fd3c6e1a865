"""What vision-language models that answer a prompt have in common: the prompt as text, and as tokens next to the pixels."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.base import as_list, first_given
from tellapart.captioners.families.prefix import PrefixDecoder, left_padded
from tellapart.errors import UsageError, reason_of

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
    several_images = True

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

    def rendered(self, count: int = 1) -> str:
        """The prompt as the processor takes it, with ``count`` images before its words.

        Raises:
            UsageError: it has more or fewer places for images.
        """
        return self._render(count)

    def _render(self, count: int = 1, answer: str | None = None) -> str:
        joint, place = self.processors.joint, self.processors.joint.image_token
        if not getattr(joint, "chat_template", None):
            text = self.plain_template.format(image=count * place, prompt=self.prompt)
        else:
            words = [{"type": "text", "text": self.prompt}] if self.prompt else []
            turns: list[dict[str, Any]] = [{"role": "user", "content": [*count * [{"type": "image"}], *words]}]
            if answer is not None:
                turns.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
            try:
                text = joint.apply_chat_template(turns, add_generation_prompt=answer is None)
            except Exception as error:  # a template may raise anything
                reason = reason_of(error)
                raise UsageError(
                    f"the processor's chat template cannot write a turn with an image and words ({reason}): repair "
                    "chat_template.jinja."
                ) from error
        self.require_places(text, text.count(place), count, place)
        return text

    @staticmethod
    def require_places(text: str, found: int, wanted: int, place: str) -> None:
        """Raise where a written prompt has not as many places for images as there are images.

        Raises:
            UsageError: naming both numbers.
        """
        if found != wanted:
            raise UsageError(
                f"the prompt {text!r} has {found} places for an image instead of {'one' if wanted == 1 else wanted}: leave "
                f"{place} out of the prompt, and check the chat template."
            )

    def lead(self, prompt: str) -> str:
        """What to put before a caption so that the tokenizer writes it as it does after the rendered ``prompt``.

        Where a space is between the two, some tokenizers write it into the first word, and some write every text as
        if it began with one.
        """
        gap = "" if prompt[-1:].isspace() else " "
        if getattr(self.processors.joint, "chat_template", None):
            answered = self._render(answer=PROBE)
            if answered.startswith(prompt):
                between = answered[len(prompt) :].partition(PROBE)[0]
                gap = between if not between.strip() else gap

        def ids(text: str) -> list[int]:
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]

        whole = ids(prompt + gap + PROBE)
        return next((lead for lead in (gap, "") if whole == ids(prompt) + ids(lead + PROBE)), gap)

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """What the processor makes of the images (or lists of frames) and the prompt: ``input_ids``, ``attention_mask``, pixels,
        ..."""
        text = self.rendered()
        return dict(
            self.processors.joint(
                images=images,
                text=[text] * len(images),
                padding=True,
                padding_side="left",
                add_special_tokens=self._lacks_bos(text),
                return_tensors="pt",
                **self.processor_options(),
            )
        )

    def processor_options(self) -> dict[str, Any]:
        """Further arguments of the processor."""
        return {}

    def _lacks_bos(self, text: str) -> bool:
        """Whether the tokenizer is to write its special tokens: a template that writes BOS must not get another one."""
        bos = self.tokenizer.bos_token
        return not (bos and text.startswith(bos))

    def prompt_tokens(self, count: int = 1) -> list[int]:
        """The tokens of ``rendered``, with one image token per image."""
        text = self.rendered(count)
        return self.tokenizer(text, add_special_tokens=self._lacks_bos(text))["input_ids"]

    def after_image(self, prompt: str) -> list[int]:
        """The tokens that follow the image's in a row that asks ``prompt``: those of every image, whatever its size.

        Raises:
            UsageError: the prompt has another place for an image.
        """
        place = self.processors.joint.image_token
        return self.tokens_after(place, self.asking(prompt).rendered().rpartition(place)[2])

    def asking(self, prompt: str) -> Self:
        """The same family, which asks something else."""
        other = copy.copy(self)
        other.prompt = prompt
        return other

    def tokens_after(self, place: str, text: str) -> list[int]:
        """Of ``text`` behind the special token ``place``: some tokenizers write it differently where a text begins."""
        return self.tokenizer(place + text, add_special_tokens=False)["input_ids"][1:]

    def together(
        self, encoded: Encoded, inputs: dict[str, Tensor], shown: Sequence[Sequence[int]], prompt: str
    ) -> Encoded:
        """Rows that show several images each, in order, before one prompt. An image is encoded once, however many rows show it.

        Args:
            encoded: of B images, each alone.
            inputs: what it was encoded from.
            shown: for each of N rows, the images of the batch that it shows.
            prompt: what is asked after the images.

        Raises:
            UsageError: the prompt has another place for an image, a row is longer than the model can read, or the processor
                writes more around an image than this can take over.
        """
        written = self._written(inputs)
        asked = {count: self.asking(prompt).prompt_tokens(count) for count in {len(images) for images in shown}}
        device = encoded.states.device
        rows = [
            torch.tensor(self._filled(asked[len(images)], [written[i] for i in images]), device=device)
            for images in shown
        ]
        self._require_room(max(map(len, rows)), max(asked))
        mask = side_by_side(encoded.states.new_ones(encoded.states.shape[:2], dtype=torch.bool), encoded.mask, shown)
        return Encoded(side_by_side(encoded.states, encoded.mask, shown), mask, left_padded(rows, self.pad))

    def _written(self, inputs: dict[str, Tensor]) -> list[list[int]]:
        """What the processor wrote for each image in place of its image token."""
        own = self.prompt_tokens()
        before = own.index(self.image_token)
        after = len(own) - before - 1
        found = []
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True):
            row = ids[mask].tolist()
            end = len(row) - after
            if row[:before] != own[:before] or row[end:] != own[before + 1 :]:
                raise UsageError(
                    "the processor writes the prompt inseparably from the image: choose another model, or show "
                    "it no look-alikes."
                )
            found.append(row[before:end])
        return found

    def _filled(self, prompt: Sequence[int], images: Sequence[Sequence[int]]) -> list[int]:
        """The prompt's tokens with those of the images in the places of its image tokens."""
        following = iter(images)
        return [token for place in prompt for token in (next(following) if place == self.image_token else (place,))]

    def _require_room(self, length: int, count: int) -> None:
        places = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if places is not None and length >= places:
            raise UsageError(
                f"a prompt with {count} images has {length} tokens, but the model has places for {places}: show fewer "
                "look-alikes, or give smaller images."
            )

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
    def embedding(self) -> nn.Module:
        """The text model's input embeddings, scaled if it scales them."""
        return self.model.get_input_embeddings()

    @property
    def head(self) -> Any:
        """The output embedding."""
        return self.model.lm_head


def side_by_side(values: Tensor, mask: Tensor | None, shown: Sequence[Sequence[int]]) -> Tensor:
    """``[N, P', ...]``: of each row's images one after the other, what ``values [B, P, ...]`` has of them; then zeros.

    Args:
        values: of B images.
        mask: ``[B, P]`` bool, what of them is real; none: everything.
        shown: for each of N rows, its images.
    """
    real = [row if mask is None else row[mask[image]] for image, row in enumerate(values)]
    return pad_sequence([torch.cat([real[image] for image in images]) for images in shown], batch_first=True)
