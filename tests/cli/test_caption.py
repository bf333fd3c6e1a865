"""``tellapart caption`` as a user meets it: what it writes, what it refuses, and how it goes on."""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from damaged_images import BROKEN, READABLE, make_damaged
from tellapart.captioning.gate import has_loop, load_openers, opener_of
from tellapart.captioning.plan import plan
from tellapart.captioning.style import STYLES
from tellapart.captioning.summary import Summarizer
from tellapart.cli.caption import output_of, prompted_captioner
from tellapart.cli.caption_options import CaptionOptions, identity, style_of
from tellapart.cli.main import main
from tellapart.data.folder import is_image
from tellapart.errors import printable
from tiny.language_models import saved as saved_language_model
from tiny.qwen2_vl import tiny_qwen2_vl


@pytest.fixture
def photos(materials, tmp_path) -> Path:
    """A folder with ten of the pictures, four of them in another inside."""
    folder = tmp_path / "photos"
    (folder / "inner").mkdir(parents=True)
    for number in range(10):
        name = f"inner/{number:02}.png" if number >= 6 else f"{number:02}.png"
        shutil.copy(materials.photos / f"{number:02}.png", folder / name)
    return folder


@pytest.fixture
def caption(materials, capsys):
    """Runs the command; gives its exit code, the lines it printed and the remarks."""

    def run(*words) -> tuple[int, list[str], str]:
        capsys.readouterr()
        options = ("--captioner", materials.captioner, "--num_beams", "1", "--resample", "1", "--max_new_tokens", "12")
        code = main(["caption", *map(str, (*(() if "--captioner" in words else options), *words))])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out.splitlines(), said.err

    return run


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_form_says_the_same(photos, tmp_path, caption):
    code, printed, _ = caption(photos)
    assert code == 0
    said = dict(line.split("\t") for line in printed)
    assert list(said) == [str(path) for path in sorted(photos.rglob("*.png"))]
    assert caption(photos, "--output", tmp_path / "x.jsonl", "--batch_size", "3")[:2] == (0, [])
    assert {row["id"]: row["caption"] for row in lines(tmp_path / "x.jsonl")} == said
    assert caption(photos, "--output", tmp_path / "x.parquet", "--num_workers", "0")[0] == 0
    assert {row["id"]: row["caption"] for row in pq.read_table(tmp_path / "x.parquet").to_pylist()} == said
    assert caption(photos, "--output", tmp_path / "x.json", "--batch_by_size", "false")[0] == 0
    assert [row["caption"] for row in json.loads((tmp_path / "x.json").read_text())] == list(said.values())
    assert caption(photos, "--out", "webdataset", "--output", tmp_path / "shards")[0] == 0
    with tarfile.open(tmp_path / "shards" / "00000.tar") as tar:
        texts = [tar.extractfile(name).read().decode() for name in tar.getnames() if name.endswith(".txt")]
    assert texts == list(said.values())
    assert caption(photos, "--out", "sidecars")[0] == 0
    assert {path: Path(path).with_suffix(".txt").read_text() for path in said} == {p: f"{t}\n" for p, t in said.items()}
    assert not list(tmp_path.rglob("*.work")), "nothing is left of the work"


def test_shards_in_shards_out(photos, tmp_path, caption):
    assert caption(photos, "--out", "webdataset", "--output", tmp_path / "one")[0] == 0
    assert caption(tmp_path / "one", "--out", "webdataset", "--output", tmp_path / "two", "--prefix", "so: ")[0] == 0

    def members(folder):
        with tarfile.open(folder / "00000.tar") as tar:
            return {member.name: tar.extractfile(member).read() for member in tar}

    one, two = members(tmp_path / "one"), members(tmp_path / "two")
    assert one.keys() == two.keys()
    for name, data in one.items():
        if name.endswith(".txt"):
            assert two[name] == (b"so: " + data if data else data)
        elif name.endswith(".png"):
            assert two[name] == data
    assert sum(name.endswith(".png") for name in one) == 10
    said, refusal = caption(tmp_path / "one", "--out", "webdataset", "--output", tmp_path / "one", "--overwrite")[::2]
    assert (said, "is the folder of the input" in refusal) == (2, True)


