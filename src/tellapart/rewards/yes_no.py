"""An instruct vision-language model as a matcher: asked whether a caption fits the image, how sure is it of yes?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from tellapart.captioners.asking import harmless
from tellapart.captioners.families import family_of
from tellapart.captioners.families.prompted import Prompted
from tellapart.captioners.loading import read_parts
from tellapart.errors import UsageError
from tellapart.files import existing
from tellapart.listeners.loading import called, model_digest, vocabulary_of
from tellapart.listeners.pairs import PairMatcher, Precision
from tellapart.ops import require_finite
from tellapart.rewards.spellings import one_token

if TYPE_CHECKING:
    from PIL import Image

PLACE = "{caption}"
QUESTION = f'Does the description "{PLACE}" match this image? Answer with yes or no.'
"""Our own words; a model that was trained to be asked otherwise should be."""

YES, NO = ("yes", "Yes", "YES"), ("no", "No", "NO")


class YesNoMatcher(PairMatcher):
    """LLaVA, PaliGemma, Idefics3, SmolVLM, Qwen2-VL, Qwen2.5-VL or Qwen3-VL, read once per caption; nothing is generated.

    The score is the log-odds ``log P(yes) - log P(no)`` of the first token of the answer, in nats, unbounded and 0 where the
    model cannot tell. P is summed over spellings: yes, Yes, YES, each with and without a space, where it is one token of the
    vocabulary (if none is, the first tokens of "yes" and "no" are used). The image tower runs once per image; the model's
    chat template writes the question. Special tokens in a caption are read as a space.

    Attributes:
        question: the words, with ``{caption}`` in the caption's place.
    """

    usual_question: ClassVar[str] = QUESTION
    scale: ClassVar[str] = "log-odds of yes"

    def __init__(
        self,
        family: Any,
        *,
        question: str | None = None,
        name: str = "matcher",
        batch_size: int = 32,
        autocast: Precision = "float32",
    ) -> None:
        """See ``from_pretrained``; ``family`` reads a loaded model."""
        kind = family.model.config.model_type
        if not isinstance(family, Prompted):
            raise UsageError(
                f"a model of type {kind!r} cannot be asked questions here: use a LLaVA, PaliGemma, Idefics3, SmolVLM or Qwen-VL."
            )
        question = self.usual_question if question is None else question
        if PLACE not in question:
            raise UsageError(f"the matcher's question {question!r} has no place for the caption: write {PLACE} in it.")
        super().__init__(family.model, name=name, batch_size=batch_size, autocast=autocast)
        self.question, self.tokenizer = question, family.tokenizer
        self._family: Prompted = family.asking(self._asked(""))
        self._family.start = self._family.special_tokens()[0]  # of some families it holds the prompt
        self._yes, self._no = self.answers(self.tokenizer)

    @staticmethod
    def answers(tokenizer: Any) -> tuple[list[int], list[int]]:
        """Ids of the tokens that say yes, and of those that say no."""
        return answers(tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        question: str | None = None,
        name: str = "matcher",
        batch_size: int = 32,
        dtype: Precision = "float32",
        autocast: Precision = "float32",
    ) -> Self:
        """A matcher from a folder or a Hugging Face id, such as ``HuggingFaceTB/SmolVLM-256M-Instruct``.

        Args:
            path: the folder or id.
            question: what the model is asked, with ``{caption}`` in it; None takes the class's own.
            name: key of its tensors in ``batch.inputs``.
            batch_size: most images, and most questions, read at once; it changes no value.
            dtype: of the weights.
            autocast: precision of matrix products, for weights in float32; the logits are float32 in any case.

        Raises:
            UsageError: it does not exist, lacks a part, cannot be asked, or the question has no place for the caption.
        """
        parts = read_parts(existing(path, "matcher"), dtype=dtype)
        if parts.adapter is not None:
            raise UsageError(f"{path} is an adapter: merge it into its model, and name that as the matcher.")
        require_finite(parts.model, f"matcher {path}")
        family = family_of(parts.model, parts.processors)
        matcher = cls(family, question=question, name=name, batch_size=batch_size, autocast=autocast)
        matcher.source = called(path)
        return matcher

    @property
    def family(self) -> Prompted:
        """What reads the model; another matcher may be made of it with the same weights."""
        return self._family

    def describe(self) -> dict[str, Any]:
        """Model, 12 digits of a hash of its weights, vocabulary and question, the scale, and precision."""
        template = getattr(self._family.processors.joint or self.tokenizer, "chat_template", None)
        parts = [self.model.config.to_dict(), self._family.processors.image.to_dict(), vocabulary_of(self.tokenizer)]
        digest = model_digest(self.model, *parts, self.question, template)[:12]
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        described = {"model": self.source, "backbone": self.model.config.model_type, "weights": digest}
        return described | {
            "scale": self.scale,
            "question": self.question,
            "dtype": dtype,
            "autocast": self.autocast,
        }

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """None is: these models read thousands of tokens."""
        return [False] * len(texts)

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """RGB images -> the tensors of the model's family, with the question about an empty caption."""
        return self._family.process(images)

    def score(self, logits: Tensor) -> Tensor:
        """The log-odds of yes against no."""
        return logits[:, 1] - logits[:, 0]

    def _asked(self, caption: str) -> str:
        return self.question.replace(PLACE, harmless(self.tokenizer, caption))

    def _pairs(self, inputs: dict[str, Tensor], image: list[int], texts: list[str]) -> Tensor:
        """``[N, 2]``: log-probability of no and of yes; questions are read in batches of their length."""
        family, dtype = self._family, self._family.input_dtype
        inputs = {k: v.to(self.device, dtype if v.is_floating_point() else None) for k, v in inputs.items()}
        encoded = family.encode(inputs)
        asked = [self._asked(text) for text in texts]
        after = {question: len(family.after_image(question)) for question in dict.fromkeys(asked)}
        own = inputs["attention_mask"].sum(dim=1).tolist()
        order = sorted(range(len(asked)), key=lambda i: own[image[i]] + after[asked[i]])
        found = torch.zeros(len(asked), 2)
        for start in range(0, len(order), self.batch_size):
            some = order[start : start + self.batch_size]
            of = torch.tensor([image[i] for i in some], device=self.device)
            rows = family.prompt_rows(inputs, of.tolist(), [asked[i] for i in some])
            logits = family.exact_logits(
                family.prefix(family.with_prompts(encoded, inputs, of, rows), family.new_cache())
            )
            logprobs = logits.float().log_softmax(dim=-1)
            both = [logprobs[:, ids].logsumexp(dim=-1) for ids in (self._no, self._yes)]
            found[some] = torch.stack(both, dim=1).cpu()
        return found


def answers(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Ids of the tokens that say yes, and of those that say no.

    Raises:
        UsageError: they do not differ in one token.
    """
    yes, no = (one_token(tokenizer, words) for words in (YES, NO))
    if not yes or not no:
        yes, no = ({tokenizer(words[0], add_special_tokens=False)["input_ids"][0]} for words in (YES, NO))
    if yes & no:
        raise UsageError("the matcher's tokenizer begins yes and no with the same token: choose another model.")
    return sorted(yes), sorted(no)
