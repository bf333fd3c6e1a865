"""SR-PL and G-GAN, the comparators of PSST, from the command line: recipe in, run out."""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pictures import images
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.noise import ImageNoise
from tellapart.cli.main import main
from tellapart.data.center_crop import is_center_cropped
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.recipe.models import load_data
from tellapart.recipe.recipe import Recipe
from tellapart.types import Decoding
from tiny_models import batch_of

EVALUATOR = {"kind": "dot_product", "mismatched": True, "pretraining_steps": 2, "batch_size": 4, "max_new_tokens": 8}
SAMPLED = {"do_sample": True, "num_beams": 1}
OBJECTIVES = {
    "sr_pl": {"max_new_tokens": 8},
    "g_gan": {"max_new_tokens": 6, "num_rollouts": 2, "evaluator_steps": 2, "prefix_baseline": True},
}
LEARNING = {"sr_pl": ["captioner"], "g_gan": ["captioner", "noise", "discriminator"]}


@pytest.fixture(scope="module")
def cache():
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TELLAPART_CACHE", folder)
        yield


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    """Seven pictures without captions."""
    folder = tmp_path_factory.mktemp("unlabelled")
    for i, picture in enumerate(images(7, seed=5)):
        picture.save(folder / f"web{i}.png")
    return folder


@pytest.fixture
def recipe(materials, tmp_path, unlabelled, cache):
    """A recipe of two steps with the sections that its method has."""

    def write(method, **changes):
        sections = {
            "sr_pl": {
                "own_listener": {"path": str(materials.listener)},
                "unlabelled": {"path": str(unlabelled)},
                "reward": {"cider_d": 1.0},
            },
            "g_gan": {"discriminator": EVALUATOR | SAMPLED, "noise": {"size": 5, "scale": 0.5}, "reward": None},
        }[method]
        own = {"objective": OBJECTIVES[method], "learning_rate": dict.fromkeys(LEARNING[method], 1e-3), **sections}
        return str(materials.recipe(tmp_path, method, **own | changes))

    return write


