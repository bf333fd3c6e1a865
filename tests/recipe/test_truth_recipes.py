"""Rewards for truth and likelihood in recipes, by matching heads and late-interaction listeners; the oracle is of the world."""

import json
import math
import re

import pytest
import torch

from tellapart.cli.main import main
from tellapart.data.load import load_dataset
from tellapart.errors import UsageError
from tellapart.listeners.mining import mine
from tellapart.listeners.neighbours import Neighbours
from tellapart.recipe.build import build, check_together
from tellapart.recipe.recipe import Recipe
from tiny.matchers import tiny_blip_itm
from tiny_late import tiny_late

TRUTH = [{"name": "truth", "weight": 0.3, "floor": -5.0}, {"name": "likelihood", "weight": 0.5}]


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    return tiny_blip_itm(tmp_path_factory.mktemp("head") / "blip")


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late") / "verifier"
    tiny_late().save(folder)
    return folder


def rollout_of(built, texts):
    batch = built.data.collate([built.dataset[i] for i in range(len(texts))])
    return built.captioner.tokenize(batch, texts, torch.arange(len(texts)))


def test_truth_and_likelihood_by_their_formulas(materials, head, tmp_path):
    path = materials.recipe(tmp_path, "scst", reward=TRUTH, matcher={"model": str(head)}, gallery={"images": 4})
    built = build(Recipe.load(path))
    rollout = rollout_of(built, ["a red star", "a blue ring on a table"])
    parts = built.objective.reward.parts(rollout)
    rewards = built.objective.reward.rewards
    logits = rewards["truth"].matcher.rollout_logits(rollout)
    expected = [0.3 * max(-5.0, float(row[1] - math.log(sum(math.exp(v) for v in row.tolist())))) for row in logits]
    torch.testing.assert_close(parts["truth"], torch.tensor(expected), atol=1e-5, rtol=0)
    listener = rewards["likelihood"].listener
    with pytest.raises(UsageError, match=r"gallery\.images is 0"):
        Recipe.load(path, {"gallery.images": 0}).build()
    gallery = built.dataset.ids[::2]  # 4 of 8 images, evenly spread
    scale = float(listener.logit_scale.detach().exp())
    for place, image in enumerate(rollout.ids()):
        text = listener.encode_texts([rollout.texts[place]])[0]
        ids = list(dict.fromkeys([*gallery, image]))
        cosines = dict(zip(ids, (listener.encode_ids(ids) @ text).tolist(), strict=True))
        total = math.log(sum(math.exp(scale * value) for value in cosines.values()))
        assert float(parts["likelihood"][place]) == pytest.approx(0.5 * (scale * cosines[image] - total), abs=1e-4)


@pytest.mark.parametrize("own", [False, True])
def test_lookalikes_are_mined_for_the_reward(own, materials, tmp_path):
    entry, near = {"name": "lookalikes", "weight": 2.0}, {"k": 2}
    options = {"reward": [entry | {"neighbours": near}]} if own else {"reward": [entry], "neighbours": near}
    built = build(Recipe.load(materials.recipe(tmp_path, "scst", **options)))
    rollout = rollout_of(built, ["a red star", "a blue ring on a table"])
    reward = built.objective.reward.rewards["lookalikes"]
    listener = reward.listener
    mined = mine(listener, built.dataset, 2)
    scale = float(listener.logit_scale.detach().exp())
    found = built.objective.reward(rollout)
    for place, image in enumerate(rollout.ids()):
        text = listener.encode_texts([rollout.texts[place]])[0]
        own_, *others = (scale * listener.encode_ids([image, *mined.of([image])[0]]) @ text).tolist()
        total = math.log(math.exp(own_) + sum(map(math.exp, others)))
        assert len(others) == 2
        assert float(found[place]) == pytest.approx(2 * (own_ - total), abs=1e-4)


