"""``tellapart score CAPTIONS --references ANNOTATIONS``: every form of both, what does not fit, and no torch anywhere."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet as pq
import pytest

from tellapart.cli.main import main
from tellapart.evaluation.matching import Matched
from tellapart.metrics.coco import coco_metrics

REFERENCES = {
    "1": ["a red star on a table", "a star"],
    "42": ["two blue rings", "rings in a row", "blue rings"],
    "7": ["a green box under a lamp", "a box"],
    "30": ["a lamp", "a tall lamp on the floor"],
}
CAPTIONS = {"7": "a green box", "1": "a red star.", "30": "A tall, thin lamp", "42": "two rings"}
NUMBER = "COCO_val2014_{:012}"

FORBIDDEN = """
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "datasets", "pandas", "accelerate", "peft"):
            raise RuntimeError(f"{name} was imported")

sys.meta_path.insert(0, Forbidden())
"""


def run(*words) -> int:
    return main([str(word) for word in words])


def coco(path: Path, *, names=lambda i: f"{NUMBER.format(int(i))}.jpg") -> Path:
    annotations = [(i, text) for i, texts in REFERENCES.items() for text in texts]
    value = {
        "images": [{"id": int(i)} | ({"file_name": names(i)} if names else {}) for i in REFERENCES],
        "annotations": [{"id": n, "image_id": int(i), "caption": text} for n, (i, text) in enumerate(annotations)],
    }
    path.write_text(json.dumps(value))
    return path


def write_rows(path: Path, heading: list[str], rows: list[list]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([heading, *rows])
    return path


def results_in(form: str, folder: Path) -> Path:
    path = folder / form
    rows = [{"image_id": int(i), "caption": text} for i, text in CAPTIONS.items()]
    if form == "list.json":
        path.write_text(json.dumps(rows))
    elif form == "text_ids.json":
        path.write_text(json.dumps([row | {"image_id": str(row["image_id"])} for row in rows]))
    elif form == "candidates.json":
        path.write_text(json.dumps(CAPTIONS))
    elif form == "stems.json":
        path.write_text(json.dumps({NUMBER.format(int(i)): text for i, text in CAPTIONS.items()}))
    elif form == "lists.json":
        path.write_text(json.dumps({i: [text, "another"] for i, text in CAPTIONS.items()}))
    elif form == "caption.jsonl":  # what tellapart caption writes of a folder
        names = {i: f"photos/{NUMBER.format(int(i))}.jpg" for i in CAPTIONS}
        lines = [{"id": names[i], "file_name": names[i], "caption": t, "flags": []} for i, t in CAPTIONS.items()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif form in ("table.csv", "table.tsv"):
        write_rows(path, ["image_id", "text"], [[i, text] for i, text in CAPTIONS.items()])
    elif form == "files.csv":
        rows = [[f"somewhere/{NUMBER.format(int(i))}.jpg", text] for i, text in CAPTIONS.items()]
        write_rows(path, ["filepath", "title"], rows)
    elif form == "table.parquet":
        pq.write_table(pyarrow.table({"image_id": [int(i) for i in CAPTIONS], "caption": [*CAPTIONS.values()]}), path)
    elif form == "sidecars":
        path.mkdir()
        for i, text in CAPTIONS.items():
            (path / f"{NUMBER.format(int(i))}.txt").write_text(text + "\n")
    elif form == "annotations.json":
        records = [{"id": n, "image_id": int(i), "caption": text} for n, (i, text) in enumerate(CAPTIONS.items())]
        path.write_text(json.dumps({"images": [{"id": int(i)} for i in CAPTIONS], "annotations": records}))
    return path


@pytest.mark.parametrize(
    "form",
    ["list.json", "text_ids.json", "candidates.json", "stems.json", "lists.json", "caption.jsonl", "table.csv",
     "table.tsv", "files.csv", "table.parquet", "sidecars", "annotations.json"],
)  # fmt: skip
def test_every_form_of_captions_scores_the_same(form, tmp_path, capsys):
    path = results_in(form, tmp_path)
    assert run("score", path, "--references", coco(tmp_path / "captions_val2014.json"), "--json", "--bootstrap", 5) == 0
    told = json.loads(capsys.readouterr().out)
    expected, _ = coco_metrics({i: CAPTIONS[i] for i in REFERENCES}, REFERENCES)
    assert {key: told["metrics"][key] for key in expected} == pytest.approx(expected, abs=1e-12)
    assert told["details"]["images"] == 4


def test_headings_of_captions_may_have_capital_letters(tmp_path):
    """``data check`` found the captions, and ``score`` said that a line names none."""
    references, columns = (
        coco(tmp_path / "r.json"),
        {"Image_ID": [int(i) for i in CAPTIONS], "Caption": [*CAPTIONS.values()]},
    )
    pq.write_table(pyarrow.table(columns), tmp_path / "c.parquet")
    write_rows(tmp_path / "c.csv", [*columns], [*zip(*columns.values(), strict=True)])
    for name in ("c.csv", "c.parquet"):
        assert run("score", tmp_path / name, "--references", references, "--bootstrap", 0) == 0


def test_a_parquet_file_without_captions_says_which_columns_it_has(tmp_path, capsys):
    pq.write_table(pyarrow.table({"image_id": [1], "alt": ["a"]}), tmp_path / "c.parquet")
    assert run("score", tmp_path / "c.parquet", "--references", coco(tmp_path / "r.json")) == 2
    assert "only image_id, alt: give --caption_column" in capsys.readouterr().err


def test_a_number_of_images_without_a_file_of_frequencies_is_refused(tmp_path, capsys):
    words = ("score", coco(tmp_path / "c.json"), "--references", coco(tmp_path / "r.json"), "--cider_df_images", 5)
    assert run(*words) == 2
    assert "--cider_df_images is for a file of document frequencies: give --cider_df" in capsys.readouterr().err


def test_captions_that_have_no_columns_take_none(tmp_path, capsys):
    references = coco(tmp_path / "r.json")
    (tmp_path / "texts").mkdir()
    for name, text in CAPTIONS.items():
        (tmp_path / "texts" / f"{name}.txt").write_text(text)
    (tmp_path / "scored.json").write_text(json.dumps({f"{name}.jpg": [text] for name, text in CAPTIONS.items()}))
    for given in ("texts", "scored.json", "r.json"):
        assert run("score", tmp_path / given, "--references", references, "--caption_column", "alt") == 2
        assert f"{given} is not a table and has no column 'alt': leave the column out." in capsys.readouterr().err


def references_in(form: str, folder: Path) -> Path:
    path = folder / form
    rows = [(i, text) for i, texts in REFERENCES.items() for text in texts]
    if form == "coco.json":
        return coco(path)
    if form == "only_ids.json":
        return coco(path, names=None)
    if form == "unlisted.json":
        coco(path)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"images": []}))
    elif form == "karpathy.json":
        images = [
            {"filename": f"{i}.jpg", "filepath": "val2014", "split": split, "cocoid": int(i) + shift,
             "sentences": [{"raw": text} for text in texts]}
            for i, texts in REFERENCES.items() for split, shift in (("test", 0), ("train", 1000))
        ]  # fmt: skip
        path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    elif form == "refs.json":
        path.write_text(json.dumps(REFERENCES))
    elif form == "lavis.json":
        rows = [{"image": f"val2014/{i}.jpg", "image_id": int(i), "caption": texts} for i, texts in REFERENCES.items()]
        path.write_text(json.dumps(rows))
    elif form == "refs.csv":
        write_rows(path, ["filepath", "image_id", "title"], [[f"{i}.jpg", i, text] for i, text in rows])
    elif form == "results.token":
        path.write_text("".join(f"{i}.jpg#{n}\t{t}\n" for i, texts in REFERENCES.items() for n, t in enumerate(texts)))
    elif form == "metadata.jsonl":
        lines = [{"file_name": f"{i}.jpg", "image_id": i, "captions": texts} for i, texts in REFERENCES.items()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "form",
    ["coco.json", "only_ids.json", "unlisted.json", "karpathy.json", "refs.json", "lavis.json", "refs.csv",
     "results.token", "metadata.jsonl"],
)  # fmt: skip
def test_references_need_no_images(form, tmp_path, capsys):
    words = ["--references", references_in(form, tmp_path), "--json", "--bootstrap", 0]
    split = ["--split", "test"] if form == "karpathy.json" else []
    assert run("score", results_in("list.json", tmp_path), *words, *split) == 0
    told = json.loads(capsys.readouterr().out)
    expected, _ = coco_metrics({i: CAPTIONS[i] for i in REFERENCES}, REFERENCES)
    assert {key: told["metrics"][key] for key in expected} == pytest.approx(expected, abs=1e-12)


def test_neither_torch_nor_pandas_is_needed(tmp_path):
    """The whole text path in an interpreter where they cannot be imported, from reading to the last file."""
    forms = ("list.json", "caption.jsonl", "table.csv", "sidecars")
    paths = [str(results_in(form, tmp_path)) for form in forms]
    code = f"""{FORBIDDEN}
