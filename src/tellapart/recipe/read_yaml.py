"""YAML files of options: read within bounds, with the line of every key."""

from __future__ import annotations

import re
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tellapart.errors import UsageError

LARGEST = 1_000_000
"""Bytes of the largest file that is read; a recipe has a few thousand."""

DEEPEST = 50
"""Levels of the deepest mapping or list that is read."""

MOST = 100_000
"""Values that a file may hold once its aliases are unfolded: nine lines of them can expand to a billion."""


LONGEST = 80
"""Characters of a value that a message quotes."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's idea of plain words: ``1e-6`` is a number, ``no`` a word; a key given twice is refused."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node, unless it is too deep, has a tag, or holds a zero byte.

        Tags (``!!python/object``, ``!!binary``, ``!!int``) make other values than options have; no recipe needs one.
        """
        event: Any = self.peek_event()
        for holds, why in (
            (self.depth > DEEPEST, "it is nested too deeply"),
            (getattr(event, "tag", None) is not None, f"the tag {_shown(getattr(event, 'tag', None))} is not read"),
            ("\0" in str(getattr(event, "value", "")), "a value holds a zero byte, which no name and no path may"),
        ):
            if holds:
                raise yaml.composer.ComposerError(None, None, why, event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping, unless it has a key twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{_shown(key.value)} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _shown(value: Any) -> str:
    """A value as messages quote it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


_OWN_WORDS = {
    "tag:yaml.org,2002:bool": (r"(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    "tag:yaml.org,2002:int": (r"[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    "tag:yaml.org,2002:float": (r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$", "-+.0123456789"),
}
_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] not in {*_OWN_WORDS, "tag:yaml.org,2002:timestamp"}]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, (_pattern, _first) in _OWN_WORDS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))


@dataclass(frozen=True)
class Written:
    """The content of a file.

    Args:
        values: the mapping.
        lines: dotted key -> line, counted from 1; entries of lists are numbered.
    """

    values: dict[str, Any]
    lines: dict[str, int]


@dataclass(frozen=True)
class Kind:
    """What a file is, as messages name it.

    Args:
        name: one word.
        example: of a line.
        remedy: what to do if the file is missing.
    """

    name: str
    example: str
    remedy: str


RECIPE = Kind("recipe", "method: dico", "name a YAML file, or a recipe that tellapart recipes lists.")


def read_yaml(path: Path, kind: Kind = RECIPE) -> Written:
    """The mapping in a YAML file.

    Args:
        path: of the file.
        kind: of file.

    Raises:
        UsageError: the file is missing or too large, is not YAML, holds no mapping, or gives a key twice.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path} is larger than any {kind.name} ({LARGEST} bytes): name a {kind.name}.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise UsageError(f"the {kind.name} {path} {why}: {kind.remedy}") from error
    try:
        values, lines = _parsed(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, why = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        line = f"line {mark.line + 1}: " if mark else ""
        raise UsageError(f"{path} is not a valid {kind.name} ({line}{why}): correct the YAML.") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds no options: a {kind.name} is a YAML mapping such as {kind.example!r}.")
    return Written(deepcopy(values), dict(lines))


@lru_cache(maxsize=128)
def _parsed(text: str) -> tuple[Any, dict[str, int]]:
    """What a text holds, and the lines of its keys. Lists of recipes and sweeps read the same few files again and again."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, {}
        if _unfolded(node, {}) > MOST:
            raise yaml.composer.ComposerError(None, None, "its aliases unfold to too much", node.start_mark)
        return loader.construct_document(node), _lines(node)
    finally:
        loader.dispose()


def _unfolded(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node expands to."""
    if id(node) not in known:
        known[id(node)] = MOST + 1  # an alias of a node that contains it
        children = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else []
        children = list(node.value) if isinstance(node, yaml.SequenceNode) else children
        known[id(node)] = 1 + sum(_unfolded(child, known) for child in children)
    return known[id(node)]


def _lines(node: yaml.Node, prefix: str = "") -> dict[str, int]:
    found: dict[str, int] = {}
    children: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(str(place), value, value) for place, value in enumerate(node.value)]
    for name, key, value in children:
        found[prefix + name] = key.start_mark.line + 1
        found |= _lines(value, f"{prefix}{name}.")
    return found


def read_scalar(text: str) -> Any:
    """A value as it is typed on a command line: a YAML scalar, list or mapping; anything that is not YAML is text."""
    try:
        value = yaml.load(text, _Loader)  # noqa: S506  # made of SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError):
        return str(text)
    return str(text) if value is None and text.strip() not in ("null", "~", "Null", "NULL") else value
