"""``captioner.rollout_dtype`` in recipes."""

import pytest
import torch

from tellapart.recipe import build as module
from tellapart.recipe.recipe import Recipe


@pytest.mark.parametrize("known", [False, True])
def test_bfloat16_on_a_processor_without_instructions_for_it_is_told(known, materials, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: known)
    for dtype in ("float32", "bfloat16"):
        caplog.clear()
        captioner = {"model_name_or_path": str(materials.captioner), "rollout_dtype": dtype}
        built = module.build(Recipe.load(materials.recipe(tmp_path, "scst", captioner=captioner)))
        assert built.captioner.rollout_dtype == dtype
        told = "no instructions for bfloat16" in caplog.text
        assert told == (dtype == "bfloat16" and not known and not torch.accelerator.is_available())
