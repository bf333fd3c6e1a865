"""Ranges of arguments: pydantic, which reads recipes, and the constructors' own check must refuse the same values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
from annotated_types import Ge, Lt
from pydantic import TypeAdapter, ValidationError

from tellapart import ranges
from tellapart.errors import UsageError
from tellapart.objectives import METHODS
from tellapart.ranges import AtLeastTwo, PositiveFloat, PositiveInt, UnitFloat, in_range, require, require_fields
from tellapart.recipe.options import in_words, options_of
from tellapart.recipe.recipe import Recipe
from tellapart.recipe.schema import Catalogue, reward_options
from tellapart.recipe.shipped import find_recipe
from tellapart.rewards import REWARDS

KINDS = {name: kind for name, kind in vars(ranges).items() if name.endswith(("Float", "Int", "Two"))}
NUMBERS = (-1, 0, 1, 2, 3)
FRACTIONS = (-0.5, 1e-9, 0.5, 1 - 1e-9, 1 + 1e-9, math.inf)

FREE = {"clamp", "phi_weight", "clip_weight", "grammar_weight", "weight", "seed"}
"""Numbers that may be negative."""


def accepted(kind, value):
    try:
        require({"x": kind}, {"x": value})
    except ValueError:
        return False
    return True


def read(kind, value):
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("name", KINDS)
def test_constructors_and_recipes_hold_the_same_numbers_for_good(name):
    kind = KINDS[name]
    numbers = NUMBERS if kind.__origin__ is int else NUMBERS + FRACTIONS
    found = [accepted(kind, number) for number in numbers]
    assert found == [read(kind, number) for number in numbers]
    assert {True, False} == {*found}
    assert [accepted(kind | None, number) for number in numbers] == found
    assert accepted(kind | None, None)
    assert [accepted(tuple[kind, ...], (numbers[-2], number)) for number in numbers] == [
        accepted(kind, numbers[-2]) and one for one in found
    ]


@pytest.mark.parametrize("value", [math.nan, None, np.int64(0), np.float32(-1)])
def test_other_numbers_and_none_are_not_let_through(value):
    assert not accepted(PositiveFloat, value)
    assert not accepted(PositiveInt, value)
    assert accepted(PositiveInt, np.int64(1))
    assert accepted(PositiveInt, 2.0)
    assert accepted(PositiveFloat | dict[str, PositiveFloat], {"a": 1e-9})


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (PositiveFloat, 0.0, "x=0.0 must be above 0"),
        (UnitFloat, 2, "x=2 must be from 0 to 1"),
        (ranges.OpenUnitFloat, 1, "x=1 must be between 0 and 1"),
        (Annotated[int, Ge(2), Lt(5)], 5, "x=5 must be at least 2 and below 5"),
        (PositiveInt | None, 0, "x=0 must be at least 1"),
        (PositiveInt | None, 2.5, "x=2.5 must be whole and at least 1"),
        (Sequence[PositiveInt], [3, 0], "x=[3, 0] must be at least 1 each"),
        (PositiveFloat, "1", "x='1' must be a number, above 0"),
        (PositiveInt, True, "x=True must be a number, at least 1"),
        (PositiveFloat, [1.0], "x=[1.0] must be a number, above 0"),
        (Sequence[PositiveInt], 3, "x=3 must be a list"),
        (Literal["a"], {"a": 1}, "x={'a': 1} must be one of a"),
        (PositiveFloat | dict[str, PositiveFloat], -1.0, "x=-1.0 must be above 0"),
        (PositiveFloat | dict[str, PositiveFloat], {"a": 1.0, "b": 0.0}, "x={'a': 1.0, 'b': 0.0} must be above 0 each"),
        (Literal["a", "b"], "c", "x='c' must be one of a, b"),
        (tuple[Literal["a", "b"], ...], ("a", "c"), "x=('a', 'c') must be one of a, b each"),
    ],
)
def test_what_is_wrong_is_said(kind, value, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        require({"x": kind}, {"x": value})


@pytest.mark.parametrize(
    ("kind", "value"),
    [(int, -1), (str, "a"), (PositiveFloat | dict[str, float], {"a": -1.0}), (PositiveInt | str, "last")],
)
def test_what_has_no_range_is_not_looked_at(kind, value):
    assert accepted(kind, value)


def test_the_types_as_help_names_them():
    assert in_words(PositiveFloat) == "a number above 0"
    assert in_words(AtLeastTwo) == "a whole number of at least 2"
    assert in_words(UnitFloat | None) == "a number from 0 to 1 or null"
    assert in_words(tuple[PositiveInt, ...]) == "a list of whole numbers of at least 1"
    assert in_words(list[Literal["a", "b"]]) == "a list of some of a, b"


class Drawn:
    made = 0

    @in_range
    def __init__(self, start: int, *, beams: AtLeastTwo = 5, names: Sequence[str] = ()) -> None:
        """What it does."""
        type(self).made += 1
        self.beams = beams


def test_arguments_are_checked_before_the_first_line():
    assert Drawn(-1).beams == 5
    assert Drawn(-1, beams=2).beams == 2
    made = Drawn.made
    with pytest.raises(ValueError, match="beams=1 must be at least 2"):
        Drawn(0, beams=1)
    assert Drawn.made == made
    assert [*options_of(Drawn)] == ["beams", "names"]


@dataclass(frozen=True)
class Wide:
    width: PositiveInt = 1

    def __post_init__(self) -> None:
        require_fields(self)


def test_fields_are_checked():
    assert Wide(3).width == 3
    with pytest.raises(ValueError, match="width=0 must be at least 1"):
        Wide(0)


NUMERIC = (int, float, int | None, float | None)


@pytest.mark.parametrize("name", METHODS)
def test_every_number_of_an_objective_has_a_range(name):
    options = options_of(METHODS[name].load())
    assert {option.name for option in options.values() if option.kind in NUMERIC} <= FREE


@pytest.mark.parametrize("name", REWARDS)
def test_every_number_of_a_reward_has_a_range(name):
    assert {option.name for option in reward_options(name, Catalogue.load()).values() if option.kind in NUMERIC} <= FREE


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("objective.beta", -1, "a number above 0"),
        ("objective.num_beams", 1, "a whole number of at least 2"),
        ("gallery.images", 0, "a whole number of at least 1 or null"),
        ("reward.truth.floor", 0.5, "a number below 0"),
        ("evaluation.no_repeat_ngram_size", -1, "a whole number of at least 0"),
    ],
)
def test_a_recipe_says_so_before_any_model_is_loaded(option, value, said):
    with pytest.raises(UsageError, match=f"{option} is {value}, but must be {said}: change it"):
        Recipe.load("world_ved_dico_truth", {option: value})


def test_a_number_that_another_method_cannot_use_is_left_out(caplog):
    weight = "discriminability_weight"
    assert Recipe.load("world_ved_luo2018").objective[weight] == 30
    assert Recipe.load("world_ved_luo2018", {"method": "psst"}).objective[weight] == 0.005
    assert f"does not use objective.{weight} 30.0 (it takes a number from 0 to 1), left out." in caplog.text
    with pytest.raises(UsageError, match=f"{weight} is 30, but must be a number from 0 to 1"):
        Recipe.load("world_ved_luo2018", {"method": "psst", f"objective.{weight}": 30})


@pytest.mark.parametrize("value", ["abc", None, -1])
def test_what_no_method_can_use_is_an_error_and_not_left_out(tmp_path, value):
    text = find_recipe("world_ved_luo2018").read_text().replace("margin: 0.2", f"margin: {json.dumps(value)}")
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"margin in .* but must be a number of at least 0: change it"):
        Recipe.load(tmp_path / "r.yaml", {"method": "psst"})


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("captioner.lora", {"r": 0}, "captioner.lora.r is 0, but must be a whole number of at least 1"),
        (
            "reward",
            [{"name": "truth", "weight": 1, "floor": 1}],
            "reward.truth.floor in --reward is 1, but must be a number",
        ),
        ("objective.beta", math.inf, "objective.beta is inf, but must be a finite number"),
    ],
)
def test_what_is_inside_a_value_is_named(option, value, sentence):
    with pytest.raises(UsageError, match=sentence):
        Recipe.load("world_ved_dico_truth", {option: value})
