"""Images without captions: what is found in folders, tars and videos, in which order it is read, what replaces broken ones."""

import io
import logging
import tarfile
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart.data.clips import ClipFile
from tellapart.data.dataset import CaptionDataset, Collate, Example, LazyExamples
from tellapart.data.held_out import hold_out
from tellapart.data.images import EncodedImage
from tellapart.data.load import load_dataset, splits_of
from tellapart.data.loader import TRIES, Cut, TrainingData, first_readable
from tellapart.data.order import Order
from tellapart.data.unlabelled.videos import KeyFrame, key_frames
from tellapart.errors import UsageError
from unlabelled_files import cut, jpeg, shard, write_tar, write_video

av = pytest.importorskip("av", reason="videos need tellapart[video]")


def thumbnails(images) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([torch.tensor(np.asarray(image.resize((4, 4)))).float() for image in images])}


def load(path, **options) -> CaptionDataset:
    return load_dataset(path, split="train", **options)


@pytest.fixture
def mixed(tmp_path):
    """Two files, two shards and a video, in two folders."""
    (tmp_path / "a").mkdir()
    for i in range(2):
        (tmp_path / "a" / f"{i}.jpg").write_bytes(jpeg(100 + i))
    shard(tmp_path / "a" / "00000.tar", 0, 4)
    shard(tmp_path / "00001.tar", 4, 3)
    write_video(tmp_path / "film.mp4")
    return tmp_path


def test_a_mixed_folder_is_one_data_set(mixed):
    data = load(mixed)  # told by its look: there is a video
    assert isinstance(data.examples, LazyExamples)
    assert data.ids[:9] == [
        "a/0.jpg",
        "a/1.jpg",
        *(f"00001.tar/{i:05}.jpg" for i in (4, 5, 6)),
        *(f"a/00000.tar/{i:05}.jpg" for i in (0, 1, 2, 3)),
    ]
    assert data.ids[9:] == [f"film.mp4#t={0.5 * i:.3f}" for i in range(8)]
    assert len(set(data.ids)) == len(data) == 17
    by_id = {example.id: example for example in data}
    assert by_id["a/00000.tar/00002.jpg"].image.read() == jpeg(2)
    assert by_id["a/1.jpg"].image.read() == jpeg(101)
    assert data.examples.runs() == [2, 3, 4, 8]
    assert not any(example.references for example in data)


def test_parts_of_a_data_set(mixed):
    data = load(mixed)
    assert data.ids == [example.id for example in data]
    assert data[3:6].ids == [example.id for example in data[3:6]]
    assert data[-1].id == data.ids[-1]
    assert data[3:6].ids == data.ids[3:6]
    assert data.take([8, 1, 4]).ids == [data.ids[i] for i in (1, 4, 8)]
    assert data.take([8, 1, 4])[1:].ids == [data.ids[i] for i in (4, 8)]
    assert data.take([0, 2, 4, 16]).examples.runs() == [1, 2, 0, 1]
    assert data.position["a/1.jpg"] == 1
    assert load(mixed, limit=3).ids == data.ids[:3]
    with pytest.raises(IndexError):
        data[17]


