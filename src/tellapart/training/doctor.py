"""The doctor: watches the log during training, warns of faults in plain words, and ends a run that is being hacked.

Its rules are those of ``tellapart.verdicts``, which reports and ``tellapart doctor`` read, too. What it knows is in each
checkpoint, so that a resumed run is judged like one that was never stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.files import checkpoints, write_json
from tellapart.run_files import NONFINITE_FILE
from tellapart.training.checkpoint import NonFiniteError
from tellapart.training.config import TrainConfig
from tellapart.training.selection import Best
from tellapart.verdicts.examine import Examination
from tellapart.verdicts.rules import EVAL_PREFIX, HACKED, LOG_PREFIX, log_key

VERDICTS, HACKED_KEY, ROLLED_BACK = (f"{LOG_PREFIX}{name}" for name in ("verdicts", "hacked", "rolled_back_to"))
"""Logged with the warnings themselves: how many hold, for how many evaluations in a row one of ``HACKED`` did, and the step
whose weights a run ended with."""

_log = logging.getLogger(__name__)


class Doctor:
    """Takes in every line of a run's log, in order.

    Args:
        config: ``best_floor``, ``on_hack`` and ``hack_patience`` are read here.
        state: what ``state`` gave, when a run is resumed; empty at the start.
        history: lines of a resumed run, for checkpoints that were written before there was a doctor.
        speaks: whether this process warns.
    """

    def __init__(
        self, config: TrainConfig, state: Mapping[str, Any], history: Sequence[Mapping[str, Any]], *, speaks: bool
    ) -> None:
        self._config, self._speaks = config, speaks
        self._examination = Examination(config.best_floor, state or None)
        for line in () if state else history:
            self._examination.take(line)

    def look(self, step: int, values: Mapping[str, float]) -> dict[str, float]:
        """Figures to log in addition to ``values``; logs warnings that did not hold before.

        A warning is logged from the first time that it holds, with the number of logged values in a row that it has (0 once
        it is over), and evaluations with the number of warnings that hold.
        """
        before = self._examination.lasted()
        found = self._examination.take({"step": step, **values})
        for verdict in found:
            if not before.get(verdict.name) and not verdict.change and self._speaks:
                _log.warning("doctor, step %d, %s: %s", step, verdict.name, verdict.text)
        counts = self._examination.lasted()
        concerned = self._examination.named_by(values)
        logged = {log_key(name): float(count) for name, count in counts.items() if name in concerned}
        if not any(key.startswith(EVAL_PREFIX) for key in values):
            return logged
        held = [name for name, count in counts.items() if count and name not in self._examination.changes]
        return {VERDICTS: float(len(held))} | logged | ({HACKED_KEY: float(self.hacked)} if self.hacked else {})

    @property
    def hacked(self) -> int:
        """Evaluations in a row, up to the last one, that showed captions to be hacked."""
        return self._examination.hacked

    @property
    def must_end(self) -> bool:
        """Whether ``on_hack`` asks to end the run now."""
        return self._config.on_hack != "warn" and self.hacked >= self._config.hack_patience

    def conclude(self, step: int, rolled_back_to: Best | None) -> str:
        """Why the run ends after ``step``, and with what, as a sentence."""
        held = [name for name, count in self._examination.lasted().items() if count and name in HACKED]
        why = f"ended at step {step}, hacked for {self.hacked} evaluations in a row ({', '.join(held)})"
        ends = "with the weights of that step"
        if rolled_back_to is not None:
            ends = f"with the weights of step {rolled_back_to.step}, the best by {rolled_back_to.metric}"
        elif self._config.on_hack == "rollback":
            ends += ", since there is no best/ to go back to"
        return f"{why}, {ends}; on_hack=warn continues training."

    def say(self, sentence: str) -> None:
        """Warn, on the process that does."""
        if self._speaks:
            _log.warning("doctor: %s", sentence)

    def state(self) -> dict[str, Any]:
        """State for a resumed run."""
        return self._examination.state()


MOST_TOLD = 3
"""Figures that the sentence about a step that is not finite quotes."""


def refuse(
    step: int, figures: Mapping[str, float], ids: Sequence[Any], output_dir: Path, *, writes: bool
) -> NonFiniteError:
    """The error of a step that is not finite, whose images are put down in ``nonfinite.json``.

    Args:
        step: the step.
        figures: what was to be logged of it.
        ids: of its images, by device and micro-batch.
        output_dir: of the run.
        writes: whether this process writes the file.
    """
    path = output_dir / NONFINITE_FILE
    if writes:
        values = {name: value if np.isfinite(value) else str(value) for name, value in figures.items()}
        write_json(path, {"step": step, "logs": values, "ids": list(ids)})
    # The file has all of them; what is not finite comes first.
    order = sorted(figures, key=lambda name: (bool(np.isfinite(figures[name])), name not in ("loss", "reward")))
    told = ", ".join(f"{name} {figures[name]:.4g}" for name in order[:MOST_TOLD])
    by_reward = any(name.startswith("reward") and not np.isfinite(value) for name, value in figures.items())
    remedy = (
        "correct the reward, which is not finite for them"
        if by_reward
        else "look at these images, lower learning_rate or turn bf16 off"
    )
    further = (
        "resume from the last checkpoint"
        if checkpoints(output_dir)
        else "give --overwrite_output_dir"  # there is nothing to resume from
    )
    return NonFiniteError(
        f"step {step} is not finite ({told}): its image ids are in {path}, no weights were written; {remedy}, and {further}."
    )
