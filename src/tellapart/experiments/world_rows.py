"""The methods that are laid side by side on the world, each with its reward and the values of its knob."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tellapart.captioners.base import Captioner
    from tellapart.types import Objective, Reward

LEARNING_RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
"""The grid every method is given."""

MAX_NEW_TOKENS = 38
"""Longest caption on the world: the longest full description of three objects has 36 words."""

Build = Callable[["Captioner", "Reward", float | None], "Objective[Any]"]


@dataclass(frozen=True)
class Row:
    """A method with its reward.

    Args:
        reward: ``cider_d`` or ``clip_s``.
        build: makes the objective from captioner, reward and knob.
        knob: name of the setting that is searched beside the learning rate, or none.
        values: its values.
    """

    reward: str
    build: Build
    knob: str | None = None
    values: tuple[float | None, ...] = (None,)


def _scst(captioner: Captioner, reward: Reward, kl_coef: float | None) -> Objective[Any]:
    from tellapart.objectives.scst import SCST

    return SCST(captioner, reward, num_generations=5, max_new_tokens=MAX_NEW_TOKENS, kl_coef=kl_coef or 0.0)


def _dico(captioner: Captioner, reward: Reward, beta: float | None) -> Objective[Any]:
    from tellapart.objectives.dico import DiCO

    return DiCO(captioner, reward, beta=beta or 0.2, num_beams=5, max_new_tokens=MAX_NEW_TOKENS)


ROWS: dict[str, Row] = {
    "scst-CIDEr": Row("cider_d", _scst),
    "scst-CLIP": Row("clip_s", _scst),
    "scst-CLIP+KL": Row("clip_s", _scst, "kl_coef", (0.01, 0.05)),
    "dico": Row("clip_s", _dico, "beta", (0.2, 0.5)),
}
