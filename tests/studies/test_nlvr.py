"""The study of NLVR: pixels, sentences, groups, and all models from a folder that is drawn here."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from itertools import islice

import pytest
import torch
from PIL import Image, ImageDraw

from sweep.study_fakes import STUDIES, module, note_measured, note_training, rate

sys.path.append(str(STUDIES))  # the study's files import each other as its program does

from nlvr_models import SCHEDULES, Models, drawn_texts
from nlvr_pictures import RGB, SHAPES, Corpus, Thing, boxes_of, canvas, read_box, read_scene, scene_name, words_of
from nlvr_sentences import descriptions, first_wrong, is_towers, read, statements
from tellapart.sweep.study_file import read_study
from tellapart.sweep.tasks import ASKED_FILE, carry_out
from tellapart.sweep.trainings import option
from tellapart.world.schedule import Schedule

nlvr = module("nlvr")

COLOUR_NAMES = {"yellow": "Yellow", "black": "Black", "blue": "#0099ff"}


def draw(scene) -> Image.Image:
    """A picture as the corpus has it, its edges smoothed by drawing it four times as large."""
    picture = Image.new("RGB", (400, 100), (128,) * 3)
    for place, box in enumerate(scene):
        large = Image.new("RGB", (400, 400), (211,) * 3)
        pen = ImageDraw.Draw(large)
        for thing in box:
            left, top, side = 4 * thing.x, 4 * thing.y, 4 * thing.size
            if thing.shape == "triangle":
                pen.polygon([(left, top + side), (left + side, top + side), (left + side / 2, top)], RGB[thing.colour])
            else:
                shape = pen.ellipse if thing.shape == "circle" else pen.rectangle
                shape((left, top, left + side - 1, top + side - 1), RGB[thing.colour])
        picture.paste(large.resize((100, 100), Image.Resampling.BOX), (150 * place, 0))
    return picture


def scene_at_random(rng: random.Random):
    """One to three things in each box, each in a third of its own, so that none touch."""
    return tuple(
        tuple(
            Thing(rng.choice(list(RGB)), rng.choice(SHAPES), rng.choice((10, 20, 30)), rng.randrange(70), 34 * row)
            for row in range(rng.choice((1, 2, 3)))
        )
        for _ in range(3)
    )


TOWERS = tuple(
    tuple(Thing(colour, "square", 20, 40, 80 - 21 * level) for level, colour in enumerate(colours))
    for colours in (("black", "yellow"), ("blue", "blue", "black"), ("yellow",))
)
"""Towers, from their bases up."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve validated groups of four scenes, and two of val; every true image with its sentence."""
    made, rng = tmp_path_factory.mktemp("nlvr"), random.Random(1)
    (made / "images").mkdir()
    groups, images, structured = {}, [], {}
    for number in range(14):
        split, sentence = ("val", "dev") if number > 11 else ("train", "hidden"), "There is a yellow item."
        name = f"{split[1]}-{number}"
        listed = []
        for place in range(4):
            scene = scene_at_random(rng)
            so = read("there is a yellow item")(scene)
            file = f"{name}-{place}-0.png"
            draw(scene).save(made / "images" / file)
            structured[scene_name(file)] = [
                [
                    {"x_loc": t.x, "y_loc": t.y, "type": t.shape, "color": COLOUR_NAMES[t.colour], "size": t.size}
                    for t in box
                ]
                for box in scene
            ]
            # Two of four are said to be false, so that every group has both.
            said = "true" if place < 2 else "false"
            listed.append({"file_name": file, "sentence_is": said, "label_source": "validated", "so": so})
            if said == "true":
                sentences = [{"raw": sentence, "tokens": words_of(sentence).split(), "sentid": len(images)}]
                images.append(
                    {"filepath": "", "filename": file, "imgid": len(images), "cocoid": len(images), "split": split[0]}
                    | {"group": name, "permutation": 0, "sentids": [len(images)], "sentences": sentences}
                )
        groups[name] = {"split": split[0], "sentence": sentence, "images": listed}
    for name, value in (("groups", groups), ("structured", structured), ("dataset_nlvr", {"images": images})):
        (made / f"{name}.json").write_text(json.dumps(value))
    return made


