"""The JSON schema that editors complete recipes by."""

import json
from pathlib import Path

import pytest

from tellapart.objectives import METHODS
from tellapart.recipe.json_schema import listener_recipe_schema, recipe_schema
from tellapart.recipe.read_yaml import read_yaml
from tellapart.rewards import REWARDS

RECIPES = Path(__file__).parents[2] / "recipes"


def stored(name):
    return json.loads((RECIPES / name).read_text())


def test_the_shipped_files_are_what_the_code_says():
    """A failure here asks for ``make schema``."""
    assert stored("schema.json") == json.loads(json.dumps(recipe_schema(), default=str))
    assert stored("listener_schema.json") == json.loads(json.dumps(listener_recipe_schema(), default=str))


def test_it_knows_every_method_and_reward_with_their_options():
    schema = stored("schema.json")
    assert schema["properties"]["method"]["enum"] == list(METHODS)
    entries = {
        e["properties"]["name"]["const"]: e["properties"] for e in schema["properties"]["reward"]["items"]["oneOf"]
    }
    assert set(entries) == set(REWARDS)
    assert entries["clip_s"]["clamp"]["type"] == "boolean"
    cases = {case["if"]["properties"]["method"]["const"]: case["then"]["properties"] for case in schema["allOf"]}
    beta = cases["dico"]["objective"]["properties"]["beta"]
    assert (beta["type"], beta["default"]) == ("number", 0.2)
    assert "tie to the start model" in beta["description"]


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_names_its_schema_and_keeps_to_it(path):
    first = path.read_text().splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    schema, values = stored(name), read_yaml(path).values
    assert set(values) <= set(schema["properties"])
    known = {
        case["if"]["properties"]["method"]["const"]: case["then"]["properties"] for case in schema.get("allOf", [])
    }
    sections = schema["properties"] | known.get(values.get("method"), {})
    for section, options in values.items():
        told = sections[section]
        told = told["oneOf"][0] if "oneOf" in told else told
        if isinstance(options, dict) and "properties" in told:
            assert set(options) <= set(told["properties"]), section
            assert set(told.get("required", [])) <= set(options), section
