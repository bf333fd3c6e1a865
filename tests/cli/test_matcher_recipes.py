"""Matchers in recipes: as a reward, loaded from what a user names, part of what a run is, and never trained or saved."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import CLIPVisionConfig

from command_recipes import load_recipe
from pictures import CAPTIONS
from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.dual import DualMatcher
from tellapart.listeners.matcher import ItmMatcher
from tellapart.recipe.build import build
from tellapart.recipe.fingerprint import content_of
from tellapart.recipe.models import load_matcher
from tellapart.recipe.run import check_output_dir
from tellapart.recipe.sections import MatcherSection
from tellapart.rewards.matchers import open_matcher
from tellapart.rewards.matching import Matching
from tellapart.rewards.yes_no import YesNoMatcher
from tiny.llava import tiny_llava
from tiny.matchers import tiny_blip2_itm, tiny_blip_itm
from tiny_models import tiny_ved


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    root = tmp_path_factory.mktemp("heads")
    tiny_llava(root / "llava", captions=[*CAPTIONS, *["yes no"] * 40], vocab=200)
    return {"blip": tiny_blip_itm(root / "blip"), "blip-2": tiny_blip2_itm(root / "blip2"), "llava": root / "llava"}


def written(materials, folder, model, **more):
    changes = {
        "listener": None,
        "reward": {"itm": 2.0},
        "matcher": {"model": str(model), **more},
        "evaluation": {"split": None},
    }
    return materials.recipe(folder, "scst", **changes)


def test_a_training_is_rewarded_by_a_matching_head(materials, heads, tmp_path):
    path = written(materials, tmp_path, heads["blip-2"], batch_size=3)
    built = build(load_recipe([str(path)]))
    batch = built.data.collate([built.dataset[i] for i in range(4)])
    assert batch.inputs["matcher"]["pixel_values"].shape == (4, 3, 32, 32)  # prepared where the captioner's are
    matcher = built.objective.reward.rewards["itm"].matcher
    trained = {id(parameter) for parameter in built.objective.parameters()}
    assert not any(id(p) in trained or p.requires_grad for p in matcher.model.parameters())

    assert main(["train", str(path)]) == 0
    run = tmp_path / "scst"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    parts = [(row["rewards/itm"], row["reward"]) for row in rows if "rewards/itm" in row]
    assert parts
    assert all(part == pytest.approx(reward, abs=1e-4) for part, reward in parts)
    assert json.loads((run / "run.json").read_text())["recipe"]["matcher"]["model"] == str(heads["blip-2"])
    assert {path.name for path in (run / "checkpoint-2").iterdir() if path.is_dir()} == {"captioner"}
    words = [str(path), "--resume_from_checkpoint", "last", "--max_steps", "3", f"--matcher.model={heads['blip']}"]
    with pytest.raises(UsageError, match="has matcher"):
        check_output_dir(load_recipe(words))


def test_a_dry_run_tells_the_memory_of_every_part(materials, heads, tmp_path, capsys):
    path = written(materials, tmp_path, heads["blip"])
    assert main(["train", str(path), "--dry_run", "--objective.kl_coef", "0.1"]) == 0
    told = {line.split("  ")[0]: line for line in capsys.readouterr().err.splitlines()}
    assert {"captioner", "matcher", "reference"} <= told.keys()
    assert "unknown" not in told["captioner"]
    assert told["matcher"].split()[1] == "0"  # nothing of it learns
    assert any("memory of a device at its highest: " in line for line in told.values())
    assert not (tmp_path / "scst").exists()


@pytest.mark.parametrize(("name", "kind"), [("blip", ItmMatcher), ("blip-2", ItmMatcher), ("llava", YesNoMatcher)])
def test_the_kind_is_told_by_the_model(heads, name, kind):
    matcher = load_matcher(MatcherSection(model=str(heads[name]), batch_size=5, autocast="bfloat16", device="cpu"))
    assert type(matcher) is kind
    assert (matcher.batch_size, matcher.autocast, matcher.name) == (5, "bfloat16", "matcher")


def test_a_dual_encoder_gives_cosines_or_its_logit(materials, tmp_path):
    path = written(materials, tmp_path, materials.listener)
    built = build(load_recipe([str(path)]))
    matcher = built.objective.reward.rewards["itm"].matcher
    assert type(matcher) is DualMatcher
    batch = built.data.collate([built.dataset[i] for i in range(3)])
    assert "matcher" not in batch.inputs  # its images were embedded before
    listener = ClipListener.from_pretrained(materials.listener)
    texts, image = ["a red star on a table", "a moon", "a red star on a table"], torch.tensor([2, 0, 1])
    rollout = built.captioner.tokenize(batch, texts, image)
    pixels = listener.process([built.dataset[i].image.open() for i in range(3)])["pixel_values"]
    with torch.no_grad():
        cosines = (listener.embed_images(pixels)[image] * listener.embed_texts(texts)).sum(dim=1)
    torch.testing.assert_close(Matching(matcher)(rollout), cosines, atol=1e-5, rtol=0)
    scaled = open_matcher(materials.listener, scaled=True)
    scaled.know_images(built.dataset)
    logits = listener.model.logit_scale.exp().detach() * cosines
    torch.testing.assert_close(scaled.match(rollout), logits, atol=1e-4, rtol=1e-5)
    assert (scaled.describe()["scale"], matcher.describe()["scale"]) == ("logit", "cosine")


def test_what_does_not_fit_is_told(materials, heads, tmp_path):
    def told(*words: str) -> str:
        with pytest.raises(UsageError) as error:
            build(load_recipe([str(written(materials, tmp_path, heads["blip"])), *words]))
        return str(error.value)

    assert "reward.itm needs a matcher: set matcher.model" in told("--matcher.model=null")
    without = load_recipe([str(written(materials, tmp_path, heads["blip"])), "--reward.itm=0", "--reward.cider_d=1"])
    assert "matcher" not in without.parts  # removed with the reward that asked it
    assert "matcher.question is for models that are asked" in told("--matcher.question={caption}?")
    assert "matcher.scaled is for dual encoders" in told("--matcher.scaled=true")
    assert "--matcher.batch_size is '0', but must be a whole number of at least 1" in told("--matcher.batch_size=0")
    assert "matcher.device is 'cuda:9'" in told("--matcher.device=cuda:9")
    assert "matcher.autocast is bfloat16, but the dual encoder" in told(
        f"--matcher.model={materials.listener}", "--matcher.autocast=bfloat16"
    )
    tiny_ved(tmp_path / "ved")
    assert "'vision-encoder-decoder' cannot be asked" in told(f"--matcher.model={tmp_path / 'ved'}")
    assert "does not exist" in told(f"--matcher.model={tmp_path / 'gone'}")
    CLIPVisionConfig().save_pretrained(tmp_path / "tower")
    assert "tower is a clip_vision_model, which is not a matcher: name a CLIP," in told(
        f"--matcher.model={tmp_path / 'tower'}"
    )


def test_models_count_by_their_weights_and_options_at_their_defaults_do_not(materials, heads, tmp_path):
    path = str(written(materials, tmp_path, heads["blip"]))
    key = load_recipe([path]).key()
    assert load_recipe([path, "--matcher.scaled", "false", "--matcher.batch_size", "3"]).key() == key
    assert load_recipe([path, "--matcher.dtype", "bfloat16"]).key() != key
    assert load_recipe([path, f"--matcher.model={heads['blip-2']}"]).key() != key
    copy = tmp_path / "elsewhere"
    shutil.copytree(heads["blip"], copy)
    named = load_recipe([path, f"--matcher.model={copy}"])
    assert content_of(str(copy), "full") == content_of(str(heads["blip"]), "full")
    assert named.key() == key  # by its weights, not by its name
