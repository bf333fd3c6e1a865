"""The world's language model: how likely a text is among the captions that its annotators write, whatever the image."""

from __future__ import annotations

from typing import Any

from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.objectives.next_word import NextWord
from tellapart.world import build_tokenizer, load_world
from tellapart.world.schedule import History, Task
from tellapart.world.vocabulary import MAX_LENGTH


def make_language_model(tokenizer: Any) -> Any:
    """A GPT-2 with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=MAX_LENGTH + 8,
            n_embd=128,
            n_layer=2,
            n_head=4,
            n_inner=512,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def build_language_model(task: Task) -> History:
    """Teach it the references of the training split."""
    tokenizer = build_tokenizer()
    with seeded(task.name, task.seed):
        model = make_language_model(tokenizer)
    data = TrainingData(load_world("train", size=task.size), Collate({}))
    history = task.fit(NextWord(model, tokenizer), data)
    model.eval().save_pretrained(task.folder)
    tokenizer.save_pretrained(task.folder)
    return history
