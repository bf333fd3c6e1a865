"""Images cut to their largest centred square: which pixels, and that no model or cache takes the square for the whole."""

import numpy as np
import pytest
from PIL import Image

from tellapart.data.center_crop import CenterCropped, center_cropped, center_square, is_center_cropped
from tellapart.data.check import usable
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage, ImageFile
from tellapart.data.load import load_dataset
from tellapart.data.loader import TrainingData


def numbered(height, width):
    """An image whose every pixel says where it is: red the row, green the column."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, np.zeros_like(rows)], axis=-1).astype(np.uint8)


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    [
        (4, 10, range(4), range(3, 7)),
        (4, 7, range(4), range(1, 5)),  # three columns too many: one on the left and two on the right are cut off
        (9, 4, range(2, 6), range(4)),
        (5, 5, range(5), range(5)),
        (1, 3, range(1), range(1, 2)),
    ],
)
def test_exactly_these_pixels_are_left(height, width, rows, columns):
    left = np.asarray(center_square(Image.fromarray(numbered(height, width))))
    assert left.shape == (len(rows), len(columns), 3)
    assert left[:, 0, 0].tolist() == list(rows)
    assert left[0, :, 1].tolist() == list(columns)


def test_the_square_of_a_turned_photo_is_that_of_the_upright_one(tmp_path):
    """EXIF says that the stored rows are columns: the square is cut after the image was turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(numbered(4, 9)).save(tmp_path / "turned.png", exif=exif)
    whole = ImageFile(tmp_path / "turned.png")
    upright, square = np.asarray(whole.open()), np.asarray(CenterCropped(whole).open())
    assert upright.shape == (9, 4, 3)
    assert np.array_equal(square, upright[2:6])


@pytest.fixture
def data():
    pictures = [np.random.default_rng(i).integers(0, 255, (16, 24, 3), np.uint8) for i in range(3)]
    return CaptionDataset([Example(str(i), ArrayImage(a), ("a dog",)) for i, a in enumerate(pictures)], name="some")


def test_a_data_set_says_that_it_is_cropped(data):
    cropped = center_cropped(data)
    assert cropped.name == "some, center-cropped"
    assert (cropped.ids, cropped.references) == (data.ids, data.references)
    assert is_center_cropped(cropped)
    assert is_center_cropped(cropped.take([1, 2]))
    assert not is_center_cropped(data)
    for whole, square in zip(data, cropped, strict=True):
        assert np.array_equal(np.asarray(square.image.open()), np.asarray(whole.image.open())[:, 4:20])
        assert square.image.fingerprint() != whole.image.fingerprint()
        assert square.image.read() == whole.image.read()
    prints = {TrainingData(found, Collate({})).fingerprint() for found in (data, cropped)}
    assert len(prints) == 2  # caches of start captions and discriminators, and resumed runs, go by it


def test_images_that_are_made_when_asked_for_are_cropped_then(tmp_path):
    for i in range(5):
        Image.fromarray(numbered(4, 8 + i)).save(tmp_path / f"{i}.png")
    whole = load_dataset(tmp_path, split="train", format="unlabelled")
    cropped = center_cropped(whole)
    assert cropped.ids == whole.ids
    assert cropped.examples.runs() == whole.examples.runs()
    for place, name in enumerate(whole.ids):
        found = np.asarray(cropped[place].image.open())
        assert found.shape == (4, 4, 3)
        assert found[0, 0, 1] == (4 + int(name.removesuffix(".png"))) // 2
    assert is_center_cropped(cropped[1:3])
    assert cropped.take([3, 1]).ids == whole.take([3, 1]).ids


def test_broken_images_are_found_as_before(tmp_path):
    Image.fromarray(numbered(4, 8)).save(tmp_path / "0.png")
    (tmp_path / "1.png").write_bytes(b"no picture")
    data = CaptionDataset([Example(str(i), ImageFile(tmp_path / f"{i}.png")) for i in range(2)], name="some")
    kept, skipped = usable(center_cropped(data))
    assert (kept.ids, [name for name, _ in skipped]) == (["0"], ["1"])
    assert is_center_cropped(kept)
