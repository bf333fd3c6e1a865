"""``tellapart score RUN`` under a named protocol, and files of captions on images in other forms than COCO's."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet
import pytest

from tellapart.captioning.apart import Apart
from tellapart.captioning.summary import Summarizer
from tellapart.cli.main import main
from tellapart.data.load import load_dataset
from tellapart.evaluation.sets import draw_sets
from tellapart.listeners.clip import ClipListener
from tellapart.recipe.feature_inputs import collate_of
from tellapart.recipe.models import load_captioner
from tellapart.types import Decoding
from tiny.language_models import saved as saved_language_model


def run(*words) -> int:
    return main([str(word) for word in words])


def test_a_protocol_chooses_split_and_decoding(materials, tmp_path, capsys):
    words = ("score", materials.captioner, "--data", materials.data, "--protocol", "coco-karpathy-val")
    assert run(*words) == 2  # before anything is captioned
    assert "(6 images instead of 5,000)" in capsys.readouterr().err
    assert run(*words, "--on_mismatch", "skip", "--json", "--output_dir", tmp_path) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["protocol"]["images"] == 6
    assert told["protocol"]["decoding"].startswith("beam 5, max_new_tokens=30")
    assert told["protocol"]["line"].startswith("NOT COCO captions, Karpathy validation split (6 images instead")
    (folder,) = (tmp_path / "eval").iterdir()
    assert json.loads((folder / "metrics.json").read_text())["metrics"] == told["metrics"]


def test_captions_in_a_table_are_measured_by_a_retriever(materials, tmp_path, capsys):
    path = tmp_path / "out.jsonl"
    lines = [{"file_name": f"elsewhere/{i:02}.png", "caption": f"a red star {i}"} for i in range(8, 14)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--data", materials.data, "--split", "val", "--listener", materials.listener, "--json")
    assert run("score", path, *words) == 0
    told = json.loads(capsys.readouterr().out)
    assert "listener_R@1" in told["metrics"]
    assert run("score", path, *words, "--cider_df", "x.npz") == 2
    assert "--cider_df needs --references" in capsys.readouterr().err


def test_scored_files_are_compared_with_p_values(tmp_path, capsys):
    references = {str(i): [f"a red star number {i % 7}", "a star"] for i in range(30)}
    (tmp_path / "refs.json").write_text(json.dumps(references))
    (tmp_path / "good.json").write_text(json.dumps({i: texts[0] for i, texts in references.items()}))
    (tmp_path / "poor.json").write_text(json.dumps(dict.fromkeys(references, "a blue ring")))
    for name in ("good", "poor"):
        words = ("--references", tmp_path / "refs.json", "--output_dir", tmp_path / name)
        assert run("score", tmp_path / f"{name}.json", *words) == 0
    capsys.readouterr()
    assert run("compare", tmp_path / "good", tmp_path / "poor", "--format", "json", "--samples", "999") == 0
    told = json.loads(capsys.readouterr().out)
    for key in ("Bleu_4", "CIDEr", "ROUGE_L"):
        difference = told["runs"][1]["difference"][key]
        assert difference["high"] < 0
        assert difference["p_value"] == 0.002
    assert "p_value" not in told["runs"][1]["difference"]["Self-BLEU"]
    assert run("compare", tmp_path / "good", tmp_path / "poor") == 0
    assert "p=0.00" in capsys.readouterr().out


def test_captions_of_some_images_are_scored_on_these(materials, tmp_path, capsys):
    captions = {8: "a red star", 9: "a blue ring", 11: "a green moon"}
    rows = [{"image_id": i, "caption": text} for i, text in captions.items()]
    (tmp_path / "some.json").write_text(json.dumps([*rows, {"image_id": 8, "caption": "second"}]))
    (tmp_path / "exact.json").write_text(json.dumps(rows))
    words = ("--data", materials.data, "--split", "val", "--listener", materials.listener, "--json")
    assert run("score", tmp_path / "some.json", *words) == 2
    said = capsys.readouterr().err
    assert "3 images without a caption ('10', '12', '13') and 1 image captioned more than once ('8')" in said
    assert "--on_mismatch skip to score the 3 images that can be" in said
    assert run("score", tmp_path / "some.json", *words, "--on_mismatch", "skip") == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert "left out: 3 images without a caption" in told.err
    assert found["protocol"]["images"] == 3
    assert "left out: 3 images without a caption" in found["protocol"]["line"]
    data = json.loads(materials.data.read_text())  # the same as data that hold these images only
    data["images"] = [entry for entry in data["images"] if entry["imgid"] in captions]
    (tmp_path / "data.json").write_text(json.dumps(data))
    words = ("--data", tmp_path / "data.json", "--images", materials.photos, *words[2:])
    assert run("score", tmp_path / "exact.json", *words) == 0
    exact = json.loads(capsys.readouterr().out)
    assert found["metrics"] == exact["metrics"]
    assert found["protocol"]["digest"] == exact["protocol"]["digest"]


def test_misfits_are_told_before_models_are_loaded(materials, tmp_path, capsys):
    (tmp_path / "few.json").write_text(json.dumps([{"image_id": 8, "caption": "a red star"}]))
    assert run("score", tmp_path / "few.json", "--data", materials.data, "--listener", tmp_path / "none") == 2
    assert "images without a caption" in capsys.readouterr().err


def test_what_models_measure_has_intervals(materials, tmp_path, capsys):
    rows = [{"image_id": i, "caption": f"a red star {i % 3}"} for i in range(8, 14)]
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    words = ("score", tmp_path / "mine.json", "--data", materials.data, "--listener", materials.listener)
    assert run(*words, "--json", "--output_dir", tmp_path) == 0
    found = json.loads(capsys.readouterr().out)
    (folder,) = (tmp_path / "eval").iterdir()
    values = pyarrow.parquet.read_table(folder / "per_image.parquet")["listener_CLIPScore"].to_numpy()
    drawn = np.random.default_rng(0).integers(6, size=(1000, 6))
    means = [np.mean(values[own]) for own in drawn]
    assert found["intervals"]["listener_CLIPScore"] == pytest.approx(list(np.percentile(means, [2.5, 97.5])))
    assert found["details"]["bootstrap"]["samples"] == 1000
    assert run(*words) == 0
    assert "95 % interval" in capsys.readouterr().out
    assert run(*words, "--json", "--bootstrap", "0") == 0
    assert "intervals" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [
        ("score", "x", "--batch_size", "0"),
        ("score", "x", "--num_beams", "0"),
        ("score", "x", "--max_new_tokens", "-1"),
        ("score", "x", "--seed", "-1"),
        ("compare", "x", "--seed", "-1"),
        ("report", "x", "--seed", "-1"),
        ("report", "x", "--num_images", "-3"),
    ],
)
def test_numbers_that_cannot_be_used(words, capsys):
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {words[2]} is {words[3]}: give ")
    assert said.count("\n") == 1


def test_images_without_references_are_an_error_or_left_out(materials, tmp_path, capsys):
    """Of a file of captions and of a captioner, with data whose other images have some."""
    data = json.loads(materials.data.read_text())
    bare = next(entry for entry in data["images"] if entry["imgid"] == 9)
    bare["sentences"] = []
    (tmp_path / "data.json").write_text(json.dumps(data))
    (tmp_path / "c.json").write_text(json.dumps([{"image_id": i, "caption": f"a red star {i}"} for i in range(8, 14)]))
    words = (
        "--data",
        tmp_path / "data.json",
        "--images",
        materials.data.parent,
        "--split",
        "val",
        "--json",
        "--bootstrap",
        0,
    )
    for given in ((tmp_path / "c.json",), (materials.captioner, "--max_new_tokens", 4)):
        assert run("score", *given, *words) == 2
        assert "'9'" in capsys.readouterr().err
        assert run("score", *given, *words, "--on_mismatch", "skip") == 0
        told = capsys.readouterr()
        assert json.loads(told.out)["protocol"]["images"] == 5
        assert "1 image without references" in told.err
        assert "left out" in told.err
    for entry in data["images"]:
        entry["sentences"] = []
    (tmp_path / "data.json").write_text(json.dumps(data))
    assert (
        run("score", tmp_path / "c.json", *words, "--listener", materials.listener) == 0
    )  # none has any, so none lacks them
    assert json.loads(capsys.readouterr().out)["protocol"]["images"] == 6


def test_captions_told_apart_without_training_are_measured(materials, tmp_path, capsys):
    words = ("score", materials.captioner, "--data", materials.data, "--split", "val", "--max_new_tokens", 6)
    words += ("--listener", materials.listener, "--bootstrap", 0)
    apart = ("--apart", "--num_beams", 3, "--batch_size", 6)
    assert run(*words, *apart, "--output_dir", tmp_path) == 0
    (folder,) = (tmp_path / "eval").iterdir()
    decoding = json.loads((folder / "metrics.json").read_text())["protocol"]["decoding"]
    assert decoding.startswith("beam 3, max_new_tokens=6")
    listener = ClipListener.from_pretrained(materials.listener)
    assert decoding.endswith(f"told apart from at most 20 look-alikes by {listener.source}")
    dataset = load_dataset(materials.data, split="val")
    captioner = load_captioner(str(materials.captioner))
    wanted = Apart(captioner, listener, num_beams=3, max_new_tokens=6)(list(dataset))
    written = {row["image_id"]: row["caption"] for row in json.loads((folder / "captions_results.json").read_text())}
    assert {str(name): said for name, said in written.items()} == {one.id: one.caption for one in wanted}
    capsys.readouterr()
    captions = tmp_path / "c.json"
    captions.write_text("[]")
    for some, sentence in (
        ((*words, "--verifier", "x"), "--verifier is for telling look-alikes apart: add --apart"),
        ((*words, "--apart", "--rerank", "world_ved_scst_clip"), "--apart chooses by look-alikes"),
        ((*words[:8], "--apart"), "--apart needs a listener"),
        (("score", captions, *words[2:], "--apart"), "holds captions, but --apart is for drawing them"),
        (("score", captions, *words[2:], "--rerank", "x"), "holds captions, but --rerank is for drawing them"),
        (("score", captions, *words[2:]), "holds captions, but --max_new_tokens is for drawing them"),
        (("score", tmp_path / "none.json", *words[2:]), "does not exist: name a run, a model or a file of captions."),
        ((*words[:8], "--text_pooling", "sentence_max"), "--text_pooling says how a retriever reads captions"),
        (("score", captions, "--references", materials.data, "--apart"), "--apart does not go with --references"),
        ((*words, "--apart", "--verifier", materials.listener), "has cosines and does not decide what is true"),
    ):
        assert run(*some) == 2
        assert sentence in capsys.readouterr().err


def test_one_caption_of_sampled_ones_is_measured(materials, tmp_path, capsys):
    """As the language model writes it from captions that are drawn again here."""
    folder = saved_language_model(tmp_path / "language_model", "gpt2", positions=1024, std=0.5)
    words = ("score", materials.captioner, "--data", materials.data, "--split", "val", "--max_new_tokens", 6)
    words += ("--bootstrap", 0)
    assert run(*words, "--summarize", folder, "--n", 3, "--output_dir", tmp_path) == 0
    (folder_of,) = (tmp_path / "eval").iterdir()
    decoding = json.loads((folder_of / "metrics.json").read_text())["protocol"]["decoding"]
    assert decoding == f"sampled, seed 0, max_new_tokens=6, 3 of these merged by {folder}"
    dataset, captioner = load_dataset(materials.data, split="val"), load_captioner(str(materials.captioner))
    how = Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=6)
    drawn = draw_sets(captioner, dataset, collate_of(captioner, None), how)
    assert any(len(set(texts)) > 1 for texts in drawn.values())
    write = Summarizer.from_pretrained(folder)
    written = {
        str(row["image_id"]): row["caption"] for row in json.loads((folder_of / "captions_results.json").read_text())
    }
    assert written == {name: write([texts])[0].text for name, texts in drawn.items()}
    capsys.readouterr()
    for some, sentence in (
        ((*words, "--n", 3), "--n is for --summarize, which is not given"),
        ((*words, "--summarize", folder, "--n", 1), "--n is 1: give 2 or more captions to make one of."),
        ((*words, "--summarize", folder, "--num_beams", 3), "--num_beams chooses among captions"),
        ((*words, "--summarize", folder, "--apart"), "--apart chooses among captions"),
        ((*words, "--summarize", tmp_path / "none"), "none does not exist"),
        (
            (*words, "--summarize", "exact"),
            "--summarize exact merges captions of the built-in world only, not those of",
        ),
        (("score", "x.json", "--references", materials.data, "--summarize", folder), "--summarize does not go with"),
    ):
        assert run(*some) == 2
        assert sentence in capsys.readouterr().err


def test_captions_of_unknown_images_want_references(tmp_path, capsys):
    """It was said that the file is not a run, and to name images, which scores of text do without."""
    (tmp_path / "c.json").write_text('[{"image_id": 1, "caption": "a dog"}]')
    assert main(["score", str(tmp_path / "c.json")]) == 2
    assert "c.json are unknown: give --references, human captions of them, to score the text" in capsys.readouterr().err


def test_a_run_that_does_not_exist_is_said_to_be_none(capsys):
    assert main(["score", "runs/nope"]) == 2
    assert "since runs/nope is not a run: correct the name, or give --data" in capsys.readouterr().err


@pytest.mark.parametrize("start", ["new/att2in2", "world/backbone"])
def test_random_weights_are_no_start_to_measure(start, tmp_path, capsys):
    """Refused before the run itself is measured."""
    (tmp_path / "run.json").write_text(json.dumps({"recipe": {"captioner": {"model_name_or_path": start}}}))
    assert main(["score", str(tmp_path), "--start"]) == 2
    assert f"began from random weights ({start})" in capsys.readouterr().err
