"""Layouts as other tools write them: what is read, and the sentence about what cannot be."""

import logging

import pytest
from layouts import picture, tar, write

from tellapart.data.load import load_dataset, splits_of
from tellapart.errors import UsageError


def load(path, split="train", **options):
    return load_dataset(path, split=split, **options)


@pytest.fixture
def photos(tmp_path):
    for name in ("a", "b", "c"):
        picture(tmp_path / f"{name}.png", ord(name))
    return tmp_path


def test_lavis_rows_of_training_and_of_testing(photos):
    train = [
        {"image": "b.png", "caption": " one\n", "image_id": "coco_2"},
        {"image": "a.png", "caption": "two", "image_id": 1},
        {"image": "b.png", "caption": "three", "image_id": "coco_2"},
    ]
    file = write(photos / "coco_karpathy_train.json", train)
    assert load(file).references == {"coco_2": [" one\n", "three"], "1": ["two"]}
    write(photos / "coco_karpathy_val.json", [{"image": "c.png", "caption": ["x", "y"]}])
    assert splits_of(photos) == ["train", "val"]
    assert load(photos, "val").references == {"c.png": ["x", "y"]}
    with pytest.raises(UsageError, match="no split 'test', only train, val"):
        load(photos, "test")
    write(file, [*train, {"image": "c.png", "caption": "x", "image_id": 1}])
    with pytest.raises(UsageError, match=r"row 4 gives id '1' to c\.png, but it is that of a\.png"):
        load(file)


def test_clipscore_candidates_and_references(photos, tmp_path):
    file = write(tmp_path / "json" / "refs.json", {"c": ["x", "y"], "a": "z"})
    assert load(file, images=photos).references == {"c": ["x", "y"], "a": ["z"]}
    with pytest.raises(UsageError, match="there is no image named 'd'"):
        load(write(file, {"d": "x"}), images=photos)
    with pytest.raises(UsageError, match=r"refs.json names 'a' more than once"):
        load(write(file, '{"a": "x", "a": "y"}'), images=photos)


@pytest.mark.parametrize("caption", ["z", {"caption": "z"}])
def test_a_name_that_several_folders_have_needs_its_folder(tmp_path, caption):
    for shade, folder in enumerate(("x", "y")):
        picture(tmp_path / "photos" / folder / "a.png", shade)
    file = tmp_path / "photos" / "captions.json"
    with pytest.raises(UsageError, match=r"'a' is the name of .*x/a\.png and of .*y/a\.png: write the folder before"):
        load(write(file, {"a": caption}))
    (example,) = load(write(file, {"y/a": caption}))
    assert example.image.path == tmp_path / "photos" / "y" / "a.png"


def test_settings_beside_images_are_no_captions(photos):
    unusual = [{"image": "a.png", "caption": "x"}]
    write(photos / "notes.json", unusual)
    write(photos / "broken.json", "{")
    write(photos / "settings.json", {"theme": "dark"})
    write(photos / "labels.csv", "key,value\n1,2\n")
    write(photos / "meta.json", {"theme": {"caption": "dark"}})
    write(photos / "captions.json", {"theme": "dark"})
    assert load(photos).ids == ["a.png", "b.png", "c.png"]
    assert load(photos / "notes.json").ids == ["a.png"]
    write(photos / "dataset.json", "{")
    with pytest.raises(UsageError, match=r"dataset\.json, line 1, column 2: not valid JSON"):
        load(photos)


