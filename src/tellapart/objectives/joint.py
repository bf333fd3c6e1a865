"""A captioner and a listener without gradients through words: in alternation by REINFORCE, or with one of the two frozen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from tellapart.captioners.base import Captioner, Encoded
from tellapart.objectives.common import score
from tellapart.objectives.communication import (
    AnyListener,
    Frozen,
    Natural,
    heard,
    natural,
    on_its_own_scale,
    sampling,
)
from tellapart.objectives.trajectories import drawn_references
from tellapart.ops import reduce
from tellapart.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitFloat, in_range
from tellapart.types import Batch, ObjectiveModule, Reward, Rollout, StepOutput


@dataclass(frozen=True)
class Spoken:
    """The captioner's turn: drawn captions, and what their log-probabilities are weighted by (lower is better).

    Args:
        rollout: one drawn caption per image.
        encoded: the images for the captioner, if they stay valid.
        cost: ``[B]``, without gradient.
        logs: values to log.
    """

    rollout: Rollout
    encoded: Encoded | None
    cost: Tensor
    logs: dict[str, Tensor]


@dataclass(frozen=True)
class Heard:
    """The listener's turn: freshly drawn captions to learn from, one per image."""

    rollout: Rollout


class Luo2018(ObjectiveModule):
    """Discriminability by REINFORCE with a frozen listener (Luo, Price, Cohen & Shakhnarovich, CVPR 2018), as a baseline of
    PSST (Vered et al., ICCV 2019).

    ``L = token_mean(log p * w * (l(x) - l(greedy))) + L_SCST``: ``l`` is the hinge of an image and its caption with the
    hardest other caption and image of the batch, a cost; both terms are means over the tokens of one drawn caption per
    image. Their retrieval loss and margin are PSST's here.

    Departures: training and decoding otherwise are the recipe's; Luo et al. forbid that a word follows itself.

    Args:
        captioner: the model to train.
        reward: how natural a caption is; higher is better. The paper's is CIDEr-D.
        own_listener: frozen; any listener that reads captions.
        discriminability_weight: w, their lambda; CIDEr has weight 1. Its scale differs from other methods: a hinge of cosines
            against a reward of 0 to 10, both as means over tokens.
        margin: m of the hinge, on the scale of cosines.
        max_new_tokens: longest caption in tokens, its EOS included.

    Raises:
        ValueError: a number cannot be used.
    """

    decomposes = False
    revision = 2  # captions of up to 17 tokens, where a recipe does not say

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        own_listener: AnyListener,
        *,
        discriminability_weight: NonNegativeFloat = 1.0,
        margin: NonNegativeFloat = 0.2,
        max_new_tokens: PositiveInt = 17,
    ) -> None:
        super().__init__()
        self.captioner, self._listener, self.reward = captioner, Frozen(own_listener), reward
        self.discriminability_weight, self.natural_weight, self.margin = discriminability_weight, 1.0, margin
        self.sampled = sampling(max_new_tokens)

    def collect(self, batch: Batch, step: int) -> Spoken:
        """Draw a caption and the greedy one, and have the listener score both."""
        encoded = self.captioner.encode(batch)
        drawn, greedy = self.captioner.generate_with_greedy(batch, self.sampled, encoded=encoded)
        baseline = heard(self._listener.module, greedy, self.margin)[0]
        return self.spoken(self._listener.module, encoded, drawn, greedy, baseline)

    def spoken(
        self, listener: AnyListener, encoded: Encoded, drawn: Rollout, greedy: Rollout, baseline: Tensor
    ) -> Spoken:
        """What the captioner learns from: ``w * (l(x) - baseline) - natural_weight * (r(x) - r(greedy))``."""
        hinge, logs = heard(listener, drawn, self.margin)
        said: Natural = natural(self.reward, drawn, score(self.reward, greedy)[0])
        missed = (hinge - baseline).to(said.advantage)
        cost = self.discriminability_weight * missed - self.natural_weight * said.advantage
        logs |= said.logs | {"own_listener/baseline": baseline}
        return Spoken(drawn, self.captioner.reusable(encoded), cost, logs)

    def losses(self, experience: Spoken) -> Iterator[StepOutput]:
        """One piece: costs weight log-probabilities, over all tokens."""
        logprobs = self.captioner(experience.rollout, encoded=experience.encoded).logprobs
        values = experience.cost[:, None].to(logprobs) * logprobs
        loss, tokens = reduce(values, experience.rollout.mask, "token_mean")
        yield StepOutput(loss, tokens, experience.logs)


