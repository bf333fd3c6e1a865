"""Metrics against people: statistics by hand on small sets, published digits on the public ones where they are at hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tellapart.cli.main import main
from tellapart.data.judgements.open import read_judgements
from tellapart.data.judgements.records import Judgements, Preference, Rated
from tellapart.evaluation.people.measure import Measured, measure
from tellapart.evaluation.people.page import system_lines
from tellapart.evaluation.people.protocols import off
from tellapart.evaluation.people.scorers import MatcherScorer, Row, SimilarityScorer, TextScorer
from tellapart.metrics.scores import clip_s, refclip_s
from tellapart.recipe.people import Judges


class Given:
    """Scores that are told: 'caption' -> score."""

    def __init__(self, *, needs_references=False, **scores):
        self.scores, self.needs_references = scores, needs_references

    def __call__(self, rows):
        return {"given": np.array([float(self.scores[row.caption]) for row in rows])}


def figures(judgements, *scorers, **options):
    return {(f.protocol.name, f.metric): f for f in measure(judgements, scorers, **options).figures}


def test_a_score_is_repeated_for_each_rating():
    """Scores 1, 1, 2, 2 with ratings 1, 2, 2, 4: of six pairs three agree, none disagrees; m = 2; tau-c = 2 * 3 * 2 / 16."""
    rows = [Rated("i", "x", ("r",), (1.0, 2.0)), Rated("i", "y", ("r",), (2.0, 4.0))]
    found = figures(Judgements("flickr8k-expert", tuple(rows)), Given(x=1, y=2))
    figure = found["flickr8k-expert", "given"]
    assert figure.value == pytest.approx(100 * 2 * 3 * 2 / 16)
    assert (figure.judgements, figure.protocol.statistic) == (4, "tau_c")


def test_ties_are_wrong_and_pairs_without_references_are_left_out():
    pairs = [
        Preference("i", "x", "y", ("r",), "a"),
        Preference("i", "y", "x", ("r",), "a"),
        Preference("i", "z", "x", ("r",), "b"),
        Preference("i", "x", "y", (), "b"),
    ]
    judgements = Judgements("sugarcrepe", pairs=tuple(pairs))
    found = figures(judgements, Given(needs_references=True, x=2, y=1, z=2))
    assert {name: (f.value, f.judgements) for (name, _), f in found.items()} == {
        "sugarcrepe": (pytest.approx(100 / 3), 3),
        "sugarcrepe a": (50.0, 2),
        "sugarcrepe b": (0.0, 1),
    }
    assert figures(judgements, Given(x=2, y=1, z=2))["sugarcrepe b", "given"].judgements == 2


def test_pairs_without_a_group_are_those_of_the_whole_set_once():
    pairs = [Preference("i", "x", "y", (), "a"), Preference("i", "y", "x", (), "")]
    found = measure(Judgements("caparena", pairs=tuple(pairs)), [Given(x=2, y=1)]).figures
    assert [(one.protocol.name, one.judgements) for one in found] == [("caparena", 2), ("caparena a", 1)]


def test_captions_of_one_image_in_order():
    rows = [Rated("i", "x", (), (0.2, 0.4)), Rated("i", "y", (), (0.9,)), Rated("j", "z", (), (0.1,))]
    found = figures(Judgements("polaris", tuple(rows)), Given(x=1, y=3, z=2))
    assert found["polaris pairs", "given"].value == 100.0
    assert found["polaris pairs", "given"].judgements == 1


def test_what_counts_as_another_value():
    """More than 0.1, or more than the printed digits allow."""
    assert not off(32.39, "32.3")
    assert off(32.41, "32.3")
    assert not off(33.38, "33")
    assert off(33.6, "33")


def test_published_values_belong_to_whole_sets_and_to_their_models():
    rows = tuple(Rated("i", text, ("r",), (float(n),)) for n, text in enumerate("xyz"))
    judgements = Judgements("composite", rows)

    class Clip(Given):
        def __call__(self, given):
            return {"CLIPScore": super().__call__(given)["given"], "CIDEr": super().__call__(given)["given"]}

    scorer = Clip(x=1, y=2, z=3)
    some = figures(judgements, scorer)
    assert (some["composite", "CLIPScore"].published, some["composite", "CIDEr"].published) == ("", "37.7")
    assert some["composite", "CIDEr"].marked
    assert figures(judgements, scorer, same_models=["CLIPScore"])["composite", "CLIPScore"].published == "53.8"
    assert not any(figure.published for figure in figures(judgements, scorer, whole=False).values())


def test_models_of_similar_names_are_not_those_of_published_values():
    published = {"clip": "clip-vit-base-patch32", "pac": "clip_ViT-B-32.pth"}
    theirs = Judges(pac="checkpoints/clip_ViT-B-32.pth", listener="openai/clip-vit-base-patch32/")
    assert theirs.as_published(**published) == ["CLIPScore", "RefCLIPScore", "PAC-S", "RefPAC-S"]
    other = Judges(pac="checkpoints/PAC++_clip_ViT-B-32.pth", listener="me/finetuned-clip-vit-base-patch32")
    assert other.as_published(**published) == []
    assert Judges().as_published(**published) == []


def test_equal_means_share_a_rank_and_one_that_is_no_number_has_none():
    systems = {"people": {"A": 1.5, "B": 1.5, "C": 1.0}, "Bleu_1": {"A": 0.7, "B": float("nan"), "C": 0.9}}
    lines = system_lines(Measured("thumb", [], systems))
    assert lines[-2:] == ["| people | 1.500 (1) | 1.500 (1) | 1.000 (3) |", "| BLEU-1 | 0.700 (2) | - | 0.900 (1) |"]


def test_sentences_of_a_caption_are_not_read_for_nothing():
    listener, read = Listener(), []
    listener.encode_texts = lambda texts: read.extend(texts) or Listener().encode_texts(texts)
    SimilarityScorer(listener)([Row("i", "One here. Two there. Three.", ())])
    assert read == ["One here. Two there. Three."]


class Listener:
    """Two images and any text, as unit vectors."""

    name = "listener"

    def encode_ids(self, ids):
        import torch

        return torch.tensor([[1.0, 0.0] if name == "i" else [0.0, 1.0] for name in ids])

    def encode_texts(self, texts):
        import torch

        angles = torch.tensor([0.1 * len(text) for text in texts])
        return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_similarities_are_those_of_each_row():
    rows = [Row("i", "abc", ("abcd", "a")), Row("j", "ab", ("abc",)), Row("i", "abc", ("abc",))]
    found = SimilarityScorer(Listener())(rows)
    cosines = [np.cos(0.3), np.sin(0.2), np.cos(0.3)]
    assert found["CLIPScore"] == pytest.approx(clip_s(cosines), abs=1e-6)
    with_references = [[np.cos(0.1), np.cos(0.2)], [np.cos(0.1)], [1.0]]
    assert found["RefCLIPScore"] == pytest.approx(refclip_s(cosines, with_references), abs=1e-6)
    assert set(SimilarityScorer(Listener())([Row("i", "abc", ())])) == {"CLIPScore"}


def test_a_matcher_reads_each_caption_of_an_image_once():
    import torch

    class Matcher:
        def match_ids(self, ids, texts):
            self.read = list(zip(ids, texts, strict=True))
            return [torch.tensor([[0.0, float(len(text))] for text in own]) for own in texts]

        def score(self, logits):
            return logits[:, 1]

    matcher = Matcher()
    rows = [Row("i", "abc", ()), Row("j", "ab", ()), Row("i", "abc", ()), Row("i", "x", ())]
    assert MatcherScorer(matcher)(rows)["ITM_logit"].tolist() == [3.0, 2.0, 3.0, 1.0]
    assert matcher.read == [("i", ["abc", "x"]), ("j", ["ab"])]


@pytest.fixture
def judgements(shared_data):
    folder = shared_data / "judgements"
    if not folder.is_dir():
        pytest.skip("the judgements (shared/data/judgements) are not beside the project")
    return folder


def test_the_reference_tools_correlations(judgements):
    """THumB, by pycocoevalcap 1.2 (``expected.json``): the same to nine digits; and people put Human first, n-grams last."""
    expected = json.loads((judgements / "expected.json").read_text())
    (thumb,) = read_judgements(judgements / "thumb")
    measured = measure(thumb, [TextScorer()])
    found = {(figure.protocol.name, figure.metric): figure.value for figure in measured.figures}
    for who in ("without Human", "with Human"):
        known = expected[f"thumb {who.replace('without', 'w/o').lower()}"]
        for rating in ("total", "P", "R"):
            for metric in ("Bleu_1", "Bleu_4", "ROUGE_L", "CIDEr"):
                assert found[f"thumb {rating}, {who}", metric] == pytest.approx(
                    100 * known[f"{metric} {rating}"], abs=1e-7
                )
    order = {key: sorted(means, key=means.get) for key, means in measured.systems.items()}
    assert order["people"][-1] == "Human"
    assert all(order[metric][0] == "Human" for metric in ("Bleu_1", "Bleu_4", "ROUGE_L", "CIDEr"))


@pytest.mark.slow
def test_published_digits_of_flickr8k_expert(judgements, tmp_path, capsys):
    words = ["bench", "people", str(judgements / "flickr8k-expert"), "--output_dir", str(tmp_path), "--json", "true"]
    assert main(words) == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)}
    expected = json.loads((judgements / "expected.json").read_text())["flickr8k-expert (3 ratings each)"]
    assert {key for key, row in rows.items() if row["published"]} == {"Bleu_1", "Bleu_4", "ROUGE_L", "CIDEr"}
    for metric, close in (("Bleu_1", 0.002), ("Bleu_4", 0.002), ("ROUGE_L", 1e-7), ("CIDEr", 1e-7)):
        # equal BLEU values differ by 1e-16, in other places than the reference tool's, which breaks ties in other ways
        assert rows[metric]["value"] == pytest.approx(100 * expected[f"{metric} c"], abs=close)
    assert not any(row["marked"] for row in rows.values())
    assert rows["CIDEr"]["judgements"] == 3 * 5664
    page = (tmp_path / "people.md").read_text()
    assert "| CIDEr | 43.89 | 43.9 | -0.01 |" in page
    assert (tmp_path / "people.png").read_bytes()[:4] == b"\x89PNG"


def test_part_of_the_crowds_judgements(judgements, capsys):
    """Sets by name, images by number, as a table; what is asked for in vain is a sentence."""
    words = ["bench", "people", str(judgements), "--only", "flickr8k-cf", "--limit", "8"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "published" in lines[0]
    assert any(line.startswith("flickr8k-cf") and "CIDEr" in line for line in lines)
    assert main(["bench", "people", str(judgements), "--only", "sugarcrepe"]) == 2
    assert "give --references, or --images" in capsys.readouterr().err
    assert main(["bench", "people", str(judgements), "--only", "pascal"]) == 2
    assert main(["bench"]) == 2
    assert main(["bench", "people"]) == 2


def test_ratings_that_are_all_equal_order_nothing(tmp_path, capsys):
    """No correlation is defined then; JSON has no NaN."""
    rows = [{"image": f"{n}.jpg", "candidate": f"a dog {n}", "refs": ["a dog runs"], "ratings": [1]} for n in range(3)]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["bench", "people", str(path), "--json", "--output_dir", str(tmp_path / "out")]) == 0

    def refuse(word):
        raise AssertionError(word)

    for text in (capsys.readouterr().out, (tmp_path / "out" / "people.json").read_text()):
        assert {row["value"] for row in json.loads(text, parse_constant=refuse)} == {None}
    assert "| CIDEr | - |" in (tmp_path / "out" / "people.md").read_text()


def test_too_few_ratings_have_no_statistic():
    """They ended the command in a traceback, and the sets measured before were lost."""
    one = Judgements("flickr8k-expert", (Rated("i", "x", ("r",), (1.0,)),))
    assert np.isnan(figures(one, Given(x=1))["flickr8k-expert", "given"].value)
    rows = [Rated("i", text, ("r",), (rating,), "Human", {"P": 1.0, "R": 1.0}) for text, rating in (("x", 1), ("y", 2))]
    found = figures(Judgements("thumb", tuple(rows)), Given(x=1, y=2))
    without = [figure.value for (name, _), figure in found.items() if "without Human" in name]
    assert len(without) == 3
    assert np.isnan(without).all()
