"""A language model in recipes: as a reward, as a measure of the evaluation, and read back by ``tellapart score RUN``."""

from __future__ import annotations

import json
import math

import pytest

from command_recipes import load_recipe
from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.evaluation.results import EvaluationResult, result_folders
from tellapart.recipe.build import build
from tellapart.rewards.language_model import LanguageModel
from tiny.language_models import saved


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("language_models") / "small-gpt2")


def test_a_training_is_rewarded_and_watched_by_a_language_model(materials, reader, tmp_path, capsys):
    recipe = materials.recipe(
        tmp_path,
        "scst",
        reward={"clip_s": 1.0, "language_model": 0.25},
        language_model={"path": str(reader)},
        evaluation={"split": "val", "max_new_tokens": 8, "language_model": str(reader)},
    )
    run = tmp_path / "scst"
    assert main(["train", str(recipe)]) == 0
    assert "perplexity" in capsys.readouterr().out
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    watched = [row["eval_perplexity"] for row in rows if "eval_CIDEr" in row]
    assert watched
    assert min(watched) > 1
    rewards = [row["rewards/language_model"] for row in rows if "rewards/language_model" in row]
    assert rewards
    assert all(reward < 0 for reward in rewards)

    (folder,) = result_folders(run)
    kept = EvaluationResult.load(folder)
    scores = LanguageModel.from_pretrained(reader).score(list(kept.captions.values()))
    want = math.exp(-float(scores.logprobs.sum()) / int(scores.tokens.sum()))
    assert kept.metrics["perplexity"] == pytest.approx(want, rel=1e-5)
    assert "perplexity by small-gpt2 [" in kept.protocol.line()
    assert (
        main(["score", str(run), "--json", "--output_dir", str(tmp_path / "again")]) == 0
    )  # the run's own recipe names it
    assert json.loads(capsys.readouterr().out)["metrics"]["perplexity"] == pytest.approx(want, rel=1e-5)
    words = ["score", str(run), "--spice_jar", str(tmp_path / "nothing"), "--output_dir", str(tmp_path / "third")]
    assert main(words) == 0
    assert "note: SPICE is left out, because" in capsys.readouterr().err


def test_the_rewards_model_is_not_loaded_twice(materials, reader, tmp_path):
    changes = {"reward": {"language_model": 1.0}, "language_model": {"path": str(reader)}, "listener": None}
    watched = {"split": "val", "max_new_tokens": 8, "language_model": str(reader)}
    built = build(load_recipe([str(materials.recipe(tmp_path, "scst", **changes, evaluation=watched))]))
    (measure,) = built.watch.evaluation.measures
    (reward,) = built.objective.reward.rewards.values()
    assert measure.language_model is reward.language_model
    other = changes | {"language_model": {"path": str(reader), "dtype": "bfloat16"}}
    built = build(load_recipe([str(materials.recipe(tmp_path, "scst", **other, evaluation=watched))]))
    assert built.watch.evaluation.measures[0].measured_by["perplexity"].endswith("float32] without the captions' ends")


def test_a_reward_without_its_model_is_refused(materials, tmp_path):
    recipe = load_recipe([str(materials.recipe(tmp_path, "scst", reward={"language_model": 1.0}))])
    with pytest.raises(UsageError, match=r"set language_model\.path to a causal one"):
        build(recipe)
