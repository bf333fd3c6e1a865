"""Claim rewards and the claim metric, with a matcher, with claims from a file, and exactly on the world."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from pictures import images
from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.evaluation.claims import ClaimScorer, MatcherVerifier, read_claims, write_claims
from tellapart.listeners.matcher import ItmMatcher
from tellapart.metrics.claims import claims_by_rule, given_claims
from tellapart.rewards.claims import ClaimF1, ClaimPrecision
from tellapart.rewards.language_model import LanguageModel
from tellapart.types import Batch, Rollout
from tellapart.world.captions import full_description
from tellapart.world.claims import SceneVerifier, exact_claims
from tellapart.world.scenes import Scene, SceneObject, draw_scene
from tiny.language_models import tiny_language_model
from tiny.matchers import tiny_blip_itm

TEXTS = ["a red star on a table", "a blue moon", "", "a red star on a table"]
REFERENCES = [["a red star", "a star on a table"], ["a dog"], []]


@pytest.fixture(scope="module")
def matcher(tmp_path_factory) -> ItmMatcher:
    found = ItmMatcher.from_pretrained(tiny_blip_itm(tmp_path_factory.mktemp("matcher")))
    found.know_images(Example(str(i), ArrayImage(np.asarray(image))) for i, image in enumerate(images(3)))
    return found


def rollout() -> Rollout:
    flat = torch.ones(4, 1, dtype=torch.long)
    batch = Batch(["0", "1", "2"], REFERENCES, {})
    return Rollout(batch, torch.tensor([0, 1, 2, 2]), TEXTS, flat, flat.bool(), flat[:, 0].bool())


def sure(matcher, image: str, text: str) -> float:
    """The probability of a match, of one claim alone."""
    no, yes = matcher.match_ids([image], [[text]])[0][0].tolist()
    return float(np.exp(yes) / (np.exp(no) + np.exp(yes)))


def middle(matcher) -> float:
    """A threshold that some claims pass and some do not."""
    values = [
        sure(matcher, i, claim.text) for i, text in zip("0122", TEXTS, strict=True) for claim in claims_by_rule(text)
    ]
    return float(np.mean([min(values), max(values)]))


def test_rewards_are_the_scores_of_each_claim(matcher):
    threshold = middle(matcher)
    expected, f1 = [], []
    for image, text in zip("0122", TEXTS, strict=True):
        claims = [claim.text for claim in claims_by_rule(text)]
        true = [sure(matcher, image, claim) >= threshold for claim in claims]
        precision = sum(true) / len(true) if true else 0.0
        wanted = {claim.key for own in REFERENCES[int(image)] for claim in claims_by_rule(own)}
        recall = len(wanted & {claim.key for claim in claims_by_rule(text)}) / len(wanted) if wanted else None
        expected.append(precision)
        both = 0.0 if recall is None or not precision + recall else 2 * precision * recall / (precision + recall)
        f1.append(precision if recall is None else both)
    assert 0 < sum(expected) < 3
    assert ClaimPrecision(matcher, true_from=threshold)(rollout()).tolist() == pytest.approx(expected)
    assert ClaimF1(matcher, true_from=threshold)(rollout()).tolist() == pytest.approx(f1)
    with pytest.raises(ValueError, match="true_from=1"):
        ClaimPrecision(matcher, true_from=1)

    captions = dict(zip("012", TEXTS, strict=False))
    metrics, columns = ClaimScorer(MatcherVerifier(matcher, true_from=threshold))(
        captions, dict(zip("012", REFERENCES, strict=True))
    )
    assert columns["claim_precision"] == pytest.approx([100 * value for value in expected[:3]])
    assert metrics["claim_precision"] == pytest.approx(np.mean(columns["claim_precision"]))
    assert columns["claim_F1"][:2] == pytest.approx([100 * value for value in f1[:2]])
    assert columns["claim_recall"][2] is None
    assert metrics["claim_recall"] == pytest.approx(np.mean(columns["claim_recall"][:2]))
    assert metrics["claims"] == pytest.approx((4 + 2 + 0) / 3)
    rejected = [c.text for c in claims_by_rule(TEXTS[0]) if sure(matcher, "0", c.text) < threshold]
    assert columns["claims_rejected"][0] == rejected


def test_the_verifier_and_the_parser_are_named(matcher):
    scorer = ClaimScorer(MatcherVerifier(matcher), parse=given_claims({}), parser="file claims.jsonl")
    assert "claims by file claims.jsonl" in scorer.measured_by["claim_precision"]
    assert matcher.source in scorer.measured_by["claim_precision"]
    metrics, _ = scorer({"0": "a red star"}, {})
    assert "claim_recall" not in metrics


def test_a_language_model_writes_claims(tmp_path):
    model, tokenizer = tiny_language_model("gpt2", positions=512)
    language_model = LanguageModel(model, tokenizer)

    def generate(tokens, **options):
        answer = tokenizer("\n- a red star\n- a table\nnothing\n", add_special_tokens=False, return_tensors="pt")[
            "input_ids"
        ]
        assert "a red star on a table" in tokenizer.decode(tokens[0])
        assert options["do_sample"] is False
        return torch.cat([tokens, answer], dim=1)

    model.generate = generate
    path = tmp_path / "claims.jsonl"
    written = write_claims(language_model, [TEXTS[0], "", TEXTS[0]], path)
    assert written == read_claims(path) == {TEXTS[0]: ["a red star", "a table"]}
    whole = path.read_bytes()
    path.write_bytes(b'{"caption": "a", "claims": ["b"]}\n' + whole[:-9])  # a kill tore the last line
    assert write_claims(language_model, ["a", TEXTS[0]], path) == {"a": ["b"], **written}
    assert path.read_bytes().endswith(b"}\n" + whole)
    path.write_text(json.dumps({"caption": "a"}))
    with pytest.raises(UsageError, match=r"line 1 of .* holds no claims"):
        read_claims(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"caption": "a red car", "claims": "a car"}', "is not a list"),  # not one claim per letter
        ('{"caption": "a red car"}', "'claims'"),
        ("[]", "indices"),
        ('"a red car"', "indices"),
    ],
)
def test_what_holds_no_claims_is_told(tmp_path, line, said):
    path = tmp_path / "claims.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(UsageError, match=f"line 2 of .* holds no claims .*{said}"):
        read_claims(path)


def test_claims_of_the_world_are_exact():
    assert [
        claim.text for claim in exact_claims("a small red disc in the top left above two stars on a gray background")
    ] == [
        "a circle",
        "a red circle",
        "a small circle",
        "a circle in the top left",
        "a small red circle in the top left",
        "two stars",
        "a red circle above two stars",
        "a shape on a gray background",
    ]
    assert exact_claims("circle a") == []
    objects = (
        SceneObject("circle", "red", "large", "plain", 0, 0),
        SceneObject("circle", "blue", "small", "plain", 1, 1),
    )
    verifier = SceneVerifier({"x": Scene(objects, "gray")})
    claims = exact_claims("a small red circle")
    assert [claim.text for claim in claims] == ["a circle", "a red circle", "a small circle", "a small red circle"]
    assert verifier.verify(["x"], [claims]) == [[True, True, True, False]]


def test_claims_of_counted_objects_keep_what_tells_them_from_others():
    stars = (("small", 0, 0), ("small", 0, 1), ("large", 1, 0))
    scene = Scene(tuple(SceneObject("star", "red", size, "plain", *cell) for size, *cell in stars), "gray")
    claims = exact_claims("two small red stars above a large star")
    assert [claim.text for claim in claims] == [
        "two small red stars",
        "a star",
        "a large star",
        "two small red stars above a star",
    ]
    assert SceneVerifier({"x": scene}).verify(["x"], [claims]) == [[True] * 4]


def test_full_descriptions_are_precise_and_complete():
    scenes = {str(i): draw_scene(random.Random(i)) for i in range(40)}
    captions = {name: full_description(scene) for name, scene in scenes.items()}
    references = {name: [text] for name, text in captions.items()}
    scorer = ClaimScorer(SceneVerifier(scenes), parse=exact_claims, parser="the world's grammar")
    metrics, _ = scorer(captions, references)
    assert metrics["claim_precision"] == metrics["claim_recall"] == metrics["claim_F1"] == 100.0
    wrong = dict(zip(captions, [*list(captions.values())[1:], captions["0"]], strict=True))
    assert scorer(wrong, references)[0]["claim_precision"] < 60
