"""Every metric that needs the images, in one call: of a file, of a captioner, and during training."""

from __future__ import annotations

import io
import json
import shutil
import tarfile

import pytest

from listeners.openai_clip import base_folder, original_clip, saved
from tellapart.cli.main import main
from tiny.matchers import tiny_blip2_itm, tiny_blip_itm

SEEN = (
    "listener_R@1",
    "listener_i2t_R@1",
    "listener_CLIPScore",
    "listener_RefCLIPScore",
    "listener_CLIPScore_sentences",
)
SEEN += ("PAC-S", "RefPAC-S", "PAC-S_sentences", "ITM", "ITM_logit", "ITM_rejected_objects")
READ = ("Bleu_4", "ROUGE_L", "CIDEr", "Self-BLEU", "distinct_captions")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """PAC-S's file with its base, and a matcher, as options."""
    root = tmp_path_factory.mktemp("scorers")
    saved(root / "pac.pth", {name: value.half() for name, value in original_clip().state_dict().items()}, nested=True)
    return {"pac": root / "pac.pth", "pac_base": base_folder(root / "base"), "itm": tiny_blip_itm(root / "itm")}


def flags(models) -> list:
    return [word for name, path in models.items() for word in (f"--{name}", path)]


def run(*words) -> int:
    return main([str(word) for word in words])


def test_a_file_is_scored_with_everything_in_one_call(materials, models, tmp_path, capsys):
    path = tmp_path / "mine.json"
    captions = {f"{i:02}": f"a red star on a table. two dogs by {i}" for i in range(8, 14)}
    path.write_text(json.dumps([{"file_name": f"{i}.png", "caption": caption} for i, caption in captions.items()]))
    words = ("--data", materials.data, "--split", "val", "--listener", materials.listener, *flags(models))
    assert run("score", path, *words, "--json", "--output_dir", tmp_path / "out") == 0
    told = json.loads(capsys.readouterr().out)
    assert not [key for key in (*SEEN, *READ) if key not in told["metrics"]]
    described = told["details"]["models"]
    assert described["PAC-S"]["model"] == "pac.pth"
    assert described["PAC-S"]["w"] == 2.0
    assert described["ITM"]["model"] == "itm"
    assert described["PAC-S"]["backbone"] == "clip, 2 layers of width 128, patch 8, 16 pixels"
    assert described["listener_CLIPScore"]["prefix"] == "A photo depicts "
    assert all(set(found) >= {"weights", "dtype", "truncated"} for found in described.values())
    assert "PAC-S by pac.pth [" in told["protocol"]["line"]
    assert "ITM by itm [" in told["protocol"]["line"]

    assert run("score", path, *words, "--all_metrics", "--name", "again", "--output_dir", tmp_path / "again") == 0
    shown = capsys.readouterr().out
    assert all(label in shown for label in ("RefPAC-S", "listener RefCLIP-S", "ITM %", "ITM rejects %"))
    assert run("compare", tmp_path / "out", tmp_path / "again", "--format", "json") == 0
    difference = json.loads(capsys.readouterr().out)["runs"][1]["difference"]
    assert difference["PAC-S"] == pytest.approx({"value": 0.0, "low": 0.0, "high": 0.0, "p_value": 1.0})


def packed(path, files):
    """A tar of the files; name -> content."""
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("form", ["sidecars", "webdataset", "written"])
def test_a_folder_of_captions_is_scored_like_the_file(form, materials, tmp_path, capsys):
    """It was taken for a model, whose config.json was missing."""
    photos, path, folder = tmp_path / "photos", tmp_path / "mine.json", tmp_path / "v1.captions"
    photos.mkdir()
    folder.mkdir()
    (folder / "captions.review.csv").write_text("photo,caption\n")
    captions = {f"p{i}": f"a red star by {i} dogs" for i in range(4)}
    for i, name in enumerate(captions):
        shutil.copy(materials.photos / f"{i:02}.png", photos / f"{name}.png")
    path.write_text(json.dumps([{"image_id": name, "caption": caption} for name, caption in captions.items()]))
    if form == "webdataset":
        files = {f"{name}.txt": caption.encode() for name, caption in captions.items()}
        files |= {f"{name}.png": (photos / f"{name}.png").read_bytes() for name in captions}
        packed(folder / "00000.tar", dict(sorted(files.items())))
    elif form == "written":
        shutil.copy(path, folder / "captions_results.json")
    else:
        for name, caption in captions.items():
            (folder / f"{name}.txt").write_text(caption + "\n")
    words = ("--data", photos, "--listener", materials.listener, "--bootstrap", 0, "--json")
    told = []
    for word in (path, folder):
        assert run("score", word, *words, "--name", "mine") == 0
        told.append(json.loads(capsys.readouterr().out))
    assert "listener_R@1" in told[0]["metrics"]
    assert told[0] == told[1]
    assert run("score", folder, *words, "--num_beams", 2) == 2
    assert "v1.captions holds captions, but --num_beams is for drawing them" in capsys.readouterr().err