def test_the_file_that_is_read_is_not_replaced(photos, caption, monkeypatch):
    table = photos / "metadata.jsonl"
    table.write_text('{"file_name": "01.png", "sku": 7}\n{"file_name": "02.png", "sku": 8}\n')
    before = table.read_bytes()
    monkeypatch.chdir(photos)
    for named in (table, "metadata.jsonl", photos / "meta*.jsonl"):
        code, _, said = caption(named, "--output", "../photos/metadata.jsonl", "--overwrite")
        assert (code, "metadata.jsonl is the input, which would be lost: name another file." in said) == (2, True)
    assert table.read_bytes() == before
    assert caption(photos, "--output", table, "--overwrite")[0] == 0, "images of a folder are not read from it"


def test_a_resumed_run_does_not_give_a_replaced_file_the_caption_of_the_old_one(photos, tmp_path, caption):
    (photos / "broken.png").write_bytes(b"no image")  # keeps the run unfinished
    output = ("--output", tmp_path / "x.jsonl", "--overwrite", "--num_workers", "0")
    caption(photos, *output)
    before = {row["id"]: row["caption"] for row in lines(tmp_path / "x.jsonl")}
    new = str(photos / "03.png")
    # Which pictures a tiny captioner tells apart is its machine's affair: the new picture is one that it captions otherwise.
    shutil.copy(next(name for name in before if before[name] != before[new]), new)
    code, _, remarks = caption(photos, *output)
    after = {row["id"]: row["caption"] for row in lines(tmp_path / "x.jsonl")}
    assert (code, "captioned 1 image (9 before)" in remarks) == (0, True)
    assert {name for name in before if before[name] != after[name]} == {new}
    assert after[new] == dict(line.split("\t") for line in caption(new)[1])[new]


def test_data_sets_are_captioned_by_their_ids(materials, tmp_path, caption):
    assert caption(materials.data, "--output", tmp_path / "all.json")[0] == 0
    assert [row["image_id"] for row in json.loads((tmp_path / "all.json").read_text())] == list(range(14))
    assert caption(materials.data, "--split", "val", "--output", tmp_path / "val.json", "--limit", "2")[0] == 0
    assert [row["image_id"] for row in json.loads((tmp_path / "val.json").read_text())] == [8, 9]


def test_a_column_of_what_is_no_table_is_refused(photos, materials, caption):
    for words in ((photos, "--id_column", "sku"), (materials.data, "--image_column", "sku")):
        code, _, said = caption(*words)
        assert (code, "is not a table and has no column 'sku': leave the column out." in said) == (2, True)
    (photos / "metadata.jsonl").write_text('{"file_name": "01.png", "sku": 7}\n{"file_name": "02.png", "sku": 8}\n')
    code, printed, _ = caption(photos / "metadata.jsonl", "--id_column", "sku", "--limit", "2")
    assert (code, len(printed)) == (0, 2)


@pytest.mark.slow
def test_two_processes_say_the_same(photos, tmp_path, caption):
    assert caption(photos, "--output", tmp_path / "one.jsonl")[0] == 0
    code, _, remarks = caption(photos, "--output", tmp_path / "two.jsonl", "--num_processes", "2", "--batch_size", "2")
    assert code == 0
    assert remarks.startswith("captioned 10 images at ")
    assert (tmp_path / "one.jsonl").read_text() == (tmp_path / "two.jsonl").read_text()


def test_the_best_of_eight(photos, materials, tmp_path, caption):
    options = ("--captioner", materials.captioner, "--listener", materials.listener, "--max_new_tokens", "12")
    several = ("--n", "8", "--rerank", "clip_s", "--keep_all", "--resample", "0")
    code, _, _ = caption(photos, *options, *several, "--output", tmp_path / "x.jsonl")
    assert code == 0
    rows = lines(tmp_path / "x.jsonl")
    for row in rows:
        assert len(row["candidates"]) == 8
        assert row["candidates"][0] == {"caption": row["caption"], "score": row["score"]}
        clean = [c["score"] for c in row["candidates"] if not has_loop(c["caption"])]
        assert row["score"] == row["match"]
        assert "flags" in row or row["score"] <= max(clean)
    assert caption(photos, *options, "--n", "8", "--rerank", "clip_s", "--output", tmp_path / "y.jsonl")[0] == 0
    assert all("candidates" not in row for row in lines(tmp_path / "y.jsonl"))


