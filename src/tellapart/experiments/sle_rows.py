"""SLE and what its paper compares it with, on the world: from the GPT-2 captioner and from an LSTM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tellapart.experiments.world_rows import STARTS, Build, Row
from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.experiments.world import World
    from tellapart.types import Objective

SAMPLES = 5
ENTROPY_COEFS, ALPHAS = (0.01, 0.1), (0.5, 0.75)
"""Values of the two methods' knobs, equally many and all among those that the paper searched."""

_DRAWN: dict[str, Any] = {"num_generations": SAMPLES, "max_new_tokens": MAX_NEW_TOKENS}


def _sll(parts: World, _: float | None) -> Objective[Any]:
    from tellapart.objectives.sle import SLL

    return SLL(parts.captioner, parts.reward("cider_d"), **_DRAWN)


def _sll_me(parts: World, entropy_coef: float | None) -> Objective[Any]:
    from tellapart.objectives.sle import SLLME

    assert entropy_coef is not None, "the row has values"
    return SLLME(parts.captioner, parts.reward("cider_d"), entropy_coef=entropy_coef, **_DRAWN)


def _sle(parts: World, alpha: float | None) -> Objective[Any]:
    from tellapart.objectives.sle import SLE

    assert alpha is not None, "the row has values"
    return SLE(parts.captioner, parts.reward("cider_d"), alpha=alpha, **_DRAWN)


_METHODS: dict[str, tuple[Build, str | None, tuple[float | None, ...]]] = {
    "sll": (_sll, None, (None,)),
    "sll_me": (_sll_me, "entropy_coef", ENTROPY_COEFS),
    "sle": (_sle, "alpha", ALPHAS),
}

SPEAKERS = {"": STARTS["xe"], "lstm ": STARTS["lstm xe"]}
"""What stands before a row's name -> the captioner it begins with."""

SLE_ROWS: dict[str, Row] = {
    prefix + name: Row(build, knob, values, start=start)
    for prefix, start in SPEAKERS.items()
    for name, (build, knob, values) in _METHODS.items()
}
"""The rows of the paper's Table 4, for both captioners; teacher forcing comes beside them."""
