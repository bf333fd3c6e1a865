"""Recipes from Python: overrides of several shapes, rates of parts, resuming, keys."""

import json

import numpy as np
import pytest

from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.recipe import ListenerRecipe, Recipe
from tellapart.recipe.fingerprint import decisions, stages_of
from tellapart.recipe.recipe import load_with
from tellapart.recipe.schema import Catalogue


def test_overrides_may_be_nested_and_numpys():
    dotted = Recipe.load("world_ved_dico", {"training.seed": 1, "objective.beta": 0.5})
    nested = Recipe.load("world_ved_dico", {"training": {"seed": 1}, "objective": {"beta": np.float32(0.5)}})
    assert nested == dotted
    assert Recipe.load("world_ved_dico", {"seed": np.int64(3)}).training.seed == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_are_finite(value):
    for option in ("objective.beta", "reward.clip_s", "training.learning_rate"):
        with pytest.raises(UsageError, match="must be a"):
            Recipe.load("world_ved_dico", {option: value})


def test_one_number_for_all_is_kept_by_the_parts_that_get_no_other():
    rates = Recipe.load("world_ved_wtf_rl", {"training.learning_rate": 1e-5, "learning_rate.captioner": 1e-6})
    assert rates.training.learning_rate == {"captioner": 1e-6, "discriminator": 1e-5}


def test_an_evaluation_that_is_switched_off_takes_its_options_along(capsys):
    off = Recipe.load("world_ved_dico_truth", {"evaluation.split": None}).training
    assert (off.eval_steps, off.metric_for_best_model, off.best_floor) == (None, None, {})
    assert main(["train", "world_ved_dico_truth", "--evaluation.split", "null", "--print_config"]) == 0
    assert "exact_recall@1" not in capsys.readouterr().out
    held = Recipe.load("world_ved_dico_truth", {"evaluation.split": None, "evaluation.held_out": 8}).training
    assert (held.eval_steps, held.metric_for_best_model) == (40, "exact_recall@1")
    assert main(["train", "world_ved_dico_truth", "--evaluation.split", "null", "--eval_steps", "5", "--dry_run"]) == 2
    assert "eval_steps=5 needs an evaluation" in capsys.readouterr().err
    listener = ListenerRecipe.load("world_vse_hinge", {"evaluation.split": None}).training
    assert (listener.eval_steps, listener.metric_for_best_model) == (None, None)


def test_a_removed_reward_takes_its_parts_along(tmp_path):
    recipe = Recipe.load("world_ved_dico_truth", {"reward.truth": 0, "reward.clip_s": 1})
    assert [entry.name for entry in recipe.reward] == ["likelihood", "clip_s"]
    assert "matcher" not in recipe.parts
    assert recipe.replaced({"reward.likelihood": 0}).reward[0].name == "clip_s"


def test_options_of_a_reward_that_is_not_there_are_refused():
    with pytest.raises(UsageError, match=r"reward\.pac_s is not in the recipe, so its options do nothing"):
        Recipe.load("world_ved_dico", {"reward.pac_s.clamp": False})


def test_a_reward_may_have_a_gallery_of_its_own():
    recipe = Recipe.load("world_ved_dico_truth", {"reward.likelihood.gallery.images": 10})
    assert recipe.reward[1].parts["gallery"].images == 10


def test_own_parts_of_rewards_count_in_keys_option_by_option():
    asked = {"reward": [{"name": "truth", "weight": 1.0, "matcher": {"model": "world/itm"}}]}
    recipe = Recipe.load("world_ved_dico_truth", asked)
    assert "world/itm" in stages_of(recipe.resolved)
    decided = decisions(recipe.resolved, recipe.schema)
    assert decided["reward.truth.matcher.model"] == "world/itm"
    assert not any(name.endswith("batch_size") for name in decided if name.startswith("reward."))
    whole = {"name": "truth", "weight": 1.0, "matcher": {"model": "world/itm", "batch_size": 7}}
    assert Recipe.load("world_ved_dico_truth", {"reward": [whole]}).key() == recipe.key()


