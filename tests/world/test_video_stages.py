"""The moving world's stages, features and recipes, on the small size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.cli.main import main
from tellapart.clip_frames import ClipFrames
from tellapart.data.dataset import Collate
from tellapart.data.features.store import FeatureStore
from tellapart.errors import UsageError
from tellapart.files import write_json
from tellapart.listeners.late import LateListener
from tellapart.recipe.fingerprint import content_of, stages_of, world_stage
from tellapart.recipe.models import load_data, require_fit, truth_of
from tellapart.sweep.instruments import instruments_parts, probed
from tellapart.types import Decoding
from tellapart.world.lstm import feature_collate, features_folder
from tellapart.world.probe import MOTION, PROBE, require_probe
from tellapart.world.stages import resolve, stage_folder
from tellapart.world.video import load_video_world
from tellapart.world.video.listener import clip_states
from tellapart.world.video.lstm import video_features
from tellapart.world.video.probe import KEPT, probe_captioner
from tellapart.world.video.tower import ClipPixels, TowerStates, clip_pixels

RECIPES = Path(__file__).parents[2] / "recipes"
QUESTIONS = {"shape", "colour", "verb", "direction", "turned", "actor", "order"}


def test_seeds_of_start_captioners_and_the_name_of_the_data():
    folders = {stage_folder("world/video-xe", "full", seed).name.rpartition("-")[0] for seed in (0, 1)}
    assert folders == {"video-xe-seed0", "video-xe-seed1"}
    assert world_stage("world/video-lstm-seed2") == ("world/video-lstm", 2)
    assert world_stage("world/video") is None
    assert stages_of({"data": {"path": "world/video"}, "listener": {"path": "world/video-listener"}}) == {
        "world/video-listener"
    }
    assert content_of("world/video", "small") not in (content_of("world", "small"), content_of("world/video", "full"))


def test_a_listener_of_clips_must_know_motion(tmp_path):
    good = {"accuracy": dict.fromkeys(MOTION, 90.0), "size": "full"}
    write_json(tmp_path / PROBE, good)
    require_probe(tmp_path, "motion")
    write_json(tmp_path / PROBE, {**good, "accuracy": good["accuracy"] | {"direction": 26.0}})
    with pytest.raises(UsageError, match=r"tells direction right in 26\.0 %"):
        require_probe(tmp_path, "motion")


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("world/verifier", "world/video", "no word for what moves"),
        ("world/sighted", "world/video", "name world/video-listener"),
        ("world/listener", "world/video", "no word for what moves"),
        ("world/video-listener", "world", "the data are still pictures: name world/verifier"),
    ],
)
def test_a_reward_is_of_the_world_that_it_rewards(name, data, says):
    with pytest.raises(UsageError, match=says):
        require_fit(name, "truth", data=data, size="small")


@pytest.mark.slow
def test_stages_learn_something_and_read_frames():
    backbone, listener, xe = (resolve(f"world/video-{name}", size="small") for name in ("backbone", "listener", "xe"))
    found = json.loads((backbone / "accuracy.json").read_text())
    assert found["background"] > 90
    assert found["colour"] > 30
    probed = json.loads((listener / PROBE).read_text())
    assert set(probed["accuracy"]) == QUESTIONS
    require_fit("world/video-listener", "truth", data="world/video", size="small")
    loaded, captioner = LateListener.from_pretrained(listener), HuggingFaceCaptioner.from_pretrained(xe).eval()
    assert (loaded.num_frames, captioner.num_frames) == (8, 8)
    # what trained on the frozen tower's states reads the same of frames
    dataset = load_video_world("val", size="small")
    clips = [example.image.frames(8) for example in dataset[:3]]
    states = TowerStates(captioner.family.model.encoder, dataset)
    by_frames = Collate({"captioner": captioner.process})(dataset[:3].examples)
    by_states = Collate({}, features={"captioner": states})(dataset[:3].examples)
    wanted, given = captioner.encode(by_frames).states, captioner.encode(by_states).states
    assert torch.allclose(given, wanted, atol=2e-2)  # states are kept in half precision
    assert torch.allclose(clip_pixels(clips)["pixel_values"], by_frames.inputs["captioner"]["pixel_values"], atol=1e-5)
    assert torch.equal(ClipPixels()(clips)["pixel_values"], clip_pixels(clips)["pixel_values"])
    with torch.no_grad():
        read = loaded.model.image_states(loaded.process(clips)["pixel_values"])
    kept = clip_states(ClipFrames.from_pretrained(backbone), states, dataset.ids[:3])
    assert torch.allclose(read, kept, atol=1e-2)
    figures = probe_captioner(captioner, size="small")
    assert set(figures["accuracy"]) == QUESTIONS
    assert set(figures["greedy"]) == set(figures["sampled"]) == {*KEPT, "place", "said_places"}


@pytest.mark.slow
def test_pooled_features_are_the_towers_and_the_lstm_reads_them(tmp_path):
    backbone = resolve("world/video-backbone", size="small")
    features = video_features(backbone, "small")
    out = tmp_path / "features"
    words = ["features", "world/video", "--model", "world/video-backbone", "--size", "small", "--split", "val"]
    assert main([*words, "--output_dir", str(out)]) == 0
    store = FeatureStore(out)
    name = load_video_world("val", size="small").ids[7]
    np.testing.assert_allclose(store[name], features[name], atol=1e-5)
    assert store.about.frames == 8
    captioner = HuggingFaceCaptioner.from_pretrained(resolve("world/video-lstm", size="small")).eval()
    batch = feature_collate(captioner.name, features)(load_video_world("val", size="small")[:4].examples)
    assert len(captioner.generate(batch, Decoding(max_new_tokens=12)).texts) == 4
    stages = ["world/video-backbone", "world/video-lstm"]
    found = probed("small", stages)
    table, said = instruments_parts(found, stages[1:], stages[:1])
    assert "| asked | video-backbone | video-lstm |" in table
    assert set(found["video-lstm"]["probe"]) == QUESTIONS
    assert "| direction or new colour, by the pooled vector |" in table
    true = found["video-lstm"]["details"]["sampled"]["truthful"]
    assert (
        f"explains questions and models. Of the captions sampled from `world/video-lstm`, {true:.1f} % are true" in said
    )
    assert "Of those that name a place or an order" in said


@pytest.mark.slow
def test_frames_of_an_image_model_are_said_to_lose_their_order(tmp_path, capsys):
    words = [
        "features",
        "world/video",
        "--model",
        "world/backbone",
        "--size",
        "small",
        "--split",
        "val",
        "--limit",
        "4",
    ]
    assert main([*words, "--frames", "4", "--output_dir", str(tmp_path / "mean")]) == 0
    assert "lost their order" in "".join(capsys.readouterr())
    assert main([*words, "--frames", "4", "--pool", "frames", "--output_dir", str(tmp_path / "frames")]) == 0
    assert "lost their order" not in "".join(capsys.readouterr())
    name = load_video_world("val", size="small").ids[0]
    frames, mean = FeatureStore(tmp_path / "frames")[name], FeatureStore(tmp_path / "mean")[name]
    assert frames.shape == (4, 128)
    np.testing.assert_allclose(frames.mean(axis=0), mean, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["world_video_lstm_sle", "world_video_ved_xe", "world_video_ved_dico_truth"])
def test_recipes_train_and_are_measured_by_the_truth(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "--data.size",
        "small",
        "--training.max_steps",
        "1",
        "--training.eval_steps",
        "1",
        "--evaluation.limit",
        "8",
    ]
    words += ["--training.per_device_train_batch_size", "4", "--training.output_dir", "run", "--data.limit", "16"]
    if "lstm" in recipe:
        video_features(backbone := resolve("world/video-backbone", size="small"), "small")
        words += ["--data.features", str(features_folder(backbone, "small"))]
    if "truth" in recipe:
        words += ["--gallery.images", "16"]
    assert main(["train", str(RECIPES / f"{recipe}.yaml"), *words]) == 0
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"eval_motion", "eval_order", "eval_truthful", "eval_exact_recall@1"} <= set().union(*logged)
    dataset = load_data("world/video", "val", images=None, format=None, size="small", limit=8)
    (measure,) = truth_of("world/video", "val", size="small", dataset=dataset)
    full, _ = measure({example.id: example.references[0] for example in dataset})
    assert full["motion"] == 100
