"""``tellapart train-listener --loss hinge``, new recurrent listeners, and what the results are good for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from command_recipes import load_listener_recipe
from pictures import CAPTIONS
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.cli.main import main
from tellapart.data.features.open import open_features
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.kinds import reads_features
from tellapart.listeners.soft_clip import SoftClip
from tellapart.listeners.trained import TrainedListener
from tellapart.listeners.vse import Vse
from tellapart.recipe.models import load_data
from tellapart.recipe.soft_listeners import load_any_listener, load_retriever, load_soft_listener
from tiny_models import word_tokenizer

TEXTS = ["a red circle on a table", "a blue moon on a table"]


@pytest.fixture
def recipe(materials, tmp_path):
    """Two steps of a new recurrent listener, written to a file; changes are top-level keys, None leaves one out."""

    def write(name: str = "run", **changes) -> str:
        written = {
            "loss": "hinge",
            "listener": {
                "path": "new/vse",
                "vocabulary": str(materials.captioner),
                "image_encoder": str(materials.listener),
                "new": {"word_size": 6, "hidden_size": 10},
            },
            "data": {"path": str(materials.data), "split": "train"},
            "evaluation": {"split": "val"},
            "output_dir": str(tmp_path / name),
            "learning_rate": 1e-2,
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in (written | changes).items() if value is not None}))
        return str(path)

    return write


@pytest.fixture
def features(materials, tmp_path) -> Path:
    """Regions of every picture, 2 or 3 of them."""
    folder = tmp_path / "features"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        data = load_data(str(materials.data), split, images=None, format=None, size="small", limit=None)
        for i, name in enumerate(data.ids):
            np.save(folder / f"{name}.npy", rng.normal(size=(2 + i % 2, 5)).astype(np.float32))
    return folder


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def captions_of(materials, folder: Path) -> Path:
    data = load_data(str(materials.data), "val", images=None, format=None, size="small", limit=None)
    path = folder / "captions.json"
    path.write_text(json.dumps([{"image_id": n, "caption": CAPTIONS[i]} for i, n in enumerate(data.ids)]))
    return path


def test_a_clip_learns_by_the_hinge(recipe, materials, tmp_path):
    assert main(["train-listener", recipe(listener={"path": str(materials.listener)})]) == 0
    run = tmp_path / "run"
    before, after = (
        ClipListener.from_pretrained(path).model.state_dict() for path in (materials.listener, run / "listener")
    )
    same = {name.split(".")[0] for name in before if torch.equal(before[name], after[name])}
    assert {"vision_model", "visual_projection", "logit_scale"} <= same
    assert not torch.equal(before["text_projection.weight"], after["text_projection.weight"])
    assert {"hinge_cost", "hinge_active", "recall@1", "loss"} <= set(lines_of(run)[1])
    costs = [line for line in lines_of(run) if "loss" in line]
    assert all(line["loss"] == pytest.approx(4 * line["hinge_cost"], rel=1e-5) for line in costs)
    assert main(["train-listener", recipe("mean", listener={"path": str(run)}), "--hinge.reduction", "mean"]) == 0
    assert all(
        line["loss"] == pytest.approx(line["hinge_cost"], rel=1e-5)
        for line in lines_of(tmp_path / "mean")
        if "loss" in line
    )


def test_a_new_recurrent_listener_is_trained_kept_and_resumed(recipe, materials, tmp_path, capsys):
    assert main(["train-listener", recipe("whole")]) == 0
    assert f"trained 2 steps: {tmp_path / 'whole' / 'listener'}" in capsys.readouterr().err
    assert {"eval_t2i_R@1", "eval_R@1_mean"} <= set(lines_of(tmp_path / "whole")[0])
    halves = recipe("halves")
    assert main(["train-listener", halves, "--max_steps", "1"]) == 0
    assert main(["train-listener", halves, "--resume_from_checkpoint", "last"]) == 0
    listeners = [load_retriever(str(tmp_path / name), name="listener") for name in ("whole", "halves")]
    first, second = (listener.model.state_dict() for listener in listeners)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert (
        listeners[0].tokenizer.get_vocab()
        == HuggingFaceCaptioner.from_pretrained(materials.captioner).tokenizer.get_vocab()
    )
    assert not reads_features(tmp_path / "whole")
    assert main(["train-listener", recipe("more", listener={"path": str(tmp_path / "whole")})]) == 0
    assert lines_of(tmp_path / "more")[0]["eval_R@1_mean"] == lines_of(tmp_path / "whole")[-1]["eval_R@1_mean"]


def test_it_ranks_images_for_score_and_as_a_judge(recipe, materials, tmp_path, capsys):
    assert main(["train-listener", recipe()]) == 0
    run, captions = tmp_path / "run", captions_of(materials, tmp_path)
    words = ["score", str(captions), "--data", str(materials.data), "--split", "val", "--bootstrap", "0", "--json"]
    capsys.readouterr()
    assert main([*words, "--listener", str(run), "--judge", str(run / "checkpoint-2")]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    listener = load_retriever(str(run), name="listener")
    data = load_data(str(materials.data), "val", images=None, format=None, size="small", limit=None)
    listener.cache_images(data)
    said = [entry["caption"] for entry in json.loads(captions.read_text())]
    cosines = listener.encode_texts(said) @ listener.encode_ids(data.ids).T
    first = 100 * float((cosines.argmax(dim=1) == torch.arange(len(said))).float().mean())
    assert metrics["listener_R@1"] == pytest.approx(first)
    assert metrics["judge_R@1"] == pytest.approx(first)
    assert main([*words, "--listener", str(run), "--prefix", "a"]) == 2
    assert "is a VSE, which puts no words before captions" in capsys.readouterr().err
    assert main(["train", str(materials.recipe(tmp_path, "scst", listener={"path": str(run)}))]) == 2
    assert "is a VSE, but a reward, a miner and the like need a CLIP or SigLIP" in capsys.readouterr().err
    captioning = materials.recipe(tmp_path, "xe", evaluation={"split": "val", "max_new_tokens": 8, "judge": str(run)})
    assert main(["train", str(captioning)]) == 0
    assert any("eval_judge_R@1" in line for line in lines_of(tmp_path / "xe"))


def test_it_reads_features_where_data_have_some(recipe, materials, features, tmp_path, capsys):
    """And needs no picture then."""
    data = {"path": str(materials.data), "split": "train", "features": str(features)}
    fresh = {"path": "new/vse", "vocabulary": str(materials.captioner), "new": {"word_size": 6, "hidden_size": 10}}
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "data.json").write_text(materials.data.read_text())
    assert main(["train-listener", recipe(data=data | {"path": str(bare / "data.json")}, listener=fresh)]) == 0
    assert reads_features(tmp_path / "run")
    listener = load_retriever(str(tmp_path / "run"), name="listener", features=open_features(features))
    assert listener.model.config.feature_size == 5
    words = ["score", str(captions_of(materials, tmp_path)), "--data", str(materials.data), "--split", "val"]
    words += ["--bootstrap", "0", "--listener", str(tmp_path / "run")]
    assert main([*words, "--features", str(features)]) == 0
    assert main(words) == 2
    assert "reads image features, but of image" in capsys.readouterr().err


def test_listeners_of_a_captioners_words(recipe, materials, tmp_path):
    captioner = HuggingFaceCaptioner.from_pretrained(materials.captioner)
    assert main(["train-listener", recipe()]) == 0
    vse = load_soft_listener(str(tmp_path / "run"), captioner)
    assert isinstance(vse, Vse)
    tokens = captioner.tokenizer([f"{text} </s>" for text in TEXTS], return_tensors="pt")["input_ids"]
    mask = torch.ones_like(tokens, dtype=torch.bool)
    torch.testing.assert_close(vse.embed_tokens(tokens, mask), vse.embed_texts(TEXTS))
    with pytest.raises(UsageError, match="reinforce_joint, luo2018 or scst"):
        load_soft_listener(str(materials.listener), captioner)
    other = load_any_listener(str(materials.listener), captioner)
    assert type(other) is TrainedListener
    assert {name.split(".")[1] for name, p in other.named_parameters() if p.requires_grad} == {
        "text_model",
        "text_projection",
    }
    clip = clip_with_words(materials, tmp_path / "clip", captioner)
    soft = load_soft_listener(str(clip), captioner, name="own_listener")
    assert isinstance(soft, SoftClip)
    assert soft.name == "own_listener"
    torch.testing.assert_close(soft.embed_tokens(tokens, mask), soft.listener.embed_texts(TEXTS), atol=1e-5, rtol=0)


def clip_with_words(materials, folder: Path, captioner) -> Path:
    """The tiny listener with embeddings for the words of the tiny captioner."""
    listener = ClipListener.from_pretrained(materials.listener)
    words = word_tokenizer(CAPTIONS, 64)
    listener.model.text_model.resize_token_embeddings(len(words))
    listener.model.config.text_config.vocab_size = len(words)
    ClipListener.from_parts(listener.model, listener.image_processor, words, prefix="").save(folder)
    assert words.get_vocab() == captioner.tokenizer.get_vocab()
    return folder


def test_errors_are_sentences(recipe, materials, tmp_path, capsys):
    path = recipe()
    clip = recipe("clip", listener={"path": str(materials.listener)})
    for words, sentence in (
        (
            [path, "--loss", "contrastive"],
            "new/vse is a recurrent listener, which learns by the hinge loss: set loss to hinge",
        ),
        ([path, "--grammar", "true"], "new/vse is a recurrent listener, which learns by the hinge loss"),
        ([clip, "--grammar", "true"], "--grammar trains with the contrastive loss: leave loss out."),
        ([clip, "--loss", "contrastive", "--hinge.margin", "1"], "hinge has options, but the loss is another"),
        (
            [clip, "--listener.vocabulary", "x"],
            f"listener.vocabulary is of new/vse, but the listener is {materials.listener}",
        ),
        ([clip, "--data.features", "x"], "but this listener reads images: leave data.features out."),
        ([path, "--listener.train", "text"], "new/vse has no trained image side to keep"),
        ([path, "--listener.prefix", "a"], "puts no words before texts: leave prefix out."),
        ([path, "--listener.vocabulary", "null"], "new/vse needs a captioner's words: set listener.vocabulary"),
        (
            [path, "--listener.image_encoder", "null"],
            "new/vse reads either image features (data.features) or the image",
        ),
        ([path, "--data.features", "x"], "new/vse reads either image features (data.features) or the image"),
        ([path, "--listener.vocabulary", str(tmp_path)], "which has no tokenizer"),
        ([path, "--hinge.margin", "0"], "--hinge.margin is '0', but must be a number above 0"),
        (
            [path, "--listener.new.word_size", "0"],
            "--listener.new.word_size is '0', but must be a whole number of at least 1",
        ),
        ([path, "--per_device_train_batch_size", "1"], "set per_device_train_batch_size to 2 or more"),
        ([path, "--gradient_accumulation_steps", "2"], "compares the images of a batch with each other"),
    ):
        assert main(["train-listener", *words]) == 2, words
        said = capsys.readouterr().err
        assert sentence in said, (sentence, said)
        assert said.strip().splitlines()[-1].startswith("error: ")


def test_the_shipped_recipe():
    recipe = load_listener_recipe([str(Path(__file__).parents[2] / "recipes" / "world_vse_hinge.yaml")])
    assert (recipe.loss, recipe.hinge.margin, recipe.hinge.reduction) == ("hinge", 0.2, "sum")
    assert recipe.training.max_grad_value == 0.1
