"""Sets of image features: tellapart's own layout, folders of arrays, HDF5, and how they become batches."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.features.base import FeatureInputs
from tellapart.data.features.open import open_features, require_features, with_features
from tellapart.data.features.store import About, FeatureStore, FeatureWriter, clear_features
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError
from tellapart.recipe.feature_inputs import usable

RANDOM = np.random.default_rng(0)
REGIONS = {
    "one": RANDOM.standard_normal((1, 3)).astype(np.float32),
    "a/b.jpg": RANDOM.standard_normal((4, 3)).astype(np.float32),
    "drei": RANDOM.standard_normal((2, 3)).astype(np.float32),
}


def about(pool="grid", dtype="float32", **changes) -> About:
    return About(**{"model": "m", "weights": "w", "pool": pool, "width": 3, "dtype": dtype} | changes)


def written(folder, arrays, *, shard_images=2, **settings) -> FeatureStore:
    writer = FeatureWriter(folder, about(**settings), shard_images=shard_images)
    for name, array in arrays.items():
        writer.add([(name, f"print of {name}", array)])
    writer.flush()
    return FeatureStore(folder)


def dataset(tmp_path, ids) -> CaptionDataset:
    return CaptionDataset([Example(i, ImageFile(tmp_path / "none.jpg"), ("a dog ",)) for i in ids], name="photos")


def test_what_is_stored_comes_back_from_memory_maps(tmp_path):
    store = written(tmp_path, REGIONS)
    assert sorted(path.name for path in tmp_path.glob("*.npy")) == ["shard-00000.npy", "shard-00001.npy"]
    for name, array in REGIONS.items():
        np.testing.assert_array_equal(store[name], array)
        assert store.fingerprint(name) == f"print of {name}"
    assert all(isinstance(shard, np.memmap) for shard in store._maps.values())
    assert len(store) == 3
    assert "two" not in store


def test_vectors_and_half_precision(tmp_path):
    vectors = {name: rows[0] for name, rows in REGIONS.items()}
    store = written(tmp_path, vectors, pool="mean", dtype="float16")
    for name, vector in vectors.items():
        assert store[name].dtype == np.float16
        np.testing.assert_array_equal(store[name], vector.astype(np.float16))
    writer = FeatureWriter(tmp_path, about(pool="mean", dtype="float16"))
    with pytest.raises(UsageError, match=r"'big' are not finite in float16: store them with --dtype float32"):
        writer.add([("small", "y", np.zeros(3)), ("big", "x", np.array([1.0, 7e4, 0.0]))])
    writer.flush()
    assert "small" not in FeatureStore(tmp_path), "a batch is kept whole or not at all"


def test_a_shard_without_its_table_does_not_count_and_is_written_over(tmp_path):
    """As after a kill between the two files."""
    written(tmp_path, REGIONS)
    (tmp_path / "shard-00001.parquet").unlink()
    store = FeatureStore(tmp_path)
    assert "drei" not in store
    again = written(tmp_path, {"drei": REGIONS["drei"] + 1})
    np.testing.assert_array_equal(again["drei"], REGIONS["drei"] + 1)
    np.testing.assert_array_equal(again["one"], REGIONS["one"])


def test_later_shards_win(tmp_path):
    written(tmp_path, REGIONS)
    store = written(tmp_path, {"one": np.zeros((5, 3), dtype=np.float32)})
    assert store["one"].shape == (5, 3)
    assert len(store) == 3


@pytest.mark.parametrize("changes", [{"weights": "v"}, {"pool": "mean"}, {"dtype": "float16"}, {"width": 4}])
def test_other_features_are_not_mixed_in(tmp_path, changes):
    written(tmp_path, REGIONS)
    (key,) = changes
    with pytest.raises(UsageError, match=f"holds features with {key} .* name another folder"):
        FeatureWriter(tmp_path, about(**changes))
    FeatureWriter(tmp_path, about(model="the same under another name"))


def test_a_choice_that_was_not_made_is_told_in_words(tmp_path):
    written(tmp_path, REGIONS)
    with pytest.raises(UsageError, match="holds features with no frames, not frames 8: name another folder"):
        FeatureWriter(tmp_path, about(frames=8))


def test_what_a_kill_left_at_the_very_start_does_not_count(tmp_path):
    """The same command was refused: the folder held other files."""
    (tmp_path / ".features.json._partial").write_text("{")
    FeatureWriter(tmp_path, about())
    assert [path.name for path in tmp_path.iterdir()] == ["features.json"]


def test_a_folder_of_other_things_is_not_written_to(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match="holds other files"):
        FeatureWriter(tmp_path, about())


def test_damage_is_told(tmp_path):
    store = written(tmp_path, REGIONS)
    (tmp_path / "shard-00000.npy").write_bytes(b"")
    with pytest.raises(UsageError, match=r"shard-00000.npy is damaged .* run tellapart features again"):
        store["one"]
    (tmp_path / "shard-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"shard-00001.parquet is damaged"):
        FeatureStore(tmp_path)
    (tmp_path / "features.json").write_text("{}")
    with pytest.raises(UsageError, match=r"no readable features\.json"):
        open_features(tmp_path)


def folder_of(path, arrays):
    """The layout of ImageCaptioning.pytorch, half of it packed with boxes beside."""
    path.mkdir(exist_ok=True)
    for i, (name, array) in enumerate(arrays.items()):
        if i % 2:
            np.savez(path / f"{name}.npz", boxes=np.zeros((1, 4)), feat=array)
        else:
            np.save(path / f"{name}.npy", array)
    return open_features(path)


def hdf5_of(path, arrays):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        for i, (name, array) in enumerate(arrays.items()):
            target = file.create_group(name) if i % 2 else file
            target.create_dataset("feat" if i % 2 else name, data=array)
    return open_features(path.with_suffix(".h5"))


READERS = {"files": folder_of, "hdf5": hdf5_of}
readers = pytest.mark.parametrize("make", READERS.values(), ids=READERS)


@readers
def test_sets_of_others_are_read(make, tmp_path):
    grid = RANDOM.standard_normal((2, 2, 3)).astype(np.float32)
    arrays = {"391895": REGIONS["one"], "522418": REGIONS["drei"], "9": grid, "7": REGIONS["one"][0]}
    features = make(tmp_path / "set", arrays)
    assert features.width == 3
    np.testing.assert_array_equal(features["391895"], arrays["391895"])
    np.testing.assert_array_equal(features["522418"], arrays["522418"])
    np.testing.assert_array_equal(features["9"], grid.reshape(4, 3))
    assert features["7"].shape == (3,)
    assert "391895" in features
    assert "1" not in features


@readers
def test_what_is_wrong_with_an_image_is_named(make, tmp_path):
    arrays = {
        "1": REGIONS["one"],
        "2": np.zeros((5, 4), dtype=np.float32),
        "3": np.zeros((0, 3), dtype=np.float32),
        "4": np.array(5.0),
        "6": np.array([[0.0, np.nan, 1.0]]),
        "7": np.array([[0.0, 1e39, 1.0]]),  # infinite in float32, which captioners read
    }
    features = make(tmp_path / "set", arrays)
    with pytest.raises(UsageError, match=r"set.* no features of image '5': compute them"):
        features["5"]
    with pytest.raises(UsageError, match="image '2' are 4 wide and others 3"):
        features["2"]
    with pytest.raises(UsageError, match="image '3' hold no region"):
        features["3"]
    with pytest.raises(UsageError, match="image '4' are not an array of numbers"):
        features["4"]
    for image in ("6", "7"):
        with pytest.raises(UsageError, match=f"image '{image}' are not finite in float32"):
            features[image]
    data = dataset(tmp_path, ["2", "1", "5", "3", "6"])
    with pytest.raises(UsageError, match=r"no features of 1 of the 5 images of photos, first '5'"):
        require_features(data, features)
    kept, left = with_features(data, features)
    assert kept.ids == ["1"]
    assert [name for name, _ in left] == ["2", "5", "3", "6"]
    with pytest.raises(UsageError, match="no image of photos has features"):
        with_features(dataset(tmp_path, ["5"]), features)


@readers
@pytest.mark.parametrize("deep", [True, False])
def test_ids_that_are_paths_are_found_whichever_comes_first(make, deep, tmp_path):
    """Such ids have the images of a folder. Where the first entry was a folder or a group, none was found in it."""
    arrays = {"a/2.png": REGIONS["drei"]} | ({"a/b/1.png": REGIONS["one"]} if deep else {})
    (tmp_path / "set" / "a" / "b").mkdir(parents=True)
    features = make(tmp_path / "set", arrays)
    assert features.width == 3
    for name, array in arrays.items():
        np.testing.assert_array_equal(features[name], array)
    assert "b/1.png" not in features


def test_links_in_a_circle_end(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("a")["a"] = h5py.SoftLink("/a")
    with pytest.raises(UsageError, match=r"a\.h5: 'a.* cannot be read"):
        open_features(tmp_path / "a.h5")


def test_broken_files_are_named(tmp_path):
    features = folder_of(tmp_path / "set", {"1": REGIONS["one"]})
    (tmp_path / "set" / "2.npy").write_bytes(b"no array")
    np.savez(tmp_path / "set" / "3.npz", boxes=np.zeros((1, 4)))
    np.save(tmp_path / "set" / "4.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
    for name, reason in {"2": "cannot be read", "3": "arrays boxes and none named feat", "4": "cannot be read"}.items():
        with pytest.raises(UsageError, match=reason):
            features[name]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none", "do not exist"),
        ("empty", "holds no features"),
        ("a.txt", "of no known form"),
        ("a.h5", "not an HDF5 file"),
    ],
)
def test_what_is_no_set_of_features(tmp_path, name, reason):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.h5").write_text("x")
    with pytest.raises(UsageError, match=reason):
        open_features(tmp_path / name)


def test_batches_are_padded_and_masked(tmp_path):
    inputs = FeatureInputs(written(tmp_path, REGIONS, dtype="float16"))
    tensors = inputs(["drei", "one", "a/b.jpg"])
    assert tensors["features"].dtype == torch.float32
    assert tensors["mask"].tolist() == [[True, True, False, False], [True, False, False, False], [True] * 4]
    for row, name in enumerate(["drei", "one", "a/b.jpg"]):
        wanted = torch.from_numpy(REGIONS[name].astype(np.float16)).float()
        assert torch.equal(tensors["features"][row][tensors["mask"][row]], wanted)
    assert not tensors["features"][~tensors["mask"]].any()
    assert len({inputs.fingerprint(name) for name in REGIONS}) == 3


def test_vectors_need_no_mask_and_are_not_mixed_with_regions(tmp_path):
    features = folder_of(tmp_path / "set", {"1": REGIONS["one"][0], "2": REGIONS["drei"][0], "3": REGIONS["drei"]})
    tensors = FeatureInputs(features)(["2", "1"])
    assert set(tensors) == {"features"}
    assert torch.equal(tensors["features"], torch.from_numpy(np.stack([REGIONS["drei"][0], REGIONS["one"][0]])))
    with pytest.raises(UsageError, match="one vector for image '1' and regions for others"):
        FeatureInputs(features)(["3", "1"])


def test_no_picture_is_opened_where_features_do(tmp_path):
    data = dataset(tmp_path, ["one", "drei"])
    collate = Collate({}, features={"captioner": FeatureInputs(written(tmp_path / "f", REGIONS))})
    batch = collate(data.examples)
    assert batch.inputs["captioner"]["features"].shape == (2, 2, 3)
    assert batch.references == [["a dog"], ["a dog"]]
    assert collate.fingerprint(data[0]) != collate.fingerprint(data[1])
    with pytest.raises(UsageError, match="does not exist"):
        Collate({"pixels": lambda images: {}}, features=collate.features)(data.examples)
    with pytest.raises(UsageError, match="no features of image 'vier'"):
        collate(dataset(tmp_path, ["vier"]).examples)


def test_a_compressed_file_with_a_flipped_byte_is_named(tmp_path):
    (tmp_path / "set").mkdir()
    np.savez_compressed(tmp_path / "set" / "1.npz", feat=np.random.default_rng(0).normal(size=(9, 3)))
    whole = (tmp_path / "set" / "1.npz").read_bytes()
    features = open_features(tmp_path / "set")
    for place in range(60, 120, 3):
        (tmp_path / "set" / "1.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(UsageError, match=r"1\.npz"):
            features["1"]


def test_other_features_take_their_place_and_other_files_stay(tmp_path):
    written(tmp_path, REGIONS)
    (tmp_path / "shard-notes.npy").write_bytes(b"mine")
    (tmp_path / "photos").mkdir()
    clear_features(tmp_path, about(pool="mean"))
    assert {path.name for path in tmp_path.iterdir()} == {"features.json", "shard-notes.npy", "photos"}
    assert (FeatureStore(tmp_path).about.pool, len(FeatureStore(tmp_path))) == ("mean", 0)
    (tmp_path / "features.json").write_text('{"type": "FeatureCollection"}')
    with pytest.raises(UsageError, match=r"no readable features\.json"):
        clear_features(tmp_path, about())


def test_a_kill_while_features_are_cleared_leaves_no_old_ones_under_another_name(tmp_path, monkeypatch):
    written(tmp_path, REGIONS)
    unlink, removed = Path.unlink, []

    def once(path, **options):
        if removed:
            raise KeyboardInterrupt
        removed.append(path)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", once)
    with pytest.raises(KeyboardInterrupt):
        clear_features(tmp_path, about(weights="other"))
    assert FeatureStore(tmp_path).about == about()


def test_features_of_other_pictures_under_the_same_ids_are_told(tmp_path, caplog):
    """One equal file is enough to be silent, since some may have been changed; files that are not there tell nothing."""
    paths = {name: tmp_path / f"{name}.jpg" for name in "012"}
    for name, path in paths.items():
        path.write_bytes(name.encode())  # what it shows does not matter
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in paths}
    data = CaptionDataset([Example(name, ImageFile(path), ("a dog",)) for name, path in paths.items()], name="photos")

    def noted(fingerprints):
        caplog.clear()
        folder = tmp_path / f"features{len(list(tmp_path.iterdir()))}"
        writer = FeatureWriter(folder, about(), shard_images=2)
        writer.add([(name, fingerprints[name], REGIONS["one"]) for name in paths])
        writer.flush()
        kept, skipped = usable(data, "fail", FeatureStore(folder), pictures=False)
        assert (len(kept), skipped) == (3, [])
        return [record.getMessage() for record in caplog.records]

    assert noted(hashes) == []
    assert noted(dict.fromkeys(hashes, "other") | {"2": hashes["2"]}) == []
    (told,) = noted(dict.fromkeys(hashes, "other"))
    assert "was computed of other image files" in told
    assert "'0'" in told
    for path in paths.values():
        path.unlink()
    assert noted(dict.fromkeys(hashes, "other")) == []
