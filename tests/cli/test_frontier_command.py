"""``tellapart frontier``: its command line, which trainings it plans, what it keeps, and what it does when some fail."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tellapart.cli.frontier import plan
from tellapart.cli.frontier_words import assignment, read_words, seeds_of
from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.recipe.fingerprint import content_of, digest, stages_of
from tellapart.recipe.recipe import Recipe
from tellapart.sweep.tasks import Sweep, carry_out

ROOT = Path(__file__).parents[2]
DICO, KL = str(ROOT / "recipes/world_ved_dico.yaml"), str(ROOT / "recipes/world_ved_scst_clip_kl.yaml")

WORKER = """
import argparse, json, pathlib, sys
from tellapart.evaluation.protocol import Protocol
from tellapart.evaluation.results import EvaluationResult

parser = argparse.ArgumentParser()
parser.add_argument("asked")
parser.add_argument("--output_dir", type=pathlib.Path)
parser.add_argument("--end_with_stdin", action="store_true")
options = parser.parse_args()
with open(options.output_dir / "starts.txt", "a") as file:
    file.write("started\\n")
place = options.output_dir / options.asked
asked = json.loads(place.read_text())
recipe = asked["recipe"]
beta, seed = recipe["objective"]["beta"], recipe["training"]["seed"]
if asked["trains"] and beta == 0.2 and seed == 43 and not pathlib.Path("mended").exists():
    print("error: no memory left")
    sys.exit(2)
metrics = {"CIDEr": 0.5 + beta + seed / 1000, "judge_R@1": 60 - 50 * beta}
protocol = Protocol("toy", 1, "00000000", "greedy", {"judge": "0"})
done = {}
(measured,) = asked["measures"]
target = options.output_dir / measured
for name, step in (("selected", 1), ("last", 2)) if asked["trains"] else (("start", 0),):
    result = EvaluationResult(asked["name"], protocol, metrics, {"a": f"{name} says {beta} & {seed}"}, {})
    done[name] = {"step": step, "folder": result.save(target / name).relative_to(target).as_posix()}
