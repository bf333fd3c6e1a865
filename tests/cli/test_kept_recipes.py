"""Results that were kept are found again after options were added: a recipe's key must not change by them."""

from pathlib import Path

import pytest
import yaml

from tellapart.recipe.fingerprint import what_decides
from tellapart.recipe.load import load_recipe

KEPT = sorted((Path(__file__).parent / "kept_recipes").glob("*.yaml"))
"""Resolved recipes as the first frontiers stored them, without ``output_dir``."""

RECIPES = Path(__file__).parents[2] / "recipes"

OVERRIDES = {
    "world_ved_psst": ["--max_grad_value=0.1", "--metric_for_best_model=own_listener_R@1"],
    "world_ved_wtf_rl": [
        "--discriminator.no_repeat_ngram_size=3",
        "--discriminator.pretraining_steps=1000",
    ],
}
"""Recipe -> what the first frontiers had instead of its numbers of today (docs/results/frontier.md), beside the objective."""


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_an_option_that_came_later_does_not_change_the_key_of_a_recipe_without_it(kept):
    """A failure here names what belongs into ``fingerprints.LATER``: the new option, and the value at which it does nothing."""
    before = yaml.safe_load(kept.read_text())
    flags = [f"--objective.{name}={value}" for name, value in before["objective"].items() if value is not None]
    flags += OVERRIDES.get(kept.stem, [])
    now = what_decides(load_recipe([str(RECIPES / kept.name), *flags]).resolved)
    assert _flat(now) == _flat(what_decides(before))


def _flat(tree, prefix=""):
    found = {}
    for name, value in tree.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found