def test_faults_are_drawn_again_flagged_and_listed(photos, tmp_path, caption):
    """The tiny captioner says many things that are no captions."""
    _, _, none = caption(photos, "--output", tmp_path / "0.jsonl", "--resample", "0")
    _, _, five = caption(photos, "--output", tmp_path / "5.jsonl", "--resample", "5")
    before, after = lines(tmp_path / "0.jsonl"), lines(tmp_path / "5.jsonl")
    flagged = [row for row in before if "flags" in row]
    assert len(flagged) > 0
    assert len([row for row in after if "flags" in row]) < len(flagged)
    for old, new in zip(before, after, strict=True):
        assert "flags" in old or old == new, "only captions with faults change"
    assert f"; {len(flagged)} flagged (" in none
    page = tmp_path / "0.jsonl.review.html"
    assert none.endswith(f"see {tmp_path / '0.jsonl.review.csv'}, or with images {page}.\n")
    assert f"{len(flagged)} of {len(before)} captions have a fault." in page.read_text()
    listed = list(csv.DictReader((tmp_path / "0.jsonl.review.csv").open()))
    assert {row["photo"] for row in listed} == {row["id"] for row in flagged}
    code, _, ungated = caption(photos, "--output", tmp_path / "x.jsonl", "--gate", "none")
    assert (code, "; none flagged." in ungated, (tmp_path / "x.jsonl.review.csv").exists()) == (0, True, False)
    assert five.startswith("captioned 10 images at ")


def test_a_run_that_failed_before_its_first_caption_leaves_no_trace(photos, tmp_path, caption):
    """Whatever was wrong: a model that is not there, or an option that only the model refuses."""
    for wrong in (
        ["--captioner", "nowhere"],
        ["--max_new_tokens", "500"],
        ["--listener", "nowhere", "--rerank", "clip_s"],
    ):
        assert caption(photos, *wrong, "--output", tmp_path / "x.jsonl")[0] == 2
        assert caption(photos, *wrong, "--out", "sidecars")[0] == 2
    assert not [*tmp_path.rglob("*.work"), *tmp_path.rglob("*.jsonl")]
    assert caption(photos, "--output", tmp_path / "x.jsonl")[0] == 0


def test_outputs_of_one_stem_have_their_own_reviews(photos, tmp_path, caption):
    caption(photos, "--output", tmp_path / "x.jsonl", "--resample", "0")
    review = (tmp_path / "x.jsonl.review.csv").read_bytes()
    assert caption(photos, "--output", tmp_path / "x.json", "--gate", "none", "--resample", "0")[0] == 0
    assert (tmp_path / "x.jsonl.review.csv").read_bytes() == review


def test_an_empty_name_is_not_the_folder_where_we_are(photos, caption, monkeypatch):
    monkeypatch.chdir(photos)
    for name in ("", " "):
        code, printed, remarks = caption(name)
        assert (code, printed) == (2, [])
        assert "the name of an image, folder or data set is empty" in remarks


def test_printed_captions_are_a_line_per_image_whatever_its_name(photos, caption):
    (photos / "00.png").rename(photos / "a\tb\nc.png")
    code, printed, _ = caption(photos)
    assert (code, len(printed)) == (0, 10)
    assert all(line.count("\t") == 1 for line in printed)
    assert any("a\\tb\\nc.png\t" in line for line in printed)


def test_unreadable_images_without_flags_are_told_apart(photos, tmp_path, caption):
    (photos / "broken.png").write_bytes(b"no picture")
    _, _, said = caption(photos, "--output", tmp_path / "0.jsonl", "--gate", "none")
    assert said.endswith(f"; none flagged; {tmp_path / '0.jsonl.review.csv'} lists the images without a caption.\n")


def test_styles_change_what_is_written_and_flags_win(photos, tmp_path, caption, materials):
    options = ("--captioner", materials.captioner, "--num_beams", "1", "--gate", "none")
    longest = {}
    for style in ("plain", "short", "detailed", "alt"):
        assert caption(photos, *options, "--style", style, "--output", tmp_path / f"{style}.jsonl")[0] == 0
        longest[style] = max(len(row["caption"]) for row in lines(tmp_path / f"{style}.jsonl"))
    assert longest["short"] <= 80 < longest["plain"]
    assert longest["alt"] <= 126
    assert longest["detailed"] > longest["plain"]
    assert all(row["caption"][:1].isupper() for row in lines(tmp_path / "alt.jsonl") if row["caption"])
    words = (*options, "--style", "alt", "--max_new_tokens", "3", "--prefix", "x, ", "--suffix", " #")
    assert caption(photos, *words, "--output", tmp_path / "cut.jsonl")[0] == 0
    for row in lines(tmp_path / "cut.jsonl"):
        assert len(row["caption"].removeprefix("x, ").removesuffix(" #").split()) <= 3
        assert row["caption"] == "" or (row["caption"].startswith("x, ") and row["caption"].endswith(" #"))
    options = CaptionOptions(captioner="x", style="alt", max_new_tokens=7, strip_openers=False)
    style = style_of(options)
    assert (style.max_new_tokens, style.strip_openers, style.max_characters) == (7, False, 125)


