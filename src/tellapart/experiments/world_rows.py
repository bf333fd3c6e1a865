"""The methods that are laid side by side on the world, each with the values of its knob."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.captioners.learning import Train
    from tellapart.experiments.world import World
    from tellapart.types import Objective

LEARNING_RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
"""The grid every method is given."""

Build = Callable[["World", float | None], "Objective[Any]"]


STARTS = {"xe": "world/xe", "lstm xe": "world/lstm", "blip2": "world/blip2"}
"""Row of a captioner as teacher forcing leaves it -> that captioner."""


LEARNS: dict[str, Train] = {"world/blip2": "bridge"}
"""Start captioner -> what of it learns, where that is not all but its image tower: of BLIP-2 queries, Q-Former and projection,
as in VLRM (Dzabraev et al., 2024)."""


@dataclass(frozen=True)
class Row:
    """A method with its reward.

    Args:
        build: makes the objective from the parts of the world and the knob.
        knob: name of the setting that is searched beside the learning rate, or none.
        values: its values.
        learning_rates: tried for it; empty takes the grid that every method is given.
        fixed_rates: part beside the captioner that learns -> its learning rate.
        start: the captioner it begins with.
        own_listener: whether its captioner has a listener of its own, by which it is measured, too.
        metric: what a checkpoint is selected by, on val.
        stages: further stages of the world that it learns from, such as world/pac.
        options: of the training, beside those that all methods share.
    """

    build: Build
    knob: str | None = None
    values: tuple[float | None, ...] = (None,)
    learning_rates: tuple[float, ...] = ()
    fixed_rates: Mapping[str, float] = field(default_factory=dict)
    start: str = "world/xe"
    own_listener: bool = False
    metric: str = "listener_R@1"
    stages: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def rates(self, learning_rate: float) -> float | dict[str, float]:
        """What the training is given for a learning rate of the captioner."""
        return {"captioner": learning_rate, **self.fixed_rates} if self.fixed_rates else learning_rate


def _scst(reward: str) -> Build:
    def build(parts: World, kl_coef: float | None) -> Objective[Any]:
        from tellapart.objectives.scst import SCST

        scored = parts.reward(reward)
        return SCST(parts.captioner, scored, num_generations=5, max_new_tokens=MAX_NEW_TOKENS, kl_coef=kl_coef or 0.0)

    return build


def _dico(parts: World, beta: float | None) -> Objective[Any]:
    from tellapart.objectives.dico import DiCO

    return DiCO(parts.captioner, parts.reward("clip_s"), beta=beta or 0.2, num_beams=5, max_new_tokens=MAX_NEW_TOKENS)


ROWS: dict[str, Row] = {
    "scst-CIDEr": Row(_scst("cider_d")),
    "scst-CLIP": Row(_scst("clip_s")),
    "scst-CLIP+KL": Row(_scst("clip_s"), "kl_coef", (0.01, 0.05)),
    "dico": Row(_dico, "beta", (0.2, 0.5)),
}
