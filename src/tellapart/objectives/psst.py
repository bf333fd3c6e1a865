"""PSST: a captioner (speaker) and a listener learn together, with gradients through the words; and straight-through baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from tellapart.captioners.base import Captioner, Encoded
from tellapart.objectives.common import score
from tellapart.objectives.communication import (
    Natural,
    natural,
    natural_loss,
    on_its_own_scale,
    sampling,
    told_apart,
)
from tellapart.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitFloat, in_range
from tellapart.relaxation import Relaxation, SoftListener
from tellapart.types import Batch, Decoding, ObjectiveModule, Reward, StepOutput


@dataclass(frozen=True)
class Experience:
    """The images of a step and what is known before gradients flow.

    Args:
        batch: B images.
        encoded: the images for the captioner, if they stay valid.
        relaxation: how words are passed on in this step.
        greedy: ``[B]`` rewards of the greedy captions.
        spoken: captions drawn for naturalness, or none: those that are passed to the listener.
    """

    batch: Batch
    encoded: Encoded | None
    relaxation: Relaxation
    greedy: Tensor
    spoken: Natural | None


class PSST(ObjectiveModule):
    """Partial-sampling straight-through (Vered, Oren, Atzmon & Chechik, ICCV 2019, equations 1 and 2, section 5).

    ``L = w * sum_i l_i + (1 - w) * L_nat``. ``l_i`` is the hinge of an image and its caption, as words with gradients, with
    the hardest other caption and the hardest other image of the batch: listener and captioner both learn from it. Each
    step of a caption passes the whole distribution with probability rho, else the drawn word, straight through.
    ``L_nat`` is SCST: a drawn caption against the greedy one, by the reward (the paper's is CIDEr-D), averaged over tokens.

    ``psst`` draws another caption for ``L_nat``. Straight-through without soft feeding (``rho`` 0, ``feed_soft`` off:
    ``st_multinomial``, ``st_gumbel``) takes the caption that the listener was given, which is then a sample of the
    captioner.

    Departures: rho has the paper's polarity (the released code's is the chance of a drawn word). The margin is the code's
    0.2; the paper's 1 exceeds most differences of cosines. Captions are drawn without dropout. The first EOS is
    passed like any other word, as section 5 has it; the released code passes it as a constant (``gradient_through_eos``).

    Args:
        captioner: the speaker; must be able to unroll.
        reward: how natural a caption is; higher is better.
        own_listener: the listener trained with it; must read distributions over the captioner's words.
        estimator: ``multinomial``, or ``gumbel`` (Gumbel-softmax, straight through).
        rho: probability (0 to 1) that a step passes the whole distribution.
        temperature: of Gumbel-softmax.
        feed_soft: whether the captioner, too, reads what is passed.
        discriminability_weight: w, the paper's lambda, 0 to 1. It multiplies a SUM over the images of a step, whereas
            ``L_nat`` is a mean over tokens, so that it is small, and smaller the more images a step has: the paper
            searched 0.0005 to 0.01 at 128 images. For a mean over images multiply it by their number. Other methods
            have other scales.
        margin: m of the hinge, on the scale of cosines.
        max_new_tokens: longest caption in tokens, its EOS included; the paper clips captions at 16 words.
        gradient_through_eos: whether the step that draws the first EOS passes on what any other step does (paper, section 5);
            else it passes the one-hot EOS without gradient (released code).

    Raises:
        ValueError: a number or name cannot be used.
    """

    decomposes = False
    revision = 2  # captions of up to 17 tokens and gradients through EOS, where a recipe does not say

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        own_listener: SoftListener,
        *,
        estimator: Literal["multinomial", "gumbel"] = "multinomial",
        rho: UnitFloat = 0.25,
        temperature: PositiveFloat = 1.0,
        feed_soft: bool = True,
        discriminability_weight: UnitFloat = 0.005,
        margin: NonNegativeFloat = 0.2,
        max_new_tokens: PositiveInt = 17,
        gradient_through_eos: bool = True,
    ) -> None:
        super().__init__()
        if estimator == "multinomial" and temperature != 1:
            raise ValueError(f"temperature={temperature} is of estimator gumbel: leave it out of multinomial")
        self.captioner, self.own_listener, self.reward = captioner, own_listener, reward
        self.relaxation = Relaxation(estimator, rho, temperature, feed_soft, max_new_tokens, gradient_through_eos)
        self.discriminability_weight, self.margin = discriminability_weight, margin
        self.greedy, self.sampled = Decoding(max_new_tokens=max_new_tokens), sampling(max_new_tokens)
        self.reuses_words = rho == 0 and not feed_soft

    def relaxation_at(self, step: int) -> Relaxation:
        """How words are passed on in a step: always the same way."""
        return self.relaxation

    def collect(self, batch: Batch, step: int) -> Experience:
        """Draw what needs no gradient: the greedy caption, and the one that is to be natural."""
        encoded = self.captioner.encode(batch)
        if self.reuses_words:
            drawn, greedy = None, self.captioner.generate(batch, self.greedy, encoded=encoded)
        else:
            drawn, greedy = self.captioner.generate_with_greedy(batch, self.sampled, encoded=encoded)
        rewards = score(self.reward, greedy)[0]
        spoken = None if drawn is None else natural(self.reward, drawn, rewards)
        return Experience(batch, self.captioner.reusable(encoded), self.relaxation_at(step), rewards, spoken)

    def losses(self, experience: Experience) -> Iterator[StepOutput]:
        """Two pieces, each on a scale of its own: the hinge, summed over images, and the loss of naturalness."""
        soft = self.captioner.unroll(experience.batch, experience.relaxation, encoded=experience.encoded)
        images = self.own_listener.embed_images(experience.batch)
        captions = self.own_listener.embed_words(soft.words, soft.rollout.mask, soft.rollout.finished)
        hinge, logs = told_apart(images, captions, self.margin, experience.batch.ids)
        logs |= {"temperature": hinge.new_tensor(experience.relaxation.temperature)}
        yield on_its_own_scale(self.discriminability_weight * hinge.sum(), logs)
        spoken = experience.spoken or natural(self.reward, soft.rollout, experience.greedy)
        loss = natural_loss(self.captioner, spoken, experience.encoded)
        yield on_its_own_scale((1 - self.discriminability_weight) * loss, spoken.logs)


class GumbelAnnealed(PSST):
    """Straight-through Gumbel-softmax whose temperature falls, ``max(lowest, exp(-anneal_rate * step))`` (Jang, Gu & Poole,
    ICLR 2017, as a baseline of PSST: Vered et al. 2019, section 6.2).

    The temperature follows from the step alone and is renewed every ``anneal_every`` steps. Departures: the released code
    multiplies the formula into the temperature before, which collapses it. The paper names no rate.

    Args:
        captioner: the speaker; must be able to unroll.
        reward: how natural a caption is; higher is better.
        own_listener: the listener trained with it; must read distributions over the captioner's words.
        anneal_rate: r, per step.
        anneal_every: steps between new temperatures, N of Jang et al.; the first is 1, so a run must be longer.
        lowest_temperature: below which it does not fall.
        discriminability_weight: as in ``psst``.
        margin: m of the hinge, on the scale of cosines.
        max_new_tokens: longest caption in tokens, its EOS included.
        gradient_through_eos: as in ``psst``.

    Raises:
        ValueError: a number cannot be used.
    """

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        own_listener: SoftListener,
        *,
        anneal_rate: NonNegativeFloat = 1e-4,
        anneal_every: PositiveInt = 500,
        lowest_temperature: PositiveFloat = 0.5,
        discriminability_weight: UnitFloat = 0.005,
        margin: NonNegativeFloat = 0.2,
        max_new_tokens: PositiveInt = 17,
        gradient_through_eos: bool = True,
    ) -> None:
        super().__init__(
            captioner,
            reward,
            own_listener,
            estimator="gumbel",
            rho=0.0,
            feed_soft=False,
            discriminability_weight=discriminability_weight,
            margin=margin,
            max_new_tokens=max_new_tokens,
            gradient_through_eos=gradient_through_eos,
        )
        self.anneal_rate, self.anneal_every, self.lowest = anneal_rate, anneal_every, lowest_temperature

    def relaxation_at(self, step: int) -> Relaxation:
        """As it was at the last renewal."""
        renewed = step // self.anneal_every * self.anneal_every
        return replace(self.relaxation, temperature=max(self.lowest, math.exp(-self.anneal_rate * renewed)))