def test_sidecars(photos, caplog):
    write(photos / "a.txt", "one\r\ntwo\u2028lines\n")
    write(photos / "b.txt", "\ufefflast line without its end")
    picture(photos / "10_dog" / "d%20e.png")
    write(photos / "10_dog" / "d%20e.txt", "\n x \n")
    data = load(photos)
    assert data.references == {
        "10_dog/d%20e": [" x "],  # a space needs no encoding, so this is a name as it stands
        "a": ["one", "two\nlines"],
        "b": ["last line without its end"],
        "c": [],
    }
    assert "1 of 4 images have no .txt file" in caplog.text
    write(photos / "a.caption", "other")
    with pytest.raises(UsageError, match=r"both \.txt and \.caption files next to its images: give caption_extension"):
        load(photos)
    assert load(photos, caption_extension=".caption").references["a"] == ["other"]
    assert load(photos, caption_extension="txt").references["a"] == ["one", "two\nlines"]
    with pytest.raises(UsageError, match=r"holds no \.cap file next to an image"):
        load(photos, caption_extension="cap", format="sidecars")
    picture(photos / "a.jpg")
    with pytest.raises(UsageError, match=r"a\.\w+ and .*a\.\w+ differ in their ending only"):
        load(photos, caption_extension="txt")
    write(photos / "a.txt", b"fine\nna\xefve\n")
    (photos / "a.jpg").unlink()
    with pytest.raises(UsageError, match=r"a\.txt is not UTF-8 text \(line 2, byte 7\)"):
        load(photos, caption_extension="txt")


def test_sdscripts(photos):
    picture(photos / "deep" / "d.png")
    meta = {
        str(photos / "a.png"): {"caption": "one\ntwo", "tags": "x"},
        "b": {"tags": "red, big"},
        "deep/d.png": {"caption": "three"},
        "c.png": {"caption": ""},
    }
    file = write(photos / "meta_cap.json", meta)
    expected = {"a": ["one", "two"], "b": ["red, big"], "deep/d": ["three"], "c": []}
    assert load(file).references == load(photos).references == expected
    with pytest.raises(UsageError, match=r"1 missing image \(of 1\), first /nowhere/a\.png"):
        load(write(file, {"/nowhere/a.png": {"caption": "x"}}))
    with pytest.raises(UsageError, match="there is no image named 'e'"):
        load(write(file, {"e": {"caption": "x"}}))


@pytest.mark.parametrize("heading", ["text", "caption", "prompt"])
def test_metadata_csv(photos, heading):
    file = write(photos / "metadata.csv", f'file_name,{heading},more\nb.png,"x, ""y""\r\nz",1\na.png\nb.png, w ,2\n')
    assert load(photos).references == {"b.png": ['x, "y"\r\nz', " w "], "a.png": [], "c.png": []}
    assert load(file).ids == load(photos).ids
    write(file, "file_name,label\nb.png,x\n")
    assert not any(load(photos).references.values()), "captions are only needed where they are used"
    assert load(photos, caption_column="label").references["b.png"] == ["x"]
    write(file, "path,text\nb.png,x\n")
    assert load(photos).references["b.png"] == ["x"]
    write(file, "photo,text\nb.png,x\n")
    with pytest.raises(UsageError, match=r"line 2 has no 'file_name'"):
        load(photos)
    assert load(photos, image_column="photo").references["b.png"] == ["x"]
    write(file, 'file_name,text\nb.png,"x\n')
    with pytest.raises(UsageError, match=r"metadata.csv, line 2: not a valid table \(unexpected end of data\)"):
        load(photos)
    write(file, "file_name,text\nb.png,x,y\n")
    with pytest.raises(UsageError, match="line 2: 3 cells under a heading of 2"):
        load(photos)
    write(file, "file_name,text\nd.png,x\n")
    with pytest.raises(UsageError, match=r"names 1 missing image \(of 4\), first .*d\.png"):
        load(photos)


def test_metadata_above_the_split_folders(tmp_path):
    picture(tmp_path / "train" / "a.png"), picture(tmp_path / "test" / "a.png")
    rows = '{"file_name": "train/a.png", "text": "x"}\n{"file_name": "test/a.png", "text": "y"}\n'
    write(tmp_path / "metadata.jsonl", rows)
    assert load(tmp_path, "test").references == {"test/a.png": ["y"]}
    assert load(tmp_path).references == {"train/a.png": ["x"]}


