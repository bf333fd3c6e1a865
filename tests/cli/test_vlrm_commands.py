"""VLRM and VLRM-RS from the command line: pictures without captions in, a run out that plain libraries can read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from command_recipes import load_recipe
from pictures import images
from tellapart.cli.main import main
from tellapart.recipe.models import decoding
from tiny.blip2 import tiny_blip2
from tiny.language_models import saved
from tiny.matchers import tiny_blip2_itm

BOTH = ["captioner", "critic"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for i, picture in enumerate(images(9, seed=4)):
        picture.save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def phrases(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "phrases.txt"
    path.write_text("on a\na red circle\n")
    return path


@pytest.fixture
def recipe(materials, pictures, phrases, tmp_path):
    """``recipe(method, **changes)``: a recipe of VLRM over pictures alone, with an adapter of rank 2."""

    def write(method: str, **changes):
        usual = {
            "data": {"path": str(pictures)},
            "reward": {"clip_s": 2.0},
            "critic": {"lora": {"r": 2, "alpha": 4.0}},
            "penalties": {"phrases": str(phrases)},
            "evaluation": {"split": None},
        }
        return materials.recipe(tmp_path, method, **(usual | changes))

    return write


def logged(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder):
    """Every tensor of both parts, and the optimiser's."""
    files = ["captioner/model.safetensors", "critic/model.safetensors", "critic/adapter/adapter_model.safetensors"]
    found = {f"{name}/{key}": tensor for name in files for key, tensor in load_file(folder / name).items()}
    states = torch.load(folder / "optimizer.pt", weights_only=True)
    return found | {f"{name}/{key}": value for name, kept in states.items() for key, value in kept.items()}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_blip2_learns_from_pictures_alone_and_loads_with_plain_libraries(recipe, tmp_path):
    tiny_blip2(tmp_path / "blip2")
    captioner = {"model_name_or_path": str(tmp_path / "blip2"), "train": "bridge", "gradient_checkpointing": True}
    objective = {"max_new_tokens": 8, "scoring_batch_size": 2, "keep_image_states": False}
    changes = {"captioner": captioner, "objective": objective, "max_grad_value": 1.0}
    changes |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    assert main(["train", str(recipe("vlrm_rs", **changes))]) == 0
    run = tmp_path / "vlrm_rs"
    first, second = [line for line in logged(run) if "loss" in line]
    for name in ("rewards/clip_s", "rewards/phi", "penalties/bad_tokens", "value_loss", "explained_variance"):
        assert name in first
    assert {key for key in second if key.startswith("learning_rate/")} == {f"learning_rate/{part}" for part in BOTH}
    assert abs(first["rewards/phi"]) < 1e-6  # its mean over the step
    before = load_file(tmp_path / "blip2" / "model.safetensors")
    after = load_file(run / "checkpoint-2" / "captioner" / "model.safetensors")
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys()
    assert moved == {"query_tokens", "qformer", "language_projection"}
    model = AutoModelForImageTextToText.from_pretrained(run / "checkpoint-2" / "captioner")
    adapted = PeftModel.from_pretrained(model, run / "checkpoint-2" / "critic" / "adapter")
    assert any(bool(p.any()) for name, p in adapted.named_parameters() if "lora_B" in name)


def test_parts_and_adapters_of_the_papers_list_train_and_resume(recipe, tmp_path):
    """Section 4.1: queries, Q-Former and projection with LoRA for the image encoder, and the critic's own LoRA of the LLM."""
    tiny_blip2(tmp_path / "blip2")
    captioner = {"model_name_or_path": str(tmp_path / "blip2"), "lora": {"r": 2, "tower": "image"}}
    captioner["train"] = ["query_tokens", "qformer", "projection"]
    changes = {"captioner": captioner, "max_steps": 2, "objective": {"max_new_tokens": 8}}
    assert main(["train", str(recipe("vlrm", **changes, output_dir=str(tmp_path / "whole")))]) == 0
    cut = str(recipe("vlrm", **changes, output_dir=str(tmp_path / "cut")))
    assert main(["train", cut, "--max_steps", "1"]) == 0
    assert main(["train", cut, "--resume_from_checkpoint", "last"]) == 0
    for file in ("adapter_model.safetensors", "parts.safetensors"):
        one, other = (load_file(tmp_path / run / "checkpoint-2/captioner" / file) for run in ("whole", "cut"))
        assert same(one, other)
    assert {name.split(".")[0] for name in one} == {"query_tokens", "qformer", "language_projection"}
    start = load_file(tmp_path / "blip2" / "model.safetensors")
    assert not any(torch.equal(one[name], start[name]) for name in ("query_tokens", "language_projection.weight"))
    adapter = load_file(tmp_path / "whole/checkpoint-2/captioner/adapter_model.safetensors")
    assert all("vision_model" in name for name in adapter)
    assert any(bool(value.any()) for name, value in adapter.items() if "lora_B" in name)