import tellapart.data.load, tellapart.data.dataset, tellapart
from tellapart.cli.main import main
for path in {paths!r}:
    words = ["score", path, "--references", {str(coco(tmp_path / "captions_val2014.json"))!r}]
    assert main([*words, "--output_dir", path + ".scored", "--bootstrap", "20"]) == 0
assert main(["compare", *[path + ".scored" for path in {paths[:2]!r}]]) == 0
assert tellapart.score({{1: "a"}}, {{1: ["a"]}}).metrics["Bleu_1"] > 0.99
assert callable(tellapart.compute_metrics)
assert not {{"torch", "transformers", "datasets", "pandas"}} & set(sys.modules)
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in Path(paths[0] + ".scored").iterdir()) == [
        "captions_results.json",
        "ids.json",
        "metrics.json",
        "per_image.parquet",
    ]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux' /proc")
def test_the_reference_tools_numbers_in_little_memory(shared_data, tmp_path):
    """Up to how words are cut, of which ``tests/metrics`` has more."""
    captions = shared_data / "coco-captions"
    words = ["score", captions / "results_human.json", "--references", captions / "references.json"]
    script = (  # of this process alone: ru_maxrss counts the process that it was forked from
        "import sys; from tellapart.cli.main import main; code = main(sys.argv[1:]);"
        "sys.stderr.write(open('/proc/self/status').read()); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, *map(str, words), "--output_dir", str(tmp_path / "scored")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stderr.rpartition("VmHWM:")[2].split()[0]) < 300_000
    told = json.loads((tmp_path / "scored" / "metrics.json").read_text())
    expected = json.loads((captions / "expected_pycocoevalcap_1.2.json").read_text())["human"]["corpus"]
    for key in ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"):
        assert told["metrics"][key] == pytest.approx(expected[key], rel=5e-3)
        low, high = told["intervals"][key]
        assert low < expected[key] < high
    assert "METEOR" not in told["metrics"]
    assert "METEOR is left out" in done.stdout
    assert told["protocol"]["line"] in done.stdout


def test_ids_that_do_not_fit_are_listed_and_may_be_left_out(tmp_path, capsys):
    references = coco(tmp_path / "captions_val2014.json")
    rows = [{"image_id": i, "caption": t} for i, t in ((1, "a red star"), (7, "a box"), (1, "again"), (99, "a hat"))]
    path = tmp_path / "some.json"
    path.write_text(json.dumps(rows))
    words = ("score", path, "--references", references, "--output_dir", tmp_path / "scored")
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert "2 images without a caption ('42', '30')" in said
    assert "1 image not in the references ('99')" in said
    assert "1 image captioned more than once ('1')" in said
    assert said.count("\n") == 1
    listed = json.loads((tmp_path / "scored" / "ids.json").read_text())
    assert (listed["missing"], listed["extra"], listed["duplicates"]) == (["42", "30"], ["99"], ["1"])
    assert not (tmp_path / "scored" / "metrics.json").exists()
    assert run(*words, "--on_mismatch", "skip") == 0
    said = capsys.readouterr()
    assert said.err.startswith("WARNING: left out: 2 images without a caption")
    told = json.loads((tmp_path / "scored" / "metrics.json").read_text())
    some = {i: REFERENCES[i] for i in ("1", "7")}
    expected, _ = coco_metrics({"1": "a red star", "7": "a box"}, some)
    assert {key: told["metrics"][key] for key in expected} == pytest.approx(expected)
    assert "left out: 2 images without a caption" in told["protocol"]["line"]
    path.write_text(json.dumps({"a": "b"}))
    assert run(*words, "--on_mismatch", "skip") == 2
    assert "no caption of some is of an image of captions_val2014.json" in capsys.readouterr().err


def test_a_scored_folder_keeps_what_else_is_in_it(tmp_path, capsys):
    folder = tmp_path / "scored"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    words = (
        "score",
        results_in("list.json", tmp_path),
        "--references",
        coco(tmp_path / "a.json"),
        "--output_dir",
        folder,
    )
    assert run(*words) == 0
    assert run(*words, "--name", "again") == 0
    assert (folder / "notes.txt").read_text() == "mine"
    assert json.loads((folder / "metrics.json").read_text())["name"] == "again"
    rows = pq.read_table(folder / "per_image.parquet").to_pylist()
    assert {row["id"]: row["caption"] for row in rows} == CAPTIONS
    assert {row["id"]: row["bleu_words"] for row in rows} == {"1": 3, "42": 2, "7": 3, "30": 4}
    capsys.readouterr()
    assert run("score", folder, "--references", tmp_path / "a.json", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metrics"] == json.loads((folder / "metrics.json").read_text())["metrics"]


def test_protocols_are_listed_and_kept_to(tmp_path, capsys):
    assert run("score", "--protocols") == 0
    shown = capsys.readouterr().out
    assert "coco-karpathy-test" in shown
    assert "4,500" in shown
    references = references_in("karpathy.json", tmp_path)
    words = ("score", results_in("list.json", tmp_path), "--references", references, "--bootstrap", 0)
    assert run(*words) == 2
    assert "has the splits train, test: give --split" in capsys.readouterr().err
    assert run(*words, "--protocol", "coco-karpathy-test") == 2
    assert "(4 images instead of 5,000)" in capsys.readouterr().err
    assert run(*words, "--protocol", "coco-karpathy-test", "--on_mismatch", "skip") == 0
    assert "NOT COCO captions, Karpathy test split (4 images instead of 5,000); karpathy.json (test)" in (
        capsys.readouterr().out
    )
    assert run(*words, "--protocol", "coco") == 2
    assert "'coco' is not a protocol: choose one of coco-karpathy-test" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[", "is not readable JSON"),
        ("7", "is neither a list of captions nor a data set"),
        ("[]", "holds no captions"),
        ("{}", "holds no captions"),
        ("[3]", "row 1 names no image (3)"),
        ('[{"image_id": 1, "text2": "a"}]', "row 1 names no caption"),
        (
            '[{"image_id": 1.5, "caption": "a"}]',
            "the id of row 1 is 1.5: it must be text or a whole number, such as 42.",
        ),
        ('[{"image_id": 1, "caption": null}]', "a caption of image '1' is None"),
        ('{"1": "a", "1": "b"}', "names '1' more than once"),
        ('{"1": "\\ud83d"}', "not valid Unicode"),
    ],
)
def test_broken_captions_are_one_sentence(content, sentence, tmp_path, capsys):
    path = tmp_path / "given.json"
    path.write_text(content)
    assert run("score", path, "--references", coco(tmp_path / "a.json")) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.startswith(f"error: {path}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("given.csv", "image_id,caption\n1,a dog\n", "line 2 has"),
        ("given.jsonl", '{"image_id": 1, "caption": "a dog"}\n', "line 1 has"),
        ("given.json", '[{"image_id": 1, "caption": "a dog"}]', "row 1 has"),
    ],
)
def test_a_caption_column_that_is_not_there_is_named(name, content, where, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(content)
    assert run("score", path, "--references", coco(tmp_path / "a.json"), "--caption_column", "alt") == 2
    said = capsys.readouterr().err
    assert said == f"error: {path}: {where} no column 'alt', only image_id, caption: name one of these.\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--listener", "x"], "--listener does not go with --references"),
        (["--num_beams", "2"], "--num_beams does not go with --references"),
        (["--batch_size", "8"], "--batch_size does not go with --references"),
        (["--spice_heap", "4G"], "--spice_heap is for SPICE, which is not asked for: add --spice"),
        (["--spice_timeout", "60"], "--spice_timeout is for SPICE"),
        (["--bootstrap", "-1"], "--bootstrap is -1"),
        (["--cider_df", "gone.npz"], "gone.npz cannot be read"),
        (["--split", "a", "--references", "gone.json"], "gone.json does not exist"),
    ],
)
def test_options_that_do_not_fit(words, sentence, tmp_path, capsys):
    given = ["score", results_in("list.json", tmp_path), "--references", coco(tmp_path / "a.json")]
    assert run(*given, *words) == 2
    assert sentence in capsys.readouterr().err