def test_a_folder_without_captions_is_still_taken_for_a_model(materials, tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("x")
    assert run("score", tmp_path / "notes", "--data", materials.data, "--split", "val", "--bootstrap", 0) == 2
    assert "add or repair config.json" in capsys.readouterr().err


def test_other_models_are_not_compared(materials, models, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps([{"file_name": f"{i:02}.png", "caption": "a red star"} for i in range(8, 14)]))
    for name, itm in (("a", models["itm"]), ("b", tiny_blip2_itm(tmp_path / "other"))):
        words = ("--data", materials.data, "--split", "val", "--itm", itm, "--listener", materials.listener)
        assert run("score", path, *words, "--output_dir", tmp_path / name) == 0
    capsys.readouterr()
    assert run("compare", tmp_path / "a", tmp_path / "b") == 2
    said = capsys.readouterr().err
    assert "measured_by {'ITM': 'itm [" in said
    assert "CLIPScore" not in said  # the same retriever measured both


def test_a_training_is_watched_by_them_and_scored_by_its_own_models(materials, models, tmp_path, capsys):
    evaluation = {"split": "val", "max_new_tokens": 8} | {name: str(path) for name, path in models.items()}
    recipe = materials.recipe(tmp_path, "xe", evaluation=evaluation, max_steps=1)
    assert run("train", recipe) == 0
    folder = tmp_path / "xe"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    watched = [line for line in lines if "eval_CIDEr" in line]
    assert not [key for key in SEEN if f"eval_{key}" not in watched[-1]]
    capsys.readouterr()
    assert run("score", folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)["metrics"]
    for key in ("PAC-S", "RefPAC-S", "ITM", "listener_RefCLIPScore"):
        assert found[key] == pytest.approx(watched[-1][f"eval_{key}"], abs=1e-6), key


def test_a_gallery_of_more_images_than_there_are(materials, tmp_path, capsys):
    captions, ids = tmp_path / "captions.json", [f"{i:02}.png" for i in range(8, 14)]
    captions.write_text(json.dumps([{"file_name": name, "caption": f"a dog {name}"} for name in ids]))
    words = ("score", captions, "--data", materials.data, "--split", "val", "--listener", materials.listener)
    assert run(*words, "--hard_gallery", len(ids) - 1) == 0
    capsys.readouterr()
    assert run(*words, "--hard_gallery", len(ids)) == 2
    assert f"--hard_gallery is {len(ids)}, but there are {len(ids)} images" in capsys.readouterr().err


def test_n_grams_are_blocked_as_the_recipe_or_the_command_says(materials, tmp_path, capsys):
    evaluation = {"split": "val", "max_new_tokens": 8, "num_beams": 2, "no_repeat_ngram_size": 1, "judge": None}
    recipe = materials.recipe(tmp_path, "xe", evaluation=evaluation, max_steps=1)
    assert run("train", recipe) == 0
    folder = tmp_path / "xe"
    for words, said in ((), "no_repeat_ngram_size=1"), (("--no_repeat_ngram_size", "0"), "beam 2"):
        assert run("score", folder, *words, "--output_dir", tmp_path / f"kept{len(words)}") == 0
        written = next((tmp_path / f"kept{len(words)}").rglob("metrics.json"))
        protocol = json.loads(written.read_text())["protocol"]
        assert said in protocol["decoding"]
        assert ("no_repeat" in protocol["decoding"]) == (not words)
        captions = json.loads(next(written.parent.glob("captions_results.json")).read_text())
        repeats = [len(set(c["caption"].split())) < len(c["caption"].split()) for c in captions]
        assert words or not any(repeats)
    capsys.readouterr()
    assert run("score", folder, "--no_repeat_ngram_size", "-1") == 2
    assert "--no_repeat_ngram_size is -1" in capsys.readouterr().err


def test_a_checkpoint_file_can_be_the_reward(materials, models, tmp_path):
    listener = {"path": str(models["pac"]), "base": str(models["pac_base"])}
    recipe = materials.recipe(tmp_path, "scst", listener=listener, reward={"clip_s": 1.0}, max_steps=1)
    assert run("train", recipe) == 0


def test_what_cannot_be_loaded_is_said_in_a_sentence(materials, models, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps([{"file_name": f"{i:02}.png", "caption": "a red star"} for i in range(8, 14)]))
    words = ("score", path, "--data", materials.data, "--split", "val")
    assert run(*words, "--pac", models["pac"]) == 2  # no network: the default base cannot be had
    assert "--pac_base" in capsys.readouterr().err
    assert run(*words, "--itm", materials.listener) == 2
    assert "is a dual encoder, which gives no probability of a match" in capsys.readouterr().err
    assert run("score", path, "--references", materials.data, "--itm", models["itm"]) == 2
    assert "--itm does not go with --references" in capsys.readouterr().err
    assert run(*words, "--pac", materials.listener, "--pac_base", materials.listener) == 2
    assert "--pac_base is for .pth files" in capsys.readouterr().err
