"""Lines of a log, taken one after another: which rules they break, and for how long."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tellapart.verdicts.rules import (
    EVAL_PREFIX,
    FLOOR,
    FLOOR_SAYS,
    HACKED,
    HACKING,
    HACKING_SAYS,
    JUDGE_FELL,
    RULES,
    SPEAKS,
    WORSE,
    Logged,
    Rule,
    from_first,
    from_higher,
    share,
)

_REWARD, _HACKED_ROWS = "reward", "(hacked)"


@dataclass(frozen=True)
class Verdict:
    """A rule that is broken at a step.

    Args:
        name: of the rule.
        key: of the log.
        step: where the value was logged.
        value: what was logged.
        began: step of the value that it is held against, see ``Examination``.
        first: that value.
        limit: what was passed.
        looks: values in a row, this one included, that are past it.
        says: what it means and which setting to change.
        rose: ``(key, first value, present value)`` of what rises meanwhile, where that is part of the rule.
        change: whether training may be meant to do this.
    """

    name: str
    key: str
    step: int
    value: float
    began: int
    first: float
    limit: float
    looks: int
    says: str
    rose: tuple[str, float, float] | None = None
    change: bool = False

    @property
    def text(self) -> str:
        """The sentence, and the logged values in brackets."""
        figures = [f"{self.key} {self.value:.4g}"]
        figures += [f"{self.first:.4g} at step {self.began}"] if self.step != self.began else []
        figures += [f"limit {self.limit:.4g}"]
        figures += [f"{self.rose[0]} {self.rose[2]:.4g}, first {self.rose[1]:.4g}"] if self.rose else []
        return f"{self.says[:-1]} ({'; '.join(figures)})."


class Examination:
    """State of reading a log: early and last values of what rules read, and how long each rule is broken.

    Rules that early training would break wait for the first evaluation of a trained captioner (``SPEAKS``). The others,
    those of ``floor`` among them, start at step 0. For metrics on which an untrained captioner scores low, the value of that
    evaluation counts instead, if it is higher.

    Args:
        floor: metric -> share of its value at step 0 that must be kept, such as a run's ``best_floor``; it replaces the rule of
            the same metric.
        state: what ``state`` gave, when a run is resumed; empty or none at the start.
    """

    def __init__(self, floor: Mapping[str, float] | None = None, state: Mapping[str, Any] | None = None) -> None:
        self.rules = with_floor(floor or {})
        self._keys = {rule.key for rule in self.rules} | {_REWARD} | {rule.rises for rule in self.rules if rule.rises}
        self._first: dict[str, Logged] = _pairs(state["first"]) if state else {}
        # Checkpoints that were written before there were two starts have one, of captioners that form captions.
        self._spoken: dict[str, Logged] = _pairs(state.get("spoken", state["first"])) if state else {}
        self._last: dict[str, float] = dict(state["last"]) if state else {}
        self._rows: dict[str, int] = dict(state["rows"]) if state else {}
        self._told: list[str] = list(state["told"]) if state else []

    def take(self, line: Mapping[str, Any]) -> list[Verdict]:
        """The verdicts that hold at a line, of rules whose key it has; lines come by rising step.

        Args:
            line: ``step``, and whatever was logged; values that are not finite numbers are skipped.
        """
        step = int(line["step"])
        values = {key: float(value) for key, value in line.items() if key in self._keys and _is_number(value)}
        evaluated = any(key.startswith(EVAL_PREFIX) for key in values)
        speaks = all(values.get(key, 0.0) <= most for key, most in SPEAKS.items())
        for key, value in values.items():
            self._first.setdefault(key, (step, value))
            if speaks and key.startswith(EVAL_PREFIX):
                self._spoken.setdefault(key, (step, value))
            self._last[key] = value
        broken = [v for rule in self.rules if rule.key in values and (v := self._held(rule, step, values[rule.key]))]
        if evaluated:
            broken += self._hacking(broken)
            self._count(_HACKED_ROWS, any(verdict.name in HACKED for verdict in broken))
        verdicts = [verdict for verdict in broken if verdict.name != JUDGE_FELL.name]
        self._told = list(dict.fromkeys([*self._told, *(verdict.name for verdict in verdicts)]))
        return verdicts

    @property
    def hacked(self) -> int:
        """Evaluations in a row, up to the last one, at which a verdict of ``HACKED`` held."""
        return self._rows.get(_HACKED_ROWS, 0)

    @property
    def changes(self) -> set[str]:
        """The verdicts that training may be meant for."""
        return {rule.name for rule in self.rules if rule.change}

    @property
    def waiting(self) -> list[str]:
        """The rules whose metric was measured, and that have nothing to compare with, since no evaluation passes ``SPEAKS``."""
        waiting = [rule.name for rule in self.rules if rule.key in self._first and self._start(rule) is None]
        return list(dict.fromkeys(waiting))

    def named_by(self, keys: Iterable[str]) -> set[str]:
        """The verdicts that a line with these keys can tell about."""
        logged = set(keys)
        composed = {HACKING} if any(key.startswith(EVAL_PREFIX) for key in logged) else set()
        return {rule.name for rule in self.rules if rule.key in logged} | composed

    def lasted(self) -> dict[str, int]:
        """Verdict that ever held -> values in a row, up to the last one, at which it holds; 0 when it is over."""
        needed = {rule.name: rule.looks for rule in self.rules}
        rows = dict.fromkeys(self._told, 0)
        for row, count in self._rows.items():
            name = row.partition("|")[0]
            if name in rows and count >= needed.get(name, 1):
                rows[name] = max(rows[name], count)
        return rows

    def state(self) -> dict[str, Any]:
        """State for a resumed run, as JSON can hold it."""
        starts = {"first": dict(self._first), "spoken": dict(self._spoken)}
        return {**starts, "last": dict(self._last), "rows": dict(self._rows), "told": self._told}

    def _held(self, rule: Rule, step: int, value: float) -> Verdict | None:
        start = self._start(rule)
        if start is None:
            return None
        began, first = start
        limit = rule.limit(first)
        rose = self._rise(rule.rises) if rule.rises else None
        wrong = rule.wrong(value, limit) and (rule.absolute or step > began) and not (rule.rises and rose is None)
        looks = self._count(f"{rule.name}|{rule.key}", wrong)
        if looks < rule.looks:
            return None
        return Verdict(rule.name, rule.key, step, value, began, first, limit, looks, rule.says, rose, rule.change)

    def _hacking(self, broken: list[Verdict]) -> list[Verdict]:
        worse = sorted((v for v in broken if v.name in WORSE), key=lambda verdict: WORSE.index(verdict.name))
        rose = self._rise(_REWARD)
        looks = self._count(HACKING, bool(worse) and rose is not None)
        return [replace(worse[0], name=HACKING, says=HACKING_SAYS, looks=looks, rose=rose)] if looks else []

    def _start(self, rule: Rule) -> Logged | None:
        return rule.start(self._first.get(rule.key), self._spoken.get(rule.key))

    def _rise(self, key: str) -> tuple[str, float, float] | None:
        """A key with its value at the start and the last one, if that is above."""
        start = from_higher(self._first.get(key), self._spoken.get(key))
        last = self._last.get(key, -math.inf)
        return (key, start[1], last) if start and last > start[1] else None

    def _count(self, name: str, wrong: bool) -> int:
        if wrong or name in self._rows:
            self._rows[name] = self._rows.get(name, 0) + 1 if wrong else 0
        return self._rows.get(name, 0)


def with_floor(floor: Mapping[str, float]) -> list[Rule]:
    """The rules, those of the metrics in ``floor`` with its shares as limits."""
    kept = {EVAL_PREFIX + name.removeprefix(EVAL_PREFIX): part for name, part in floor.items()}
    replaced = [rule for rule in RULES if rule.key in kept and not (rule.above or rule.absolute or rule.rises)]
    rules = [
        replace(rule, limit=share(kept[rule.key]), start=from_first) if rule in replaced else rule for rule in RULES
    ]
    further = set(kept) - {rule.key for rule in replaced}
    rules += [Rule(FLOOR, key, share(part), False, FLOOR_SAYS) for key, part in kept.items() if key in further]
    return [*rules, JUDGE_FELL]


def examine(lines: Iterable[Mapping[str, Any]], *, floor: Mapping[str, float] | None = None) -> list[Verdict]:
    """Every verdict of a log, by step.

    Args:
        lines: of ``metrics.jsonl``.
        floor: see ``Examination``.
    """
    examination = Examination(floor)
    return [verdict for line in lines for verdict in examination.take(line)]


def _pairs(kept: Mapping[str, Any]) -> dict[str, Logged]:
    """As JSON gives them back, which has lists."""
    return {key: (int(step), float(value)) for key, (step, value) in kept.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
