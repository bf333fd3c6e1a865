"""A run's record of its settings, in the words of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tellapart.files import read_object
from tellapart.objectives import METHODS
from tellapart.rewards import REWARDS
from tellapart.run_files import RECORD_FILE, STATE_FILE


@dataclass(frozen=True)
class Record:
    """``run.json`` of a training, and which of its checkpoints was selected.

    Args:
        recipe: the resolved recipe; empty where a program trained without one.
        config: options of the loop.
        versions: package -> version.
        facts: the rest of ``run.json``.
        selected: step and metric of the selected checkpoint, if a metric selects.
        ended: why it was ended before its last step; empty if it was not.
    """

    recipe: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    selected: dict[str, Any] = field(default_factory=dict)
    ended: str = ""

    @property
    def method(self) -> str | None:
        """Name of the training method."""
        return self.recipe.get("method")

    @property
    def floor(self) -> dict[str, float]:
        """Metric -> share of its first value that a selected checkpoint keeps."""
        return self.config.get("best_floor") or {}

    @property
    def rewards(self) -> dict[str, float]:
        """Reward -> its weight, of those that count."""
        written = self.recipe.get("reward") or []
        if isinstance(written, list):
            written = {entry.get("name"): entry.get("weight", 1.0) for entry in written if isinstance(entry, dict)}
        return {name: weight for name, weight in written.items() if weight}

    def _section(self, name: str) -> dict[str, Any]:
        value = self.recipe.get(name)
        return value if isinstance(value, dict) else {}

    def lines(self) -> list[tuple[str, str]]:
        """What to print, as pairs of a heading and a text."""
        made = [
            ("Method", self._method()),
            ("Began from", self._section("captioner").get("model_name_or_path")),
            ("Reward", mix(self.rewards)),
            ("Reward's listener", ", ".join(self.listeners())),
            ("Reward's matcher", self._section("matcher").get("model")),
            ("Training data", self._data()),
            ("Training", self._training()),
            ("Selected", self._selected()),
            ("Ended early", self.ended),
            ("Seed", self.facts.get("seed")),
            ("Versions", ", ".join(f"{name} {version}" for name, version in self.versions.items())),
        ]
        return [(name, str(text)) for name, text in made if text not in (None, "")]

    def listeners(self) -> list[str]:
        """The listeners that the training read: the recipe's, where method or a weighted reward without one of its own reads it,
        and those that rewards have for themselves. Of what is not known to be a method or reward here, the recipe's is named."""
        shared, written = self._section("listener").get("path"), self.recipe.get("reward") or []
        if not isinstance(written, list):  # as earlier versions wrote it
            return [str(shared)] if shared else []
        entries = [entry for entry in written if isinstance(entry, dict) and entry.get("weight", 1.0)]
        own = [entry["listener"].get("path") for entry in entries if isinstance(entry.get("listener"), dict)]
        readers: list[Any] = [METHODS.get(str(self.method))]
        readers += [
            REWARDS.get(str(entry.get("name"))) for entry in entries if not isinstance(entry.get("listener"), dict)
        ]
        reads = any(kind is None or "listener" in kind.needs for kind in readers)
        return list(dict.fromkeys(str(path) for path in [*([shared] if reads else []), *own] if path))

    def _method(self) -> str | None:
        options = ", ".join(f"{k} {_short(v)}" for k, v in self._section("objective").items() if v is not None)
        return f"{self.method} ({options})" if self.method and options else self.method

    def _data(self) -> str:
        section = self._section("data")
        said = f"{section.get('path')}, split {section.get('split')}" if section.get("path") else ""
        limit = f", the first {section['limit']} images" if section.get("limit") else ""
        digest = str(self.facts.get("data") or "")[:8]
        return f"{said}{limit}{f' [{digest}]' if digest else ''}".strip()

    def _training(self) -> str:
        parts = []
        if self.facts.get("total_steps"):
            parts.append(f"{self.facts['total_steps']} steps of {self.facts.get('effective_batch_size')} images")
        if self.config.get("learning_rate") is not None:
            parts.append(f"learning rate {_plain(self.config['learning_rate'])}")
        return ", ".join(parts)

    def _selected(self) -> str:
        if not self.selected:
            return ""
        share = ", ".join(f"{name} at {part:g} of its start or more" for name, part in self.floor.items())
        step = self.selected.get("step")
        start = " (the start itself: no later checkpoint was better)" if step == 0 else ""
        return f"step {step}{start}, by {self.selected.get('metric')}" + (f" among {share}" if share else "")


def mix(weights: Mapping[str, float]) -> str:
    """``1 x clip_s + 0.5 x cider_d``; empty where nothing is mixed."""
    return " + ".join(f"{weight:g} × {name}" for name, weight in weights.items())


def _plain(rates: Any) -> str:
    return (
        ", ".join(f"{part} {_short(rate)}" for part, rate in rates.items())
        if isinstance(rates, Mapping)
        else _short(rates)
    )


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def read_record(run: Path) -> Record | None:
    """The record of the run in a folder, or None if it has none that can be read."""
    value = read_object(run / RECORD_FILE)
    if not value:
        return None
    state = read_object(run / STATE_FILE) or read_object(run / "best" / STATE_FILE)  # before its first checkpoint
    best = state.get("selection") or {}
    rest = {key: value[key] for key in value if key not in ("recipe", "config", "versions")}
    recipe, config, versions = (value.get(name) or {} for name in ("recipe", "config", "versions"))
    ended = str(state.get("ended") or "")
    return Record(recipe, config, versions, facts=rest, selected=best.get("best") or {}, ended=ended)
