"""The world's summarizer: a language model that merges several captions into one, without the image (IC3's second half)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tellapart.captioning.summary import PROMPT, Summarizer
from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.draws import base_seed, seeded
from tellapart.types import Batch, ObjectiveModule, StepOutput
from tellapart.world import load_scenes, load_world
from tellapart.world.merging import summaries
from tellapart.world.schedule import History, Task
from tellapart.world.vocabulary import WORDS, tokenizer_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration

LONGEST = 512
"""Tokens of a prompt: ten captions of the greatest length, and the words around them."""

Draw = Callable[[Sequence[str], int], Sequence[tuple[Sequence[str], str]]]
"""Image ids and a seed -> captions of each image, and their summary."""


def summary_tokenizer() -> PreTrainedTokenizerFast:
    """Over the world's words and the dash before each caption; the words of the prompt are unknown to it."""
    return tokenizer_of([*WORDS, "-"], LONGEST)


def make_summarizer(tokenizer: Any) -> T5ForConditionalGeneration:
    """A T5 with random weights."""
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=128,
            d_kv=32,
            d_ff=512,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=tokenizer.bos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


@dataclass(frozen=True)
class Rewritten:
    """Prompts ``[B, S]`` and answers ``[B, T]`` as token ids; the answers end with EOS."""

    prompts: Tensor
    read: Tensor
    answers: Tensor
    written: Tensor


class Merging(ObjectiveModule):
    """Teach a sequence-to-sequence model to answer ``Summarizer``'s prompt: ``L = mean over tokens of
    -log p(w_t | w_<t, prompt)``, EOS counted.

    Args:
        summarize: what asks it, with the model that learns.
        draw: captions and their summary.
    """

    def __init__(self, summarize: Summarizer, draw: Draw) -> None:
        super().__init__()
        self.language_model, self.summarize, self.draw = summarize.model, summarize, draw
        self.language_model.requires_grad_(True)

    def collect(self, batch: Batch, step: int) -> Rewritten:
        """Captions of each image and their summary, which follow from image id and seed."""
        drawn, tokenizer = self.draw(batch.ids, base_seed()), self.summarize.tokenizer
        asked = tokenizer([self.summarize.asked(captions) for captions, _ in drawn], return_tensors="pt", padding=True)
        answers = [f"{summary} {tokenizer.eos_token}" for _, summary in drawn]
        wanted = tokenizer(answers, add_special_tokens=False, return_tensors="pt", padding=True)
        parts = (asked["input_ids"], asked["attention_mask"], wanted["input_ids"], wanted["attention_mask"].bool())
        return Rewritten(*(part.to(self.summarize.device) for part in parts))

    def losses(self, lines: Rewritten) -> Iterator[StepOutput]:
        """One piece: the negative log-likelihood, summed over tokens."""
        start = torch.full_like(lines.answers[:, :1], self.language_model.config.decoder_start_token_id)
        before = torch.cat([start, lines.answers[:, :-1]], dim=1)
        found = self.language_model(input_ids=lines.prompts, attention_mask=lines.read, decoder_input_ids=before)
        losses = cross_entropy(found.logits[lines.written].float(), lines.answers[lines.written], reduction="none")
        yield StepOutput(losses.sum(), lines.written.sum().to(losses.dtype), {"nll": losses.detach()})


def build_summarizer(task: Task) -> History:
    """Teach it what people write of the web's pictures, of which it never sees one."""
    tokenizer = summary_tokenizer()
    with seeded(task.name, task.seed):
        model = make_summarizer(tokenizer)
    dataset, scenes = load_world("web", size=task.size), load_scenes("web", size=task.size)
    objective = Merging(
        Summarizer(model, tokenizer, prompt=PROMPT),
        lambda ids, seed: summaries([(name, scenes[name]) for name in ids], seed),
    )
    history = task.fit(objective, TrainingData(dataset, Collate({})))
    model.eval().save_pretrained(task.folder)
    tokenizer.save_pretrained(task.folder)
    return history
