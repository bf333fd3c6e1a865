"""``tellapart score RUN`` under a named protocol, and files of captions on images in other forms than COCO's."""

from __future__ import annotations

import json

from tellapart.cli.main import main


def run(*words) -> int:
    return main([str(word) for word in words])


def test_a_protocol_chooses_split_and_decoding(materials, tmp_path, capsys):
    words = ("score", materials.captioner, "--data", materials.data, "--protocol", "coco-karpathy-val")
    assert run(*words) == 2  # before anything is captioned
    assert "(6 images instead of 5,000)" in capsys.readouterr().err
    assert run(*words, "--on_mismatch", "skip", "--json", "--output_dir", tmp_path) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["protocol"]["images"] == 6
    assert told["protocol"]["decoding"].startswith("beam 5, max_new_tokens=30")
    assert told["protocol"]["line"].startswith("NOT COCO captions, Karpathy validation split (6 images instead")
    (folder,) = (tmp_path / "eval").iterdir()
    assert json.loads((folder / "metrics.json").read_text())["metrics"] == told["metrics"]


def test_captions_in_a_table_are_measured_by_a_retriever(materials, tmp_path, capsys):
    path = tmp_path / "out.jsonl"
    lines = [{"file_name": f"elsewhere/{i:02}.png", "caption": f"a red star {i}"} for i in range(8, 14)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--data", materials.data, "--split", "val", "--listener", materials.listener, "--json")
    assert run("score", path, *words) == 0
    told = json.loads(capsys.readouterr().out)
    assert "listener_R@1" in told["metrics"]
    assert run("score", path, *words, "--cider_df", "x.npz") == 2
    assert "--cider_df needs --references" in capsys.readouterr().err


def test_scored_files_are_compared_with_p_values(tmp_path, capsys):
    references = {str(i): [f"a red star number {i % 7}", "a star"] for i in range(30)}
    (tmp_path / "refs.json").write_text(json.dumps(references))
    (tmp_path / "good.json").write_text(json.dumps({i: texts[0] for i, texts in references.items()}))
    (tmp_path / "poor.json").write_text(json.dumps(dict.fromkeys(references, "a blue ring")))
    for name in ("good", "poor"):
        words = ("--references", tmp_path / "refs.json", "--output_dir", tmp_path / name)
        assert run("score", tmp_path / f"{name}.json", *words) == 0
    capsys.readouterr()
    assert run("compare", tmp_path / "good", tmp_path / "poor", "--format", "json", "--samples", "999") == 0
    told = json.loads(capsys.readouterr().out)
    for key in ("Bleu_4", "CIDEr", "ROUGE_L"):
        difference = told["runs"][1]["difference"][key]
        assert difference["high"] < 0
        assert difference["p_value"] == 0.002
    assert "p_value" not in told["runs"][1]["difference"]["Self-BLEU"]
    assert run("compare", tmp_path / "good", tmp_path / "poor") == 0
    assert "p=0.00" in capsys.readouterr().out