def test_pixels_give_the_scene():
    rng = random.Random(0)
    for _ in range(20):
        scene = scene_at_random(rng)
        assert read_scene(draw(scene)) == scene
    assert read_scene(draw(TOWERS)) == tuple(tuple(sorted(box, key=lambda thing: thing.y)) for box in TOWERS)


def test_two_things_that_touch_are_not_read():
    pair = (Thing("blue", "square", 20, 10, 10), Thing("blue", "square", 20, 30, 10))
    assert read_box(boxes_of(draw((pair, (), ())))[0]) is None


def test_a_canvas_holds_the_boxes_at_half_their_side():
    blue = Thing("blue", "square", 30, 0, 0)
    made = canvas(boxes_of(draw(((), (blue,), ()))))
    assert made.size == (96, 96)
    assert [made.getpixel(at) for at in ((5, 5), (53, 5), (5, 53), (90, 90))] == [
        (211,) * 3,
        RGB["blue"],
        (211,) * 3,
        (128,) * 3,
    ]


BOXES = (
    (Thing("yellow", "circle", 20, 0, 40), Thing("black", "square", 10, 50, 50)),
    (Thing("yellow", "circle", 20, 40, 80), Thing("yellow", "circle", 10, 40, 10)),
    (Thing("blue", "triangle", 30, 30, 30),),
)


@pytest.mark.parametrize(
    ("sentence", "answer"),
    [
        ("there is a yellow circle", True),
        ("there are exactly 3 yellow circles", True),
        ("there are 3 yellow circles", True),
        ("there are two yellow circles", None),  # three: true as "at least", false as "exactly"
        ("there are 4 yellow circles", False),
        ("there are at most two yellow items", False),
        ("there is no blue square", True),
        ("there is a black item touching the wall", False),
        ("there is only one item closely touching the bottom of a box", True),
        ("there are exactly two circles touching the edge", True),
        ("there is a box with a yellow circle and a black square", True),
        ("there is a box with a blue triangle and a black square", False),
        ("there is 1 box with a yellow circle", None),  # two boxes have one
        ("there are exactly two boxes with a yellow circle", True),
        ("there is a tower with two blocks", False),
        ("there is a box with a yellow circle near a black square", "unread"),
        ("there are two boxes with the same number of items", "unread"),
        ("a yellow circle", "unread"),
        ("there is yellow", "unread"),
    ],
)
def test_what_a_sentence_says(sentence, answer):
    reading = read(sentence)
    assert (reading(BOXES) if reading else "unread") == answer


@pytest.mark.parametrize(
    ("sentence", "answer"),
    [
        ("there is a tower with a yellow block at the top", True),
        ("there is a tower with a black block at the base", True),
        ("there are at least two towers with a blue block at the base", False),
        ("there is exactly one black block as the base of a tower", True),
        ("there is a yellow block as the top of a tower", True),
        ("there is a tower with exactly three blocks", True),
        ("there is exactly one tower with at least two blue blocks", True),
        ("there are 3 towers with exactly two blocks", False),
    ],
)
def test_what_a_sentence_says_of_towers(sentence, answer):
    assert is_towers(TOWERS)
    assert not is_towers(BOXES)
    assert read(sentence)(TOWERS) == answer


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("there is a yellow circle", None),
        ("there is a yellow square", "square"),  # there are yellow things
        ("there is a box with a blue circle", "circle"),
        ("there is a box with a yellow circle and a blue triangle", "blue"),  # not in that box
        ("there are at least four circles touching the edge", "circles"),  # three are there
        ("there are at least three circles touching the edge", "edge"),
        ("there are exactly two yellow circles", "circles"),
        ("there is no black square", "square"),
    ],
)
def test_the_first_wrong_word(sentence, word):
    found = first_wrong(sentence, BOXES)
    assert (None if found is None else sentence.split()[found]) == word


