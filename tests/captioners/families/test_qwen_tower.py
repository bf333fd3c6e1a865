"""Attention in Qwen's towers: of all parts of a length at once, as part by part."""

import pickle

import pytest
import torch

from family_checks import make
from tellapart.captioners.families import qwen_tower
from tellapart.captioners.families.qwen_tower import TOGETHER, Parts, by_length
from tellapart.types import Decoding
from tiny_models import batch_of

OWN = {kind: own for own, kind in TOGETHER.items()}


@pytest.mark.parametrize("name", ["Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL"])
@pytest.mark.parametrize("grid", [[[1, 4, 4]] * 3, [[1, 4, 6], [2, 8, 4], [1, 4, 6]]])
def test_states_and_gradients_are_those_of_the_models_own_attention(name, grid, tmp_path, monkeypatch):
    family = make(name, tmp_path).family
    visual, grid = family.model.model.visual, torch.tensor(grid)
    torch.manual_seed(0)
    patches = torch.randn(int(grid.prod(dim=1).sum()), visual.patch_embed.proj.weight[0].numel())
    weights = [part for part in visual.parameters() if part.requires_grad_(True) is part]
    attended = []
    attend = qwen_tower.attend
    monkeypatch.setattr(qwen_tower, "attend", lambda *a, **k: (attended.append(len(a[0])), attend(*a, **k))[1])

    def run():
        states = torch.cat([part.flatten() for part in family._tower(patches, grid)])
        found = torch.autograd.grad((states * torch.linspace(-1, 1, len(states))).sum(), weights, allow_unused=True)
        return states.detach(), torch.cat([part.flatten() for part in found if part is not None])

    states, gradient = run()
    layers = len(visual.blocks)
    assert len(attended) < sum(attended), "parts of a length are together"
    changed = [module for module in visual.modules() if type(module) in OWN]
    assert len(changed) == layers
    for module in changed:
        module.__class__ = OWN[type(module)]
    attended.clear()
    expected, wanted = run()
    assert not attended
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)
    assert (gradient - wanted).norm() <= 1e-5 * wanted.norm()


def test_other_attention_is_the_models_own(tmp_path, monkeypatch):
    captioner = make("Qwen2-VL", tmp_path)
    captioner.family.model.set_attn_implementation("eager")
    monkeypatch.setattr(qwen_tower, "attend", None)
    visual = captioner.family.model.model.visual
    patches = torch.randn(16, visual.patch_embed.proj.weight[0].numel())
    assert captioner.family._tower(patches, torch.tensor([[1, 4, 4]]))[0].isfinite().all()


def test_parts_of_a_length_by_hand():
    assert by_length(torch.tensor([0, 3, 6])) == [(None, 3)]
    groups = by_length(torch.tensor([0, 2, 5, 7, 7]))
    assert [(rows.tolist(), length) for rows, length in groups] == [([0, 1, 5, 6], 2), ([2, 3, 4], 3)]


def test_a_division_is_looked_at_once(monkeypatch):
    looked, parts = [], Parts()
    monkeypatch.setattr(qwen_tower, "by_length", lambda ends: looked.append(ends) or [(None, len(ends))])
    windows, images = torch.tensor([0, 2, 4]), torch.tensor([0, 4])
    for _ in range(3):
        assert [parts.of(ends) for ends in (windows, images, windows)] == [[(None, 3)], [(None, 2)], [(None, 3)]]
    assert len(looked) == 2
    assert parts.of(torch.tensor([0, 9, 9, 9])) == [(None, 4)]


def test_a_model_that_has_read_an_image_can_be_pickled(tmp_path):
    captioner = make("Qwen2-VL", tmp_path)
    drawn = captioner.generate(batch_of(captioner, 3), Decoding(max_new_tokens=8)).texts
    captioner.family.model = pickle.loads(pickle.dumps(captioner.family.model))
    assert captioner.generate(batch_of(captioner, 3), Decoding(max_new_tokens=8)).texts == drawn
