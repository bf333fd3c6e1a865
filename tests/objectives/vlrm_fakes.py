"""A recurrent captioner with its critic, a reward and a listener that answer from the captions' words, for VLRM."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

import tiny_lstm
from tellapart.captioners.critic import Critic
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.objectives.vlrm import VLRM, VLRMRS
from tellapart.rewards.mix import Mix
from tellapart.rewards.penalties import Penalties
from tellapart.types import Batch, Rollout


class GivenCritic(nn.Module):
    """Values that are parameters."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values.clone())

    def fixed_states(self, rollout: Rollout, *, encoded=None) -> None:
        return None

    def forward(self, rollout: Rollout, *, encoded=None, states=None) -> Tensor:
        return self.values


def number(text: str) -> float:
    """From 0 to 1, the same for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


def by_words(rollout: Rollout) -> Tensor:
    """A reward on the scale of a matcher's logit."""
    values = [4 * number(name + text) - 1 for name, text in zip(rollout.ids(), rollout.texts, strict=True)]
    return torch.tensor(values, dtype=torch.float64)


def by_length(rollout: Rollout) -> Tensor:
    return -rollout.lengths.double() / 3


class NumberListener:
    """Embeds ids and texts as the numbers that their letters make."""

    name = "listener"

    def encode_texts(self, texts) -> Tensor:
        rows = [[byte - 127.5 for byte in hashlib.sha256(text.encode()).digest()[:6]] for text in texts]
        return nn.functional.normalize(torch.tensor(rows, dtype=torch.float64), dim=1)

    def encode_images(self, batch: Batch) -> Tensor:
        return self.encode_texts(batch.ids)


def speaker(dtype: torch.dtype = torch.float64) -> tuple[HuggingFaceCaptioner, Critic]:
    """The same weights whenever it is asked."""
    torch.manual_seed(1)
    captioner = tiny_lstm.tiny_lstm("fc_lstm").to(dtype)
    return captioner, Critic(captioner).to(dtype)


def make(kind: str = "vlrm", **options) -> VLRM:
    captioner, critic = speaker()
    penalties = Penalties(captioner.tokenizer, ["on a table"])
    reward = Mix({"itm": by_words, "language_model": by_length})
    options = {"max_new_tokens": 7, **options}
    if kind == "vlrm_rs":
        return VLRMRS(captioner, Mix({"itm": by_words}), NumberListener(), critic, penalties, **options)
    return VLRM(captioner, reward, critic, penalties, **options)


def images(count: int) -> Batch:
    batch = tiny_lstm.batch("fc_lstm", count)
    inputs = {"captioner": {"features": batch.inputs["captioner"]["features"].double()}}
    return Batch(batch.ids, [[] for _ in batch.ids], inputs)


def step(objective: VLRM, batches: list[Batch], gather=lambda tensor: tensor, seed: int = 3) -> dict[str, list]:
    """What the loop does in a step: gradients, divided by the summed weight; returns logged values."""
    experiences = []
    objective.eval()
    with torch.no_grad():
        for batch in batches:
            torch.manual_seed(seed)
            experiences.append(objective.collect(batch, 0))
        experiences = objective.prepare(experiences, gather)
    logs: dict[str, list] = {}
    weight = torch.zeros(())
    for experience in experiences:
        for piece in objective.losses(experience):
            piece.loss.backward()
            weight = weight + piece.weight
            for name, values in piece.logs.items():
                logs.setdefault(name, []).extend(values.reshape(-1).tolist())
    weight = gather(weight.reshape(1)).sum()
    for parameter in objective.parameters():
        if parameter.grad is not None:
            parameter.grad /= weight.to(parameter.grad)
    return logs
