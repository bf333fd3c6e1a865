"""Study files: which recipes are compared, what is searched on val, and what is measured on test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError
from tellapart.evaluation.columns import describe
from tellapart.names import require_known
from tellapart.recipe.flags import full_name
from tellapart.recipe.options import in_words, short
from tellapart.recipe.read_yaml import Kind, read_yaml
from tellapart.sweep.tasks import Setting
from tellapart.sweep.trainings import load, option

STUDY = Kind("study", "title: DiCO on the world", "name a YAML file, such as studies/dico.yaml.")

Columns = Mapping[str, tuple[str, float | None]]
"""Metric -> heading, and the factor it is printed with (None takes the metric's own)."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a study.

    Args:
        recipe: what is trained: the stem of a file in ``recipes/``, or a path.
        start_of: instead of ``recipe``, the recipe whose start captioner is measured as it is.
        overrides: option -> value, for all points of the row.
        grid: option -> values that are tried on val, the first option varying slowest.
        point_of: another row, whose chosen point this one takes.
        captioner_of: another row, whose captioner after its last step this one begins with, that of the same seed at the chosen
            point.
        curve: option -> values that are all measured on test at the chosen point, each as a row of its own.
        seeds: of the measured points; empty takes the study's.
        measure: options of ``tellapart score`` that replace the study's for this row, which is then measured once, next to the
            other rows' first decoding: a search without training, say.
        test: whether it is measured on test, or tried on val only.
        shown: whether the tables show it.
    """

    recipe: str = ""
    start_of: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    point_of: str = ""
    captioner_of: str = ""
    curve: Mapping[str, list[Any]] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    measure: Mapping[str, Any] = field(default_factory=dict)
    test: bool = True
    shown: bool = True

    @property
    def setting(self) -> Setting:
        """The recipe with what all points share."""
        return Setting(self.recipe or self.start_of, self.overrides)


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """One page of results, as its file describes it.

    Args:
        title: of the page.
        page: the Markdown file that is written.
        rows: name -> row, in the order of the tables.
        introduction: text under the title, from the Markdown file next to the study's.
        seeds: of the measured points.
        search_seeds: that the points of grids, and rows that are tried on val only, are trained with; empty takes the first of
            ``seeds``.
        measure: options of ``tellapart score`` for test; of several ``num_beams`` each is measured, ``samples`` with the first.
        tables: heading -> columns.
        sets: columns of several captions per image.
        probed: listeners of the built-in world, and further towers, whose probe the page shows.
        references: whether human captions, full descriptions and empty captions are shown as rows.
        times: whether steps are timed, alone, after the trainings.
    """

    title: str
    page: str
    rows: Mapping[str, Row]
    introduction: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    search_seeds: tuple[int, ...] = ()
    measure: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Columns] = field(default_factory=dict)
    sets: Columns = field(default_factory=dict)
    probed: tuple[str, ...] = ("listener", "judge")
    references: bool = True
    times: bool = False

    @property
    def split(self) -> str:
        """That is measured last."""
        return str(self.measure.get("split", "test"))

    @property
    def measures(self) -> list[dict[str, Any]]:
        """Options of ``tellapart score``, one mapping per decoding."""
        options = {**self.measure, "split": self.split}
        beams = options.pop("num_beams", 1)
        beams = beams if isinstance(beams, list) else [beams]
        first = {key: options.pop(key) for key in ("samples",) if key in options}
        return [{**options, **(first if i == 0 else {}), "num_beams": count} for i, count in enumerate(beams)]

    def measures_of(self, name: str) -> list[dict[str, Any]]:
        """The measures of a row: the study's, or one of its own."""
        own = self.rows[name].measure
        return [{**self.measures[0], **own}] if own else self.measures

    @property
    def decodings(self) -> list[str]:
        """``greedy`` and ``beam 5``, in the order of ``measures``."""
        return ["greedy" if how["num_beams"] == 1 else f"beam {how['num_beams']}" for how in self.measures]

    @property
    def sources(self) -> list[str]:
        """The rows whose trained captioners other rows begin with."""
        return sorted({row.captioner_of for row in self.rows.values()} - {""})

    def heading(self, key: str) -> str:
        """A metric as the tables call it; one that is in none of them by its label."""
        return next((columns[key][0] for columns in self.tables.values() if key in columns), describe(key).label)

    def keeping(self, names: set[str]) -> StudyFile:
        """The same with some of the rows, those whose points they take, and the start captioners that they begin with."""
        for name in names:
            require_known(name, self.rows, f"a row of {self.page}")
        wanted, further = set[str](), set(names)
        while further:
            wanted |= further
            others = {other for name in further for other in (self.rows[name].point_of, self.rows[name].captioner_of)}
            further = others - wanted - {""}
        starts = {_captioner(self.rows[name]) for name in wanted}
        plain = {name for name, row in self.rows.items() if row.start_of and not row.measure}
        kept = {name for name in plain if _captioner(self.rows[name]) in starts} | wanted
        return replace(self, rows={name: row for name, row in self.rows.items() if name in kept})

    def seeded(self, seeds: Sequence[int]) -> StudyFile:
        """The same with these seeds for every row, also for rows with seeds of their own; where a study searches with several
        seeds, it does so with these."""
        rows = {name: replace(row, seeds=()) for name, row in self.rows.items()}
        searching = tuple(seeds) if self.search_seeds else ()
        return replace(self, seeds=tuple(seeds), search_seeds=searching, rows=rows)

    def having(self, names: set[str], overrides: Mapping[str, Any]) -> StudyFile:
        """The same with options of some rows changed."""
        changed = {
            name: replace(self.rows[name], overrides={**self.rows[name].overrides, **overrides}) for name in names
        }
        return replace(self, rows={**self.rows, **changed})

    def without(self, name: str) -> StudyFile:
        """The same where no row gives all its points a value of an option; grids and curves over it stay."""
        rows = dict[str, Row]()
        for shown, row in self.rows.items():
            left = {key: value for key, value in row.overrides.items() if full_name(key) != name}
            rows[shown] = replace(row, overrides=left)
        return replace(self, rows=rows)


def _captioner(row: Row) -> str:
    """What a row's trainings begin with."""
    _, recipe = load(row.setting.recipe, row.setting.overrides)
    return str(option(recipe, "captioner.model_name_or_path"))


def read_study(path: Path) -> StudyFile:
    """A study file, with the Markdown file of the same name as its introduction.

    Raises:
        UsageError: the file is missing or damaged, or a key in it is unknown.
    """
    written = read_yaml(path, STUDY).values
    lacking = [name for name in ("title", "page", "rows") if not written.get(name)]
    if lacking:
        raise UsageError(f"{path} has no {lacking[0]}: a study names its title, its page and its rows.")
    values = _known(StudyFile, {**written, **{name: str(written[name]) for name in ("title", "page")}}, str(path))
    _require_plain(StudyFile, values, f"in {path}")
    text = path.with_suffix(".md")
    if text.is_file():
        values["introduction"] = text.read_text(encoding="utf-8").strip()
    for name in ("rows", "tables", "measure"):
        _require(dict, values.get(name, {}), f"{name} in {path}")
    values["rows"] = {str(name): _row(row, f"{name} in {path}") for name, row in values["rows"].items()}
    if values.get("measure", {}).get("num_beams") == []:
        raise UsageError(f"num_beams in the measure of {path} is empty: list at least one value.")
    for name, row in values["rows"].items():
        _check_point(name, row, values["rows"], path)
        _check_captioner(name, row, values["rows"], path)
    tables = values.get("tables", {}).items()
    values["tables"] = {str(name or ""): _columns(found, f"table {name!r} in {path}") for name, found in tables}
    values["sets"] = _columns(values.get("sets", {}), f"sets in {path}")
    values |= {key: seeds_of(values[key], f"{key} in {path}") for key in ("seeds", "search_seeds") if key in values}
    if not values.get("seeds", (0,)):
        raise UsageError(f"seeds in {path} is empty: name at least one.")
    if "probed" in values:
        _require(list, values["probed"], f"probed in {path}")
        values["probed"] = tuple(values["probed"])
    return StudyFile(**values)


def _row(written: Mapping[str, Any] | str, where: str) -> Row:
    values = _known(Row, {"recipe": written} if isinstance(written, str) else written, where)
    _require_plain(Row, values, f"of {where}")
    for key in ("overrides", "grid", "curve", "measure"):
        _require(dict, values.get(key, {}), f"{key} of {where}")
    for key in ("grid", "curve"):
        for option_name, tried in values.get(key, {}).items():
            _require(list, tried, f"{option_name} in the {key} of {where}")
            if not tried:
                raise UsageError(f"{option_name} in the {key} of {where} is empty: list at least one value.")
    row = Row(**{**values, "seeds": seeds_of(values.get("seeds", []), f"seeds of {where}")})
    if bool(row.recipe) == bool(row.start_of):
        raise UsageError(f"{where} must name either a recipe or start_of, a recipe whose start captioner is measured.")
    return row


def _check_point(name: str, row: Row, rows: Mapping[str, Row], path: Path) -> None:
    """Raise where a row takes its point of what has none of its own, or has more than one source of it."""
    if len(row.curve) > 1:
        raise UsageError(
            f"the curve of {name} in {path} has {len(row.curve)} options ({', '.join(row.curve)}): name one, and give each other "
            "option a row of its own."
        )
    if not row.point_of:
        return
    require_known(row.point_of, rows, f"a row that {name} in {path} could take its point of")
    if row.grid:
        raise UsageError(f"{name} in {path} has both grid and point_of: leave one of them out.")
    source = rows[row.point_of].point_of
    if source:
        raise UsageError(
            f"{name} in {path} takes the point of {row.point_of}, which takes that of {source}: name a row with a grid as "
            "point_of."
        )


def _check_captioner(name: str, row: Row, rows: Mapping[str, Row], path: Path) -> None:
    """Raise where the captioner that a row begins with is not made before the row is."""
    if not row.captioner_of:
        return
    require_known(row.captioner_of, rows, f"a row that {name} in {path} could take its captioner of")
    if row.grid or row.start_of:
        raise UsageError(
            f"{name} in {path} has captioner_of, so it must train a recipe at one point: leave start_of and grid out, and name "
            "point_of."
        )
    source = rows[row.captioner_of]
    if source.start_of or source.captioner_of:
        raise UsageError(
            f"{name} in {path} begins with the captioner of {row.captioner_of}, which must train world/... itself."
        )


def _known(kind: type[Any], written: Any, where: str) -> dict[str, Any]:
    _require(dict, written, where)
    names = [each.name for each in fields(kind)]
    for key in written:
        require_known(key, names, f"a key of {where}")
    return dict(written)


def _require_plain(kind: type[Any], values: Mapping[str, Any], where: str) -> None:
    """Raise if what must be text, or true or false, is not: YAML here reads ``no`` as text, which would count as true."""
    types = {"bool": bool, "str": str}
    for each in fields(kind):
        if each.name in values and str(each.type) in types:
            _require(types[str(each.type)], values[each.name], f"{each.name} {where}")


def _require(kind: type[Any], value: Any, where: str) -> None:
    """Raise if a value is of another type."""
    if not isinstance(value, kind):
        raise UsageError(f"{where} is {short(value)}, but must be {in_words(kind)}: change it.")


def seeds_of(written: Any, where: str) -> tuple[int, ...]:
    """Seeds as they are written.

    Args:
        written: the value in the file or on the command line.
        where: name of the value, for the error.

    Raises:
        UsageError: they are not a list of different whole numbers of 0 or more.
    """
    _require(list, written, where)
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in written)
    if not whole or len(set(written)) < len(written):
        raise UsageError(f"{where} is {short(written)}, but must be a list of different whole numbers: change it.")
    return tuple(written)


def _columns(written: Any, where: str) -> dict[str, tuple[str, float | None]]:
    _require(dict, written, where)
    found = dict[str, tuple[str, float | None]]()
    for key, value in written.items():
        heading, factor = value if isinstance(value, list) and len(value) == 2 else (value, None)
        if isinstance(heading, list | Mapping) or not isinstance(factor, int | float | None):
            raise UsageError(
                f"{key} in {where} is {short(value)}, but must be a heading, or a list of a heading and a factor: change it."
            )
        found[str(key)] = str(heading), None if factor is None else float(factor)
    return found