def test_a_style_asks_models_that_answer(materials, tmp_path):
    tiny_qwen2_vl(tmp_path / "qwen")

    def prompt(captioner, **options):
        return prompted_captioner(CaptionOptions(captioner=str(captioner), **options)).family.prompt

    own = prompt(tmp_path / "qwen")
    assert prompt(tmp_path / "qwen", style="alt") == STYLES["alt"].prompt != own
    assert prompt(tmp_path / "qwen", style="alt", prompt="Name the colours.") == "Name the colours."
    assert prompt(materials.captioner, style="alt") == "", "others would take it for the beginning of the caption"
    assert prompt(materials.captioner, prompt="a red") == "a red"


def test_captions_longer_than_the_model_has_room_for(materials, photos, caption):
    code, _, remarks = caption(photos / "00.png", "--max_new_tokens", "97")
    assert (code, remarks) == (
        2,
        "error: max_new_tokens is 97, but the model can hold 96 tokens: give at most 96.\n",
    )
    assert caption(photos / "00.png", "--captioner", materials.captioner, "--style", "detailed")[0] == 0


def test_openers_are_taken_off(photos, tmp_path, caption):
    _, printed, _ = caption(photos)
    first = printed[0].split("\t")[1].split()[0]
    mine = tmp_path / "mine.txt"
    mine.write_text(f"{first}\n")
    code, printed, _ = caption(photos, "--openers", mine, "--strip_openers")
    assert code == 0
    assert not any(opener_of(line.split("\t")[1], load_openers(mine)) for line in printed)


def test_a_dry_run_shows_and_writes_nothing(photos, tmp_path, caption):
    before = sorted(tmp_path.rglob("*"))
    code, printed, _ = caption(photos, "--dry_run", "2", "--style", "alt", "--prefix", "x ", "--out", "sidecars")
    assert code == 0
    assert [line for line in printed if line.startswith(str(photos))] == [str(photos / f"0{n}.png") for n in (0, 1)]
    assert [line.split(":")[0].strip() for line in printed[1:3]] == ["drawn", "written"]
    assert printed[2].split(":", 1)[1].strip().startswith("x ")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("existing", ["keep", "overwrite", "append", "backup"])
def test_captions_of_ones_own(photos, existing, caption):
    (photos / "03.txt").write_text("mine\n")
    code, _, remarks = caption(photos, "--out", "sidecars", "--existing", existing)
    assert code == 0
    assert remarks.startswith(f"captioned {9 if existing == 'keep' else 10} images")
    text, new = (photos / "03.txt").read_text(), (photos / "04.txt").read_text()
    assert (text == "mine\n") == (existing == "keep")
    assert text.startswith("mine\n") == (existing in ("keep", "append"))
    assert (photos / "03.txt.bak").exists() == (existing == "backup")
    assert "mine" not in new
    if existing == "keep":
        code, _, remarks = caption(photos, "--out", "sidecars")
        assert (code, remarks) == (0, "captioned 0 images (10 kept); none flagged.\n")


def test_damaged_images_are_named_and_the_rest_is_captioned(tmp_path, caption):
    kinds = make_damaged(tmp_path / "odd", len(READABLE | BROKEN), seed=3)
    bad = [name for name, kind in kinds.items() if kind in BROKEN]
    code, _, remarks = caption(tmp_path / "odd", "--output", tmp_path / "x.jsonl")
    named = [line for line in remarks.splitlines() if line.startswith("WARNING: ")]
    found = sorted(path.name for path in (tmp_path / "odd").iterdir() if is_image(path.name))
    good = [Path(row["file_name"]).name for row in lines(tmp_path / "x.jsonl")]
    assert code == 0, "what could be read has its caption"
    assert good == [name for name in found if name not in bad]
    assert set(found) - set(good) == set(bad) & set(found)
    assert f"{len(found) - len(good)} of {len(found)} images could not be read" in named[-1]
    listed = list(csv.DictReader((tmp_path / "x.jsonl.review.csv").open()))
    broken = [row for row in listed if row["reasons"].startswith("no caption: ")]
    assert sorted(Path(row["photo"]).name for row in broken) == sorted(set(found) - set(good))
    assert listed[: len(broken)] == broken, "the worst come first"