def test_lookalikes_without_what_finds_them(materials, tmp_path):
    own = [{"name": "lookalikes", "listener": {"path": "x"}}]
    for options, told in (
        ({"neighbours": None}, "neighbours is null, but reward.lookalikes compares with them"),
        ({"neighbours": {"kind": "random", "listener": "x"}}, "random reads no file and asks no listener"),
        ({"reward": own, "listener.path": None}, "mined by a listener: set neighbours.listener"),
    ):
        with pytest.raises(UsageError, match=told):
            check_together(Recipe.load(materials.recipe(tmp_path, "scst", reward=["lookalikes"]), options))


def test_a_matcher_of_the_world_must_see_what_it_calls_true(materials, head, tmp_path, monkeypatch):
    """Whatever kind of matcher it is; the logit of a match, VLRM's reward, may be blind."""
    monkeypatch.setattr("tellapart.world.stages.resolve", lambda name, size: head)
    blind = {"accuracy": {"shape": 99.0}, "size": "full"}
    monkeypatch.setattr("tellapart.world.probe.PROBE", "blind.json")
    (head / "blind.json").write_text(json.dumps(blind))
    matcher = {"model": "world/itm"}
    own = [{"name": "clip_s"}, {"name": "truth", "matcher": matcher}]
    for given in ({"reward": [{"name": "truth"}], "matcher": matcher}, {"reward": own}):
        with pytest.raises(UsageError, match=r"tells colour right in 0\.0 % of pictures, under 90 %"):
            build(Recipe.load(materials.recipe(tmp_path, "scst", **given)))
    built = build(Recipe.load(materials.recipe(tmp_path, "scst", reward=[{"name": "itm"}], matcher=matcher)))
    assert list(built.objective.reward.rewards) == ["itm"]


def test_a_late_listener_serves_both_and_judges(materials, verifier, tmp_path, capsys):
    reward = [{"name": "truth"}, {"name": "likelihood", "listener": {"path": str(verifier)}}]
    evaluation = {"split": "val", "max_new_tokens": 8, "judge": str(verifier)}
    path = materials.recipe(tmp_path, "scst", reward=reward, matcher={"model": str(verifier)}, evaluation=evaluation)
    assert main(["train", str(path), "--data.limit", "6"]) == 0
    assert "judge R@1" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["scst", "wtf", "vlrm_rs"])
def test_a_late_listener_has_no_cosines(method, materials, verifier, tmp_path):
    more = {"objective": {"max_new_tokens": 8}, "reward": None if method == "wtf" else {"clip_s": 1.0}}
    more |= {"reward": {"cider_d": 1.0}} if method == "vlrm_rs" else {}
    more |= {"critic": {"lora": None}} if method == "vlrm_rs" else {}
    path = materials.recipe(tmp_path, method, listener={"path": str(verifier)}, **more)
    with pytest.raises(UsageError, match=r"compares word by word and has no cosines, which .* needs"):
        build(Recipe.load(path))


@pytest.mark.parametrize(
    ("option", "value"), [("prefix", "A photo depicts "), ("base", "x"), ("text_pooling", "sentence_mean")]
)
def test_a_late_listener_has_no_options_of_a_clip(option, value, materials, verifier, tmp_path):
    section = {"path": str(verifier), option: value}
    for more in ({"listener": section}, {"reward": [{"name": "likelihood", "listener": section}]}):
        path = materials.recipe(tmp_path, "scst", **({"reward": ["likelihood"]} | more))
        with pytest.raises(UsageError, match=r"prefix out|listener\.base is for \.pth files|text_pooling is for CLIP"):
            build(Recipe.load(path))


def test_a_late_listener_may_be_named_as_what_it_is(materials, verifier, tmp_path):
    matcher = {"model": str(verifier), "kind": "late"}
    built = build(Recipe.load(materials.recipe(tmp_path, "scst", reward=["truth"], matcher=matcher)))
    assert built.objective.reward.rewards["truth"].matcher.rollout_logits is not None