class ReinforceJoint(Luo2018):
    """Captioner and listener learn in alternation, by REINFORCE, as a baseline of PSST (Vered et al., ICCV 2019, section 6.2).

    Even steps are the captioner's, with the listener frozen: ``L = token_mean(log p * w * (l(x) - l(human))) + (1 - w) *
    L_SCST``, ``l`` the hinge of an image and its caption with the hardest others of the batch, ``human`` one human caption
    of each image, compared with each other. Odd steps are the listener's: ``listener_weight`` times the sum of the hinges
    of freshly drawn captions. Whose turn it is follows from the step.

    Departures: the released run script gives the listener's turn no weight; here it has that of its example.

    Args:
        captioner: the speaker.
        reward: how natural a caption is; higher is better. The paper's is CIDEr-D.
        own_listener: trained in alternation with the captioner; any that reads captions.
        discriminability_weight: w, the paper's lambda, 0 to 1. On a scale of its own: means over tokens on both sides,
            0.8 in the released example.
        listener_weight: of the listener's turn.
        margin: m of the hinge, on the scale of cosines.
        max_new_tokens: longest caption in tokens, its EOS included.

    Raises:
        ValueError: a number cannot be used.
    """

    period = 2

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        own_listener: AnyListener,
        *,
        discriminability_weight: UnitFloat = 0.8,
        listener_weight: PositiveFloat = 0.1,
        margin: NonNegativeFloat = 0.2,
        max_new_tokens: PositiveInt = 17,
    ) -> None:
        super().__init__(
            captioner,
            reward,
            own_listener,
            discriminability_weight=discriminability_weight,
            margin=margin,
            max_new_tokens=max_new_tokens,
        )
        self.own_listener, self.listener_weight = own_listener, listener_weight
        self.natural_weight = 1 - discriminability_weight

    def collect(self, batch: Batch, step: int) -> Spoken | Heard:  # type: ignore[override]  # its losses take both
        """Draw captions for whoever's turn it is.

        Raises:
            UsageError: an image has no human caption.
        """
        encoded = self.captioner.encode(batch)
        if step % 2:
            return Heard(self.captioner.generate(batch, self.sampled, encoded=encoded))
        human = heard(self.own_listener, drawn_references(self.captioner, batch), self.margin)[0]
        drawn, greedy = self.captioner.generate_with_greedy(batch, self.sampled, encoded=encoded)
        return self.spoken(self.own_listener, encoded, drawn, greedy, human)

    def losses(self, experience: Spoken | Heard) -> Iterator[StepOutput]:
        """One piece: the captioner's, or the listener's on a scale of its own."""
        if isinstance(experience, Spoken):
            yield from super().losses(experience)
            return
        hinge, logs = heard(self.own_listener, experience.rollout, self.margin)
        yield on_its_own_scale(self.listener_weight * hinge.sum(), logs)


class ListenerOnly(ObjectiveModule):
    """A listener learns on the captions of a frozen captioner: the frozen-speaker rows of PSST's Table 3 (Vered
    et al., ICCV 2019).

    ``L = sum_i l_i``, the hinge of each image and a freshly drawn caption with the hardest others of the batch.

    Args:
        captioner: frozen.
        own_listener: learns; any that reads captions.
        margin: m of the hinge, on the scale of cosines.
        max_new_tokens: longest caption in tokens, its EOS included.

    Raises:
        ValueError: a number is outside its range.
    """

    decomposes = False
    revision = 2  # captions of up to 17 tokens, where a recipe does not say

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        own_listener: AnyListener,
        *,
        margin: NonNegativeFloat = 0.2,
        max_new_tokens: PositiveInt = 17,
    ) -> None:
        super().__init__()
        self._captioner, self.own_listener, self.margin = Frozen(captioner), own_listener, margin
        self.sampled = sampling(max_new_tokens)

    @property
    def captioner(self) -> Captioner:
        """The captioner, which is not a child."""
        return self._captioner.module

    def collect(self, batch: Batch, step: int) -> Heard:
        """Draw a caption of each image."""
        return Heard(self.captioner.generate(batch, self.sampled))

    def losses(self, experience: Heard) -> Iterator[StepOutput]:
        """One piece: the hinge, summed over images."""
        hinge, logs = heard(self.own_listener, experience.rollout, self.margin)
        yield on_its_own_scale(hinge.sum(), logs)
