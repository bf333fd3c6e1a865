"""``tellapart recipes``, and recipes by name from any folder."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.recipe.shipped import about, describe, find_recipe, shipped_files

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.stem: path for path in (ROOT / "recipes").glob("*.yaml")}


def test_the_list_names_every_recipe_in_a_line_of_100_columns(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[2:] if not line.startswith(" ")} == set(FILES)
    assert max(map(len, lines)) <= 100
    line = next(line for line in lines if line.startswith("world_ved_dico "))
    assert line.split(maxsplit=1)[1] == "DiCO with CLIP-S on the built-in world"


def test_the_list_as_json(capsys):
    assert main(["recipes", "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert set(found) == set(FILES)
    assert found["world_ved_dico"]["method"] == "dico"
    assert found["world_listener_pac"]["command"] == "train-listener"
    assert found["world_listener_pac"]["method"] is None
    assert Path(found["world_ved_dico"]["path"]).samefile(FILES["world_ved_dico"])


def test_every_recipe_says_what_it_is_in_a_few_words():
    for name in FILES:
        assert 10 < len(describe(name).about) <= 120, name


def test_the_first_clause_of_a_comment_without_citations():
    text = "# yaml-language-server: $schema=schema.json\n# DiCO (A et al., BMVC 2024) of\n# Cho et al. (B) on photos: row\nx: 1\n"
    assert about(text) == "DiCO of Cho et al. on photos"


def test_a_recipe_is_printed_and_copied_with_the_schemas_it_names(tmp_path, capsys):
    assert main(["recipes", "world_ved_dico"]) == 0
    assert capsys.readouterr().out.strip() == FILES["world_ved_dico"].read_text().strip()
    words = ["recipes", "world_ved_dico", "world_ved_xe", "--copy", str(tmp_path / "mine")]
    assert main(words) == 0
    copied = sorted(path.name for path in (tmp_path / "mine").iterdir())
    assert copied == ["listener_schema.json", "schema.json", "world_ved_dico.yaml", "world_ved_xe.yaml"]
    assert (tmp_path / "mine" / "world_ved_xe.yaml").read_text() == FILES["world_ved_xe"].read_text()
    assert "tellapart train " in capsys.readouterr().err
    assert main(words) == 2
    assert "exists: name another folder for --copy" in capsys.readouterr().err
    assert main(["recipes", "--json", "--copy", str(tmp_path / "other")]) == 2
    assert "leave one of the two out" in capsys.readouterr().err


def test_recipes_are_found_by_name_from_any_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for word in ("world_ved_dico", "recipes/world_ved_dico.yaml"):
        assert main(["train", word, "--print_config"]) == 0
        assert "method: dico" in capsys.readouterr().out
    assert main(["frontier", "world_ved_dico", "--grid", "objective.beta=0.1", "--seeds", "1", "--dry_run"]) == 0
    assert main(["train-listener", "world_listener_pac", "--print_config"]) == 0


def test_a_file_of_that_path_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "world_ved_dico.yaml").write_text("method: xe\n")
    assert find_recipe("recipes/world_ved_dico.yaml") == Path("recipes/world_ved_dico.yaml")


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("world_ved_dica", "did you mean world_ved_dico?"),
        ("recipes/world_ved_dica.yaml", "recipes/world_ved_dica.yaml does not exist: did you mean world_ved_dico?"),
        ("mine/my_recipy.yaml", "the recipe mine/my_recipy.yaml does not exist: did you mean mine/my_recipe.yaml?"),
        ("qqq", "name a YAML file, or a recipe that tellapart recipes lists"),
        ("qqq.yaml", "qqq.yaml does not exist: name a YAML file, or a recipe that tellapart recipes lists"),
    ],
)
def test_a_misspelt_recipe_names_the_closest(word, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_recipe.yaml").write_text("method: xe\n")
    assert main(["train", word]) == 2
    assert sentence in capsys.readouterr().err


def test_an_unknown_name_is_refused_by_the_list(capsys):
    assert main(["recipes", "world_ved_dica"]) == 2
    assert "'world_ved_dica' is not a shipped recipe: did you mean world_ved_dico?" in capsys.readouterr().err
    with pytest.raises(UsageError, match="tellapart recipes lists"):
        describe("qqq")


def test_the_wheel_is_told_to_hold_the_recipes():
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert included["force-include"] == {"recipes": "tellapart/recipes"}
    assert {path.stem for path in shipped_files().values()} == set(FILES)


@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed")
def test_an_unpacked_wheel_trains_by_name_outside_the_repository(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-q", "-w"]
    subprocess.run([*build, str(tmp_path)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "tellapart", "train", "world_ved_dico", "--print_config"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "method: dico" in done.stdout