def test_nothing_true_begins_as_a_sentence_does_that_is_wrong_so_far():
    """By trying: no true sentence of the grammar shares the words up to the first wrong one, unless that is the last."""
    rng = random.Random(3)
    drawn = [text for text, _ in islice(statements(BOXES, rng), 400)]
    true = {text for text in drawn if read(text)(BOXES) is True}
    for text in set(drawn) - true:
        place = first_wrong(text, BOXES)
        begun = text.split()[: place + 1]
        if place < len(text.split()) - 1:
            assert not [other for other in true if other.split()[: place + 1] == begun]


def test_sentences_at_random_are_true_and_false_by_turns():
    for scene in (BOXES, TOWERS):
        drawn = list(islice(statements(scene, random.Random(0)), 30))
        assert [true for _, true in drawn] == [True, False] * 15
        assert all(read(text)(scene) is true for text, true in drawn)
        assert len({text for text, _ in drawn}) > 15


def test_descriptions_are_true_and_name_all_of_a_box():
    for text in descriptions(BOXES, random.Random(0), 20):
        assert read(text)(BOXES) is not False
        assert set(text.split(" with ")[1].split(" and ")) in (
            {"a yellow circle", "a black square"},
            {"two yellow circles"},
            {"a blue triangle"},
        )
    assert all(read(text)(TOWERS) is True for text in descriptions(TOWERS, random.Random(0), 20))
    assert descriptions(((), (), ()), random.Random(0), 3) == ["there is no item"]


def test_questions_differ_in_one_word_that_makes_them_false(folder, tmp_path):
    models = Models(Corpus(folder), tmp_path)
    told = models.told("train")
    for kind in nlvr.KNOWN:
        asked = list(nlvr.questions(told, kind))
        assert asked
        for name, true, false in asked:
            changed = [(a, b) for a, b in zip(true.split(), false.split(), strict=True) if a != b]
            assert len(changed) == 1
            assert (read(true)(told.scene(name)), read(false)(told.scene(name))) == (True, False)


def test_held_out_groups_share_nothing_with_training(folder, tmp_path):
    models = Models(Corpus(folder), tmp_path)
    groups = models.corpus.groups
    held_out = [name for name, group in groups.items() if group.split == "held_out"]
    assert len(held_out) == 4
    assert {group.split for group in groups.values()} == {"train", "held_out", "val"}
    ids = {split: {example.id for example in models.dataset(split)} for split in ("train", "held_out", "val")}
    assert {split: len(found) for split, found in ids.items()} == {"train": 16, "held_out": 8, "val": 4}
    assert models.dataset("train").references.popitem()[1] == ["there is a yellow item"]


def test_where_the_scene_decides_it_overrules_the_label(folder, tmp_path):
    told = Models(Corpus(folder), tmp_path).told("train")
    written = json.loads((folder / "groups.json").read_text())
    so = {image["file_name"]: image["so"] for group in written.values() for image in group["images"]}
    assert all(told.label(name) == so[name] for name in told.names)
    assert drawn_texts(told, told.names[0], 3, 4) == drawn_texts(told, told.names[0], 3, 4)
    assert len(drawn_texts(told, told.names[0], 3, 4)) == 5


def test_exact_measures_count_what_the_scenes_decide(folder, tmp_path):
    judging = nlvr.Judging(Models(Corpus(folder), tmp_path), "val", tmp_path / "kept")
    captions = dict.fromkeys(judging.human, "there is a thing")
    assert judging.exactly(captions) == {"exact_read": 0.0}
    captions = dict.fromkeys(judging.human, "there is a yellow item")
    own = [read("there is a yellow item")(judging.told.scene(file)) for file in judging.file_of.values()]
    apart = [
        so
        and not any(read("there is a yellow item")(judging.told.scene(other)) for other in judging._against(image)[1:])
        for image, so in zip(judging.file_of, own, strict=True)
    ]
    expected = {"exact_read": 100.0, "exact_true": 25.0 * sum(own), "exact_groups": 25.0 * sum(apart)}
    assert judging.exactly(captions) == pytest.approx(expected)


