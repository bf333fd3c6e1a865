"""Question answering: how many questions about an image can be answered from its caption alone (CapRL's reward)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tellapart.data.questions import LETTERS, MultipleChoice, Questions
from tellapart.draws import mix_seeds
from tellapart.errors import UsageError
from tellapart.ranges import PositiveInt, in_range
from tellapart.rewards.language_model import LanguageModel
from tellapart.rewards.spellings import one_token
from tellapart.types import Rollout


class Asked(NamedTuple):
    """A question as a reader meets it.

    Args:
        caption: what the reader knows of the image; empty for the floor.
        question: about the image.
        order: a permutation of the options: position shown -> position in ``question.options``.
    """

    caption: str
    question: MultipleChoice
    order: tuple[int, ...]


class Reader(Protocol):
    """Answers questions from captions, without images."""

    truncated: float
    """Share (0 to 1) of the distinct captions of the last call that were too long and were cut."""

    def answer(self, asked: Sequence[Asked]) -> list[list[float]]:
        """Natural log-probability of each option, in the order of ``question.options``."""
        ...

    def identity(self) -> str:
        """Which model this is, for a line of how something was measured."""
        ...


class ModelReader:
    """A causal language model that answers by the letter of an option.

    The prompt holds the caption, the question and the options with letters, in the tokenizer's chat template if it has one. The
    answer is the letter of highest probability as the next token; "A" counts with and without a space before it. Nothing is
    generated. A caption that does not fit in the model's positions is cut at its end, never the question.

    Args:
        language_model: an instruct model; one without instruction tuning prefers a letter whatever the caption says.

    Raises:
        UsageError: the tokenizer has no token for a letter, or the same one for two.

    Example:
        >>> reader = ModelReader(LanguageModel.from_pretrained("Qwen/Qwen2.5-3B-Instruct"))
        >>> reader.answer([Asked("a red car", MultipleChoice("What colour is the car?", ("red", "blue"), 0), (1, 0))])
        [[-0.02, -4.1]]
    """

    def __init__(self, language_model: LanguageModel) -> None:
        self.language_model, self.truncated = language_model, 0.0
        self._letters = [sorted(one_token(language_model.tokenizer, (letter,))) for letter in LETTERS]
        first = self._letters[:2]
        if not all(first) or set(first[0]) & set(first[1]):
            raise UsageError(
                f"the tokenizer of {language_model.name} has no tokens of their own for the letters of options: choose "
                "another reader."
            )

    def identity(self) -> str:
        """Name, hash and precision of the language model."""
        return self.language_model.identity()

    def answer(self, asked: Sequence[Asked]) -> list[list[float]]:
        """Log-probabilities over the vocabulary, so those of one question sum to a probability below 1.

        Raises:
            UsageError: a question alone is too long for the model, or it has more options than the tokenizer has letters.
        """
        most = max((len(one.order) for one in asked), default=0)
        if not all(self._letters[:most]):
            raise UsageError(
                f"the tokenizer of {self.language_model.name} has no token for the letter of option {most}: ask "
                "questions with fewer options."
            )
        cut = set[str]()
        prompts = [self._prompt(one, cut) for one in asked]
        self.truncated = len(cut) / max(len({one.caption for one in asked}), 1)
        found = self.language_model.next_token(prompts, self._letters[:most]).tolist()
        return [
            [row[one.order.index(option)] for option in range(len(one.order))]
            for row, one in zip(found, asked, strict=True)
        ]

    def _prompt(self, one: Asked, cut: set[str]) -> list[int]:
        """Ids of the prompt, with as much of the caption as fits."""
        limit, caption = self.language_model.longest, " ".join(one.caption.split())
        ids = self.language_model.prompt_ids(prompt(caption, one))
        while limit is not None and len(ids) > limit:
            cut.add(one.caption)
            words = caption.split(" ")
            if not caption:
                raise UsageError(
                    f"the question {one.question.question!r} has {len(ids)} tokens with its options, but "
                    f"{self.language_model.name} reads {limit}: choose another reader, or shorter questions."
                )
            # A word has few tokens: leaving out an eighth of the excess at a time loses no more than is needed.
            caption = " ".join(words[: max(len(words) - max((len(ids) - limit) // 8, 1), 0)])
            ids = self.language_model.prompt_ids(prompt(caption, one))
        return ids


def prompt(caption: str, one: Asked) -> str:
    """What a language model reads: the caption, the question, and the options in the order shown."""
    options = [f"{LETTERS[place]}) {one.question.options[option]}" for place, option in enumerate(one.order)]
    return "\n".join(
        [
            "Answer the question about an image from its caption alone. Answer with one letter.",
            f"Caption: {caption}",
            f"Question: {one.question.question}",
            *options,
            "Answer:",
        ]
    )


def order_of(image: str, question: MultipleChoice, *, seed: int, turn: int) -> tuple[int, ...]:
    """A permutation of a question's options, which image, question, seed and turn decide.

    It is the same for every caption of the image, so that captions are compared under equal conditions.
    """
    drawn = random.Random(mix_seeds("options", seed, turn, image, question.question))
    return tuple(drawn.sample(range(len(question.options)), len(question.options)))


def credit(logprobs: Sequence[float], answer: int, *, soft: bool = False) -> float:
    """Reward of an answered question, 0 to 1: 1 if the right option is the likeliest, 1/m if it is one of m that are.

    Args:
        logprobs: of each option.
        answer: position of the right one.
        soft: give the right option's share of the options' probability instead.
    """
    if soft:
        return float(torch.tensor(logprobs, dtype=torch.float64).softmax(dim=0)[answer])
    best = [option for option, value in enumerate(logprobs) if value == max(logprobs)]
    return 1.0 / len(best) if answer in best else 0.0


def answered(
    reader: Reader,
    pairs: Sequence[tuple[str, str]],
    questions: Questions,
    *,
    turns: int = 1,
    seed: int = 0,
    soft: bool = False,
) -> list[float | None]:
    """Mean credit of each caption over its image's questions and the turns; None for an image without questions.

    Args:
        reader: answers.
        pairs: image id and caption.
        questions: of the images.
        turns: how often each question is asked, with its options in another order each time.
        seed: of the orders.
        soft: see ``credit``.
    """
    asked, owner = [], []
    for row, (image, caption) in enumerate(pairs):
        for question in questions.get(image, ()):
            for turn in range(turns):
                asked.append(Asked(caption, question, order_of(image, question, seed=seed, turn=turn)))
                owner.append(row)
    credits: list[list[float]] = [[] for _ in pairs]
    for row, one, logprobs in zip(owner, asked, reader.answer(asked), strict=True):
        credits[row].append(credit(logprobs, one.question.answer, soft=soft))
    return [sum(own) / len(own) if own else None for own in credits]


class QuestionAnswering:
    """The share of an image's questions that a reader answers right from the caption alone, 0 to 1.

    The reader never sees the image, so a caption's reward is what it states. Options are shuffled by a permutation that the seed,
    the image and the question decide. The same permutations hold for all captions of an image.

    Source: Xing, Dong, Zang, Cao, Liang, Huang, Wang, Wu and Lin, "CapRL: Stimulating Dense Image Caption Capabilities via
    Reinforcement Learning", 2025: a text-only model answers multiple-choice questions from the caption, and its accuracy is the
    reward.

    Departs from the paper and its code: the answer is the likeliest letter instead of one that is sampled and parsed; options are
    shuffled by a keyed permutation instead of at random; there is no option "cannot be answered". Questions are given: the paper
    has a vision-language model write them, and keeps those that cannot be answered without the image (``tellapart questions
    --model`` does both).

    Pitfalls: facts without a question add nothing to the reward, and false statements that no question touches cost
    nothing: add a reward for truth. A reader may answer from the question alone; compare with the floor, the accuracy without
    a caption. Long captions win. An image without questions gives every caption 0, which teaches nothing.

    Args:
        reader: answers from captions.
        questions: image id -> its questions.
        turns: how often each question is asked, with its options in another order each time.
        soft: give the probability of the right option among all options instead of 0 or 1; it separates captions that are
            equally often right.
        seed: of the orders of options.

    Raises:
        ValueError: ``turns`` is below 1.

    Example:
        >>> reward = QuestionAnswering(ModelReader(language_model), read_questions(Path("questions.jsonl")))
        >>> reward(rollout)
        tensor([0.75, 0.50])
    """

    @in_range
    def __init__(
        self, reader: Reader, questions: Questions, *, turns: PositiveInt = 1, soft: bool = False, seed: int = 0
    ) -> None:
        self.reader, self.questions, self.turns, self.soft, self.seed = reader, questions, turns, soft, seed

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient."""
        pairs = list(zip(rollout.ids(), rollout.texts, strict=True))
        found = answered(self.reader, pairs, self.questions, turns=self.turns, seed=self.seed, soft=self.soft)
        values = [0.0 if value is None else value for value in found]
        return torch.tensor(values, dtype=torch.float32, device=rollout.image.device)
