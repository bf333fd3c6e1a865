"""VLRM and VLRM-RS on the world, and VLRM with one thing changed: all begin with the world's BLIP-2 and need no captions.

Of the captioner queries, Q-Former and projection learn, as in the paper; the critic has a learning rate of its own, since it
begins with random weights and a run has few steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tellapart.experiments.world_rows import Build, Row
from tellapart.world.phrases import EXEMPT_WORDS, world_phrases
from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.experiments.world import World
    from tellapart.types import Objective, Reward

START = "world/blip2"
STAGES = ("world/itm", "world/language_model")

TRIED = (1e-4, 3e-4, 1e-3)
CRITIC_RATE = {"critic": 1e-3}

OPTIONS: dict[str, Any] = {"max_grad_value": 1.0}
"""Of the training: the paper clamps every entry of a gradient to 1."""

HERE: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "reduction": "token_mean"}
"""What all rows have unless they say otherwise. Drawn as in the paper, most of what is said with the world's 68 words is wrong,
longer captions more often so; and averaged as in the paper, tokens of short captions count for more. Either way captions shrink,
to two words at last, while the reward stays where it was. A row of the study has each."""

LORA_RANK, BLOCKS = 8, 2
"""Of the critic, whose states are 128 wide where the paper's are 2560."""


def _reward(parts: World, *, reference: bool) -> Reward:
    from tellapart.rewards.language_model import MeanLogProbability
    from tellapart.rewards.matching import Matching
    from tellapart.rewards.mix import Mix

    rewards: dict[str, Reward] = {"itm": Matching(parts.matcher)}
    if reference:
        rewards["language_model"] = MeanLogProbability(parts.language_model)
    return Mix(rewards)


def _shared(parts: World, head: str) -> dict[str, Any]:
    from tellapart.captioners.adapters import LoraOptions
    from tellapart.captioners.critic import Critic
    from tellapart.draws import seeded
    from tellapart.rewards.penalties import Penalties

    lora = LoraOptions(r=LORA_RANK, alpha=2.0 * LORA_RANK)
    with seeded("critic", parts.seed):
        critic = Critic(parts.captioner, head=head, blocks=BLOCKS, lora=lora)  # type: ignore[arg-type]
    return {
        "critic": critic,
        "penalties": Penalties(parts.captioner.tokenizer, world_phrases(), exempt=EXEMPT_WORDS, years=False),
        "max_new_tokens": MAX_NEW_TOKENS,
    }


def _vlrm(*, reference: bool = True, head: str = "residual", **options: Any) -> Build:
    def build(parts: World, _: float | None) -> Objective[Any]:
        from tellapart.objectives.vlrm import VLRM

        return VLRM(parts.captioner, _reward(parts, reference=reference), **_shared(parts, head), **HERE | options)

    return build


def _vlrm_rs(parts: World, _: float | None) -> Objective[Any]:
    from tellapart.objectives.vlrm import VLRMRS

    parts.dataset("train")  # whose images the listener must know
    reward = _reward(parts, reference=False)
    return VLRMRS(parts.captioner, reward, parts.listener, **_shared(parts, "residual"), **HERE)


def _row(build: Build) -> Row:
    return Row(build, learning_rates=TRIED, fixed_rates=CRITIC_RATE, start=START, stages=STAGES, options=OPTIONS)


METHODS: dict[str, Row] = {"vlrm": _row(_vlrm()), "vlrm_rs": _row(_vlrm_rs)}

LINEAR = "vlrm, linear value head"
VLRM_CHANGES: dict[str, Row] = {
    "vlrm, no language model": _row(_vlrm(reference=False)),
    "vlrm, no phrase penalty": _row(_vlrm(bad_phrase_penalty=0.0)),
    LINEAR: _row(_vlrm(head="linear")),
    "vlrm, drawn as in the paper": _row(_vlrm(temperature=2.0, top_k=6)),
    "vlrm, averaged as in the paper": _row(_vlrm(reduction="seq_mean")),
    "vlrm, log-probability": _row(_vlrm(policy_loss="log_probability")),
}
"""One thing changed in vlrm: what the study calls with and without."""

VLRM_ROWS: dict[str, Row] = METHODS | VLRM_CHANGES
