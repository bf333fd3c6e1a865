"""Weighted teacher forcing and reinforcement learning on a two-way contrastive reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from tellapart.captioners.base import Captioner, Encoded
from tellapart.errors import UsageError
from tellapart.objectives.trajectories import (
    GREEDY,
    POLICY,
    REFERENCE,
    Draw,
    Experience,
    ScoreTime,
    WeightedTrajectories,
    drawn_references,
    joined,
    policy_decoding,
)
from tellapart.ops import Reduction
from tellapart.ranges import NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat, in_range
from tellapart.rewards.contrastive import Candidates, Combine, Direction, combined, image_keys, text_keys
from tellapart.rewards.discriminator import plain
from tellapart.types import Batch, Decoding, Gather, LearnedReward, Listener, NearImages, Rollout


class WTFRL(WeightedTrajectories):
    """WTF-RL (Chaffin, Kijak & Claveau, 2024) and its parts WTF, RL and RL-Unidirectional.

    Each image gives one drawn caption, one human caption and the greedy one. Drawn and human captions are weighted by
    their own reward ``r(x) = alpha * r_sim(x) + (1 - alpha) * P_D(x)``: ``L = -mean r(x_drawn) log p(x_drawn) - mean
    r(x_human) log p(x_human)``. ``r_sim`` (equation 2) is how far caption and image stand out among all captions and
    all images, mined neighbours included, of the effective batch (``tellapart.rewards.contrastive``). ``P_D`` is a
    discriminator's probability that a person wrote the caption; it is trained with the captioner, human against drawn
    captions. The reward of a human caption may be negative: its likelihood is then lowered, as published.

    Departures from the released code: the human term has its own reward and log-probabilities (there it repeats the
    drawn ones); log-sum-exp is masked; lengths are real ones (there padded to 256); drawing is in eval mode without
    gradients; the temperature is given, not the listener's. From the paper: ``combine="half"`` and the scores of the
    discriminator before it learns, as in the code; ``seq_mean`` where the paper writes a sum over tokens.

    Args:
        captioner: the model to train.
        listener: the frozen dual encoder of the reward.
        neighbours: near images of each training image; none is allowed with empty ``neighbour_ranks``.
        discriminator: learns and scores; without one alpha is 1.
        trajectories: which captions are learned from: ``policy`` (RL), ``reference`` (WTF), or both.
        direction: ``both``; ``i2t`` compares the caption with captions only (RL-Unidirectional), ``t2i`` its image with images
            only, which at a low temperature is nearly the G_min that section 3.4 names.
        combine: ``half`` takes the mean of both directions (released code), ``sum`` their sum (paper); unused by one direction.
        alpha: weight of ``r_sim``, 0 to 1.
        temperature: temperature of the contrastive reward; lower approaches the hardest negative alone.
        clamp: highest log-ratio of a direction in nats, 16 in the released code; null leaves it free.
        neighbour_ranks: which neighbours join the images, 1 for the nearest; unused by ``i2t``, which compares no images.
        greedy_candidate: whether greedy captions join the texts, which makes them a baseline as in SCST; unused by ``t2i``,
            which compares no texts.
        discriminator_score: its score before or after its update in this step (paper; one more turn per step).
        draw: ``beam`` (released code) or ``sample``, one caption per image.
        num_beams: of ``beam``.
        no_repeat_ngram_size: of ``beam``; 0 allows repeats.
        max_new_tokens: longest caption in tokens, its EOS included.
        reduction: how token terms are averaged; ``seq_mean`` normalises by length, ``seq_sum`` is the paper's formula.
        clamp_reference_reward: raise negative rewards of human captions to 0; not published.
        center_policy_reward: subtract the mean reward of the step's drawn captions; not published.

    Raises:
        ValueError: a number is outside its range, a choice is unknown, or neighbours are asked for and not given.
    """

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        listener: Listener,
        neighbours: NearImages | None = None,
        discriminator: LearnedReward | None = None,
        *,
        trajectories: tuple[Literal["policy", "reference"], ...] = ("policy", "reference"),
        direction: Direction = "both",
        combine: Combine = "half",
        alpha: UnitFloat = 0.94,
        temperature: PositiveFloat = 0.01,
        clamp: float | None = None,
        neighbour_ranks: tuple[PositiveInt, ...] = (4, 5),
        greedy_candidate: bool = True,
        discriminator_score: ScoreTime = "pre_update",
        draw: Draw = "beam",
        num_beams: PositiveInt = 5,
        no_repeat_ngram_size: NonNegativeInt = 3,
        max_new_tokens: PositiveInt = 50,
        reduction: Reduction = "seq_mean",
        clamp_reference_reward: bool = False,
        center_policy_reward: bool = False,
    ) -> None:
        super().__init__(
            captioner,
            listener,
            discriminator,
            trajectories=trajectories,
            alpha=alpha,
            discriminator_score=discriminator_score,
            reduction=reduction,
            center_policy_reward=center_policy_reward,
            clamp_reference_reward=clamp_reference_reward,
        )
        compares_images, compares_texts = direction != "i2t", direction != "t2i"
        if neighbour_ranks and neighbours is None and compares_images:
            raise ValueError(f"neighbour_ranks={tuple(neighbour_ranks)} needs neighbours, which must be given")
        self.direction, self.combine, self.temperature, self.clamp = direction, combine, temperature, clamp
        self.neighbours, self.neighbour_ranks = neighbours if compares_images else None, tuple(neighbour_ranks)
        self.decoding = policy_decoding(draw, num_beams, no_repeat_ngram_size, max_new_tokens)
        self.greedy = Decoding(max_new_tokens=max_new_tokens) if greedy_candidate and compares_texts else None

    def collect(self, batch: Batch, step: int) -> Experience:
        """Draw the captions, embed them and the images.

        Raises:
            UsageError: an image has no human caption, or too few neighbours.
        """
        self.begin(step)
        encoded = self.captioner.encode(batch)
        drawn, greedy = self._drawn(batch, encoded)
        rollouts = {POLICY: drawn, REFERENCE: drawn_references(self.captioner, batch)}
        if greedy is not None:
            rollouts[GREEDY] = greedy
        embeddings = self._embedded(batch, rollouts)
        parts = self.scored_at_once(rollouts)
        return Experience(rollouts, self.captioner.reusable(encoded), parts, embeddings)

    def _drawn(self, batch: Batch, encoded: Encoded) -> tuple[Rollout, Rollout | None]:
        """The policy's captions, and the greedy ones if they are candidates, in one loop."""
        if self.greedy is None:
            return self.captioner.generate(batch, self.decoding, encoded=encoded), None
        return self.captioner.generate_with_greedy(batch, self.decoding, encoded=encoded, greedy=self.greedy)

    def _embedded(self, batch: Batch, rollouts: dict[str, Rollout]) -> dict[str, Tensor]:
        """Texts of all kinds, in the order of ``rollouts``, and images, with their keys."""
        texts = plain([text for rollout in rollouts.values() for text in rollout.texts])
        owners = [name for rollout in rollouts.values() for name in rollout.ids()]
        pictures, ids = self.listener.encode_images(batch), list(batch.ids)
        if self.neighbours is not None and (near := self._near(self.neighbours, ids)):
            pictures = torch.cat([pictures, self.listener.encode_ids(near)])
            ids += near
        device = pictures.device
        embedded = self.listener.encode_texts(texts).to(device)
        keys = {"text_keys": text_keys(owners, texts).to(device), "image_keys": image_keys(ids).to(device)}
        return {"texts": embedded, "images": pictures} | keys

    def _near(self, neighbours: NearImages, ids: Sequence[str]) -> list[str]:
        rows, most = neighbours.of(ids), max(self.neighbour_ranks, default=0)
        for name, row in zip(ids, rows, strict=True):
            if len(row) < most:
                raise UsageError(
                    f"objective.neighbour_ranks asks for neighbour {most} of image {name!r}, which has {len(row)}: "
                    "set neighbours.k higher, or the ranks lower."
                )
        return [row[rank - 1] for row in rows for rank in self.neighbour_ranks]

    def compared(self, experiences: list[Experience], gather: Gather) -> list[Experience]:
        """``r_sim`` of drawn and human captions, among those of the whole effective batch."""
        names = ("texts", "text_keys", "images", "image_keys")
        columns = [gather(torch.cat([e.embeddings[name] for e in experiences])) for name in names]
        candidates = Candidates.of(*columns)
        if self.direction != "i2t" and len(candidates.images) < 2:
            raise UsageError(
                "the contrastive reward compares images, but a step has only one: raise per_device_train_batch_size, or "
                "let neighbours join."
            )
        return [replace(e, parts=joined(self._contrasted(e, candidates), e.parts)) for e in experiences]

    def _contrasted(self, experience: Experience, candidates: Candidates) -> dict[str, dict[str, Tensor]]:
        own, parts = experience.embeddings, dict[str, dict[str, Tensor]]()
        sizes = [len(rollout) for rollout in experience.rollouts.values()]
        columns = (own[name].split(sizes) for name in ("texts", "text_keys"))
        for (kind, rollout), texts, keys in zip(experience.rollouts.items(), *columns, strict=True):
            if kind not in self.rewarded:
                continue
            owners = own["image_keys"][rollout.image.to(keys.device)]
            rewards = candidates.rewards(
                texts, keys, owners, temperature=self.temperature, clamp=self.clamp, direction=self.direction
            )
            applied = combined(rewards, self.combine)
            parts[kind] = {name: (self.alpha * r).to(rollout.image.device) for name, r in applied.items()}
        return parts
