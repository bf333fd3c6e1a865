"""Perplexity of captions: by a plain sum over transformers' own losses, its intervals, and the line that names the model."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from evaluation_fakes import REFERENCES, FixedListener, SayingCaptioner, no_inputs, toy_dataset

from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.evaluation.aggregate import Aggregate
from tellapart.evaluation.compare import compare_results
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.fluency import PerplexityMeasure
from tellapart.evaluation.results import EvaluationResult
from tellapart.rewards.language_model import LanguageModel
from tiny.language_models import saved, tiny_language_model

CAPTIONS = {"1": "a red star on a", "2": "a ring", "3": "A ring.", "4": "", "5": "two blue rings"}


def surprises(captions, *, end: bool = False) -> list[tuple[float, int]]:
    """Negative log-probability and tokens of each caption, from the loss of one row at a time."""
    model, tokenizer = tiny_language_model("gpt2")
    found = []
    for text in captions:
        ids = [3, *tokenizer.encode(text, add_special_tokens=False), *([3] if end else [])]
        row = torch.tensor([ids])
        with torch.no_grad():
            loss = float(model(input_ids=row, labels=row).loss) if len(ids) > 1 else 0.0
        found.append((loss * (len(ids) - 1), len(ids) - 1))
    return found


@pytest.fixture(scope="module")
def reader() -> LanguageModel:
    return LanguageModel(*tiny_language_model("gpt2"), name="small")


def test_a_model_that_gives_no_numbers_is_refused():
    model, tokenizer = tiny_language_model("gpt2")
    reader = LanguageModel(model, tokenizer, name="broken")
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(math.nan)  # after the reader has tried the model
    with pytest.raises(UsageError, match=r"the language model broken .*probabilities that are not numbers"):
        PerplexityMeasure(reader)(CAPTIONS)


@pytest.mark.parametrize("end", [False, True])
def test_perplexity_is_of_all_tokens_together(reader, end, caplog):
    with caplog.at_level(logging.WARNING):
        metrics, columns = PerplexityMeasure(reader, end=end)(CAPTIONS)
    found = surprises(CAPTIONS.values(), end=end)
    total, tokens = (sum(part) for part in zip(*found, strict=True))
    assert metrics == {"perplexity": pytest.approx(math.exp(total / tokens), rel=1e-5)}
    assert columns["perplexity_nll"] == pytest.approx([nll for nll, _ in found], abs=1e-4)
    assert columns["perplexity_tokens"] == [count for _, count in found]
    means = [nll / count if count else None for nll, count in found]
    assert columns["caption_nll"] == [None if mean is None else pytest.approx(mean, abs=1e-4) for mean in means]
    assert ("1 of 5 captions are empty" in caplog.text) is not end
    # neither of the two means that are easily taken for it
    per_caption = [math.exp(mean) for mean in means if mean is not None]
    assert metrics["perplexity"] != pytest.approx(np.mean(per_caption), rel=1e-3)


def test_captions_of_no_tokens_have_no_perplexity(reader):
    metrics, columns = PerplexityMeasure(reader)({"1": "", "2": " "})
    assert metrics == {}
    assert columns["caption_nll"] == [None, None]


def test_a_draw_of_images_has_the_perplexity_of_its_tokens(reader):
    _, columns = PerplexityMeasure(reader)(CAPTIONS)
    columns = {"CIDEr": [0.1, 0.2, 0.3, 0.4, 0.5]} | columns
    aggregate = Aggregate(["CIDEr", "perplexity", "caption_nll"], columns)
    assert aggregate.keys == ["CIDEr", "perplexity", "caption_nll"]
    drawn = np.array([0, 0, 4, 1, 3])
    found = surprises([list(CAPTIONS.values())[i] for i in drawn])
    total, tokens = (sum(part) for part in zip(*found, strict=True))
    read = [columns["caption_nll"][i] for i in drawn if columns["caption_nll"][i] is not None]
    want = [np.mean([columns["CIDEr"][i] for i in drawn]), math.exp(total / tokens), np.mean(read)]
    assert aggregate(aggregate.rows[drawn].sum(0)).tolist() == pytest.approx(want, rel=1e-5)
    only_empty = aggregate(5 * aggregate.rows[3])
    assert np.isnan(only_empty[1:]).all()


def test_an_evaluation_of_a_captioner_measures_it_and_names_the_model(reader, tmp_path):
    measure = PerplexityMeasure(reader)
    evaluation = Evaluation(toy_dataset(), no_inputs(), listeners={"l": FixedListener("l")}, measures=[measure])
    said = {image_id: texts[0] for image_id, texts in REFERENCES.items()}
    result = evaluation(SayingCaptioner(said), name="a")
    total, tokens = (sum(part) for part in zip(*surprises(said.values()), strict=True))
    assert result.metrics["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-5)
    assert (
        f"perplexity by small [{reader.fingerprint()[:12]}, float32] without the captions' ends"
        in result.protocol.line()
    )
    read = EvaluationResult.load(result.save(tmp_path))
    assert read.protocol == result.protocol
    other = evaluation(SayingCaptioner(said | {"1": "star star star"}), name="b")
    difference = compare_results([read, other]).differences[1]["perplexity"]
    assert difference.value == pytest.approx(other.metrics["perplexity"] - result.metrics["perplexity"])
    assert difference.low <= difference.value <= difference.high
    silent = evaluation.empty()
    assert "perplexity" not in silent.metrics
    assert "perplexity" not in silent.protocol.measured_by


def test_perplexities_of_different_models_are_not_compared(reader):
    def scored(language_model, **options):
        measure = PerplexityMeasure(language_model, **options)
        return Evaluation(toy_dataset(), measures=[measure]).human()

    first, renamed = scored(reader), scored(LanguageModel(*tiny_language_model("gpt2"), name="elsewhere"))
    compare_results([first, renamed, replace(first, protocol=replace(first.protocol, measured_by={}))])
    others = [scored(LanguageModel(*tiny_language_model("gpt2", seed=1), name="small")), scored(reader, end=True)]
    for other in others:
        with pytest.raises(UsageError, match="measured differently"):
            compare_results([first, other])


def test_the_command_line_measures_text_by_a_language_model(tmp_path, capsys):
    said = {i: texts[0] for i, texts in REFERENCES.items()}
    (tmp_path / "refs.json").write_text(json.dumps(REFERENCES))
    (tmp_path / "said.json").write_text(json.dumps(said))
    folder = saved(tmp_path / "small-gpt2")
    words = [
        "score",
        str(tmp_path / "said.json"),
        "--references",
        str(tmp_path / "refs.json"),
        "--language_model",
        str(folder),
    ]
    assert main([*words, "--json", "--output_dir", str(tmp_path / "out")]) == 0
    told = json.loads(capsys.readouterr().out)
    total, tokens = (sum(part) for part in zip(*surprises(said.values()), strict=True))
    assert told["metrics"]["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-5)
    low, high = told["intervals"]["perplexity"]
    assert low <= told["metrics"]["perplexity"] <= high
    assert "perplexity by small-gpt2 [" in told["protocol"]["line"]
    rows = EvaluationResult.load(tmp_path / "out").per_image
    assert sum(rows["perplexity_tokens"]) == tokens
    assert main(words) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main([*words[:-1], str(tmp_path / "nothing")]) == 2
    assert "language model's folder" in capsys.readouterr().err
