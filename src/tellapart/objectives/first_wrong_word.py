"""Training of late-interaction listeners to find the first wrong word of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tellapart.captioners.scoring import length_buckets
from tellapart.draws import base_seed
from tellapart.errors import UsageError
from tellapart.frames import Opener
from tellapart.listeners.cache import NamedPicture
from tellapart.listeners.late import SMALLEST, LateListener
from tellapart.listeners.late_model import pair_logprobs
from tellapart.types import Batch, ObjectiveModule, StepOutput

NOTHING_WRONG = -1
SOMEWHERE_WRONG = -2
"""Of a false text whose wrong word is not marked, as of sentences that people judged as a whole."""


@dataclass(frozen=True)
class Readings:
    """N texts compared with P images.

    Args:
        texts: N texts.
        text: P rows of ``texts``.
        images: P image ids.
        first_wrong: P places of the first wrong word, counted from 0; the number of words where only the end comes too soon;
            ``NOTHING_WRONG`` where all of the text is true, ``SOMEWHERE_WRONG`` where it is false and the place is not known.
    """

    texts: list[str]
    text: list[int]
    images: list[str]
    first_wrong: list[int]


Read = Callable[[Sequence[str], int], Readings]
"""Image ids and a seed -> texts with their images and first wrong words."""


class FirstWrongWord(ObjectiveModule):
    """Maximum likelihood of the first wrong word.

    The listener gives every word a probability p of being right, given the words before it. For a text whose first wrong word
    is w, ``L = -sum over words before w of log p - log(1 - p_w)``; words after w do not count. A true text has no such word, and
    its EOS counts as one that is right. So each wrong text teaches *where* it is wrong, as process supervision does
    (Lightman et al. 2023, section 2.6, where labels also end at the first wrong step), and a text's log-probability of being true
    is the sum over its words. Where only the text as a whole is known to be false, ``L = -log(1 - product over words of p)``.

    What it does not do: train the image tower, whose states are computed once.

    Args:
        listener: what learns, as the part ``model``; its tower and its readings keep their weights.
        read: draws texts for the images of a batch. It may pair them with other known images, too.

    Example:
        >>> objective = FirstWrongWord(listener, read)
        >>> objective.know_images(dataset)
        >>> train(objective, TrainingData(dataset, Collate({})), TrainConfig(output_dir=folder, max_steps=500))
    """

    decomposes = False

    def __init__(self, listener: LateListener, read: Read) -> None:
        super().__init__()
        self.model, self.listener, self.read = listener.model, listener, read
        self.model.requires_grad_(True)
        for part in (self.model.vision_model, self.model.reading):
            part.requires_grad_(False)
        self._row: dict[str, int] = {}
        self._states = torch.empty(0)

    @torch.no_grad()
    def know_images(self, dataset: Iterable[NamedPicture]) -> None:
        """Compute the tower's states of all images that readings will name."""
        examples, size = list(dataset), self.listener.batch_size
        opener = Opener.of(self.listener.process)
        chunks = [examples[start : start + size] for start in range(0, len(examples), size)]
        pictures = (self.listener.process([opener.single(example.image) for example in chunk]) for chunk in chunks)
        states = [self.model.image_states(tensors["pixel_values"].to(self.listener.device)) for tensors in pictures]
        self.know_states([example.id for example in examples], torch.cat(states))

    def know_states(self, ids: Sequence[str], states: Tensor) -> None:
        """In place of ``know_images``, where the states were computed already.

        Args:
            ids: of M images.
            states: ``[M, K, width]`` on the listener's device, as ``LateModel.image_states`` gives them.
        """
        self._states, self._row = states, {name: row for row, name in enumerate(ids)}

    def collect(self, batch: Batch, step: int) -> Readings:
        """Draw texts; they follow from image ids and seed."""
        return self.read(batch.ids, base_seed())

    def losses(self, readings: Readings) -> Iterator[StepOutput]:
        """One piece: the negative log-likelihood summed over pairs of text and image.

        Raises:
            UsageError: an image is not known, or a word of a text is more than one token.
        """
        names = list(dict.fromkeys(readings.images))
        vectors = self.model.image_vectors(self._states[[self._find(name) for name in names]])
        column = {name: i for i, name in enumerate(names)}
        pairs = torch.tensor([readings.text, [column[name] for name in readings.images], readings.first_wrong])
        lengths = [len(text.split()) + 2 for text in readings.texts]  # BOS and EOS
        # Texts of similar length are read together: padding costs as much as words.
        found = [self._bucket(readings, rows, pairs, vectors) for rows, _ in length_buckets(lengths)]
        loss = torch.stack([part for part, _ in found]).sum()
        logs = {key: torch.cat([logs[key] for _, logs in found]) for key in found[0][1]}
        yield StepOutput(loss, loss.new_tensor(float(pairs.shape[1])).detach(), logs)

    def _bucket(
        self, readings: Readings, rows: list[int], pairs: Tensor, vectors: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of all pairs whose texts are ``rows``, and whether their judgements are right."""
        texts = [readings.texts[row] for row in rows]
        tokens, mask = self.listener.tokens(texts)
        self._check(texts, mask)
        place = torch.full((len(readings.texts),), -1)
        place[torch.tensor(rows)] = torch.arange(len(rows))
        text, image, wrong = pairs[:, place[pairs[0]] >= 0].to(vectors.device)
        text = place.to(text.device)[text]
        queries, offsets = self.model.word_checks(tokens, mask)
        logprobs = pair_logprobs((queries[text], offsets[text]), vectors[image])
        right, first = right_and_first_wrong(mask[text].bool(), wrong)
        mistaken = torch.log(-torch.expm1(logprobs.clamp(max=-SMALLEST)))
        whole, unplaced = (logprobs * right).sum(dim=1), wrong == SOMEWHERE_WRONG
        somewhere = torch.log(-torch.expm1(whole.clamp(max=-SMALLEST)))
        likelihood = torch.where(unplaced, somewhere, whole).sum() + (mistaken * first).sum()
        told = ((logprobs * (right | first)).sum(dim=1) > -torch.log(logprobs.new_tensor(2.0))).detach()
        true = wrong == NOTHING_WRONG
        logs = {"accuracy/true": told[true].float(), "accuracy/false": (~told[~true]).float()}
        return -likelihood, logs

    def _find(self, name: str) -> int:
        if name not in self._row:
            raise UsageError(f"image {name!r} has no states: pass the data set to know_images first.")
        return self._row[name]

    def _check(self, texts: list[str], mask: Tensor) -> None:
        for text, tokens in zip(texts, mask.sum(dim=1).tolist(), strict=True):
            if tokens != len(text.split()) + 2:
                raise UsageError(
                    f"{text!r} has {len(text.split())} words but {tokens - 2} tokens: this objective needs a tokenizer with "
                    "one token per word, BOS and EOS, and texts that fit the model."
                )


def right_and_first_wrong(mask: Tensor, first_wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Two ``[P, T]`` bool masks over tokens: words known to be right, and the first wrong one. Of a text that is wrong somewhere
    the first mask holds all words: those whose product is known to be false.

    Args:
        mask: ``[P, T]`` bool, real tokens; the first is BOS, the last EOS.
        first_wrong: ``[P]`` long, as in ``Readings``.
    """
    word = torch.arange(mask.shape[1], device=mask.device)[None] - 1
    wrong = first_wrong[:, None]
    counted = mask & (word >= 0)
    whole = (wrong == NOTHING_WRONG) | (wrong == SOMEWHERE_WRONG)
    return counted & (whole | (word < wrong)), counted & (word == wrong)
