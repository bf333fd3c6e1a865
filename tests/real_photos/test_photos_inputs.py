"""Every form of input on 128 COCO photos, one command each: all give each photo the caption that it has in a plain folder."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.layouts import tar, write
from local_server import serving
from real_photos.photo_models import clip, vit_gpt2
from tellapart.cli.main import main
from unlabelled_files import write_video

PHOTOS = 128
WORDS = ["a dog on a sofa", "two people walk along a street", "a plate of food on a table", "a red bus"]


@pytest.fixture(scope="module")
def album(shared_data, tmp_path_factory):
    """128 photos in a folder, and a tiny captioner and listener made by configuration."""
    found = sorted((shared_data / "unlabelled").glob("*.jpg"))[:PHOTOS]
    if len(found) < PHOTOS:
        pytest.skip("the COCO sample lacks its photos without captions")
    root = tmp_path_factory.mktemp("album")
    (root / "photos").mkdir()
    for path in found:
        shutil.copy(path, root / "photos" / path.name)
    vit_gpt2(root / "captioner", WORDS)
    clip(root / "listener", WORDS)
    return root


@pytest.fixture(scope="module")
def caption(album, tmp_path_factory):
    """Runs the command; gives file name -> caption, in the order of the output."""
    folder = tmp_path_factory.mktemp("captions")
    options = ("--captioner", str(album / "captioner"), "--num_beams", "1", "--max_new_tokens", "6", "--gate", "none")

    def run(*words, code: int = 0) -> dict[str, str]:
        output = folder / f"{len(list(folder.iterdir()))}.jsonl"
        assert main(["caption", *map(str, words), *options, "--batch_size", "32", "--output", str(output)]) == code
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        return {row["file_name"].rpartition("/")[2]: row["caption"] for row in rows}

    return run


@pytest.fixture(scope="module")
def plain(album, caption) -> dict[str, str]:
    said = caption(album / "photos")
    assert len(said) == PHOTOS
    assert len(set(said.values())) > 10, "captions must differ, or the tests below say nothing"
    return said


def names(album: Path) -> list[str]:
    return sorted(path.name for path in (album / "photos").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_tables_of_paths(kind, album, plain, caption):
    rows = [{"price": n, "image_path": f"photos/{name}"} for n, name in enumerate(names(album))]
    path = album / f"paths.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        write(path, "".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
            table.writeheader()
            table.writerows(rows)
    assert caption(path) == plain


@pytest.mark.slow
def test_image_bytes_in_parquet_files_of_a_folder(album, plain, caption):
    """As ``datasets`` publishes them: a folder of files with ``image`` as bytes and path, a hundred rows a group."""
    every = names(album)
    for part in range(2):
        some = every[part * 64 : part * 64 + 64]
        rows = [{"image": {"bytes": (album / "photos" / name).read_bytes(), "path": name}, "label": 1} for name in some]
        (album / "hub" / "data").mkdir(parents=True, exist_ok=True)
        path = album / "hub" / "data" / f"train-0000{part}-of-00002.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
    assert caption(album / "hub") == plain
    assert caption(path) == {name: plain[name] for name in every[64:]}


@pytest.mark.slow
def test_addresses_in_a_table_two_of_which_lead_nowhere(album, plain, caption, capsys):
    every = names(album)
    with serving(album / "photos") as server:
        rows = [f"{server.url}/{name},{n}" for n, name in enumerate([*every, "none.jpg", "gone.jpg"])]
        table = write(album / "urls.csv", "\n".join(["url,sku", *rows]) + "\n")
        words = (table, "--id_column", "sku", "--allow_private", "--num_workers", "4")
        assert caption(*words) == plain
        said = capsys.readouterr().err
        assert f"2 of {PHOTOS + 2} images could not be read" in said
        assert "none.jpg cannot be fetched (HTTP 404 Not Found): check the address." in said
        asked = len(server.asked)
        assert caption(*words, "--strict", code=2) == plain
        assert sorted(server.asked[asked:]) == ["/gone.jpg", "/none.jpg"], "the others are in the cache"
        tar(album / "photos" / "0.tar", {every[0]: (album / "photos" / every[0]).read_bytes()})
        assert caption(f"{server.url}/0.tar", "--allow_private") == {every[0]: plain[every[0]]}
        (album / "photos" / "0.tar").unlink()
        private = write(album / "private.csv", f"url\n{server.url}/x.jpg\n")
        output = album / "refused.jsonl"
        assert main(["caption", str(private), "--captioner", str(album / "captioner"), "--output", str(output)]) == 2
        assert "127.0.0.1, which is not a public address" in capsys.readouterr().err
        assert not output.exists()


@pytest.mark.slow
def test_quoted_patterns(album, plain, caption):
    assert caption(f"{album}/photos/*.jpg") == plain
    for part in range(2):
        some = names(album)[part::2]
        tar(album / "shards" / f"{part}.tar", {name: (album / "photos" / name).read_bytes() for name in some})
    for words in ([f"{album}/shards/*.tar"], [f"{album}/shards/{{0..1}}.tar"], [album / "shards"]):
        assert dict(sorted(caption(*words).items())) == plain


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_folders_and_shards_of_a_file_system(scheme, album, plain, caption, tmp_path):
    filesystem = fsspec.filesystem(scheme)
    root = f"{tmp_path}/bucket" if scheme == "file" else "/bucket"
    filesystem.makedirs(f"{root}/shards")
    for name in names(album):
        filesystem.makedirs(f"{root}/photos", exist_ok=True)
        filesystem.pipe(f"{root}/photos/{name}", (album / "photos" / name).read_bytes())
    packed = tar(tmp_path / "x.tar", {name: (album / "photos" / name).read_bytes() for name in names(album)})
    filesystem.pipe(f"{root}/shards/x.tar", packed.read_bytes())
    assert caption(f"{scheme}://{root}/photos") == plain
    assert caption(f"{scheme}://{root}/shards/*.tar") == plain
    filesystem.rm(root, recursive=True)


@pytest.mark.slow
def test_the_other_commands_take_tables_too(album, plain, tmp_path, capsys):
    """A list of paths without captions: looked through, mined, converted, trained on without captions, and scored."""
    table = write(album / "list.jsonl", "".join(json.dumps({"photo": f"photos/{name}"}) + "\n" for name in plain))
    column, listener = ["--image_column", "photo"], ["--listener", str(album / "listener")]
    assert main(["data", "check", str(table), *column]) == 0
    assert "images                   128" in capsys.readouterr().out
    assert main(["data", "convert", str(table), str(tmp_path / "out"), "--to", "folder", *column]) == 0
    assert len(list((tmp_path / "out").rglob("*.jpg"))) == PHOTOS
    assert main(["mine", str(table), *listener, "--k", "2", *column]) == 0
    assert "128 images of list.jsonl" in capsys.readouterr().out
    recipe = {"method": "scst", "reward.clip_s": 1, "data.path": table, "data.image_column": "photo", "max_steps": 2}
    recipe |= {"captioner.model_name_or_path": album / "captioner", "listener.path": album / "listener"}
    recipe |= {"evaluation.held_out": 8, "evaluation.max_new_tokens": 6, "objective.max_new_tokens": 6}
    recipe |= {"per_device_train_batch_size": 8, "bf16": "false", "output_dir": tmp_path / "run"}
    words = [str(word) for name, value in recipe.items() for word in (f"--{name}", value)]
    assert main(["train", *words]) == 0
    assert main(["score", str(tmp_path / "run"), "--bootstrap", "0"]) == 0
    data = ["--data", str(table), *column, "--limit", "16", "--max_new_tokens", "6", "--num_beams", "1"]
    capsys.readouterr()
    assert main(["score", str(album / "captioner"), *data, *listener, "--bootstrap", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["listener_R@1"] >= 0


@pytest.mark.slow
def test_videos_by_frames(album, caption):
    """Four seconds with a key-frame every half second, next to a photo."""
    pytest.importorskip("av", reason="videos need tellapart[video]")
    (album / "films").mkdir()
    film = write_video(album / "films" / "film.mp4", seconds=4, rate=10, every=5)
    options = ["--captioner", str(album / "captioner")]
    assert list(caption(film)) == list(caption(film.parent)) == ["film.mp4"]  # one caption per clip
    assert list(caption(film, "--frames", "0")) == [f"film.mp4#t={half / 2:.3f}" for half in range(8)]
    assert list(caption(film, "--frames", "1")) == [f"film.mp4#t={second:.3f}" for second in range(4)]
    shutil.copy(album / "photos" / names(album)[0], film.parent)
    assert len(caption(film.parent)) == 2
    assert len(caption(film.parent, "--frames", "0")) == 9
    assert main(["caption", str(film), *options, "--frames", "-1"]) == 2
