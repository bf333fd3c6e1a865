"""A vision-language model as a judge: it answers a study's items, both orders of each, in the format of people's answers.

Source: pairwise comparison by a model with both orders is that of Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and Chatbot
Arena", NeurIPS 2023 (section 3.4): a caption wins only if it wins in both orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tellapart.data.dataset import Example
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError
from tellapart.evaluation.judge.answers import Answers
from tellapart.evaluation.judge.study import (
    CHOICES,
    CLIP_ENDING,
    PICTURES,
    READS_BETTER,
    UNSURE,
    WHICH_IMAGE,
    Item,
    Study,
)
from tellapart.progress import bar
from tellapart.rewards.matchers import kind_of
from tellapart.rewards.spellings import one_token
from tellapart.rewards.yes_no import PLACE, YesNoMatcher

COMPARE = (
    "Here are two captions of this image.\nCaption A: {first}\nCaption B: {second}\n"
    "Which caption describes the image better? Answer with A or B."
)
"""Asked for *which reads better*; our own words."""


class ChoiceMatcher(YesNoMatcher):
    """A model that is asked a question with two answers, A and B; the score is the log-odds of B against A, in nats.

    The text of a pair is the whole question.
    """

    usual_question: ClassVar[str] = PLACE
    scale: ClassVar[str] = "log-odds of B"

    @staticmethod
    def answers(tokenizer: Any) -> tuple[list[int], list[int]]:
        """Ids of the tokens that say B, and of those that say A.

        Raises:
            UsageError: the tokenizer has no tokens for them.
        """
        second, first = (sorted(one_token(tokenizer, (letter,))) for letter in "BA")
        if not first or not second:
            raise UsageError("the model's tokenizer has no tokens for the answers A and B: choose another model.")
        return second, first


@dataclass(frozen=True)
class Orders:
    """What a model said of one item in both orders.

    Args:
        item: its id.
        question: of the item.
        first: the choice when the item's first choice was shown first.
        second: the choice when its second choice was shown first.
        log_odds: of the item's second choice against its first, in nats, in either order.
    """

    item: str
    question: str
    first: str
    second: str
    log_odds: tuple[float, float]

    @property
    def choice(self) -> str:
        """The choice of both orders, or unsure where they differ."""
        return self.first if self.first == self.second else UNSURE


def open_judge(path: str, *, device: torch.device | str = "cpu") -> tuple[ChoiceMatcher, YesNoMatcher]:
    """A model that is asked for a choice, and the same weights asked whether a caption fits.

    Raises:
        UsageError: it does not exist, or cannot be asked.
    """
    if kind_of(path) != "yes_no":
        raise UsageError(f"{path} cannot judge: name an instruct vision-language model, such as a LLaVA or a Qwen-VL.")
    choice = ChoiceMatcher.from_pretrained(path, name="choice").to(device)
    choice.model.requires_grad_(False)
    fits = YesNoMatcher(choice.family, name="fits")
    fits.source = choice.source
    return choice, fits


def judge_study(
    study: Study,
    model: ChoiceMatcher,
    fits: YesNoMatcher,
    *,
    known: Iterable[Orders] = (),
    keep: Callable[[Sequence[Orders]], None] = lambda orders: None,
) -> list[Orders]:
    """The answers of a model to all items of a study.

    *Which reads better*: the model sees the image and both captions, once with run A's first and once with run B's, and answers A
    or B. *Which image*: models of this package see one image at a time. So the caption is compared with each image on its own, by
    the log-odds of yes; the image with the higher ones is the choice. There is no order in this, and both orders are equal.

    Pitfalls: models prefer longer captions and those of their own family. A model that answers A whatever is shown is unsure of
    everything here: read the position bias.

    Args:
        study: with its pictures.
        model: asked for a choice between two captions.
        fits: asked whether a caption fits an image; may share the weights.
        known: what the model said before, which it is not asked again.
        keep: called with the new answers of each batch. Batches are the same wherever a study was stopped.

    Raises:
        UsageError: a picture is gone, or the study shows clips, of which the models would see the first frame only.
    """
    study.require_pictures()
    seen = study.pictures | study.stills
    if any(file.endswith(CLIP_ENDING) for file in seen.values()):
        raise UsageError(f"{study.folder} shows clips, but a model judges still images only: have people answer it.")
    examples = [Example(name, ImageFile(study.folder / PICTURES / file)) for name, file in seen.items()]
    model.know_images(examples)
    fits.know_images(examples)
    said = {one.item: one for one in known}
    parts: list[tuple[Sequence[Item], Callable[[Sequence[Item]], list[Orders]]]] = []
    parts += [(part, partial(_images, fits=fits)) for part in _batches(study.items_of(WHICH_IMAGE), fits.batch_size)]
    parts += [
        (part, partial(_captions, model=model)) for part in _batches(study.items_of(READS_BETTER), model.batch_size)
    ]
    left = [(part, ask) for part, ask in parts if any(item.id not in said for item in part)]
    total, to_do = (sum(len(part) for part, _ in some) for some in (parts, left))
    with bar("judging", total, done=total - to_do) as running:
        for part, ask in left:
            new = ask(part)
            keep(new)
            said |= {one.item: one for one in new}
            running.advance(len(part))
    return [said[item.id] for part, _ in parts for item in part]


def _batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _captions(items: Sequence[Item], model: ChoiceMatcher) -> list[Orders]:
    texts = [
        [COMPARE.format(first=one, second=other) for one, other in (item.captions, item.captions[::-1])]
        for item in items
    ]
    logits = model.match_ids([item.images[0] for item in items], texts, tells=False)
    found = []
    for item, pair in zip(items, logits, strict=True):
        plain, turned = model.score(pair).tolist()
        found.append(_orders(item, plain, -turned))
    return found


def _images(items: Sequence[Item], fits: YesNoMatcher) -> list[Orders]:
    target, other = (
        fits.match_ids([item.images[place] for item in items], [[item.captions[0]] for item in items], tells=False)
        for place in (0, 1)
    )
    difference = [_score(fits, two) - _score(fits, one) for one, two in zip(target, other, strict=True)]
    return [_orders(item, value, value) for item, value in zip(items, difference, strict=True)]


def _score(matcher: YesNoMatcher, logits: Tensor) -> float:
    return float(matcher.score(logits)[0])


def _orders(item: Item, plain: float, turned: float) -> Orders:
    """Log-odds of the second choice in either order, as choices."""
    if not torch.tensor([plain, turned]).isfinite().all():
        raise UsageError("the model gives logits that are not numbers: load it in float32, or name another.")
    one, two = CHOICES[item.question]
    said = [UNSURE if value == 0 else (two if value > 0 else one) for value in (plain, turned)]
    return Orders(item.id, item.question, said[0], said[1], (plain, turned))


def position_bias(orders: Sequence[Orders]) -> dict[str, Any]:
    """Of *which reads better*: how often the order decided, as counts and shares; None without items.

    Returns:
        ``items``; ``consistent``, the same caption in both orders; ``first_shown`` and ``second_shown``, the caption that was
        shown first (second) in both orders; ``share_first``, of all answers those for the caption shown first, 0.5 without bias.
    """
    compared = [one for one in orders if one.question == READS_BETTER]
    counts = Counter(
        "consistent" if one.first == one.second else _BIAS.get((one.first, one.second)) for one in compared
    )
    said = [(one.first == "a") + (one.second == "b") for one in compared]
    return {
        "items": len(compared),
        **{key: counts[key] for key in ("consistent", "first_shown", "second_shown")},
        "share_first": sum(said) / (2 * len(said)) if said else None,
    }


_BIAS = {("a", "b"): "first_shown", ("b", "a"): "second_shown"}


def record(answers: Answers, name: str, orders: Sequence[Orders]) -> tuple[str, int]:
    """Keep a model's answers next to people's, marked as a model's; returns the rater's name and how many were new.

    Args:
        answers: of the study.
        name: of the model.
        orders: what it said.
    """
    key = answers.enter(name, model=True)
    new = sum(answers.record(key, one.item, one.choice, first="both orders") for one in orders)
    return str(answers.name_of(key)), new


def details(name: str, described: Mapping[str, Any], orders: Sequence[Orders]) -> dict[str, Any]:
    """What ``models.json`` keeps of a model: its description, its position bias and its answer in either order."""
    return {
        "rater": name,
        "model": dict(described),
        "position_bias": position_bias(orders),
        "orders": [asdict(one) for one in orders],
    }


def said_before(described: Mapping[str, Any]) -> list[Orders]:
    """The answers that ``details`` kept.

    Raises:
        ValueError: they are damaged.
    """
    try:
        return [Orders(**{**one, "log_odds": tuple(map(float, one["log_odds"]))}) for one in described["orders"]]
    except (KeyError, TypeError) as error:
        raise ValueError("the answers of a model are damaged") from error
