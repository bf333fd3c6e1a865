"""The self-critical baselines of WTF-RL: a beam against the greedy caption, with a term for language quality."""

from __future__ import annotations

from torch import Tensor

from tellapart.captioners.base import Captioner
from tellapart.objectives.trajectories import (
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
from tellapart.ranges import NonNegativeInt, PositiveInt, UnitFloat, in_range
from tellapart.rewards.discriminator import plain
from tellapart.rewards.similarity import Similarity
from tellapart.types import Batch, Decoding, LearnedReward, Listener, Reward, Rollout


class SCSTDiscriminator(WeightedTrajectories):
    """SCST-Discriminator, a baseline of WTF-RL (Chaffin, Kijak & Claveau, 2024).

    ``r(x) = alpha * (cos(x, image) - cos(x_greedy, image)) + (1 - alpha) * P_D(x)`` weights the drawn caption's
    log-probability. The discriminator's term has no baseline, and it is trained with the captioner as in WTF-RL. The
    code was not released; drawing and weights are those of WTF-RL's.

    Args:
        captioner: the model to train.
        listener: the frozen dual encoder of the reward.
        discriminator: learns and scores; without one alpha is 1.
        alpha: weight of the cosines, 0 to 1.
        discriminator_score: its score before or after its update in this step (one more turn per step).
        draw: ``beam`` or ``sample``, one caption per image.
        num_beams: of ``beam``.
        no_repeat_ngram_size: of ``beam``; 0 allows repeats.
        max_new_tokens: longest caption in tokens, its EOS included.
        reduction: how token terms are averaged; ``seq_mean`` normalises by length.
        center_policy_reward: subtract the mean reward of the step's drawn captions; not published.

    Raises:
        ValueError: a number is outside its range, or a choice is unknown.
    """

    rewarded = (POLICY,)

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        listener: Listener,
        discriminator: LearnedReward | None = None,
        *,
        alpha: UnitFloat = 0.94,
        discriminator_score: ScoreTime = "pre_update",
        draw: Draw = "beam",
        num_beams: PositiveInt = 5,
        no_repeat_ngram_size: NonNegativeInt = 3,
        max_new_tokens: PositiveInt = 50,
        reduction: Reduction = "seq_mean",
        center_policy_reward: bool = False,
    ) -> None:
        super().__init__(
            captioner,
            listener,
            discriminator,
            trajectories=(POLICY,),
            alpha=alpha,
            discriminator_score=discriminator_score,
            reduction=reduction,
            center_policy_reward=center_policy_reward,
        )
        self.decoding = policy_decoding(draw, num_beams, no_repeat_ngram_size, max_new_tokens)
        self.greedy = Decoding(max_new_tokens=max_new_tokens)

    def collect(self, batch: Batch, step: int) -> Experience:
        """Draw a caption and the greedy one, and compare their cosines.

        Raises:
            UsageError: an image has no human caption, from which the discriminator learns.
        """
        self.begin(step)
        encoded = self.captioner.encode(batch)
        policy, greedy = self.captioner.generate_with_greedy(batch, self.decoding, encoded=encoded, greedy=self.greedy)
        rollouts = {POLICY: policy}
        if self.discriminator is not None:
            rollouts[REFERENCE] = drawn_references(self.captioner, batch)
        better = self._cosines(rollouts[POLICY]) - self._cosines(greedy)
        parts = joined({POLICY: {"similarity": self.alpha * better}}, self.scored_at_once(rollouts))
        return Experience(rollouts, self.captioner.reusable(encoded), parts)

    def _cosines(self, rollout: Rollout) -> Tensor:
        texts, images = self.listener.encode_texts(plain(rollout.texts)), self.listener.encode_images(rollout.batch)
        return (texts * images[rollout.image.to(images.device)].to(texts)).sum(dim=1).to(rollout.image.device)


class SCSTGrammar(WeightedTrajectories):
    """SCST-Grammar: the reward of Cho et al. (Findings of NAACL 2022) on the trajectories of WTF-RL, its baseline there.

    The drawn caption's log-probability is weighted by ``clip_weight * (CLIP-S(x) - CLIP-S(x_greedy)) + grammar_weight *
    (P_g(x) - P_g(x_greedy))``; both terms have the greedy caption as their baseline, as in Cho et al.'s configuration.
    Departure: one beam per image, as WTF-RL draws, where Cho et al. draw five samples (``draw="sample"`` draws one). Their
    CLIP-S is that of the listener whose text side was trained with the head; here ``listener`` may be that one or another.

    Args:
        captioner: the model to train.
        listener: the frozen dual encoder of CLIP-S, which adds its own prompt.
        grammar: the frozen probability that a caption is grammatical, 0 to 1.
        clip_weight: weight of CLIP-S (whose own w is 2.5).
        grammar_weight: weight of the probability.
        draw: ``beam`` or ``sample``, one caption per image.
        num_beams: of ``beam``.
        no_repeat_ngram_size: of ``beam``; 0 allows repeats.
        max_new_tokens: longest caption in tokens, its EOS included.
        reduction: how token terms are averaged; ``seq_mean`` normalises by length.

    Raises:
        ValueError: a number is outside its range, or a choice is unknown.
    """

    rewarded = (POLICY,)

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        listener: Listener,
        grammar: Reward,
        *,
        clip_weight: float = 2.0,
        grammar_weight: float = 1.0,
        draw: Draw = "beam",
        num_beams: PositiveInt = 5,
        no_repeat_ngram_size: NonNegativeInt = 3,
        max_new_tokens: PositiveInt = 50,
        reduction: Reduction = "seq_mean",
    ) -> None:
        super().__init__(captioner, listener, None, trajectories=(POLICY,), reduction=reduction)
        self.rewards: dict[str, tuple[float, Reward]] = {
            "clip_s": (clip_weight, Similarity(self.listener)),
            "grammar": (grammar_weight, grammar),
        }
        self.decoding = policy_decoding(draw, num_beams, no_repeat_ngram_size, max_new_tokens)
        self.greedy = Decoding(max_new_tokens=max_new_tokens)

    def collect(self, batch: Batch, step: int) -> Experience:
        """Draw a caption and the greedy one, and compare their rewards."""
        self.begin(step)
        encoded = self.captioner.encode(batch)
        policy, greedy = self.captioner.generate_with_greedy(batch, self.decoding, encoded=encoded, greedy=self.greedy)
        parts = {
            name: weight * (r(policy) - r(greedy)[policy.image]).detach() for name, (weight, r) in self.rewards.items()
        }
        return Experience({POLICY: policy}, self.captioner.reusable(encoded), {POLICY: parts})
