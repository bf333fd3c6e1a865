"""Every published layout of judgements, written small: the same records come out of each."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tellapart.data.judgements.open import read_judgements
from tellapart.data.judgements.records import Preference, Rated
from tellapart.errors import UsageError

CAPTIONS = {
    "a.jpg": ["a dog runs", "a brown dog", "the dog"],
    "b.jpg": ["a red car", "one car", "a parked car"],
}


def read(path, **options):
    (found,) = read_judgements(path, **options)
    return found


def tokens(folder):
    lines = [f"{name}#{n}\t{text}" for name, texts in CAPTIONS.items() for n, text in enumerate(texts)]
    (folder / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")


def test_expert_annotations(tmp_path):
    """The image's own caption is left out, as by SPICE's authors."""
    tokens(tmp_path)
    (tmp_path / "ExpertAnnotations.txt").write_text("a.jpg\tb.jpg#1\t1\t2\t1\na.jpg\ta.jpg#0\t4\t4\t4\n")
    found = read(tmp_path)
    assert found.name == "flickr8k-expert"
    assert found.rated == (Rated("a.jpg", "one car", tuple(CAPTIONS["a.jpg"]), (1.0, 2.0, 1.0)),)


def test_crowd_annotations_in_both_forms(tmp_path):
    """A judged caption is no reference of its image, in no row of it."""
    first, second = tmp_path / "tables", tmp_path / "lines"
    first.mkdir()
    second.mkdir()
    tokens(first)
    rows = [("a.jpg", "b.jpg#1", 0.0, 0, 3), ("a.jpg", "a.jpg#0", 1.0, 3, 0)]
    (first / "CrowdFlowerAnnotations.txt").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    (second / "flickr8k_captions.json").write_text(json.dumps(CAPTIONS))
    lines = [{"image": row[0], "caption_id": row[1], "share_yes": row[2]} for row in rows]
    (second / "flickr8k_cf.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    left = ("a brown dog", "the dog")
    expected = (Rated("a.jpg", "one car", left, (0.0,)), Rated("a.jpg", "a dog runs", left, (1.0,)))
    for folder in (first, second):
        assert (read(folder).name, read(folder).rated) == ("flickr8k-cf", expected)


@pytest.mark.parametrize(
    ("name", "set_name"),
    [("flickr8k", "flickr8k-expert"), ("crowdflower_flickr8k", "flickr8k-cf"), ("composite", "composite")],
)
def test_clipscores_json(tmp_path, name, set_name):
    """Ratings that are not numbers are passed over, white space is one space."""
    judged = [{"image_path": "x/a.jpg", "caption": "one  car", "rating": 2.0}, {"caption": "b", "rating": float("nan")}]
    image = {"image_path": "x/a.jpg", "ground_truth": ["a dog\n"], "human_judgement": judged}
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"a": image}))
    found = read(path)
    assert (found.name, found.rated) == (set_name, (Rated("a.jpg", "one car", ("a dog",), (2.0,)),))


def test_thumb_takes_the_human_caption_out_of_the_references(tmp_path):
    rows = [
        {"SYS": who, "hyp": text, "image": "COCO_val2014_000000000974.jpg", "P": 4.0, "R": 3.0, "human_score": 3.5}
        for who, text in (("Up-Down", "a cat"), ("Human", "a dog runs"))
    ]
    path = tmp_path / "mscoco_THumB-1.0.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read(path, references={"974": tuple(CAPTIONS["a.jpg"])})
    left, aspects = ("a brown dog", "the dog"), {"P": 4.0, "R": 3.0}
    assert found.rated[0] == Rated(rows[0]["image"], "a cat", left, (3.5,), "Up-Down", aspects)
    assert found.rated[1].references == left


def test_tables_of_the_hub(tmp_path):
    rows = {"imgid": ["a.jpg"], "mt": ["one car"], "refs": ["['a dog', \"a dog's bone\"]"], "score": [0.25]}
    (tmp_path / "polaris_test.csv").write_text(
        'imgid,mt,refs,score\na.jpg,one car,"[\'a dog\', ""a dog\'s bone""]",0.25\n'
    )
    expected = (Rated("a.jpg", "one car", ("a dog", "a dog's bone"), (0.25,)),)
    assert read(tmp_path / "polaris_test.csv").rated == expected
    pq.write_table(pa.table(rows | {"refs": [["a dog", "a dog's bone"]]}), tmp_path / "nebula.parquet")
    found = read(tmp_path / "nebula.parquet")
    assert (found.name, found.rated) == ("nebula", expected)


def test_a_folder_names_the_set_of_a_file(tmp_path):
    rows = pa.table({"cand": ["one car"], "refs": [["a dog"]], "human_score": [0.5], "file_name": ["a.jpg"]})
    for folder, name in (("composite/test", "composite"), ("expert", "flickr8k-expert")):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(rows, tmp_path / folder / "0000.parquet")
        assert read(tmp_path / folder / "0000.parquet").name == name


def test_pairs(tmp_path):
    """The true caption is no reference; ties and battles with people are left out."""
    row = {"filename": "a.jpg", "caption": "a dog runs", "negative_caption": "a cat runs"}
    (tmp_path / "swap_obj.json").write_text(json.dumps({"0": row}))
    found = read(tmp_path / "swap_obj.json", references={"a.jpg": tuple(CAPTIONS["a.jpg"])})
    left = ("a brown dog", "the dog")
    assert found.pairs == (Preference("a.jpg", "a dog runs", "a cat runs", left, "swap_obj"),)
    battle = {
        "img": "a.jpg",
        "source1": "m",
        "source2": "n",
        "caption1": "x",
        "caption2": "y",
        "ref": "z",
        "cluster": "c",
    }
    battles = [battle | {"winner": "n"}, battle | {"winner": "tie"}, battle | {"source1": "human", "winner": "n"}]
    (tmp_path / "caparena_annots_eval.json").write_text(json.dumps(battles))
    assert read(tmp_path / "caparena_annots_eval.json").pairs == (Preference("a.jpg", "y", "x", ("z",), "c"),)


def test_files_of_no_or_a_broken_layout(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        read_judgements(tmp_path / "none")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="no judgements in a known layout"):
        read_judgements(tmp_path)
    (tmp_path / "ExpertAnnotations.txt").write_text("a.jpg\tb.jpg#9\t1\t2\t1\n")
    with pytest.raises(UsageError, match=r"Flickr8k\.token\.txt next to it"):
        read_judgements(tmp_path)
    tokens(tmp_path)
    with pytest.raises(UsageError, match="a field is missing"):
        read_judgements(tmp_path)


def test_one_set_in_two_files(tmp_path):
    tokens(tmp_path)
    (tmp_path / "ExpertAnnotations.txt").write_text("a.jpg\tb.jpg#1\t1\t2\t1\n")
    image = {"ground_truth": ["x"], "image_path": "a.jpg", "human_judgement": [{"caption": "y", "rating": 1}]}
    (tmp_path / "flickr8k.json").write_text(json.dumps({"a": image}))
    with pytest.raises(UsageError, match="holds flickr8k-expert twice"):
        read_judgements(tmp_path)


def test_line_breaks_of_unicode_are_part_of_a_text(tmp_path):
    """U+2028 ends a line for str.splitlines, not for JSON and CSV."""
    row = {"image": "a.jpg", "candidate": "one\u2028car", "refs": ["a dog"], "ratings": [1]}
    (tmp_path / "x.jsonl").write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    assert read(tmp_path / "x.jsonl").rated == (Rated("a.jpg", "one\u2028car", ("a dog",), (1.0,)),)
    (tmp_path / "x.csv").write_text("imgid,mt,refs,score\na.jpg,one\u2028car,['a dog'],1\n", encoding="utf-8")
    assert read(tmp_path / "x.csv").rated == (Rated("a.jpg", "one car", ("a dog",), (1.0,)),)


@pytest.mark.parametrize(
    ("caption", "refs", "told"),
    [(None, ["a dog"], "a field is missing or of another kind"), ("x", "'a dog'", "references that are not a list")],
)
def test_broken_cells_are_told(tmp_path, caption, refs, told):
    rows = [{"cand": "one car", "refs": refs, "human_score": 0.5}, {"cand": caption, "refs": refs, "human_score": 0.5}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    with pytest.raises(UsageError, match=told):
        read_judgements(tmp_path / "x.parquet")


def test_captions_that_nobody_rated_are_left_out(tmp_path):
    """A score that is no number would count as the highest rank."""
    scores = ("1", "nan", "0.5", "inf", "", " ")  # pandas writes NaN as an empty cell
    rows = "".join(f"a.jpg,a dog {n},['a dog'],{score}\n" for n, score in enumerate(scores))
    (tmp_path / "x.csv").write_text(f"imgid,mt,refs,score\n{rows}")
    assert [row.ratings for row in read(tmp_path / "x.csv").rated] == [(1.0,), (0.5,)]
    (tmp_path / "x.csv").write_text("imgid,mt,refs,score\na.jpg,a dog,['a dog'],nan\n")
    with pytest.raises(UsageError, match=r"x\.csv has no caption whose ratings are all numbers"):
        read(tmp_path / "x.csv")