def test_parts_can_be_named_on_the_command_line(recipe, tmp_path, capsys):
    tiny_blip2(tmp_path / "blip2")
    words = ["--captioner.model_name_or_path", str(tmp_path / "blip2"), "--captioner.train", "[query_tokens]"]
    assert main(["train", str(recipe("vlrm")), *words, "--max_steps", "1"]) == 0
    before = load_file(tmp_path / "blip2" / "model.safetensors")
    after = load_file(tmp_path / "vlrm" / "checkpoint-1" / "captioner" / "model.safetensors")
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"query_tokens"}
    message = said(
        capsys, ["train", str(recipe("vlrm", output_dir=str(tmp_path / "b"))), "--captioner.train", "[qformer]"]
    )
    assert "train names 'qformer', but vision-encoder-decoder has no parts that train alone" in message


def test_a_run_cut_in_two_ends_with_the_same_weights(recipe, tmp_path):
    changes = {"max_steps": 4, "per_device_train_batch_size": 4}
    assert main(["train", str(recipe("vlrm", **changes, output_dir=str(tmp_path / "whole")))]) == 0
    parts = str(recipe("vlrm", **changes, output_dir=str(tmp_path / "parts")))
    assert main(["train", parts, "--max_steps", "2"]) == 0
    assert main(["train", parts, "--resume_from_checkpoint", "last"]) == 0
    whole = weights(tmp_path / "whole" / "checkpoint-4")
    assert same(weights(tmp_path / "parts" / "checkpoint-4"), whole)
    assert not same(weights(tmp_path / "parts" / "checkpoint-2"), whole)


def test_the_listener_may_read_pictures_as_they_come(recipe, pictures, tmp_path):
    """It stays as it is, so it need not know all images before: the same figures, but for one picture that is broken."""
    folder = tmp_path / "some"
    shutil.copytree(pictures, folder)
    (folder / "broken.png").write_bytes(b"no picture")
    data = {"path": str(folder), "format": "unlabelled", "on_error": "replace"}
    assert main(["train", str(recipe("vlrm_rs", data=data, max_steps=1, per_device_train_batch_size=10))]) == 0
    (first,) = [line for line in logged(tmp_path / "vlrm_rs") if "loss" in line]
    assert first["unreadable_images"] == 1
    assert abs(first["rewards/phi"]) < 1e-6  # its mean over the step


def said(capsys, argv):
    assert main(argv) == 2
    return capsys.readouterr().err.strip().removeprefix("error: ")


@pytest.mark.parametrize(
    ("method", "changes", "sentence"),
    [
        (
            "vlrm",
            {"reward": {"clip_s": 1.0, "phi": 0.3}},
            "the weight of Phi is objective.phi_weight of method vlrm_rs",
        ),
        ("vlrm_rs", {"reward": []}, "method vlrm_rs needs a reward"),
        ("vlrm_rs", {"reward": {"cider_d": 1.0}, "listener": {}}, "method vlrm_rs needs a listener"),
        (
            "vlrm",
            {"penalties": {"phrases": "vlmr"}},
            "penalties.phrases='vlmr' is neither a file nor one of vlrm, world",
        ),
        ("vlrm", {"objective": {"policy_loss": "odds"}}, "must be one of probability, log_probability"),
        ("vlrm", {"objective": {"scoring_batch_size": 0}}, "is 0, but must be a whole number of at least 1 or null"),
        ("vlrm", {"critic": {"blocks": 0}}, "critic.blocks=0 leaves no residual block"),
        ("vlrm", {"captioner.train": "bridge"}, "train='bridge' needs a model with a part between"),
    ],
)
def test_what_cannot_be_is_one_sentence(recipe, capsys, method, changes, sentence):
    flags = [word for name, value in changes.items() if "." in name for word in (f"--{name}", value)]
    path = recipe(method, **{name: value for name, value in changes.items() if "." not in name})
    message = said(capsys, ["train", str(path), *flags])
    assert sentence in message
    assert message.count("\n") == 0


def test_a_critic_cannot_be_left_out(recipe, capsys):
    assert "method vlrm needs a critic" in said(capsys, ["train", str(recipe("vlrm")), "--critic", "null"])


