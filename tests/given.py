"""A captioner and a reward that return given numbers, so that published vectors can go through the objectives."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from tellapart.captioners.base import Captioner, Encoded
from tellapart.types import Batch, Rollout, Scores, StepOutput

VECTORS = {entry["name"]: entry for entry in json.loads((Path(__file__).parent / "vectors.json").read_text())}


def vector(name: str) -> tuple[dict, dict, float]:
    """``(inputs, expected, absolute tolerance)``; the numbers are float64."""
    entry = VECTORS[name]
    return entry["inputs"], entry["expected"], entry["tolerance"]


def double(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class GivenCaptioner(Captioner):
    """Draws numbered captions and gives each the log-probabilities of a parameter ``[N, T]``.

    The captions of image b are ``b/0``, ``b/1``, ...; greedy search gives ``b/greedy``.
    """

    def __init__(self, logprobs: Tensor, mask: Tensor, image: Tensor, reference_logprobs: Tensor | None = None) -> None:
        super().__init__()
        self.logprobs = nn.Parameter(logprobs.clone())
        self.given_mask, self.image, self.reference_logprobs = mask.bool(), image, reference_logprobs
        self.scored = 0

    def rollout(self, batch: Batch, kind: str = "") -> Rollout:
        if kind:
            count, width = len(batch), 1
            image, mask = torch.arange(count), torch.ones(count, width, dtype=torch.bool)
            texts = [f"{i}/{kind}" for i in range(count)]
        else:
            image, mask = self.image, self.given_mask
            seen: dict[int, int] = {}
            texts = []
            for i in image.tolist():
                texts.append(f"{i}/{seen.setdefault(i, 0)}")
                seen[i] += 1
        return Rollout(
            batch, image, texts, torch.ones_like(mask, dtype=torch.long), mask, torch.ones(len(image)).bool()
        )

    def process(self, images):
        return {}

    def encode(self, batch):
        return Encoded(torch.zeros(len(batch), 1, 1))

    def reusable(self, encoded):
        return encoded

    def generate(self, batch, decoding, *, encoded=None):
        greedy = not decoding.do_sample and decoding.num_beams == 1
        return self.rollout(batch, "greedy" if greedy else "")

    def tokenize(self, batch, texts, image):
        return self.rollout(batch)

    def forward(self, rollout, *, encoded=None, want=()):
        self.scored += 1
        return Scores(self.logprobs)

    def reference(self):
        given = self.reference_logprobs

        def score(rollout: Rollout, *, encoded: Encoded | None = None) -> Scores:
            assert given is not None
            return Scores(given)

        return score

    def save(self, folder):
        raise NotImplementedError

    def load_weights(self, folder):
        raise NotImplementedError


def given_reward(table: dict[str, float]):
    """A reward that looks captions up by text."""

    def reward(rollout: Rollout) -> Tensor:
        return double([table[text] for text in rollout.texts])

    return reward


def images(count: int) -> Batch:
    """A batch of images without pixels."""
    return Batch([str(i) for i in range(count)], [["a reference"] for _ in range(count)])


def run(objective, batch: Batch):
    """One step through the protocol: ``(loss, experience, outputs)`` with gradients in the captioner's parameter."""
    with torch.no_grad():
        experience = objective.collect(batch, 0)
    [experience] = objective.prepare([experience], lambda tensor: tensor)
    outputs: list[StepOutput] = []
    for output in objective.losses(experience):
        output.loss.backward()
        outputs.append(output)
    weight = sum(float(output.weight) for output in outputs)
    objective.captioner.logprobs.grad /= weight
    return sum(float(output.loss.detach()) for output in outputs) / weight, experience, outputs


def rewards_by_text(rows) -> dict[str, float]:
    """``[image][caption]`` rewards under the texts :class:`GivenCaptioner` draws."""
    return {f"{b}/{j}": value for b, row in enumerate(rows) for j, value in enumerate(row)}