def test_group_accuracy_reads_own_image_and_false_ones(folder, tmp_path):
    judging = nlvr.Judging(Models(Corpus(folder), tmp_path), "val", tmp_path / "kept")

    def by_name(names, texts):
        return [[-float(scene_name(name)[-1]) for _ in own] for name, own in zip(names, texts, strict=True)]

    # Own images are 0 and 1 of each group, false ones 2 and 3: a score that falls with the number is always right.
    assert judging.by(by_name, judging.human, "x") == {"x_groups": 100.0, "x_pairs": 100.0, "x_true": 0.0}


@pytest.fixture(scope="module")
def models(folder, tmp_path_factory):
    tiny = {name: replace(schedule, steps=2, batch_size=4) for name, schedule in SCHEDULES.items()}
    return Models(Corpus(folder), tmp_path_factory.mktemp("models"), tiny)


@pytest.mark.slow
def test_all_models_are_trained_from_the_folder(folder, models, tmp_path):
    judging = nlvr.Judging(models, "held_out", tmp_path / "kept")
    known = nlvr.probes(judging)
    assert set(known) == {"listener", "verifier", "judge"}
    assert all(0 <= value <= 100 for found in known.values() for value in found.values())
    measured = judging(judging.human)
    assert {"judge_groups", "judge_pairs", "judge_true", "exact_read", "exact_true"} <= set(measured)
    assert judging(judging.human) == measured
    captions = nlvr._apart(judging, 0, verified=True)
    assert set(captions) == set(judging.human)
    again = Models(Corpus(folder), models.root, {**models.schedules, "xe": Schedule(3, 4, 1e-3)})
    assert again.folder("xe") != models.folder("xe")
    assert again.folder("tower").is_dir()
    assert torch.get_num_threads() == 1


@pytest.mark.slow
@pytest.mark.parametrize("row", ["scst-CLIP+KL", "wtf_rl", "dico-truth"])
def test_a_row_is_trained_and_measured(models, tmp_path, row):
    """In the code that its process runs: one step, measured on the held-out groups."""
    file = nlvr.prepare(models, "val", 1)(read_study(STUDIES / "nlvr.yaml").seeded([0]), "full", True)
    few = {"training.per_device_train_batch_size": 4, "objective.max_new_tokens": 6, "evaluation.max_new_tokens": 6}
    few |= {"discriminator.pretraining_steps": 2, "neighbours.k": 5} if row == "wtf_rl" else {}
    file = replace(file.having({row}, few), measure={**file.measure, "max_new_tokens": 6})
    judged = {split: nlvr.Judging(models, split, tmp_path / "kept") for split in ("held_out", "val")}
    study = type("Tiny", (nlvr.NlvrStudy,), {"models": models, "judged": judged})(file, tmp_path / "study")
    (task,) = study.tried(row, study.grid(row)[0])
    task.write()
    carry_out(task.folder, task.folder / ASKED_FILE)
    found = study.held_out(row, study.grid(row)[0])
    assert {"judge_groups", "exact_read", "perplexity", "CIDEr", "listener_R@1"} <= set(found)
    assert found["perplexity"] > 1
    assert task.steps_of["last"] == 1


@pytest.mark.slow
def test_points_are_chosen_on_held_out_groups_among_the_fluent_ones(models, tmp_path, monkeypatch):
    """Two seeds; every training is noted by hand. The start has perplexity 3: 6 is fluent, 7 is not."""
    judged = {split: nlvr.Judging(models, split, tmp_path / "kept") for split in ("held_out", "val")}
    marks = {"there is a box": 10.0, "there is a yellow item": 20.0, "there is a blue item": 30.0}
    monkeypatch.setattr(judged["held_out"], "by", lambda score, captions, name: {"judge_groups": marks[captions["0"]]})
    monkeypatch.setattr(nlvr.Judging, "judge", None)
    file = nlvr.prepare(models, "val", 2)(read_study(STUDIES / "nlvr.yaml").seeded([0, 1]), "full", True)
    study = type("Tiny", (nlvr.NlvrStudy,), {"models": models, "judged": judged})(file, tmp_path / "study")
    for task in study.searching():
        captions, perplexity = {"0": "there is a box"}, 3.0
        if task.trains:
            fast = rate(task) == max(map(rate, (study.tried(*at)[0] for at in _points(study, task))))
            captions, perplexity = (
                {"0": "there is a blue item" if fast else "there is a yellow item"},
                7.0 if fast else 6.0,
            )
            note_training(task, {2: {}}, selected=2)
        note_measured(task, next(iter(task.measures)), {"last": {"perplexity": perplexity}}, captions=captions)
    for name in ("scst-CIDEr", "wtf_rl", "dico-truth"):
        chosen, points = study.chosen(name), study.grid(name)
        assert chosen == points[0]
        assert [study.merit(name, point) for point in points] == [(True, 20.0), (False, 30.0)]
    starts = {task.seed: option(task.recipe, nlvr.CAPTIONER) for task in study.seeded("dico", study.chosen("dico"))}
    assert starts == {seed: str(models.folder("xe", seed)) for seed in (0, 1)}