(target / "done.json").write_text(json.dumps(done))
"""


def planned(*words):
    read = read_words([*map(str, words)])
    options = read.options
    return plan(read, Sweep(options.output_dir, common=read.overrides, redraw_start=options.redraw_start))


def test_a_grid_belongs_to_the_recipe_before_it():
    words = ["--grid", "objective.beta=0.1,0.2", DICO, "learning_rate=1e-5,1e-4", "--label=DiCO", "--seeds", "2"]
    read = read_words(
        [
            *words[:3],
            "--grid",
            words[3],
            *words[4:],
            KL,
            "--grid=objective.kl_coef=0,0.1",
            "--max_steps=3",
            "--add",
            "x",
        ]
    )
    first, second = read.methods
    assert first.grid == {"objective.beta": ["0.1", "0.2"], "learning_rate": ["1e-5", "1e-4"]}
    assert (first.label, second.label, second.grid) == ("DiCO", None, {"objective.kl_coef": ["0", "0.1"]})
    assert (read.overrides, read.added, read.options.seeds) == ({"max_steps": "3"}, [Path("x")], "2")
    several = read_words(
        [DICO, "--grid", "objective.beta=1,2", "learning_rate={captioner: 1e-5, x: 2},3", "--at", "CIDEr=80"]
    )
    assert several.methods[0].grid["learning_rate"] == ["{captioner: 1e-5, x: 2}", "3"]
    assert several.at == {"CIDEr": [80.0]}
    again = read_words([DICO, "--grid", "objective.beta=1,2", "--grid", "objective.beta=2,3"])
    assert again.methods[0].grid == {"objective.beta": ["1", "2", "3"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no recipe was named"),
        ([DICO, "--grid"], "--grid has no value: write --grid objective.beta=0.1,0.2"),
        ([DICO, "--grid", "objective.beta="], "gives no values"),
        (["--grid", "objective.beta=1", "--add", "x"], "belongs to no recipe"),
        ([DICO, "other"], "'other' is not expected"),
        ([DICO, "--seeds", "0"], "--seeds is '0'"),
        ([DICO, "--seeds", "1.5"], "--seeds is '1.5'"),
        ([DICO, "--at", "CIDEr=high"], "--at CIDEr=high is not a number"),
        ([DICO, "--at", "CIDER=80"], "'CIDER' is not a metric: did you mean CIDEr?"),
        ([DICO, "--at", "nope=1"], "'nope' is not a metric: choose one of CIDEr, "),
        ([DICO, "--overwrite_output_dir"], "is for one training"),
        ([DICO, "--push_to_hub"], "--push_to_hub is for one training"),
        ([DICO, "--grid", "seed=0,1"], "--grid seed is not a knob: give --seeds"),
        ([DICO, "--grid", "output_dir=a,b"], "--grid output_dir is not a knob"),
        ([DICO, "--grid", "training.seed=0,1"], "--grid training.seed is not a knob: give --seeds"),
        ([DICO, "--training.output_dir", "x"], "--training.output_dir is for one training: give --output_dir"),
        ([DICO, "--training.resume_from_checkpoint", "last"], "is for one training: a frontier resumes"),
        (
            [DICO, "--objective.beta", "0.5", "--grid", "objective.beta=0.1,0.2"],
            "--objective.beta has one value for all",
        ),
        (
            [DICO, "--grid", "training.learning_rate=1e-5", "--learning_rate", "1e-5"],
            "--grid training.learning_rate varies it",
        ),
        ([DICO, "--grid", "betta=0.1"], "betta"),
        (["--add", "x", "--seeds", "banana"], "--seeds does nothing without a recipe"),
        (["--add", "x", "--meteor"], "--meteor does nothing without a recipe, since curves of --add are measured"),
        ([DICO, "--grid", "objective.bta=1"], "did you mean --objective.beta"),
        ([DICO, "--grid", "objective.beta=much"], "--objective.beta is 'much', but must be a number"),
        (["missing.yaml"], "missing.yaml does not exist"),
        ([DICO, "--workers", "0"], "--workers is 0"),
        ([DICO, "--grid", "objective.beta=0.1,0.2", "--seeds", "99999999999"], "--seeds is '99999999999'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(words, said, tmp_path):
    with pytest.raises(UsageError) as raised:
        planned(*words, "--output_dir", tmp_path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_knob_by_its_old_name_is_known(materials, tmp_path):
    """It ended in a traceback."""
    (curve,) = planned(materials.recipe(tmp_path, "dico"), "--grid", "lr=1e-3,1e-4")
    assert [settings for settings, _ in curve.points] == [{"learning_rate": 1e-4}, {"learning_rate": 1e-3}]


def test_values_and_seeds():
    assert assignment("grid", "a.b=0.1, 0.2,0.1") == ("a.b", ["0.1", "0.2"])
    assert assignment("grid", "a=[1,2],[3]") == ("a", ["[1,2]", "[3]"])
    assert (seeds_of("3", 5), seeds_of("4,7", 0), seeds_of("3,", 0)) == ([5, 6, 7], [4, 7], [3])


def test_the_first_key_is_the_knob_and_others_give_curves(materials, tmp_path):
    recipe = materials.recipe(tmp_path, "dico")
    curves = planned(
        recipe, "--grid", "objective.beta=0.5,0.1,1e-1", "learning_rate=1e-3,1e-4", "weight_decay=0.1", "--seeds", 2
    )
    assert [curve.label for curve in curves] == ["dico, learning_rate 1e-3", "dico, learning_rate 1e-4"]
    assert [[settings for settings, _ in curve.points] for curve in curves] == [
        [{"objective.beta": 0.1}, {"objective.beta": 0.5}]
    ] * 2
    trainings = [each for curve in curves for _, two in curve.points for each in two]
    assert len({each.folder for each in trainings}) == 8
    assert all(each.recipe["training"]["weight_decay"] == 0.1 for each in trainings)
    assert len({each.folder for curve in curves for each in curve.start}) == 1


@pytest.mark.parametrize("asked", [["--method", "scst"], ["--method=scst"]])
def test_a_grid_may_be_over_an_option_of_another_method(materials, tmp_path, asked):
    recipe = materials.recipe(tmp_path, "dico")
    (curve,) = planned(recipe, *asked, "--grid", "objective.kl_coef=0.1,1", "--seeds", 1)
    assert (curve.method, [settings for settings, _ in curve.points]) == (
        "scst",
        [{"objective.kl_coef": 0.1}, {"objective.kl_coef": 1.0}],
    )


def test_points_are_kept_by_what_decides_them(materials, tmp_path):
    recipe = materials.recipe(tmp_path, "dico")

    def folders(*words):
        (curve,) = planned(recipe, "--seeds", 1, *words)
        return {each.folder.name for _, all_of in curve.points for each in all_of}

    before = folders("--grid", "objective.beta=0.1")
    assert folders("--objective.beta=1e-1", "--logging_steps", 7) == before
    assert before < folders("--grid", "objective.beta=0.1,0.2")
    assert not before & folders("--objective.beta=0.1", "--max_steps", 3)
    # the same measurement is another file, the training stays
    assert folders("--objective.beta=0.1", "--split", "train", "--num_beams", 2) == before
    (curve,) = planned(recipe, "--seeds", 1, "--objective.beta=0.1")
    (other,) = planned(recipe, "--seeds", 1, "--objective.beta=0.1", "--split", "train")
    assert curve.points[0][1][0].job.markers != other.points[0][1][0].job.markers
    # points are measured as the recipe says: without the option its sets of captions were left out
    (sets,) = planned(recipe, "--seeds", 1, "--objective.beta=0.1", "--evaluation.samples", 3)
    (none,) = planned(recipe, "--seeds", 1, "--objective.beta=0.1", "--evaluation.samples", 3, "--samples", 0)
    measured = [next(iter(each.points[0][1][0].measures.values()))["samples"] for each in (curve, sets, none)]
    assert measured == [0, 3, 0]
    # other words in the data are another training
    copy = tmp_path / "copy.json"
    copy.write_text(materials.data.read_text().replace("raw", "raw ", 1).replace("raw ", "raw"))
    same = folders("--objective.beta=0.1", "--data.path", copy, "--data.images", materials.photos)
    copy.write_text(copy.read_text() + " ")
    changed = folders("--objective.beta=0.1", "--data.path", copy, "--data.images", materials.photos)
    assert same != changed


def test_a_folder_of_pictures_counts_by_names_and_sizes(tmp_path):
    written = {"method": "xe", "captioner": {"model_name_or_path": "m"}, "data": {"images": str(tmp_path)}}
    recipe = Recipe.load(written)
    (tmp_path / "a.jpg").write_bytes(b"1")
    before = recipe.key()
    assert recipe.key() == before
    (tmp_path / "a.jpg").write_bytes(b"12")
    assert recipe.key() != before


def test_a_seed_redraws_the_start_of_the_world(tmp_path):
    (curve,) = planned(DICO, "--grid", "objective.beta=0.1", "--seeds", 2, "--output_dir", tmp_path)
    starts = [each.recipe["captioner"]["model_name_or_path"] for each in curve.points[0][1]]
    assert starts == ["world/xe", "world/xe-seed1"]
    assert len(curve.start) == 2
    assert stages_of(curve.points[0][1][1].recipe) == {"world/xe-seed1", "world/listener", "world/judge"}
    (curve,) = planned(DICO, "--seeds", 2, "--redraw_start", "false", "--output_dir", tmp_path)
    assert {each.recipe["captioner"]["model_name_or_path"] for each in curve.points[0][1]} == {"world/xe"}
    assert len(curve.start) == 1
    with pytest.raises(UsageError, match="not part of the built-in world"):
        content_of("world/nothing", "full")


def test_of_a_run_only_the_weights_count(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "best" / "model.safetensors").write_bytes(b"weights")
    before = digest(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("later")
    assert digest(tmp_path) == before
    (tmp_path / "best" / "model.safetensors").write_bytes(b"Weights")
    assert digest(tmp_path) != before


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """Trainings that take a moment and whose numbers follow from their settings."""
    (tmp_path / "toy_point.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("tellapart.sweep.tasks.JOB_MODULE", "toy_point")
    monkeypatch.setattr("tellapart.sweep.jobs.POLL_SECONDS", 0.05)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_failure_does_not_lose_the_rest(toys, materials, capsys):
    recipe = materials.recipe(toys, "dico")
    words = ["frontier", str(recipe), "--grid", "objective.beta=0.1,0.2", "--seeds", "2", "--output_dir", "out"]
    words += ["--picture", "false", "--images", "1"]
    assert main(words) == 1
    said = capsys.readouterr()
    assert "failed: dico, objective.beta=0.2, seed 43: error: no memory left" in said.err
    assert said.out.strip().endswith(os.path.join("out", "frontier.html"))
    assert "2 (1 failed)" not in Path("out/frontier.md").read_text()
    assert "1 (1 failed)" in Path("out/frontier.md").read_text()
    assert "no memory left" in Path("out/frontier.html").read_text()
    # mended: only the failed one runs again
    Path("mended").touch()
    assert main(words) == 0
    starts = {path.parent.name: path.read_text().count("started") for path in Path("out/points").glob("*/starts.txt")}
    assert sorted(starts.values()) == [1, 1, 1, 1, 2]
    told = json.loads(Path("out/frontier.json").read_text())
    assert told["failures"] == []
    found = {tuple(point["settings"].values()): len(point["trainings"]) for point in told["curves"][0]["points"]}
    assert found == {(0.1,): 2, (0.2,): 2}
    assert main([*words[:2], "--grid", "objective.beta=0.1,0.2,0.4", *words[4:], "--dry_run"]) == 0
    states = [line.split("  ")[-2:] for line in capsys.readouterr().out.splitlines()]
    assert sum("to do" in " ".join(state) for state in states) == 2


def test_a_frontier_goes_on_from_what_was_kept(toys, materials, capsys):
    recipe = materials.recipe(toys, "dico")
    words = ["frontier", str(recipe), "--grid", "objective.beta=0.1,0.2", "--seeds", "2", "--kept", "kept/some.tar.xz"]
    words += ["--picture", "false", "--images", "0"]
    assert main([*words, "--output_dir", "one"]) == 1  # a training failed, the others are kept
    Path("mended").touch()
    assert main([*words, "--output_dir", "two"]) == 0
    assert len(list(Path("two/points").glob("*/starts.txt"))) == 1
    texts = [Path(f"{folder}/frontier.json").read_text() for folder in ("one", "two")]
    numbers = [json.loads(text.replace("kept/some/", "points/")) for text in texts]
    assert numbers[0]["curves"][0]["points"][0] == numbers[1]["curves"][0]["points"][0]
    written = Path("kept/some.tar.xz").read_bytes()
    for archive in ("kept/some.tar.xz", "none/some.tar.xz"):  # a look at what is to be done leaves nothing
        dry = [*words[:-1], archive] if words[-1] == "kept/some.tar.xz" else [*words, "--kept", archive]
        assert main([*dry, "--output_dir", "dry", "--dry_run"]) == 0
        assert not Path("dry").exists()
        assert not Path("none").exists()
    assert main([*words, "--output_dir", "three"]) == 0
    assert not list(Path("three/points").glob("*/starts.txt"))
    assert Path("three/frontier.md").read_bytes() == Path("two/frontier.md").read_bytes()
    assert Path("kept/some.tar.xz").read_bytes() == written
    # a training that the frontier no longer has is dropped
    assert main([*words[:2], "--grid", "objective.beta=0.2", *words[4:], "--output_dir", "four"]) == 0
    assert len(Path("kept/some.tar.xz").read_bytes()) < len(written)
    Path("kept/some.tar.xz").write_bytes(written[:100])
    capsys.readouterr()
    assert main([*words, "--output_dir", "five"]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_another_frontier_is_laid_over(toys, materials, capsys):
    Path("mended").touch()
    recipe = materials.recipe(toys, "dico")
    common = ["--seeds", "1", "--picture", "false", "--images", "0"]
    assert main(["frontier", str(recipe), "--grid", "objective.beta=0.3", "--output_dir", "a", *common]) == 0
    assert (
        main(["frontier", str(recipe), "--grid", "objective.beta=0.2,0.4", "--output_dir", "b", "--add", "a", *common])
        == 0
    )
    told = json.loads(Path("b/frontier.json").read_text())
    assert [curve["label"] for curve in told["curves"]] == ["dico", "dico (2)"]
    assert [list(p["settings"].values()) for p in told["curves"][1]["points"]] == [[0.3]]
    assert main(["frontier", "--add", "a", "--add", "b", "--output_dir", "c", "--picture", "false"]) == 0
    assert len(json.loads(Path("c/frontier.json").read_text())["curves"]) == 3
    assert main(["frontier", "--add", "nowhere", "--output_dir", "c"]) == 2
    assert "is not a frontier" in capsys.readouterr().err


@pytest.mark.slow
def test_a_point_trains_measures_and_is_not_trained_twice(materials, tmp_path, monkeypatch):
    """The process of a point, here in this one: the selected and the last checkpoint, then another split."""
    monkeypatch.chdir(tmp_path)  # and a folder whose name is also that of the built-in world
    recipe = materials.recipe(tmp_path, "xe", metric_for_best_model="Self-BLEU", greater_is_better=False)
    (curve,) = planned(recipe, "--seeds", 1, "--output_dir", "world")
    (planned_one,) = curve.points[0][1]
    planned_one.write()
    folder = planned_one.folder
    carry_out(folder, folder / "asked.json")
    assert planned_one.done()
    checkpoints = planned_one.measured()
    assert checkpoints["last"].step == 2
    assert set(checkpoints) == {"selected", "last"}
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = next(line for line in logged if line["step"] == 2 and "eval_CIDEr" in line)
    for key in ("CIDEr", "listener_R@1", "Self-BLEU"):
        assert checkpoints["last"].metrics[key] == pytest.approx(last[f"eval_{key}"])
    before = (folder / "checkpoint-2/captioner/model.safetensors").stat().st_mtime_ns
    (other,) = planned(recipe, "--seeds", 1, "--output_dir", "world", "--split", "train")[0].points[0][1]
    assert other.folder == folder
    other.write()
    carry_out(folder, folder / "asked.json")
    assert other.measured()["last"].protocol.images == 8
    assert (folder / "checkpoint-2/captioner/model.safetensors").stat().st_mtime_ns == before
    # killed after the last step, before it was noted: nothing is trained again
    (folder / "trained.json").unlink()
    shutil.rmtree(folder / "measured")
    planned_one.write()
    carry_out(folder, folder / "asked.json")
    assert planned_one.measured()["last"].metrics == checkpoints["last"].metrics


def test_help_needs_no_torch():
    import subprocess

    code = "import sys; from tellapart.cli.main import main; main(['frontier', '--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for option in ("--grid", "--seeds", "--add", "--at", "--workers"):
        assert option in done.stdout
