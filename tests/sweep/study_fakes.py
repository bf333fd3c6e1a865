"""Studies whose trainings are noted by hand, on disk as their processes leave them: nothing is trained."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tellapart.evaluation.protocol import Protocol
from tellapart.evaluation.results import EvaluationResult
from tellapart.files import write_json
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import StudyFile, read_study
from tellapart.sweep.tasks import DONE_FILE, TRAINED_FILE, Task
from tellapart.sweep.trainings import load, option, resolved_key

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "studies"

_RECALL = {"recall": {"full": {"t2i_R@1": 67.4}}}
PROBES: dict[str, dict] = {
    "world/backbone": {"probe": {"shape": 99.3, "map_object": 81.5}, "details": {}},
    "world/xe": {
        "probe": {"shape": 99.6, "order": 100.0},
        "details": {"sampled": {"truthful": 85.6, "grammatical": 98.2, "place": 92.8}},
    },
    "world/listener": {"probe": {"shape": 98.6, "order": 71.2}, "details": _RECALL},
    "world/judge": {"probe": {"shape": 99.5, "order": 100.0}, "details": _RECALL},
}
"""What models of the world may see."""

_LOADED: dict[str, tuple[str, dict]] = {}

OnVal = Callable[[str, Task], Mapping[int, Mapping[str, float]]]
OnTest = Callable[[str, Task, str, str], Mapping[str, float]]


@pytest.fixture(autouse=True, scope="module")
def loaded_once():
    """Recipes are read once for all tests."""

    def load_once(name, overrides):
        key = json.dumps([str(name), {**overrides}], sort_keys=True)
        if not str(name).endswith(".yaml") and key in _LOADED:
            return _LOADED[key]
        return _LOADED.setdefault(key, load(name, overrides))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tellapart.sweep.tasks.load", load_once)
        yield


_KEYS: dict[str, str] = {}


@pytest.fixture(autouse=True, scope="module")
def keyed_once():
    """Keys of recipes are computed once for all tests, which change no model and no data that a recipe names."""

    def key_once(recipe, *further, sections=()):
        known = json.dumps([recipe, further, sections], sort_keys=True, default=str)
        if known not in _KEYS:
            _KEYS[known] = resolved_key(recipe, *further, sections=sections)
        return _KEYS[known]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tellapart.sweep.tasks.resolved_key", key_once)
        yield


def module(name: str) -> ModuleType:
    """The Python file of a study, loaded once: dataclasses look themselves up among modules. It finds the files next to it."""
    if str(STUDIES) not in sys.path:
        sys.path.append(str(STUDIES))
    if f"study_{name}" in sys.modules:
        return sys.modules[f"study_{name}"]
    spec = spec_from_file_location(f"study_{name}", STUDIES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def study_of(name: str, root: Path, kind: type[Study] = Study, **options) -> Study:
    return kind(read_study(STUDIES / f"{name}.yaml"), root, **options)


def rate(task: Task) -> float:
    """The captioner's learning rate."""
    found = option(task.recipe, "training.learning_rate")
    return found["captioner"] if isinstance(found, dict) else found


def note_training(task: Task, curve: Mapping[int, Mapping[str, float]], *, selected: int, further=()) -> None:
    """A finished training of two hours: its log on val, and which step is selected."""
    write_json(task.folder / TRAINED_FILE, {"selected": selected, "last": max(curve)})
    lines = [{"step": step} | {f"eval_{k}": v for k, v in metrics.items()} for step, metrics in curve.items()]
    steps = max(curve)
    took = [{"step": n + 1, "seconds/collect": 3000 / steps, "seconds/update": 4200 / steps} for n in range(steps)]
    text = "".join(json.dumps(line) + "\n" for line in (*lines, *took, *further))
    (task.folder / "metrics.jsonl").write_text(text, encoding="utf-8")


def note_measured(
    task: Task, place: str, metrics: Mapping[str, Mapping[str, float]], *, captions=None, per_image=None
) -> None:
    """A measurement: checkpoint -> its metrics."""
    captions, protocol, done = captions or {"a": "a star"}, Protocol("toy", 1, "00000000", "greedy"), {}
    for checkpoint, values in metrics.items():
        found = EvaluationResult("toy", protocol, dict(values), captions, per_image or {})
        saved = found.save(task.folder / place / checkpoint)
        done[checkpoint] = {"step": 0, "folder": saved.relative_to(task.folder / place).as_posix()}
    write_json(task.folder / place / DONE_FILE, done)


def finish(
    study: Study, on_val: OnVal, on_test: OnTest, *, selected: int, further: Callable = lambda task: ()
) -> Study:
    """Note everything that a study trains and measures.

    Args:
        study: to be finished.
        on_val: row and task -> step -> metrics.
        on_test: measured row, task, decoding and checkpoint -> metrics.
        selected: step that is selected in every training.
        further: task -> further lines of its log.
    """
    rows = {
        task.folder: name for name in study.file.rows for point in study.grid(name) for task in study.tried(name, point)
    }
    for task in study.searching():
        if task.trains:
            note_training(task, on_val(rows[task.folder], task), selected=selected, further=further(task))
        else:
            note_measured(task, next(iter(task.measures)), {"start": on_val(task.name, task)[0]})
    # a row that begins with another row's captioner has no key before that is trained
    for shown, name, setting in sorted(study.points(), key=lambda point: bool(study.file.rows[point[1]].captioner_of)):
        for task in study.seeded(name, setting):
            if task.trains:
                note_training(task, on_val(name, task), selected=selected, further=further(task))
            checkpoints = ("selected", "last") if task.trains else ("start",)
            for place, decoding in zip(
                task.measures, study.file.decodings, strict=False
            ):  # a row may have one of its own
                note_measured(task, place, {point: on_test(shown, task, decoding, point) for point in checkpoints})
    return study


class Told(Study):
    """A study of which the figures on test are told, and every point is as good on val: for claims that read nothing else.

    Args:
        file: of the study.
        root: of its trainings, of which there are none.
        on_test: as for ``finish``.
    """

    def __init__(self, file: StudyFile, root: Path, on_test: OnTest) -> None:
        super().__init__(file, root)
        self._on_test = on_test

    def merit(self, name, setting):
        return (0.0,)

    def metrics(self, name, point="selected", decoding="greedy"):
        tasks = [task for task in self.measured[name] if task.trains or point == "selected"]
        return [dict(self._on_test(name, task, decoding, point if task.trains else "start")) for task in tasks]


@contextmanager
def refused(capsys, says):
    """What runs in it ends with one sentence on stderr, which matches ``says``, and the exit code of a mistake."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        yield
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{says}", said), said
