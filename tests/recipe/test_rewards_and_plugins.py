"""Rewards as a list, parts of their own, and what files and packages bring."""

from importlib.metadata import EntryPoint

import pytest
import torch

from tellapart.errors import UsageError
from tellapart.installed import Offers
from tellapart.recipe.build import build
from tellapart.recipe.parts import PARTS, PartKind
from tellapart.recipe.recipe import Recipe
from tellapart.rewards import REWARDS, SHIPPED, RewardKind

BASE = {
    "method": "scst",
    "captioner": {"model_name_or_path": "some/model"},
    "listener": {"path": "some/clip"},
    "training": {"output_dir": "runs/x"},
}

PLUGIN = '''
"""A reward and a part."""
import torch


class Brevity:
    """One over the number of words, 0 to 1.

    Args:
        power: of the number of words.
    """

    def __init__(self, ruler, *, power: float = 1.0) -> None:
        self.ruler, self.power = ruler, power

    def __call__(self, rollout):
        return torch.tensor([self.ruler / max(1, len(text.split())) ** self.power for text in rollout.texts])


def ruler(parts, *, inches: int = 12):
    """What words are measured with."""
    return inches / 12


REWARDS = {"brevity": Brevity}
PARTS = {"ruler": ruler}
'''


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "my_rewards.py"
    path.write_text(PLUGIN)
    return path


def weights(recipe):
    return {entry.name: entry.weight for entry in recipe.reward}


def test_lists_mappings_and_words_say_the_same():
    written = [
        [{"name": "clip_s", "weight": 1.0}, {"name": "cider_d", "weight": 0.5}],
        {"clip_s": 1.0, "cider_d": 0.5},
        ["clip_s", {"name": "cider_d", "weight": 0.5}],
    ]
    first, *others = (Recipe.load(BASE | {"reward": reward}) for reward in written)
    assert weights(first) == {"clip_s": 1.0, "cider_d": 0.5}
    assert all(other == first for other in others)
    assert first.resolved["reward"][1]["weight"] == 0.5


def test_overrides_add_change_and_remove_rewards():
    recipe = Recipe.load(BASE | {"reward": {"clip_s": 1.0}}, {"reward.cider_d": 0.5, "reward.clip_s.clamp": False})
    assert weights(recipe) == {"clip_s": 1.0, "cider_d": 0.5}
    assert recipe.reward[0].options == {"clamp": False}
    assert weights(recipe.replaced({"reward.clip_s": 0})) == {"cider_d": 0.5}
    assert weights(recipe.replaced({"reward": [{"name": "pac_s"}]})) == {"pac_s": 1.0}


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({"clip_z": 1.0}, "reward.clip_z is not a reward: did you mean reward.clip_s?"),
        ([{"weight": 1.0}], "write {name: clip_s, weight: 1.0}"),
        (["clip_s", "clip_s"], "has 'clip_s' twice"),
        ({"clip_s": "much"}, "reward.clip_s is 'much', but must be a number: change it."),
        ({"clip_s": {"clamp": 3}}, "reward.clip_s.clamp is 3, but must be true or false: change it."),
        ("clip_s", "write a list such as"),
        ({"phi": 0.3}, "the weight of Phi is objective.phi_weight"),
    ],
)
def test_what_is_wrong_in_a_reward_is_one_sentence(reward, said):
    with pytest.raises(UsageError) as caught:
        Recipe.load(BASE | {"reward": reward})
    assert said in str(caught.value)


def test_a_file_brings_a_reward_and_a_part(plugin):
    written = BASE | {"reward": [{"name": "brevity", "weight": 2.0, "power": 0.5}], "ruler": {"inches": 24}}
    recipe = Recipe.load(written, plugins=[plugin])
    assert recipe.reward[0].options == {"power": 0.5}
    assert recipe.resolved["ruler"] == {"inches": 24}
    changed = Recipe.load(written, {"ruler.inches": 6, "reward.brevity.power": 1.0}, plugins=[plugin])
    assert changed.resolved["ruler"] == {"inches": 6}
    assert changed.key() != recipe.key()
    with pytest.raises(UsageError, match=r"reward\.brevity is not a reward: choose one of clip_s, "):
        Recipe.load(BASE | {"reward": written["reward"]})
    with pytest.raises(UsageError, match="inches is 'x', but must be a whole number"):
        Recipe.load(written, {"ruler.inches": "x"}, plugins=[plugin])


def test_a_reward_of_a_file_is_built_with_its_part(plugin, materials, tmp_path):
    path = materials.recipe(tmp_path, "scst", reward=[{"name": "brevity", "weight": 2.0}], ruler={"inches": 36})
    built = build(Recipe.load(path, plugins=[plugin]))
    texts = ["a b c d", "a"]
    batch = built.data.collate(built.dataset.examples[:2])
    rollout = built.captioner.tokenize(batch, texts, torch.arange(2))
    parts = built.objective.reward.parts(rollout)
    # a ruler of 36 inches is 3; of four words 3/4, of one 3; times the weight
    assert parts["brevity"].tolist() == [2.0 * 3 / 4, 2.0 * 3]


def test_a_reward_may_have_a_listener_of_its_own(materials, tmp_path):
    reward = [{"name": "clip_s", "listener": {"path": str(materials.listener), "prefix": "so: "}}, {"name": "pac_s"}]
    path = materials.recipe(tmp_path, "scst", reward=reward)
    rewards = build(Recipe.load(path)).objective.reward.rewards
    assert rewards["clip_s"].listener.prefix == "so: "
    assert rewards["pac_s"].listener.prefix != "so: "
    assert rewards["clip_s"].listener.name != rewards["pac_s"].listener.name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_this_name", "cannot be run (ModuleNotFoundError"),
        ("REWARDS = 3", "offers nothing"),
        ("x = 1", "offers nothing"),
        ("REWARDS = {'clip_s': print}", "a name that is taken"),
        ("REWARDS = {'mine': 3}", "not a class or function that makes a reward"),
        ("METHODS = {'mine': 3}", "is not a tellapart.objectives.Method"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_a_sentence(tmp_path, text, said):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        Recipe.load(BASE | {"reward": {"clip_s": 1.0}}, plugins=[path])
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_recipe_never_names_a_file_to_run(tmp_path):
    with pytest.raises(UsageError, match="plugin is not for recipes: give --plugin on the command line"):
        Recipe.load(BASE | {"reward": {"clip_s": 1.0}, "plugin": "my_rewards.py"})


def test_installed_packages_bring_rewards_and_parts():
    offers = Offers(SHIPPED, "tellapart.rewards", "reward", RewardKind.of, [EntryPoint("mine", "builtins:len", "g")])
    assert offers["mine"].load() is len
    assert list(offers)[:-1] == list(SHIPPED)
    for value, said in (("no_such:X", "cannot be loaded"), ("builtins:__name__", "not a class or function")):
        broken = Offers(SHIPPED, "tellapart.rewards", "reward", RewardKind.of, [EntryPoint("mine", value, "g")])
        with pytest.raises(UsageError, match=said):
            broken["mine"]
    assert REWARDS.group == "tellapart.rewards"
    assert PARTS.group == "tellapart.parts"
    assert PartKind.of(lambda parts: 1).plain


def test_every_reward_can_be_made_from_what_it_declares():
    for name, kind in REWARDS.items():
        assert set(kind.needs) <= set(PARTS) | {"captioner", "dataset"}, name
        assert kind.summary
        assert callable(kind.load())