def _points(study, task):
    """The points of the row that a training is of."""
    for name in study.file.rows:
        points = study.grid(name)
        if task.folder in {tried.folder for point in points for tried in study.tried(name, point)}:
            return [(name, point) for point in points]
    raise AssertionError(task.name)


@pytest.mark.slow
def test_the_page_of_a_finished_study(models, tmp_path, monkeypatch):
    judged = {split: nlvr.Judging(models, split, tmp_path / "kept") for split in ("held_out", "val")}
    for judging in judged.values():
        monkeypatch.setattr(
            judging, "by", lambda score, captions, name: {f"{name}_groups": 40.0, f"{name}_pairs": 60.0}
        )
    monkeypatch.setattr(nlvr.Judging, "judge", None)
    monkeypatch.setattr(nlvr, "probes", lambda judging: {"judge": {"shape": 90.0}})
    rows = {"apart": [{"judge_groups": 50.0}], "apart, no verifier": [{"judge_groups": 45.0}]}
    monkeypatch.setattr(nlvr, "apart_rows", lambda judging, seeds: rows)
    file = nlvr.prepare(models, "val", 2)(read_study(STUDIES / "nlvr.yaml").seeded([0]), "full", True)
    kind = type("Tiny", (nlvr.NlvrStudy,), {"models": models, "judged": judged})
    study = kind(file, tmp_path / "study", derive=judged["val"])
    captions = {split: dict(judging.human) for split, judging in judged.items()}
    for tasks, split in ((study.searching(), "held_out"), (study.plain, "val")):
        for task in tasks() if callable(tasks) else tasks:
            if task.trains:
                note_training(task, {2: {}}, selected=2)
            point = "last" if task.trains else "start"
            note_measured(
                task, next(iter(task.measures)), {point: {"CIDEr": 0.5, "perplexity": 3.0}}, captions=captions[split]
            )
    text = nlvr.page(study, tmp_path, "val").read_text()
    cells = {line.split(" | ")[0]: line.split(" | ") for line in text.splitlines() if line.startswith("| ")}
    assert {"| *human*", "| xe", "| dico-truth", "| apart"} <= set(cells)
    assert cells["| apart"][1:3] == ["search", "50.0"]
    assert next(line for line in text.splitlines() if line.startswith("| xe |")).split(" | ")[1:4] == [
        "-",
        "40.0",
        "60.0",
    ]
    assert "Does not hold**: dico has a higher group accuracy than xe" in text
    assert "CPU minutes" in text


def test_the_real_scenes_agree_with_their_pixels(shared_data):
    if not (shared_data / "nlvr").is_dir():
        pytest.skip("NLVR (shared/data/nlvr) is not beside the project")
    corpus = Corpus(shared_data / "nlvr")

    def things(scene):
        return [sorted(map(str, map(vars, box))) for box in scene]

    for name in list(corpus.scenes)[:60]:
        assert things(read_scene(corpus.picture(f"{name}-0.png"))) == things(corpus.scenes[name])
    decided = []
    for group in (group for group in corpus.groups.values() if group.split == "held_out"):
        reading = read(group.sentence)
        for files, so in ((group.true, True), (group.false, False)):
            found = (reading(corpus.scenes[scene_name(file)]) for file in files) if reading else ()
            decided += [answer == so for answer in found if answer is not None]
    assert len(decided) > 100
    assert sum(decided) / len(decided) > 0.97