def test_patterns_single_files_and_splits(tmp_path):
    for number in range(3):
        shard(tmp_path / f"s-{number}.tar", 10 * number, 2)
    some = load(f"{tmp_path}/s-{{1..2}}.tar", format="unlabelled")
    assert some.ids == ["s-1.tar/00010.jpg", "s-1.tar/00011.jpg", "s-2.tar/00020.jpg", "s-2.tar/00021.jpg"]
    assert load(tmp_path / "s-0.tar", format="unlabelled").ids == ["s-0.tar/00000.jpg", "s-0.tar/00001.jpg"]
    for split in ("train", "val"):
        (tmp_path / "divided" / split).mkdir(parents=True)
        shard(tmp_path / "divided" / split / "0.tar", 0, 1)
    assert splits_of(tmp_path / "divided", format="unlabelled") == ["train", "val"]
    assert load_dataset(tmp_path / "divided", split="val", format="unlabelled").ids == ["val/0.tar/00000.jpg"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no images"):
        load(tmp_path / "empty", format="unlabelled")


def test_captions_beside_are_not_lost_to_the_look(tmp_path):
    """Where there may be captions, a video or a tar beside the images changes nothing."""
    (tmp_path / "1.jpg").write_bytes(jpeg(1))
    (tmp_path / "1.txt").write_text("a dog")
    write_video(tmp_path / "film.mp4", seconds=1)
    assert [example.references for example in load(tmp_path)] == [("a dog",)]


def test_members_are_those_that_an_unpacked_tar_would_have(tmp_path):
    """One that comes twice counts as it stands last; masks, hidden files, folders and texts are no pictures."""
    path = write_tar(tmp_path / "t.tar", {"1.jpg": jpeg(1), "1.mask.png": b"-", "d/.2.jpg": b"-", "d/3.JPG": jpeg(3)})
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("1.jpg")
        member.size = len(jpeg(9))
        archive.addfile(member, io.BytesIO(jpeg(9)))
    data = load(path, format="unlabelled")
    assert data.ids == ["t.tar/1.jpg", "t.tar/d/3.JPG"]
    assert [example.image.read() for example in data] == [jpeg(9), jpeg(3)]


def test_what_a_damaged_archive_still_holds(tmp_path):
    with tarfile.open(shard(tmp_path / "0.tar", 0, 10)) as archive:
        ends = {f"0.tar/{member.name}": member.offset_data + member.size for member in archive}
    length = cut(tmp_path / "0.tar", 0.45).stat().st_size
    complete = [name for name, end in ends.items() if end <= length and name.endswith(".jpg")]
    assert 3 <= len(complete) <= 7
    (tmp_path / "1.tar").write_bytes(b"no tar at all" * 99)
    (tmp_path / "film.mkv").write_bytes(b"\x1a\x45\xdf\xa3 broken")
    with pytest.raises(
        UsageError, match=r"0\.tar is not a whole tar archive \(.*\): the \d images before that are used"
    ):
        load(tmp_path)
    data = load(tmp_path, missing_files=True)
    assert data.ids == complete
    assert [name for name, _ in data.examples.problems] == ["0.tar", "1.tar", "film.mkv"]
    for example in data:
        example.image.open()
    assert load(tmp_path, missing_files=True).examples.problems == data.examples.problems  # damage is not remembered
    shard(tmp_path / "0.tar", 0, 10)
    assert len(load(tmp_path, missing_files=True)) == 10


MPEG_2 = {"codec": "mpeg2video", "b_frames": 2, "rate": 25, "every": 12, "grey": 2}
"""4 s: key-frames at 0.00, 0.48, ... 3.84 s, of grey 0, 24, ... 192; seeks land before and after them."""


@pytest.mark.parametrize(
    ("ending", "options", "count"), [(".mp4", {}, 8), (".mkv", {}, 8), (".avi", {}, 8), (".mpg", MPEG_2, 9)]
)
def test_key_frames_have_their_times_and_pictures(tmp_path, ending, options, count):
    """4 s at 10 frames a second, a key-frame every 5 frames: 0.0, 0.5, ... 3.5 s; frame i is of grey 5 i."""
    data = load(write_video(tmp_path / f"film{ending}", **options))
    apart, brighter = (0.48, 24) if options else (0.5, 25)
    assert data.ids == [f"film{ending}#t={apart * i:.3f}" for i in range(count)]
    for i in (7, 0, 3, *range(count)):  # in any order
        grey = np.asarray(data[i].image.open()).mean()
        assert grey == pytest.approx(brighter * i, abs=6)
    assert Image.open(io.BytesIO(data[3].image.read())).size == (32, 32)
    assert len({example.image.fingerprint() for example in data}) == count


def test_a_key_frame_is_the_same_picture_as_an_image_and_as_a_frame_of_the_clip(tmp_path):
    """Transparency was laid on white in clips only."""
    path = tmp_path / "clear.mov"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("qtrle", rate=8)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "argb"
        for _ in range(4):
            pixels = np.full((32, 32, 4), (0, 200, 0, 0), np.uint8)  # clear red
            pixels[:, 16:, 0] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="argb")))
        container.mux(stream.encode(None))
    stamps, seconds, _ = key_frames(path)
    found = np.asarray(KeyFrame(path, int(stamps[0]), float(seconds[0])).open())
    assert found[0, 0].tolist() == [255, 255, 255]
    assert found[0, 31].tolist() == [200, 0, 0]
    assert (found == np.asarray(ClipFile(path, "key_frames").open())).all()


