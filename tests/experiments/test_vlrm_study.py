"""VLRM's study: its words, its rows, and what it reads off logs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from given import vector
from tellapart.experiments.study_vlrm import IMAGES, PLAN, claims, critic_figures, make
from tellapart.experiments.vlrm_rows import CRITIC_RATE, LINEAR, METHODS, STAGES, VLRM_CHANGES, VLRM_ROWS
from tellapart.experiments.world_run import Setting, marker_of, run
from tellapart.metrics.phrases import PhraseFinder
from tellapart.metrics.style import style_columns
from tellapart.rewards.penalties import Penalties
from tellapart.types import Batch, Rollout
from tellapart.world import WORDS, build_tokenizer, load_world, spec
from tellapart.world.grammar import parse
from tellapart.world.itm import false_text
from tellapart.world.phrases import COLOURS, EXEMPT_WORDS, wording, world_phrases
from tellapart.world.stages import resolve


def test_every_opener_of_the_grammar_is_listed_and_nothing_else_of_a_caption():
    find = PhraseFinder(world_phrases(), years=False)
    for prefix in spec.PREFIXES:
        covered = {i for first, last in find(f"{prefix} a red star") for i in range(first, last)}
        assert covered == set(range(len(prefix)))
    said = set(WORDS) - {word for prefix in spec.PREFIXES for word in prefix.split()}
    assert [word for word in said if find(word)] == []


def test_the_penalties_of_a_caption_of_the_world():
    tokenizer = build_tokenizer()
    penalties = Penalties(tokenizer, world_phrases(), exempt=EXEMPT_WORDS, years=False)
    text = "a photo of a cyan star and a cyan star and a tiny box on a violet background"
    ids = [*tokenizer.convert_tokens_to_ids(text.split()), tokenizer.eos_token_id]
    tokens = torch.tensor([ids])
    everything = torch.ones_like(tokens, dtype=torch.bool)
    rollout = Rollout(Batch(["i"], [[]]), torch.tensor([0]), [text], tokens, everything, torch.tensor([True]))
    bad, repeated = penalties(rollout)
    assert bad[0].tolist() == [True] * 3 + [False] * (len(ids) - 3)
    # A colour may be said twice, "star" may not.
    assert repeated[0].nonzero().flatten().tolist() == [9]


def test_colour_coverage_with_colours_of_ones_own():
    inputs, expected, tolerance = vector("color_coverage")
    columns = style_columns([text.lower() for text in inputs["captions"]], colors=inputs["colors"])
    assert columns["colored"].mean() == pytest.approx(expected["frac_captions_with_color"], abs=tolerance)
    assert columns["colors"].mean() == pytest.approx(expected["mean_distinct_colors"], abs=tolerance)
    captions = {"a": "we see a cyan star and a cyan ring on a grey background", "b": "two shapes", "c": "a violet box"}
    metrics, columns = wording(captions)
    assert columns == {
        "color_coverage": [100.0, 0.0, 100.0],
        "distinct_colors": [2.0, 0.0, 1.0],
        "listed_phrases": [100.0, 0.0, 0.0],
    }
    assert metrics == pytest.approx({"color_coverage": 200 / 3, "distinct_colors": 1.0, "listed_phrases": 100 / 3})
    assert "violet" in COLOURS


def test_false_texts_differ_and_read_as_captions():
    rng = np.random.default_rng(0)
    texts = [text for example in load_world("val", size="small") for text in example.references]
    false = [false_text(text, rng) for text in texts]
    changed = [(a, b) for a, b in zip(texts, false, strict=True) if a != b]
    # "two shapes" can only stay as it is.
    assert all(parse(text) is not None for text in false)
    assert all(parse(a) != parse(b) for a, b in changed)
    assert len(changed) > 0.6 * len(texts)
    assert {"two shapes", "three shapes"} & {a for a, b in zip(texts, false, strict=True) if a == b}


def test_rows_share_their_stages_and_changes_take_the_rate_of_vlrm(tmp_path):
    assert set(PLAN.rows) == set(METHODS) | set(VLRM_CHANGES)
    for row in VLRM_ROWS.values():
        assert row.stages == STAGES
        assert row.rates(1e-4) == {"captioner": 1e-4, **CRITIC_RATE}
    study = make(PLAN, tmp_path, Setting(row="xe", steps=3))
    assert study.base.images == IMAGES
    assert {setting.images for setting in study.grid("vlrm")} == {IMAGES}
    assert all(study.grid(row) == [] for row in VLRM_CHANGES)
    # Another matcher is another reward.
    setting = replace(study.base, row="vlrm")
    with pytest.MonkeyPatch.context() as patch:
        before = setting.key()
        patch.setattr(
            "tellapart.experiments.world_run.stage_folder", lambda name, size, seed: tmp_path / f"{name}-other"
        )
        assert setting.key() != before


@pytest.fixture
def finished(tmp_path):
    """A study whose trainings were noted by hand: rows are better the further down they stand, the linear head fails."""
    study = make(PLAN, tmp_path, Setting(row="xe", steps=3))
    heights = {"blip2": 1.0, "vlrm": 2.0, "vlrm_rs": 3.0}
    names = ("mean_length", "detail", "color_coverage", "judge_R@1", "judge_MRR", "exact_recall@1")
    for row in METHODS:
        for setting in study.grid(row):
            val = {"listener_R@1": 1.0, "CIDEr": 1.0, "grammatical": 90.0}
            note(study, setting, "trained.json", json.dumps({"val": val, "val_last": val, "selected_step": 0}))
    for row, settings in study.measured():
        for setting in settings:
            values = dict.fromkeys(names, heights.get(row, 2.0) + 0.1 * setting.seed)
            values["grammatical"] = {"vlrm_rs": 50.0, LINEAR: 80.0}.get(row, 85.0)
            points = ("selected",) if row == "blip2" else ("selected", "last")
            tested = {point: dict.fromkeys(("greedy", "beam5"), values) for point in points}
            note(study, setting, marker_of(PLAN.further_measures), json.dumps({"test": tested}))
            explained = 0.1 if row == LINEAR else 0.6
            lines = [{"step": 0, "eval_CIDEr": 1.0}] + [
                {
                    "step": step,
                    "value_loss": 2.0,
                    "explained_variance": explained * step,
                    "grad_norm/critic": 9.0 - step,
                }
                for step in (1, 2, 3)
            ]
            note(study, setting, "metrics.jsonl", "\n".join(map(json.dumps, lines)))
    return study


def note(study, setting, name, text):
    folder = study.root / setting.key()
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)


def test_critics_are_read_off_logs(finished):
    figures = critic_figures(finished, dict(finished.measured())[LINEAR][0])
    assert figures == pytest.approx({"explained": 0.2, "worst": 0.1, "value_loss": 2.0, "grad_norm": 8.0})


def test_claims_follow_the_numbers(finished):
    found = {claim.text: claim.holds for claim in claims(finished)}
    assert all(found.values())
    assert any(text.startswith("vlrm_rs is over vlrm in judge R@1") for text in found)
    for setting in dict(finished.measured())[LINEAR]:
        path = finished.root / setting.key() / "metrics.jsonl"
        path.write_text(path.read_text().replace('"explained_variance": 0.', '"explained_variance": 0.9'))
    [linear] = [claim for claim in claims(finished) if claim.text.startswith("The linear")]
    assert not linear.holds


@pytest.mark.slow
def test_stages_and_a_row_of_the_small_world(tmp_path):
    folder = resolve("world/blip2", size="small")
    before = load_file(folder / "model.safetensors")
    tower = load_file(resolve("world/blip2-backbone", size="small") / "model.safetensors")
    matcher = load_file(resolve("world/itm", size="small") / "model.safetensors")
    for name, value in tower.items():
        assert torch.equal(before[f"vision_model.{name}"], value)
        assert torch.equal(matcher[f"vision_model.{name}"], value)
    setting = Setting(row="vlrm", learning_rate=1e-3, steps=2, images=32, eval_steps=2, size="small")
    run(setting, tmp_path, test=True, further=("wording",))
    tested = json.loads((tmp_path / "done_wording.json").read_text())["test"]["last"]["greedy"]
    assert {"color_coverage", "judge_MRR", "exact_recall@1", "listed_phrases"} <= set(tested)
    after = load_file(tmp_path / "checkpoint-2" / "captioner" / "model.safetensors")
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"query_tokens", "qformer", "language_projection"}
