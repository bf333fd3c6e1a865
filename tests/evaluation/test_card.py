"""The model card: a header that the hub's own reader accepts, figures as measured, and no markup out of captions."""

import json
import shutil
from dataclasses import replace

import pytest
import yaml
from evaluation_fakes import REFERENCES, toy_result

from tellapart.errors import UsageError
from tellapart.evaluation.card import CARD_FILE, card_text, write_card
from tellapart.evaluation.card.citations import citations
from tellapart.evaluation.card.page import base_model, failures
from tellapart.evaluation.report.record import read_record
from tellapart.objectives import METHODS

EVIL = "a <script>alert(1)</script> | `x` *b* [l](u) 猫 😀\nnext"


def trained(folder, *, base: str = "owner/captioner", data: str = "owner/photos", **recipe):
    """A run's folder: before 0.5, after its own random CIDEr."""
    captions = dict.fromkeys(REFERENCES, EVIL)
    result = toy_result("dico", seed=1, captions=captions)
    start = toy_result("start model", seed=0)
    metrics = result.metrics | {"unfinished": 12.0, "bad_endings": 0.5}
    replace(result, metrics=metrics).save(folder)
    replace(start, metrics=start.metrics | {"unfinished": 1.0}).save(folder / "start")
    told = {
        "method": "dico",
        "captioner": {"model_name_or_path": base},
        "data": {"path": data, "split": "train"},
        "listener": {"path": str(folder / "secret" / "listener")},
        "reward": {"clip_s": 1.0, "cider_d": 0.0},
        "objective": {"beta": 0.2},
    }
    record = {
        "recipe": told | recipe,
        "config": {"best_floor": {"CIDEr": 0.6}},
        "seed": 3,
        "versions": {"torch": "2.9"},
    }
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    lines = [{"step": 0, "eval_CIDEr": 1.0}, {"step": 1, "reward": 1.0, "rewards/clip_s": 1.0}]
    lines += [{"step": 9, "eval_CIDEr": 0.4}, {"step": 9, "reward": 2.0, "rewards/clip_s": 2.0}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    captioner = folder / "best" / "captioner"
    captioner.mkdir(parents=True)
    (captioner / "tellapart.json").write_text(json.dumps({"model_type": "blip", "prompt": ""}), encoding="utf-8")
    return folder


def header_of(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def test_the_header_is_what_the_hub_reads(tmp_path):
    from huggingface_hub import ModelCard

    text = card_text(trained(tmp_path))
    told = header_of(text)
    assert (told["library_name"], told["pipeline_tag"]) == ("transformers", "image-to-text")
    assert (told["base_model"], told["base_model_relation"]) == ("owner/captioner", "finetune")
    assert told["datasets"] == ["owner/photos"]
    assert {"image-captioning", "tellapart", "dico"} == set(told["tags"])
    assert "license" not in told
    data = ModelCard(text).data  # the hub's own reader
    found = {result.metric_type: result.metric_value for result in data.eval_results}
    cider = toy_result("dico", seed=1).metrics["CIDEr"]
    assert found["cider"] == pytest.approx(round(100 * cider, 1))
    assert {result.dataset_name for result in data.eval_results} == {"toy test"}


def test_before_and_after_stand_side_by_side(tmp_path):
    text = card_text(trained(tmp_path))
    rows = [line for line in text.splitlines() if line.startswith(("| start model |", "| dico |"))]
    before, after = (toy_result("x", seed=seed).metrics["CIDEr"] for seed in (0, 1))
    assert f"| {100 * before:.1f} |" in rows[0]
    assert f"| {100 * after:.1f} ({100 * (after - before):+.1f} [" in rows[1]
    assert "toy test: 5 images" in text
    assert "1 × clip\\_s" in text
    assert "| reward | 1.0000 | 2.0000 |" in text


def test_failures_come_from_figures_and_from_the_log(tmp_path):
    text = card_text(trained(tmp_path))
    assert "12.0 % of its captions are cut at the longest length (before training: 1.0)." in text
    assert "stop on a word" not in text  # 0.5 % is below what a card tells of
    assert "From step 9: Captions no longer read like the references" in text
    told, alarms = failures({"grammatical": 99.5, "bad_endings": 0.0}, None, [])
    assert (told, alarms) == ([], [])


def test_captions_are_text_in_markdown(tmp_path):
    text = card_text(trained(tmp_path), references={i: [f"a person says {i} | so"] for i in REFERENCES})
    samples = text.partition("## Samples")[2].partition("## How")[0]
    assert "<script" not in samples
    assert "&lt;script&gt;alert(1)&lt;/script&gt; \\| \\`x\\` \\*b\\* \\[l\\](u) 猫 😀 next" in samples
    rows = [line for line in samples.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(REFERENCES)
    assert all(line.replace("\\|", "").count("|") == 5 for line in rows)


def test_paths_of_the_machine_stay_on_it(tmp_path):
    (tmp_path / "private" / "photos").mkdir(parents=True)
    run = trained(tmp_path / "run", base=str(tmp_path / "private"), data=str(tmp_path / "private" / "photos"))
    text = card_text(run)
    assert str(tmp_path) not in text
    assert not {"base_model", "datasets"} & header_of(text).keys()
    assert "It began from a model called private." in text


def test_a_run_that_began_from_a_run_names_the_first_model(tmp_path):
    first = trained(tmp_path / "xe", base="owner/first")
    assert header_of(card_text(trained(tmp_path / "dico", base=str(first))))["base_model"] == "owner/first"


def test_a_card_in_somebodys_own_words_stays(tmp_path):
    run = trained(tmp_path)
    assert write_card(run) == run / CARD_FILE
    assert write_card(run, name="me/mine") == run / CARD_FILE  # ours is written anew
    assert "--captioner me/mine" in (run / CARD_FILE).read_text(encoding="utf-8")
    (run / CARD_FILE).write_text("my own words", encoding="utf-8")
    assert write_card(run) is None
    assert (run / CARD_FILE).read_text(encoding="utf-8") == "my own words"


def test_a_run_that_was_never_measured_says_so_and_what_is_no_run_is_refused(tmp_path):
    run = trained(tmp_path / "run")
    for name in ("eval", "start"):
        shutil.rmtree(run / name)
    assert "It was not measured" in card_text(run)
    assert "model-index" not in header_of(card_text(run))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="is not a run of tellapart train"):
        card_text(tmp_path / "empty")


def test_adapters_need_peft_and_lstms_need_tellapart(tmp_path):
    run = trained(tmp_path)
    captioner = run / "best" / "captioner"
    (captioner / "adapter_config.json").write_text("{}", encoding="utf-8")
    text = card_text(run, name="me/mine")
    assert (header_of(text)["library_name"], header_of(text)["base_model_relation"]) == ("peft", "adapter")
    assert 'PeftModel.from_pretrained(model, "me/mine")' in text
    assert 'AutoModelForImageTextToText.from_pretrained("owner/captioner")' in text
    (captioner / "adapter_config.json").unlink()
    (captioner / "tellapart.json").write_text(json.dumps({"model_type": "att2in2"}), encoding="utf-8")
    text = card_text(run)
    assert header_of(text)["library_name"] == "tellapart"
    assert "from transformers" not in text
    (captioner / "tellapart.json").write_text(json.dumps({"model_type": "vision-encoder-decoder"}), encoding="utf-8")
    assert header_of(card_text(run))["library_name"] == "transformers"
    config = {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "encoded_clip"}}
    (captioner / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert header_of(card_text(run))["library_name"] == "tellapart"


def test_every_method_can_be_cited():
    for name, method in METHODS.items():
        assert citations(method.paper, []), name
    assert [entry.partition("{")[2].partition(",")[0] for entry in citations("Chen & Jin (2020)", ["cider_d"])] == [
        "chen2020",
        "vedantam2015",
    ]


def test_listeners_are_those_that_the_training_read(tmp_path):
    """The recipe's and a reward's own, where both are read; not one that only evaluates."""

    def told(**recipe):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        record = read_record(trained(folder, **{"listener": {"path": "owner/first"}, **recipe}))
        assert record is not None
        lines = dict(record.lines())
        assert ("owner/first" in card_text(folder)) == ("owner/first" in lines.get("Reward's listener", ""))
        return lines.get("Reward's listener")

    own = {"name": "pac_s", "weight": 1.0, "listener": {"path": "owner/second"}}
    both = [{"name": "clip_s", "weight": 1.0}, own]
    assert told(reward=both) == "owner/first, owner/second"
    assert told(reward=[own]) == "owner/second"
    assert told(reward=both, listener=None) == "owner/second"
    assert told(reward=[{"name": "cider_d", "weight": 1.0}]) is None
    assert told(reward=[{"name": "cider_d", "weight": 1.0}, {"name": "clip_s", "weight": 0.0}]) is None
    assert told(method="vlrm_rs", reward=[{"name": "itm", "weight": 1.0}]) == "owner/first"
    assert told(reward=[{"name": "one of a plugin", "weight": 1.0}]) == "owner/first"


def test_the_first_model_of_a_run_below_runs_is_found(tmp_path, monkeypatch):
    """Where recipes put it; one that is not here is no model of the hub."""
    monkeypatch.chdir(tmp_path)
    for name, base in (("a", "owner/captioner"), ("b", "runs/a"), ("c", "runs/none")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        trained(tmp_path / "runs" / name, base=base)
    assert [base_model(read_record(tmp_path / "runs" / name)) for name in "abc"] == ["owner/captioner"] * 2 + [None]
