"""``tellapart train-listener --pac``: what learns, from which positives, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from command_recipes import load_listener_recipe
from pictures import CAPTIONS, images
from tellapart.cli.main import main
from tellapart.listeners.adapted import ADAPTER
from tellapart.listeners.clip import ClipListener
from tellapart.pretraining import start_captions
from tellapart.recipe import models
from tellapart.recipe.listener_build import generated_captions
from tellapart.recipe.models import load_data

RECIPES = Path(__file__).parents[2] / "recipes"
DATA = {"images": None, "format": None, "size": "small", "limit": None}
PROJECTIONS = {"visual_projection.weight", "text_projection.weight"}


def train_ids(materials) -> list[str]:
    return load_data(str(materials.data), "train", **DATA).ids


@pytest.fixture
def recipe(materials, tmp_path):
    """Two steps, written to a file; changes are top-level keys, None leaves one out."""
    lines = [{"id": n, "file_name": n, "caption": CAPTIONS[i + 3]} for i, n in enumerate(train_ids(materials))]
    # A second caption of the first image, and one of an image that is not trained on.
    lines += [{"id": lines[0]["id"], "caption": "a red dog"}, {"id": "13.png", "caption": "a bus"}]
    captions = tmp_path / "generated.jsonl"
    captions.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def write(name: str = "run", **changes) -> str:
        written = {
            "listener": {"path": str(materials.listener)},
            "pac": {"captions": str(captions)},
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


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def changed(materials, run: Path) -> set[str]:
    before, after = (
        ClipListener.from_pretrained(path).model.state_dict() for path in (materials.listener, run / "listener")
    )
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_the_projections_learn_and_the_rest_stays(recipe, materials, tmp_path):
    assert main(["train-listener", recipe(), "--pac"]) == 0
    run = tmp_path / "run"
    assert changed(materials, run) == PROJECTIONS
    lines = lines_of(run)
    assert [line["step"] for line in lines] == [0, 1, 2, 2]
    for line in lines[1:3]:
        assert line["loss"] == pytest.approx(line["human_loss"] + 0.1 * line["generated_captions_loss"], rel=1e-5)
    assert {"eval_t2i_R@1", "eval_R@1_mean"} <= set(lines[0])
    assert json.loads((run / "run.json").read_text())["recipe"]["loss"] == "pac"
    assert load_listener_recipe([str(run / "recipe.yaml")]).trains == "projections"


def test_it_is_watched_by_the_weights_as_they_are(recipe, materials, tmp_path):
    """The images' embeddings change as the projection does: what was measured is what the saved listener does."""
    assert main(["train-listener", recipe(learning_rate=0.3), "--pac"]) == 0
    last = [line for line in lines_of(tmp_path / "run") if "eval_R@1_mean" in line][-1]
    found = recipe("again", loss="contrastive", pac=None, listener={"path": str(tmp_path / "run")}, max_steps=1)
    assert main(["train-listener", found]) == 0
    first = lines_of(tmp_path / "again")[0]
    assert {key: value for key, value in last.items() if "eval_" in key and "R@" in key} == {
        key: value for key, value in first.items() if "eval_" in key and "R@" in key
    }


