import numpy as np
import pytest
import torch
from tiny_listeners import clip_parts
from transformers import BlipImageProcessorPil

from tellapart.data.center_crop import center_cropped
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage, ImageFile
from tellapart.errors import UsageError
from tellapart.files import cache_dir
from tellapart.listeners import clip
from tellapart.listeners.cache import EmbeddingStore
from tellapart.listeners.clip import ClipListener
from tellapart.types import Batch


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))


class Counted(ClipListener):
    """Counts the images that went through the model."""

    images = 0

    def embed_images(self, pixel_values):
        self.images += len(pixel_values)
        return super().embed_images(pixel_values)


def listener(**options) -> Counted:
    return Counted(*clip_parts(), **options)


def dataset(count: int, *, prefix: str = "", start: int = 0) -> CaptionDataset:
    arrays = [np.random.default_rng(i).integers(0, 255, (16, 16, 3), np.uint8) for i in range(start, start + count)]
    return CaptionDataset([Example(f"{prefix}{i}", ArrayImage(a)) for i, a in enumerate(arrays, start)], name="some")


def folder(of: ClipListener):
    return cache_dir() / "embeddings" / of.fingerprint()


def test_images_are_embedded_once_and_found_by_id():
    first, data = listener(batch_size=2), dataset(5)
    first.cache_images(data)
    assert first.images == 5
    tensors = Collate({"listener": first.process})(data.examples)
    direct = first.encode_images(tensors)
    torch.testing.assert_close(first.encode_ids(["4", "0", "4"]), direct[[4, 0, 4]], atol=1e-6, rtol=0)
    torch.testing.assert_close(first.encode_images(Batch(["1", "2"], [[], []])), direct[[1, 2]], atol=1e-6, rtol=0)

    second = listener()
    second.cache_images(data)
    assert second.images == 0
    assert torch.equal(second.encode_ids(data.ids), first.encode_ids(data.ids))


def test_more_images_add_to_the_cache_and_equal_pictures_share():
    one = listener()
    one.cache_images(dataset(3))
    one.cache_images(dataset(5))
    assert one.images == 5
    one.cache_images(dataset(5, prefix="same-"))
    assert one.images == 5
    assert torch.equal(one.encode_ids(["2", "4"]), one.encode_ids(["same-2", "same-4"]))


def test_an_id_of_two_pictures_is_refused():
    one = listener()
    one.cache_images(dataset(2))
    other = CaptionDataset([Example("0", dataset(1, start=7)[0].image)], name="other")
    with pytest.raises(UsageError, match="'0' names two different pictures"):
        one.cache_images(other)
    one.forget_images()
    one.cache_images(other)
    with pytest.raises(UsageError, match="no embedding of image '1'"):
        one.encode_ids(["0", "1"])


def test_other_weights_prefix_or_preprocessing_use_another_folder():
    data, one = dataset(2), listener()
    one.cache_images(data)
    before, path = one.encode_ids(data.ids), folder(one)
    with torch.no_grad():
        one.model.visual_projection.weight.mul_(torch.randn(8, 1))
    one.cache_images(data)
    assert one.images == 4
    assert folder(one) != path
    assert not torch.allclose(one.encode_ids(data.ids), before)
    for changed in (listener(prefix="x"), listener()):
        changed.image_processor.image_std = (
            [1.0, 1.0, 1.0] if changed.prefix != "x" else changed.image_processor.image_std
        )
        changed.cache_images(data)
        assert changed.images == 2
    assert len(list((cache_dir() / "embeddings").iterdir())) == 4


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: b"", lambda data: data[:-1] + bytes([data[-1] ^ 1])]
)
def test_a_damaged_file_is_built_again(damage, caplog):
    data, one = dataset(4), listener()
    one.cache_images(data)
    [path] = folder(one).iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    again = listener()
    again.cache_images(data)
    assert again.images == 4
    assert "is damaged" in caplog.text
    assert torch.equal(again.encode_ids(data.ids), one.encode_ids(data.ids))
    assert [file.read_bytes() for file in folder(one).iterdir()] == [whole]


def test_a_killed_process_keeps_what_was_written(monkeypatch):
    monkeypatch.setattr(clip, "_IMAGES_A_FILE", 2)
    data, one = dataset(5), listener(batch_size=2)
    whole = one.embed_images

    def dies(pixel_values):
        if one.images >= 4:
            raise KeyboardInterrupt
        return whole(pixel_values)

    monkeypatch.setattr(one, "embed_images", dies)
    with pytest.raises(KeyboardInterrupt):
        one.cache_images(data)
    assert len(list(folder(one).iterdir())) == 2
    again = listener()
    again.cache_images(data)
    assert again.images == 1


@pytest.mark.parametrize("images_read", [0, 3, 4, 7, 8])
def test_a_stop_changes_no_embedding(images_read, monkeypatch, tmp_path):
    """Files hold whole batches, so a batch is never embedded with fewer of it: not even where rows depend on each other."""
    monkeypatch.setattr(clip, "_IMAGES_A_FILE", 4)

    class Mixing(Counted):
        stop = 100

        def embed_images(self, pixel_values):
            if self.images >= self.stop:
                raise KeyboardInterrupt
            rows = super().embed_images(pixel_values)
            return rows + rows.sum(dim=0)

    data, whole = dataset(10), Mixing(*clip_parts(), batch_size=3)
    whole.cache_images(data)
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "second"))
    stopped = Mixing(*clip_parts(), batch_size=3)
    stopped.stop = images_read
    with pytest.raises(KeyboardInterrupt):
        stopped.cache_images(data)
    again = Mixing(*clip_parts(), batch_size=3)
    again.cache_images(data)
    assert torch.equal(again.encode_ids(data.ids), whole.encode_ids(data.ids))


def test_store_round_trip(tmp_path):
    store = EmbeddingStore(tmp_path / "s")
    assert store.load(["a"]) == {}
    store.add(["a", "b"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    store.add(["c"], torch.tensor([[5.0, 6.0]]))
    assert {key: value.tolist() for key, value in store.load(["c", "a", "x"]).items()} == {"a": [1, 2], "c": [5, 6]}


def test_real_photos(shared_data):
    files = sorted((shared_data / "coco-mini" / "val2017").glob("*.jpg"))[:4]
    data = CaptionDataset([Example(file.stem, ImageFile(file)) for file in files], name="photos")
    one = listener()
    one.cache_images(data)
    torch.testing.assert_close(one.encode_ids(data.ids).norm(dim=1), torch.ones(4))


def test_an_embedding_of_the_whole_is_not_taken_for_that_of_the_square():
    pictures = [np.random.default_rng(i).integers(0, 255, (16, 28, 3), np.uint8) for i in range(3)]
    whole = CaptionDataset([Example(str(i), ArrayImage(a)) for i, a in enumerate(pictures)], name="some")
    squares = CaptionDataset([Example(str(i), ArrayImage(a[:, 6:22])) for i, a in enumerate(pictures)], name="other")
    found = []
    for data in (whole, center_cropped(whole), squares):
        model, _, tokenizer = clip_parts()
        squashing = BlipImageProcessorPil(
            size={"height": 16, "width": 16}
        )  # to the model's shape, without a crop of its own
        own = Counted(model, squashing, tokenizer)
        own.cache_images(data)
        assert own.images == 3
        found.append(own.encode_ids(data.ids))
    assert not torch.allclose(found[0], found[1])
    torch.testing.assert_close(found[1], found[2])
