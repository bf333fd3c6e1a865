"""What is asked, in which order, on which side: fair to both runs, and the same again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from judge_fakes import RUNS, captions, pictures, toy_study
from PIL import Image

from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.evaluation.judge.study import (
    LONGEST_SIDE,
    PICTURES,
    READS_BETTER,
    STUDY_FILE,
    WHICH_IMAGE,
    Study,
    choose_images,
    make_items,
    nearest_others,
    order,
    random_others,
    swapped,
    write_picture,
    write_study,
)
from tellapart.listeners.neighbours import Neighbours


def test_every_caption_of_a_drawn_image_is_asked_about_once(tmp_path):
    study = toy_study(tmp_path / "s", images=10, count=10, equal=(2, 5))
    first, second = captions(10, equal=(2, 5))
    which = [(item.images[0], item.captions, item.runs) for item in study.items_of(WHICH_IMAGE)]
    expected = []
    for name in first:
        same = first[name] == second[name]
        expected += [(name, (first[name],), (0, 1))] if same else [(name, (first[name],), (0,))]
        expected += [] if same else [(name, (second[name],), (1,))]
    assert sorted(which) == sorted(expected)
    reads = {item.images[0]: item.captions for item in study.items_of(READS_BETTER)}
    assert reads == {name: (first[name], second[name]) for name in first if name not in ("2", "5")}
    assert len({item.id for item in study.items}) == len(study.items) == 18 + 8
    for item in study.items_of(WHICH_IMAGE):
        assert item.images[0] != item.images[1]
        assert set(item.images) <= study.pictures.keys()


def test_white_space_alone_makes_no_difference():
    first, second = {"1": "a  red\nbox "}, {"1": "a red box"}
    chosen = choose_images(first, second, count=5, seed=0)
    assert chosen == {WHICH_IMAGE: ["1"], READS_BETTER: []}
    (item,) = make_items(chosen, first, second, {"1": "2"}, seed=0)
    assert (item.captions, item.runs) == (("a red box",), (0, 1))


def test_the_two_questions_share_images_only_where_they_must():
    first, second = captions(20)
    chosen = choose_images(first, second, count=10, seed=1)
    assert not set(chosen[WHICH_IMAGE]) & set(chosen[READS_BETTER])
    more = choose_images(first, second, count=15, seed=1)
    assert len(set(more[WHICH_IMAGE]) & set(more[READS_BETTER])) == 10
    assert choose_images(first, second, count=10, seed=1) == chosen
    assert choose_images(first, second, count=10, seed=2) != chosen
    with pytest.raises(UsageError, match="no image in common"):
        choose_images({"1": "x"}, {"2": "x"}, count=1, seed=0)


def test_a_study_is_read_back_as_it_was_written(tmp_path):
    study = toy_study(tmp_path / "s")
    assert Study.load(tmp_path / "s") == study
    assert (study.runs, study.asked) == (RUNS, {"x": 1})
    with pytest.raises(UsageError, match="holds other files"):
        toy_study(tmp_path / "s")
    (tmp_path / "s" / STUDY_FILE).write_text("{}")
    with pytest.raises(UsageError, match="damaged"):
        Study.load(tmp_path / "s")
    with pytest.raises(UsageError, match="holds no study"):
        Study.load(tmp_path)
    with pytest.raises(UsageError, match="nothing to ask"):
        write_study(tmp_path / "t", pictures(2), [], runs=RUNS, seed=0, asked={}, about={})


def test_each_rater_has_an_order_of_their_own_that_stays(tmp_path):
    study = toy_study(tmp_path / "s", equal=(0, 1, 2, 3, 4, 5, 6))
    names = [[item.id for item in order(study, rater)] for rater in ("ann", "ann", "bob")]
    assert names[0] == names[1] != names[2]
    assert set(names[0]) == set(names[2]) == {item.id for item in study.items}
    again = Study.load(tmp_path / "s")
    assert [item.id for item in order(again, "ann")] == names[0]
    assert [swapped(again, "ann", item) for item in again.items] == [swapped(study, "ann", i) for i in study.items]


def test_a_pair_returns_half_a_round_later_and_images_before_sentences(tmp_path):
    study = toy_study(tmp_path / "s", count=8)
    for rater in ("ann", "bob", "eve"):
        met = order(study, rater)
        assert [item.question for item in met] == [WHICH_IMAGE] * 16 + [READS_BETTER] * 8
        assert [item.images for item in met[:8]] == [item.images for item in met[8:16]]
        assert all(met[i].runs != met[i + 8].runs for i in range(8))


def test_sides_and_first_runs_are_even_over_raters(tmp_path):
    """Of 40 raters and 6 pairs, 240 draws each: within four standard deviations (15.5) of one half."""
    study = toy_study(tmp_path / "s")
    first, side = Counter(), Counter()
    for number in range(40):
        met = order(study, f"rater {number}")
        first.update(item.runs for item in met[:6])
        side.update(swapped(study, f"rater {number}", item) for item in met[:6])
    for counts in (first, side):
        assert sum(counts.values()) == 240
        assert all(abs(count - 120) < 31 for count in counts.values())


def test_the_distractor_is_the_nearest_image_that_the_data_hold():
    dataset = pictures(3)
    near = Neighbours(["0", "1"], ["9", "2", "0"], np.array([[0, 1], [1, 2]]), np.array([[0.9, 0.8], [0.7, 0.6]]))
    assert nearest_others(near, dataset, ["0", "1"]) == {"0": "2", "1": "2"}
    with pytest.raises(UsageError, match="no mined neighbours"):
        nearest_others(near, dataset, ["2"])
    gone = Neighbours(["0"], ["9"], np.array([[0]]), np.array([[0.9]]))
    with pytest.raises(UsageError, match="none of the 1 neighbours of image '0'"):
        nearest_others(gone, dataset, ["0"])


def test_a_random_distractor_is_another_picture():
    one, other = (ArrayImage(np.full((4, 4, 3), shade, np.uint8)) for shade in (1, 2))
    dataset = CaptionDataset([Example(str(i), one) for i in range(8)] + [Example("other", other)], name="copies")
    for seed in range(5):
        found = random_others(dataset, [str(i) for i in range(8)], seed=seed)
        assert set(found.values()) == {"other"}
    with pytest.raises(UsageError, match="no other picture"):
        random_others(dataset[:8], ["0"], seed=0)


def test_pictures_keep_only_pixels(tmp_path):
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (700, 2100, 3), dtype=np.uint8))
    photo.info["comment"] = b"where it was taken"
    exif = photo.getexif()
    exif[270] = "a description"
    photo.info["exif"] = exif.tobytes()
    name = write_picture(tmp_path / PICTURES, photo)
    kept = (tmp_path / PICTURES / name).read_bytes()
    assert name.endswith(".jpg")
    assert b"taken" not in kept
    assert b"Exif" not in kept
    with Image.open(tmp_path / PICTURES / name) as shown:
        assert max(shown.size) == LONGEST_SIDE
    small = pictures(1)[0].image.open()
    name = write_picture(tmp_path / PICTURES, small)
    with Image.open(tmp_path / PICTURES / name) as shown:
        assert np.array_equal(np.asarray(shown), np.asarray(small))
    assert write_picture(tmp_path / PICTURES, small) == name
