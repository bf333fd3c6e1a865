"""The list of methods, and what the objectives refuse."""

import importlib

import pytest
import torch

from given import GivenCaptioner, given_reward
from tellapart.objectives import METHODS
from tellapart.objectives.dico import DiCO
from tellapart.objectives.scst import SCST
from tellapart.objectives.xe import XE
from tiny_models import batch_of, tiny_ved


def captioner() -> GivenCaptioner:
    return GivenCaptioner(torch.zeros(2, 1), torch.ones(2, 1), torch.arange(2), torch.zeros(2, 1))


@pytest.mark.parametrize("name", METHODS)
def test_every_listed_method_is_an_objective(name):
    module, _, attribute = METHODS[name].target.partition(":")
    objective = getattr(importlib.import_module(module), attribute)
    for member in ("collect", "prepare", "losses", "decomposes"):
        assert hasattr(objective, member)
    assert objective.__doc__


@pytest.mark.parametrize(
    "build",
    [
        lambda c, r: XE(c, captions_per_image=0),
        lambda c, r: SCST(c, r, baseline="mean"),
        lambda c, r: SCST(c, r, baseline="leave_one_out", num_generations=1),
        lambda c, r: SCST(c, r, kl_in="advantage", kl_coef=0.1),
        lambda c, r: SCST(c, r, kl_coef=-1.0),
        lambda c, r: DiCO(c, r, beta=0.0),
        lambda c, r: DiCO(c, r, tau=-1.0),
        lambda c, r: DiCO(c, r, num_beams=1),
    ],
)
def test_impossible_settings_are_refused(build):
    with pytest.raises(ValueError, match=r"must|unknown|compares"):
        build(captioner(), given_reward({}))


def test_the_frozen_reference_is_not_part_of_the_module_tree():
    objective = DiCO(captioner(), given_reward({}))
    assert [name for name, _ in objective.named_children()] == ["captioner"]
    assert list(objective.state_dict()) == ["captioner.logprobs"]


@pytest.mark.parametrize("kl_in", ["reward", "loss"])
def test_scst_with_kl_scores_the_policy_once_a_step(kl_in):
    captioner, calls = tiny_ved(), []
    objective = SCST(captioner, lambda rollout: rollout.lengths.float(), num_generations=2, kl_coef=0.1, kl_in=kl_in)
    captioner.register_forward_hook(lambda *_: calls.append("policy"))
    experience = objective.collect(batch_of(captioner, 3), 0)
    assert calls == []
    (piece,) = objective.losses(experience)
    assert calls == ["policy"]
    assert "kl" in piece.logs
