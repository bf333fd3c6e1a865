"""Captions of an asked length by the command line: train, caption --words, score --words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.cli.main import main
from tellapart.lengths import WordRange, count_words


@pytest.fixture(scope="module")
def run(materials, tmp_path_factory) -> Path:
    """A run by teacher forcing with three buckets, and from it one by SCST with the reward length."""
    folder = tmp_path_factory.mktemp("lengths")
    captioner = {"model_name_or_path": str(materials.captioner), "length_buckets": [2, 4]}
    no_models = {"evaluation": {"split": None}, "listener": None, "reward": None, "objective": None}
    recipe = materials.recipe(folder, "xe", captioner=captioner, max_steps=2, **no_models)
    assert main(["train", str(recipe)]) == 0
    captioner = {"model_name_or_path": str(folder / "xe")}
    reward = {"reward": [{"name": "length", "weight": 1.0}], "objective": {"max_new_tokens": 8}}
    recipe = materials.recipe(folder, "scst", captioner=captioner, max_steps=2, **(no_models | reward))
    assert main(["train", str(recipe)]) == 0
    return folder / "scst"


def test_a_run_keeps_the_buckets_of_the_run_it_began_from(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line["reward"] <= 0 for line in lines if "reward" in line)
    assert any("reward" in line for line in lines)
    (saved,) = run.glob("**/checkpoint-2/captioner")
    assert HuggingFaceCaptioner.from_pretrained(saved).buckets.bounds == (2, 4)


def captions(capsys, *words) -> list[dict]:
    out = Path(words[-1])
    assert (
        main(["caption", *map(str, words[:-1]), "--resample", "0", "--max_new_tokens", "8", "--output", str(out)]) == 0
    )
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.parametrize("trained", [True, False])
def test_captions_of_another_length_are_flagged(run, materials, tmp_path, capsys, trained):
    captioner = run if trained else materials.captioner
    for asked in ("1-2", "3-4", "5-"):
        out = tmp_path / f"{asked}.jsonl"
        rows = captions(capsys, materials.photos, "--captioner", captioner, "--words", asked, "--num_beams", 1, out)
        assert len(rows) > 10
        for row in rows:
            missed = WordRange.parse(asked).distance(count_words(row["caption"])) > 0
            assert ("length" in row.get("flags", ())) == missed


def test_of_several_captions_one_of_the_asked_length_is_kept(materials, tmp_path, capsys):
    words = ("--captioner", materials.captioner, "--listener", materials.listener, "--rerank", "clip_s", "--n", 6)
    rows = captions(
        capsys, materials.photos, *words, "--top_p", 1, "--keep_all", "--words", "3-5", tmp_path / "x.jsonl"
    )
    kept = 0
    for row in rows:
        texts = [one["caption"] for one in row["candidates"]]
        misses = [WordRange(3, 5).distance(count_words(text)) > 0 for text in texts]
        assert misses == sorted(misses), "those of the asked length first"
        kept += not misses[0]
    assert kept


def test_score_prints_asked_against_given_length(run, materials, tmp_path, capsys):
    data = (
        "--data",
        materials.data,
        "--split",
        "val",
        "--bootstrap",
        "0",
        "--max_new_tokens",
        "8",
        "--output_dir",
        tmp_path,
    )
    assert main(["score", str(run), *map(str, data), "--words", "3-4"]) == 0
    said = capsys.readouterr().out
    assert "asked words" in said
    assert "3-4" in said
    assert main(["score", str(run), *map(str, data), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["asked"] for row in told["details"]["lengths"]} <= {"1-2", "3-4", "5-"}
    assert 0 <= told["metrics"]["asked_length_kept"] <= 100
    assert len(list((tmp_path / "eval").iterdir())) == 2, "a result per asked length"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("caption", "{photos}", "--captioner", "{captioner}", "--words", "15-8"), "range of lengths"),
        (("score", "{captioner}", "--data", "{data}", "--words", "many"), "range of lengths"),
        (("score", "captions.json", "--references", "{data}", "--words", "8"), "--words does not go with --references"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(materials, capsys, words, sentence):
    places = {name: getattr(materials, name) for name in ("photos", "captioner", "data")}
    assert main([word.format(**places) for word in words]) == 2
    assert sentence in capsys.readouterr().err
