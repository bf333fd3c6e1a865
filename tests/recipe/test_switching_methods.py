"""``--method`` on any recipe: what the other method takes is kept, and one line tells what it does not."""

import copy
import logging
from functools import cache
from pathlib import Path

import pytest

from tellapart.errors import UsageError
from tellapart.objectives import METHODS
from tellapart.recipe import recipe as reading
from tellapart.recipe.build import check_together
from tellapart.recipe.read_yaml import read_yaml
from tellapart.recipe.recipe import Recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
OF_CAPTIONERS = [path for path in RECIPES if "\nmethod:" in path.read_text()]


@pytest.fixture(scope="module", autouse=True)
def every_file_is_parsed_once():
    known = cache(read_yaml)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "read_yaml", lambda path: copy.deepcopy(known(path)))
        yield


@pytest.mark.parametrize("third", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2))])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_every_recipe(method, third):
    """Sections fit each other; nothing is loaded. On every change each method meets a third of the recipes, and each recipe a
    third of the methods."""
    place = [*METHODS].index(method)
    for path in OF_CAPTIONERS[(place + third) % 3 :: 3]:
        recipe = Recipe.load(path, {"method": method})
        check_together(recipe)
        assert recipe.method == method
        assert recipe.name == path.stem


@pytest.mark.parametrize(
    ("recipe", "method", "says"),
    [
        (
            "coco_blip_wtf_rl",
            "scst_grammar",
            ["does not use neighbours, discriminator,", "learning_rate.discriminator"],
        ),
        ("coco_att2in2_psst", "luo2018", ["objective.rho", "learning_rate.own_listener, left out"]),
        ("coco_lstm_xe", "sle", ["objective.captions_per_image, left out", "usual for it, reward.cider_d"]),
        ("blip2_vlrm", "vlrm_rs", ["usual for it, listener.path openai/clip-vit-base-patch32"]),
        ("world_ved_dico", "xe", ["does not use reward.clip_s, objective.beta"]),
    ],
)
def test_one_line_tells_what_was_dropped_and_added(recipe, method, says, caplog):
    with caplog.at_level(logging.WARNING):
        Recipe.load(recipe, {"method": method})
    (line,) = [record.getMessage() for record in caplog.records if "method" in record.getMessage()]
    assert line.startswith(f"note: method {method} ")
    assert all(part in line for part in says), line


def test_what_the_other_method_takes_is_kept():
    before, after = Recipe.load("coco_att2in2_psst"), Recipe.load("coco_att2in2_psst", {"method": "luo2018"})
    assert after.objective["discriminability_weight"] == before.objective["discriminability_weight"] == 0.005
    assert after.objective["max_new_tokens"] == 17
    assert after.parts["own_listener"] == before.parts["own_listener"]
    assert after.training.learning_rate == {"captioner": 2.7e-5}
    assert after.training.max_grad_value == before.training.max_grad_value


def test_another_method_has_a_folder_of_its_own():
    folders = [
        Recipe.load("world_ved_dico", options).training.output_dir.as_posix()
        for options in ({}, {"method": "dico"}, {"method": "dpo"}, {"method": "dpo", "output_dir": "runs/x"})
    ]
    assert folders == ["runs/world_ved_dico", "runs/world_ved_dico", "runs/world_ved_dico_dpo", "runs/x"]


def test_the_same_method_drops_nothing(caplog):
    assert Recipe.load("world_ved_dico", {"method": "dico"}) == Recipe.load("world_ved_dico")
    assert caplog.text == ""


def test_a_wrong_option_is_still_an_error_beside_another_method():
    with pytest.raises(UsageError, match=r"objective\.bta is not an option"):
        Recipe.load("world_ved_scst_cider", {"method": "dico", "objective.bta": 1})


def test_defaults_of_the_old_method_are_not_kept_by_a_loaded_recipe():
    loaded = Recipe.load("coco_att2in2_psst", {"method": "wtf"})
    replaced = Recipe.load("coco_att2in2_psst").replaced({"method": "wtf"})
    assert replaced.objective["temperature"] == loaded.objective["temperature"] == 0.01
