"""Benchmarks are run by hand, so what they use of the package must be known to exist."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))


def member(module, name):
    """What ``from module import name`` gives; raises where there is no such thing."""
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


def missing(source):
    """Names of the package that a script imports, or reads of its modules, and that do not exist."""
    modules, unknown = {}, []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {
                alias.name: importlib.import_module(alias.name) for alias in node.names if alias.name == "tellapart"
            }
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tellapart":
            for alias in node.names:
                try:
                    found = member(node.module, alias.name)
                except ImportError:
                    unknown.append(f"{node.module}.{alias.name}")
                    continue
                if isinstance(found, ModuleType):
                    modules[alias.asname or alias.name] = found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if not hasattr(module, node.attr):
                unknown.append(f"{module.__name__}.{node.attr}")
    return unknown


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_benchmark_uses_exists(script):
    assert missing(script.read_text(encoding="utf-8")) == []


def test_what_is_missing_is_found():
    source = "import tellapart\nfrom tellapart import products\nfrom tellapart.types import Batch, Bunch\n"
    source += "products.RULES, products.BUILT = {}, 1\ntellapart.__version__, tellapart.version\n"
    assert missing(source) == ["tellapart.types.Bunch", "tellapart.products.BUILT", "tellapart.version"]
