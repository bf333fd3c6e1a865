"""Images of an evaluation in another folder, whose files are called as those of the training."""

import json
import shutil

import pytest
import torch

from tellapart.recipe.build import build
from tellapart.recipe.listener import ListenerRecipe
from tellapart.recipe.recipe import Recipe
from tiny_late import tiny_late


@pytest.fixture(scope="module")
def folders(materials, tmp_path_factory):
    """``train``, ``val`` with other pictures and the same names, and ``named`` with those of ``val`` and names of their own."""
    root = tmp_path_factory.mktemp("folders")
    files = sorted(materials.photos.glob("*.png"))
    for folder, prefix, some in (("train", "", files[:6]), ("val", "", files[6:12]), ("named", "other-", files[6:12])):
        (root / folder).mkdir()
        rows = []
        for place, file in enumerate(some):
            name = f"{prefix}{place:02}.png"
            shutil.copy(file, root / folder / name)
            rows.append({"file_name": name, "captions": [f"a red square {'above ' * place}a dot", "a blue dot"]})
        (root / folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tiny_late().save(root / "late")
    return root


def built_with(folders, where, method, **changes):
    """A training on ``train`` that is evaluated on another folder."""
    return build(
        Recipe.load(
            {
                "method": method,
                "data": {"path": str(folders / "train")},
                "evaluation": {"path": str(folders / where), "split": "all", "max_new_tokens": 6},
                "objective": {"max_new_tokens": 6},
                **changes,
            }
        )
    )


def figures(*what, **changes):
    """What the evaluation measures before the first step, by listeners alone."""
    built = built_with(*what, **changes)
    found = built.watch(built.objective)
    return {name: value for name, value in found.items() if "listener" in name}


@pytest.mark.parametrize("kind", ["clip", "late", "own"])
def test_they_are_retrieved_among_themselves(folders, materials, kind):
    own = {"captioner": {"model_name_or_path": str(materials.captioner)}}
    clip = {"path": str(materials.listener)}
    method, more = {
        "clip": ("scst", {"reward": {"clip_s": 1.0}, "listener": clip}),
        "late": ("scst", {"reward": {"likelihood": 1.0}, "listener": {"path": str(folders / "late")}}),
        "own": ("reinforce_joint", {"reward": {"cider_d": 1.0}, "own_listener": clip}),
    }[kind]
    found = figures(folders, "val", method, **own, **more)
    assert any("R@1" in name for name in found)
    assert found == figures(folders, "named", method, **own, **more)


def test_rewards_are_of_the_training_images(folders, materials):
    def rewards(where):
        late = {"reward": {"likelihood": 1.0}, "listener": {"path": str(folders / "late")}}
        built = built_with(folders, where, "scst", captioner={"model_name_or_path": str(materials.captioner)}, **late)
        batch = built.data.collate([built.dataset[i] for i in range(6)])
        rollout = built.captioner.tokenize(batch, ["a red square above a dot"] * 6, torch.arange(6))
        return built.objective.reward.rewards["likelihood"](rollout)

    assert torch.equal(rewards("val"), rewards("named"))


def test_a_listener_in_training_retrieves_them_among_themselves(folders, materials):
    def measured(where):
        recipe = {
            "data": {"path": str(folders / "train")},
            "evaluation": {"path": str(folders / where), "split": "all"},
            "listener": {"path": str(materials.listener), "train": "text"},
        }
        built = ListenerRecipe.load(recipe).build()
        return built.watch(built.objective)

    assert measured("val") == measured("named")
