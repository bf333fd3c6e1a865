"""Recipes and the flags that override them."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from command_recipes import load_recipe
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.fresh import fresh_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.cli.main import main
from tellapart.cli.push import check_push
from tellapart.cli.train import recipe_of
from tellapart.errors import UsageError, brief
from tellapart.objectives import METHODS
from tellapart.recipe.build import check_together
from tellapart.recipe.flags import NoValue, split_words
from tellapart.recipe.images import _check_on_error
from tellapart.recipe.models import load_data
from tellapart.recipe.options import Text
from tellapart.recipe.read_yaml import read_yaml
from tellapart.recipe.recipe import Recipe
from tellapart.recipe.sections import CaptionerLoraSection, CaptionerSection, LoraSection, NewSection
from tellapart.recipe.selection import check_metrics
from tellapart.recipe.shipped import find_recipe
from tellapart.recipe.words import TrainFlags

RECIPES = (Path(__file__).parents[2] / "recipes").rglob("*.yaml")
SHIPPED = sorted(path for path in RECIPES if "\nmethod:" in path.read_text())  # those: test_train_listener.py

RECIPE = """\
method: dico
captioner: {model_name_or_path: some/model, train: decoder}
reward: {clip_s: 1.0}
listener: {path: some/clip}
objective: {beta: 0.2, num_beams: 5}
output_dir: runs/x
learning_rate: 3e-5
max_steps: 60
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def refused(*words) -> str:
    with pytest.raises(UsageError) as caught:
        load_recipe([str(word) for word in words])
    return str(caught.value)


def test_there_are_shipped_recipes():
    assert len(SHIPPED) >= 11


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_recipe_parses(path):
    recipe = load_recipe([str(path)])
    assert recipe.method in path.stem
    assert recipe.training.output_dir.name == path.stem
    assert path.read_text().startswith("#")
    assert f"tellapart train recipes/{path.name}" in path.read_text()


def test_values_have_the_types_of_the_signatures(recipe):
    read = load_recipe([str(recipe)])
    assert read.training.learning_rate == 3e-5
    assert set(read.objective) == {"beta", "tau", "num_beams", "max_new_tokens"}
    assert (read.objective["beta"], read.objective["tau"]) == (0.2, 1 / 300)
    assert read.captioner.lora is None
    assert read.training.output_dir == Path("runs/x")


@pytest.mark.parametrize("recipe_first", [True, False])
def test_flags_win_wherever_they_stand(recipe, recipe_first):
    flags = ["--objective.beta", "0.1", "--output-dir=runs/y", "--max_steps", "3", "--dry_run", "--bf16"]
    words = [str(recipe), *flags] if recipe_first else [*flags, str(recipe)]
    read = load_recipe(words)
    assert (read.objective["beta"], read.objective["num_beams"]) == (0.1, 5)
    assert (read.training.output_dir, read.training.max_steps) == (Path("runs/y"), 3)
    assert recipe_of(words)[1].dry_run
    assert read.training.bf16


def test_members_of_optional_sections_and_mappings_can_be_given_as_flags(recipe):
    read = load_recipe([str(recipe), "--captioner.lora.r", "4", "--learning_rate.captioner", "1e-4"])
    assert read.captioner.lora.r == 4
    assert read.captioner.lora.alpha == 32
    assert read.training.learning_rate == {"captioner": 1e-4}


def test_sections_mirror_what_they_become():
    """A section has the names and defaults of the constructor that it feeds."""

    def defaults(kind):
        return {field.name: field.default for field in fields(kind)}

    assert defaults(CaptionerLoraSection) == defaults(LoraOptions)
    assert defaults(LoraSection).items() < defaults(CaptionerLoraSection).items()
    signature = inspect.signature(HuggingFaceCaptioner.from_pretrained).parameters
    mine = defaults(CaptionerSection)
    del mine["model_name_or_path"], mine["new"], mine["transformer"]
    assert mine == {name: signature[name].default for name in mine}
    signature = inspect.signature(fresh_captioner).parameters
    assert defaults(NewSection) == {name: signature[name].default for name in defaults(NewSection)}


