"""DiCO, what its paper compares it with and its neighbours of today, on the world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tellapart.experiments.world_rows import Build, Row
from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.experiments.world import World
    from tellapart.types import Objective

BETA, TAU = 0.2, 1 / 300
"""DiCO's published coefficients; ``dpo`` takes the same beta, so that only the losers' weights differ."""

TAUS = (1 / 30, 1 / 3000)
"""Of ``dico, tau``, beside the published one."""

KL_IN_REWARD, KL_IN_LOSS = 0.01, 0.04
"""Of ``rloo`` and ``scst-PAC+KL`` (the value that was chosen for scst-CLIP+KL), and of ``grpo`` (the paper's)."""

CANDIDATES = 5
"""Captions of an image, for every method."""

DRAWN: dict[str, Any] = {"num_generations": CANDIDATES, "max_new_tokens": MAX_NEW_TOKENS}

PAC = ("world/pac",)


def _dico(reward: str, knob: str = "beta") -> Build:
    def build(parts: World, value: float | None) -> Objective[Any]:
        from tellapart.objectives.dico import DiCO

        given: dict[str, Any] = {"num_beams": CANDIDATES, "max_new_tokens": MAX_NEW_TOKENS, "beta": BETA, "tau": TAU}
        given |= {} if value is None else {knob: value}
        return DiCO(parts.captioner, parts.reward(reward), **given)

    return build


def _scst(reward: str, **options: Any) -> Build:
    def build(parts: World, _: float | None) -> Objective[Any]:
        from tellapart.objectives.scst import SCST

        return SCST(parts.captioner, parts.reward(reward), **DRAWN, **options)

    return build


def _rloo(parts: World, _: float | None) -> Objective[Any]:
    from tellapart.objectives import METHODS

    return _scst("clip_s", kl_coef=KL_IN_REWARD, **METHODS["rloo"].fixed)(parts, None)


def _dpo(parts: World, _: float | None) -> Objective[Any]:
    from tellapart.objectives.dpo import DPO

    return DPO(parts.captioner, parts.reward("clip_s"), beta=BETA, **DRAWN)


def _grpo(parts: World, _: float | None) -> Objective[Any]:
    from tellapart.objectives.grpo import GRPO

    return GRPO(parts.captioner, parts.reward("clip_s"), kl_coef=KL_IN_LOSS, **DRAWN)


DICO_ROWS: dict[str, Row] = {
    "dico-PAC": Row(_dico("pac_s"), stages=PAC),
    "scst-PAC": Row(_scst("pac_s"), stages=PAC),
    "scst-PAC+KL": Row(_scst("pac_s", kl_coef=KL_IN_REWARD), stages=PAC),
    "scst-CLIP, beams": Row(_scst("clip_s", baseline="beam_mean", reduction="seq_mean")),
    "dpo": Row(_dpo),
    "rloo": Row(_rloo),
    "grpo": Row(_grpo),
    "dico, tau": Row(_dico("clip_s", "tau"), "tau", TAUS, (3e-5,)),
}
"""Beside ``world_rows.ROWS``; ``scst-CLIP, beams`` is the paper's own comparator."""
