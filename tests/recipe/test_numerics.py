"""Every method in every odd situation: two steps with finite weights, or one sentence. A method that is listed is covered."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from method_recipes import make_parts, method_recipe
from pictures import CAPTIONS, images
from tellapart.errors import UsageError
from tellapart.objectives import METHODS
from tellapart.recipe.recipe import Recipe
from tellapart.training.loop import train


@pytest.fixture(scope="module")
def models(materials, tmp_path_factory) -> dict[str, str]:
    return make_parts(tmp_path_factory.mktemp("models"), materials)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Callable[[str], str]:
    """``eight`` different pictures, the same picture eight times (``alike``), or none with captions (``bare``)."""
    root = tmp_path_factory.mktemp("data")

    def write(kind: str) -> str:
        folder = root / kind
        if not folder.is_dir():
            folder.mkdir()
            pictures = images(8)
            for i in range(8):
                pictures[0 if kind == "alike" else i].save(folder / f"{i}.png")
            if kind != "bare":
                rows = [{"file_name": f"{i}.png", "text": [CAPTIONS[2 * i], CAPTIONS[2 * i + 9]]} for i in range(8)]
                (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(folder)

    return write


def recipe_of(method: str, materials, models, path: str, **changes) -> Recipe:
    return Recipe.load(method_recipe(method, materials, models, path, **changes))


def bias(weight: float) -> Callable[[Any], None]:
    """Adds a multiple of EOS's own direction to the last state: captions end at once, or never."""

    def change(built: Any) -> None:
        decoder = built.captioner.family.model.decoder
        row = decoder.lm_head.weight[3].detach()
        with torch.no_grad():
            decoder.transformer.ln_f.bias += weight * row / row.square().sum()

    return change


def rewarding(value: float) -> Callable[[Any], None]:
    """Puts a reward of this value in place of the method's own."""

    def change(built: Any) -> None:
        if not hasattr(built.objective, "reward"):
            pytest.skip("the method has no reward of others")
        built.objective.reward = lambda rollout: torch.full((len(rollout.texts),), value)

    return change


def broken_in_a_mix(built: Any) -> None:
    from tellapart.rewards.mix import Mix

    if not hasattr(built.objective, "reward"):
        pytest.skip("the method has no reward of others")

    def broken(rollout):
        values = torch.zeros(len(rollout.texts))
        values[0] = math.nan
        return values

    built.objective.reward = Mix({"clip_s": built.objective.reward, "broken": broken}, {"broken": 1e-3})


def shut_words(built: Any) -> None:
    """Half of the words can never be drawn: their logits are minus infinity."""
    family = built.captioner.family
    whole = family.logits

    def logits(states):
        shut = torch.zeros(family.vocab_size, dtype=torch.bool)
        shut[40:] = True
        return whole(states).masked_fill(shut, -math.inf)

    family.logits = logits


SITUATIONS: dict[str, tuple[str, dict[str, Any], Callable[[Any], None] | None]] = {
    "usual": ("eight", {}, None),
    "batches of one": ("eight", {"per_device_train_batch_size": 1}, None),
    "batches of two": ("eight", {"per_device_train_batch_size": 2}, None),
    "one image": ("eight", {"per_device_train_batch_size": 1, "data": {"limit": 1}}, None),
    "no references": ("bare", {}, None),
    "all images alike": ("alike", {}, None),
    "empty captions": ("eight", {}, bias(1e4)),
    "endless captions": ("eight", {}, bias(-1e4)),
    "bf16": ("eight", {"bf16": True}, None),
    "words that are shut": ("eight", {}, shut_words),
    "constant rewards": ("eight", {}, rewarding(0.5)),
    "one part of a reward is NaN": ("eight", {}, broken_in_a_mix),
    "infinite rewards": ("eight", {}, rewarding(math.inf)),
}
"""What is odd -> the data, options of the recipe, and what is changed once it is built."""

STEPPED = "stepped"

MUST_STEP = {"usual", "batches of two", "bf16", "constant rewards"}
"""Situations in which every method takes its steps."""

MUST_REFUSE = {"one part of a reward is NaN", "infinite rewards"}


@pytest.fixture(scope="module")
def build(materials, models, data) -> Callable[[str, str, int | None], Any]:
    """Method, data and number of images -> what its recipe builds, as new, or the sentence that refuses it."""
    known: dict[tuple[str, str, int | None], Any] = {}

    def copied(method: str, kind: str, limit: int | None) -> Any:
        key = method, kind, limit
        if key not in known:
            for old in [old for old in known if old[0] != method]:
                del known[old]
            recipe = recipe_of(method, materials, models, data(kind), output_dir="unused", data={"limit": limit})
            try:
                known[key] = recipe.build(), recipe
            except UsageError as error:
                known[key] = str(error)
        found = known[key]
        return found if isinstance(found, str) else (copy.deepcopy(found[0]), found[1])

    return copied


def outcome(built: Any, config: Any) -> str:
    """``stepped``, or the sentence that refused."""
    try:
        run = train(built.objective, built.data, config)
    except UsageError as error:
        sentence = str(error)
    else:
        steps = [line for line in run.history if "loss" in line]
        assert len(steps) == 2
        assert all(math.isfinite(line["loss"]) for line in steps)
        for name, parameter in built.objective.named_parameters():
            assert parameter.isfinite().all(), name
        return STEPPED
    assert not (config.output_dir / "checkpoint-2").exists()
    return sentence


def every_pair() -> list[Any]:
    """Methods by situations. On every change a sixth of them is tried, so that each method meets two situations and each
    situation at least four methods; every night all are."""
    pairs = [(i + j, method, situation) for i, method in enumerate(METHODS) for j, situation in enumerate(SITUATIONS)]
    return [
        pytest.param(method, situation, marks=[pytest.mark.nightly] if place % 6 else [], id=f"{method}-{situation}")
        for place, method, situation in pairs
    ]


@pytest.mark.parametrize(("method", "situation"), every_pair())
def test_a_sensible_step_or_one_sentence(method, situation, build, tmp_path):
    kind, changes, change = SITUATIONS[situation]
    options = {name: value for name, value in changes.items() if name != "data"}
    found = build(method, kind, changes.get("data", {}).get("limit"))
    if not isinstance(found, str):
        built, recipe = found
        if change is not None:
            change(built)
        found = outcome(built, replace(recipe.training, output_dir=tmp_path / "run", **options))
    if found == STEPPED:
        assert situation not in MUST_REFUSE
        return
    assert situation not in MUST_STEP, found
    assert "\n" not in found
    assert found.endswith((".", "?"))
    assert len(found) < 600