def test_no_recipe_is_needed():
    read = load_recipe(["--method", "xe", "--captioner.model_name_or_path", "m", "--output_dir", "o"])
    assert (read.method, read.data.path) == ("xe", "world")


def test_the_resolved_recipe_reads_back_as_itself(recipe, tmp_path):
    first = load_recipe([str(recipe), "--captioner.lora.r", "4", "--seed", "3"])
    again = tmp_path / "resolved.yaml"
    again.write_text(first.to_yaml())
    second = load_recipe([str(again)])
    assert second == first
    assert "dry_run" not in first.resolved
    assert first.resolved["objective"]["tau"] == 1 / 300  # defaults are in it


def test_print_config_prints_it_and_stops(recipe, capsys):
    assert main(["train", str(recipe), "--print_config", "--seed", "7"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["training"]["seed"], shown["objective"]["beta"]) == (7, 0.2)


def test_help_shows_the_options_of_the_method_with_their_documentation(recipe, capsys):
    assert main(["train", str(recipe), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--objective.beta" in shown
    assert "strength of the tie to the start model" in shown
    assert "--learning_rate" in shown
    assert "Highest learning rate" in shown
    assert "--captioner.model_name_or_path" in shown
    assert "kl_coef" not in shown
    assert shown.count("Its options: --captioner.lora.r, --captioner.lora.alpha") == 1
    assert "--reward.clip_s.weight" in shown
    assert main(["train", "--help"]) == 0
    assert "--learning_rate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("objective: {bta: 0.2}", "objective.bta in {file}:{line} is not an option: did you mean objective.beta?"),
        ("lerning_rate: 1", "lerning_rate in {file}:{line} is not an option: did you mean learning_rate?"),
        ("rewards: {clip_s: 1}", "rewards.clip_s in {file}:{line} is not an option: did you mean reward.clip_s?"),
        (
            "max_steps: many",
            "max_steps in {file}:{line} is 'many', but must be a whole number of at least 1 or null: change it.",
        ),
        (
            "max_steps: 1.5",
            "max_steps in {file}:{line} is 1.5, but must be a whole number of at least 1 or null: change it.",
        ),
        (
            "learning_rate: {captioner: -1, discriminator: 1e-4}",
            "captioner of learning_rate in {file}:{line} is -1, but must be a number above 0: change it.",
        ),
        ("captioner: blip", "captioner in {file}:{line} is 'blip': write a mapping of options below it."),
        ("bf16: maybe", "bf16 in {file}:{line} is 'maybe', but must be true or false: change it."),
        ("dry_run: true", "dry_run in {file}:{line} is not for recipes: give --dry_run on the command line."),
        (
            "logging_dir: x",
            "logging_dir in {file}:{line} has no counterpart here: logs are written below --output_dir.",
        ),
        ("method: 0", "'0' is not a method: choose one of xe, scst, dico, "),
        ("method: dicco", "'dicco' is not a method: did you mean dico?"),
        (
            "max_steps: 0",
            "max_steps in {file}:{line} is 0, but must be a whole number of at least 1 or null: change it.",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_and_remedy(recipe, line, sentence):
    key = line.partition(":")[0]
    kept = [old for old in RECIPE.splitlines() if old.partition(":")[0] != key]
    recipe.write_text("\n".join([*kept, line]))
    assert refused(recipe).startswith(sentence.format(file=recipe, line=len(kept) + 1))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--objective.bta", "1"], "--objective.bta is not an option: did you mean --objective.beta?"),
        (["--beta", "1"], "--beta is not an option: did you mean --objective.beta?"),
        (["--num_epochs", "1"], "--num_epochs is not an option: did you mean --num_train_epochs?"),
        (["--seed", "x"], "--seed is 'x', but must be a whole number: change it."),
        (
            ["--captioner.train", "al"],
            "--captioner.train is 'al', but must be one of decoder, bridge, all or a list of some of query_tokens, qformer, "
            "projection: change it.",
        ),
        (
            ["--captioner.train", "[queries]"],
            "--captioner.train is '[queries]', but must be one of decoder, bridge, all or a",
        ),
        (
            ["--captioner.lora.r", "x"],
            "--captioner.lora.r is 'x', but must be a whole number of at least 1: change it.",
        ),
        (
            ["--learning_rate", "x"],
            "--learning_rate is 'x', but must be a number above 0 or a mapping of numbers above 0: change it.",
        ),
        (
            ["--learning_rate.captioner", "0"],
            "--learning_rate.captioner is '0', but must be a number above 0: change it.",
        ),
        (
            ["--max_grad_norm.captioner", "-1"],
            "--max_grad_norm.captioner is '-1', but must be a number of at least 0: change it.",
        ),
        (["--best_floor.CIDEr", "x"], "--best_floor.CIDEr is 'x', but must be a number: change it."),
        (["--seed"], "--seed has no value: write --seed VALUE."),
        (["extra"], "'extra' is not expected: name one recipe, and write options as --name VALUE."),
        (["objective.beta=0.1"], "'objective.beta=0.1' is not expected: write --objective.beta 0.1."),
        (["world_ved_xe"], "'world_ved_xe' is not expected: the recipe is {file} already, name one of the two."),
    ],
)
def test_what_is_wrong_in_a_flag_is_named_with_its_remedy(recipe, flags, sentence):
    assert refused(recipe, *flags).startswith(sentence.format(file=recipe))


def test_an_option_never_swallows_the_recipe(recipe):
    assert refused("--seed", recipe) == f"--seed has no value but the recipe {recipe}: write --seed VALUE."
    assert load_recipe(["--resume_from_checkpoint", str(recipe)]).training.resume_from_checkpoint is True


def test_what_is_missing_is_named(recipe, tmp_path):
    recipe.write_text("method: xe\noutput_dir: x\n")
    assert refused(recipe).startswith("captioner.model_name_or_path is missing: set it in the recipe")
    recipe.write_text("captioner: {model_name_or_path: m}\n")
    assert refused(recipe).startswith(f"{recipe} names no method: add one of xe, scst, dico, ")
    assert refused(recipe).endswith(f", ... ({len(METHODS)} in all); tellapart methods describes them.")
    assert refused().startswith("there is no recipe")
    assert refused(tmp_path / "absent.yaml").startswith(f"the recipe {tmp_path / 'absent.yaml'} does not exist")


@pytest.mark.parametrize(("again", "other"), [("seed: 3", "training.seed"), ("lr: 1", "training.learning_rate")])
def test_an_option_under_two_names_is_refused(tmp_path, again, other):
    path = tmp_path / "a.yaml"
    path.write_text(
        f"method: xe\ncaptioner: {{model_name_or_path: x}}\ntraining: {{seed: 1, learning_rate: 2}}\n{again}\n"
    )
    assert refused(path).endswith(f"{path}:4 is the same option as {other} in {path}:3: leave one of the two out.")


def test_yaml_traps(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: 1e-6\nb: no\nc: 2024-01-01\nd: 1.5e3\ne: true\nf: null\n")
    assert read_yaml(path).values == {"a": 1e-6, "b": "no", "c": "2024-01-01", "d": 1500.0, "e": True, "f": None}
    path.write_text("seed: 1\nmethod: xe\nseed: 2\n")
    with pytest.raises(UsageError, match=r"line 3: 'seed' is given twice"):
        read_yaml(path)
    path.write_text("objective: {beta: 1, beta: 2}\n")
    with pytest.raises(UsageError, match=r"line 1: 'beta' is given twice"):
        read_yaml(path)
    path.write_text("a: [1\n")
    with pytest.raises(UsageError, match=r"not a valid recipe \(line 2: "):
        read_yaml(path)
    path.write_text("method: xe\n? [a, b]\n: 3\n")
    with pytest.raises(UsageError, match=r"line 2: a key is not a word"):
        read_yaml(path)
    path.write_text("- 1\n")
    with pytest.raises(UsageError, match="holds no options"):
        read_yaml(path)


def test_yaml_is_read_within_bounds(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: &x [1, 2]\nb: *x\n")
    assert read_yaml(path).values == {"a": [1, 2], "b": [1, 2]}
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError, match="its aliases unfold to too much"):
        read_yaml(path)
    path.write_text("a: &a {b: *a}\n")
    with pytest.raises(UsageError, match="not a valid recipe"):
        read_yaml(path)
    path.write_text("a: " + "[" * 60 + "]" * 60)
    with pytest.raises(UsageError, match="it is nested too deeply"):
        read_yaml(path)
    path.write_text("a: " + "x" * 1_000_001)
    with pytest.raises(UsageError, match="is larger than any recipe"):
        read_yaml(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("seed: !!int abc", "the tag 'tag:yaml.org,2002:int' is not read"),
        ("seed: !!int ''", "is not read"),
        ("seed: !!float ''", "is not read"),
        ("seed: !!bool maybe", "is not read"),
        ("seed: !!timestamp 2024-13-45", "is not read"),
        ("seed: !!timestamp x", "is not read"),
        ("seed: !!binary '\u00e9'", "is not read"),
        ("method: !!python/object/apply:os.system ['touch x']", "is not read"),
        ("method: !!python/name:os.system", "is not read"),
        ("method: !!set {a, b}", "is not read"),
        ("method: !own x", "the tag '!own' is not read"),
        ("seed: " + "9" * 5000, "Exceeds the limit"),
        ('output_dir: "a\\0b"', "a value holds a zero byte"),
        ("method: \x1b[31m", "not a valid recipe"),
        ("a: &a [*a]", "its aliases unfold to too much"),
        ("'" + "k" * 900 + "': 1\n'" + "k" * 900 + "': 1", "is given twice"),
        ("a: *nobody", "undefined alias"),
        ("a: {<<: [1, 2]}", "expected a mapping"),
        ("a: \ud800", "cannot be read"),
        ("%YAML 3.0\n---\na: 1", "found incompatible YAML document"),
        ("a: 1\n---\nb: 2", "but found another document"),
        ("a: " + "{b: " * 2000, "it is nested too deeply"),
        ("\n".join(" " * i + "- " for i in range(1000)), "it is nested too deeply"),
    ],
)
def test_any_yaml_is_read_or_refused_in_one_sentence(tmp_path, monkeypatch, text, why):
    """``!!int abc`` and 10 others were tracebacks."""
    monkeypatch.chdir(tmp_path)
    path = Path("a.yaml")
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    with pytest.raises(UsageError, match=re.escape(why)) as caught:
        read_yaml(path)
    assert len(brief(str(caught.value))) <= 300
    assert [found.name for found in tmp_path.iterdir()] == ["a.yaml"]


def test_nested_merges_end(tmp_path):
    """Nine lines of them took more than a minute."""
    lines = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9)]
    (tmp_path / "a.yaml").write_text("\n".join([*lines, "method: *a8"]))
    with pytest.raises(UsageError, match="its aliases unfold to too much"):
        read_yaml(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("line", "flag", "renamed"),
    [
        ("evaluation: {beam_size: 3}", ["--evaluation.beam_size", "3"], "evaluation.num_beams"),
        ("warmup_ratio: 0.1", ["--warmup-ratio", "0.1"], "warmup_steps"),
        ("lr: 0.1", ["--lr", "0.1"], "learning_rate"),
    ],
)
def test_old_names_are_accepted_with_a_note(recipe, line, flag, renamed, caplog):
    by_flag = load_recipe([str(recipe), *flag])
    assert f"is called --{renamed} here" in caplog.text
    recipe.write_text("\n".join([*(old for old in RECIPE.splitlines() if not old.startswith("learning_rate")), line]))
    by_file = load_recipe([str(recipe)])
    assert f" is called {renamed} here" in caplog.text
    section, _, name = renamed.rpartition(".")
    for read in (by_flag, by_file):
        expected = {"num_beams": 3, "warmup_steps": 0.1, "learning_rate": 0.1}[name]
        assert getattr(read.evaluation if section else read.training, name) == expected


