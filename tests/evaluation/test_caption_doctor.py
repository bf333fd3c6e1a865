"""The doctor's text rules on captions of any origin: by hand, and on published captioners where they are at hand."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from tellapart.cli.main import main
from tellapart.evaluation.caption_doctor import caption_figures, check_captions
from tellapart.verdicts.captions import HUMAN, examine_captions
from tellapart.verdicts.rules import RULES


def test_figures_by_hand():
    figures = caption_figures(["A dog on a", "a dog", "a dog", "the the the cat"])
    assert figures == {
        "captions": 4.0,
        "types": 5.0,
        "types_in_1000": 5.0,
        "distinct_in_1000": 75.0,
        "most_common_in_1000": 50.0,
        "repetition": 100 * 1 / 8,
        "bad_endings": 25.0,
        "openers": 0.0,
        "mean_length": 3.0,
    }


def test_counts_do_not_grow_with_the_set():
    captions = [f"word{place} number{place % 7}" for place in range(1000)]
    once, twice = caption_figures(captions), caption_figures(captions * 2 + captions[:10])
    assert once["types_in_1000"] == twice["types_in_1000"] == 1007
    assert once["distinct_in_1000"] == twice["distinct_in_1000"] == 100.0


def test_limits_are_those_of_the_rules_on_logs():
    """Five points more bad endings than people is no finding, a little more is one."""
    limit = next(rule for rule in RULES if rule.name == "bad endings").limit(HUMAN["bad_endings"])
    assert limit == pytest.approx(5.4)
    assert not examine_captions({"bad_endings": limit})
    (verdict,) = examine_captions({"bad_endings": limit + 0.1})
    assert verdict.text.startswith("bad endings: Captions end on words like 'a'")
    assert verdict.text.endswith("(bad_endings 5.5; people 0.4, limit 5.4).")


def test_every_rule_is_broken_by_something():
    long = [f"a {' '.join(f'w{place}n{k}' for k in range(40))}" for place in range(1200)]
    short = [f"w{place}" for place in range(1200)]
    people = [[f"a dog{place} runs over the grass{place} of a park"] for place in range(1200)]
    broken = {verdict.rule.name for verdict in check_captions(["a a a"] * 1200, people).verdicts}
    assert broken == {"bad endings", "repetition", "one caption", "few distinct", "few words", "shorter"}
    assert [verdict.rule.name for verdict in check_captions(short, people).verdicts] == ["shorter"]
    grown = check_captions(long, people)
    assert [verdict.rule.name for verdict in grown.verdicts] == ["longer"]
    assert not grown.wrong  # a change that may be intended


def test_few_captions_have_few_words_without_fault():
    """Below a thousand captions COCO's number of words says nothing; references of the same images do."""
    captions = [f"a dog number{place}" for place in range(200)]
    assert not check_captions(captions).verdicts
    assert not check_captions(captions, [[text] for text in captions]).verdicts


def test_captions_in_a_file(tmp_path, capsys):
    path = tmp_path / "captions.json"
    path.write_text(json.dumps([{"image_id": i, "caption": f"a dog{i} on a"} for i in range(120)]))
    assert main(["doctor", str(path)]) == 0
    told = capsys.readouterr().out
    assert "120 captions, compared with COCO captions" in told
    assert "bad endings" in told
    assert main(["doctor", str(path), "--strict", "true"]) == 1
    references = {
        "images": [{"id": i} for i in range(120)],
        "annotations": [{"id": i, "image_id": i, "caption": f"a dog{i} on a mat"} for i in range(120)],
    }
    (tmp_path / "references.json").write_text(json.dumps(references))
    capsys.readouterr()
    assert main(["doctor", str(path), "--references", str(tmp_path / "references.json")]) == 0
    assert "compared with their references" in capsys.readouterr().out


def test_references_of_different_length_and_images_without_any():
    """First references have the 1,000 words of a TTR, second ones have not; one image has none."""
    people = [[f"a dog runs over the grass{place}", f"two dogs{place}"] for place in range(200)]
    checked = check_captions([f"a dog runs over the park{place}" for place in range(201)], [*people, []])
    assert checked.human["mean_length"] == pytest.approx((6 + 2) / 2)
    assert "TTR1" not in checked.human


def test_options_that_would_do_nothing(tmp_path, capsys):
    captions = tmp_path / "captions.json"
    captions.write_text(json.dumps([{"image_id": 1, "caption": "a dog"}]))
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "reward": 1.0}\n')
    for words, said in (
        ((log, "--references", captions), f"--references does nothing to {log}, which is not a file of captions"),
        ((tmp_path, "--split", "val"), f"--split does nothing to {tmp_path}, which is not a file of captions"),
        ((captions, "--split", "val"), "--split does nothing without --references"),
    ):
        assert main(["doctor", *map(str, words)]) == 2
        assert said in capsys.readouterr().err


@pytest.fixture
def published(shared_data):
    folder = shared_data / "results"
    if not folder.is_dir():
        pytest.skip("captions of published captioners (shared/data/results) are not beside the project")
    return folder


def said(path, images):
    found = {row["image_id"]: row["caption"] for row in json.loads(path.read_text())}
    return [found[image] for image in images]


def test_what_is_known_of_published_captioners(published):
    """M2 cuts a third of its captions, Liu 2017 says few words; people, BLIP-2 and Dai 2017 do neither. On 2,000 images."""
    references = defaultdict(list)
    for row in json.loads((published / "karpathy-test/references.json").read_text())["annotations"]:
        references[row["image_id"]].append(row["caption"])
    images = list(references)[:2000]
    people = [references[image][1:5] for image in images]

    def broken(captions):
        return [verdict.rule.name for verdict in check_captions(captions, people).verdicts]

    m2 = said(published / "karpathy-test/m2_transformer.json", images)
    assert broken(m2) == ["bad endings"]
    assert 30 < check_captions(m2).figures["bad_endings"] < 40
    systems = published / "val2014-systems"
    assert broken(said(systems / "Liu-et-al-2017.json", images)) == ["few distinct", "few words"]
    for path in (published / "karpathy-test/blip2_results_xe.json", systems / "Dai-et-al-2017.json"):
        assert broken(said(path, images)) == []
    assert broken([references[image][0] for image in images]) == []


@pytest.mark.slow
def test_types_of_the_paper(published):
    """van Miltenburg et al. 2018: 598 types of Liu 2017, of which one is the full stop; 1,922 of Dai 2017 by their tokenizer."""
    for name, types, ratios in (("Liu-et-al-2017", 597, (0.17, 0.38)), ("Dai-et-al-2017", 1923, (0.23, 0.55))):
        rows = json.loads((published / f"val2014-systems/{name}.json").read_text())
        figures = caption_figures([row["caption"] for row in rows])
        assert figures["types"] == types
        # a full stop that counts as a word makes up to 0.02
        assert (figures["TTR1"], figures["TTR2"]) == (
            pytest.approx(ratios[0], abs=0.02),
            pytest.approx(ratios[1], abs=0.025),
        )


def test_of_a_few_captions_each_is_a_large_share():
    """Four that all differ were called collapsed."""
    few = ["a dog runs on grass", "two cats sleep", "a red car in a street", "people at a table with food"]
    assert check_captions(few).verdicts == []
    assert check_captions(few * 250).wrong


def test_captions_of_images_without_references_are_left_out():
    few = [f"a dog number{i} runs with ball{i}" for i in range(8)]
    references = [[text] for text in few] + [[] for _ in range(992)]
    found = check_captions(few + ["a dog"] * 992, references)
    assert found.figures["captions"] == 8
    assert not found.wrong
