"""The sections of a recipe that methods with a critic have.

Importing this module must stay cheap: ``train --help`` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tellapart.recipe.sections import LoraSection


@dataclass(frozen=True, kw_only=True)
class CriticSection:
    """What learns beside the captioner to expect the returns of its captions (Dzabraev et al., 2024).

    Args:
        head: what makes values of the language model's states: residual blocks, or one linear layer, which is known to
            collapse.
        blocks: residual blocks; 5 at BLIP-2's width are the paper's 275 million weights.
        lora: adapter that the language model carries while values are computed, and only then; null reads the captioner's own
            states, as a recurrent captioner needs.
    """

    head: Literal["residual", "linear"] = "residual"
    blocks: int = 2
    lora: LoraSection | None = field(default_factory=LoraSection)


@dataclass(frozen=True, kw_only=True)
class PenaltiesSection:
    """Which words of captions are penalised, beside those that are said twice.

    Args:
        phrases: a text file with a phrase a line, or vlrm, the list of Dzabraev et al. (2024), or world, the openers of the
            built-in world (whose colours may then be said twice, too); null lists none.
        years: whether four digits that stand alone are penalised as well.
    """

    phrases: str | None = "vlrm"
    years: bool = True
