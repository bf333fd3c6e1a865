"""``tellapart caption --context``: a column or a file next to each image in the prompt of each image."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from command_recipes import load_recipe
from pictures import CAPTIONS
from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.recipe.build import build
from tiny.matchers import tiny_blip_itm
from tiny.qwen2_vl import tiny_qwen2_vl


@pytest.fixture(scope="module")
def captioner(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("qwen")
    tiny_qwen2_vl(folder)
    return folder


def written(path: Path, *words) -> dict[str, str]:
    options = ("--num_beams", "1", "--resample", "0", "--max_new_tokens", "8", "--output", str(path))
    assert main(["caption", *map(str, words), *options]) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {Path(row["file_name"]).name: row["caption"] for row in rows}


def test_a_caption_depends_on_its_own_context_only(materials, captioner, tmp_path, capsys):
    texts = {f"{place:02}.png": f"a red dog {place}" if place % 2 else "a cat in a park" for place in range(6)}
    tables = [texts, texts | {"03.png": "two blue cats on a mat and a dog"}]
    found = []
    for number, table in enumerate(tables):
        rows = [{"file_name": str(materials.photos / name), "about": text} for name, text in table.items()]
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        out = tmp_path / f"out-{number}.jsonl"
        found.append(written(out, path, "--context", "about", "--captioner", captioner, "--batch_size", 4 - number))
    changed = {name for name in texts if found[0][name] != found[1][name]}
    assert changed <= {"03.png"}
    plain = written(tmp_path / "plain.jsonl", tmp_path / "0.jsonl", "--captioner", captioner)
    assert any(plain[name] != found[0][name] for name in texts)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--context", "about", "--context_extension", ".txt"), "leave one of the two out"),
        (("--context_extension", "txt"), "--context_extension is 'txt'"),
        (("--prompt", "What is this {context}?"), "nothing says what is known of an image"),
        (
            ("--context_extension", ".context.txt"),
            "no image has a file with words next to it that ends in .context.txt",
        ),
    ],
)
def test_what_cannot_be_used_is_one_sentence(materials, capsys, words, sentence):
    assert main(["caption", str(materials.photos), "--captioner", str(materials.captioner), *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("output", ["-", "photos"])
def test_captions_never_replace_what_is_known_of_an_image(materials, captioner, tmp_path, capsys, monkeypatch, output):
    """Where the folder of the images was named as output, its contexts were overwritten."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(materials.photos, tmp_path / "photos")
    (tmp_path / "photos" / "03.txt").write_text("a tower")
    words = ["--out", "sidecars", "--existing", "overwrite", "--context_extension", ".txt", "--output", output]
    assert main(["caption", "photos", "--captioner", str(captioner), *words]) == 2
    assert "would replace what --context_extension .txt reads: give another" in capsys.readouterr().err
    assert (tmp_path / "photos" / "03.txt").read_text() == "a tower"


def test_a_captioner_without_a_place_for_contexts_is_refused(materials, tmp_path, capsys):
    photos = shutil.copytree(materials.photos, tmp_path / "photos")
    (photos / "03.context.txt").write_text("a tower")
    words = ["--captioner", str(materials.captioner), "--context_extension", ".context.txt"]
    assert main(["caption", str(photos), *words]) == 2
    assert "cannot read a context per image" in capsys.readouterr().err


def test_a_training_reads_contexts_and_is_rewarded_for_confirmed_words(materials, captioner, tmp_path):
    matcher = tiny_blip_itm(tmp_path / "matcher")
    rows = [
        {"file_name": str(materials.photos / f"{i:02}.png"), "caption": "a red dog", "about": f"a dog {CAPTIONS[i]}"}
        for i in range(4)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = materials.recipe(
        tmp_path,
        "scst",
        captioner={"model_name_or_path": str(captioner), "prompt": "a {context}"},
        data={"path": str(tmp_path / "data.jsonl"), "context_column": "about"},
        reward=[{"name": "context", "weight": 1.0, "least": 0.001}],
        matcher={"model": str(matcher)},
        listener=None,
        evaluation={"split": None},
        max_steps=1,
    )
    built = build(load_recipe([str(recipe)]))
    batch = built.data.collate([built.dataset[i] for i in range(4)])
    assert batch.contexts == [row["about"] for row in rows]
    with pytest.raises(UsageError, match=r"reward context needs contexts, but no training image has one"):
        build(load_recipe([str(recipe), "--data.context_column", "null", "--captioner.prompt", "a"]))
    assert main(["train", str(recipe)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "scst" / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["reward"] <= 1 for line in lines if "reward" in line)
