"""Hard galleries, objects that are not there, and captions that were never seen."""

import json

import numpy as np
import pytest
from evaluation_fakes import REFERENCES, FixedListener

from tellapart.cli.main import main
from tellapart.evaluation.aggregate import Aggregate
from tellapart.evaluation.further import chair_measure, novelty_measure
from tellapart.evaluation.listening import listener_measures
from tellapart.evaluation.measures import style_measures

CAPTIONS = {"1": "A dog on a couch.", "2": "Two dogs and a red car", "3": "nothing"}
OBJECTS = {"1": ["dog"], "2": ["dog", "cat"], "3": ["person"]}


def instances(path):
    names = sorted({name for found in OBJECTS.values() for name in found})
    value = {
        "images": [{"id": int(i)} for i in OBJECTS],
        "categories": [{"id": n, "name": name} for n, name in enumerate(names)],
        "annotations": [
            {"image_id": int(i), "category_id": names.index(name)} for i, found in OBJECTS.items() for name in found
        ],
    }
    path.write_text(json.dumps(value))
    return path


def test_a_hard_gallery_is_searched_by_a_plain_loop():
    listener, captions = FixedListener("judge"), {i: texts[0] for i, texts in REFERENCES.items()}
    metrics, columns = listener_measures(listener, "judge", captions, hard=2)
    ids = list(captions)
    image = {i: np.array(listener.vector(f"image {i}")) for i in ids}
    for row, i in enumerate(ids):
        near = sorted((j for j in ids if j != i), key=lambda j: -float(image[i] @ image[j]))[:2]
        text = np.array(listener.vector(captions[i]))
        wrong = {j for j in near if float(text @ image[j]) >= float(text @ image[i])}
        assert set(columns["judge_confused"][row]) == wrong
        assert columns["judge_hard2_rank"][row] == 1 + len(wrong)
    found = [100.0 * (rank == 1) for rank in columns["judge_hard2_rank"]]
    assert metrics["judge_hard2_R@1"] == pytest.approx(sum(found) / len(found))
    assert "judge_hard2_R@1" not in listener_measures(listener, "judge", captions)[0]


def test_objects_that_are_not_there(tmp_path):
    references = {"1": ["a dog"], "2": ["a dog beside a car"], "3": ["a man"]}
    metrics, columns = chair_measure([instances(tmp_path / "instances.json")], references)(CAPTIONS)
    # dog, couch (wrong); dog, car (in a reference); nothing
    assert columns["objects_named"] == [2, 2, 0]
    assert columns["objects_hallucinated"] == [1, 0, 0]
    assert metrics["CHAIRi"] == pytest.approx(100 / 4)
    assert metrics["CHAIRs"] == pytest.approx(100 / 3) == sum(columns["CHAIRs"]) / 3
    assert metrics["object_recall"] == pytest.approx(100 * 2 / 4)
    aggregate = Aggregate(list(metrics), columns)
    drawn = {key: aggregate(aggregate.rows[[0, 0, 1]].sum(axis=0))[i] for i, key in enumerate(aggregate.keys)}
    # The first image twice and the second: mentions 2, 2 and 2, of which 1, 1 and 0 wrong; annotated 1, 1 and 2, named 1 each.
    assert drawn == pytest.approx({"CHAIRi": 100 * 2 / 6, "CHAIRs": 100 * 2 / 3, "object_recall": 100 * 3 / 4})
    nothing_named = aggregate(3 * aggregate.rows[2])
    assert nothing_named[aggregate.keys.index("CHAIRi")] == 0


def test_captions_that_were_never_seen():
    metrics, columns = novelty_measure({"9": ["a dog on a COUCH!", "nothing"]})(CAPTIONS)
    assert columns["novel_captions"] == [0, 100, 0]
    assert metrics["novel_captions"] == pytest.approx(100 / 3)


def test_words_that_could_have_been_learned():
    """Training and references share "a", "dog", "car"; the captions say the first two."""
    captions = {"1": "a dog", "2": "the dog"}
    measure = novelty_measure({"9": ["a dog in a car"]}, {"1": ["a dog"], "2": ["the car"]})
    assert measure.measured_by != novelty_measure({"9": ["a dog in a bus"]}).measured_by
    assert measure(captions)[0]["word_coverage"] == pytest.approx(100 * 2 / 3)
    assert "word_coverage" not in novelty_measure({"9": ["a dog"]})(captions)[0]


def test_style_counts_openers_colours_and_words():
    metrics, columns = style_measures(["a picture of a red dog", "a red dog", "it runs to the"])
    assert columns["openers"] == [100, 0, 0]
    assert columns["colored"] == [100, 100, 0]
    assert metrics["colored"] == pytest.approx(200 / 3)
    assert metrics["bad_endings"] == pytest.approx(100 / 3)
    assert metrics["vocabulary"] == len(["a", "picture", "of", "red", "dog", "it", "runs", "to", "the"])


def test_the_command_line_asks_for_them(tmp_path, capsys):
    (tmp_path / "captions.json").write_text(json.dumps(CAPTIONS))
    rows = [{"id": n, "image_id": int(i), "caption": "a dog"} for n, i in enumerate(CAPTIONS)]
    annotations = {"images": [{"id": int(i)} for i in CAPTIONS], "annotations": rows}
    (tmp_path / "annotations.json").write_text(json.dumps(annotations))
    words = ["score", tmp_path / "captions.json", "--references", tmp_path / "annotations.json", "--json"]
    words += ["--instances", instances(tmp_path / "instances.json"), "--training_references"]
    assert main([str(word) for word in [*words, tmp_path / "annotations.json"]]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["novel_captions"] == 100
    assert metrics["CHAIRi"] == 50  # couch and car; here no reference has the car
    assert main([str(word) for word in [*words, tmp_path / "annotations.json", "--hard_gallery", "3"]]) == 2
    assert "--hard_gallery is 3" in capsys.readouterr().err