def test_a_file_of_neighbours_decides_their_number(materials, tmp_path):
    dataset = load_dataset(materials.data, split="train")
    Neighbours.random(dataset.ids, 3).save(tmp_path / "near.parquet")

    def built(**more):
        near = {"path": str(tmp_path / "near.parquet"), **more}
        return build(Recipe.load(materials.recipe(tmp_path, "scst", reward=["lookalikes"], neighbours=near)))

    for more in ({}, {"k": 3}):
        assert built(**more).objective.reward.rewards["lookalikes"].neighbours.k == 3
    with pytest.raises(UsageError, match=r"neighbours\.k is 2, but .*near\.parquet has 3 neighbours of each image"):
        built(k=2)
    with pytest.raises(UsageError, match=r"were mined: leave neighbours\.listener out"):
        built(listener=str(materials.listener))


def test_the_oracle_is_refused_on_photos(materials, tmp_path):
    path = materials.recipe(tmp_path, "scst", reward={"oracle": 1.0})
    with pytest.raises(UsageError, match="knows the pictures of the built-in world only"):
        build(Recipe.load(path))


def test_the_oracle_is_for_studies(tmp_path, capsys):
    """Even on the built-in world: it is not a way to train captioners."""
    recipe = Recipe.load("world_ved_dico", {"reward": [{"name": "oracle", "weight": 1.0}], "data.size": "small"})
    with pytest.raises(UsageError, match="reward oracle is a control for studies of the built-in world"):
        recipe.train(tmp_path / "run")
    assert (
        main(["train", "recipes/world_ved_dico.yaml", "--reward.clip_s", "0", "--reward.oracle", "1", "--dry_run"]) == 2
    )
    assert "reward oracle is a control for studies" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_truth_needs_a_matcher(materials, tmp_path):
    with pytest.raises(UsageError, match=r"reward\.truth needs a matcher: set matcher\.model"):
        check_together(Recipe.load(materials.recipe(tmp_path, "scst", reward=["truth"])))


def test_scoring_with_search_by_the_reward_of_a_recipe(materials, head, verifier, tmp_path, capsys):
    """No training: of two beams the one that the reward likes better."""
    recipe = materials.recipe(tmp_path, "scst", reward=[{"name": "truth"}], matcher={"model": str(verifier)})
    words = [
        "score",
        str(materials.captioner),
        "--data",
        str(materials.data),
        "--num_beams",
        "2",
        "--max_new_tokens",
        "6",
    ]
    found = []
    for more in ([], ["--rerank", str(recipe)]):
        folder = tmp_path / f"kept{len(more)}"
        assert main([*words, *more, "--output_dir", str(folder)]) == 0
        found.append(next(folder.rglob("metrics.json")))
    told = json.loads(found[1].read_text())["protocol"]["decoding"]
    assert re.search(r"beam 2, max_new_tokens=6, best of these by 1 truth \[[0-9a-f]{8}\]$", told)
    matcher = Recipe.load(recipe).build().objective.reward.rewards["truth"].matcher
    images = load_dataset(materials.data, split="val")
    matcher.know_images(images)
    truth = []
    for each in found:
        (results,) = each.parent.glob("captions_results.json")
        said = {str(line["image_id"]): line["caption"] for line in json.loads(results.read_text())}
        logits = torch.cat(matcher.match_ids(list(said), [[text] for text in said.values()]))
        truth.append(matcher.score(logits))
    assert (truth[1] >= truth[0]).all()
    assert (truth[1] > truth[0]).any()
    (tmp_path / "other").mkdir()
    other = materials.recipe(tmp_path / "other", "scst", reward=[{"name": "truth"}], matcher={"model": str(head)})
    for _ in range(2):  # equal weights, another model: next to the first one's figures, once
        assert main([*words, "--rerank", str(other), "--output_dir", str(folder)]) == 0
    both = [json.loads(path.read_text())["protocol"]["decoding"] for path in folder.rglob("metrics.json")]
    assert told in both
    assert len(set(both)) == len(both) == 2
    capsys.readouterr()
    cider = materials.recipe(tmp_path, "scst", reward={"cider_d": 1.0})
    assert main([*words, "--rerank", str(cider)]) == 2
    assert "rewards cider_d, which reads the references that captions are measured by" in capsys.readouterr().err
    xe = materials.recipe(tmp_path, "xe")
    assert main([*words, "--rerank", str(xe)]) == 2
    assert "has no reward to choose by" in capsys.readouterr().err