def history(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def said(capsys, argv):
    assert main(argv) == 2
    return capsys.readouterr().err.strip().splitlines()[-1].removeprefix("error: ")


@pytest.mark.parametrize("method", LEARNING)
def test_a_run_cut_in_two_ends_with_the_same_weights(recipe, tmp_path, method):
    options = {"max_steps": 3, "evaluation": {"split": None}}
    assert main(["train", recipe(method, **options, output_dir=str(tmp_path / "whole"))]) == 0
    parts = recipe(method, **options, output_dir=str(tmp_path / "parts"))
    assert main(["train", parts, "--max_steps", "2"]) == 0
    assert main(["train", parts, "--resume_from_checkpoint", "last"]) == 0
    for part in LEARNING[method]:
        ours, theirs = (
            load_file(tmp_path / name / "checkpoint-3" / part / "model.safetensors") for name in ("whole", "parts")
        )
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        before = load_file(tmp_path / "parts" / "checkpoint-2" / part / "model.safetensors")
        assert any(not torch.equal(ours[name], before[name]) for name in ours), f"{part} learns"


def test_sr_pl_rewards_captions_of_unlabelled_images_by_retrieval_alone(recipe, tmp_path):
    assert main(["train", recipe("sr_pl")]) == 0
    lines = history(tmp_path / "sr_pl")
    for line in (line for line in lines if "loss" in line):
        both = line["rewards/cider_d"] + line["rewards/self_retrieval"]
        assert line["reward"] == pytest.approx(both, abs=1e-6)
        assert line["unlabelled/reward"] == pytest.approx(line["unlabelled/rewards/self_retrieval"], abs=1e-6)
        assert "unlabelled/rewards/cider_d" not in line
        assert line["own_listener/hinge"] == pytest.approx(-line["rewards/self_retrieval"], abs=1e-6)
    assert all("eval_own_listener_R@1" in line for line in lines if "eval_CIDEr" in line)


def test_sr_pl_needs_some_captions(recipe, unlabelled, tmp_path, capsys):
    """Without any, the reward of the recipe was never asked, and nothing said so."""
    path = recipe("sr_pl", data={"path": str(unlabelled)}, unlabelled=None, evaluation={"split": None})
    told = said(capsys, ["train", path, "--reward.cider_d", "0", "--reward.clip_s", "1"])
    assert "method sr_pl asks its reward of images with human captions, but no image of" in told


def test_sr_pl_without_unlabelled_images_is_sr_fl(recipe, tmp_path):
    assert main(["train", recipe("sr_pl"), "--unlabelled", "null", "--evaluation.split", "null"]) == 0
    [line, *_] = [line for line in history(tmp_path / "sr_pl") if "loss" in line]
    assert line["rewards/self_retrieval"] <= 0
    assert not any(name.startswith("unlabelled/") for name in line)


@pytest.mark.parametrize("method", LEARNING)
def test_how_a_step_is_cut_changes_nothing(recipe, tmp_path, method):
    first = []
    for cut in (1, 2):
        size = ["--per_device_train_batch_size", str(4 // cut), "--gradient_accumulation_steps", str(cut)]
        path = recipe(method, output_dir=str(tmp_path / str(cut)), evaluation={"split": None})
        assert main(["train", path, "--max_steps", "1", *size]) == 0
        first.append(history(tmp_path / str(cut))[0])
    for name in ("loss", "reward", "completions/mean_length", *(f"grad_norm/{part}" for part in LEARNING[method])):
        assert first[0][name] == pytest.approx(first[1][name], rel=1e-3)


def test_g_gan_trains_the_evaluator_and_the_noise_too(recipe, tmp_path):
    assert main(["train", recipe("g_gan")]) == 0
    for line in (line for line in history(tmp_path / "g_gan") if "loss" in line):
        assert all(line[f"grad_norm/{part}"] > 0 for part in LEARNING["g_gan"])
        for name in ("reward", "value", "discriminator/real", "discriminator/fake", "discriminator/mismatched"):
            assert 0 <= line[name] <= 1
    folder = tmp_path / "g_gan" / "checkpoint-2"
    noise, captioner = (
        ImageNoise.from_pretrained(folder / "noise"),
        HuggingFaceCaptioner.from_pretrained(folder / "captioner"),
    )
    batch = batch_of(captioner, 3)
    encoded = captioner.encode(batch)
    plain, noisy = (
        captioner.generate(batch, Decoding(max_new_tokens=8), encoded=some)
        for some in (encoded, noise(encoded, 20 * noise.draw(batch.ids, 1)))
    )
    assert plain.texts == captioner.generate(batch, Decoding(max_new_tokens=8)).texts
    assert noisy.texts != plain.texts


def test_g_gan_without_noise(recipe, tmp_path):
    flags = ["--noise", "null", "--learning_rate", "1e-3", "--evaluation.split", "null"]
    assert main(["train", recipe("g_gan"), *flags]) == 0
    assert not (tmp_path / "g_gan" / "checkpoint-2" / "noise").exists()


@pytest.mark.parametrize(
    ("method", "flags", "sentence"),
    [
        ("sr_pl", ["--unlabelled.ranks", "[3, 9]"], "unlabelled.ranks is [3, 9], but there are 7 unlabelled images"),
        ("sr_pl", ["--unlabelled.path", "nowhere"], "nowhere does not exist: check the path."),
        (
            "sr_pl",
            ["--unlabelled.path", "null", "--unlabelled.limit", "3"],
            "unlabelled.path names no images, so the section's other options do",
        ),
        ("sr_pl", ["--own_listener", "null"], "method sr_pl needs a listener of the captioner's own"),
        ("sr_pl", ["--own_listener.train", "all"], "method sr_pl leaves its listener as it is"),
        (
            "sr_pl",
            ["--objective.retrieval_weight", "-1"],
            "--objective.retrieval_weight is '-1', but must be a number of at least 0",
        ),
        (
            "g_gan",
            ["--objective.num_rollouts", "0"],
            "--objective.num_rollouts is '0', but must be a whole number of at least 1",
        ),
        ("g_gan", ["--noise.scale", "0"], "--noise.scale is '0', but must be a number above 0"),
        (
            "g_gan",
            ["--discriminator", "null", "--learning_rate", "1e-3"],
            "method g_gan cannot learn without discriminator",
        ),
    ],
)
def test_what_cannot_be_used_is_one_sentence(recipe, capsys, method, flags, sentence):
    assert said(capsys, ["train", recipe(method), *flags]).startswith(sentence)


def test_unlabelled_images_must_not_be_training_images(recipe, materials, capsys):
    sentence = said(capsys, ["train", recipe("sr_pl"), "--unlabelled.path", str(materials.data)])
    assert "which is also a training image: give other images, with other ids" in sentence


def folder_of(folder, prefix, count, **more):
    """A folder of pictures, with their numbers in a column of a table."""
    folder.mkdir()
    rows = [{"file_name": f"{prefix}{i}.png", "number": f"{prefix}-{i}", **more} for i in range(count)]
    for picture, row in zip(images(count, seed=len(prefix)), rows, strict=True):
        picture.save(folder / row["file_name"])
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_unlabelled_images_are_read_as_the_training_images_are(recipe, tmp_path):
    data = folder_of(tmp_path / "data", "web", 6, says=["a red dog"])
    pool = folder_of(tmp_path / "pool", "other", 5)
    (pool / "other2.png").write_bytes(b"not a picture")
    columns = {"id_column": "number", "caption_column": "says"}
    changes = {"data": {"path": str(data), "center_crop": True, "on_error": "skip"} | columns}
    changes |= {"unlabelled": {"path": str(pool)}, "evaluation": {"split": None}}
    built = Recipe.load(recipe("sr_pl", **changes)).build()
    unlabelled = built.objective.unlabelled.images
    assert unlabelled.ids == ["other-0", "other-1", "other-3", "other-4"]
    assert is_center_cropped(unlabelled)
    assert [name for name, _ in built.skipped] == ["other-2"]


def test_columns_of_the_training_data_are_not_asked_of_other_data(recipe, materials, tmp_path):
    data = folder_of(tmp_path / "data", "web", 6, says=["a red dog"])
    columns = {"id_column": "number", "caption_column": "says"}
    changes = {"data": {"path": str(data)} | columns, "evaluation": {"path": str(materials.data), "split": "val"}}
    built = Recipe.load(recipe("sr_pl", **changes, unlabelled=None)).build()
    assert built.dataset.ids[0] == "web-0"
    assert len(built.watch.evaluation.dataset) == 6
    with pytest.raises(UsageError, match="is not a table and has no column 'number'"):
        Recipe.load(
            recipe("sr_pl", data={"path": str(materials.data), "split": "train", "id_column": "number"})
        ).build()


def test_other_unlabelled_images_are_other_data(recipe):
    def fingerprint(**options):
        built = Recipe.load(recipe("sr_pl")).replaced(options).build()
        return built.data.fingerprint(), TrainingData(built.dataset, built.data.collate).fingerprint()

    all_, alone = fingerprint()
    few, _ = fingerprint(**{"unlabelled.limit": 6})
    none, _ = fingerprint(unlabelled=None)
    assert len({all_, few, none}) == 3
    assert none == alone


@pytest.fixture
def features(materials, unlabelled, tmp_path):
    """Regions of every picture with and without captions, and a COCO file of those without."""
    folder, rng = tmp_path / "features", np.random.default_rng(0)
    folder.mkdir()
    names = [f"9{i}" for i in range(7)]
    records = [{"id": int(name), "file_name": f"web{i}.png"} for i, name in enumerate(names)]
    listed = tmp_path / "image_info_unlabeled2017.json"
    listed.write_text(json.dumps({"images": records, "licenses": [], "categories": []}))
    for split in ("train", "val"):
        names += load_data(str(materials.data), split, images=None, format=None, size="small", limit=None).ids
    for i, name in enumerate(names):
        np.save(folder / f"{name}.npy", rng.normal(size=(2 + i % 2, 5)).astype(np.float32))
    return folder, listed


def test_recurrent_models_over_features_need_no_picture_for_sr_pl(recipe, materials, features, unlabelled, tmp_path):
    """The COCO recipes: captioner, listener, then both, on features alone; unlabelled images are a COCO file."""
    folder, listed = features
    data = {"path": str(materials.data), "split": "train", "features": str(folder)}
    new = {"model_name_or_path": "new/att2in2", "new": {"hidden_size": 8, "min_count": 1}}
    quick = {"data": data, "listener": None, "evaluation": {"split": None}, "reward": None}
    xe = materials.recipe(tmp_path, "xe", captioner=new, **quick)
    assert main(["train", str(xe)]) == 0
    speaker = str(tmp_path / "xe")
    vse = {"path": "new/vse", "vocabulary": speaker, "new": {"word_size": 6, "hidden_size": 10}}
    hinge = {"loss": "hinge", "listener": vse, "data": data, "evaluation": {"split": None}, "max_steps": 1}
    path = tmp_path / "vse.yaml"
    path.write_text(json.dumps(hinge | {"per_device_train_batch_size": 4, "output_dir": str(tmp_path / "vse")}))
    assert main(["train-listener", str(path)]) == 0
    own = {
        "captioner": {"model_name_or_path": speaker},
        "own_listener": {"path": str(tmp_path / "vse")},
        "unlabelled": {"path": str(listed), "images": str(unlabelled)},
    }
    assert main(["train", recipe("sr_pl", **quick | own | {"reward": {"cider_d": 1.0}})]) == 0
    [line, *_] = [line for line in history(tmp_path / "sr_pl") if "loss" in line]
    assert "unlabelled/reward" in line
    own = {"captioner": {"model_name_or_path": speaker}, "listener": {"path": str(materials.listener)}}
    assert main(["train", recipe("g_gan", **quick | own)]) == 0
