"""Reports, model cards and pushing from the command line, on runs of tiny models."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from tellapart.cli.main import main


def run(*words) -> int:
    return main([str(word) for word in words])


class Hub:
    """Stands in for the hub's client; ``broken`` is what an upload raises."""

    broken: Exception | None = None
    sent: list = []  # noqa: RUF012  # shared by the instances on purpose: commands make their own

    def create_repo(self, **options):
        Hub.sent.append(options)

    def upload_folder(self, *, folder_path, **options):
        if Hub.broken is not None:
            raise Hub.broken
        files = {path.name: path.read_bytes() for path in folder_path.iterdir()}
        Hub.sent.append(options | {"files": files})
        return "https://hub/commit/1"


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    Hub.sent, Hub.broken = [], None
    return Hub


@pytest.fixture(scope="module")
def trained(materials, tmp_path_factory):
    """A finished run, whose rates are such that captions change."""
    folder = tmp_path_factory.mktemp("reported")
    recipe = materials.recipe(folder, "scst", learning_rate=3e-2)
    assert run("train", recipe, "--save_steps", 1) == 0
    return folder / "scst"


def test_a_run_keeps_its_start_and_its_card(trained):
    (own,), (start,) = (trained / "eval").iterdir(), (trained / "start" / "eval").iterdir()
    assert own.name == start.name
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    kept = json.loads((start / "metrics.json").read_text())
    assert kept["name"] == "start model"
    first = {name.removeprefix("eval_"): value for name, value in lines[0].items() if name.startswith("eval_")}
    assert kept["metrics"] == pytest.approx(first)
    card = (trained / "README.md").read_text()
    assert "| start model |" in card
    assert "| rewards/clip\\_s |" in card
    assert card.startswith("---\nlibrary_name: transformers\n")
    samples = card.partition("## Samples")[2]
    assert "| - |" not in samples  # what people said is there, too


def test_the_report_of_one_run_lays_it_beside_its_start(trained, tmp_path, capsys):
    assert run("report", trained, "--output", tmp_path / "page.html") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    page = (tmp_path / "page.html").read_text()
    rows = re.findall(r'<th scope="row">.*?<bdi>([^<]*)</bdi>', page.partition("</table>")[0])
    assert rows == ["start model", "scst"]
    assert "Reward&#39;s parts, as applied" in page
    assert page.count("<article") == 6
    assert "0.5 × cider_d" in page
    assert run("report", trained, "--output", tmp_path / "alone.html", "--start", "false") == 0
    alone = (tmp_path / "alone.html").read_text().partition("</table>")[0]
    assert re.findall(r'<th scope="row">.*?<bdi>([^<]*)</bdi>', alone) == ["scst"]


