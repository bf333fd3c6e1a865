"""``tellapart bench people`` with models that see the images: each is found by file name, and scores are those of ``score``."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from pictures import CAPTIONS
from tellapart.cli.main import main
from tellapart.data.judgements.records import Judgements, Rated
from tellapart.errors import UsageError
from tellapart.recipe.people import Judges, references_from
from tiny.matchers import tiny_blip_itm


@pytest.fixture
def judged(materials, tmp_path):
    """The materials' first eight photos with two rated captions each, in Polaris' columns."""
    lines = ["imgid,mt,refs,score"]
    for place in range(8):
        for caption, score in ((CAPTIONS[2 * place], 0.9), (CAPTIONS[2 * place + 20], 0.1 + place / 100)):
            lines.append(f'{place:02}.png,{caption},"{[CAPTIONS[2 * place + 9]]}",{score}')
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_models_that_see_the_images(materials, judged, tmp_path, capsys):
    matcher = tiny_blip_itm(tmp_path / "matcher")
    words = ["bench", "people", str(judged), "--images", str(materials.photos), "--listener", str(materials.listener)]
    words += ["--itm", str(matcher), "--pac", str(materials.listener), "--json", "true"]
    assert main(words) == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"CIDEr", "CLIPScore", "RefCLIPScore", "PAC-S", "RefPAC-S", "ITM_logit"} <= set(rows)
    assert all(row["published"] is None and row["judgements"] == 16 for row in rows.values())
    assert rows["PAC-S"]["value"] == rows["CLIPScore"]["value"]  # the same encoder, and ranks do not depend on w


def test_images_that_are_missing(materials, judged, tmp_path, capsys):
    words = ["bench", "people", str(judged), "--listener", str(materials.listener)]
    assert main(words) == 2
    assert "give their folder as --images" in capsys.readouterr().err
    assert main([*words, "--images", str(tmp_path)]) == 2
    assert "lacks 8 of the 8 images of mine, such as 00.png" in capsys.readouterr().err


def test_options_of_models_without_a_model(judged, tmp_path, capsys):
    for words in (("--images", str(tmp_path)), ("--pac_base", "x")):
        assert main(["bench", "people", str(judged), *words]) == 2
        assert f"{words[0]} is for metrics that see images: give --listener" in capsys.readouterr().err


def test_a_base_is_for_the_file_of_pac(materials, judged, capsys):
    words = ["--images", str(materials.photos), "--listener", str(materials.listener), "--pac_base", "x"]
    for more in ((), ("--pac", str(materials.listener))):
        assert main(["bench", "people", str(judged), *words, *more]) == 2
        assert "--pac_base is for .pth files" in capsys.readouterr().err


def test_references_that_no_set_has_a_use_for(judged, tmp_path, capsys):
    given = tmp_path / "given" / "captions.json"
    given.parent.mkdir()
    images = [{"id": 1, "file_name": "1.jpg"}]
    captions = [{"id": n, "image_id": 1, "caption": f"a dog runs {n}"} for n in range(2)]
    given.write_text(json.dumps({"images": images, "annotations": captions}))
    words = ["bench", "people", "--references", str(given)]
    assert main([*words, str(judged)]) == 2
    assert "--references does nothing, since mine has references of its own: leave it out." in capsys.readouterr().err
    pair = {"filename": "000000000002.jpg", "caption": "a dog", "negative_caption": "a cat"}
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "add_att.json").write_text(json.dumps({"0": pair}))
    assert main([*words, str(tmp_path / "pairs")]) == 2
    said = capsys.readouterr().err
    assert f"note: {given} has no captions of the images of sugarcrepe, such as 000000000002.jpg." in said
    assert (
        f"sugarcrepe is left out: no metric can score it without human captions, which {given} lacks, or --images"
        in said
    )
    assert "give --references that have captions of images such as 000000000002.jpg, or --images" in said
    (tmp_path / "pairs" / "add_att.json").write_text(json.dumps({"0": {**pair, "filename": "1.jpg"}}))
    assert main([*words, str(tmp_path / "pairs")]) == 0
    assert "note" not in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(judged, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tellapart.cli.bench._measured", lambda *_: pytest.fail("measured"))
    assert main(["bench", "people", str(judged), "--output_dir", str(judged)]) == 2
    assert f"error: {judged} cannot be written to" in capsys.readouterr().err


def test_overview(capsys):
    assert main(["bench", "--help"]) == 0
    assert "\n  people  compare metrics with people's judgements" in capsys.readouterr().out
    for words, sentence in (
        ((), "write tellapart bench people."),
        (("people's",), "is not an action of tellapart bench"),
    ):
        assert main(["bench", *words]) == 2
        assert sentence in capsys.readouterr().err


def test_different_images_of_one_name_are_refused(tmp_path):
    """The last one was taken without a word."""
    for folder, colour in (("x", "red"), ("y", "blue"), ("z", "red")):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 8), colour).save(tmp_path / folder / "1.png")
    judged = Judgements("composite", (Rated("1.png", "a", (), (1.0,)),))
    with pytest.raises(UsageError, match=r"different images of one name, and either may be 1\.png"):
        Judges(images=tmp_path, listener="l")._dataset(judged)
    (tmp_path / "y" / "1.png").unlink()
    assert Judges(images=tmp_path, listener="l")._dataset(judged)[0].image.path == tmp_path / "x" / "1.png"
    by_path = Judgements("composite", (Rated("z/1.png", "a", (), (1.0,)),))
    assert Judges(images=tmp_path, listener="l")._dataset(by_path)[0].image.path == tmp_path / "z" / "1.png"


def test_captions_of_different_images_of_one_name_are_those_of_neither(tmp_path):
    rows = [{"id": "1", "file_name": "x/1.jpg", "captions": ["a dog"]}]
    rows += [{"id": "2", "file_name": "y/1.jpg", "captions": ["a cat"]}]
    (tmp_path / "refs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert references_from(str(tmp_path / "refs.jsonl")) == {
        "x/1.jpg": ("a dog",),
        "y/1.jpg": ("a cat",),
    }
