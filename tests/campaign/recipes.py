# ruff: noqa: E501  (tables of strange pieces)
"""Strange recipes: wrong types, tags that would run code, aliases without end, other encodings; ``train --dry_run`` reads them."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import strategies as st

from tellapart.objectives import METHODS

from .data_files import ODD
from .fuzz import CANARY, Tray, fuzzing
from .verdict import faults_of

_TOKENS = st.sampled_from(
    [
        "!!python/object/apply:os.system ['touch {canary}']", "!!python/name:os.system ''", "!!int abc", "!!float ''", "!!timestamp 9", "!!bool x",
        "!!binary '='", "!!set {{}}", "&a [*a]", "*nobody", "1e999", ".nan", "0x1F", "1_000", "'", '"', "{{", "[", "- -", "? a", "%YAML 9.9", "\t", "| x",
        "<<: *a", "2001-01-01", "~", "yes", "a\x00b", "\x1b[31m", "\ud800", "1" * 5000, "x" * 70_000, "{{a: {{b: {{c: 1}}}}}}", "!x y", "../../escaped",
    ]
)  # fmt: skip
_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@st.composite
def _recipes(draw: Any) -> tuple[str, list[tuple[str, Any]], str, int]:
    """Method, changes (option -> value or YAML), a change of the text, and where."""
    method = draw(st.sampled_from(sorted(METHODS)))
    option = st.sampled_from(
        [
            "method",
            "captioner",
            "captioner.model_name_or_path",
            "captioner.train",
            "captioner.lora",
            "data",
            "data.path",
            "data.split",
            "data.limit",
            "reward",
            "reward.clip_s",
            "listener",
            "listener.path",
            "objective",
            "objective.max_new_tokens",
            "evaluation",
            "evaluation.split",
            "output_dir",
            "learning_rate",
            "max_steps",
            "seed",
            "per_device_train_batch_size",
            "logging_steps",
            "nothing",
            "metric_for_best_model",
            "save_steps",
            "bf16",
            "warmup_steps",
        ]
    )
    value = st.one_of(
        st.sampled_from(ODD), _TOKENS.map(lambda text: ("yaml", text)), st.text(max_size=8), st.integers(), st.floats()
    )
    changes = draw(st.lists(st.tuples(option, value), min_size=0, max_size=3))
    text = draw(
        st.sampled_from(
            ("", "", "", "cut", "laughs", "method laughs", "merge", "utf16", "latin", "deep", "twice", "list")
        )
    )
    return method, changes, text, draw(st.integers(0, 400))


def _attempt(drawn: tuple[str, list[tuple[str, Any]], str, int], tray: Tray) -> list[str]:
    method, changes, change, place = drawn
    recipe = tray.room.given.recipe(method) | {"output_dir": str(tray.folder / "run")}
    marks: dict[str, str] = {}
    for number, (option, value) in enumerate(changes):
        if isinstance(value, tuple):
            marks[f"MARK{number}"] = value[1].format(canary=tray.room.scratch / CANARY)
            value = f"MARK{number}"
        _put(recipe, option.split("."), value)
    try:
        text = yaml.safe_dump(recipe, allow_unicode=True)
    except (yaml.YAMLError, RecursionError):
        text = json.dumps(recipe)
    for mark, written in marks.items():
        text = text.replace(mark, written)
    path = tray.folder / "recipe.yaml"
    path.write_bytes(_changed(text, change, place))
    outcome = tray.call("train", path, "--dry_run")
    faults = faults_of(outcome)
    if (tray.folder / "run").exists():
        faults.append("a dry run wrote its folder")
    return faults


def _put(recipe: Any, names: list[str], value: Any) -> None:
    *outer, last = names
    for name in outer:
        if not isinstance(recipe.get(name), dict):
            recipe[name] = {}
        recipe = recipe[name]
    recipe[last] = value


def _changed(text: str, change: str, place: int) -> bytes:
    data = text.encode("utf-8", errors="surrogatepass")
    return {
        "": lambda: data,
        "cut": lambda: data[:place],
        "laughs": lambda: _LAUGHS.encode() + data,
        "method laughs": lambda: _LAUGHS.encode() + b"method: *i\n",
        "merge": lambda: (
            b"".join(
                b"k%d: &k%d {<<: [%s]}\n" % (i, i, b", ".join([b"*k%d" % (i - 1)] * 9 if i else [])) for i in range(9)
            )
            + data
        ),
        "utf16": lambda: text.encode("utf-16", errors="replace"),
        "latin": lambda: data + "réponse: é\n".encode("latin-1"),
        "deep": lambda: data + b"x: " + b"[" * 5000,
        "twice": lambda: data + data,
        "list": lambda: b"- " + data,
    }[change]()


RECIPES = fuzzing("recipes", 300, 0.05, _recipes(), _attempt, seconds=60)
