"""Results as files: what is written is read back, in the formats other tools expect, and never by halves."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow.parquet
import pytest
from evaluation_fakes import toy_result

from tellapart.errors import UsageError
from tellapart.evaluation.compare import compare_results
from tellapart.evaluation.protocol import joint_line
from tellapart.evaluation.results import (
    CHOSE,
    EvaluationResult,
    find_result,
    folder_of,
    require_comparable,
    result_folders,
    with_choice,
)
from tellapart.locks import NAME as LOCK
from tellapart.locks import Lock


def test_round_trip(tmp_path):
    result = toy_result("dico", seed=0)
    folder = result.save(tmp_path)
    assert folder == tmp_path / "eval" / "toy-test-5-greedy"
    assert EvaluationResult.load(folder) == result
    assert sorted(path.name for path in folder.iterdir()) == [
        "captions_results.json",
        "metrics.json",
        "per_image.parquet",
    ]


def test_two_writers_of_one_folder_wait_for_each_other(tmp_path, monkeypatch):
    """Each removed what the other was writing, and the names in its error told nothing."""
    results = [toy_result(name, seed=seed) for seed, name in enumerate(("dico", "scst"))]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda place: results[place % 2].save_in(tmp_path), range(20)))
    assert EvaluationResult.load(tmp_path) in results
    assert not (tmp_path / ".new").exists()
    monkeypatch.setattr("tellapart.evaluation.results._PATIENCE", 0.1)
    with Lock(tmp_path / LOCK, "writing an evaluation into"), pytest.raises(UsageError, match="another process"):
        results[0].save_in(tmp_path)
    assert EvaluationResult.load(tmp_path) in results


def test_captions_are_in_coco_format_with_numbers_for_numeric_ids(tmp_path):
    folder = toy_result("dico", seed=0).save(tmp_path)
    rows = json.loads((folder / "captions_results.json").read_text(encoding="utf-8"))
    assert rows[0] == {"image_id": 1, "caption": "dico says a red star on a grey ground"}
    assert [row["image_id"] for row in rows] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("ids", [["1", "two"], ["1", "002"], ["1", "²"]])
def test_ids_stay_strings_where_any_is_no_plain_number(tmp_path, ids):
    result = toy_result("dico", seed=0)
    result = replace(result, captions=dict.fromkeys(ids, "a"), per_image={"CIDEr": [0.0, 1.0]})
    rows = json.loads((result.save(tmp_path) / "captions_results.json").read_text(encoding="utf-8"))
    assert [row["image_id"] for row in rows] == ids


def test_rows_carry_id_and_caption(tmp_path):
    table = pyarrow.parquet.read_table(toy_result("dico", seed=0).save(tmp_path) / "per_image.parquet").to_pylist()
    assert table[2]["id"] == "3"
    assert table[2]["caption"] == "dico says a green box above a ring"
    assert table[2]["judge_rank"] == toy_result("dico", seed=0).per_image["judge_rank"][2]


def test_a_failed_write_keeps_the_old_result(tmp_path):
    old = toy_result("old", seed=0)
    folder = old.save(tmp_path)
    broken = replace(toy_result("new", seed=1), per_image={"CIDEr": [1.0]})  # not as long as the captions
    with pytest.raises(ValueError, match="expected length"):
        broken.save(tmp_path)
    assert EvaluationResult.load(folder) == old
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_what_is_missing_is_named_once(tmp_path):
    """With the path of the folder and again that of the file, a sentence was longer than 300 characters."""
    folder = toy_result("dico", seed=0).save(tmp_path)
    (folder / "metrics.json").unlink()
    with pytest.raises(UsageError, match=r"evaluation \(metrics\.json: No such file or directory\): evaluate") as told:
        EvaluationResult.load(folder)
    assert str(told.value).count(str(folder)) == 1


@pytest.mark.parametrize("name", ["metrics.json", "per_image.parquet"])
def test_damaged_files_are_named(tmp_path, name):
    folder = toy_result("dico", seed=0).save(tmp_path)
    (folder / name).write_bytes(b"{")
    with pytest.raises(UsageError, match="holds no readable evaluation"):
        EvaluationResult.load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": 1},
        {"protocol": []},
        {"protocol": {"data": "toy", "images": "5", "digest": "0"}},
        {"protocol": {"data": "toy", "images": 5, "digest": "0", "note": 1}},
        {"protocol": {"data": "toy", "images": 5, "digest": "0", "measured_by": {"CIDEr": 1}}},
        {"metrics": {"CIDEr": "1"}},
        {"metrics": {"CIDEr": None}},
        {"intervals": {"CIDEr": [0.0]}},
        {"details": []},
        {"details": {CHOSE: 1}},
        {"details": {"left_out": ["METEOR"]}},
    ],
)
def test_values_of_a_wrong_kind_are_one_sentence(tmp_path, changes):
    """They were read, and ended in a traceback where they were compared."""
    folder = toy_result("dico", seed=0).save(tmp_path)
    path = folder / "metrics.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UsageError, match="holds no readable evaluation"):
        EvaluationResult.load(folder)
    assert with_choice(toy_result("scst", seed=0), tmp_path).details == toy_result("scst", seed=0).details


def test_a_missing_run_and_a_run_without_results_get_a_remedy(tmp_path):
    with pytest.raises(UsageError, match=r"gone does not exist: name the folder"):
        result_folders(tmp_path / "gone")
    with pytest.raises(UsageError, match=r"holds no evaluation: .* tellapart score"):
        result_folders(tmp_path)


def test_of_several_results_one_must_be_named(tmp_path):
    toy_result("dico", seed=0).save(tmp_path)
    toy_result("dico", seed=1, decoding="beam 5").save(tmp_path)
    with pytest.raises(UsageError, match=r"2 evaluations: .*toy-test-5-beam-5, toy-test-5-greedy"):
        find_result(tmp_path)
    assert find_result(tmp_path, "toy-test-5-beam-5") == toy_result("dico", seed=1, decoding="beam 5")
    with pytest.raises(UsageError, match="no evaluation named 'sampled'"):
        find_result(tmp_path, "sampled")


def test_given_captions_stand_in_for_any_decoding(tmp_path):
    human = toy_result("human", seed=0, decoding=None)
    human.save(tmp_path)
    for protocol in (
        "toy-test-5-beam-5",
        "5-beam-5-max-new-tokens-20",
        "beam",
        "sampled-seed-0",
        "test-5-given",
        "test",
    ):
        assert find_result(tmp_path, protocol) == human
    for protocol in ("typo", "val", "toy-val-5-beam-5", "est-5-beam", "toy-test-5-bean-5", "beamed"):
        with pytest.raises(UsageError, match=f"no evaluation named '{protocol}': choose one of toy-test-5-given"):
            find_result(tmp_path, protocol)
    require_comparable([human, toy_result("dico", seed=1)])


@pytest.mark.parametrize(
    "change",
    [
        {"data": "other test"},
        {"digest": "00000000"},
        {"images": 6},
        {"listeners": {"judge": "ffffffffffff"}},
        {"decoding": "beam 5"},
        {"words": "PTB"},
    ],
)
def test_results_measured_differently_are_refused(change):
    first, second = toy_result("a", seed=0), toy_result("b", seed=1)
    other = replace(second, protocol=replace(second.protocol, **change))
    with pytest.raises(UsageError, match=f"a and b were measured differently \\({next(iter(change))} "):
        require_comparable([first, other])


def test_a_retriever_that_one_result_lacks_does_not_part_them():
    first, second = toy_result("a", seed=0), toy_result("b", seed=1)
    bare = replace(second, protocol=replace(second.protocol, listeners={}))
    require_comparable([first, bare])
    require_comparable([bare, first])


def test_the_line_of_several_results_names_the_models_that_only_later_ones_have():
    results = [toy_result(name, seed=seed) for seed, name in enumerate("abc")]
    plain = results[0].protocol.line()
    assert compare_results(results, samples=10).protocol == plain
    judged = replace(results[1].protocol, listeners={"own": "ba9876543210"}, measured_by={"QA": "x [1]"})
    line = compare_results([results[0], replace(results[1], protocol=judged), results[2]], samples=10).protocol
    assert "ties count against the caption, by judge = 0123456789ab, own = ba9876543210; QA by x [1]" in line
    assert joint_line([judged, replace(judged, decoding=None)]) == judged.line()


def test_a_result_that_lacks_a_model_hides_no_difference_between_two_others():
    results = [toy_result(name, seed=seed) for seed, name in enumerate("abc")]
    judges: list[dict[str, str]] = [{}, {"judge": "0123456789ab"}, {"judge": "ba9876543210"}]
    apart = [
        replace(one, protocol=replace(one.protocol, listeners=judge))
        for one, judge in zip(results, judges, strict=True)
    ]
    with pytest.raises(UsageError, match=r"b and c were measured differently \(listeners "):
        require_comparable(apart)
    asked = [{}, {"QA": "x [1]"}, {"QA": "x [2]"}]
    apart = [
        replace(one, protocol=replace(one.protocol, measured_by=by)) for one, by in zip(results, asked, strict=True)
    ]
    with pytest.raises(UsageError, match=r"b and c were measured differently \(measured_by "):
        require_comparable(apart)


def test_given_captions_hide_no_difference_between_two_decodings():
    given = toy_result("human", seed=0, decoding=None)
    drawn = [toy_result("a", seed=1), toy_result("b", seed=2, decoding="beam 5")]
    with pytest.raises(UsageError, match="a and b were measured differently"):
        require_comparable([given, *drawn])
    require_comparable([given, drawn[0], replace(drawn[0], protocol=replace(drawn[0].protocol, software="later"))])


def test_results_of_two_files_of_captions_are_both_kept(tmp_path):
    """The second replaced the first."""
    results = [toy_result(name, seed=seed, decoding=None) for seed, name in enumerate(("caps", "others"))]
    folders = [result.save(tmp_path) for result in results]
    assert folders[0] != folders[1]
    again = toy_result("others", seed=5, decoding=None)
    assert again.save(tmp_path) == folders[1]
    assert [EvaluationResult.load(folder) for folder in folders] == [results[0], again]
    with pytest.raises(UsageError, match="2 evaluations"):
        find_result(tmp_path, "toy-test-5-beam-5")


def test_results_whose_folders_would_have_one_name_are_all_kept(tmp_path):
    """Of other references under the same file name, of decodings that differ behind the cut, of names in other letters."""
    first = toy_result("dico", seed=0)
    plain = first.protocol
    far = "beam 20, max_new_tokens=40, told apart from at most 20 look-alikes by the listener of the run and "
    protocols = [
        plain,
        replace(plain, digest="0" * 8),
        replace(plain, decoding=far + "world/verifier"),
        replace(plain, decoding=far + "world/sharp-verifier"),
        replace(plain, data="日本 写真"),
        replace(plain, data="猫"),
    ]
    results = [replace(first, protocol=protocol, name=str(number)) for number, protocol in enumerate(protocols)]
    folders = [result.save(tmp_path) for result in results]
    assert len(set(folders)) == len(results) == len(result_folders(tmp_path))
    assert [EvaluationResult.load(folder) for folder in folders] == results
    again = [replace(result, name="again").save(tmp_path) for result in results]
    assert again == folders, "the same images and decoding replace what was there"
    assert [EvaluationResult.load(folder).name for folder in folders] == ["again"] * len(results)
    assert [folder_of(tmp_path, protocol, "dico") for protocol in protocols] == folders
    (folders[0] / "metrics.json").write_text("{")
    assert folder_of(tmp_path, plain, "dico") == folders[0]
