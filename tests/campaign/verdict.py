"""What every command owes, whatever was done to it: no traceback, a documented exit code, one short sentence."""

from __future__ import annotations

import re
from pathlib import Path

from .forks import Outcome

LONGEST = 300
"""Characters of an error."""

_TRACES = re.compile(
    r"Traceback \(most recent call last\)|Exception ignored in|Exception in thread|Fatal Python error|core dumped|"
    r"Segmentation fault|terminate called|^\w*(Error|Exception): ",
    re.MULTILINE,
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_TEMPORARY = re.compile(
    r"\..+\.([a-z0-9_]{8}|replaced|finished(-[0-9a-f]+)?)|\.lock(\.soft|\.owner)?|lock\.owner|\.~lock.*|.*\.tmp"
)

DONE, WRONG, INTERRUPTED = 0, 2, 130


_STRUCK = {
    "worker processes died": WRONG,
    "no training of the frontier was measured": WRONG,
    "of the trainings failed": 1,
}
"""What a command says, and its exit code, where not itself but processes that it had started were struck."""


def struck(outcome: Outcome, codes: tuple[int, ...]) -> tuple[int, ...]:
    """Exit codes of a command that was struck at an event: an event may be a worker's or a training's."""
    return (*codes, *(code for said, code in _STRUCK.items() if said in outcome.err))


def faults_of(outcome: Outcome, codes: tuple[int, ...] = (DONE, WRONG), *, says: str = "error: ") -> list[str]:
    """What is wrong with how a command ended and what it said.

    Args:
        outcome: of the command.
        codes: that are documented for what was done to it.
        says: how the sentence of exit code 2 begins; a report that lists what to repair has other words for it.
    """
    faults = []
    if outcome.late:
        return [f"did not end within {outcome.seconds:.0f} s"]
    if outcome.orphans:
        faults.append("left processes behind")
    if traces := _TRACES.search(outcome.err + outcome.out):
        last = (outcome.err.strip() or outcome.out.strip()).splitlines()[-1]
        faults.append(f"{traces[0].strip()}: {last[:200]}")
    if outcome.code not in codes:
        last = (outcome.err.strip().splitlines() or ["it said nothing"])[-1]
        faults.append(f"exit code {outcome.code}: {last[:200]}")
    if outcome.code == WRONG:
        faults += _of_sentence(outcome, says)
    if control := _CONTROLS.search(re.sub(r"\r(?=\S|$)", "", outcome.err + outcome.out)):
        faults.append(f"printed the control character {control[0]!r}")
    return faults


def _of_sentence(outcome: Outcome, says: str) -> list[str]:
    lines = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    if not lines:
        return [] if says in outcome.out + outcome.err else ["exit code 2 without a sentence"]
    faults = []
    for line in lines:
        sentence = line.removeprefix("error: ")
        if len(sentence) > LONGEST:
            faults.append(f"an error of {len(sentence)} characters: {sentence[:100]}...")
        if not sentence.endswith((".", "?", "!")):
            faults.append(f"an error that is not a sentence: {sentence[-100:]}")
    return faults


def left_over(folder: Path) -> list[str]:
    """Temporary files and locks that no process holds any more, as a fault."""
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if _TEMPORARY.fullmatch(path.name))
    return [f"left behind: {', '.join(found[:3])}"] if found else []