def test_repaired_images_are_captioned_by_the_same_command(photos, tmp_path, caption):
    whole = (photos / "02.png").read_bytes()
    (photos / "02.png").write_bytes(whole[:50])
    assert caption(photos, "--output", tmp_path / "x.jsonl")[0] == 0
    assert len(lines(tmp_path / "x.jsonl")) == 9
    assert caption(photos, "--output", tmp_path / "x.jsonl", "--strict")[0] == 2, "it is tried again"
    assert "1 of 10 images could not be read" in caption(photos)[2]
    assert caption(photos, "--strict")[0] == 2
    assert caption(photos / "02.png")[0] == 2, "nothing worked"
    (photos / "02.png").write_bytes(whole)
    code, _, remarks = caption(photos, "--output", tmp_path / "x.jsonl")
    assert (code, remarks.startswith("captioned 1 image (9 before)")) == (0, True)
    assert [Path(row["id"]).name for row in lines(tmp_path / "x.jsonl")] == [f"{n:02}.png" for n in range(10)]
    assert not (tmp_path / "x.jsonl.work").exists()


def test_the_first_broken_image_may_end_it(photos, tmp_path, caption):
    (photos / "04.png").write_bytes(b"no picture")
    one_by_one = ("--batch_size", "1", "--batch_by_size", "false")
    code, _, remarks = caption(photos, "--output", tmp_path / "x.jsonl", "--on_error", "fail", *one_by_one)
    assert code == 2
    assert remarks.count("04.png is not a readable image") == 1
    assert not (tmp_path / "x.jsonl").exists()
    (photos / "04.png").unlink()
    remarks = caption(photos, "--output", tmp_path / "x.jsonl", "--on_error", "fail")[2]
    assert remarks.startswith("captioned 5 images (4 before)")


def test_a_stopped_run_refuses_other_options(photos, tmp_path, caption):
    (photos / "02.png").write_bytes(b"no picture")
    assert caption(photos, "--output", tmp_path / "x.jsonl")[0] == 0
    code, _, remarks = caption(photos, "--output", tmp_path / "x.jsonl", "--prefix", "y")
    assert code == 2
    assert "was begun with --prefix , not --prefix y: give the same options to resume, or --overwrite" in remarks
    (photos / "02.png").unlink()
    code, _, remarks = caption(photos, "--output", tmp_path / "x.jsonl", "--prefix", "y", "--overwrite")
    assert (code, remarks.startswith("captioned 9 images at")) == (0, True)
    assert all(row["caption"].startswith("y") for row in lines(tmp_path / "x.jsonl") if row["caption"])


def test_weights_that_changed_are_another_captioner(materials, tmp_path):
    folder = shutil.copytree(materials.captioner, tmp_path / "captioner")
    before = identity(str(folder))
    os.utime(folder / "model.safetensors", (1, 1))
    assert identity(str(folder)) == before, "a copy is the same"
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert identity(str(folder)) != before
    assert identity("nobody/has-this") == "hub"


def test_a_run_of_train_listener_serves_as_listener(materials, photos, tmp_path, caption):
    shutil.copytree(materials.listener, tmp_path / "run" / "listener")
    (tmp_path / "run" / "run.json").write_text('{"recipe": {"loss": "contrastive"}}')
    words = (
        photos,
        "--captioner",
        materials.captioner,
        "--listener",
        tmp_path / "run",
        "--output",
        tmp_path / "x.jsonl",
    )
    code, _, remarks = caption(*words)
    assert code == 0, remarks
    assert all("match" in row for row in lines(tmp_path / "x.jsonl"))