def test_train_sample_n_finds_its_section(recipe, caplog):
    recipe.write_text(RECIPE.replace("dico", "scst").replace("objective: {beta: 0.2, num_beams: 5}\n", ""))
    assert load_recipe([str(recipe), "--train_sample_n", "3"]).objective["num_generations"] == 3
    assert "--train_sample_n is called --objective.num_generations here" in caplog.text


def test_a_recipe_is_found_by_its_name_or_path(tmp_path):
    assert find_recipe("world_ved_dico").name == "world_ved_dico.yaml"
    (tmp_path / "mine.yaml").write_text("method: xe\n")
    assert find_recipe(tmp_path / "mine.yaml") == tmp_path / "mine.yaml"
    with pytest.raises(UsageError, match="is not a file or a shipped recipe: did you mean world_ved_dico"):
        find_recipe("world_ved_dica")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--objective.kl_coef", "0.1"], "--objective.kl_coef is not an option of this method: it belongs to scst, "),
        (
            ["--objective.kl_coeff", "0.1"],
            "is not an option of this method: did you mean --objective.kl_coef of scst, ",
        ),
        (["--objective.num_beans", "3"], "--objective.num_beans is not an option: did you mean --objective.num_beams?"),
        (
            ["--method", "scst", "--objective.beta", "0.1"],
            "--objective.beta is not an option of this method: it belongs to dico, dpo, offline_dpo, ipo, kto.",
        ),
        (
            ["--method", "offline_dpo", "--objective.max_new_tokens", "6"],
            "--objective.max_new_tokens is not an option of this method: it belongs to scst, dico, dpo, rloo, grpo, sll and "
            "19 others.",
        ),
        (["--objective.qqqqqq", "3"], "--objective.qqqqqq is not an option: see --help for the options."),
    ],
)
def test_a_number_of_another_method_says_whose_it_is(recipe, words, sentence):
    with pytest.raises(UsageError) as refused:
        load_recipe([str(recipe), *words])
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"best_floor": {"perplexity": 0.9}}, "best_floor names 'perplexity', which is better when it is lower"),
        (
            {"metric_for_best_model": "Self-BLEU"},
            "'Self-BLEU', which is better when it is lower: set greater_is_better to false",
        ),
        ({"greater_is_better": False}, "which is better when it is higher: set greater_is_better to true"),
    ],
)
def test_no_checkpoint_is_selected_for_a_worse_value(training, sentence):
    """The floor took a worse perplexity for a better one, and the worst checkpoint was called the best."""
    recipe = Recipe.load("world_ved_dico", {f"training.{name}": value for name, value in training.items()})
    with pytest.raises(UsageError, match=re.escape(sentence)):
        check_metrics(recipe)
    check_metrics(
        recipe.replaced(
            {
                "training.metric_for_best_model": "Self-BLEU",
                "training.greater_is_better": False,
                "training.best_floor": {"CIDEr": 0.6},
            }
        )
    )