def test_metadata_parquet(photos):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"file_name": "c.png", "caption": "x", "image_id": 7},
        {"file_name": "a.png", "caption": None, "image_id": 8},
    ]
    pq.write_table(pa.Table.from_pylist(rows), photos / "metadata.parquet")
    assert load(photos).references == {"7": ["x"], "8": [], "b.png": []}
    write(photos / "metadata.parquet", "no")
    with pytest.raises(UsageError, match=r"metadata.parquet is not a readable parquet file"):
        load(photos)


def test_ids_of_metadata(photos):
    rows = '{"file_name": "c.png", "text": "x", "image_id": 7}\n{"file_name": "a.png", "text": "y", "image_id": "7"}\n'
    write(photos / "metadata.jsonl", rows)
    with pytest.raises(UsageError, match="names image id '7' more than once"):
        load(photos)
    write(photos / "metadata.jsonl", rows.replace("a.png", "c.png").replace('"7"', '"8"'))
    with pytest.raises(UsageError, match=r"line 2 gives c\.png the id '8', but it has '7'"):
        load(photos)


def test_tables(photos, tmp_path):
    tsv = write(tmp_path / "cc3m.tsv", "title\tfilepath\nx y\tb.png\nz\ta.png\nw\tb.png\n")
    expected = {"b.png": ["x y", "w"], "a.png": ["z"]}
    assert load(tsv).references == expected
    piped = write(tmp_path / "results.csv", "image_name| comment_number| comment\nb.png| 0| A man .\nb.png| 1| x\n")
    assert load(piped).references == {"b.png": [" A man .", " x"]}
    kaggle = write(tmp_path / "captions.txt", "image,caption\na.png,A child .\n")
    assert load(kaggle).references == {"a.png": ["A child ."]}
    with pytest.raises(
        UsageError, match=r"none of the columns file_name, .* and \d+ more, only a, b: give image_column"
    ):
        load(write(tmp_path / "x.csv", "a,b\n1,2\n"))
    with pytest.raises(UsageError, match="no column 'words', only title, filepath: name one of these"):
        load(tsv, caption_column="words")
    with pytest.raises(UsageError, match=r"1 missing image \(of 1\), first .*none\.png"):
        load(write(tmp_path / "x.csv", "filepath,title\nnone.png,2\n"))
    with pytest.raises(UsageError, match=r"x\.csv holds no images: it has no rows\.$"):
        load(write(tmp_path / "x.csv", "filepath,title\n"))
    with pytest.raises(UsageError, match=r"x\.jsonl holds no images: it has no rows\.$"):  # which have no heading
        load(write(tmp_path / "x.jsonl", ""))
    with pytest.raises(UsageError, match="line 2: 'filepath' is empty"):
        load(write(tmp_path / "x.csv", 'filepath,title\n"",x\n'))


def test_a_table_with_many_and_long_columns_is_refused_in_a_short_sentence(tmp_path):
    columns = ["chosen", "rejected", "x" * 4000, *(f"c{n}" for n in range(1000))]
    file = write(tmp_path / "x.csv", f"{','.join(columns)}\n{','.join('1' for _ in columns)}\n")
    with pytest.raises(UsageError) as caught:
        load(file)
    said = str(caught.value).replace(str(file), "")
    assert len(said) < 240
    assert "only chosen, rejected, 'xxxxxxxxx...xxxxxxxxx', c0, c1, c2 and 997 more: give image_column" in said


@pytest.mark.parametrize("name", ["results_20130124.token", "Flickr8k.token.txt", "tokens.txt"])
@pytest.mark.parametrize("where", [".", "images", "flickr30k-images"])
def test_flickr(tmp_path, name, where):
    for stem in ("1", "2"):
        picture(tmp_path / where / f"{stem}.jpg")
    file = write(tmp_path / name, "2.jpg#0\tA man .\n2.jpg#1\tTwo\tmen\r\n1.jpg#0\tx\n")
    assert load(file).references == {"2": ["A man .", "Two\tmen"], "1": ["x"]}
    assert load(file, images=tmp_path / where).ids == ["2", "1"]
    write(file, "2.jpg#0\tA man .\n2.jpg A\n")
    with pytest.raises(UsageError, match=r"line 2: '2\.jpg A' is not name\.jpg#0"):
        load(file)


