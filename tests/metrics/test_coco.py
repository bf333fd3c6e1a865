import json
import logging
import subprocess
import sys

import pytest

from tellapart.errors import UsageError
from tellapart.metrics.cider import DocumentFrequencies
from tellapart.metrics.coco import coco_metrics

REFERENCES = {"7": ["A dog runs.", "the dog is running"], "9": ["Two cats on a sofa.", "two cats"], "x": ["a red bus"]}


def test_perfect_captions_and_columns(capsys):
    corpus, per_image = coco_metrics({name: texts[0] for name, texts in REFERENCES.items()}, REFERENCES)
    assert [*corpus] == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"]
    assert corpus["Bleu_3"] == pytest.approx(1)
    assert corpus["ROUGE_L"] == pytest.approx(1)
    assert corpus["CIDEr"] == pytest.approx(sum(row["CIDEr"] for row in per_image.values()) / 3)
    assert capsys.readouterr().out == ""


def test_values_stay_with_their_image_whatever_the_order():
    captions = {"x": "a red bus", "7": "nothing alike", "9": "two cats"}
    _, per_image = coco_metrics(captions, REFERENCES)
    assert [*per_image] == ["x", "7", "9"]
    assert per_image["x"]["ROUGE_L"] == 1
    assert per_image["7"]["ROUGE_L"] == 0
    # CIDEr of "two cats": orders 1 and 2 match its second reference (cosine 1 each), and the first partly
    _, swapped = coco_metrics(dict(reversed(captions.items())), dict(reversed(REFERENCES.items())))
    assert {name: pytest.approx(row) for name, row in per_image.items()} == swapped


def test_equals_pycocoevalcap_where_the_tokenizers_agree(shared_data):
    folder = shared_data / "coco-captions"
    words = json.loads((folder / "ptb_tokens.json").read_text())
    expected = json.loads((folder / "expected_pycocoevalcap_1.2.json").read_text())["human"]
    references: dict[str, list[str]] = {}
    for row in json.loads((folder / "references.json").read_text())["annotations"]:
        references.setdefault(str(row["image_id"]), []).append(words[str(row["id"])])
    first: dict[str, str] = {}
    for row in json.loads((folder / "captions_val2017.json").read_text())["annotations"]:
        first.setdefault(str(row["image_id"]), words[str(row["id"])])
    corpus, per_image = coco_metrics(first, references)
    # PTB words such as "o'clock" or "u.s." lose an edge mark in our second pass, in some 1 % of the captions
    for metric, value in corpus.items():
        assert value == pytest.approx(expected["corpus"][metric], abs=2e-3), metric
    same = sum(abs(per_image[name]["ROUGE_L"] - row["ROUGE_L"]) < 1e-9 for name, row in expected["per_image"].items())
    assert same > 0.95 * len(per_image)


def test_different_ids_are_listed():
    with pytest.raises(UsageError, match=r"2 without a caption \('9', 'x'\) and 1 without references \('8'\)"):
        coco_metrics({"7": "a", "8": "b"}, REFERENCES)
    with pytest.raises(UsageError, match="image '7' has no references"):
        coco_metrics({"7": "a"}, {"7": []})
    with pytest.raises(UsageError, match="no captions"):
        coco_metrics({}, {})


def test_without_pycocoevalcap_columns_are_skipped(monkeypatch, caplog):
    for module in ("pycocoevalcap.bleu.bleu", "pycocoevalcap.rouge.rouge"):
        monkeypatch.setitem(sys.modules, module, None)
    corpus, _ = coco_metrics({name: texts[0] for name, texts in REFERENCES.items()}, REFERENCES)
    assert [*corpus] == ["CIDEr"]
    assert [r.getMessage() for r in caplog.records if "pip install tellapart[coco]" in r.getMessage()] != []


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
    modules = ["tokenizer", "cider", "bleu", "coco", "retrieval", "scores", "diversity"]
    code = (
        "import sys\n"
        + "".join(f"import tellapart.metrics.{m}\n" for m in modules)
        + "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
