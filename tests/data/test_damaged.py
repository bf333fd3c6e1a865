"""300 damaged and odd images, through reading, ``data check``, ``train`` and ``score``: sentences, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from damaged_images import BROKEN, READABLE, encode, make_damaged, picture
from materials import materials
from pictures import CAPTIONS
from tellapart.cli.main import main
from tellapart.data.images import ImageError, ImageFile
from tellapart.data.inspection import _uninterrupted
from tellapart.recipe.images import keep_list
from tiny_models import tiny_ved

__all__ = ["materials"]


@pytest.fixture(scope="module")
def captioner(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("captioner")
    tiny_ved(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """A folder with two splits, and what its images are: id -> kind. All have captions."""
    root, kinds = tmp_path_factory.mktemp("data"), {}
    for split, count, seed in (("train", 240, 0), ("val", 60, 1)):
        made = make_damaged(root / split, count, seed=seed)
        rows = [{"file_name": name, "text": CAPTIONS[i % 64]} for i, name in enumerate(made)]
        (root / split / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        kinds |= {f"{split}/{name}": kind for name, kind in made.items()}
    return root, kinds


def broken(data: tuple[Path, dict[str, str]], split: str = "") -> list[str]:
    root, kinds = data
    return sorted(str(root / name) for name, kind in kinds.items() if kind in BROKEN and name.startswith(split))


def recipe(folder: Path, captioner: Path, path: Path, **changes) -> Path:
    settings = {
        "method": "xe",
        "captioner": {"model_name_or_path": str(captioner)},
        "data": {"path": str(path), "split": "train"},
        "evaluation": {"split": "val", "max_new_tokens": 6},
        "output_dir": str(folder / "run"),
        "learning_rate": 1e-3,
        "max_steps": 10,
        "per_device_train_batch_size": 16,
        "logging_steps": 5,
    } | changes
    (folder / "recipe.yaml").write_text(json.dumps(settings))
    return folder / "recipe.yaml"


def run(capsys, *words) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    assert "Warning" not in said.err
    return code, said.out, said.err


def test_there_are_300_of_all_kinds(data):
    assert len(data[1]) == 300
    assert set(data[1].values()) == {*READABLE, *BROKEN}
    assert len(READABLE) >= 15
    assert len(BROKEN) >= 10


def test_each_is_read_or_refused_by_name(data):
    root, kinds = data
    for name, kind in kinds.items():
        image = ImageFile(root / name)
        if kind in READABLE:
            assert image.open().mode == "RGB"
        else:
            with pytest.raises(ImageError, match=name):
                image.open()


def test_making_them_again_makes_the_same(tmp_path, data):
    root, kinds = data
    made = make_damaged(tmp_path, 60, seed=1)
    assert {f"val/{name}": kind for name, kind in made.items()}.items() <= kinds.items()
    assert all((tmp_path / name).read_bytes() == (root / "val" / name).read_bytes() for name in made)


def test_data_check_names_every_broken_one(data, capsys, tmp_path):
    root, kinds = data
    code, out, err = run(capsys, "data", "check", root, "--output_dir", tmp_path / "lists")
    assert code == 0  # single broken images are listed
    assert err == f"written to {tmp_path / 'lists'}\n"
    told = [line.split()[1] for line in out.splitlines() if line.startswith(("  train  /", "  val  /"))]
    assert sorted(told) == broken(data)
    assert f"to repair: broken images ({len(broken(data))})." in out
    assert "usable, but: CMYK" in out
    listed = [line.split("\t") for line in (tmp_path / "lists" / "broken_images.tsv").read_text().splitlines()]
    assert listed[0] == ["split", "id", "image", "why"]
    assert sorted(row[2] for row in listed[1:]) == broken(data)
    assert (tmp_path / "lists" / "duplicates.tsv").read_text() == "group\tkind\tsplit\tid\timage\n"
    code, out, err = run(capsys, "data", "check", root, "--json", "--split", "val", "--num_workers", "0", "--strict")
    found = json.loads(out)
    assert (code, err, found["clean"], list(found["splits"])) == (2, "", False, ["val"])
    assert sorted(image["name"] for image in found["splits"]["val"]["broken"]) == broken(data, "val")
    assert json.loads((tmp_path / "lists" / "check.json").read_text())["splits"]["val"] == found["splits"]["val"]
    cmyk = sum(kind in ("cmyk", "ycck") for name, kind in kinds.items() if name.startswith("val"))
    assert found["splits"]["val"]["kinds"]["CMYK"] == cmyk


def test_data_check_of_clean_data(capsys, tmp_path):
    for split, start in (("train", 0), ("val", 9)):
        (tmp_path / split).mkdir()
        for i in range(4):
            image = picture(np.random.default_rng(start + i))
            (tmp_path / split / f"{i}.jpg").write_bytes(encode(image, "JPEG"))
    code, out, err = run(capsys, "data", "check", tmp_path)
    assert (code, err) == (0, "")
    assert out.endswith("\nnothing to repair.\n")
    shutil.copy(tmp_path / "train" / "0.jpg", tmp_path / "val" / "again.jpg")
    code, out, _ = run(capsys, "data", "check", tmp_path, "--strict")
    assert code == 2
    assert run(capsys, "data", "check", tmp_path)[0] == 0
    assert f"the same file: train {tmp_path}/train/0.jpg, val {tmp_path}/val/again.jpg" in out
    code, out, _ = run(capsys, "data", "check", tmp_path / "train", tmp_path / "val", "--strict")
    assert code == 2
    assert f"the same file: {tmp_path}/train {tmp_path}/train/0.jpg, {tmp_path}/val {tmp_path}/val/again.jpg" in out


def test_data_check_counts_restval_once(capsys, tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(encode(picture(np.random.default_rng(i)), "PNG"))
    rows = [
        {"filename": f"{i}.png", "split": split, "cocoid": i, "sentences": [{"raw": "a"}]}
        for i, split in enumerate(("train", "restval", "val"))
    ]
    (tmp_path / "dataset.json").write_text(json.dumps({"images": rows}))
    code, out, _ = run(capsys, "data", "check", tmp_path / "dataset.json", "--json")
    assert code == 0
    assert {name: split["images"] for name, split in json.loads(out)["splits"].items()} == {
        "train": 1,
        "restval": 1,
        "val": 1,
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "data needs to know what to do"),
        (("chekc",), "did you mean check?"),
        (("check",), "no data were given"),
        (("check", "/nowhere/at/all"), "/nowhere/at/all does not exist"),
        (("check", "{root}", "--split", "tst"), "has no split 'tst'"),
        (("check", "{root}", "--limit", "0"), "--limit is 0"),
        (("check", "{root}", "--num_workers", "-1"), "num_workers is -1"),
    ],
)
def test_wrong_words(data, capsys, words, sentence):
    code, out, err = run(capsys, "data", *(word.format(root=data[0]) for word in words))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_training_skips_them_all(data, captioner, capsys, tmp_path):
    root, _ = data
    words = recipe(tmp_path, captioner, root, data={"path": str(root), "split": "train", "on_error": "skip"})
    code, _, err = run(capsys, "train", words)
    assert code == 0
    lines = (tmp_path / "run" / "skipped_images.txt").read_text().splitlines()
    assert sorted(str(root / line.split("\t")[0]) for line in lines) == broken(data)
    assert all(line.split("\t")[1].startswith(str(root / line.split("\t")[0])) for line in lines)
    train = len(broken(data, "train"))
    assert f"{train} of the 240 images of {root.name} (train) cannot be read and are left out." in err
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["total_steps"] == 10  # 160 images: every readable one was trained on
    evaluated = next((tmp_path / "run" / "eval").glob("*/captions_results.json"))
    assert len(json.loads(evaluated.read_text())) == 60 - len(broken(data, "val"))


def test_the_list_of_a_stopped_run_is_read_as_it_was_written(tmp_path):
    """Ids with line breaks counted as several images, and a byte that is not UTF-8 ended in a traceback."""
    listed, odd = tmp_path / "skipped_images.txt", {"a\u2028b": "gone\nfor good", "c\x85d": "cut"}
    first = SimpleNamespace(replace_unreadable=True, replaced=dict(odd))
    keep_list(first, [("left", "out")], listed, resumes=False)
    again = SimpleNamespace(replace_unreadable=True, replaced={})
    keep_list(again, [("left", "out")], listed, resumes=True)
    assert again.replaced == {"a\u2028b": "gone\\nfor good", "c\x85d": "cut"}
    listed.write_bytes(listed.read_bytes() + b"x\ty\xe9\n")
    keep_list(again, [("left", "out")], listed, resumes=True)
    assert again.replaced["x"] == "y\ufffd"


def test_training_stops_at_the_first_by_default(data, captioner, capsys, tmp_path):
    code, _, err = run(capsys, "train", recipe(tmp_path, captioner, data[0]))
    assert code == 2
    assert len(err.splitlines()) == 1
    assert any(f"error: {name} " in err for name in broken(data))
    assert not (tmp_path / "run" / "skipped_images.txt").exists()


def test_what_was_skipped_is_overwritten_with_the_run(data, captioner, capsys, tmp_path):
    root, _ = data
    section = {"path": str(root), "split": "val", "on_error": "skip"}
    options = {"data": section, "evaluation": {"split": None}, "max_steps": 1, "per_device_train_batch_size": 2}
    words = recipe(tmp_path, captioner, root, **options)
    assert run(capsys, "train", words, "--dry_run")[0] == 0
    assert not (tmp_path / "run").exists()
    assert run(capsys, "train", words)[0] == 0
    assert (tmp_path / "run" / "skipped_images.txt").exists()
    (tmp_path / "clean").mkdir()
    for name, kind in data[1].items():
        if name.startswith("val") and kind in READABLE:
            shutil.copy(root / name, tmp_path / "clean")
    rows = [{"file_name": path.name, "text": "a red circle"} for path in (tmp_path / "clean").iterdir()]
    (tmp_path / "clean" / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options["data"] = section | {"path": str(tmp_path / "clean")}
    words = recipe(tmp_path, captioner, root, **options)
    assert run(capsys, "train", words, "--overwrite_output_dir")[0] == 0
    assert not (tmp_path / "run" / "skipped_images.txt").exists()


def test_images_that_are_missing_are_skipped_too(captioner, capsys, tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(encode(picture(np.random.default_rng(i)), "PNG"))
    rows = [{"filename": f"{i}.png", "split": "train", "cocoid": i, "sentences": [{"raw": "a moon"}]} for i in range(6)]
    (tmp_path / "dataset.json").write_text(json.dumps({"images": rows}))
    options = {"evaluation": {"split": None}, "max_steps": 1, "per_device_train_batch_size": 4}
    section = {"path": str(tmp_path / "dataset.json")}
    code, _, err = run(capsys, "train", recipe(tmp_path, captioner, tmp_path, data=section, **options))
    assert code == 2
    assert "names 2 missing images (of 6), first" in err
    section["on_error"] = "skip"
    code, _, err = run(capsys, "train", recipe(tmp_path, captioner, tmp_path, data=section, **options))
    assert code == 0
    assert [line.split("\t")[0] for line in (tmp_path / "run" / "skipped_images.txt").read_text().splitlines()] == [
        "4",
        "5",
    ]


def test_score_and_mine_leave_them_out_and_list_them(data, captioner, materials, capsys, tmp_path):
    root, _ = data
    bad = broken(data, "val")
    left_out = (
        f"WARNING: {len(bad)} of 60 images could not be read and were left out (see above): repair or remove them."
    )
    drawn = ("score", captioner, "--data", root, "--split", "val", "--max_new_tokens", "6", "--bootstrap", "0")
    mined = ("mine", root, "--split", "val", "--listener", materials.listener, "--k", "1")
    for words in (drawn, mined):
        code, _, err = run(capsys, *words)
        assert code == 0
        assert left_out in err
        assert sum(err.count(f"error: {name} ") for name in bad) == min(len(bad), 20)
        assert run(capsys, *words, "--strict")[0] == 2
        code, _, err = run(capsys, *words, "--on_error", "fail")
        assert code == 2
        assert any(f"error: {name} " in err for name in bad)
        assert left_out not in err
    code, said, _ = run(capsys, *drawn, "--json")
    assert len(json.loads(said)["details"]["unreadable_images"]) == len(bad)


@pytest.mark.parametrize("key", ["file_name", "image_id"])
def test_captions_of_images_that_cannot_be_read_are_left_out_with_them(materials, capsys, tmp_path, key):
    photos = shutil.copytree(materials.photos, tmp_path / "photos")
    (photos / "09.png").write_bytes(b"no image")
    rows = [
        {"filename": f"{i:02}.png", "split": "val", "imgid": i, "sentences": [{"raw": "a dog"}]} for i in range(8, 14)
    ]
    (photos / "data.json").write_text(json.dumps({"images": rows}))
    named = {"file_name": [f"{i:02}.png" for i in range(8, 14)], "image_id": list(range(8, 14))}[key]
    captions = tmp_path / "captions.json"
    captions.write_text(json.dumps([{key: name, "caption": "a red dog"} for name in named]))
    words = ("score", captions, "--data", photos / "data.json", "--listener", materials.listener, "--bootstrap", "0")
    code, said, err = run(capsys, *words, "--json")
    assert code == 0
    assert "WARNING: 1 of 6 images could not be read and were left out (see above): repair or remove them." in err
    assert "09.png" in err
    assert len(json.loads(said)["details"]["unreadable_images"]) == 1


def test_where_no_image_can_be_read_nothing_works(captioner, materials, capsys, tmp_path):
    (tmp_path / "val").mkdir()
    for name in "ab":
        (tmp_path / "val" / f"{name}.png").write_bytes(b"no image")
    (tmp_path / "val" / "metadata.jsonl").write_text(
        "".join(json.dumps({"file_name": f"{name}.png", "text": "a dog"}) + "\n" for name in "ab")
    )
    for words in (
        ("score", captioner, "--data", tmp_path, "--split", "val"),
        ("mine", tmp_path, "--split", "val", "--listener", materials.listener),
        ("data", "check", tmp_path),
    ):
        assert run(capsys, *words)[0] == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the workers in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_check_that_is_stopped_leaves_nobody_behind(tmp_path, how):
    (tmp_path / "data").mkdir()
    large = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    (tmp_path / "data" / "0.png").write_bytes(encode(Image.fromarray(large), "PNG", compress_level=1))
    for i in range(1, 400):
        os.link(tmp_path / "data" / "0.png", tmp_path / "data" / f"{i}.png")
    words = [sys.executable, "-m", "tellapart.cli", "data", "check", str(tmp_path / "data"), "--num_workers", "2"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + 60
    while len(children.read_text().split()) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    workers = children.read_text().split()
    if how == signal.SIGINT:  # as a terminal sends it: to all of them
        os.killpg(process.pid, how)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, "", "interrupted.\n")
    else:
        process.kill()
        process.wait(timeout=60)
    until = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < until:
        time.sleep(0.1)
    assert len(workers) == 2
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.skipif(sys.platform != "linux", reason="sends a signal to the process, which any thread may receive")
def test_ctrl_c_waits_for_new_processes_whichever_thread_receives_it():
    ended, over = Event(), []
    Thread(target=ended.wait, daemon=True).start()

    @_uninterrupted()
    def start() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        over.append("the block")

    with pytest.raises(KeyboardInterrupt):
        start()
    ended.set()
    assert over == ["the block"]
