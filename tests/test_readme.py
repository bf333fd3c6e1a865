"""The Python of README and tutorials is run as it stands there, on small data; links lead somewhere; every recipe is named."""

import re
from pathlib import Path

import pytest

from tellapart.cli.main import main
from tiny_models import tiny_ved

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIALS = {page.stem: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "tutorials").glob("*.md"))}
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))


def blocks(text: str, language: str) -> list[str]:
    """Its blocks of code in one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [block for kind, block in found if kind == language]


PYTHON = blocks(TUTORIALS["post_train"], "python")


def shortened(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, f"the page no longer says {old!r}"
        text = text.replace(old, new)
    return text


@pytest.mark.slow
def test_the_world_in_python(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    short = {'{"objective.beta": 0.1}': '{"objective.beta": 0.1, "data.size": "small", "training.max_steps": 2}'}
    exec(compile(shortened(PYTHON[0], short), "post_train.md", "exec"), {})
    assert "listener_R@1" in capsys.readouterr().out
    assert (tmp_path / "runs" / "z" / "checkpoint-2" / "captioner" / "model.safetensors").is_file()


def test_photos_in_python(tmp_path, monkeypatch, shared_data):
    monkeypatch.chdir(tmp_path)
    tiny_ved(tmp_path / "model")
    short = {
        '"data/coco/dataset_coco.json", split="train"': f"{str(shared_data / 'coco-mini/dataset_karpathy.json')!r}, "
        'split="train", limit=16',
        '"nlpconnect/vit-gpt2-image-captioning"': '"model"',
        "num_train_epochs=1": "max_steps=1",
    }
    exec(compile(shortened(PYTHON[1], short), "post_train.md", "exec"), {})
    assert (tmp_path / "runs" / "scst" / "checkpoint-1").is_dir()


def test_the_reward_of_the_tutorial_joins_a_recipe(tmp_path, capsys):
    plugin = tmp_path / "my_rewards.py"
    plugin.write_text(blocks(TUTORIALS["add_a_reward"], "python")[0])
    given = ["--plugin", str(plugin), "--reward.brevity", "0.2", "--reward.brevity.power", "0.5", "--print_config"]
    assert main(["train", "world_ved_dico", *given]) == 0
    assert re.search(r"name: brevity.*?power: 0.5", capsys.readouterr().out, flags=re.DOTALL)


def test_the_readmes_table_is_of_the_results():
    sources = {
        "usual captioner": ("world-truth", "| xe | - |"),
        "trained on a CLIP reward that is hacked": ("world", "| scst-CLIP (lr 0.0003) | last |"),
        "trained with DiCO on truth and likelihood": ("world-truth", "| truth | last |"),
        "`--apart`, 20 beams, no training": ("world-apart", "| apart |"),
        "DiCO and `--apart`, 10 beams": ("world-truth", "| truth, apart, 10 beams | last |"),
    }
    for name, (page, start) in sources.items():
        lines = (ROOT / "docs" / "results" / f"{page}.md").read_text(encoding="utf-8").splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith(start))
        head = next(line for line in reversed(lines[:at]) if line.startswith("| row |"))
        cells = dict(zip(head.split(" | "), lines[at].split(" | "), strict=True))
        row = next(line for line in README.splitlines() if line.startswith(f"| {name} |"))
        assert row == f"| {name} | {cells['exact_recall@1']} | {cells['truthful']} | {cells['grammatical']} |"


def test_the_readmes_selected_checkpoint_is_of_the_results():
    page = (ROOT / "docs" / "results" / "world-truth.md").read_text(encoding="utf-8")
    cells = next(line for line in page.splitlines() if line.startswith("| truth | selected |")).split(" | ")
    assert f"which has {cells[2]}, {cells[3]} and {cells[4]} in row 3" in " ".join(README.split())


def test_the_readmes_best_recipe_is_of_the_results():
    page = (ROOT / "docs" / "results" / "world-sharp.md").read_text(encoding="utf-8")
    cells = next(line for line in page.splitlines() if line.startswith("| sharp truth | last |")).split(" | ")
    assert f"`world_ved_dico_truth_sharp`, has [{cells[2]}, {cells[3]} and {cells[4]}](" in README


def anchors(page: Path) -> set[str]:
    """What a link may name behind ``#``: headings in small letters, spaces as hyphens, without signs."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_every_recipe_is_named_on_a_page(recipe):
    """A recipe that no page names is found by nobody. The changelog is no page: it names what came when, not what is for what."""
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    assert any(recipe.name in page.read_text(encoding="utf-8") for page in pages)