def test_another_split_is_shown_and_described_by_its_own_images(trained, tmp_path, capsys):
    """``score --split`` measures on images that the run's recipe does not name."""
    shutil.copytree(trained, tmp_path / "run")
    assert run("score", tmp_path / "run", "--split", "train", "--start") == 0
    chosen = ("--protocol", "train")
    assert run("report", tmp_path / "run", *chosen, "--output", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_text().count("<article") == 8
    assert run("report", "--card", tmp_path / "run", *chosen) == 0
    assert "| - |" not in (tmp_path / "run" / "README.md").read_text().partition("## Samples")[2]
    capsys.readouterr()
    assert run("report", tmp_path / "run", *chosen, "--split", "val") == 2
    assert "name the data and the split" in capsys.readouterr().err
    assert run("report", tmp_path / "run", *chosen, "--output", tmp_path / "page.pdf") == 2
    assert "page.pdf', but the page is HTML: give a name that ends in .html." in capsys.readouterr().err
    assert not (tmp_path / "page.pdf").exists()
    for name in ("data", "image_column"):
        assert run("report", tmp_path / "run", *chosen, "--num_images", "0", f"--{name}", tmp_path) == 2
        assert f"--{name} does nothing with --num_images 0" in capsys.readouterr().err


def test_cards_are_written_anew_and_those_of_others_stay(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    card = tmp_path / "run" / "README.md"
    before = card.read_text()
    card.unlink()
    assert run("report", "--card", "true", tmp_path / "run") == 0
    assert card.read_text() == before.replace("# scst", "# run").replace("name: scst", "name: run")
    assert run("report", "--card", tmp_path / "run", "--output", "card.md") == 2
    assert "--output does nothing with --card" in capsys.readouterr().err
    assert run("report", "--card", tmp_path / "run", "--data", tmp_path / "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err
    assert run("report", "--card", tmp_path / "run", "--images", tmp_path / "absent") == 2
    assert "absent does not exist" in capsys.readouterr().err
    card.write_text("mine")
    capsys.readouterr()
    assert run("report", tmp_path / "run", "--card", "true") == 0
    assert "README.md was not written by tellapart and stays as it is." in capsys.readouterr().err
    assert card.read_text() == "mine"


def test_a_resumed_run_keeps_the_first_start(trained, materials, tmp_path):
    shutil.copytree(trained, tmp_path / "scst")
    kept = (tmp_path / "scst" / "start").rglob("metrics.json")
    before = [path.read_bytes() for path in kept]
    words = ("--resume_from_checkpoint", "last", "--max_steps", 3, "--output_dir", tmp_path / "scst")
    assert run("train", materials.recipe(tmp_path, "scst", learning_rate=3e-2), *words) == 0
    assert [path.read_bytes() for path in (tmp_path / "scst" / "start").rglob("metrics.json")] == before


def test_pushing_sends_the_selected_captioner_and_the_card(trained, hub, capsys):
    assert run("push", trained, "--hub_model_id", "me/mine", "--hub_private_repo", "true") == 0
    made, sent = hub.sent
    assert made == {"repo_id": "me/mine", "private": True, "exist_ok": True}
    assert {"config.json", "model.safetensors", "README.md", "tellapart.json"} <= set(sent["files"])
    newest = trained / "checkpoint-2" / "captioner" / "model.safetensors"
    assert sent["files"]["model.safetensors"] == newest.read_bytes()
    card = sent["files"]["README.md"].decode()
    assert 'name = "me/mine"' in card
    assert str(trained.parent) not in card
    assert capsys.readouterr().out == "https://hub/commit/1\n"


def test_a_dry_run_pushes_nothing(trained, hub, capsys):
    assert run("push", trained, "--hub_model_id", "me/mine", "--dry_run", "true") == 0
    assert "me/mine would get README.md and, from" in capsys.readouterr().out
    assert not hub.sent


def test_train_pushes_and_loses_nothing_if_that_fails(materials, tmp_path, hub, capsys):
    hub.broken = ConnectionError("no route")
    recipe = materials.recipe(tmp_path, "xe", max_steps=1)
    words = ("--push_to_hub", "true", "--hub_model_id", "me/mine")
    assert run("train", recipe, *words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"error: the run in {tmp_path / 'xe'} is complete, but was not pushed: the Hugging Face hub")
    assert said.endswith(f"then run tellapart push {tmp_path / 'xe'} --hub_model_id me/mine")
    assert (tmp_path / "xe" / "checkpoint-1" / "captioner" / "model.safetensors").is_file()
    assert (tmp_path / "xe" / "README.md").is_file()
    hub.broken = None
    assert run("push", tmp_path / "xe", "--hub_model_id", "me/mine") == 0


def test_what_cannot_be_pushed_is_told_before_training(materials, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    recipe = materials.recipe(tmp_path, "xe")
    wrong = {
        ("--push_to_hub", "true", "--hub_model_id", "me/mine"): "no one is logged in",
        ("--push_to_hub", "true"): "give --hub_model_id owner/name",
        ("--hub_model_id", "me/mine"): "add --push_to_hub",
    }
    for words, sentence in wrong.items():
        assert run("train", recipe, *words) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "xe").exists()
    dry = ("--hub_model_id", "me/mine", "--dry_run", "true")
    assert run("push", tmp_path / "gone", *dry) == 2
    assert f"{tmp_path / 'gone'} does not exist: name the folder of a run" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run("push", tmp_path / "empty", *dry) == 2
    assert "holds no trained captioner" in capsys.readouterr().err
