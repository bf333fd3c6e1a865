"""``tellapart judge``: studies from runs and from files of captions, distractors, results, and what is refused."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest

from evaluation.judge_fakes import captions
from tellapart.cli.main import main
from tellapart.data.load import load_dataset
from tellapart.evaluation.judge.answers import Answers
from tellapart.evaluation.judge.study import ANSWERS_FILE, READS_BETTER, WHICH_IMAGE, Study
from tellapart.evaluation.protocol import Protocol
from tellapart.evaluation.results import EvaluationResult
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.mining import mine

pytest.importorskip("starlette")


@pytest.fixture
def served(monkeypatch) -> list[Study]:
    """The studies that would have been served, until Ctrl-C."""
    studies = []

    def interrupted(study, listening):
        assert listening.getsockname()[0] == "127.0.0.1"
        studies.append(study)
        raise KeyboardInterrupt

    monkeypatch.setattr("tellapart.evaluation.judge.serve.serve", interrupted)
    return studies


@pytest.fixture
def runs(materials, tmp_path) -> list[str]:
    """Two measured runs on the six test pictures, of which one has the same caption."""
    dataset = load_dataset(materials.data, split="val")
    paths = []
    for captions_of, name in zip(captions(30, equal=(8,)), ("xe", "dico"), strict=True):
        said = {image_id: captions_of[str(int(image_id))] for image_id in dataset.ids}
        result = EvaluationResult(name, Protocol(dataset.name, 6, "00000000", "greedy"), {"x": 1.0}, said, {})
        result.save(tmp_path / name)
        paths.append(str(tmp_path / name))
    return paths


def judged(runs, materials, tmp_path, *more) -> list[str]:
    words = ["judge", *runs, "--images", str(materials.data), "--port", "0", "--output_dir", str(tmp_path / "study")]
    return [*words, *more]


def test_a_study_of_two_runs_goes_on_with_the_same_command(runs, materials, tmp_path, served, capsys):
    words = judged(runs, materials, tmp_path, "--num_items", "4")
    assert main(words) == 0
    said = capsys.readouterr()
    assert "the other image of which_image is chosen at random" in said.err
    assert "the answers are kept" in said.err
    assert said.out.startswith("http://127.0.0.1:")
    (study,) = served
    assert study.runs == ("xe", "dico")
    assert study.about["equal_captions"] == 1
    assert len(study.items_of(READS_BETTER)) == 4
    assert main(words) == 0
    assert main(["judge", str(tmp_path / "study"), "--port", "0"]) == 0
    assert served == [study] * 3
    assert "warning" not in capsys.readouterr().err
    assert main([*words, "--seed", "5"]) == 2
    assert "holds a study with seed 0, not 5: give another --output_dir." in capsys.readouterr().err


def test_a_study_without_its_pictures_is_not_served(runs, materials, tmp_path, served, capsys):
    assert main(judged(runs, materials, tmp_path, "--num_items", "2")) == 0
    gone = next((tmp_path / "study" / "pictures").iterdir())
    gone.unlink()
    assert main(["judge", str(tmp_path / "study"), "--port", "0"]) == 2
    assert f"lacks 1 of the study's pictures, first {gone.name}" in capsys.readouterr().err
    assert len(served) == 1


def test_the_other_image_is_a_mined_neighbour(runs, materials, tmp_path, served, capsys):
    dataset = load_dataset(materials.data, split="val")
    near = mine(ClipListener.from_pretrained(materials.listener), dataset, 2)
    near.save(tmp_path / "near.parquet")
    expected = {name: others[0] for name, others in zip(dataset.ids, near.of(dataset.ids), strict=True)}
    for number, more in enumerate(
        (["--neighbours", str(tmp_path / "near.parquet")], ["--listener", str(materials.listener)])
    ):
        words = judged(runs, materials, tmp_path, *more, "--output_dir", str(tmp_path / f"study {number}"))
        assert main(words) == 0
        assert "any other one" not in capsys.readouterr().err
    for study in served:
        assert {item.images[0]: item.images[1] for item in study.items_of(WHICH_IMAGE)} == expected
        assert "nearest neighbour" in study.about["distractors"]


def test_people_are_asked_about_no_broken_picture(materials, tmp_path, served, capsys):
    """The captioner reads features, so that its run opened no picture; people do, and so does a listener."""
    folder, features = tmp_path / "photos", tmp_path / "features"
    shutil.copytree(materials.photos, folder)
    features.mkdir()
    for path in folder.iterdir():
        np.save(features / f"{path.name}.npy", np.zeros((1, 4), dtype=np.float32))
    (folder / "03.png").write_bytes(b"no picture")
    for name, said in zip("ab", captions(14), strict=True):
        rows = [{"file_name": f"{int(i):02}.png", "caption": text} for i, text in said.items()]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["judge", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--data", folder, "--features", features]
    words += ["--on_error", "skip", "--listener", materials.listener, "--num_items", 13, "--output_dir", tmp_path / "s"]
    assert main([str(word) for word in [*words, "--port", 0, "--split", "train"]]) == 0
    asked = {image_id for item in served[0].items_of(WHICH_IMAGE) for image_id in item.images}
    assert len(asked) == 13
    assert "03.png" not in asked
    assert "1 of the 14 images" in capsys.readouterr().err


def test_look_alikes_for_a_question_that_is_not_asked_are_refused(runs, materials, tmp_path, served, capsys):
    for option in ("--neighbours", "--listener"):
        words = judged(runs, materials, tmp_path, "--question", "reads_better", option, str(tmp_path / "none"))
        assert main(words) == 2
        assert f"{option} is for the question which_image, which is not asked" in capsys.readouterr().err
    assert not served


def test_files_of_captions_and_one_question(materials, tmp_path, served, capsys):
    first, second = ({f"{int(i):02}.png": text for i, text in said.items()} for said in captions(14))
    for name, said in (("a", first), ("b", second)):
        (tmp_path / name).mkdir()
        rows = [{"file_name": file, "caption": text} for file, text in said.items()]
        (tmp_path / name / "said.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = [str(tmp_path / name / "said.jsonl") for name in "ab"]
    assert main(judged(words, materials, tmp_path, "--question", "reads_better", "--split", "train")) == 0
    said = capsys.readouterr().err
    assert "reads_better asks about 8 images: no more have different captions" in said
    assert "warning" not in said
    (study,) = served
    assert study.runs == tuple(f"said ({word})" for word in words)
    again = judged(words, materials, tmp_path, "--question", "reads_better", "--split", "train")
    assert main(again) == 0
    kept = (tmp_path / "b" / "said.jsonl").read_text()
    (tmp_path / "b" / "said.jsonl").write_text(kept.replace('"caption": "', '"caption": "just ', 1))
    assert main(again) == 2  # old captions were shown, and answers counted for the new ones
    assert f"a study of other captions, since {words[1]} has changed" in capsys.readouterr().err
    (tmp_path / "b" / "said.jsonl").unlink()
    assert main(again) == 0
    assert served == [study] * 3
    assert (len(study.items_of(WHICH_IMAGE)), len(study.items_of(READS_BETTER))) == (0, 8)


def test_results_are_printed_and_kept(runs, materials, tmp_path, served, capsys):
    main(judged(runs, materials, tmp_path))
    (study,) = served
    answers = Answers(study.folder / ANSWERS_FILE)
    key = answers.enter("Ann")
    for item in study.items:
        answers.record(key, item.id, "target" if item.question == WHICH_IMAGE else "b", first="a")
    answers.close()
    capsys.readouterr()
    assert main(["judge", "--results", str(study.folder)]) == 0
    said = capsys.readouterr()
    page = (study.folder / "results.md").read_text()
    assert said.out.rstrip() == page.rstrip()
    assert "| dico | 100.0 % |" in page
    assert f"({len(study.items)} answers)" in said.err
    found = json.loads((study.folder / "results.json").read_text())
    assert (found[READS_BETTER]["b"], found[READS_BETTER]["a"]) == (5, 0)
    assert len((study.folder / "answers.csv").read_text().splitlines()) == len(study.items) + 1


def test_what_is_wrong_is_one_sentence(runs, materials, tmp_path, served, capsys):
    near = str(tmp_path / "near.parquet")
    other = tmp_path / "other.json"
    other.write_text('{"nothing": "like it"}')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, told in (
            (["judge"], "0 runs were named: give two"),
            (["judge", "a", "b", "c"], "3 runs were named"),
            (["judge", str(tmp_path)], "holds no study"),
            (["judge", "--results", str(tmp_path)], "holds no study"),
            (["judge", "x", "--results", str(tmp_path)], "give one of them"),
            (["judge", "x", "--num_items", "3"], "--num_items does nothing to the study in x"),
            (["judge", "--results", "x", "--seed", "3"], "--seed does nothing with --results"),
            (["judge", *runs], "give --data"),
            (judged(runs, materials, tmp_path, "--num_items", "0"), "ask about at least 1"),
            (judged(runs, materials, tmp_path, "--seed", "-1"), "--seed is -1"),
            (judged(runs, materials, tmp_path, "--port", "70000"), "--port is 70000"),
            (judged(runs, materials, tmp_path, "--neighbours", near, "--listener", "x"), "give one of them"),
            (judged(runs, materials, tmp_path, "--neighbours", near), "does not exist: write it with tellapart mine"),
            (judged(runs, materials, tmp_path, "--split", "train"), "name the data and the split"),
            (judged([runs[0], str(other)], materials, tmp_path), "make the ids agree"),
            (judged([runs[0], runs[0]], materials, tmp_path, "--question", "reads_better"), "nothing to ask"),
            (judged(runs, materials, tmp_path, "--output_dir", str(tmp_path / "full")), "holds other files"),
            (judged(runs, materials, tmp_path, "--port", port), f"--port {port} is in use"),
        ):
            assert main(words) == 2, words
            said = capsys.readouterr().err.splitlines()[-1]
            assert said.startswith("error: ")
            assert told in said
    assert served == []


def test_the_page_needs_its_extra_and_results_do_not(runs, materials, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tellapart.evaluation.judge.serve.find_spec", lambda name: None)
    assert main(judged(runs, materials, tmp_path)) == 2
    assert "pip install 'tellapart[judge]'" in capsys.readouterr().err
    script = "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
    script += "from tellapart.cli.judge import results; from pathlib import Path\n"
    script += "try: results(Path('nowhere'))\nexcept Exception as error: print(error)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "holds no study" in done.stdout


def test_a_study_goes_on_without_waiting_for_torch():
    script = "import sys; from tellapart.cli.main import main; main(['judge', '--help'])\n"
    script += "import tellapart.cli.judge, tellapart.evaluation.judge.app, tellapart.evaluation.judge.serve\n"
    script += "assert 'starlette' in sys.modules and not {'torch', 'transformers', 'pandas'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)


def test_runs_that_do_not_exist_are_said_to_be_none(tmp_path, capsys):
    assert main(["judge", "runs/a", "runs/b", "--output_dir", str(tmp_path / "study")]) == 2
    assert "since runs/a is not a run: correct the name, or give --data" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
