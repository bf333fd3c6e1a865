"""Models as recipes name them."""

import json

import pytest
import torch

from tellapart.errors import UsageError
from tellapart.recipe.models import captioner_folder, listener_folder, load_captioner
from tellapart.recipe.sections import CaptionerSection, LoraSection
from tiny_models import tiny_ved


def test_the_seed_draws_a_new_adapter(tmp_path):
    tiny_ved(tmp_path)
    section = CaptionerSection(model_name_or_path=str(tmp_path), lora=LoraSection(r=2))
    drawn = []
    for seed in (0, 0, 1):
        state = torch.random.get_rng_state()
        captioner = load_captioner(section, seed=seed)
        assert torch.equal(torch.random.get_rng_state(), state), "and nothing else is drawn for it"
        drawn.append(torch.cat([p.flatten() for name, p in captioner.named_parameters() if "lora_A" in name]))
        torch.rand(3)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_runs_of_the_other_command_are_called_by_their_name(tmp_path):
    for name, part in (("captions", "captioner"), ("retrieves", "listener")):
        (tmp_path / name / "best" / part if name == "captions" else tmp_path / name / part).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text(json.dumps({"recipe": {}}))
    with pytest.raises(UsageError, match="retrieves is a run of train-listener: name it as a listener"):
        captioner_folder(str(tmp_path / "retrieves"))
    with pytest.raises(UsageError, match="captions is a run of train, which holds a captioner"):
        listener_folder(str(tmp_path / "captions"))
    assert captioner_folder(str(tmp_path / "captions")) == tmp_path / "captions" / "best" / "captioner"
    assert listener_folder(str(tmp_path / "retrieves")) == tmp_path / "retrieves" / "listener"


def test_a_run_whose_captioner_stays_is_read_only_once_its_listener_has_learned(tmp_path):
    recipe = {"method": "listener_only", "captioner": {"model_name_or_path": "some/model"}}
    (tmp_path / "run.json").write_text(json.dumps({"recipe": recipe}))
    with pytest.raises(UsageError, match="has no checkpoint yet"):
        captioner_folder(str(tmp_path))
    (tmp_path / "checkpoint-2" / "own_listener").mkdir(parents=True)
    assert captioner_folder(str(tmp_path)) == "some/model"
