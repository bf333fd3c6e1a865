"""The JSON schema of recipes, which editors complete and check them by: ``python -m tellapart.recipe.json_schema recipes``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tellapart.files import write_json
from tellapart.recipe.listener import listener_schema
from tellapart.recipe.options import REQUIRED, Option, model_of, options_of, records_in
from tellapart.recipe.schema import (
    OBJECTIVE,
    REWARD,
    TRAINING,
    Catalogue,
    Schema,
    Section,
    captioner_schema,
    reward_options,
)

CAPTIONER_FILE, LISTENER_FILE = "schema.json", "listener_schema.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema(catalogue: Catalogue | None = None) -> dict[str, Any]:
    """The schema of recipes of captioners: the options of ``objective`` follow from ``method``, those of a reward from its name.

    Args:
        catalogue: of methods, rewards and parts; by default what is shipped and installed.
    """
    catalogue = Catalogue.load() if catalogue is None else catalogue
    parts = [name for name, kind in catalogue.parts.items() if not kind.plain]
    shared = captioner_schema(None, catalogue, others=parts)
    found = _object(shared, "A training of a captioner (tellapart train)")
    properties, definitions = found["properties"], found["$defs"]
    names = {name: method.summary for name, method in catalogue.methods.items()}
    properties["method"] = {"description": "the training method", "enum": [*names]}
    entries = []
    for name in catalogue.rewards:
        options = {"name": Option("name", str, REQUIRED, ""), **reward_options(name, catalogue)}
        entry = _section(Section(options), f"reward_{name}", definitions)
        entry["properties"]["name"] = {"const": name, "description": catalogue.rewards[name].summary}
        entries.append(entry)
    properties[REWARD] = {"type": "array", "items": {"oneOf": entries}, "description": "rewards with their weights"}
    cases = []
    for name, method in catalogue.methods.items():
        section = captioner_schema(name, catalogue).sections[OBJECTIVE]
        told = _section(section, f"objective_{name}", definitions) | {"description": method.summary}
        case = {"if": {"properties": {"method": {"const": name}}}, "then": {"properties": {OBJECTIVE: told}}}
        cases.append(case)
    properties[OBJECTIVE] = {"type": "object", "description": "the numbers of the method"}
    return found | {"required": ["method"], "allOf": cases}


def listener_recipe_schema() -> dict[str, Any]:
    """The schema of recipes of listeners."""
    return _object(listener_schema(), "A training of a listener (tellapart train-listener)")


def _object(schema: Schema, title: str) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for name, option in schema.top.items():
        told = _section(Section({name: option}), name, definitions)["properties"][name]
        properties[name] = told | {"description": option.help}
    for name, section in schema.sections.items():
        told = _section(section, name, definitions) | {"description": section.help}
        if name == TRAINING:  # the output folder follows from the recipe's name
            told["required"] = [option for option in told.get("required", []) if option != "output_dir"]
        properties[name] = {"oneOf": [told, {"type": "null"}]} if section.optional else told
    found = {"$schema": _DIALECT, "title": title, "type": "object"}
    return found | {"additionalProperties": False, "properties": properties, "$defs": definitions}


def _section(section: Section, name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a section, whose nested records go into ``definitions``."""
    kind: Any = section.kind or model_of(name, section.options)
    found = TypeAdapter(kind).json_schema(ref_template="#/$defs/{model}")
    for record, told in found.pop("$defs", {}).items():
        definitions[record] = told
    _describe(found, section.options, definitions)
    return found | {"additionalProperties": False}


def _describe(told: dict[str, Any], options: Mapping[str, Option], definitions: dict[str, Any]) -> None:
    """Put the help of options into a schema, and into those of the records that they hold."""
    for name, value in told.get("properties", {}).items():
        if name in options and options[name].help:
            value["description"] = options[name].help
    for name, option in options.items():
        for record in records_in(option.kind):
            held = definitions.get(record.__name__)
            if held is not None and name in told.get("properties", {}):
                held.setdefault("additionalProperties", False)
                _describe(held, options_of(record), definitions)


def main(argv: list[str] | None = None) -> None:
    """Write both schemas into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(argv).folder
    write_json(folder / CAPTIONER_FILE, recipe_schema())
    write_json(folder / LISTENER_FILE, listener_recipe_schema())


if __name__ == "__main__":
    main()