def test_key_frames_apart(tmp_path):
    film = write_video(tmp_path / "film.mp4")
    times = [example.image.seconds for example in load(film, seconds_between=1.2)]
    assert times == pytest.approx([0.0, 1.5, 3.0])
    cut(film, 0.5)  # an .mp4 without its end has lost its table of frames
    with pytest.raises(UsageError, match=r"film\.mp4 is not a readable video"):
        load(film)


def test_a_whole_shuffle_is_what_it_always_was():
    """The first draws of torch's generator, seeded as before windows were there."""
    from tellapart.draws import mix_seeds

    order = Order(10, 7)
    for epoch in (0, 1, 5, 0):
        generator = torch.Generator().manual_seed(mix_seeds(7, "order", epoch))
        assert [order[10 * epoch + i] for i in range(10)] == torch.randperm(10, generator=generator).tolist()


def test_a_windowed_shuffle_stays_in_few_places():
    runs = [100] * 20
    order = Order(2000, 3, window=200, runs=runs)
    for epoch in range(2):
        sequence = [order[2000 * epoch + i] for i in range(2000)]
        assert sorted(sequence) == list(range(2000))
        for start in range(0, 2000, 200):
            assert len({image // 100 for image in sequence[start : start + 200]}) == 2
    firsts = [order[2000 * epoch] // 100 for epoch in range(30)]
    assert len(set(firsts)) > 5  # archives come in another order in each epoch
    inside = [image % 100 for image in sequence[:200]]
    assert sum(second == first + 1 for first, second in pairwise(inside)) < 20
    unknown = Order(2500, 3, window=1000)  # runs of a thousand, where nothing is known
    assert sorted(unknown[i] for i in range(2500)) == list(range(2500))
    with pytest.raises(UsageError, match="shuffle_window is 0"):
        Order(10, 3, window=0)


def some_broken(size: int, broken: set[int]) -> CaptionDataset:
    images = [EncodedImage(b"" if i in broken else jpeg(i), f"{i}.jpg") for i in range(size)]
    return CaptionDataset([Example(str(i), image) for i, image in enumerate(images)], name="some")


BROKEN = {3, 4, 11, 20, 29}


def replacing(size: int = 30, broken=BROKEN, **options) -> TrainingData:
    return TrainingData(some_broken(size, broken), Collate({"x": thumbnails}), replace_unreadable=True, **options)


def steps(data: TrainingData, cut: Cut, *, start: int = 0, stop: int = 12, num_workers: int = 0):
    read = data.batches(cut, seed=1, start=start, stop=stop, num_workers=num_workers)
    return [[image for batch in micro_batches for image in batch.ids] for micro_batches in read]


def test_a_broken_image_is_replaced_by_that_of_the_next_step(caplog):
    data, order = replacing(), Order(30, 1)
    expected = []
    for step in range(12):
        for position in range(6 * step, 6 * step + 6):
            while order[position] in BROKEN:
                position += 6
            expected.append(str(order[position]))
    with caplog.at_level(logging.WARNING):
        found = steps(data, Cut(6))
    assert [image for step in found for image in step] == expected
    assert data.replaced.keys() == {str(i) for i in BROKEN}
    assert all(
        reason.startswith(f"{name}.jpg is not a readable image (it is empty)") for name, reason in data.replaced.items()
    )
    told = [record.message for record in caplog.records if "replaced" in record.message]
    assert len(told) == 5
    assert told[-1].endswith("Further ones are counted only.")
    assert all(len(set(step)) == 6 for step in found[:4])  # no image twice in a step of the first epoch


def test_replacing_follows_from_seed_and_step_alone():
    whole = steps(replacing(), Cut(6))
    assert steps(replacing(), Cut(6), start=7) == whole[7:]
    assert steps(replacing(), Cut(6), num_workers=2) == whole
    assert steps(replacing(), Cut(2, 3)) == whole
    ranks = [steps(replacing(), Cut(3, 1, rank, 2)) for rank in range(2)]
    assert [first + second for first, second in zip(*ranks, strict=True)] == whole
    data = replacing()
    steps(data, Cut(6), num_workers=2)
    assert data.replaced.keys() == {str(i) for i in BROKEN}


def test_figures_count_different_images_of_all_devices():
    data = replacing()
    steps(data, Cut(6), stop=2)
    heard = []
    data.on_replaced = lambda: heard.append(len(data.replaced))
    known = set(data.replaced)
    other = {"4": "", "999": ""}
    assert data.figures(lambda own: [own, other]) == {"unreadable_images": len(known | other.keys())}
    assert data.figures(lambda own: [own])["unreadable_images"] == len(known | other.keys())
    assert heard == [len(known | other.keys())]
    assert TrainingData(some_broken(3, set()), Collate({})).figures(lambda own: [own]) == {}


def test_data_that_are_all_broken_end_the_training():
    with pytest.raises(
        UsageError, match=rf"{TRIES} images of some in a row cannot be read: \d+\.jpg is not a readable"
    ):
        steps(replacing(broken=set(range(30))), Cut(6), stop=1)
    strict = TrainingData(some_broken(30, BROKEN), Collate({"x": thumbnails}))
    with pytest.raises(UsageError, match=r"jpg is not a readable image"):
        steps(strict, Cut(6))


def test_images_that_no_processor_takes_are_replaced_too():
    def fussy(images):
        if any(np.asarray(image).mean() < 128 for image in images):
            raise ValueError("too dark.\nreally")
        return thumbnails(images)

    dark = {i for i in range(30) if np.asarray(Image.open(io.BytesIO(jpeg(i)))).mean() < 128}
    assert 0 < len(dark) < 30
    data = TrainingData(some_broken(30, set()), Collate({"x": fussy}), replace_unreadable=True)
    steps(data, Cut(6), stop=5)
    assert {int(name) for name in data.replaced} == dark
    assert data.replaced[str(min(dark))].endswith("cannot be prepared for the model (too dark): resize or remove it.")


def test_models_are_tried_on_images_that_can_be_read():
    data = replacing(broken={0, 1, 5})
    assert data.sample.ids == [str(i) for i in range(30) if i not in {0, 1, 5}][:16]
    assert TrainingData(data.dataset, data.collate).sample is data.dataset
    with pytest.raises(UsageError, match="the first images of some cannot be read"):
        first_readable(some_broken(4, {0, 1, 2, 3}), Collate({"x": thumbnails}))


def test_held_out_images_follow_from_ids():
    data = some_broken(200, set())
    training, held = hold_out(data, 20)
    assert len(held) == 20
    assert sorted([*training.ids, *held.ids], key=int) == data.ids
    assert held.ids == sorted(held.ids, key=int)
    again = hold_out(CaptionDataset(list(reversed(data)), name="backwards"), 20)[1]
    assert set(again.ids) == set(held.ids)
    assert set(hold_out(data, 10)[1].ids) < set(held.ids)
    assert held.ids != data.ids[:20]
    with pytest.raises(UsageError, match="held_out is 200, but some holds 200 images"):
        hold_out(data, 200)


def test_frames_of_a_video_are_held_out_together():
    frames = [
        Example(f"{film}.mp4#t={second}.000", EncodedImage(b"", "x")) for film in range(40) for second in range(5)
    ]
    held = hold_out(CaptionDataset(frames, name="films"), 50)[1]
    whole = Counter(name.partition("#")[0] for name in held.ids)
    assert len(whole) == 10
    assert set(whole.values()) == {5}
