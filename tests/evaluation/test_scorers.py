"""Scores by models that see the images: published numbers and plain re-computations."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from evaluation_fakes import REFERENCES, FixedListener, SayingCaptioner, no_inputs, toy_dataset

from given import vector
from pictures import images
from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.protocol import Protocol
from tellapart.evaluation.results import EvaluationResult
from tellapart.evaluation.scorers import ListenerScorer, MatchScorer, PacScorer, probe
from tellapart.listeners.matcher import ItmMatcher
from tiny.matchers import tiny_blip_itm

CAPTIONS = {
    "1": "a red star on a",
    "2": "a ring. a dog",
    "3": "A ring.",
    "4": "a star a star a star",
    "5": "two blue rings",
}


class GivenCosines:
    """Caption i is a unit vector of its own; its image and its references have the cosines that a vector gives."""

    name = "given"

    def __init__(self, image: list[float], references: list[list[float]]) -> None:
        self.rows: dict[str, torch.Tensor] = {}
        width = 2 * len(image)
        for i, (cosine, others) in enumerate(zip(image, references, strict=True)):
            own, side = torch.eye(width, dtype=torch.float64)[2 * i : 2 * i + 2]
            named = {f"caption {i}": 1.0, f"image {i}": cosine} | {
                f"reference {i} {k}": c for k, c in enumerate(others)
            }
            self.rows |= {key: c * own + math.sqrt(1 - c * c) * side for key, c in named.items()}

    def encode_texts(self, texts):
        return torch.stack([self.rows[text] for text in texts])

    def encode_ids(self, ids):
        return torch.stack([self.rows[f"image {i}"] for i in ids])

    def encode_images(self, batch):
        return self.encode_ids(batch.ids)


def test_the_published_definitions_go_through_the_scorers():
    inputs, expected, tolerance = vector("clip_and_pac_scores")
    cosines = inputs["cos_caption_refs"]
    listener = GivenCosines(inputs["cos_image_caption"], cosines)
    captions = {str(i): f"caption {i}" for i in range(len(cosines))}
    references = {str(i): [f"reference {i} {k}" for k in range(len(row))] for i, row in enumerate(cosines)}
    _, clip = ListenerScorer(listener, "judge")(captions, references)
    _, pac = PacScorer(listener)(captions, references)
    columns = {"clip_s": clip["judge_CLIPScore"], "refclip_s": clip["judge_RefCLIPScore"]}
    columns |= {"pac_s": pac["PAC-S"], "refpac_s": pac["RefPAC-S"]}
    for name, values in columns.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=tolerance, err_msg=name)


def test_without_references_of_every_image_there_is_no_reference_score():
    references = {i: texts for i, texts in REFERENCES.items() if i != "3"}
    for scorer in (ListenerScorer(FixedListener("l"), "l"), PacScorer(FixedListener("l"))):
        for given in (references, {}):
            assert not any("Ref" in key for key in scorer(CAPTIONS, given)[0])
        assert any("Ref" in key for key in scorer(CAPTIONS, REFERENCES)[0])


@pytest.mark.parametrize("key", ["caption 0", "image 1", "reference 1 0"])
def test_a_model_that_gives_no_numbers_is_refused(key):
    listener = GivenCosines([0.3, 0.4], [[0.5], [0.6]])
    captions = {"0": "caption 0", "1": "caption 1"}
    references = {"0": ["reference 0 0"], "1": ["reference 1 0"]}
    assert math.isfinite(PacScorer(listener)(captions, references)[0]["RefPAC-S"])
    listener.rows[key] = listener.rows[key] * math.nan
    for scorer in (PacScorer(listener), ListenerScorer(listener, "listener")):
        with pytest.raises(UsageError, match=r"'given' gives (images|texts) embeddings that are not numbers"):
            scorer(captions, references)


def test_a_long_caption_is_scored_by_its_sentences():
    listener = FixedListener("l")
    metrics, columns = ListenerScorer(listener, "l")(CAPTIONS, {})
    image = listener.vector("image 2")

    def score(text: str) -> float:
        return 2.5 * max(0.0, sum(x * y for x, y in zip(listener.vector(text), image, strict=True)))

    assert columns["l_CLIPScore_sentences"][1] == pytest.approx((score("a ring.") + score("a dog")) / 2, abs=1e-6)
    assert columns["l_CLIPScore"][1] == pytest.approx(score("a ring. a dog"), abs=1e-6)
    for row in (0, 2, 3, 4):  # one sentence: the same value, and nothing read twice
        assert columns["l_CLIPScore_sentences"][row] == columns["l_CLIPScore"][row]
    assert metrics["l_CLIPScore_sentences"] == pytest.approx(np.mean(columns["l_CLIPScore_sentences"]))
    assert len(listener.asked) == len(CAPTIONS) + 2


def test_human_captions_are_scored_against_the_other_references():
    listener = FixedListener("j")
    result = Evaluation(toy_dataset(), no_inputs(), listeners={"j": listener}).human()
    for row, (image_id, texts) in enumerate(REFERENCES.items()):
        caption = np.array(listener.vector(texts[0]))
        image = 2.5 * max(0.0, float(caption @ listener.vector(f"image {image_id}")))
        other = max(0.0, max(float(caption @ listener.vector(text)) for text in texts[1:]))
        expected = 2 * image * other / (image + other) if image and other else 0.0
        assert result.per_image["j_RefCLIPScore"][row] == pytest.approx(expected, abs=1e-6)


class Short(FixedListener):
    """Reads three words."""

    def describe(self):
        return {"model": "short", "weights": "0123456789ab", "prefix": "A photo depicts ", "dtype": "float32"}

    def too_long(self, texts):
        return [len(text.split()) > 3 for text in texts]


def test_values_carry_what_they_were_measured_by(tmp_path):
    scorer = PacScorer(Short("s"))
    evaluation = Evaluation(toy_dataset(), no_inputs(), listeners={"judge": FixedListener("j")}, scorers=[scorer])
    result = evaluation(SayingCaptioner(CAPTIONS), name="toy")
    told = json.loads(json.dumps(result.to_json()))
    expected = {"model": "short", "weights": "0123456789ab", "prefix": "A photo depicts ", "dtype": "float32"}
    assert told["details"]["models"]["PAC-S"] == expected | {"w": 2.0, "truncated": 60.0}
    assert told["details"]["models"]["judge_CLIPScore"]["w"] == 2.5
    line = result.protocol.line()
    assert "PAC-S by short [0123456789ab, prefix 'A photo depicts ', dtype float32, w 2.0]" in line
    assert "PAC-S saw 60.0 % of the captions cut" in line
    assert EvaluationResult.load(result.save(tmp_path)).protocol == result.protocol
    other = Protocol(**(vars(result.protocol) | {"measured_by": {"PAC-S": "short [0123456789ab, prefix 'x']"}}))
    assert result.protocol.differences(other) == ["measured_by"]


@pytest.fixture(scope="module")
def matcher(tmp_path_factory) -> ItmMatcher:
    found = ItmMatcher.from_pretrained(tiny_blip_itm(tmp_path_factory.mktemp("matcher")))
    found.know_images(Example(str(i + 1), ArrayImage(np.asarray(image))) for i, image in enumerate(images(3)))
    return found


def test_a_matcher_scores_captions_and_rejects_objects(matcher):
    captions = {"1": "A dog and a dog on an airplane.", "2": "two men", "3": "nothing"}
    scorer = MatchScorer(matcher)
    assert scorer.objects(list(captions.values())) == [["dog", "airplane"], ["men"], []]
    metrics, columns = scorer(captions, {})
    probes = {
        "1": {"dog": "a photo of a dog", "airplane": "a photo of an airplane"},
        "2": {"men": "a photo of men"},
        "3": {},
    }
    rejected = named = 0
    for row, (image_id, caption) in enumerate(captions.items()):
        (logits,) = matcher.match_ids([image_id], [[caption, *probes[image_id].values()]])
        own, *rest = [1 / (1 + math.exp(no - yes)) for no, yes in logits.tolist()]
        assert columns["ITM"][row] == pytest.approx(100 * own, abs=1e-3)
        assert columns["ITM_logit"][row] == pytest.approx(float(logits[0, 1]), abs=1e-5)
        wrong = [word for word, sure in zip(probes[image_id], rest, strict=True) if sure < 0.5]
        assert columns["ITM_rejected"][row] == wrong
        assert columns["ITM_objects"][row] == len(probes[image_id])
        rejected, named = rejected + len(wrong), named + len(probes[image_id])
    assert metrics["ITM_rejected_objects"] == pytest.approx(100 * rejected / named)
    assert metrics["ITM"] == pytest.approx(np.mean(columns["ITM"]))
    assert metrics["ITM_logit"] == pytest.approx(np.mean(columns["ITM_logit"]))


def test_a_matcher_that_gives_no_numbers_is_refused(tmp_path):
    broken = ItmMatcher.from_pretrained(tiny_blip_itm(tmp_path / "broken"))
    broken.know_images([Example("a", ArrayImage(np.array(images(1)[0])), ())])
    with torch.no_grad():
        broken.model.itm_head.bias.fill_(math.nan)
    with pytest.raises(UsageError, match="the matcher broken gives logits that are not numbers"):
        MatchScorer(broken)({"a": "a dog"}, {})


def test_a_matcher_that_always_or_never_agrees(matcher, monkeypatch):
    for shift, share in ((50.0, 0.0), (-50.0, 100.0)):
        monkeypatch.setattr(
            matcher,
            "match_ids",
            lambda ids, texts, shift=shift: [torch.tensor([[0.0, shift]] * len(own)) for own in texts],
        )
        metrics, columns = MatchScorer(matcher)({"1": "a dog", "2": "two men", "3": "nothing"}, {})
        assert metrics["ITM_rejected_objects"] == share
        assert columns["ITM_rejected"] == ([["dog"], ["men"], []] if share else [[], [], []])


def test_results_with_empty_lists_are_stored(matcher, tmp_path):
    columns = MatchScorer(matcher)({"1": "nothing", "2": "nothing"}, {})[1]
    result = EvaluationResult("x", Protocol("d", 2, "0"), {}, {"1": "nothing", "2": "nothing"}, columns)
    assert EvaluationResult.load(result.save(tmp_path)).per_image["ITM_rejected"] == [[], []]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("dog", "a photo of a dog"),
        ("apple", "a photo of an apple"),
        ("dogs", "a photo of dogs"),
        ("bus", "a photo of a bus"),
        ("wine glass", "a photo of a wine glass"),
        ("people", "a photo of people"),
    ],
)
def test_probes_are_english(word, text):
    assert probe(word) == text


class MixingListener(FixedListener):
    """A text's embedding depends on the texts it is embedded with."""

    def encode_texts(self, texts):
        rows = super().encode_texts(texts)
        return rows + rows.sum(dim=0)


def test_what_was_measured_before_changes_no_score():
    """A resumed training evaluates as if it had never been stopped."""
    some = {name: CAPTIONS[name] for name in ("1", "3")}
    for kind in (lambda listener: ListenerScorer(listener, "l"), PacScorer):
        scorer = kind(MixingListener("l"))
        scorer(CAPTIONS, REFERENCES)
        fresh = kind(MixingListener("l"))(some, REFERENCES)
        assert scorer(some, REFERENCES) == scorer(some, REFERENCES) == fresh
