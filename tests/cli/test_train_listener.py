"""``tellapart train-listener`` on a tiny CLIP and a few pictures, and what its result is good for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoTokenizer, CLIPModel

from command_recipes import load_listener_recipe
from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.evaluation.listeners import metric_names
from tellapart.listeners.clip import ClipListener
from tellapart.rewards.grammar import Grammar

RECIPES = Path(__file__).parents[2] / "recipes"
SHIPPED = sorted(path for path in RECIPES.rglob("*.yaml") if f"train-listener recipes/{path.name}" in path.read_text())
TEXTS = ["a red dog", "the bus runs on the sofa"]


@pytest.fixture
def recipe(materials, tmp_path):
    """Two steps of everything, written to a file; changes are top-level keys, None leaves one out."""

    def write(name: str = "run", **changes) -> Path:
        written = {
            "grammar": True,
            "listener": {"path": str(materials.listener)},
            "data": {"path": str(materials.data), "split": "train"},
            "evaluation": {"split": "val"},
            "output_dir": str(tmp_path / name),
            "learning_rate": 1e-3,
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in (written | changes).items() if v is not None}))
        return path

    return write


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_with_a_head_from_end_to_end(recipe, materials, tmp_path, capsys):
    assert main(["train-listener", str(recipe()), "--metric_for_best_model", "R@1_mean"]) == 0
    said, run = capsys.readouterr(), tmp_path / "run"
    assert f"trained 2 steps: {run / 'listener'} (of step " in said.err
    assert "grammar_accuracy: " in said.out
    assert "Writing model shards" not in said.err
    lines = lines_of(run)
    assert [line["step"] for line in lines] == [0, 1, 2, 2]
    assert {"eval_t2i_R@1", "eval_i2t_R@10", "eval_grammar_accuracy_corrupted"} <= set(lines[0])
    assert {"clip_loss", "grammar_loss"} <= set(lines[1])
    best = json.loads((run / "trainer_state.json").read_text())["selection"]["best"]
    grammar = Grammar.from_pretrained(run)
    selected = run / "best" / "listener"
    assert best["metric"] == "R@1_mean"
    assert torch.equal(grammar.probabilities(TEXTS), Grammar.from_pretrained(selected).probabilities(TEXTS))
    assert grammar.listener.prefix == "A photo depicts "
    assert json.loads((run / "run.json").read_text())["recipe"]["grammar"] is True
    assert (
        load_listener_recipe([str(run / "recipe.yaml")]).resolved
        == load_listener_recipe([str(tmp_path / "run.yaml"), "--metric_for_best_model", "R@1_mean"]).resolved
    )


def test_plain_transformers_read_the_same_listener(recipe, materials, tmp_path):
    assert main(["train-listener", str(recipe())]) == 0
    folder = tmp_path / "run" / "listener"
    listener = ClipListener.from_pretrained(folder, prefix="")
    model, tokenizer = CLIPModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        found = model.get_text_features(**tokenizer("the bus runs", return_tensors="pt")).pooler_output
    torch.testing.assert_close(torch.nn.functional.normalize(found), listener.encode_texts(["the bus runs"]))
    start = ClipListener.from_pretrained(materials.listener)
    before, after = start.model.state_dict(), listener.model.state_dict()
    vision = [name for name in before if name.startswith(("vision_model.", "visual_projection."))]
    assert vision
    assert all(torch.equal(before[name], after[name]) for name in vision)
    assert not torch.equal(before["text_projection.weight"], after["text_projection.weight"])
    # the last checkpoint is what is kept where no metric selects
    last = ClipListener.from_pretrained(tmp_path / "run" / "checkpoint-2" / "listener", prefix="")
    assert torch.equal(last.encode_texts(TEXTS), listener.encode_texts(TEXTS))


def test_without_a_head_both_sides_may_learn(recipe, materials, tmp_path):
    assert main(["train-listener", str(recipe(grammar=None)), "--listener.train", "all"]) == 0
    run = tmp_path / "run"
    before = ClipListener.from_pretrained(materials.listener).model.state_dict()
    after = ClipListener.from_pretrained(run / "listener").model.state_dict()
    for name in ("visual_projection.weight", "text_projection.weight", "vision_model.post_layernorm.weight"):
        assert not torch.equal(before[name], after[name])
    assert not any("grammar" in name for line in lines_of(run) for name in line)
    with pytest.raises(UsageError, match="holds no grammar head"):
        Grammar.from_pretrained(run)


@pytest.mark.parametrize("grammar", [True, None])
def test_resuming_goes_on_to_the_same_weights(recipe, tmp_path, grammar):
    assert main(["train-listener", str(recipe("whole", grammar=grammar))]) == 0
    halves = str(recipe("halves", grammar=grammar))
    assert main(["train-listener", halves, "--max_steps", "1"]) == 0
    assert main(["train-listener", halves]) == 2  # a run is there
    assert main(["train-listener", halves, "--resume_from_checkpoint", "last"]) == 0
    listeners = [ClipListener.from_pretrained(tmp_path / name / "listener") for name in ("whole", "halves")]
    first, second = (listener.model.state_dict() for listener in listeners)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_a_refused_resume_leaves_the_recipe_of_the_run(recipe, tmp_path):
    path = str(recipe())
    assert main(["train-listener", path]) == 0
    kept = (tmp_path / "run" / "recipe.yaml").read_text()
    other = ["--max_steps", "4", "--per_device_train_batch_size", "3", "--resume_from_checkpoint", "last"]
    assert main(["train-listener", path, *other]) == 2
    assert (tmp_path / "run" / "recipe.yaml").read_text() == kept


def test_overwriting_leaves_nothing_of_the_old_run(recipe, tmp_path):
    path = str(recipe())
    assert main(["train-listener", path]) == 0
    assert main(["train-listener", path, "--overwrite_output_dir", "--max_steps", "1", "--grammar", "false"]) == 0
    assert not (tmp_path / "run" / "checkpoint-2").exists()
    assert not (tmp_path / "run" / "listener" / "grammar_head.json").exists()


def test_dry_run_and_print_config(recipe, tmp_path, capsys):
    assert main(["train-listener", str(recipe()), "--dry_run"]) == 0
    said = capsys.readouterr()
    assert "8 training images (tiny train)" in said.err.replace("data.json", "tiny") or "8 training images" in said.err
    assert "with a grammar head; evaluation: 6 of" in said.err
    assert not (tmp_path / "run").exists()
    assert main(["train-listener", str(recipe()), "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["head"] == {"weight": 1.0, "min_count": 1}


def test_the_result_serves_as_listener_reward_and_measure(recipe, materials, tmp_path, capsys):
    assert main(["train-listener", str(recipe("trained"))]) == 0
    trained = str(tmp_path / "trained")
    captioning = materials.recipe(
        tmp_path,
        "scst",
        listener={"path": trained},
        grammar={"path": trained},
        reward={"clip_s": 1.0, "grammar": 2.0},
        evaluation={"split": "val", "max_new_tokens": 8, "grammar": trained},
    )
    assert main(["train", str(captioning)]) == 0
    lines = lines_of(tmp_path / "scst")
    assert all(0 <= line["rewards/grammar"] <= 2 for line in lines if "reward" in line)
    assert any("rewards/grammar" in line for line in lines)
    assert all(0 <= line["eval_grammatical_head"] <= 100 for line in lines if "eval_CIDEr" in line)
    captions = tmp_path / "captions.json"
    names = [f"{i:02}.png" for i in range(8, 14)]
    captions.write_text(json.dumps([{"image_id": name, "caption": "a red dog"} for name in names]))
    capsys.readouterr()
    words = ["score", str(captions), "--references", str(materials.data), "--split", "val", "--grammar", trained]
    assert main([*words, "--bootstrap", "0"]) == 0
    shown = capsys.readouterr().out
    measured = {name[5:] for line in lines_of(tmp_path / "trained") for name in line if name.startswith("eval_")}
    assert {*metric_names(head=False), "grammar_accuracy"} < measured <= {*metric_names(head=True)}
    expected = 100 * float(Grammar.from_pretrained(trained).probabilities(["a red dog"]))
    assert f"{expected:.1f}" in next(line for line in shown.splitlines() if line.startswith("grammar head"))


def test_errors_are_sentences(recipe, materials, tmp_path, capsys):
    path = str(recipe())
    of_captioner = materials.recipe(tmp_path, "xe")
    adapted = {"path": str(materials.listener), "lora": {"r": 2, "dropout": 0.5}}
    unread = ("--listener.path", "./nowhere")  # metrics are looked at before a model is
    for words, sentence in (
        ([str(of_captioner)], "xe.yaml has method, so it is a recipe of a captioner: run it with tellapart train."),
        ([path, "--listener.train", "all"], "--grammar trains the text side only: set listener.train to text"),
        ([path, "--head.weight", "-1"], "--head.weight is '-1', but must be a number of at least 0"),
        ([path, "--head.min_count", "999"], "vocabulary of the corruptions is empty"),
        ([path, "--grammar", "false", "--head.weight", "2"], "no head is trained: give --grammar"),
        ([path, "--data.features", "x"], "data.features are of captioners"),
        ([path, "--data.num_frames", "4"], "data.num_frames is for captioners, and train-listener trains none"),
        ([path, "--data.context_column", "about"], "data.context_column is for captioners"),
        ([path, "--listener.pth", "x"], "--listener.pth is not an option: did you mean --listener.path?"),
        ([path, "--listener.path", "./nowhere"], "the listener's folder ./nowhere does not exist"),
        (
            [path, "--per_device_train_batch_size", "1"],
            "the contrastive loss compares an image with the others of its batch",
        ),
        (
            [str(recipe("lora", grammar=None, loss="pac", pac={"caption_weight": 0.0}, listener=adapted))],
            "listener.lora.dropout",
        ),
        ([path, "--gradient_accumulation_steps", "2"], "compares the images of a batch with each other"),
        (
            [path, "--metric_for_best_model", "CIDEr", *unread],
            "'CIDEr' is not a metric of this evaluation (metric_for_best",
        ),
        ([path, "--metric_for_best_model", "t2i_R@2", *unread], "(metric_for_best_model): did you mean t2i_R@5?"),
        (
            [str(recipe("floor", best_floor={"eval_r@1": 1}, metric_for_best_model="R@1_mean")), *unread],
            "'r@1' is not a metric of this evaluation (best_floor)",
        ),
        (
            [path, "--metric_for_best_model", "R@1_mean", "--greater_is_better", "false", *unread],
            "which is better when it is higher: set greater_is_better",
        ),
        (["--data.path", "x", "--output_dir", "y"], "listener.path is missing"),
    ):
        assert main(["train-listener", *words]) == 2, words
        said = capsys.readouterr().err
        assert sentence in said, (sentence, said)
        assert said.strip().splitlines()[-1].startswith("error: ")
    plain = materials.recipe(tmp_path, "scst", reward={"grammar": 1.0})
    assert main(["train", str(plain)]) == 2
    assert "reward.grammar needs a grammar head: set grammar.path" in capsys.readouterr().err
    photos = tmp_path / "unlabelled"
    photos.mkdir()
    for name in ("08.png", "09.png"):
        (photos / name).write_bytes((materials.photos / name).read_bytes())
    assert main(["train-listener", path, "--data.path", str(photos), "--output_dir", str(tmp_path / "other")]) == 2
    assert "train-listener needs reference captions" in capsys.readouterr().err


def test_what_ends_hacked_captioners_is_refused(recipe):
    words = ["--on_hack", "stop", "--eval_steps", "1"]
    with pytest.raises(UsageError, match="on_hack=stop watches the captions of a captioner"):
        load_listener_recipe([str(recipe()), *words])
    assert load_listener_recipe([str(recipe()), "--on_hack", "warn"]).training.on_hack == "warn"


def test_there_are_shipped_recipes():
    assert {path.stem for path in SHIPPED} >= {"world_listener_grammar", "coco_clip_grammar"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_recipe_parses(path):
    recipe = load_listener_recipe([str(path)])
    assert recipe.grammar or recipe.loss in ("hinge", "pac")
    assert recipe.training.weight_decay == 0.01 or not recipe.grammar
    assert recipe.training.output_dir.name == path.stem
    assert f"tellapart train-listener recipes/{path.name}" in path.read_text()


def test_the_published_numbers():
    recipe = load_listener_recipe([str(RECIPES / "coco_clip_grammar.yaml")])
    training = recipe.training
    assert recipe.listener.path == "openai/clip-vit-base-patch32"
    assert (training.per_device_train_batch_size, training.learning_rate) == (1600, 1e-4)
    assert (training.num_train_epochs, recipe.head.weight, recipe.head.min_count) == (12, 1.0, 6)


@pytest.mark.slow
def test_the_worlds_recipe_runs_on_its_small_size(tmp_path):
    words = ["--data.size", "small", "--max_steps", "2", "--eval_steps", "1", "--evaluation.limit", "8"]
    words += ["--per_device_train_batch_size", "8", "--output_dir", str(tmp_path / "run")]
    assert main(["train-listener", str(RECIPES / "world_listener_grammar.yaml"), *words]) == 0
    assert Grammar.from_pretrained(tmp_path / "run").listener.prefix == ""