def test_the_weight_of_a_head_decides():
    keys = {ListenerRecipe.load("world_listener_grammar", {"head.weight": weight}).key() for weight in (0.0, 1.0)}
    assert len(keys) == 2


def test_files_of_penalties_count_by_content(tmp_path):
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("a photo of\n")
    recipe = Recipe.load("world_blip2_vlrm", {"penalties.phrases": str(phrases)})
    before = recipe.key()
    phrases.write_text("a picture of\n")
    assert recipe.key() != before


def test_a_method_may_be_a_class_of_the_plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from tellapart.objectives import Method\nfrom tellapart.objectives.xe import XE\n\n\nclass Mine(XE):\n    pass\n\n\n"
        "METHODS = {'mine': Method('mine', Mine, needs_references=True, paper='')}\n"
    )
    recipe = Recipe.load("world_ved_xe", {"method": "mine"}, plugins=[path])
    assert recipe.kind.load().__name__ == "Mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "def b(rollout):\n    return 1\nREWARDS = {'b': b}",
            "argument 'rollout' without a default, which is not a part",
        ),
        ("class B:\n    def __init__(self, *, weight: float = 1.0): ...\nREWARDS = {'b': B}", "has an option 'weight'"),
        ("class B:\n    def __init__(self, *, x: Nothing = 1): ...\nREWARDS = {'b': B}", "cannot be read"),
        ("def objective(parts, *, x: int = 1): ...\nPARTS = {'objective': objective}", "the name of a section"),
        ("import sys; sys.exit(3)", "cannot be run (SystemExit"),
    ],
)
def test_what_a_plugin_cannot_do_is_one_sentence(tmp_path, text, said):
    path = tmp_path / "odd.py"
    path.write_text("from __future__ import annotations\n" + text)
    with pytest.raises(UsageError) as caught:
        Recipe.load("world_ved_dico", {"reward.b": 1.0} if "'b'" in text else {}, plugins=[path])
    assert said in str(caught.value)


def test_a_training_that_was_stopped_before_its_first_checkpoint_begins_again(materials, tmp_path):
    recipe = Recipe.load(materials.recipe(tmp_path, "xe"))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"recipe": recipe.resolved}))
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(UsageError, match="already holds a run"):
        recipe.replaced({"training.learning_rate": 1e-5}).train(folder)
    assert recipe.train(folder, resume=True).step == 2
    # a refused resume leaves what is there as it is
    kept = (folder / "recipe.yaml").read_text()
    with pytest.raises(UsageError, match=r"has data\.on_error"):
        recipe.replaced({"data.on_error": "skip"}).train(folder, resume=True)
    assert (folder / "recipe.yaml").read_text() == kept


def test_overrides_may_wait_for_the_schema():
    recipe = load_with("world_ved_dico", {}, lambda schema: {"objective.beta": 0.3}, Catalogue.load())
    assert recipe.objective["beta"] == 0.3


def test_recipes_of_one_kind_share_a_schema_and_those_of_plugins_do_not(tmp_path):
    """Building the schema took most of the seconds in which a study reads its hundreds of recipes."""
    one, other = (Recipe.load("world_ved_dico", {"objective.beta": beta}) for beta in (0.1, 0.3))
    assert one.schema is other.schema
    assert (one.objective["beta"], other.objective["beta"]) == (0.1, 0.3)
    assert one.schema is not Recipe.load("world_ved_dico", {"reward.cider_d": 0.5}).schema
    found = []
    for default in (1, 2):  # a file that was edited between two calls is read again
        path = tmp_path / f"at_{default}" / "mine.py"
        path.parent.mkdir()
        text = (
            f"def mine(*, size: int = {default}):\n    return lambda rollout, batch: None\nREWARDS = {{'mine': mine}}"
        )
        path.write_text(text)
        found.append(Recipe.load("world_ved_dico", {"reward.mine": 1.0}, plugins=[path]))
    assert [recipe.schema.rewards["mine"]["size"].default for recipe in found] == [1, 2]
    assert [dict(recipe.reward[-1].options) for recipe in found] == [{"size": 1}, {"size": 2}]