@pytest.mark.parametrize(
    ("training", "remedy"),
    [
        ({"metric_for_best_model": "METEOR"}, "set evaluation.meteor"),
        ({"metric_for_best_model": "PAC-S"}, "set evaluation.pac"),
        ({"metric_for_best_model": "eval_perplexity", "greater_is_better": False}, "set evaluation.language_model"),
        ({"metric_for_best_model": "rs5_CIDEr"}, "set evaluation.samples to 5"),
        ({"metric_for_best_model": "bs2_Div-1"}, "set evaluation.samples to 2"),
        ({"best_floor": {"judge_MRR": 0.9}}, "set evaluation.judge"),
        ({"metric_for_best_model": "other_R@1"}, "its retrievers are listener, judge"),
        ({"metric_for_best_model": "own_listener_human_R@1"}, "method dico has no listener of its own"),
        ({"metric_for_best_model": "object_recall"}, "only tellapart score does"),
        ({"metric_for_best_model": "motion"}, "only that of world/video does"),
    ],
)
def test_a_checkpoint_is_selected_by_what_the_evaluation_measures(training, remedy):
    """It was told after the first evaluation only."""
    values = {f"training.{name}": value for name, value in training.items()}
    values |= {"evaluation.judge": None, "evaluation.samples": 3}
    with pytest.raises(UsageError, match=f"which the evaluation does not measure: {re.escape(remedy)}"):
        check_metrics(Recipe.load("world_ved_dico", values))
    check_metrics(
        Recipe.load("world_ved_dico", {"training.metric_for_best_model": "METEOR", "evaluation.meteor": True})
    )
    own = Recipe.load("world_ved_psst", {"training.metric_for_best_model": "own_listener_human_R@1"})
    check_metrics(own)
    check_metrics(own.replaced({"evaluation.samples": 3, "training.metric_for_best_model": "rs3_CIDEr"}))
    photos = {"evaluation.path": "photos.json", "training.metric_for_best_model": "exact_recall@1"}
    with pytest.raises(UsageError, match="measure: only that of the built-in world does"):
        check_metrics(own.replaced(photos))
    unheard = {"data.path": "photos", "training.metric_for_best_model": "listener_R@1"}
    with pytest.raises(UsageError, match=r"measure: set evaluation\.listener"):
        check_metrics(Recipe.load("coco_blip_xe", {**unheard, "evaluation.listener": None, "listener.path": None}))


