"""Folders as people have them: links in circles, names in other encodings, tables that name what is not there."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image, features

from pictures import images
from tellapart.cli.main import main
from tellapart.data.check import check
from tellapart.data.decoding import examine
from tellapart.data.folder import find_images
from tellapart.data.images import ImageError, ImageFile
from tellapart.data.load import load_dataset, read_split, source_at
from tellapart.errors import UsageError


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder with a.png, b.png, c.png."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, picture in zip("abc", images(3), strict=True):
        picture.save(folder / f"{name}.png")
    return folder


def test_links_in_circles_end(photos):
    (photos / "inner" / "deep").mkdir(parents=True)
    (photos / "a.png").rename(photos / "inner" / "deep" / "a.png")
    for link in ("loop", "inner/up", "inner/deep/top"):
        (photos / link).symlink_to(photos)
    (photos / "again").symlink_to("inner")  # no circle: the same images under another name
    found = [path.relative_to(photos).as_posix() for path in find_images(photos)]
    assert found == ["again/deep/a.png", "b.png", "c.png", "inner/deep/a.png"]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.jfif", "JPEG"),
        ("a.JPE", "JPEG"),
        ("a.apng", "PNG"),
        ("a.dib", "DIB"),
        ("a.pgm", "PPM"),
        ("a.avif", "AVIF"),
        ("a.jp2", "JPEG2000"),
        ("a.j2k", "JPEG2000"),
        ("a.ico", "ICO"),
    ],
)
def test_images_of_every_format_that_is_read_are_found(tmp_path, name, format):
    """They were left out of a folder without a word, though naming one read it."""
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    images(1)[0].save(tmp_path / name, format)
    assert find_images(tmp_path) == [tmp_path / name]
    image = load_dataset(tmp_path)[0].image
    assert image.open().mode == "RGB"
    assert "another format than its ending" not in examine(image.read(), name).kinds


def test_photos_of_a_phone_are_counted_as_unreadable_where_their_decoder_is_missing(photos, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(Image, "OPEN", {name: how for name, how in Image.OPEN.items() if name != "HEIF"})
    for name in ("IMG_1.HEIC", "IMG_2.heif"):
        (photos / name).write_bytes(b"\0\0\0\x18ftypheic" + bytes(50))
    assert main(["data", "check", str(photos), "--num_workers", "0"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name} is not a readable image (it is HEIC" in said for name in ("IMG_1.HEIC", "IMG_2.heif"))
    assert "pip install pillow-heif" in said


def test_a_folder_that_cannot_be_read_is_told(photos, monkeypatch, caplog):
    (photos / "locked").mkdir()
    scandir = os.scandir

    def locked(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    assert len(find_images(photos)) == 3
    assert f"{photos / 'locked'} cannot be read (Permission denied): its images are left out." in caplog.text


def test_a_name_that_is_not_utf_8_is_told_and_printed(photos, tmp_path, capsys):
    strange = Path(os.fsdecode(os.fsencode(photos) + b"/caf\xe9.png"))
    (photos / "a.png").rename(strange)
    with pytest.raises(ImageError, match=r"caf\\udce9.png has a name that is not UTF-8: rename the file."):
        ImageFile(strange).read()
    assert main(["data", "check", str(photos), "--num_workers", "0", "--output_dir", str(tmp_path / "lists")]) == 0
    assert "caf\\udce9.png has a name that is not UTF-8" in capsys.readouterr().out
    (broken,) = json.loads((tmp_path / "lists" / "check.json").read_text())["splits"]["train"]["broken"]
    assert os.fsencode(broken["id"]) == b"caf\xe9.png"


def test_a_name_in_a_tar_that_is_not_utf_8_is_told(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        member = tarfile.TarInfo("café.png")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    with pytest.raises(UsageError, match=r"x.tar: the name of 'caf\\udce9.png' is not valid Unicode"):
        load_dataset(tmp_path / "x.tar", split="train")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata.jsonl", '{"file_name": "a.png", "text": "a dog \\ud83d"}'),
        ("captions.json", '{"a": "a dog \\ud83d", "b": "x", "c": "y"}'),
        ("meta_cap.json", '{"a": {"caption": "a dog \\ud83d"}}'),
        ("captions_val.json", '{"images": [{"id": "\\ud83d", "file_name": "a.png"}]}'),
    ],
)
def test_half_a_character_is_told(photos, name, text):
    (photos / name).write_text(text)
    with pytest.raises(
        UsageError, match=rf"{name}: .* is not valid Unicode \('.*\\ud83d', character \d+\): correct it."
    ):
        load_dataset(photos, split="val")


def _coco(names: list[str]) -> dict:
    captions = [{"image_id": f"{i}", "caption": f"caption {i}"} for i in range(len(names))]
    return {"images": [{"id": i, "file_name": name} for i, name in enumerate(names)], "annotations": captions}


def _karpathy(names: list[str]) -> dict:
    sentences = [[{"raw": f"caption {i}"}] for i in range(len(names))]
    return {
        "images": [
            {"filename": name, "imgid": i, "split": "val", "sentences": sentences[i]} for i, name in enumerate(names)
        ]
    }


WITHOUT_THE_FIRST = {
    "annotations/captions_val.json": lambda names: json.dumps(_coco(names)),
    "dataset.json": lambda names: json.dumps(_karpathy(names)),
    "x_val.json": lambda names: json.dumps(
        [{"image": name, "image_id": i, "caption": f"caption {i}"} for i, name in enumerate(names)]
    ),
    "x.token": lambda names: "".join(f"{name}#0\tcaption {i}\n" for i, name in enumerate(names)),
    "x.csv": lambda names: "image,caption\n" + "".join(f"{name},caption {i}\n" for i, name in enumerate(names)),
    "images/metadata.jsonl": lambda names: "".join(
        json.dumps({"file_name": name, "text": f"caption {i}"}) + "\n" for i, name in enumerate(names)
    ),
}


@pytest.mark.parametrize("path", WITHOUT_THE_FIRST)
def test_one_missing_image_is_one_broken_image_wherever_it_stands(photos, tmp_path, path):
    """The images are in a folder that has to be found, and the first that the file names is gone."""
    photos.rename(tmp_path / "images")
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(WITHOUT_THE_FIRST[path](["gone.png", "a.png", "b.png", "c.png"]))
    with pytest.raises(UsageError, match=r"names 1 missing image \(of 4\), first .*gone.png"):
        load_dataset(file, split="val")
    (report,) = check({"val": read_split(source_at(file), "val")}, num_workers=0).splits.values()
    assert [Path(image.name).name for image in report.broken] == ["gone.png"]
    data = load_dataset(file, split="val", missing_files=True)
    assert [example.references for example in data] == [(f"caption {i}",) for i in range(4)]
    assert sum(example.image.path.is_file() for example in data) == 3


def test_a_table_may_name_images_by_their_whole_path(photos, tmp_path):
    rows = [{"file_name": str(photos / f"{name}.png"), "text": name} for name in "ab"]
    for folder in (photos, tmp_path / "elsewhere"):
        folder.mkdir(exist_ok=True)
        (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load_dataset(photos, split="train").references == {"a.png": ["a"], "b.png": ["b"], "c.png": []}
    absolute = {str(photos / "a.png"): ["a"], str(photos / "b.png"): ["b"]}
    assert load_dataset(tmp_path / "elsewhere", split="train").references == absolute


def test_rows_of_nothing_below_a_table_are_passed_over_but_not_a_row_without_an_image(photos):
    (photos / "metadata.csv").write_bytes("\ufefffile_name;text\r\na.png;größe\r\n;\r\n;\r\n".encode())
    assert load_dataset(photos, split="train").references == {"a.png": ["größe"], "b.png": [], "c.png": []}
    (photos / "metadata.csv").write_text("file_name,text\na.png,x\n,y\n")
    with pytest.raises(UsageError, match=r"line 3: 'file_name' is empty: name an image, or remove the line."):
        load_dataset(photos, split="train")


def test_check_names_ids_and_images_of_empty_captions(photos, capsys):
    rows = [("a.png", 7, "x"), ("b.png", "7", " "), ("c.png", 8, "")]
    lines = (json.dumps({"file_name": name, "image_id": known, "text": text}) + "\n" for name, known, text in rows)
    (photos / "metadata.jsonl").write_text("".join(lines))
    assert main(["data", "check", str(photos), "--num_workers", "0", "--strict"]) == 2
    page = capsys.readouterr().out
    assert "ids named twice (1):\n  train  7\n" in page
    assert "images with empty captions (2):\n  train  7\n  train  8\n" in page
