"""``tellapart caption --apart``: what it writes, how it goes on after a stop, and what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from tellapart.captioning.defaults import NUM_BEAMS
from tellapart.captioning.draw import Drawer
from tellapart.cli.caption import decodings
from tellapart.cli.caption_options import CaptionOptions
from tellapart.cli.main import main
from tiny.matchers import tiny_blip_itm
from tiny.qwen2_5_vl import tiny_qwen2_5_vl


@pytest.fixture
def caption(materials, capsys):
    def run(*words, captioner=None, photos=None) -> tuple[int, str, str]:
        capsys.readouterr()
        options = [
            "--captioner",
            captioner or materials.captioner,
            "--n",
            "4",
            "--resample",
            "1",
            "--max_new_tokens",
            "8",
            "--batch_size",
            "4",
        ]
        code = main(["caption", *map(str, (photos or materials.photos, "--format", "unlabelled", *options, *words))])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return run


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_caption_names_its_rival(materials, tmp_path, caption):
    out = tmp_path / "c.jsonl"
    code, _, said = caption("--apart", "--listener", materials.listener, "--output", out)
    assert code == 0
    found = {row["id"]: row for row in rows(out)}
    assert len(found) >= 6
    for name, row in found.items():
        assert row["rival"] in found
        assert row["rival"] != name
        assert ("confused" in row.get("flags", ())) == (row["margin"] <= 0)
    confused = sum(row["margin"] <= 0 for row in found.values())
    page = tmp_path / "c.jsonl.review.html"
    flagged = sum(bool(row.get("flags")) for row in found.values())
    assert page.is_file() == bool(flagged)
    if confused:
        assert f"confused {confused}" in said
        assert f"see {tmp_path / 'c.jsonl.review.csv'}, or with images {page}." in said
        assert f"{flagged} of {len(found)} captions have a fault. {confused} suit a look-alike" in page.read_text()
    assert not list(tmp_path.glob("*.work"))


def test_the_page_of_flagged_captions_outlives_a_command_that_captions_none(materials, tmp_path, caption):
    """Sidecars are kept when the command is given again, and what was written about them is, too."""
    shutil.copytree(materials.photos, tmp_path / "photos")
    words = ("--apart", "--listener", materials.listener, "--out", "sidecars", "--gate", "all")
    assert caption(*words, photos=tmp_path / "photos")[0] == 0
    reviews = sorted(tmp_path.rglob("captions.review.*"))
    assert {path.suffix for path in reviews} == {".csv", ".html"}, "the example has confused images"
    before = [path.read_bytes() for path in reviews]
    assert caption(*words, photos=tmp_path / "photos")[0] == 0
    assert [path.read_bytes() for path in reviews] == before


def test_kept_candidates_of_several_tries_are_listed_best_first(materials, tmp_path, caption):
    out = tmp_path / "c.jsonl"
    words = ("--apart", "--listener", materials.listener, "--keep_all", "--gate", "confused", "--resample", "2")
    assert caption(*words, "--output", out)[0] == 0
    scores = [[one["score"] for one in row["candidates"]] for row in rows(out)]
    assert {4} < set(map(len, scores)) <= {4, 8, 16}, "four beams, then four and eight samples"
    assert scores == [sorted(own, reverse=True) for own in scores]
    assert [own[0] for own in scores] == [row["score"] for row in rows(out)]


def test_a_stopped_run_goes_on_to_the_same_captions(materials, tmp_path, caption, monkeypatch):
    words = (
        "--apart",
        "--listener",
        materials.listener,
        "--apart_strength",
        "1",
        "--lookalikes",
        "5",
        "--num_distractors",
        "2",
    )
    caption(*words, "--output", tmp_path / "whole.jsonl")
    calls, draw = [], Drawer.__call__

    def stopping(self, *given):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return draw(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Drawer, "__call__", stopping)
        code, _, said = caption(*words, "--output", tmp_path / "c.jsonl")
    assert code == 130
    assert "stopped with 4 of" in said
    code, _, said = caption(*words, "--output", tmp_path / "c.jsonl")
    assert code == 0
    assert "4 before" in said
    assert rows(tmp_path / "c.jsonl") == rows(tmp_path / "whole.jsonl")


def test_new_tries_add_to_the_candidates(materials, tmp_path, caption):
    out = tmp_path / "c.jsonl"
    caption("--apart", "--listener", materials.listener, "--keep_all", "--gate", "confused", "--output", out)
    counts = [len(row["candidates"]) for row in rows(out)]
    assert set(counts) <= {4, 8}  # four beams, and four samples where these stay confused
    assert 8 in counts
    for row in rows(out):
        assert max(candidate["score"] for candidate in row["candidates"]) == row["score"]


@pytest.mark.slow
def test_processes_share_the_lookalikes(materials, tmp_path, caption):
    words = ("--apart", "--listener", materials.listener, "--apart_strength", "0.5")
    caption(*words, "--output", tmp_path / "one.jsonl")
    code, _, _ = caption(*words, "--output", tmp_path / "two.jsonl", "--num_processes", "2")
    assert code == 0
    assert [row["caption"] for row in rows(tmp_path / "two.jsonl")] == [
        row["caption"] for row in rows(tmp_path / "one.jsonl")
    ]


def test_a_verifier_changes_what_is_chosen_and_is_part_of_the_settings(materials, tmp_path, caption):
    itm = tiny_blip_itm(tmp_path / "itm")
    listened = ("--apart", "--listener", materials.listener)
    caption(*listened, "--output", tmp_path / "a.jsonl")
    caption(*listened, "--verifier", itm, "--apart_weights", "truth=50", "--output", tmp_path / "b.jsonl")
    scores = [[row["score"] for row in rows(tmp_path / name)] for name in ("a.jsonl", "b.jsonl")]
    assert scores[0] != scores[1]


def test_without_files_and_for_the_first_images_only(materials, caption):
    code, printed, _ = caption("--apart", "--listener", materials.listener)
    assert code == 0
    code, shown, _ = caption("--apart", "--listener", materials.listener, "--dry_run", "2")
    assert code == 0
    assert shown.count("written:") == 2
    for line in shown.splitlines():
        if "written:" in line:  # compared with the whole folder, not with each other alone
            assert line.partition("written: ")[2] in printed


def test_an_instruct_captioner_is_shown_lookalikes(materials, tmp_path, caption):
    model = tmp_path / "qwen"
    tiny_qwen2_5_vl(model)
    listened = ("--apart", "--listener", materials.listener, "--resample", "0", "--limit", "6")
    shown = ("--lookalikes_in_prompt", "2")
    found = {}
    for name, more in {
        "a": shown,
        "b": (),
        "c": (*shown, "--lookalikes_prompt", "a dog"),
        "d": (*shown, "--batch_size", "1"),
    }.items():
        out = tmp_path / f"{name}.jsonl"
        code, _, said = caption(*listened, *more, "--output", out, captioner=model)
        assert code == 0, said
        found[name] = [row["caption"] for row in rows(out)]
    assert len(found["a"]) == 6
    assert found["a"] != found["b"]
    assert found["a"] != found["c"]
    assert found["a"] == found["d"]


def test_models_are_refused_before_lookalikes_are_searched(materials, tmp_path, caption, monkeypatch):
    monkeypatch.setattr("tellapart.captioning.apart.readable_lookalikes", lambda *_: pytest.fail("searched"))
    listened = ("--apart", "--listener", materials.listener)
    for words, sentence in (
        (("--lookalikes_in_prompt", "2"), "a captioner of type 'vision-encoder-decoder' reads one image per prompt"),
        (("--verifier", materials.listener), "has cosines and does not decide what is true"),
        (("--verifier", tmp_path / "nothing"), "does not exist"),
    ):
        code, _, said = caption(*listened, *words, "--output", tmp_path / "c.jsonl")
        assert code == 2
        assert sentence in said
    code, _, said = caption(*listened, captioner=tmp_path / "nothing")
    assert code == 2
    assert "does not exist" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--apart"], "--apart needs a listener"),
        (["--lookalikes", "5"], "--lookalikes is for telling look-alikes apart: add --apart"),
        (["--verifier", "x"], "--verifier is for telling look-alikes apart"),
        (["--apart", "--listener", "x", "--rerank", "clip_s"], "does not go with --rerank"),
        (["--apart", "--listener", "x", "--lookalikes", "0"], "--lookalikes is 0"),
        (["--apart", "--listener", "x", "--apart_strength", "-1"], "--apart_strength is -1"),
        (["--apart", "--listener", "x", "--lookalikes_in_prompt", "-1"], "--lookalikes_in_prompt is -1"),
        (
            ["--apart", "--listener", "x", "--lookalikes_in_prompt", "1", "--apart_strength", "1"],
            "does not go with --lookalikes_in_prompt",
        ),
        (
            ["--apart", "--listener", "x", "--lookalikes_prompt", "What?"],
            "give their number with --lookalikes_in_prompt",
        ),
        (["--lookalikes_in_prompt", "1"], "--lookalikes_in_prompt is for telling look-alikes apart: add --apart"),
        (["--apart", "--listener", "x", "--apart_weights", "truth"], "write NAME=NUMBER"),
        (
            ["--apart", "--listener", "x", "--apart_weights", "turth=1"],
            "with a name of truth, likelihood, clip_s, fluency",
        ),
        (["--apart", "--listener", "x", "--apart_weights", "truth=nan"], "write NAME=NUMBER"),
        (
            ["--apart", "--listener", "x", "--verifier", "x", "--apart_weights", "truth=0"],
            "--verifier tells what is true, which --apart_weights gives weight 0",
        ),
        (["--apart", "--listener", "x", "--apart_weights", "truth=1e308"], "at most 1e+06"),
        (["--apart", "--listener", "x", "--apart_weights", "truth=2"], "which only a verifier tells: give --verifier"),
        (
            ["--apart", "--listener", "x", "--num_distractors", "7"],
            "is for contrastive decoding: give --apart_strength",
        ),
        (
            ["--apart", "--listener", "x", "--lookalikes", "2", "--lookalikes_in_prompt", "3"],
            "--lookalikes_in_prompt 3 asks for more look-alikes than an image is compared with: give --lookalikes 3",
        ),
        (
            ["--apart", "--listener", "x", "--apart_strength", "1", "--num_distractors", "21"],
            "--num_distractors 21 asks for more look-alikes than an image is compared with: give --lookalikes 21",
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence(caption, words, sentence):
    code, _, said = caption(*words)
    assert code == 2
    assert sentence in said


def test_as_many_candidates_as_beams():
    options = CaptionOptions(captioner="x", apart=True, listener="x", num_beams=3)
    first, again = decodings(options)
    assert (first.num_beams, first.num_return_sequences, again.num_return_sequences) == (3, 3, 3)
    first, again = decodings(replace(options, num_beams=6, n=4))
    assert (first.num_beams, first.num_return_sequences, again.num_return_sequences) == (6, 4, 4)
    first, _ = decodings(replace(options, num_beams=None))
    assert first.num_beams == first.num_return_sequences == NUM_BEAMS
