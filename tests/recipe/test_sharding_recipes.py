"""What recipes cannot be trained in shards, refused before anything is loaded."""

import pytest

from family_checks import pictures
from listeners.tiny_listeners import clip_parts
from tellapart.data.dataset import Collate
from tellapart.errors import UsageError
from tellapart.evaluation.evaluate import Evaluation
from tellapart.listeners.clip import ClipListener
from tellapart.recipe.build import Watch
from tellapart.recipe.listener import ListenerRecipe
from tellapart.recipe.recipe import Recipe
from tellapart.recipe.run import _KeepingFirst
from tellapart.recipe.sharding import check_sharding, not_shardable
from tellapart.training.memory import frozen_models
from tellapart.types import Decoding

FULL = {"training.shard": "full", "training.output_dir": "runs/x"}


@pytest.mark.parametrize(
    ("recipe", "more", "what"),
    [
        (
            "world_ved_psst",
            {},
            "training.shard=full does not go with (own_listener, which|method psst).*: set training.shard to none",
        ),
        ("coco_lstm_xe", {}, "a recurrent captioner"),
        ("world_blip2_vlrm", {}, "critic, which may train with the captioner"),
        ("world_ved_wtf_rl", {}, "discriminator, which may train with the captioner"),
        ("world_ved_dico", {"captioner.quantization": "int8"}, "captioner.quantization=int8"),
        ("world_ved_dico", {"captioner.use_liger_kernel": True}, "captioner.use_liger_kernel"),
    ],
)
def test_what_cannot_be_cut_is_named(recipe, more, what):
    with pytest.raises(UsageError, match=what):
        check_sharding(Recipe.load(recipe, FULL | more))


@pytest.mark.parametrize("recipe", ["world_ved_xe", "world_ved_dico", "world_ved_scst_clip", "world_ved_grpo"])
def test_what_can_be_cut_passes(recipe):
    loaded = Recipe.load(recipe, FULL)
    check_sharding(loaded)
    assert not_shardable(loaded) is None
    assert loaded.training.shard == "full"


def test_listeners_are_not_sharded():
    with pytest.raises(UsageError, match="shard=full cuts captioners, but train-listener trains none"):
        ListenerRecipe.load("world_listener_pac", FULL)


def test_models_of_the_evaluation_are_found(tmp_path):
    """They are cut as well, so what the loop is given must lead to them."""
    judge = ClipListener.from_parts(*clip_parts())
    evaluation = Evaluation(pictures(2), Collate({}), listeners={"judge": judge}, decoding=Decoding())
    found = frozen_models(_KeepingFirst(Watch(evaluation, "run"), tmp_path))
    assert found == {"judge": judge.model}