def test_a_part_that_is_null_looks_at_no_images():
    """A method was refused for what it may be given."""
    recipe = Recipe.load("world_ved_wtf_rl", {"data.on_error": "replace"})
    for given in ({}, {"discriminator": None}, {"neighbours": None}):
        with pytest.raises(UsageError, match="method wtf_rl looks at all training images"):
            _check_on_error(recipe.replaced(given))
    _check_on_error(recipe.replaced({"discriminator": None, "neighbours": None}))
    with pytest.raises(UsageError, match=r"reward\.likelihood looks at all training images"):
        _check_on_error(Recipe.load("world_ved_scst_clip", {"data.on_error": "replace", "reward.likelihood": 1.0}))


@pytest.mark.parametrize("path", ["world", "world/video"])
def test_the_world_is_not_laid_out_in_files(path):
    layout = {"images": None, "format": None, "sampling": "uniform", "allow_private": False}
    for option, given in (
        ("context_column", "about"),
        ("images", Path()),
        ("format", "coco"),
        ("caption_extension", ".txt"),
    ):
        with pytest.raises(UsageError, match=f"the built-in images take no {option}: leave it out"):
            load_data(path, "val", size="small", limit=None, **{**layout, option: given})


def test_a_direction_is_of_the_metric_that_selects():
    with pytest.raises(UsageError, match="greater_is_better is for metric_for_best_model: set that too"):
        Recipe.load("coco_lstm_xe", {"greater_is_better": False, "metric_for_best_model": None})


