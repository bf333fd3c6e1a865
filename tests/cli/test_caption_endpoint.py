"""``tellapart caption --endpoint``: a served model captions folders and shards, and a stopped run resumes."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from captioning.chat_server import Chat, said, serving
from tellapart.captioning import endpoint
from tellapart.cli.main import main

KEY = "test-key-0123456789"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(endpoint, "BACK_OFF", 0.001)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


SIZES = [(20 + number, 30) for number in range(12)]


@pytest.fixture
def photos(tmp_path) -> Path:
    """Twelve photos of different sizes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, size in enumerate(SIZES):
        Image.new("RGB", size, (20 * number, 99, 9)).save(folder / f"{number:02}.png")
    return folder


@pytest.fixture
def caption(capsys):
    def run(chat: Chat, *words) -> tuple[int, str, str]:
        capsys.readouterr()
        options = ("--endpoint", chat.url, "--captioner", "qwen", "--batch_size", "4", "--endpoint_timeout", "60")
        code = main(["caption", *map(str, (*words, *options))])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert KEY not in said.out + said.err
        return code, said.out, said.err

    return run


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_stopped_run_asks_only_for_the_rest(photos, tmp_path, caption):
    out = tmp_path / "out.jsonl"
    with serving(Chat(key=KEY, faults=("drop", "garble"))) as chat:
        chat.always = dict.fromkeys(SIZES[8:], 403)  # the key expires
        code, _, remarks = caption(chat, photos, "--output", out, "--batch_by_size", "false")
        assert (code, out.exists()) == (2, False)
        assert "HTTP 403 not now" in remarks
        before = len(chat.requests)
        chat.always = {SIZES[9]: 422}
        code, _, remarks = caption(chat, photos, "--output", out, "--batch_by_size", "false")
        assert (code, "captioned 3 images (8 before)" in remarks) == (0, True)
        assert "1 of 12 images have no caption (see above): repair what the errors name and run" in remarks
        later = Counter(picture.size for picture in chat.pictures[before:])
        assert (set(later), later[SIZES[9]]) == (set(SIZES[8:]), 1)
        assert [row["caption"] for row in rows(out)] == [said(size) for size in SIZES if size != SIZES[9]]
        assert "09.png has no caption (HTTP 422 not now)" in (tmp_path / "out.jsonl.review.csv").read_text()
        chat.always = {}
        code, _, remarks = caption(chat, photos, "--output", out, "--batch_by_size", "false")
        assert (code, "captioned 1 image (11 before)" in remarks) == (0, True)
    assert [row["caption"] for row in rows(out)] == [said(size) for size in SIZES]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_the_best_of_several_by_a_listener(photos, tmp_path, caption, materials):
    out = tmp_path / "out.jsonl"
    with serving(Chat(faults=("garble",))) as chat:
        listening = ("--n", "3", "--rerank", "clip_s", "--listener", materials.listener, "--keep_all", "--style", "alt")
        code, _, _ = caption(chat, photos, "--output", out, *listening)
    assert code == 0
    for row, size in zip(rows(out), SIZES, strict=True):
        drawn = {f"{said(size, number).capitalize()}." for number in range(3)}
        scores = [one["score"] for one in row["candidates"]]
        assert {one["caption"] for one in row["candidates"]} == drawn
        assert (scores[0], row["caption"]) == (max(scores), row["candidates"][0]["caption"])
    assert {body["n"] for body in chat.requests} == {3}
    assert {body["messages"][0]["content"][1]["text"] for body in chat.requests} == {
        "Write alt text for this image: one plain sentence of at most 125 characters."
    }


def test_by_shard(photos, tmp_path, caption):
    (tmp_path / "in").mkdir()
    for number in range(3):
        with tarfile.open(tmp_path / "in" / f"{number:05}.tar", "w") as archive:
            for path in sorted(photos.iterdir())[4 * number : 4 * number + 4]:
                archive.add(path, path.name)
    out = tmp_path / "out"
    words = (tmp_path / "in", "--by_shard", "--out", "jsonl", "--output", out)
    with serving(Chat(faults=("drop",))) as chat:
        chat.always = {SIZES[5]: 401}
        code, _, remarks = caption(chat, *words)  # the first shard is done, and nothing is given up
        assert (code, "HTTP 401" in remarks, sorted(path.name for path in out.glob("*.jsonl"))) == (
            2,
            True,
            ["00000.jsonl"],
        )
        chat.always = {SIZES[6]: 400}
        code, _, remarks = caption(chat, *words)
        assert (code, "2 of 3 shards (1 done before)" in remarks, "1 image could not be read" in remarks) == (
            0,
            True,
            True,
        )
    found = [row["caption"] for path in sorted(out.glob("*.jsonl")) for row in rows(path)]
    assert found == [said(size) for size in SIZES if size != SIZES[6]]


REFUSED = [
    (["--apart", "--listener", "x"], "--apart needs the captioner itself"),
    (["--num_beams", "5"], "--num_beams 5 cannot be asked of an --endpoint"),
    (["--no_repeat_ngram_size", "2"], "--no_repeat_ngram_size needs the captioner itself"),
    (["--dtype", "bfloat16"], "--endpoint serves the captioner"),
    (["--endpoint_image_size", "4"], "--endpoint_image_size is 4: it must be at least 32"),
    (["--by_shard", "--plan", "--output", "x"], "--plan needs the captioner itself"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_refusals_are_one_sentence(words, sentence, photos, tmp_path, caption):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(photos / "00.png", "00.png")
    code, printed, remarks = caption(Chat(url="http://127.0.0.1:9/v1"), tmp_path / "a.tar", *words)
    assert (code, printed, remarks.count("\n")) == (2, "", 1)
    assert sentence in remarks


def test_options_of_a_served_model_need_one(photos, capsys):
    assert main(["caption", str(photos), "--captioner", "x", "--endpoint_timeout", "5"]) == 2
    assert "--endpoint_timeout is for a served model: give --endpoint" in capsys.readouterr().err
