"""YAML files of options."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from tellapart.errors import UsageError


class _Loader(yaml.SafeLoader):
    """YAML 1.2's idea of plain words: ``1e-6`` is a number, ``no`` a word; a key given twice is refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping, unless a key stands in it twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_OWN_WORDS = {
    "tag:yaml.org,2002:bool": (r"(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    "tag:yaml.org,2002:float": (r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$", "-+.0123456789"),
}
_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] not in {*_OWN_WORDS, "tag:yaml.org,2002:timestamp"}]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, (_pattern, _first) in _OWN_WORDS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        UsageError: the file is missing, is not YAML, holds no mapping, or gives a key twice.
    """
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise UsageError(f"the recipe {path} {why}: name a YAML file, such as one of recipes/.") from error
    except yaml.YAMLError as error:
        mark, why = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        line = f"line {mark.line + 1}: " if mark else ""
        raise UsageError(f"{path} is not a valid recipe ({line}{why}): correct the YAML.") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no options: a recipe is a YAML mapping such as 'method: dico'.")
    return value
