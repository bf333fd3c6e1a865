import json
import logging
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.captions import WORDS, coco, odd_captions, peer
from tellapart.errors import UsageError
from tellapart.metrics.coco import coco_metrics
from tellapart.metrics.frequencies import DocumentFrequencies

REFERENCES = {"7": ["A dog runs.", "the dog is running"], "9": ["Two cats on a sofa.", "two cats"], "x": ["a red bus"]}


def assert_equal(captions, references):
    corpus, per_image = coco_metrics(captions, references, tokenizer=list)
    for metric, (value, values) in peer(captions, references).items():
        assert corpus[metric] == pytest.approx(value, abs=1e-12, rel=0), metric
        found = [per_image[name][metric] for name in captions]
        np.testing.assert_allclose(found, values, rtol=0, atol=1e-9, err_msg=metric)


@pytest.mark.parametrize(
    ("images", "seed", "references"), [(2, 0, 1), (30, 1, 5), (150, 2, 5), (40, 3, 40), (400, 4, 2)]
)
def test_equals_pycocoevalcap_on_odd_captions(images, seed, references):
    assert_equal(*odd_captions(images, seed, references=references))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(WORDS[:4]), max_size=8),
            st.lists(st.lists(st.sampled_from(WORDS[:4]), max_size=8), min_size=1, max_size=3),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_equals_pycocoevalcap_on_any_captions(rows):
    captions = {f"{i}": " ".join(words) for i, (words, _) in enumerate(rows)}
    assert_equal(captions, {f"{i}": [" ".join(words) for words in texts] for i, (_, texts) in enumerate(rows)})


def test_equals_pycocoevalcap_where_all_captions_are_empty():
    captions, references = {"a": "", "b": ""}, {"a": ["", ""], "b": [""]}
    assert_equal(captions, references)
    assert coco_metrics(captions, references)[0]["CIDEr"] == 0


def test_equals_pycocoevalcap_on_very_long_captions():
    long = " ".join(f"w{i % 7} x" for i in range(200))  # 400 words, most n-grams more than 255 times in two references
    assert_equal({"a": long, "b": "w1 x"}, {"a": ["w1 x w2 x", " ".join(["x"] * 300)], "b": [long, "x"]})


@pytest.mark.parametrize("results", ["human", "shuffled", "degenerate"])
def test_equals_the_reference_tool_on_coco(shared_data, results):
    captions, references, expected = coco(shared_data / "coco-captions", results)
    corpus, per_image = coco_metrics(captions, references, tokenizer=list)
    assert len(per_image) == 2500
    for metric in ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"):
        assert corpus[metric] == pytest.approx(expected["corpus"][metric], abs=1e-12, rel=0), metric
        values = [row[metric] for row in per_image.values()]
        np.testing.assert_allclose(values, [row[metric] for row in expected["per_image"].values()], rtol=0, atol=1e-9)


def test_perfect_captions_and_columns(capsys):
    corpus, per_image = coco_metrics({name: texts[0] for name, texts in REFERENCES.items()}, REFERENCES)
    assert [*corpus] == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"]
    assert corpus["Bleu_3"] == pytest.approx(1)
    assert corpus["ROUGE_L"] == pytest.approx(1)
    assert corpus["CIDEr"] == pytest.approx(sum(row["CIDEr"] for row in per_image.values()) / 3)
    assert capsys.readouterr().out == ""
    assert all(type(value) is float for value in [*corpus.values(), *per_image["7"].values()])
    json.dumps(per_image)


def test_values_stay_with_their_image_whatever_the_order():
    captions = {"x": "a red bus", "7": "nothing alike", "9": "two cats"}
    _, per_image = coco_metrics(captions, REFERENCES)
    assert [*per_image] == ["x", "7", "9"]
    assert per_image["x"]["ROUGE_L"] == 1
    assert per_image["7"]["ROUGE_L"] == 0
    # CIDEr of "two cats": orders 1 and 2 match its second reference (cosine 1 each), and the first partly
    _, swapped = coco_metrics(dict(reversed(captions.items())), dict(reversed(REFERENCES.items())))
    assert {name: pytest.approx(row) for name, row in per_image.items()} == swapped


def test_different_ids_are_listed():
    with pytest.raises(UsageError, match=r"2 without a caption \('9', 'x'\) and 1 without references \('8'\)"):
        coco_metrics({"7": "a", "8": "b"}, REFERENCES)
    with pytest.raises(UsageError, match="image '7' has no references"):
        coco_metrics({"7": "a"}, {"7": []})
    with pytest.raises(UsageError, match="no captions"):
        coco_metrics({}, {})


def test_cider_of_one_image_is_refused_and_of_few_warned(caplog):
    caplog.set_level(logging.WARNING)
    corpus, _ = coco_metrics({"7": "a dog runs"}, {"7": REFERENCES["7"]})
    assert "CIDEr" not in corpus
    assert "CIDEr is left out" in caplog.text
    frequencies = DocumentFrequencies.from_references(REFERENCES, end="")
    corpus, _ = coco_metrics({"7": "a dog runs"}, {"7": REFERENCES["7"]}, frequencies=frequencies)
    assert corpus["CIDEr"] > 1
    caplog.clear()
    coco_metrics(dict.fromkeys(REFERENCES, "a"), REFERENCES)
    assert "only 3 images" in caplog.text


def test_text_metrics_import_no_torch():
    modules = ["ptb", "cider", "bleu", "rouge", "pairwise", "coco", "scores", "diversity", "style", "chair"]
    modules += ["frequencies", "lexer", "meteor", "retrieval", "spice"]
    code = (
        "import sys\n"
        + "".join(f"import tellapart.metrics.{m}\n" for m in modules)
        + "assert not {'torch', 'numba', 'transformers', 'pycocoevalcap', 'nltk'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