@pytest.mark.parametrize("listener", [{}, {"lora": {"r": 2, "alpha": 4}}], ids=["projections", "lora"])
def test_resuming_goes_on_to_the_same_weights(recipe, materials, tmp_path, listener):
    section = {"path": str(materials.listener), **listener}
    whole, halves = (recipe(name, loss="pac", listener=section) for name in ("whole", "halves"))
    assert main(["train-listener", whole]) == 0
    assert main(["train-listener", halves, "--max_steps", "1"]) == 0
    assert main(["train-listener", halves, "--resume_from_checkpoint", "last"]) == 0
    states = [ClipListener.from_pretrained(tmp_path / n / "listener").model.state_dict() for n in ("whole", "halves")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    moved = changed(materials, tmp_path / "whole")
    if listener:
        assert all(name.endswith(("_proj.weight", "fc1.weight", "fc2.weight")) for name in moved)
        assert {name.split(".")[0] for name in moved} == {"text_model", "vision_model"}
        assert (tmp_path / "whole" / "checkpoint-2" / "listener" / ADAPTER).is_file()
    else:
        assert moved == PROJECTIONS


def test_generated_images_are_a_term_of_their_own(recipe, materials, tmp_path, capsys):
    folder = tmp_path / "generated"
    folder.mkdir()
    names = [Path(name).stem for name in train_ids(materials)]
    for name, picture in zip(names, reversed(images(len(names) + 3)), strict=False):
        picture.save(folder / f"{name}.png")
    path = recipe(loss="pac")
    assert main(["train-listener", path, "--pac.images", str(folder)]) == 0
    for line in lines_of(tmp_path / "run")[1:3]:
        parts = [line[f"{name}_loss"] for name in ("human", "generated_captions", "generated_images")]
        assert line["loss"] == pytest.approx(parts[0] + 0.1 * parts[1] + 0.05 * parts[2], rel=1e-5)
    (folder / f"{names[3]}.png").unlink()
    capsys.readouterr()
    assert main(["train-listener", path, "--pac.images", str(folder), "--overwrite_output_dir"]) == 2
    assert f"there is no image named '{names[3]}" in capsys.readouterr().err


def test_a_captioner_writes_the_positives(recipe, materials, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    path, drawn = recipe(pac={"captioner": str(materials.captioner)}), start_captions.start_captions
    assert main(["train-listener", path, "--pac"]) == 0
    assert "generated_captions_loss" in lines_of(tmp_path / "run")[1]
    kept = (tmp_path / "cache" / "discriminators" / "captions").glob("*.jsonl")
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in kept]
    whole, again = sorted(([name for line in found for name in line["ids"]] for found in lines), key=len, reverse=True)
    assert sorted(whole) == sorted(train_ids(materials))
    assert again, "it was never trained, and ends some captions at once: these are drawn again with a least length"
    assert set(again) < set(whole)

    def blank(*arguments):
        found = drawn(*arguments)
        return replace(found, texts=dict.fromkeys(found.texts, " "))

    monkeypatch.setattr(start_captions, "start_captions", blank)
    assert main(["train-listener", path, "--pac", "--overwrite_output_dir"]) == 2
    assert "writes nothing for image '" in capsys.readouterr().err


def test_the_captioner_draws_on_the_accelerator(recipe, materials, monkeypatch):
    place = torch.device("meta")
    monkeypatch.setattr(models, "device", lambda: place)
    found = []

    def drawn(captioner, *rest):
        found.append(next(captioner.parameters()).device)
        return start_captions.StartCaptions({}, {}, None)

    monkeypatch.setattr(start_captions, "start_captions", drawn)
    path = recipe(pac={"captioner": str(materials.captioner)}, loss="pac")
    generated_captions(load_listener_recipe([path]), load_data(str(materials.data), "train", **DATA))
    assert found == [place]


@pytest.mark.parametrize("tower", ["text_model", "vision_model"])
def test_adapters_of_one_tower_are_evaluated(recipe, materials, tmp_path, tower):
    """Images are read by id where nothing of their side learns, and as pictures where it does."""
    lora = {"r": 2, "alpha": 4, "target_modules": rf"{tower}\.encoder\.layers\.\d+\.mlp\.fc[12]"}
    section = {"path": str(materials.listener), "lora": lora}
    assert main(["train-listener", recipe(loss="pac", listener=section)]) == 0
    assert "eval_R@1_mean" in lines_of(tmp_path / "run")[-1]
    assert {name.split(".")[0] for name in changed(materials, tmp_path / "run")} == {tower}


def test_errors_are_sentences(recipe, materials, tmp_path, capsys):
    path, few = recipe(), tmp_path / "few.json"
    first, *others = train_ids(materials)
    few.write_text(json.dumps([{"image_id": name, "caption": "a dog"} for name in others]))
    for words, sentence in (
        ([path], "pac has options, but the loss is another: set loss to pac, or leave pac out."),
        ([recipe("bare", pac=None), "--pac"], "the loss pac needs generated captions: set pac.captions"),
        ([path, "--pac", "--pac.captioner", "x"], "pac.captions and pac.captioner both give the generated captions"),
        (
            [path, "--pac", "--pac.captions", str(few)],
            f"no caption of 1 training image, first {first!r}: ",
        ),
        (
            [path, "--pac", "--pac.caption_weight", "-1"],
            "--pac.caption_weight is '-1', but must be a number of at least 0",
        ),
        ([path, "--pac", "--pac.images", "nowhere"], "the folder of generated images nowhere does not exist"),
        ([path, "--pac", "--per_device_train_batch_size", "1"], "the pac loss compares an image with the others"),
        ([path, "--pac", "--gradient_accumulation_steps", "2"], "compares the images of a batch with each other"),
        ([path, "--pac", "--grammar", "true"], "--grammar trains with the contrastive loss: leave loss out."),
        ([path, "--pac", "--listener.train", "all", "--listener.lora.r", "2"], "trains adapters, not all"),
        (
            [path, "--pac", "--listener.lora.r", "0"],
            "--listener.lora.r is '0', but must be a whole number of at least 1",
        ),
        (
            [recipe("plain", pac=None), "--listener.train", "projections"],
            "listener.train projections is of the loss pac",
        ),
        ([recipe("plain", pac=None), "--listener.lora.r", "2"], "listener.lora is of the loss pac"),
    ):
        assert main(["train-listener", *words]) == 2, words
        said = capsys.readouterr().err
        assert sentence in said, (sentence, said)
        assert said.strip().splitlines()[-1].startswith("error: ")
    assert main(["train-listener", "--help"]) == 0
    assert "--pac for short" in " ".join(capsys.readouterr().out.split())


def test_the_shipped_recipes():
    coco, world = (
        load_listener_recipe([str(RECIPES / f"{name}.yaml")]) for name in ("coco_clip_pac", "world_listener_pac")
    )
    assert (coco.pac.caption_weight, coco.pac.image_weight, coco.trains) == (0.1, 0.05, "projections")
    assert (coco.training.per_device_train_batch_size, coco.training.learning_rate) == (256, 1e-4)
    assert (world.listener.path, world.pac.captioner, world.trains) == ("world/listener", "world/xe", "projections")
