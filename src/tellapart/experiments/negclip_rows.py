"""A recipe of our own and what is left of it without each of its parts: a listener trained against false captions as the reward,
with or without CIDEr beside it, self-critical or winner against losers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tellapart.experiments.dico_rows import BETA, DRAWN, KL_IN_REWARD, TAU
from tellapart.experiments.world_rows import Build, Row
from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.experiments.world import World
    from tellapart.types import Objective, Reward

RATES = (3e-5, 1e-4)
"""Learning rates that are tried: those that the study of DiCO chose for ``dico`` and for ``scst``."""

MORE_RATES = (*RATES, 3e-4)
"""For ``dico`` with CIDEr, which was best at the highest of the others."""

SCST_WEIGHTS, DICO_WEIGHTS = (0.02, 0.06, 0.2, 0.6), (0.06, 0.2, 0.6, 2.0)
"""Weights of CIDEr beside a CLIP-S of weight 1; the last of each was added when the one before it was the best on val."""

NEGCLIP = ("world/negclip",)
CIDER = "cider_weight"


def _reward(parts: World, similarity: str | None, cider_weight: float | None) -> Reward:
    from tellapart.rewards.mix import Mix

    weights = {} if similarity is None else {similarity: 1.0}
    if cider_weight is not None:
        weights["cider_d"] = cider_weight
    return Mix({name: parts.reward(name) for name in weights}, weights)


def _scst(similarity: str, *, kl_coef: float = KL_IN_REWARD) -> Build:
    def build(parts: World, cider_weight: float | None) -> Objective[Any]:
        from tellapart.objectives.scst import SCST

        return SCST(parts.captioner, _reward(parts, similarity, cider_weight), kl_coef=kl_coef, **DRAWN)

    return build


def _dico(similarity: str | None) -> Build:
    def build(parts: World, cider_weight: float | None) -> Objective[Any]:
        from tellapart.objectives.dico import DiCO

        reward = _reward(parts, similarity, cider_weight)
        beams: dict[str, int] = {"num_beams": DRAWN["num_generations"], "max_new_tokens": MAX_NEW_TOKENS}
        return DiCO(parts.captioner, reward, beta=BETA, tau=TAU, **beams)

    return build


NEGCLIP_ROWS: dict[str, Row] = {
    "scst-NegCLIP+KL": Row(_scst("negclip_s"), learning_rates=RATES, stages=NEGCLIP),
    "dico-NegCLIP": Row(_dico("negclip_s"), learning_rates=RATES, stages=NEGCLIP),
    "dico-CIDEr": Row(_dico(None), CIDER, (1.0,), MORE_RATES),
    "scst-NegCLIP+KL+CIDEr": Row(_scst("negclip_s"), CIDER, SCST_WEIGHTS, RATES, stages=NEGCLIP),
    "dico-NegCLIP+CIDEr": Row(_dico("negclip_s"), CIDER, DICO_WEIGHTS, MORE_RATES, stages=NEGCLIP),
    "scst-NegCLIP": Row(_scst("negclip_s", kl_coef=0.0), stages=NEGCLIP),
    "dico-CLIP+CIDEr": Row(_dico("clip_s"), CIDER),
}
"""The last two have no grid: they leave out the KL term and the better listener at the point that was chosen with them. CIDEr
alone under ``scst`` is ``scst-CIDEr`` of ``world_rows``."""
