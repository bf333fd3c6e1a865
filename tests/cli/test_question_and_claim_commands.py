"""Questions, claims and VQAScore in recipes and in ``score``, with the model of each in the result."""

from __future__ import annotations

import json

import pytest

from command_recipes import load_recipe
from pictures import CAPTIONS, images
from tellapart.cli.main import main
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import EncodedImage
from tellapart.errors import UsageError
from tellapart.recipe import models as models_of_recipes
from tellapart.recipe.build import build
from tellapart.rewards import for_trl
from tiny.language_models import saved
from tiny.llava import tiny_llava
from tiny.matchers import tiny_blip_itm


@pytest.fixture(scope="module")
def models(tmp_path_factory, materials):
    root = tmp_path_factory.mktemp("models")
    words = ["Does this figure show ? Please answer yes or no . Yes No"] * 40
    tiny_llava(root / "llava", captions=[*CAPTIONS, *words], vocab=200)
    (root / "questions.jsonl").write_text(
        "".join(
            json.dumps({"id": i, "question": "which shape?", "options": ["star", "moon", "ring"], "answer": "star"})
            + "\n"
            for i in range(14)
        )
    )
    return {
        "llava": root / "llava",
        "itm": tiny_blip_itm(root / "itm"),
        "reader": saved(root / "reader", "gpt2", positions=512),
        "questions": root / "questions.jsonl",
    }


def logged(run, key):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row[key] for row in rows if key in row]


def test_a_training_is_rewarded_by_answers_and_claims(materials, models, tmp_path):
    changes = {
        "listener": None,
        "reward": [{"name": "question_answering", "soft": True, "turns": 2}, {"name": "claim_f1", "weight": 0.5}],
        "reader": {"path": str(models["reader"])},
        "questions": {"path": str(models["questions"])},
        "matcher": {"model": str(models["itm"])},
        "evaluation": {
            "split": "val",
            "max_new_tokens": 8,
            "reader": str(models["reader"]),
            "questions": str(models["questions"]),
        },
    }
    path = materials.recipe(tmp_path, "scst", **changes)
    assert main(["train", str(path)]) == 0
    answered = logged(tmp_path / "scst", "rewards/question_answering")
    assert answered
    assert all(0 < value < 1 for value in answered)
    assert logged(tmp_path / "scst", "rewards/claim_f1")
    assert logged(tmp_path / "scst", "eval_QA_chance")[0] == pytest.approx(100 / 3)


def test_vqa_score_needs_its_kind_of_matcher(materials, models, tmp_path):
    changes = {"listener": None, "reward": {"vqa_score": 1.0}, "evaluation": {"split": None}}
    wrong = materials.recipe(tmp_path, "scst", matcher={"model": str(models["llava"])}, **changes)
    with pytest.raises(UsageError, match=r"set matcher\.kind to vqa_score"):
        build(load_recipe([str(wrong)]))
    right = load_recipe([str(wrong), "--matcher.kind", "vqa_score"])
    assert build(right).objective.reward.rewards["vqa_score"].matcher.question.startswith("Does this figure show")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "question_answering needs a reader: set reader.path"),
        ({"reader": {"path": "gpt2"}}, "question_answering needs questions: set questions.path"),
        (
            {"reader": {"path": "exact"}, "questions": {"path": "references"}},
            "reads captions of the built-in world only",
        ),
        ({"reader": {"path": "gpt2"}, "questions": {"path": "world"}}, "questions world are about the built-in world"),
        (
            {"reader": {"path": "gpt2"}, "questions": {"path": "references", "most": 0}},
            "questions.most in .* is 0, but must be a whole number of at least 1",
        ),
    ],
)
def test_what_is_missing_is_told(materials, models, tmp_path, changes, said):
    changes = {
        key: {k: str(models["reader"]) if v == "gpt2" else v for k, v in own.items()} for key, own in changes.items()
    }
    path = materials.recipe(
        tmp_path, "scst", listener=None, reward={"question_answering": 1.0}, evaluation={"split": None}, **changes
    )
    with pytest.raises(UsageError, match=said):
        build(load_recipe([str(path)]))


def test_score_names_the_model_of_every_metric(materials, models, tmp_path, capsys):
    path = tmp_path / "captions_results.json"
    path.write_text(json.dumps([{"image_id": i, "caption": "a red star on a table"} for i in range(8, 14)]))
    claims = tmp_path / "claims.jsonl"
    claims.write_text(json.dumps({"caption": "a red star on a table", "claims": ["a star", "a table"]}))
    words = ["score", str(path), "--data", str(materials.data), "--split", "val", "--bootstrap", "0"]
    words += ["--vqa_score", str(models["llava"]), "--claims", str(models["itm"]), "--claim_file", str(claims)]
    words += ["--reader", str(models["reader"]), "--questions", str(models["questions"])]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    by = told["protocol"]["measured_by"]
    assert by["VQAScore"].startswith("llava [")
    assert by["claim_precision"].startswith("itm [")
    assert "claims by file claims.jsonl" in by["claim_precision"]
    assert by["QA"].startswith("reader [")
    assert told["metrics"]["claims"] == 2.0
    assert 0 <= told["metrics"]["VQAScore"] <= 1
    assert main([*words, "--all_metrics"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("VQAScore", "claim precision", "claim recall", "QA %", "QA without caption"))
    assert main(["score", str(path), "--data", str(materials.data), "--claim_file", str(claims)]) == 2
    assert "--claim_file needs a verifier" in capsys.readouterr().err
    assert main(["score", str(path), "--data", str(materials.data), "--split", "val", "--claims", "exact"]) == 2
    assert "knows the truth about captions of the built-in world" in capsys.readouterr().err
    assert main([*words[:4], "--split", "val", "--claims", str(materials.listener)]) == 2
    assert "instruct vision-language model as claims." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit", "-1"], "--limit is -1: keep at least 1 image."),
        (["--limit", "0"], "--limit is 0: keep at least 1 image."),
        (["--num_questions", "0"], "--num_questions is 0: give 1 or more."),
        (["--max_new_tokens", "9"], "--max_new_tokens does nothing without --model"),
        (["--images", "photos"], "--images does nothing without --model"),
    ],
)
def test_questions_refuses_what_does_nothing(words, said, materials, tmp_path, capsys):
    assert main(["questions", str(materials.data), "--output", str(tmp_path / "q.jsonl"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "q.jsonl").exists()


def test_the_rewards_work_in_other_trainers(models):
    asked = for_trl("vqa_score", model=models["llava"], opening={"kind": "vqa_score"}, device="cpu")
    checked = for_trl("claim_precision", model=models["itm"], device="cpu")
    captions = ["a red star", "a moon on a table"]
    for function in (asked, checked):
        found = function(completions=captions, image=images(2))
        assert len(found) == 2
        assert all(0 <= value <= 1 for value in found)


def test_questions_about_the_moving_world_are_asked_of_its_own_data(monkeypatch, tmp_path):
    asked = []
    things = ("dog", "cat", "car", "boat", "horse")
    examples = [Example(thing, EncodedImage(b"", thing), (f"a red {thing}", f"one red {thing}")) for thing in things]

    def data(path, split, **options):
        asked.append(path)
        return CaptionDataset(examples, name="moving")

    monkeypatch.setattr(models_of_recipes, "load_data", data)
    assert main(["questions", "world/video", "--split", "val", "--output", str(tmp_path / "questions.jsonl")]) == 0
    assert asked == ["world/video"]
