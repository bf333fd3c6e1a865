"""docs/how-to/add_a_method.md, followed word for word in a folder of its own; and what an installed method must be."""

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tellapart.errors import UsageError
from tellapart.installed import Offers
from tellapart.objectives import METHODS, SHIPPED, Method

GROUP = "tellapart.methods"
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "add_a_method.md"
FILES = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)

END = "(end of the methods)"
BOTH = f"""
import sys
from tellapart.cli.main import main
assert main(["methods"]) == 0
print("{END}")
sys.exit(main(sys.argv[1:]))
"""
"""The two commands of the page in one process: each would import the same."""


def run(folder, *words):
    environment = os.environ | {"PYTHONPATH": str(folder / "site")}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_page(tmp_path):
    files = dict(FILES.findall(PAGE.read_text()))
    assert set(files) == {"best_of_n.py", "pyproject.toml", "best_of_n.yaml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    # Beside the project's own packages instead of among them, and without asking an index for setuptools.
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", "site", ".")
    run(tmp_path, *pip)
    small = ("--data.size", "small", "--max_steps", "2", "--eval_steps", "2", "--per_device_train_batch_size", "8")
    words = ("train", "best_of_n.yaml", "--objective.num_generations", "3", *small, "--evaluation.limit", "8")
    listed = run(tmp_path, sys.executable, "-c", BOTH, *words).partition(END)[0].splitlines()
    last = next(row for row, line in enumerate(listed) if "best_of_n" in line)
    assert "teacher forcing on the best" in " ".join(" ".join(listed[last:]).split())
    log = (tmp_path / "runs" / "best_of_n" / "metrics.jsonl").read_text()
    assert '"best_reward"' in log
    assert (tmp_path / "runs" / "best_of_n" / "checkpoint-2" / "captioner" / "config.json").exists()


def test_shipped_methods_come_first_and_unknown_ones_are_not_there():
    assert list(METHODS)[: len(SHIPPED)] == list(SHIPPED)
    assert len(METHODS) >= len(SHIPPED)
    with pytest.raises(KeyError):
        METHODS["no such method"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("mine", "no_such_module:METHOD", "cannot be loaded"),
        ("mine", "tellapart.objectives:NOTHING", "cannot be loaded"),
        ("mine", "tellapart.objectives:SHIPPED", "is not a tellapart.objectives.Method"),
        ("dico", "tellapart.objectives:METHODS", "a name that is taken"),
    ],
)
def test_an_offer_that_cannot_be_used_is_told_in_a_sentence(name, value, said):
    offers = Offers(SHIPPED, GROUP, "method", Method.of, [EntryPoint(name, value, GROUP)])
    with pytest.raises(UsageError, match=said):
        list(offers)
