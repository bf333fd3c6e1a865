"""PSST and what its paper compares it with, on the world: each method with four weights of discriminability.

Every run copies the world's listener and lets the copy learn; the reward listener of the evaluation stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tellapart.experiments.world_rows import Build, Row
from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.experiments.world import World
    from tellapart.types import Objective

WEIGHTS = (0.0133, 0.1, 0.5, 0.9)
"""Of the sum of hinges over a step's images, beside one minus itself for CIDEr's mean over tokens.

The first is the paper's usual 5e-3 for the world's 48 images a step instead of its 128. On the world it moves next to nothing,
nor do twice or a fifth of it (docs/results/frontier.md), so the others are larger; that they matter was seen on val.
"""

REINFORCE_WEIGHTS = (0.5, 0.8, 0.9, 0.97)
"""Of ``reinforce_joint``, beside one minus itself for CIDEr; the released example has 0.8."""

LUO_WEIGHTS = (1.0, 4.0, 9.0, 30.0)
"""Of ``luo2018``, beside CIDEr with weight 1: about the same ratios."""

OWN_LISTENER_RATE = {"own_listener": 1e-4}
TRIED = (3e-5, 1e-4, 3e-4)

ANNEALED = {"anneal_rate": 0.02, "anneal_every": 5}
"""The temperature reaches its lowest, 0.5, after 35 of 60 steps; the published interval of 500 steps is longer than a run."""

SWEPT = (0.0, 0.5, 0.75, 1.0)
"""Values of rho beside the default, as in the paper's figure 3f."""

SWEPT_WEIGHTS = (WEIGHTS[0], WEIGHTS[2])
"""The weights of the sweep; whatever is read off it is read between these two, for the default's rho, too."""


def _through_words(kind: str = "PSST", **options: Any) -> Build:
    def build(parts: World, weight: float | None) -> Objective[Any]:
        from tellapart.objectives import psst

        assert weight is not None, "the row has values"
        given = {"discriminability_weight": weight, "max_new_tokens": MAX_NEW_TOKENS, **options}
        return vars(psst)[kind](parts.captioner, parts.reward("cider_d"), parts.own_listener, **given)

    return build


def _scored(kind: str) -> Build:
    def build(parts: World, weight: float | None) -> Objective[Any]:
        from tellapart.objectives import joint

        assert weight is not None, "the row has values"
        given = {"discriminability_weight": weight, "max_new_tokens": MAX_NEW_TOKENS}
        return vars(joint)[kind](parts.captioner, parts.reward("cider_d"), parts.own_listener, **given)

    return build


def _listener_only(parts: World, _: float | None) -> Objective[Any]:
    from tellapart.objectives.joint import ListenerOnly

    return ListenerOnly(parts.captioner, parts.own_listener, max_new_tokens=MAX_NEW_TOKENS)


def _row(build: Build, weights: tuple[float, ...], rates: Mapping[str, float] = OWN_LISTENER_RATE) -> Row:
    return Row(build, "discriminability_weight", weights, TRIED, rates, own_listener=True)


_ST: dict[str, Any] = {"rho": 0.0, "feed_soft": False}

PSST_ROWS: dict[str, Row] = {
    "psst": _row(_through_words(), WEIGHTS),
    "psst_gumbel": _row(_through_words(estimator="gumbel"), WEIGHTS),
    "st_multinomial": _row(_through_words(**_ST), WEIGHTS),
    "st_gumbel": _row(_through_words(estimator="gumbel", **_ST), WEIGHTS),
    "gumbel_annealed": _row(_through_words("GumbelAnnealed", **ANNEALED), WEIGHTS),
    "reinforce_joint": _row(_scored("ReinforceJoint"), REINFORCE_WEIGHTS),
    "luo2018": _row(_scored("Luo2018"), LUO_WEIGHTS, {}),
    "listener_only": Row(_listener_only, learning_rates=TRIED, own_listener=True, metric="own_listener_R@1"),
    **{f"psst, rho {rho:g}": _row(_through_words(rho=rho), SWEPT_WEIGHTS) for rho in SWEPT},
}
"""The paper's methods, the frozen speaker (here the start captioner), and the sweep of rho."""