def test_a_private_repository_is_for_pushing():
    with pytest.raises(UsageError, match="--hub_private_repo pushes nothing on its own: add --push_to_hub"):
        check_push(TrainFlags(hub_private_repo=True))


def test_an_empty_word_is_a_value():
    words = split_words(["--prefix", "", "data.json", "--limit"], {"prefix": str, "limit": int})
    assert words.positional == ["data.json"]
    assert words.options == {"prefix": Text(""), "limit": NoValue()}


def test_a_switch_without_a_default_leaves_the_next_word_alone():
    """``score --center_crop runs/x`` took the run for the value."""
    types = {"center_crop": bool | None, "resume_from_checkpoint": bool | str | None}
    words = split_words(["--center_crop", "runs/x", "--resume_from_checkpoint", "last"], types)
    assert words.positional == ["runs/x"]
    assert words.options == {"center_crop": NoValue(), "resume_from_checkpoint": Text("last")}
    assert split_words(["--center_crop", "false"], types).options == {"center_crop": Text("false")}


def test_a_number_for_one_part_leaves_the_others_the_default():
    """Clipping was off for all other parts, unless the recipe wrote the default down."""
    plain = Recipe.load("world_ved_wtf_rl", {"max_grad_norm.discriminator": 5.0})
    assert plain.training.max_grad_norm == {"captioner": 1.0, "discriminator": 5.0}
    both = {"max_grad_norm": 1.0, "max_grad_norm.discriminator": 5.0}
    assert Recipe.load("world_ved_wtf_rl", both).training.max_grad_norm == plain.training.max_grad_norm
    whole = Recipe.load("world_ved_wtf_rl", {"max_grad_norm": {"discriminator": 5.0}})
    assert whole.training.max_grad_norm == {"discriminator": 5.0}


