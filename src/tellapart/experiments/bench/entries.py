"""The rows of the table over everything, each at the point that its study chose on val with the first seed.

A study tries a grid; its page shows all of it, in bold what was chosen. Only that point is trained again with every seed, so that
the whole table takes an hour and not a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tellapart.errors import UsageError
from tellapart.experiments.world_rows import STARTS
from tellapart.experiments.world_run import Setting


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Args:
        row: key of ``world_run.ROWS``, or of ``STARTS`` for a start captioner itself.
        method: key of ``METHODS``; several rows may be of one method.
        learning_rate: of the captioner.
        page: of ``docs/results``, where it was chosen.
        knob: value of the row's knob.
    """

    row: str
    method: str
    learning_rate: float
    page: str
    knob: float | None = None

    def setting(self, base: Setting, seed: int) -> Setting:
        """What one training of it is; ``base`` says how long and on which size of the world."""
        steps = 0 if self.row in STARTS else base.steps
        return Setting(
            row=self.row,
            learning_rate=self.learning_rate,
            knob=self.knob,
            seed=seed,
            steps=steps,
            images=base.images,
            eval_steps=base.eval_steps,
            size=base.size,
        )


_WORLD, _WTF, _SLE = "world.md", "world-wtf-rl.md", "world-sle.md"

ENTRIES: tuple[Entry, ...] = (
    Entry("xe", "xe", Setting.learning_rate, _WORLD),
    Entry("scst-CIDEr", "scst", 1e-4, _WORLD),
    Entry("scst-CLIP", "scst", 1e-4, _WORLD),
    Entry("scst-CLIP+KL", "scst", 1e-4, _WORLD, 0.01),
    Entry("dico", "dico", 3e-5, _WORLD, 0.2),
    Entry("wtf", "wtf", 3e-5, _WTF),
    Entry("rl", "rl", 1e-4, _WTF),
    Entry("wtf_rl", "wtf_rl", 3e-5, _WTF),
    Entry("wtf_rl, clamped and centred", "wtf_rl", 3e-4, _WTF, 0.01),
    Entry("rl_unidirectional", "rl_unidirectional", 1e-4, _WTF),
    Entry("scst_discriminator", "scst_discriminator", 1e-4, _WTF),
    Entry("scst_grammar", "scst_grammar", 1e-4, _WTF),
    Entry("sll", "sll", 1e-4, _SLE),
    Entry("sll_me", "sll_me", 1e-4, _SLE, 0.01),
    Entry("sle", "sle", 1e-4, _SLE, 0.75),
)
"""Every row, in the order of the table."""


ALL = "all"


def entries_of(names: Sequence[str]) -> list[Entry]:
    """The rows that words name, in the table's order; ``xe`` is always among them, and ``all`` is every row.

    Args:
        names: methods, or rows; one whose name has a comma comes with its method.

    Raises:
        UsageError: a word is neither.
    """
    known = {name for entry in ENTRIES for name in (entry.row, entry.method) if "," not in name}
    unknown = next((name for name in names if name not in {*known, ALL}), None)
    if unknown is not None:
        raise UsageError(
            f"--methods {unknown!r} is no row of the table: choose of {', '.join(sorted(known))}, or {ALL}."
        )
    wanted = {*names, ENTRIES[0].row}
    return [entry for entry in ENTRIES if ALL in names or wanted & {entry.row, entry.method}]
