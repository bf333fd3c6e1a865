"""A captioner, a listener and a discriminator that answer from tables, for WTF-RL and its baselines."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tellapart.captioners.base import Captioner, Encoded
from tellapart.types import Batch, Rollout, Scores


class TableCaptioner(Captioner):
    """Draws ``<id>/drawn`` by beam or sample and ``<id>/greedy``; every text has a row of log-probabilities to learn.

    Args:
        rows: text -> ``(log-probabilities, mask)``, all of one width; texts without one get made-up rows.
        same: id -> the text that both the beam and greedy search give for it.
    """

    def __init__(self, rows: dict[str, tuple[list[float], list[float]]], same: dict[str, str] | None = None) -> None:
        super().__init__()
        self.index = {text: i for i, text in enumerate(rows)}
        self.logprobs = nn.Parameter(torch.tensor([row for row, _ in rows.values()], dtype=torch.float64))
        self.masks = torch.tensor([mask for _, mask in rows.values()]).bool()
        self.same = same or {}

    def rollout(self, batch: Batch, texts: list[str]) -> Rollout:
        mask = torch.stack([self.masks[self.index[text]] for text in texts])
        image = torch.arange(len(texts))
        return Rollout(batch, image, texts, mask.long(), mask, torch.ones(len(texts)).bool())

    def process(self, images):
        return {}

    def encode(self, batch):
        return Encoded(torch.zeros(len(batch), 1, 1))

    def reusable(self, encoded):
        return encoded

    def generate(self, batch, decoding, *, encoded=None):
        assert not torch.is_grad_enabled()
        greedy = not decoding.do_sample and decoding.num_beams == 1
        return self.rollout(batch, [self.same.get(i, f"{i}/{'greedy' if greedy else 'drawn'}") for i in batch.ids])

    def tokenize(self, batch, texts, image):
        assert image.tolist() == list(range(len(batch)))
        return self.rollout(batch, list(texts))

    def forward(self, rollout, *, encoded=None, want=()):
        return Scores(self.logprobs[[self.index[text] for text in rollout.texts]])

    def reference(self):
        raise NotImplementedError

    def save(self, folder):
        raise NotImplementedError

    def load_weights(self, folder):
        raise NotImplementedError


class TableListener:
    """Embeddings by text and by image id, float64 and as given (of any norm)."""

    name = "listener"

    def __init__(self, texts: dict[str, list[float]], images: dict[str, list[float]]) -> None:
        self.texts, self.images, self.embedded = texts, images, list[str]()

    def encode_images(self, batch: Batch) -> Tensor:
        return self.encode_ids(batch.ids)

    def encode_ids(self, ids) -> Tensor:
        return torch.tensor([self.images[i] for i in ids], dtype=torch.float64)

    def encode_texts(self, texts) -> Tensor:
        self.embedded += texts
        return torch.tensor([self.texts[text] for text in texts], dtype=torch.float64)


class TableNeighbours:
    """Neighbours by id."""

    def __init__(self, near: dict[str, list[str]]) -> None:
        self.near = near

    def of(self, ids) -> list[list[str]]:
        return [self.near[i] for i in ids]


class TableDiscriminator(nn.Module):
    """Scores by text, one number to learn each; its loss is the cross-entropy of ``sigmoid(score)``."""

    def __init__(self, scores: dict[str, float], *, raw: bool = False) -> None:
        super().__init__()
        self.index = {text: i for i, text in enumerate(scores)}
        self.scores = nn.Parameter(torch.tensor(list(scores.values()), dtype=torch.float64))
        self.raw = raw

    def rows(self, rollout: Rollout) -> Tensor:
        return self.scores[[self.index[text] for text in rollout.texts]]

    def forward(self, rollout: Rollout) -> Tensor:
        with torch.no_grad():
            return self.rows(rollout) if self.raw else self.rows(rollout).sigmoid()

    def loss(self, real: Rollout, fake: Rollout):
        logits = torch.cat([self.rows(real), -self.rows(fake)])
        losses = -nn.functional.logsigmoid(logits)
        return (losses * 0 if self.raw else losses), {"discriminator/accuracy": (logits > 0).double().detach()}


def batch_of(ids: list[str]) -> Batch:
    """Images without pixels, with one reference each."""
    return Batch(list(ids), [[f"{i}/human"] for i in ids])


def alone(tensor: Tensor) -> Tensor:
    """``gather`` on one device."""
    return tensor


def step(objective, batches: list[Batch], gather=alone):
    """Collect and prepare one effective batch, cut into these micro-batches."""
    with torch.no_grad():
        collected = []
        for batch in batches:
            torch.manual_seed(0)
            collected.append(objective.collect(batch, 0))
        return objective.prepare(collected, gather)


def learn(objective, experiences) -> float:
    """Back-propagate as the loop does: the loss, with gradients divided by the summed weight."""
    objective.zero_grad(set_to_none=True)
    loss = weight = 0.0
    for experience in experiences:
        for piece in objective.losses(experience):
            if piece.loss.requires_grad:
                piece.loss.backward()
            loss, weight = loss + float(piece.loss.detach()), weight + float(piece.weight)
    divisor = weight or 1.0
    for parameter in objective.parameters():
        if parameter.grad is not None:
            parameter.grad /= divisor
    return loss / divisor
