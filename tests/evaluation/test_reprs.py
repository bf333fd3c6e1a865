"""What a Python session prints of the objects it holds: one line each; a result is a table in a notebook."""

from __future__ import annotations

from dataclasses import replace

import torch
from evaluation_fakes import FixedListener, no_inputs, toy_dataset, toy_result

from listeners.tiny_listeners import clip_parts
from tellapart.data.loader import TrainingData
from tellapart.evaluation.evaluate import Evaluation
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.trained import TrainedListener
from tellapart.ops import describe_weights
from tiny_models import tiny_ved


def test_weights_are_counted():
    layers = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 2))
    layers[0].requires_grad_(False)
    assert describe_weights(layers) == "1,322 weights, 82 trainable"  # 30 * 40 + 40, and 40 * 2 + 2


def test_data_and_evaluation():
    data = toy_dataset()
    assert repr(data) == "CaptionDataset('toy test', 5 images, 10 captions)"
    assert repr(TrainingData(data, no_inputs())) == f"TrainingData({data!r})"
    replacing = TrainingData(data, no_inputs(), replace_unreadable=True)
    assert repr(replacing) == f"TrainingData({data!r}, unreadable images replaced)"
    evaluation = Evaluation(data, no_inputs(), listeners={"judge": FixedListener("judge")})
    assert repr(evaluation).startswith("Evaluation('toy test', 5 images, greedy")
    assert repr(evaluation).endswith(", listeners judge)")


def test_models(tmp_path):
    captioner = tiny_ved(tmp_path / "model")
    assert repr(captioner).startswith("HuggingFaceCaptioner(VisionEncoderDecoderModel")
    assert repr(captioner).endswith(f"{describe_weights(captioner)})")
    listener = ClipListener.from_parts(*clip_parts(), prefix="A photo of ")
    assert (
        repr(listener)
        == f"ClipListener(clip, {describe_weights(listener.model)}, prefix 'A photo of ', name 'listener')"
    )
    assert repr(TrainedListener(listener)) == f"TrainedListener({listener!r})"
    for found in (captioner, listener):
        assert "\n" not in repr(found)


def test_a_result_is_a_line_and_in_a_notebook_a_table():
    result = replace(toy_result("a<b>", seed=0), intervals={"CIDEr": (0.5, 1.5)})
    cider = f"{100 * result.metrics['CIDEr']:.1f}"
    assert repr(result).startswith(
        f"EvaluationResult('a<b>', toy test, 5 images: CIDEr {cider}, BLEU-4 10.0, judge R@1 "
    )
    page = result._repr_html_()
    assert f"<td>CIDEr ↑</td><td>{cider}</td><td>[50.0, 150.0]</td>" in page
    assert "a&lt;b&gt;" in page
    assert "a<b>" not in page
    assert page.count("<tr>") == 4
    assert "toy test: 5 images" in page
