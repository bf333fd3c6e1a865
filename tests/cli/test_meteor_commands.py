"""METEOR from the command line, as a reward and as a measure, with data of a few words."""

import json

import pytest

from small_meteor import write_data
from tellapart.cli.main import main
from tellapart.data.load import load_references
from tellapart.evaluation.meteor import MeteorMeasure
from tellapart.evaluation.results import EvaluationResult
from tellapart.metrics import meteor_data


@pytest.fixture
def small_data(tmp_path_factory, monkeypatch):
    folder = write_data(tmp_path_factory.mktemp("meteor"))
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(meteor_data, "source", lambda: folder)
    meteor_data.load_resources.cache_clear()
    yield
    meteor_data.load_resources.cache_clear()


def test_it_trains_and_watches(materials, tmp_path, small_data):
    watched = {"split": "train", "meteor": True, "max_new_tokens": 8, "limit": 4}
    rewards = {"meteor": 1.0, "cider_d": 0.5}
    path = materials.recipe(
        tmp_path, "scst", reward=rewards, evaluation=watched, objective={"max_new_tokens": 8}, learning_rate=1e-3
    )
    assert main(["train", str(path)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "scst" / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "loss" in line]
    assert 0 < trained[0]["rewards/meteor"] < 1
    [folder] = (tmp_path / "scst" / "eval").iterdir()
    captions = EvaluationResult.load(folder).captions
    references = load_references(str(materials.data), split="train").references
    expected, _ = MeteorMeasure(references)(captions)
    assert len(captions) == 4
    assert [line["eval_METEOR"] for line in lines if "eval_METEOR" in line][-1] == pytest.approx(expected["METEOR"])


def test_without_its_data_training_on_it_is_refused(materials, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(meteor_data, "source", lambda: None)
    meteor_data.load_resources.cache_clear()
    path = materials.recipe(tmp_path, "scst", reward={"meteor": 1.0}, evaluation={"split": None})
    assert main(["train", str(path)]) == 2
    assert "pip install 'tellapart[meteor]'" in capsys.readouterr().err