def test_metrics_with_a_dash_can_be_named_on_the_command_line():
    words = split_words(["--best_floor.CLIP-S", "0.5", "--training.best-floor.PAC-S=0.4", "--max-steps", "3"], {})
    assert words.options == {"best_floor.CLIP-S": "0.5", "training.best_floor.PAC-S": "0.4", "max_steps": "3"}


def test_a_recipe_that_selects_lower_values_can_be_run_without_evaluation():
    selects = {"metric_for_best_model": "Self-BLEU", "greater_is_better": False, "on_hack": "rollback"}
    written = Recipe.load("world_ved_dico", selects)
    assert Recipe.load(written.resolved, {"evaluation.split": None}).training.greater_is_better is True


def test_the_side_of_an_adapter_is_no_path(tmp_path, monkeypatch):
    """A folder of that name where the command ran decided the key of a training."""
    options = {"captioner.lora": {"tower": "image"}, "captioner.train": "bridge"}
    monkeypatch.chdir(tmp_path)
    before = Recipe.load("coco_blip_xe", options).key()
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "x").write_text("x")
    assert Recipe.load("coco_blip_xe", options).key() == before


def test_another_method_selects_by_no_listener_of_the_one_before():
    switched = Recipe.load(
        "world_ved_psst", {"method": "scst", "training.metric_for_best_model": "eval_own_listener_R@1"}
    )
    assert switched.training.metric_for_best_model != "eval_own_listener_R@1"


def test_a_base_without_its_encoder_is_refused():
    with pytest.raises(UsageError, match=r"the file of evaluation\.pac was trained from: set that, too"):
        check_together(Recipe.load("world_ved_dico", {"evaluation.pac_base": "openai/clip-vit-base-patch32"}))


@pytest.mark.parametrize(
    ("recipe", "where", "path"),
    [
        ("world_ved_dico", "listener.base", "world/listener"),
        ("world_ved_dico_truth", "reward.likelihood.listener.base", "world/verifier"),
        ("world_ved_dico", "evaluation.pac_base", "world/pac"),
    ],
)
def test_a_base_of_a_model_that_needs_none_is_refused(recipe, where, path):
    asked = {where: "openai/clip-vit-base-patch32"} | ({"evaluation.pac": path} if "pac" in where else {})
    with pytest.raises(UsageError, match=rf"{where} is for \.pth files, and {path} has a tokenizer of its own: leave"):
        check_together(Recipe.load(recipe, asked))
    named = where.replace(".pac_base", ".pac").replace(".base", ".path")
    check_together(Recipe.load(recipe, asked | {named: "x.pth"}))
