"""What we write is what Hugging Face's datasets reads, and the other way round."""

import sys
from collections import defaultdict

import pytest
from layouts import picture

from tellapart.data.convert import convert
from tellapart.data.load import load_dataset, source_at, splits_of
from tellapart.errors import UsageError

datasets = pytest.importorskip("datasets")

NAMES = {"train": "train", "val": "validation", "test": "test"}
"""Our splits in Hugging Face's words."""


@pytest.fixture(scope="module")
def coco(shared_data):
    return source_at(shared_data / "coco-mini" / "dataset_karpathy.json")


@pytest.fixture(autouse=True)
def quiet():
    datasets.disable_progress_bars()


@pytest.mark.parametrize("to", ["folder", "metadata-parquet", "metadata-csv"])
def test_imagefolder_reads_what_we_write(coco, tmp_path, to):
    convert(coco, tmp_path / "out", to)
    theirs = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    for split, name in NAMES.items():
        rows = theirs[name].cast_column("image", datasets.Image(decode=False))
        found, pictures = defaultdict(list), {}
        for row in rows:
            found[str(row["image_id"])] += row["captions"] if "captions" in row else [row["text"]]
            pictures[str(row["image_id"])] = row["image"]["path"]
        ours = coco.read([split])
        assert found == {e.id: list(e.references) for e in ours}
        for e in ours:
            with open(pictures[e.id], "rb") as file:
                assert file.read() == e.image.read()


def test_webdataset_reads_what_we_write(coco, tmp_path):
    convert(coco, tmp_path / "out", "webdataset")
    theirs = datasets.load_dataset("webdataset", data_dir=str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    for split, name in NAMES.items():
        rows = theirs[name].cast_column("jpg", datasets.Image(decode=False))
        for ours, row in zip(coco.read([split]), rows, strict=True):
            assert row["__key__"] == row["json"]["image_id"] == ours.id
            assert row["json"]["captions"] == list(ours.references)
            assert row["txt"] == ours.references[0]
            assert row["jpg"]["bytes"] == ours.image.read()


def test_load_from_disk_reads_what_we_write(coco, tmp_path):
    convert(coco, tmp_path / "out", "datasets")
    theirs = datasets.load_from_disk(str(tmp_path / "out"))
    assert list(theirs) == ["train", "val", "test"]
    first = coco.read(["val"])[0]
    assert theirs["val"][0]["captions"] == list(first.references)
    assert theirs["val"][0]["image"].size == first.image.open().size


def made(tmp_path, **columns):
    data = datasets.Dataset.from_dict(columns)
    data.save_to_disk(str(tmp_path / "data"))
    return tmp_path / "data"


def test_their_data_set_on_disk(tmp_path):
    file = picture(tmp_path / "a.png", 9)
    features = datasets.Features({"picture": datasets.Image(), "alt": datasets.Value("string")})
    data = datasets.Dataset.from_dict({"picture": [str(file)] * 2, "alt": ["x", None]}, features=features)
    data.save_to_disk(str(tmp_path / "data"))
    found = load_dataset(tmp_path / "data", split="any", caption_column="alt")
    assert found.references == {"0": ["x"], "1": []}
    assert found[1].image.read() == file.read_bytes()
    assert found[1].image.name.endswith("a.png")
    assert found[0].image.open().size == (5, 4)
    assert found[0].image.fingerprint() == found[1].image.fingerprint()
    assert splits_of(tmp_path / "data") == ["train"]
    with pytest.raises(UsageError, match="no column 'words', only picture, alt: name one of these"):
        load_dataset(tmp_path / "data", split="any", caption_column="words")


def test_a_row_a_caption_and_paths_of_images(tmp_path):
    picture(tmp_path / "data" / "a.png")
    path = made(tmp_path, file_name=["a.png"] * 2, image_id=[5, 5], caption=["x", "y"])
    assert load_dataset(path, split="train").references == {"5": ["x", "y"]}
    with pytest.raises(UsageError, match="none of the columns"):
        load_dataset(made(tmp_path, words=["x"]), split="train")


@pytest.mark.parametrize("named", [True, False])
def test_different_images_of_one_id_on_disk_are_refused(named, tmp_path):
    """The second was dropped, and its caption went to the first."""
    files = [picture(tmp_path / f"{shade}.png", shade) for shade in (1, 2)]
    cells = [{"path": str(file) if named else None, "bytes": None if named else file.read_bytes()} for file in files]
    features = datasets.Features({"image": datasets.Image(), "image_id": datasets.Value("string")})
    for place, images in enumerate(([cells[0], cells[0]], cells)):
        rows = datasets.Dataset.from_dict({"image": images, "image_id": ["a", "a"]}, features=features)
        rows.save_to_disk(str(tmp_path / str(place)))
    assert load_dataset(tmp_path / "0", split="train").ids == ["a"]
    renamed = [cells[0], {"path": "other.png", "bytes": files[0].read_bytes()}]  # some builders name each row's image
    rows = datasets.Dataset.from_dict({"image": renamed, "image_id": ["a", "a"]}, features=features)
    rows.save_to_disk(str(tmp_path / "renamed"))
    assert load_dataset(tmp_path / "renamed", split="train").ids == ["a"]
    with pytest.raises(UsageError, match="two different images have the id 'a', the later one in row 1"):
        load_dataset(tmp_path / "1", split="train")


def test_names_on_the_hub(tmp_path, monkeypatch):
    """The hub itself is out of reach: the library's two functions answer from a folder."""
    file = picture(tmp_path / "a.png")
    rows = datasets.Dataset.from_dict({"image": [str(file)], "caption": [["x", "y"]]}).cast_column(
        "image", datasets.Image()
    )
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name: ["test", "validation"])
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: asked.append((name, split)) or rows)
    for name in ("owner/photos", "hf://owner/photos", "hf://datasets/owner/photos"):
        assert splits_of(name) == ["validation", "test"]
        assert load_dataset(name, split="val").references == {"0": ["x", "y"]}
        assert asked.pop() == ("owner/photos", "validation")
    with pytest.raises(UsageError, match="owner/photos has no split 'train', only test, validation"):
        load_dataset("owner/photos", split="train")


def test_names_that_are_not_on_the_hub(tmp_path, monkeypatch):
    def offline(name):
        raise ConnectionError("Couldn't reach the Hub.\nTry later.")

    monkeypatch.setattr(datasets, "get_dataset_split_names", offline)
    with pytest.raises(
        UsageError, match=r"owner/no does not exist and .* \(Couldn't reach the Hub\. Try later\): check"
    ):
        load_dataset("owner/no", split="train")
    for name in ("data/captions.json", "photos/x.tar", "photos/a.png", "nowhere", "a/b/c"):
        with pytest.raises(UsageError, match=f"{name} does not exist: check the path"):
            load_dataset(name, split="train")
    with pytest.raises(UsageError, match="hf://x is not a name on the hub"):
        load_dataset("hf://x", split="train")


def test_without_the_package(tmp_path, monkeypatch):
    path = made(tmp_path, image=["a.png"], text=["x"])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'tellapart\[datasets\]'"):
        load_dataset(path, split="train")


def test_a_damaged_data_set(tmp_path):
    path = made(tmp_path, image=["a.png"], text=["x"])
    next(path.glob("*.arrow")).write_bytes(b"no")
    with pytest.raises(UsageError, match=r"data cannot be read as a Hugging Face data set \("):
        load_dataset(path, split="train")
