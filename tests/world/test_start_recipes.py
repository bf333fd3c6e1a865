"""Recipes that say that they train a start captioner of the world as its stage does."""

from __future__ import annotations

import pytest

from tellapart.recipe.recipe import Recipe
from tellapart.world.schedule import Schedule
from tellapart.world.schedules import STAGES


@pytest.mark.parametrize(
    ("recipe", "stage"),
    [("world_ved_xe", "world/xe"), ("world_blip2_xe", "world/blip2"), ("world_video_ved_xe", "world/video-xe")],
)
def test_start_captioners_can_be_trained_as_they_were(recipe, stage):
    """The recipe of ``world/xe`` kept an old schedule and said that it was the same."""
    schedule = Schedule(**STAGES[stage].schedules["full"])
    training = Recipe.load(recipe).training
    assert training.learning_rate == schedule.learning_rate
    assert (training.max_steps, training.per_device_train_batch_size) == (schedule.steps, schedule.batch_size)
    assert (training.adam_beta2, training.weight_decay) == (schedule.adam_beta2, schedule.weight_decay)
    assert (training.lr_scheduler_type, training.warmup_steps) == ("cosine", 0.1)