REFUSED = [
    (["--n", "8"], "say which is kept, with --rerank clip_s"),
    (["--rerank", "clip_s", "--listener", "x"], "give --n, such as --n 8"),
    (["--n", "8", "--rerank", "clip_s"], "--rerank clip_s needs a listener"),
    (["--n", "8", "--rerank", "cider_d", "--listener", "x"], "--rerank is 'cider_d', but must be one of clip_s"),
    (["--n", "8", "--rerank", "clip_s", "--listener", "x", "--num_beams", "5"], "leave one out"),
    (["--keep_all"], "--keep_all keeps what --n draws"),
    (["--summary_max_new_tokens", "9"], "--summary_max_new_tokens is for --summarize"),
    (["--min_match", "0.5"], "--min_match needs a listener"),
    (["--min_match", "0.5", "--listener", "x", "--gate", "loop,empty"], "which --gate loop,empty leaves out: name it"),
    (["--max_same", "3", "--gate", "empty"], "--max_same is for the fault same_caption, which --gate empty leaves out"),
    (["--openers", "x", "--gate", "empty"], "which --gate empty does not look for: add opener there"),
    (["--gate", "spelling"], "--gate names 'spelling': choose all, none, or some of empty, "),
    (["--resample_on", "opener,x"], "--resample_on names 'x'"),
    (["--resample_on", "loop", "--resample", "0"], "--resample 0 draws none"),
    (["--resample_on", "empty", "--gate", "loop"], "--resample_on names empty, which --gate loop does not look for"),
    (["--gate", "spelling", "--do_sample"], "--gate names 'spelling'"),
    (["--resample_on", "spelling", "--resample", "0"], "--resample_on names 'spelling'"),
    (["--temperature", "2", "--gate", "none"], "--temperature is for sampling, and no caption is sampled"),
    (["--temperature", "2", "--resample", "0"], "--temperature is for sampling, and no caption is sampled"),
    (["--top_p", "0.5", "--resample_on", "none"], "--top_p is for sampling, and no caption is sampled"),
    (["--top_p", "2"], "top_p=2.0 must be above 0 and at most 1"),
    (["--num_beams", "0"], "--num_beams is 0: it must be at least 1"),
    (["--out", "sidecars", "--caption_extension", "txt"], "write the end of a file"),
    (["--existing", "append", "--output", "x.jsonl"], "--existing append is for sidecars"),
    (["--existing", "append"], "--existing append is for sidecars: give --out sidecars, or leave it out"),
    (["--caption_extension", ".cap"], "--caption_extension .cap is for sidecars: give --out sidecars, or leave it out"),
    (["--caption_extension", ".cap", "--output", "x.jsonl"], "--caption_extension .cap is for sidecars"),
    (["--overwrite"], "--overwrite is for files of captions: give --output"),
    (["--n", "2", "--rerank", "clip_s", "--listener", "x", "--keep_all"], "--keep_all is for files of captions"),
    (["--price", "0"], "--price is for collections in shards: add --by_shard"),
    (["--output", "x.txt"], "name a .json, .jsonl, .csv or .parquet file"),
    (["--out", "parquet"], "--out parquet needs a place: give --output"),
    (["--num_processes", "2"], "--num_processes 2 needs files to write to: give --output"),
    (["--num_processes", "2", "--output", "x.jsonl", "--dry_run", "2"], "2 does not go with --dry_run"),
    (["--style", "long"], "one of plain, short, detailed, alt"),
    (["--batch_size", "0"], "--batch_size is 0: it must be at least 1"),
    (["--openers", "absent.txt"], "absent.txt does not exist: check the path"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_refusals_are_one_sentence(words, sentence, photos, caption, monkeypatch, materials):
    monkeypatch.chdir(photos.parent)
    before = sorted(photos.rglob("*"))
    code, printed, remarks = caption(photos, *words, "--captioner", materials.captioner)
    assert (code, printed) == (2, [])
    assert remarks.startswith("error: ")
    assert sentence in remarks
    assert remarks.count("\n") == 1
    assert sorted(photos.rglob("*")) == before


def test_sidecars_of_a_folder_have_their_journal_there_whichever_images_it_holds(photos, monkeypatch):
    """With images in one folder inside alone, it lay there; an image added above, the command appended every caption twice."""
    monkeypatch.chdir(photos.parent)
    options = CaptionOptions(captioner="x", out="sidecars")
    every = plan(["photos"])
    inside = [item for item in every if item.relative.startswith("inner/")]
    assert 0 < len(inside) < len(every)
    assert {output_of(options, items, ["photos"]).work for items in (inside, every)} == {Path("photos/captions.work")}
    assert output_of(options, inside, [str(item.path) for item in inside]).work == Path("photos/inner/captions.work")


def test_places_that_cannot_be(photos, tmp_path, caption, monkeypatch):
    (tmp_path / "empty").mkdir()
    assert "holds no images" in caption(tmp_path / "empty", "--out", "sidecars")[2]
    may, locked = os.access, photos / "inner"
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(locked) and may(path, mode))
    code, _, remarks = caption(photos, "--out", "sidecars")
    assert (code, remarks) == (2, f"error: {locked} cannot be written to: give --output FOLDER for the sidecars.\n")
    assert not list(photos.rglob("*.txt"))
    assert caption(photos, "--out", "sidecars", "--output", tmp_path / "texts")[0] == 0
    assert len(list((tmp_path / "texts").rglob("*.txt"))) == 10


def test_folders_of_the_output_are_made(photos, tmp_path, caption):
    place = tmp_path / "new" / "inner" / "x.jsonl"
    assert caption(photos, "--output", place)[0] == 0
    assert {path.name.removeprefix("x.jsonl") for path in place.parent.iterdir()} == {"", ".review.csv", ".review.html"}


@pytest.mark.parametrize("left", ["everything", "a part", "the empty folder"])
@pytest.mark.parametrize("out", ["sidecars", "jsonl"])
def test_a_finished_run_whose_removal_was_killed_is_not_repeated(out, left, photos, tmp_path, caption, monkeypatch):
    (photos / "03.txt").write_text("mine\n")
    words = [photos, "--out", "sidecars", "--existing", "append"]
    words = words if out == "sidecars" else [photos, "--output", tmp_path / "x.jsonl"]
    place, suffix = (photos, ".txt") if out == "sidecars" else (tmp_path, ".jsonl")
    whole = shutil.rmtree

    def killed(folder, **options):
        for entry in sorted(Path(folder).iterdir())[: {"everything": 0, "a part": 2}.get(left, 99)]:
            entry.unlink()

    monkeypatch.setattr("tellapart.captioning.work.shutil.rmtree", killed)
    assert caption(*words)[0] == 0
    monkeypatch.setattr("tellapart.captioning.work.shutil.rmtree", whole)
    assert len(list(place.glob(".*.finished-*"))) == 1

    def written():
        return {path: path.read_bytes() for path in place.rglob(f"*{suffix}") if ".finished-" not in str(path)}

    before = written()

    code, _, remarks = caption(*words)
    assert code == 0
    assert remarks.startswith(
        "all 10 images were captioned before by this command, which was stopped while it removed "
    )
    assert written() == before
    assert not [path for path in place.iterdir() if "work" in path.name], "the removal is complete"

    # Without a leftover, the same command is a new one.
    code, _, remarks = caption(*words)
    assert (code, "exists: name another" in remarks) == ((0, False) if out == "sidecars" else (2, True))
    assert ("captioned 10 images" in remarks) == (out == "sidecars")
    assert written() == before


@pytest.mark.parametrize("out", ["sidecars", "jsonl"])
def test_outputs_that_are_removed_while_the_review_is_written_are_missed(out, photos, tmp_path, caption, monkeypatch):
    from tellapart.cli import caption as command

    place = tmp_path / "out"
    words = ["--out", "sidecars", "--output", place] if out == "sidecars" else ["--output", place / "x.jsonl"]
    write = command.write_review

    def removed(*arguments):
        shutil.rmtree(place)
        return write(*arguments)

    monkeypatch.setattr(command, "write_review", removed)
    code, _, remarks = caption(photos, *words)
    assert code == 2
    assert "was removed while it was being written: run the same command again" in remarks


@pytest.mark.parametrize("change", ["an option", "an image", "a sidecar"])
def test_another_run_than_the_finished_one_is_captioned(change, photos, caption, monkeypatch):
    words = [photos, "--out", "sidecars", "--existing", "append"]
    with monkeypatch.context() as patched:
        patched.setattr("tellapart.captioning.work.shutil.rmtree", lambda folder, **options: None)
        assert caption(*words)[0] == 0
    if change == "an option":
        words += ["--prefix", "x "]
    elif change == "an image":
        (photos / "00.png").unlink()
    else:
        (photos / "00.txt").unlink()
    code, _, remarks = caption(*words)
    assert (code, remarks) == (
        0,
        f"captioned {9 if change == 'an image' else 10} images" + remarks.partition("images")[2],
    )
    longest = max(len(path.read_text().splitlines()) for path in photos.rglob("*.txt"))
    assert longest == (2 if change == "an option" else 1), "equal captions are appended once"
    assert not list(photos.glob(".*.finished-*"))


def test_a_full_disk_is_a_sentence_and_loses_nothing(photos, materials, tmp_path, caption):
    """A limit on the size of files stands for the disk: the journal, too, is torn where it is reached."""
    options = ("--captioner", materials.captioner, "--num_beams", "1", "--resample", "0", "--batch_size", "2")
    words = (photos, *options, "--gate", "none", "--output", tmp_path / "x.jsonl")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1300, hard))
    try:
        code, _, remarks = caption(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2
    journal = tmp_path / "x.jsonl.work" / "journal-0.jsonl"
    assert remarks.splitlines()[-1].startswith(f"error: {journal}: File too large")
    assert journal.stat().st_size == 1300
    # Where it was torn depends on the length of paths; a batch of two that was not written whole is drawn again.
    kept = journal.read_bytes().count(b"\n") // 2 * 2
    code, _, remarks = caption(*words)
    assert (code, remarks.startswith(f"captioned {10 - kept} images ({kept} before)")) == (0, True)
    assert len(lines(tmp_path / "x.jsonl")) == 10


@pytest.fixture(scope="module")
def language_model(tmp_path_factory) -> Path:
    return saved_language_model(tmp_path_factory.mktemp("language_model"), "gpt2", positions=512, std=0.5)


def test_samples_are_summarised_and_kept_as_candidates(photos, materials, language_model, tmp_path, caption):
    ask = "say all: {captions} one:"
    n = ("--n", "3", "--top_p", "1", "--resample", "0", "--gate", "none")
    summarize = ("--summarize", language_model, "--summary_prompt", ask, "--summary_max_new_tokens", "9")
    assert caption(photos, *n, *summarize, "--output", tmp_path / "x.jsonl")[0] == 0
    rows = lines(tmp_path / "x.jsonl")
    ranked = ("--rerank", "clip_s", "--listener", materials.listener, "--keep_all")
    assert caption(photos, *n, *ranked, "--output", tmp_path / "y.jsonl")[0] == 0
    write = Summarizer.from_pretrained(language_model, prompt=ask, max_new_tokens=9)
    for row, other in zip(rows, lines(tmp_path / "y.jsonl"), strict=True):
        drawn = [candidate["caption"] for candidate in row["candidates"]]
        assert sorted(drawn) == sorted(candidate["caption"] for candidate in other["candidates"])
        assert row["caption"] == write([drawn])[0].text
        assert all(candidate.keys() == {"caption"} for candidate in row["candidates"])
    assert any(row["caption"] for row in rows)
    assert caption(photos, *n, *summarize, "--output", tmp_path / "z.parquet", "--batch_size", "3")[0] == 0
    table = pq.read_table(tmp_path / "z.parquet").to_pylist()
    assert [row["caption"] for row in table] == [row["caption"] for row in rows]
    assert table[0]["candidates"] == [{**candidate, "score": None} for candidate in rows[0]["candidates"]]
    code, printed, _ = caption(photos, *n, *summarize)
    assert (code, [line.split("\t")[1] for line in printed]) == (0, [printable(row["caption"]) for row in rows])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--n", "3"), "or make one of them, with --summarize MODEL"),
        (("--summarize", "gpt2"), "--summarize makes one caption of several: give --n"),
        (
            ("--n", "3", "--summarize", "gpt2", "--keep_all"),
            "--keep_all chooses among captions, and --summarize writes",
        ),
        (
            ("--n", "3", "--summarize", "gpt2", "--summary_prompt", "all"),
            "--summary_prompt has no place for the captions",
        ),
        (("--summary_prompt", "{captions}"), "--summary_prompt is for --summarize, which is not given"),
        (("--n", "3", "--summarize", "./none"), "the language model's folder ./none does not exist"),
    ],
)
def test_what_summaries_need_is_one_sentence(photos, caption, words, sentence):
    code, _, said = caption(photos, *words)
    assert code == 2
    assert sentence in said
