"""``tellapart doctor``: what this machine can do; with a run, what its log shows to have gone wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.cli.command import options_of, refuse_unused
from tellapart.cli.console import say
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.evaluation.alarms import Alarm, Curve

WRONG = 1
"""Exit code of ``--strict`` where something is wrong."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of ``tellapart doctor``.

    Args:
        strict: exit with 1 if a verdict holds at the end of a run's log; one that is over by then, and a change that training
            may be meant for, do not count.
    """

    strict: bool = False


def run(argv: Sequence[str]) -> int:
    """Print the machine, or the verdicts of runs."""
    chosen = options_of(
        argv,
        DoctorOptions,
        usage="doctor | doctor RUN ...",
        description="Tell what this machine can do and what missing parts cost; or what the logs of runs show to go wrong, also "
        "of runs that still train.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if not words:
        refuse_unused(options, (), "without a run")
        _tell_machine()
        return 0
    wrong = [_tell_run(Path(word)) for word in words]
    return WRONG if options.strict and any(wrong) else 0


def _tell_machine() -> None:
    from tellapart.cli import machine

    _say_lines("this machine", machine.machine_lines())
    _say_lines("\nfor the metrics of others", [machine.java_line()])
    _say_lines("\noptional parts", machine.part_lines())
    _say_lines("\nwhat was built", machine.cache_lines())
    say("\nA browser is needed to look at reports only; it can be on another machine.")


def _say_lines(heading: str, lines: Iterable[tuple[str, str]]) -> None:
    say(f"{heading}:")
    for name, told in lines:
        say(f"  {name:<14} {told}")


def _tell_run(folder: Path) -> bool:
    """Print what the log of a run shows; whether something is wrong at its end."""
    from tellapart.evaluation.alarms import find_alarms, held_against_nothing
    from tellapart.evaluation.report.record import read_record
    from tellapart.evaluation.report.runs import LOG_FILE, read_curves

    log = folder / LOG_FILE
    if not log.is_file():
        raise UsageError(f"{folder} has no {LOG_FILE}: name the output_dir of a training.")
    curves, record = read_curves(log), read_record(folder)
    floor = record.floor if record else None
    alarms = find_alarms(curves, floor=floor)
    facts = record.facts if record else {}
    say(f"{folder}: {_progress(curves, facts)}")
    for alarm in alarms:
        say(f"  {_when(alarm):<26} {alarm.rule}: {alarm.text}")
    if not alarms:
        say("  nothing is wrong" if curves else "  no line of the log can be read so far")
    if record and record.ended:
        say(f"  {record.ended}")
    if waiting := held_against_nothing(curves, floor=floor):
        say(
            "  held against nothing, since no evaluation so far is of a captioner that speaks (at most 50 % repetition and "
            f"images that share one caption): {', '.join(waiting)}."
        )
    missing = _not_measured(curves)
    if missing:
        say(f"  not looked for: {'; '.join(missing)}")
    return any(alarm.lasting and not alarm.change for alarm in alarms)


def _progress(curves: Mapping[str, Curve], facts: dict[str, Any]) -> str:
    from tellapart.verdicts.rules import EVAL_PREFIX

    step = max((curve[-1][0] for curve in curves.values() if curve), default=0)
    evaluated = {at for key, curve in curves.items() if key.startswith(EVAL_PREFIX) for at, _ in curve}
    total = f" of {facts['total_steps']}" if facts.get("total_steps") else ""
    return f"step {step}{total}, {len(evaluated)} evaluations"


def _when(alarm: Alarm) -> str:
    over = "" if alarm.lasting else ", over by the end"
    return f"from step {alarm.step}{', a change' if alarm.change else over}"


def _not_measured(curves: Mapping[str, Curve]) -> list[str]:
    """The verdicts whose metric no evaluation has, with the setting that has it measured."""
    from tellapart.verdicts.rules import RULES

    return [f"{rule.name} ({rule.measured_by})" for rule in RULES if rule.measured_by and rule.key not in curves]
