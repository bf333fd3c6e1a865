"""A model as a judge: both orders, position bias, and answers that the results tables read as a model's."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from judge_fakes import captions, toy_study
from PIL import Image

from clip_files import grey_frames, write_webp
from listeners.tiny_listeners import clip_parts
from pictures import CAPTIONS
from tellapart.cli.main import main
from tellapart.data.clips import ArrayClip, on_disk
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError
from tellapart.evaluation.judge.answers import Answers
from tellapart.evaluation.judge.export import preferences
from tellapart.evaluation.judge.model import (
    COMPARE,
    ChoiceMatcher,
    Orders,
    judge_study,
    open_judge,
    position_bias,
    record,
)
from tellapart.evaluation.judge.results import summarize
from tellapart.evaluation.judge.study import (
    ANSWERS_FILE,
    PICTURES,
    READS_BETTER,
    WHICH_IMAGE,
    choose_images,
    make_items,
    require_stills,
    write_moving,
    write_study,
)
from tellapart.evaluation.judge.tables import to_csv, to_markdown
from tellapart.listeners.clip import ClipListener
from tiny.llava import tiny_llava


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("llava")
    words = [
        "Caption A: Caption B: Which caption describes the image better? Answer with A or B. yes no picture plain 0 1 2"
    ] * 20
    tiny_llava(place, captions=[*CAPTIONS, *words, "an image, number 3456789"], vocab=260)
    return place


def test_both_orders_are_asked(folder, tmp_path):
    study = toy_study(tmp_path / "study")
    choice, fits = open_judge(folder)
    assert choice.model is fits.model
    orders = {one.item: one for one in judge_study(study, choice, fits)}
    assert orders.keys() == {item.id for item in study.items}
    for item in study.items_of(READS_BETTER):
        one = orders[item.id]
        a, b = item.captions
        image = item.images[0]
        plain, turned = (
            float(choice.score(choice.match_ids([image], [[COMPARE.format(first=x, second=y)]])[0]))
            for x, y in ((a, b), (b, a))
        )
        assert one.log_odds == pytest.approx((plain, -turned), abs=1e-4)
        assert one.first == ("b" if plain > 0 else "a")  # B was run B's
        assert one.second == ("a" if turned > 0 else "b")  # B was run A's
    for item in study.items_of(WHICH_IMAGE):
        target, other = (float(fits.score(fits.match_ids([image], [list(item.captions)])[0])) for image in item.images)
        assert orders[item.id].choice == ("target" if target > other else "distractor")
    assert any(one.log_odds[0] != one.log_odds[1] for one in orders.values())


def said(item: str, first: str, second: str) -> Orders:
    return Orders(item, READS_BETTER, first, second, (0.1, 0.1))


def test_position_bias_is_counted():
    orders = [said("1", "a", "a"), said("2", "b", "b"), said("3", "a", "b"), said("4", "a", "b"), said("5", "b", "a")]
    found = position_bias([*orders, Orders("6", WHICH_IMAGE, "target", "target", (-1.0, -1.0))])
    assert found == {"items": 5, "consistent": 2, "first_shown": 2, "second_shown": 1, "share_first": 6 / 10}
    assert [one.choice for one in orders] == ["a", "b", "unsure", "unsure", "unsure"]
    assert position_bias([])["share_first"] is None


def test_a_models_answers_stand_beside_peoples(tmp_path):
    study = toy_study(tmp_path / "study")
    answers = Answers(study.folder / ANSWERS_FILE)
    better = study.items_of(READS_BETTER)
    ann = answers.enter("Ann")
    for item in better[:4]:
        answers.record(ann, item.id, "a", first="a")
    orders = [said(item.id, "b", "b") for item in better[:3]] + [said(item.id, "a", "a") for item in better[3:]]
    rater, new = record(answers, "tiny", orders)
    assert (rater, new) == ("model: tiny", len(better))
    assert record(answers, "tiny", orders) == ("model: tiny", 0)
    with pytest.raises(UsageError, match="are those of models"):
        answers.enter("Model: tiny")

    summary = summarize(study, answers.all(), {rater: {"position_bias": position_bias(orders)}})
    assert (summary[READS_BETTER]["a"], summary[READS_BETTER]["b"]) == (4, 0)
    assert [one["name"] for one in summary["raters"]] == ["Ann"]
    (model,) = summary["models"]
    assert (model[READS_BETTER]["a"], model[READS_BETTER]["b"]) == (len(better) - 3, 3)
    assert model["with_people"]["items"] == 4
    assert model["with_people"]["share"] == 0.25
    page = to_markdown(summary)
    assert "## Models as judges" in page
    assert "| model: tiny |" in page
    assert "100.0 %" in page
    assert "25.0 % of 4" in page
    assert to_csv(study, answers.all()).count("model: tiny") == len(better)
    assert len(preferences(study, answers.all()).rows) == 4  # Ann's alone
    alone = [answer for answer in answers.all() if answer.rater == rater]
    assert len(preferences(study, alone).rows) == len(better)
    assert "models" not in summarize(study, [])["methods"]
    answers.close()


def test_models_whose_long_paths_differ_at_the_end_are_two_raters(tmp_path):
    study = toy_study(tmp_path / "study")
    answers = Answers(study.folder / ANSWERS_FILE)
    (item,) = study.items_of(READS_BETTER)[:1]
    found = [record(answers, f"/{'folder/' * 12}step-{step}", [said(item.id, "a", "a")]) for step in (100, 200)]
    answers.close()
    assert [(rater.startswith("model: "), rater[-8:], len(rater), new) for rater, new in found] == [
        (True, "step-100", 60, 1),
        (True, "step-200", 60, 1),
    ]


def test_the_command_answers_a_study(folder, tmp_path, capsys):
    study = toy_study(tmp_path / "study")
    assert main(["judge", str(study.folder), "--vlm", str(folder)]) == 0
    out = capsys.readouterr()
    assert "## Models as judges" in out.out
    assert f"model: {folder.name}: {len(study.items)} items, {len(study.items)} answered now" in out.err
    kept = json.loads((study.folder / "models.json").read_text())
    (name,) = kept
    assert kept[name]["position_bias"]["items"] == len(study.items_of(READS_BETTER))
    assert kept[name]["model"]["scale"] == "log-odds of B"
    assert main(["judge", "--results", str(study.folder)]) == 0
    assert "model:" in capsys.readouterr().out
    # Another model whose folder has the same name would be one rater with the first.
    other = tmp_path / "other" / folder.name
    tiny_llava(other, captions=[*CAPTIONS, "Caption A: Caption B: yes no"] * 20, vocab=200)
    assert main(["judge", str(study.folder), "--vlm", str(other)]) == 2
    assert f"another model named {folder.name} has answered this study" in capsys.readouterr().err
    assert json.loads((study.folder / "models.json").read_text()) == kept


def test_a_model_is_not_asked_about_clips(folder, tmp_path):
    study = toy_study(tmp_path / "study")
    clip = ArrayClip("clip", np.zeros((8, 24, 24, 3), dtype=np.uint8))
    moving = replace(study, pictures=study.pictures | {"0": write_moving(study.folder / PICTURES, clip)})
    with pytest.raises(UsageError, match="shows clips, but a model judges still images only"):
        judge_study(moving, *open_judge(folder))


def test_a_model_sees_the_first_frame_of_an_animation_among_images(folder, tmp_path):
    write_webp(tmp_path / "0.webp", grey_frames(8))
    Image.fromarray(grey_frames(1, (1000, 800))[0] + 50).save(tmp_path / "1.webp")
    dataset = CaptionDataset([Example(str(i), on_disk(tmp_path / f"{i}.webp")) for i in range(2)], name="two")
    first, second = captions(2)
    items = make_items(choose_images(first, second, count=2, seed=0), first, second, {"0": "1", "1": "0"}, seed=0)
    require_stills(dataset, items)
    study = write_study(tmp_path / "s", dataset, items, runs=("a", "b"), seed=0, asked={}, about={})
    shown = {name: Image.open(study.folder / PICTURES / file) for name, file in study.pictures.items()}
    assert (shown["0"].n_frames, shown["1"].size) == (8, (1000, 800))  # as large as images of other endings
    assert study.stills.keys() == {"0"}
    seen = ImageFile(study.folder / PICTURES / study.stills["0"]).open()
    assert np.array_equal(np.asarray(seen), grey_frames(1)[0])
    assert len(judge_study(study, *open_judge(folder))) == len(study.items)
    (study.folder / PICTURES / study.stills["0"]).unlink()
    with pytest.raises(UsageError, match="lacks 1 of the study's pictures"):
        study.require_pictures()


def test_clips_are_refused_before_a_study_is_written(folder, tmp_path, capsys):
    (tmp_path / "clips").mkdir()
    for name in "ab":
        (tmp_path / "clips" / f"{name}.mp4").write_bytes(name.encode())
        (tmp_path / f"{name}.json").write_text(json.dumps({f"{clip}.mp4": f"{name} {clip}" for clip in "ab"}))
    words = ["judge", tmp_path / "a.json", tmp_path / "b.json", "--images", tmp_path / "clips", "--vlm", folder]
    assert main([str(word) for word in [*words, "--output_dir", tmp_path / "s"]]) == 2
    assert "image 'a.mp4' is a clip, but a model judges still images only" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_stopped_model_keeps_its_answers_and_is_asked_for_the_rest(folder, tmp_path, capsys, monkeypatch):
    """Batches are those of a run that was not stopped, so its answers are the same to the last bit; a third run asks nothing."""
    asked = []

    class Small(ChoiceMatcher):
        stops = None

        def match_ids(self, ids, texts, **options):
            if len(asked) == self.stops:
                raise KeyboardInterrupt
            asked.append(list(ids))
            return super().match_ids(ids, texts, **options)

    def small(path, *, device):
        choice, fits = open_judge(path, device=device)
        choice.__class__, choice.batch_size, fits.batch_size = Small, 2, 2
        return choice, fits

    monkeypatch.setattr("tellapart.evaluation.judge.model.open_judge", small)
    whole, study = (toy_study(tmp_path / name) for name in ("whole", "study"))
    items = len(study.items_of(READS_BETTER))
    assert items > 4
    assert main(["judge", str(whole.folder), "--vlm", str(folder)]) == 0
    of_all = asked.copy()
    asked.clear()
    Small.stops = 2
    assert main(["judge", str(study.folder), "--vlm", str(folder)]) == 130
    pairs = len(study.items) - items
    assert f"stopped; {pairs + 4} answers kept. The same command resumes." in capsys.readouterr().err
    Small.stops = None
    assert main(["judge", str(study.folder), "--vlm", str(folder)]) == 0
    assert asked == of_all
    assert f"{len(study.items)} items, {items - 4} answered now" in capsys.readouterr().err
    assert json.loads((study.folder / "models.json").read_text()) == json.loads(
        (whole.folder / "models.json").read_text()
    )
    assert main(["judge", str(study.folder), "--vlm", str(folder)]) == 0
    assert asked == of_all
    assert f"{len(study.items)} items, 0 answered now" in capsys.readouterr().err
    for file in study.folder.glob(f"{ANSWERS_FILE}*"):
        file.unlink()
    assert main(["judge", str(study.folder), "--vlm", str(folder)]) == 0
    assert asked == of_all
    assert f"{len(study.items)} items, {len(study.items)} answered now" in capsys.readouterr().err


def test_a_models_damaged_answers_are_one_sentence(folder, tmp_path, capsys):
    study = toy_study(tmp_path / "study", images=2, count=1)
    assert main(["judge", str(study.folder), "--vlm", str(folder)]) == 0
    kept = json.loads((study.folder / "models.json").read_text())
    ((rater, own),) = kept.items()
    (study.folder / "models.json").write_text(json.dumps({rater: own | {"orders": [{"item": "0"}]}}))
    capsys.readouterr()
    assert main(["judge", str(study.folder), "--vlm", str(folder)]) == 2
    assert "models.json is damaged: restore it, or remove it" in capsys.readouterr().err


@pytest.mark.parametrize("kept", ['{"model: a": 3}', '{"model: a": {"model": "b"}}', "[]", "{"])
def test_damaged_descriptions_of_models_are_one_sentence(folder, tmp_path, capsys, kept):
    study = toy_study(tmp_path / "study", images=2, count=1)
    (study.folder / "models.json").write_text(kept)
    for words in ([str(study.folder), "--vlm", str(folder)], ["--results", str(study.folder)]):
        assert main(["judge", *words]) == 2
        assert "models.json is damaged: restore it, or remove it" in capsys.readouterr().err
    assert (study.folder / "models.json").read_text() == kept


def test_what_cannot_be_asked_cannot_judge(tmp_path):
    ClipListener.from_parts(*clip_parts()).save(tmp_path / "listener")
    with pytest.raises(UsageError, match="listener cannot judge: name an instruct vision-language model"):
        open_judge(tmp_path / "listener")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UsageError, match="is an adapter: merge it into its model"):
        open_judge(tmp_path / "adapter")


def test_a_model_without_the_letters_is_refused(tmp_path):
    tiny_llava(tmp_path / "llava", captions=["a red star"], vocab=128)
    with pytest.raises(UsageError, match="no tokens for the answers A and B"):
        open_judge(tmp_path / "llava")