def test_webdataset_of_img2dataset(photos, tmp_path):
    data = (photos / "a.png").read_bytes()
    shards = tmp_path / "shards"
    first = {
        "000000000.png": data,
        "000000000.txt": " x\n",
        "000000000.json": '{"caption": " x\\n", "key": "000000000"}',
    }
    tar(shards / "00000.tar", {**first, "000000001.png": data, "000000001.json": '{"caption": null}'})
    tar(shards / "00001.tar", {"deep/b.c.png": data, "deep/b.caption": "y"} | {"deep/d.PNG": data, "deep/d.cls": "3"})
    write(shards / "00000.parquet", "ignored")
    (shards / "00001.tar").write_bytes((shards / "00001.tar").read_bytes().replace(b"b.c.png", b"b.png\0\0"))
    with pytest.raises(UsageError, match=r"00001.tar is not a whole tar archive"):
        load(shards)  # the header's check sum tells
    tar(shards / "00001.tar", {"deep/b.png": data, "deep/b.caption": "y"} | {"deep/d.PNG": data, "deep/d.cls": "3"})
    expected = {"000000000": [" x\n"], "000000001": [], "deep/b": ["y"], "deep/d": []}
    assert load(shards).references == expected
    assert (
        load(shards / "{00000..00001}.tar").references == load(f"{shards}/{{00000,00001}}.tar").references == expected
    )
    assert load(shards / "00001.tar").ids == ["deep/b", "deep/d"]
    assert load(shards)[2].image.read() == data
    with pytest.raises(UsageError, match=r"00002\.tar does not exist: correct the pattern"):
        load(shards / "{00000..00002}.tar")


def test_an_archive_is_read_once(photos, tmp_path, monkeypatch):
    from tellapart.data.formats import webdataset as module

    data = (photos / "a.png").read_bytes()
    file = tar(tmp_path / "x.tar", {"a.png": data, "a.txt": "x"})
    reads = []
    whole = module._read
    monkeypatch.setattr(module, "_read", lambda *arguments: reads.append(1) or whole(*arguments))
    assert load(file).references == load(file).references == {"a": ["x"]}
    assert len(reads) == 1
    tar(file, {"a.png": data, "a.txt": "longer", "b.png": data})
    assert load(file).references == {"a": ["longer"], "b": []}
    assert len(reads) == 2


def test_damaged_archives(photos, tmp_path):
    data = bytes(3000)
    file = tar(tmp_path / "x.tar", {"a.png": data, "a.txt": "x", "b.png": data})
    whole = file.read_bytes()
    for end in (0, 100, 512, 1000, 512 + 3072, 6000, 512 * 9, 512 * 15):  # within headers, within data, between members
        file.write_bytes(whole[:end])
        with pytest.raises(UsageError, match=r"x\.tar is not a whole tar archive \("):
            load(file)
    file.write_bytes(b"no tar at all, " * 100)
    with pytest.raises(UsageError, match="is not a whole tar archive"):
        load(file)
    with pytest.raises(UsageError, match="sample 'a' has no image, not one image"):
        load(tar(file, {"a.txt": "x"}))
    with pytest.raises(UsageError, match=r"sample 'x/a' has no image \(the key of x/a\.0\.png ends at its first dot\)"):
        load(tar(file, {"x/a.0.png": data, "x/a.1.png": data}))
    with pytest.raises(UsageError, match=r"has a\.png and a\.jpg, not one image"):
        load(tar(file, {"a.png": data, "a.jpg": data}))
    with pytest.raises(UsageError, match=r"a\.json, line 1, column 2: not valid JSON"):
        load(tar(file, {"a.png": data, "a.json": "{"}).rename(tmp_path / "y.tar"))
    with pytest.raises(UsageError, match=r"a\.txt is not UTF-8 text"):
        load(tar(tmp_path / "z.tar", {"a.png": data, "a.txt": b"\xff"}))
    with pytest.raises(UsageError, match="names image id 'a' more than once"):
        load(tar(tmp_path / "w.tar", {"a.png": data, "b.png": data, "b.json": '{"image_id": "a"}'}))