def test_document_frequencies_from_a_file(tmp_path, capsys):
    from tellapart.metrics.frequencies import DocumentFrequencies, save_frequencies

    more = REFERENCES | {f"x{n}": ["a red star", "a lamp"] for n in range(20)}
    save_frequencies(DocumentFrequencies.from_references(more, end=""), tmp_path / "df.npz")
    given = ["score", results_in("list.json", tmp_path), "--references", coco(tmp_path / "a.json"), "--json"]
    assert run(*given, "--cider_df", tmp_path / "df.npz") == 0
    told = json.loads(capsys.readouterr().out)
    captions = {i: CAPTIONS[i] for i in REFERENCES}
    expected, _ = coco_metrics(captions, REFERENCES, frequencies=DocumentFrequencies.from_references(more, end=""))
    own, _ = coco_metrics(captions, REFERENCES)
    assert told["metrics"]["CIDEr"] == pytest.approx(expected["CIDEr"])
    assert told["metrics"]["CIDEr"] != pytest.approx(own["CIDEr"])
    assert "document frequencies from df.npz (24 images)" in told["protocol"]["line"]


def test_the_sentence_about_what_does_not_fit_stays_short():
    ids = ["a_picture_with_a_very_long_name_of_its_own.png" + str(n) for n in range(9)]
    one, three = Matched({}, False, ids, [], [], []), Matched({}, False, ids, ids, ids, [])
    assert (one.misfit().count("'a_picture"), three.misfit().count("'a_picture")) == (4, 3)
    assert len(three.misfit()) < 200


def test_captions_are_not_replaced_by_what_was_scored_of_them(tmp_path, capsys):
    folder = tmp_path / "scored"
    folder.mkdir()
    captions = Path(shutil.copy(results_in("list.json", tmp_path), folder / "captions_results.json"))
    before = captions.read_bytes()
    assert run("score", captions, "--references", coco(tmp_path / "a.json"), "--output_dir", folder) == 2
    assert "captions_results.json is the input, which would be lost: name another folder." in capsys.readouterr().err
    assert captions.read_bytes() == before


def test_metrics_of_another_program_are_not_replaced(tmp_path, capsys):
    (tmp_path / "metrics.json").write_text('{"mine": 1}')
    words = (
        "score",
        results_in("list.json", tmp_path),
        "--references",
        coco(tmp_path / "a.json"),
        "--output_dir",
        tmp_path,
    )
    assert run(*words) == 2
    assert (
        "metrics.json exists and holds no evaluation: name another one, or delete this file" in capsys.readouterr().err
    )
    (tmp_path / "metrics.json").unlink()
    assert run(*words) == run(*words) == 0, "its own are"
