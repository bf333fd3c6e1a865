"""A speaker that answers from a table of logits and listeners that answer from tables or linearly, for PSST and its baselines."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from given import double
from tellapart.captioners.base import Captioner, Encoded
from tellapart.captioners.unroll import passed_words, perturbed
from tellapart.relaxation import Relaxation, SoftRollout
from tellapart.types import Batch, Decoding, Rollout, Scores

HUMAN = "human"


class TableSpeaker(Captioner):
    """Image i says at place t a word of ``softmax(logits[i, t])``, whatever came before; captions never end early.

    Args:
        logits: ``[I, T, V]``, what it learns; image ids are row numbers.
        mask: ``[I, T]`` of all its captions; everything without.
        sampled: ``[I, T]`` words that it draws, in place of drawing; human captions are all of word 0.
        soft: ``[I, T]`` steps that pass the distribution, in place of drawing them.
        noise: ``[I, T, V]`` of Gumbel, in place of drawing it.
    """

    name = "captioner"

    def __init__(
        self,
        logits: Tensor,
        mask: Tensor | None = None,
        *,
        sampled: Tensor | None = None,
        soft: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())
        self.mask = torch.ones(logits.shape[:2]).bool() if mask is None else mask.bool()
        self.sampled, self.soft, self.noise = sampled, soft, noise
        self.asked = list[Relaxation]()

    def rows(self, batch: Batch) -> Tensor:
        return torch.tensor([int(name) for name in batch.ids])

    def rollout(self, batch: Batch, tokens: Tensor, kind: str) -> Rollout:
        mask = self.mask[self.rows(batch)]
        texts = [
            f"{name}/{kind}/{''.join(map(str, row))}" for name, row in zip(batch.ids, tokens.tolist(), strict=True)
        ]
        return Rollout(batch, torch.arange(len(batch)), texts, tokens, mask, torch.ones(len(batch)).bool())

    def drawn(self, batch: Batch) -> Tensor:
        if self.sampled is not None:
            return self.sampled[self.rows(batch)]
        shares = self.logits[self.rows(batch)].detach().softmax(dim=2)
        return torch.distributions.Categorical(probs=shares).sample()

    def generate(self, batch, decoding: Decoding, *, encoded=None):
        assert not torch.is_grad_enabled()
        if decoding.do_sample:
            return self.rollout(batch, self.drawn(batch), "drawn")
        return self.rollout(batch, self.logits[self.rows(batch)].argmax(dim=2), "greedy")

    def tokenize(self, batch, texts, image):
        return self.rollout(batch, torch.zeros(len(batch), self.logits.shape[1], dtype=torch.long), HUMAN)

    def unroll(self, batch: Batch, relaxation: Relaxation, *, encoded=None) -> SoftRollout:
        self.asked.append(relaxation)
        scores, tokens = self.logits[self.rows(batch)].log_softmax(dim=2), self.drawn(batch)
        if relaxation.estimator == "gumbel":
            noise = -torch.rand(scores.shape).log().neg().log() if self.noise is None else self.noise
            scores = perturbed(scores, noise, relaxation.temperature)
            tokens = scores.argmax(dim=2)
        soft = torch.rand(tokens.shape) < relaxation.rho if self.soft is None else self.soft[self.rows(batch)].bool()
        words = passed_words(scores.flatten(0, 1), tokens.flatten(), soft.flatten()).view(scores.shape)
        return SoftRollout(self.rollout(batch, tokens, "drawn"), words)

    def forward(self, rollout, *, encoded=None, want=()):
        logprobs = self.logits[self.rows(rollout.batch)].log_softmax(dim=2)
        return Scores(logprobs.gather(2, rollout.tokens[:, :, None]).squeeze(2))

    def process(self, images):
        return {}

    def encode(self, batch):
        return Encoded(torch.zeros(len(batch), 1, 1))

    def reusable(self, encoded):
        return encoded

    def reference(self):
        raise NotImplementedError

    def save(self, folder):
        raise NotImplementedError

    def load_weights(self, folder):
        raise NotImplementedError


class LinearListener(nn.Module):
    """A caption's embedding is the sum of ``words @ weight``, an image's the given row; of any norm."""

    name = "own_listener"

    def __init__(self, weight: Tensor, images: Tensor) -> None:
        super().__init__()
        self.weight, self.images = nn.Parameter(weight.clone()), nn.Parameter(images.clone())

    def embed_images(self, batch):
        return self.images[[int(name) for name in batch.ids]]

    def embed_words(self, words, mask, finished=None):
        return (words @ self.weight * mask[:, :, None]).sum(dim=1)

    def embed_tokens(self, tokens, mask):
        return self.embed_words(nn.functional.one_hot(tokens, len(self.weight)).to(self.weight), mask)


class GivenListener(nn.Module):
    """Similarities of images and captions are given, whatever is said: ``kind -> [B, B]``, rows are images.

    ``scale`` learns: it multiplies every caption.
    """

    name = "own_listener"

    def __init__(self, similarities: Tensor, human: Tensor | None = None) -> None:
        super().__init__()
        self.scale = nn.Parameter(similarities.new_ones(()))
        self.given, self.human = similarities, human

    def embed_images(self, batch):
        return torch.eye(len(batch), dtype=self.given.dtype)

    def embed_words(self, words, mask, finished=None):
        return self.scale * self.given.T + 0 * words.sum()

    def embed_tokens(self, tokens, mask):
        of_people = self.human is not None and not tokens.any()
        return self.scale * (self.human if of_people and self.human is not None else self.given).T


class OwnScore(nn.Module):
    """The similarity of image i and caption i is the caption's linear score; all others are 0."""

    name = "own_listener"

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def embed_images(self, batch):
        return torch.eye(len(batch), dtype=self.weight.dtype)

    def embed_words(self, words, mask, finished=None):
        return torch.diag((words @ self.weight * mask).sum(dim=1))

    def embed_tokens(self, tokens, mask):
        return self.embed_words(nn.functional.one_hot(tokens, len(self.weight)).to(self.weight), mask)


def batch_of(count: int) -> Batch:
    """Images without pixels, with one reference each."""
    return Batch([str(i) for i in range(count)], [["people's words"] for _ in range(count)])


def by_kind(drawn: list[float], greedy: list[float]) -> Callable[[Rollout], Tensor]:
    """A reward of each image's drawn and greedy caption."""
    table = {"drawn": drawn, "greedy": greedy}

    def reward(rollout: Rollout) -> Tensor:
        return double([table[text.split("/")[1]][int(text.split("/")[0])] for text in rollout.texts])

    return reward


def logits_of(logprobs: list[list[float]]) -> Tensor:
    """``[I, T, 2]`` logits under which word 1 has the given log-probabilities."""
    words = double(logprobs)
    return torch.stack([(1 - words.exp()).log(), words], dim=2)


def learn(objective, batch: Batch, step: int = 0):
    """One turn as the loop takes it: ``(loss, logs)``, with gradients divided by the summed weight."""
    with torch.no_grad():
        experience = objective.collect(batch, step)
    [experience] = objective.prepare([experience], lambda tensor: tensor)
    loss, weight, logs = 0.0, 0.0, dict[str, Tensor]()
    for piece in objective.losses(experience):
        if piece.loss.requires_grad:
            piece.loss.backward()
        loss, weight, logs = loss + float(piece.loss.detach()), weight + float(piece.weight), logs | piece.logs
    for parameter in objective.parameters():
        if parameter.grad is not None:
            parameter.grad /= weight or 1.0
    return loss / (weight or 1.0), logs
