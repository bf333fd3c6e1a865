"""What can be wrong with what a user gives: one sentence with the remedy, exit code 2, nothing half-written."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path

import pytest

from tellapart.cli.main import main
from tellapart.cli.score import score_captioner
from tellapart.errors import UsageError
from tellapart.recipe.score_options import ScoreOptions

REMARKS = ("CIDEr-D takes its document frequencies from only 8 images: rewards will be coarse.",)
"""Warnings that may come before the error."""


@pytest.fixture
def fails(capsys):
    """Runs a command that must end with one sentence; gives the sentence."""

    def run(*words) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2
        said = capsys.readouterr()
        lines = [line for line in said.err.splitlines() if line not in REMARKS]
        assert "Traceback" not in said.err
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        assert lines[0].endswith((".", "?"))
        return lines[0].removeprefix("error: ")

    return run


@pytest.fixture
def photos(materials, tmp_path):
    """A copy of the data to spoil; gives its json."""
    shutil.copytree(materials.photos, tmp_path / "photos")
    return tmp_path / "photos" / "data.json"


def change(path: Path, edit) -> None:
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


def left_behind(folder: Path) -> list[Path]:
    """Hidden files and folders, which is what half-written ones are."""
    return [path for path in folder.rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--objective.max_new_tokens", "1000"],
            "max_new_tokens is 1000, but the model can hold 96 tokens: give at most 96",
        ),
        (["--objective.num_beams", "100000"], "num_beams is 100000: give at most 1000"),
        (["--max_steps", "9" * 30], "--max_steps is 99999"),
    ],
)
def test_more_than_a_model_holds(materials, tmp_path, fails, options, said):
    recipe = materials.recipe(tmp_path, "dico", evaluation={"split": None})
    assert said in fails("train", recipe, *options)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_memory_that_does_not_suffice(monkeypatch, fails, error):
    def dispatch(words):
        raise error

    monkeypatch.setattr("tellapart.cli.main.dispatch", dispatch)
    assert "memory does not suffice" in fails("score", "x")


def test_another_error_of_torch_keeps_its_trace(monkeypatch):
    def dispatch(words):
        raise RuntimeError("size mismatch")

    monkeypatch.setattr("tellapart.cli.main.dispatch", dispatch)
    with pytest.raises(RuntimeError, match="size mismatch"):
        main(["score", "x"])


@pytest.mark.parametrize("method", ["xe", "dico"])
def test_a_broken_image_in_the_data(materials, photos, tmp_path, fails, method):
    (photos.parent / "05.png").write_bytes((photos.parent / "05.png").read_bytes()[:60])
    recipe = materials.recipe(tmp_path, method, data={"path": str(photos)}, evaluation={"split": None})
    said = fails("train", recipe)
    assert f"{photos.parent / '05.png'} is not a readable image" in said
    assert "repair or remove it" in said
    assert left_behind(tmp_path) == []
    assert not list((tmp_path / method).glob("checkpoint-*"))


def test_a_missing_image_in_the_data(materials, photos, tmp_path, fails):
    (photos.parent / "05.png").unlink()
    recipe = materials.recipe(tmp_path, "dico", data={"path": str(photos)})
    said = fails("train", recipe)
    assert said.startswith(f"{photos} names 1 missing image (of 8), first")
    assert str(photos.parent / "05.png") in said
    assert not (tmp_path / "dico").exists()


def test_references_without_their_images(materials, photos, tmp_path, fails):
    for picture in photos.parent.glob("*.png"):
        picture.unlink()
    said = fails("train", materials.recipe(tmp_path, "xe", data={"path": str(photos)}))
    assert str(photos) in said
    assert "give the folder that holds the images" in said


def test_images_without_references(materials, photos, tmp_path, fails):
    change(photos, lambda value: value["images"][3].update(sentences=[]))
    said = fails("train", materials.recipe(tmp_path, "xe", data={"path": str(photos)}))
    assert said.startswith("method xe needs reference captions, but image '3' of data.json (train) has none")
    dico = materials.recipe(tmp_path, "dico", data={"path": str(photos)})
    assert fails("train", dico, "--dry_run").startswith("reward cider_d needs reference captions, but image '3'")
    assert main(["train", str(dico), "--dry_run", "--reward.cider_d", "0"]) == 0  # CLIP-S alone needs none


def test_data_that_are_not_there_or_empty(materials, photos, tmp_path, fails):
    recipe = materials.recipe(tmp_path, "xe")
    assert fails("train", recipe, "--data.path", tmp_path / "no.json") == (
        f"{tmp_path / 'no.json'} does not exist: check the path."
    )
    # also where the recipe selects by what only the built-in world measures
    world = ("train", "world_ved_dico_truth", "--output_dir", tmp_path / "x", "--data.path", tmp_path / "no.json")
    assert fails(*world) == f"{tmp_path / 'no.json'} does not exist: check the path."
    (tmp_path / "empty").mkdir()
    assert "holds no images" in fails("train", recipe, "--data.path", tmp_path / "empty")
    assert "has no split 'tset', only train, val" in fails("train", recipe, "--data.split", "tset")
    change(photos, lambda value: value["images"].clear())
    assert str(photos) in fails("train", recipe, "--data.path", photos)
    assert "--data.limit is '0', but must be a whole number of at least 1" in fails(
        "train", recipe, "--data.limit", "0"
    )


def test_a_caption_of_400_words_is_cut(materials, photos, tmp_path):
    change(photos, lambda value: value["images"][0]["sentences"][0].update(raw="red star " * 200))
    recipe = materials.recipe(tmp_path, "xe", data={"path": str(photos)})
    assert main(["train", str(recipe)]) == 0
    logged = [json.loads(line) for line in (tmp_path / "xe" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["loss"] < 1e4 for line in logged if "loss" in line)
    captions = {str(i): "a red star on a table" for i in range(8)} | {"1": "red star " * 200}
    (tmp_path / "given.json").write_text(json.dumps(captions))
    words = ["--data", str(photos), "--split", "train", "--listener", str(materials.listener)]
    assert main(["score", str(tmp_path / "given.json"), *words]) == 0


def test_models_that_are_not_there(materials, tmp_path, fails):
    recipe = materials.recipe(tmp_path, "dico")
    absent = tmp_path / "a" / "checkpoint-9"
    assert fails("train", recipe, "--captioner.model_name_or_path", absent) == (
        f"captioner folder {absent} does not exist: correct the path."
    )
    said = fails("train", recipe, "--captioner.model_name_or_path", "some/model-nobody-has")
    assert "some/model-nobody-has" in said
    assert "check the spelling" in said
    assert str(absent) in fails("train", recipe, "--listener.path", absent)
    assert str(absent) in fails("train", recipe, "--evaluation.judge", absent)
    assert "checkpoint-9" in fails("train", recipe, "--resume_from_checkpoint", absent)
    assert "finds no checkpoint" in fails("train", recipe, "--resume_from_checkpoint", "last")
    assert not (tmp_path / "dico").exists()
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "run.json").write_text("{}")
    said = fails("caption", materials.photos, "--captioner", tmp_path / "young")
    assert said.startswith(f"the run {tmp_path / 'young'} has no checkpoint yet")


def test_sections_that_contradict_each_other(materials, tmp_path, fails):
    recipe = materials.recipe(tmp_path, "dico")
    assert fails("train", recipe, "--reward.clip_s", "0", "--reward.cider_d", "0").startswith(
        "method dico needs a reward: add one of clip_s, ref_clip_s, "
    )
    xe = materials.recipe(tmp_path, "xe")
    assert fails("train", xe, "--reward.clip_s", "1").startswith("method xe takes no reward")
    assert fails("train", recipe, "--listener.path", "null").startswith("reward.clip_s needs a listener")
    assert "num_beams" in fails("train", recipe, "--objective.num_beams", "1")
    assert "at least 1" in fails("train", recipe, "--evaluation.num_beams", "0")
    assert "--captioner.lora.r is '0', but must be a whole number of at least 1" in fails(
        "train", recipe, "--captioner.lora.r", "0"
    )
    both = ("--overwrite_output_dir", "--resume_from_checkpoint", "last")
    assert "exclude each other" in fails("train", recipe, *both)
    (tmp_path / "file").write_text("")
    assert "is a file: name a folder" in fails("train", recipe, "--output_dir", tmp_path / "file")
    assert not (tmp_path / "dico").exists()


def test_captions_of_broken_and_missing_images(materials, photos, tmp_path, fails, capsys):
    (photos.parent / "05.png").write_bytes(b"no picture")
    words = ("--captioner", materials.captioner, "--num_beams", "1", "--output", tmp_path / "out.json")
    capsys.readouterr()
    assert main(["caption", str(photos.parent), *map(str, words), "--strict"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"error: {photos.parent / '05.png'} is not a readable image")
    assert said[1].startswith("error: 1 of 14 images could not be read and have no caption")
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [row["image_id"] for row in rows] == [f"{i:02}" for i in range(14) if i != 5]
    out = tmp_path / "none.json"
    words = ("--captioner", materials.captioner, "--output", out)
    assert "does not exist: name an image file" in fails("caption", tmp_path / "no.png", *words)
    (tmp_path / "empty").mkdir()
    assert "holds no images" in fails("caption", tmp_path / "empty", *words)
    assert "no images were given" in fails("caption", *words)
    assert "name a .json, .jsonl, .csv or .parquet file" in fails(
        "caption", photos.parent, *words[:3], tmp_path / "x.txt"
    )
    assert not out.exists()
    assert left_behind(tmp_path) == []


def test_a_place_that_cannot_be_written_to(materials, tmp_path, fails):
    (tmp_path / "file").write_text("")
    words = ("--captioner", materials.captioner, "--num_beams", "1")
    said = fails("caption", materials.photos / "00.png", *words, "--output", tmp_path / "file" / "out.json")
    assert said == f"{tmp_path / 'file'} cannot be written to (Not a directory): choose another --output."


@pytest.mark.parametrize("out", ["jsonl", "webdataset"])
def test_a_refused_command_leaves_no_folder_of_its_output(out, materials, tmp_path, fails):
    place = tmp_path / "new" / ("captions.jsonl" if out == "jsonl" else "shards")
    words = ("--captioner", materials.captioner, "--out", out, "--output", place)
    assert "max_new_tokens" in fails("caption", materials.photos / "00.png", *words, "--max_new_tokens", "100000")
    assert not (tmp_path / "new").exists()


def test_scores_and_comparisons_of_what_does_not_fit(materials, tmp_path, fails):
    assert "does not exist" in fails("compare", tmp_path / "no")
    assert "no runs were named" in fails("compare")
    assert "no runs were named" in fails("report")
    data = ("--data", materials.data, "--split", "val")
    (tmp_path / "few.json").write_text(json.dumps([{"image_id": 8, "caption": "a red star"}]))
    assert "5 images without a caption ('9', '10'" in fails("score", tmp_path / "few.json", *data)
    long = [{"image_id": f"{'an id of many words ' * 30}{i}", "caption": "a red star"} for i in range(2)]
    long.append({"image_id": 8, "caption": "a red star"})
    (tmp_path / "long.json").write_text(json.dumps(long))
    told = fails("score", tmp_path / "long.json", *data)
    assert "'an id of ...y words 1'" in told
    assert len(told) - len(str(tmp_path)) < 300
    (tmp_path / "twice.json").write_text(json.dumps([{"image_id": 8, "caption": "a"}] * 2))
    assert "1 image captioned more than once ('8')" in fails("score", tmp_path / "twice.json", *data)
    (tmp_path / "form.json").write_text(json.dumps([{"image": 8}]))
    assert "write COCO results" in fails("score", tmp_path / "form.json", *data)
    (tmp_path / "broken.json").write_text("[{")
    assert "is not readable JSON" in fails("score", tmp_path / "broken.json", *data)
    assert "does not exist" in fails("score", tmp_path / "absent.json", *data)
    assert "give --data" in fails("score", materials.captioner)


def test_damaged_weights_of_a_listener(materials, tmp_path, fails):
    shutil.copytree(materials.listener, tmp_path / "listener")
    (tmp_path / "listener" / "model.safetensors").write_bytes(b"junk")
    said = fails("train", materials.recipe(tmp_path, "dico"), "--listener.path", tmp_path / "listener")
    assert said.startswith(f"the listener {tmp_path / 'listener'} cannot be loaded")
    assert not (tmp_path / "dico").exists()


def test_a_damaged_stage_of_the_world(materials, tmp_path, fails, monkeypatch):
    stage = tmp_path / "stage"
    shutil.copytree(materials.listener, stage)
    monkeypatch.setattr("tellapart.world.stages.resolve", lambda name, size: stage)
    weights = (stage / "model.safetensors").read_bytes()
    recipe = materials.recipe(tmp_path, "dico")
    for damage in (b"junk", weights[:-9]):
        (stage / "model.safetensors").write_bytes(damage)
        said = fails("train", recipe, "--listener.path", "world/listener")
        assert said == f"{stage} is damaged: delete it, and world/listener is built again."
    (stage / "model.safetensors").write_bytes(weights)
    assert fails("train", recipe, "--listener.path", "world/listener").startswith(f"{stage} holds no probe.json")
    (stage / "probe.json").write_text('{"accuracy": {}, "size": "small"}')
    assert main(["train", str(recipe), "--listener.path", "world/listener", "--dry_run"]) == 0


@pytest.mark.parametrize(("processes", "told"), [("2", True), ("1", False)])
def test_a_process_that_is_left_alone_says_so(monkeypatch, processes, told):
    def dispatch(words):
        raise RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:42")

    monkeypatch.setenv("WORLD_SIZE", processes)
    monkeypatch.setattr("tellapart.cli.main.dispatch", dispatch)
    if told:
        assert main(["train", "x"]) == 2
    else:
        with pytest.raises(RuntimeError, match="closed by peer"):
            main(["train", "x"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["score", "x"], "score does not share its work between processes of a launch: start it once"),
        (
            ["caption", "x", "--captioner", "y"],
            "caption does not share its work .*: give --num_processes, or --by_shard",
        ),
    ],
)
def test_commands_that_each_process_would_do_as_a_whole(words, said, monkeypatch, fails):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert re.search(said, fails(*words))


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_measured(tmp_path, monkeypatch):
    """Captions and figures were lost. Root may write anywhere, so the system's answer is given here."""

    def refuse(dir):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tellapart.files.tempfile.TemporaryDirectory", refuse)
    monkeypatch.setattr("tellapart.recipe.score.measure", lambda *given: pytest.fail("measured"))
    with pytest.raises(UsageError, match=f"{tmp_path} cannot be written to .Read-only file system.: choose another"):
        score_captioner("world/xe", ScoreOptions(output_dir=tmp_path / "new"))


def test_a_second_run_that_was_forgotten(fails, tmp_path):
    (tmp_path / "a.jsonl").touch()
    said = fails("judge", tmp_path / "a.jsonl", "--images", "x")
    assert "is not the folder of a study: name one, or two runs or files of captions" in said
