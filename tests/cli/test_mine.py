"""``tellapart mine`` on pictures of a test and on real photos."""

from __future__ import annotations

import io
import shutil

import pyarrow.parquet
import pytest
from PIL import Image

from tellapart.cli.main import main
from tellapart.data.inspection import look_alikes
from tellapart.data.load import load_dataset
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.late import LateListener
from tellapart.listeners.mining import mine
from tiny_late import tiny_late


def test_mining_prints_a_summary_and_writes_what_a_training_reads(materials, tmp_path, capsys):
    output = tmp_path / "near.parquet"
    words = ["mine", str(materials.data), "--listener", str(materials.listener), "--k", "2", "--output", str(output)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "8 images of data.json (train): 8 different pictures; exact search" in said
    assert "kept in" in said
    dataset = load_dataset(materials.data, split="train")
    rows = {row["id"]: row["neighbours"] for row in pyarrow.parquet.read_table(output).to_pylist()}
    listener = ClipListener.from_pretrained(materials.listener)
    found = mine(listener, dataset, k=2)
    assert rows == dict(zip(dataset.ids, found.of(dataset.ids), strict=True))
    cosines = listener.encode_ids(dataset.ids) @ listener.encode_ids(dataset.ids).T
    for i, name in enumerate(dataset.ids):
        order = sorted((j for j in range(8) if j != i), key=lambda j: -float(cosines[i, j]))
        assert rows[name] == [dataset.ids[j] for j in order[:2]]


def test_a_late_interaction_listener_finds_look_alikes_too(materials, tmp_path, capsys):
    """It compares pictures token by token; a training takes the same ones."""
    folder, output = tmp_path / "late", tmp_path / "near.parquet"
    tiny_late().save(folder)
    words = ["mine", str(materials.data), "--listener", str(folder), "--k", "2", "--output", str(output)]
    assert main(words) == 0
    rows = {row["id"]: row["neighbours"] for row in pyarrow.parquet.read_table(output).to_pylist()}
    listener, dataset = LateListener.from_pretrained(folder), load_dataset(materials.data, split="train")
    listener.cache_images(dataset)
    vectors = listener.vectors_of(dataset.ids).flatten(1).double()
    for i, name in enumerate(dataset.ids):
        cosines = [float(vectors[i] @ other / vectors[i].norm() / other.norm()) for other in vectors]
        order = sorted((j for j in range(8) if j != i), key=lambda j: -cosines[j])
        assert rows[name] == [dataset.ids[j] for j in order[:2]]
    mined = {"listener": str(folder), "k": 2}
    objective = {"neighbour_ranks": [1, 2]}
    recipe = materials.recipe(tmp_path, "rl", objective=objective, neighbours=mined, reward=None)
    capsys.readouterr()
    assert main(["train", str(recipe), "--dry_run"]) == 0
    assert main([*words, "--prefix", "a photo of"]) == 2
    assert "late-interaction listener, which puts no words before captions" in capsys.readouterr().err


def test_what_is_wrong_is_one_sentence(materials, tmp_path, capsys):
    data, listener = str(materials.data), ["--listener", str(materials.listener)]
    for words, told in (
        ([data], "give --listener"),
        ([*listener], "name one data set"),
        ([data, *listener, "--output", str(tmp_path / "near.json")], "written as .parquet"),
        ([data, *listener, "--k", "8"], "ask for at most 7"),
        ([data, *listener, "--k", "0"], "k is 0"),
        (
            [data, *listener, "--engine", "exact", "--recall", "0.5"],
            "--recall is for faiss, and --engine exact finds all",
        ),
        ([data, *listener, "--image_column", "photo"], "is not a table and has no column 'photo'"),
    ):
        assert main(["mine", *words]) == 2
        assert told in capsys.readouterr().err


def test_archives_that_are_damaged_are_left_out_and_told(materials, tmp_path, capsys):
    """They were missing without a word."""
    for number in range(3):
        shutil.copy(materials.photos / f"{number:02}.png", tmp_path)
    (tmp_path / "0.tar").write_bytes(b"no tar at all" * 99)
    words = ["mine", str(tmp_path), "--listener", str(materials.listener), "--k", "1"]
    assert main(words) == 0
    assert "0.tar is not a" in capsys.readouterr().err
    assert main([*words, "--strict"]) == 2


def test_the_file_that_is_read_is_not_replaced(materials, tmp_path, capsys):
    table = tmp_path / "photos.parquet"
    table.write_bytes(b"pictures, perhaps the only copy")
    for command, more in (("mine", ["--listener", str(materials.listener)]), ("questions", [])):
        assert main([command, str(table), *more, "--output", f"{tmp_path}/./photos.parquet"]) == 2
        assert "photos.parquet is the input, which would be lost: name another file." in capsys.readouterr().err
        assert table.read_bytes() == b"pictures, perhaps the only copy"


@pytest.fixture(scope="module")
def album(shared_data, tmp_path_factory):
    """Twelve photos, of which two are there again: byte for byte, and smaller and compressed."""
    folder = tmp_path_factory.mktemp("album")
    photos = sorted((shared_data / "unlabelled").glob("*.jpg"))[:12]
    for photo in photos:
        (folder / photo.name).write_bytes(photo.read_bytes())
    (folder / "twin.jpg").write_bytes(photos[0].read_bytes())
    smaller, buffer = Image.open(photos[1]), io.BytesIO()
    smaller.resize((smaller.width // 2, smaller.height // 2)).save(buffer, "JPEG", quality=60)
    (folder / "smaller.jpg").write_bytes(buffer.getvalue())
    Image.open(photos[2]).save(folder / "same_pixels.png")
    return folder


def test_copies_of_photos_are_no_neighbours(album, materials, capsys):
    names = sorted(path.stem for path in album.glob("*.jpg"))[:3]
    words = ["mine", str(album), "--listener", str(materials.listener), "--k", "10"]
    assert main([*words, "--near_duplicates", "true"]) == 0
    said = capsys.readouterr().out
    assert "--near_duplicates" not in said
    assert "15 images" in said
    assert "12 different pictures (copies left out: 1 of the same content, 2 of the same look)" in said
    dataset = load_dataset(album, split="train")
    groups = [sorted(group) for group in look_alikes(dataset, num_workers=0)]
    of = {example.id: example.image.name.rpartition("/")[2].partition(".")[0] for example in dataset}
    copies = {frozenset(of[name] for name in group) for group in groups}
    assert copies == {frozenset(pair) for pair in zip(names, ("twin", "smaller", "same_pixels"), strict=True)}
    listener = ClipListener.from_pretrained(materials.listener)
    found = mine(listener, dataset, 10, same=groups)
    for name, near in zip(found.ids, found.of(found.ids), strict=True):
        pictures = [next((frozenset(g) for g in groups if other in g), frozenset([other])) for other in [name, *near]]
        assert len(set(pictures)) == 11
    plain = mine(listener, dataset, 10)  # without decoding, equal bytes are known, and equal pixels by their embedding
    assert plain.about["same_content"] == 1
    assert plain.about["same_embedding"] >= 1
    assert mine(listener, dataset, 10, same_above=2.0).about["pictures"] == 14


def test_coco_photos_are_mined(shared_data, materials, capsys):
    data = shared_data / "coco-mini" / "dataset_karpathy.json"
    assert main(["mine", str(data), "--listener", str(materials.listener)]) == 0
    first = capsys.readouterr().out
    assert "80 different pictures" in first
    assert main(["mine", str(data), "--listener", str(materials.listener)]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == first.splitlines()[:-1]


def test_a_file_of_something_else_is_not_replaced(materials, tmp_path, capsys):
    words = [str(materials.data), "--output"]
    for command, name, more in (
        ("mine", "other.parquet", ["--listener", str(materials.listener)]),
        ("questions", "other.json", []),
    ):
        (tmp_path / name).write_text('{"annotations": []}')
        assert main([command, *words, str(tmp_path / name), *more]) == 2
        assert "exists and holds no" in capsys.readouterr().err
        assert (tmp_path / name).read_text() == '{"annotations": []}'
    near = [str(tmp_path / "near.parquet"), "--listener", str(materials.listener), "--k", "2"]
    assert main(["mine", *words, *near]) == main(["mine", *words, *near]) == 0, "its own is"