@pytest.mark.parametrize("names", [("train", "val"), ("train", "validation"), ("train", "dev")])
def test_split_folders_of_any_format(tmp_path, names):
    data = picture(tmp_path / "p.png").read_bytes()
    for split in names:
        tar(tmp_path / "wds" / split / "0.tar", {f"{split}.png": data})
        write(picture(tmp_path / "side" / split / f"{split}.png").with_suffix(".txt"), "x")
        picture(tmp_path / "csv" / split / f"{split}.png")
        write(tmp_path / "csv" / split / "list.csv", f"image,caption\n{split}.png,x\n")
    for layout in ("wds", "side", "csv"):
        assert splits_of(tmp_path / layout) == list(names)
        assert load(tmp_path / layout, "val").ids == [f"{names[1]}.png" if layout == "csv" else names[1]]
        there = ", ".join(sorted(names))
        with pytest.raises(UsageError, match=f"no split 'test', only {there}"):
            load(tmp_path / layout, "test")


def test_coco_by_convention(tmp_path):
    for year in ("train2017", "val2017"):
        picture(tmp_path / year / "1.png")
        content = {"images": [{"id": 1, "file_name": "1.png"}], "annotations": [{"image_id": 1, "caption": year}]}
        write(tmp_path / "annotations" / f"captions_{year}.json", content)
        write(tmp_path / "annotations" / f"instances_{year}.json", "not even read")
    for path in (tmp_path, tmp_path / "annotations"):
        assert splits_of(path) == ["train", "val"]
        assert load(path, "val").references == {"1": ["val2017"]}
    file = tmp_path / "annotations" / "captions_val2017.json"
    assert splits_of(file) == ["val"]
    assert load(file, "whatever").references == {"1": ["val2017"]}
    write(tmp_path / "annotations" / "captions_val2014.json", (tmp_path / "annotations" / file.name).read_text())
    with pytest.raises(
        UsageError, match=r"two files of split 'val', captions_val2014\.json and captions_val2017\.json"
    ):
        splits_of(tmp_path)


def test_splits_of_what_is_not_divided(photos):
    assert splits_of(photos) == splits_of(photos / "a.png") == ["train"]
    with pytest.raises(UsageError, match="nowhere does not exist"):
        splits_of(photos / "nowhere")


def test_wrong_kind_of_path(photos):
    for name in ("sidecars", "folder", "webdataset", "datasets"):
        with pytest.raises(UsageError, match=f"which format '{name}' needs"):
            load(photos / "a.png", format=name)
    for name in ("karpathy", "coco", "lavis", "sdscripts", "clipscore"):
        with pytest.raises(
            UsageError, match=rf"is not a \.json file, nor a folder with one, which format '{name}' needs"
        ):
            load(photos, format=name)
    for name in ("csv", "tsv"):
        with pytest.raises(UsageError, match=rf"holds no \.{name} file"):
            load(photos, format=name)
    with pytest.raises(UsageError, match="holds 0 token files"):
        load(photos, format="flickr")
    for name in ("csv", "parquet"):
        with pytest.raises(UsageError, match=rf"holds no metadata\.{name}"):
            load(photos, format=f"metadata-{name}")


def test_warnings_name_no_wrong_number(photos, caplog):
    caplog.set_level(logging.WARNING)
    write(photos / "metadata.jsonl", '{"file_name": "a.png", "captions": ["x", " "]}\n')
    load(photos)
    assert "2 of 3 images are not in metadata.jsonl" in caplog.text
    assert "dropped 1 of 2 captions" in caplog.text
