"""All kinds of attack, in the order in which they are made."""

from __future__ import annotations

from .kills import KILLS

KINDS = (KILLS,)
