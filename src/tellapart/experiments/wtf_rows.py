"""WTF-RL and what its paper compares it with, on the world; and its stabilisers, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from tellapart.experiments.world_rows import Build, Row
from tellapart.pretraining.discriminator_settings import DiscriminatorSettings
from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.experiments.world import World
    from tellapart.rewards.discriminator import Discriminator
    from tellapart.types import Objective

DISCRIMINATOR_RATES = {"mlp": 7e-5, "text": 1e-3}
"""Learning rate of the discriminator beside the captioner: the paper's for its kind, that of pre-training for ours."""

PUBLISHED, BLURRED = 0.01, 1 / 15
"""Temperatures: the paper's, and one at which the signed reward of references was below zero on average in a study before."""

BEAM: dict[str, Any] = {"num_beams": 5, "no_repeat_ngram_size": 0, "max_new_tokens": MAX_NEW_TOKENS}
"""Drawing: as published, but 3-grams may repeat, since the world's sentences repeat them rightly ("in the top")."""

PRETRAINING_STEPS = 600
NEIGHBOURS = 5


def discriminator(parts: World, kind: Literal["mlp", "text"] = "mlp") -> Discriminator:
    """The discriminator, pre-trained against the start captioner's beams; kept in the cache."""
    from tellapart.pretraining.discriminator import pretrained_discriminator

    settings = DiscriminatorSettings(
        kind=kind,
        pretraining_steps=PRETRAINING_STEPS,
        num_beams=5,
        no_repeat_ngram_size=0,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    return pretrained_discriminator(parts.captioner, parts.listener, parts.dataset("train"), parts.collate, settings)


def _wtf_rl(*, kind: Literal["mlp", "text"] = "mlp", **options: Any) -> Build:
    def build(parts: World, temperature: float | None) -> Objective[Any]:
        from tellapart.listeners.mining import mine
        from tellapart.objectives.wtf_rl import WTFRL

        return WTFRL(
            parts.captioner,
            parts.listener,
            mine(parts.listener, parts.dataset("train"), k=NEIGHBOURS),
            discriminator(parts, kind),
            **(BEAM | options | ({} if temperature is None else {"temperature": temperature})),
        )

    return build


def _scst_discriminator(parts: World, _: float | None) -> Objective[Any]:
    from tellapart.objectives.scst_baselines import SCSTDiscriminator

    return SCSTDiscriminator(parts.captioner, parts.listener, discriminator(parts), **BEAM)


def _scst_grammar(parts: World, _: float | None) -> Objective[Any]:
    from tellapart.objectives.scst_baselines import SCSTGrammar

    return SCSTGrammar(parts.captioner, parts.listener, parts.grammar, **BEAM)


MLP, TEXT = ({"discriminator": DISCRIMINATOR_RATES[kind]} for kind in ("mlp", "text"))
_POLICY, _REFERENCE = ("policy",), ("reference",)
_TEMPERATURES = (PUBLISHED, BLURRED)
_TRIED = (3e-5, 1e-4, 3e-4)

WTF_ROWS: dict[str, Row] = {
    "wtf": Row(_wtf_rl(trajectories=_REFERENCE), fixed_rates=MLP),
    "rl": Row(_wtf_rl(trajectories=_POLICY), fixed_rates=MLP),
    "wtf_rl": Row(_wtf_rl(), fixed_rates=MLP),
    "rl_unidirectional": Row(_wtf_rl(trajectories=_POLICY, direction="i2t"), fixed_rates=MLP),
    "scst_discriminator": Row(_scst_discriminator, fixed_rates=MLP),
    "scst_grammar": Row(_scst_grammar),
}
"""The paper's table, at its own settings."""


def _change(build: Build, *temperatures: float, rates: Mapping[str, float] = MLP) -> Row:
    return Row(build, "temperature", temperatures, _TRIED, rates)


CHANGES: dict[str, Row] = {
    "wtf, blurred": _change(_wtf_rl(trajectories=_REFERENCE), BLURRED),
    "wtf, clamped": _change(_wtf_rl(trajectories=_REFERENCE, clamp_reference_reward=True), *_TEMPERATURES),
    "wtf_rl, blurred": _change(_wtf_rl(), BLURRED),
    "wtf_rl, clamped": _change(_wtf_rl(clamp_reference_reward=True), *_TEMPERATURES),
    "wtf_rl, centred": _change(_wtf_rl(center_policy_reward=True), *_TEMPERATURES),
    "wtf_rl, clamped and centred": _change(
        _wtf_rl(clamp_reference_reward=True, center_policy_reward=True), *_TEMPERATURES
    ),
    "wtf_rl, text discriminator": _change(_wtf_rl(kind="text"), PUBLISHED, rates=TEXT),
}
"""One change at a time, on val only and at the three middle rates of the grid."""