def test_flags_reach_into_the_adapter(recipe, capsys):
    words = ["--critic.lora.r", "3", "--critic.head", "linear", "--penalties", "null", "--print_config"]
    assert main(["train", str(recipe("vlrm")), *words]) == 0
    shown = capsys.readouterr().out
    assert "  lora:\n    r: 3\n    alpha: 4.0" in shown
    assert "head: linear" in shown
    assert "penalties: null" in shown


RECIPES = Path(__file__).parents[2] / "recipes"
PAPER = ("blip2_vlrm", "blip2_vlrm_rs")


@pytest.mark.parametrize("name", PAPER)
def test_the_recipes_of_the_paper_have_its_numbers(name):
    recipe = load_recipe([str(RECIPES / f"{name}.yaml")])
    training, watched = recipe.training, recipe.evaluation
    assert 8 * training.per_device_train_batch_size * training.gradient_accumulation_steps == 4096
    assert (training.learning_rate, training.warmup_steps, training.lr_scheduler_type) == (1e-5, 20, "constant")
    assert (training.weight_decay, training.max_grad_value) == (0.0, 1.0)
    drawing = [recipe.objective[key] for key in ("top_k", "temperature", "max_new_tokens")]
    assert drawing == [6, 2, 60]
    drawn = decoding(watched.num_beams, watched.max_new_tokens, min_new_tokens=watched.min_new_tokens)
    assert (drawn.num_beams, drawn.min_new_tokens, drawn.max_new_tokens, watched.no_repeat_ngram_size) == (5, 4, 60, 2)
    assert (recipe.parts["critic"].blocks, recipe.parts["penalties"].phrases) == (5, "vlrm")
    assert (recipe.data.format, recipe.data.on_error) == ("unlabelled", "replace")  # shards and videos are read, too
    assert recipe.data.center_crop
    rewards = {entry.name: entry.weight for entry in recipe.reward}
    if recipe.method == "vlrm":
        assert rewards == {"itm": 1.0, "language_model": 1.0}
    else:
        assert (rewards, recipe.objective["phi_weight"]) == ({"itm": 1.0}, 0.3)
        assert recipe.listener.path == "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k"


def test_the_two_recipes_of_the_paper_differ_in_what_the_paper_says():
    one, other = (load_recipe([str(RECIPES / f"{name}.yaml")]).resolved for name in PAPER)
    for section in ("captioner", "data", "matcher", "critic", "penalties", "evaluation"):
        assert one[section] == other[section], section
    assert {key for key in one["training"] if one["training"][key] != other["training"][key]} == {
        "max_steps",
        "eval_steps",
        "save_steps",
        "output_dir",
    }


@pytest.mark.parametrize("name", PAPER)
def test_the_recipes_of_the_paper_build_with_small_models_of_the_same_families(
    name, materials, pictures, tmp_path, capsys
):
    """BLIP-2 with OPT, BLIP-2's matching head, OPT and CLIP; pictures without captions, COCO's file for the evaluation."""
    tiny_blip2(tmp_path / "blip2")
    small = {
        "captioner.model_name_or_path": tmp_path / "blip2",
        "captioner.dtype": "float32",
        "matcher.model": tiny_blip2_itm(tmp_path / "itm"),
        "matcher.dtype": "float32",
        "data.path": pictures,
        "evaluation.path": materials.data,
        "evaluation.images": materials.photos,
        "evaluation.split": "val",
        "evaluation.judge": materials.listener,
        "objective.max_new_tokens": 8,
        "bf16": "false",
        "dataloader_num_workers": 0,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "output_dir": tmp_path / "run",
    }
    if name == "blip2_vlrm":
        small |= {"language_model.path": saved(tmp_path / "opt", "opt"), "language_model.dtype": "float32"}
    else:
        small["listener.path"] = materials.listener
    words = [str(word) for key, value in small.items() for word in (f"--{key}", value)]
    assert main(["train", str(RECIPES / f"{name}.yaml"), *words, "--dry_run"]) == 0
    told = {line.split("  ")[0]: line for line in capsys.readouterr().err.splitlines()}
    assert {"captioner", "critic", "matcher"} <= told.keys()
    assert "unknown" not in told["captioner"] + told["critic"]
    assert main(["train", str(RECIPES / f"{name}.yaml"), *words, "--max_steps", "1", "--eval_steps", "1"]) == 0
    (step,) = [line for line in logged(tmp_path / "run") if "loss" in line]
    assert ("rewards/phi" in step) == (name == "blip2_vlrm_rs")
    assert ("rewards/language_model" in step) == (name == "blip2_vlrm")
