"""The rows of the table over everything, each at the point that its study chose on val.

A study tries a grid with the first seed; its page shows all of it, in bold what was chosen. Only that point is trained again with
every seed, so that the whole table takes an hour and not a day; the study of our own recipe has every seed at every point. The
study of PSST compares curves: it chose learning rates, at one weight of discriminability. Here each of its methods stands at the
weight, of its four, with the highest val listener R@1 by the rule of all studies. Its frozen speaker, ``listener_only``, is no
row: its captions are those of ``xe``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tellapart.errors import UsageError
from tellapart.experiments.world_rows import STARTS
from tellapart.experiments.world_run import ROWS, Setting


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Args:
        row: key of ``world_run.ROWS``, or of ``STARTS`` for a start captioner itself.
        method: key of ``METHODS``; several rows may be of one method.
        learning_rate: of the captioner.
        page: of ``docs/results``, where it was chosen.
        knob: value of the row's knob.
        steps: of its study, where these are not those that all rows share.
        images: a step, of its study, where these are not those that all rows share.
    """

    row: str
    method: str
    learning_rate: float
    page: str
    knob: float | None = None
    steps: int | None = None
    images: int | None = None

    @property
    def start(self) -> str:
        """The row of the captioner that it begins with, which for a start captioner is its own."""
        if self.row in STARTS:
            return self.row
        return next(row for row, stage in STARTS.items() if stage == ROWS[self.row].start)

    def otherwise(self, base: Setting) -> str:
        """What its training had other than those that begin with ``xe`` and take the steps of ``base``; empty for most."""
        setting = self.setting(base, 0)
        if self.row in STARTS:
            return ""
        parts = [] if self.start == ENTRIES[0].row else [f"from {self.start}"]
        if (setting.steps, setting.images) != (base.steps, base.images):
            parts.append(f"{setting.steps} steps of {setting.images} images")
        return ", ".join(parts)

    def setting(self, base: Setting, seed: int) -> Setting:
        """What one training of it is; ``base`` says how long and on which size of the world."""
        steps = 0 if self.row in STARTS else self.steps or base.steps
        return Setting(
            row=self.row,
            learning_rate=self.learning_rate,
            knob=self.knob,
            seed=seed,
            steps=steps,
            images=self.images or base.images,
            eval_steps=base.eval_steps,
            size=base.size,
        )


_WORLD, _DICO, _VLRM = "world.md", "world-dico.md", "world-vlrm.md"
_WTF, _SLE, _PSST = "world-wtf-rl.md", "world-sle.md", "world-psst.md"
_NEGCLIP = "world-negclip.md"

ENTRIES: tuple[Entry, ...] = (
    Entry("xe", "xe", Setting.learning_rate, _WORLD),
    Entry("scst-CIDEr", "scst", 1e-4, _WORLD),
    Entry("scst-CLIP", "scst", 1e-4, _WORLD),
    Entry("scst-CLIP+KL", "scst", 1e-4, _WORLD, 0.01),
    Entry("scst-CLIP, beams", "scst", 1e-4, _DICO),
    Entry("scst-PAC", "scst", 1e-4, _DICO),
    Entry("scst-PAC+KL", "scst", 1e-4, _DICO),
    Entry("dico", "dico", 3e-5, _WORLD, 0.2),
    Entry("dico-PAC", "dico", 3e-5, _DICO),
    Entry("dpo", "dpo", 3e-5, _DICO),
    Entry("rloo", "rloo", 1e-4, _DICO),
    Entry("grpo", "grpo", 3e-4, _DICO),
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
    Entry("psst", "psst", 1e-4, _PSST, 0.9),
    Entry("psst_gumbel", "psst", 1e-4, _PSST, 0.0133),
    Entry("st_multinomial", "st_multinomial", 3e-5, _PSST, 0.0133),
    Entry("st_gumbel", "st_gumbel", 1e-4, _PSST, 0.0133),
    Entry("gumbel_annealed", "gumbel_annealed", 1e-4, _PSST, 0.1),
    Entry("reinforce_joint", "reinforce_joint", 1e-4, _PSST, 0.97),
    Entry("luo2018", "luo2018", 1e-4, _PSST, 30.0),
    Entry("scst-NegCLIP+KL", "scst", 3e-5, _NEGCLIP),
    Entry("dico-CIDEr", "dico", 1e-4, _NEGCLIP, 1.0),
    Entry("dico-NegCLIP+CIDEr", "dico", 1e-4, _NEGCLIP, 0.6),
    Entry("blip2", "xe", Setting.learning_rate, _VLRM, images=512),
    Entry("vlrm", "vlrm", 3e-4, _VLRM, steps=40, images=512),
    Entry("vlrm_rs", "vlrm_rs", 1e-4, _VLRM, steps=40, images=512),
)
"""Every row, in the order of the table."""

ALL = "all"


def entries_of(names: Sequence[str]) -> list[Entry]:
    """The rows that words name, in the table's order, with the captioners that they begin with; ``xe`` is always among them, and
    ``all`` is every row.

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
    chosen = [entry for entry in ENTRIES if ALL in names or {*names} & {entry.row, entry.method}]
    starts = {ENTRIES[0].row, *(entry.start for entry in chosen)}
    return [entry for entry in ENTRIES if entry in chosen or entry.row in starts]
