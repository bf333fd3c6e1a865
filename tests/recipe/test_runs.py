"""What commands read of a run's ``run.json``, which may have been changed by hand."""

import json

import pytest

from tellapart.errors import UsageError
from tellapart.recipe.runs import made, recorded_recipe, run_of, start_captioner

RECIPE = {
    "method": "dico",
    "captioner": {"model_name_or_path": "world/xe"},
    "data": {"path": "photos", "images": "pictures", "another_version_s": 1},
    "listener": {"path": "clip"},
    "evaluation": {"num_beams": 5},
    "own_listener": None,
}


def written(folder, **changes):
    (folder / "run.json").write_text(json.dumps({"recipe": RECIPE | changes}))
    return folder


def test_a_run_s_own_account(tmp_path):
    found = made(written(tmp_path))
    assert (str(found.data.path), str(found.data.images), found.listener.path) == ("photos", "pictures", "clip")
    assert (found.evaluation.num_beams, found.own_listener, found.itm) == (5, None, False)
    assert start_captioner(tmp_path) == "world/xe"


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"recipe": null}', '{"recipe": {"method": "dico"}}'])
def test_a_folder_without_one_is_no_run(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert made(tmp_path) is None
    assert start_captioner(tmp_path) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"data": "photos"},
        {"data": 1.5},
        {"data": []},
        {"data": None},
        {"evaluation": ""},
        {"listener": ["clip"]},
        {"matcher": "itm"},
        {"data": {"path": [[]]}},
        {"data": {"path": "photos", "images": 1}},
        {"evaluation": {"num_beams": "many"}},
        {"evaluation": {"num_beams": None}},
    ],
)
def test_a_value_of_a_wrong_type_is_one_sentence(tmp_path, changes):
    """``"data": "photos"`` ended in a traceback."""
    with pytest.raises(UsageError, match=r"run\.json is not as a training wrote it \(.*\): restore it") as refused:
        made(written(tmp_path, **changes))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("captioner", ["world/xe", {"model_name_or_path": ["world/xe"]}])
def test_a_start_that_is_no_name(tmp_path, captioner):
    with pytest.raises(UsageError, match="is not as a training wrote it"):
        start_captioner(written(tmp_path, captioner=captioner))


def test_a_recipe_that_is_none(tmp_path):
    (tmp_path / "run.json").write_text('{"recipe": [1]}')
    with pytest.raises(UsageError, match="a part of its recipe is not a mapping"):
        recorded_recipe(tmp_path)


def test_a_checkpoint_is_of_its_run(tmp_path):
    written(tmp_path)
    for name in ("checkpoint-6", "best"):
        assert run_of(tmp_path / name) == tmp_path
        assert made(tmp_path / name) == made(tmp_path)
        assert start_captioner(tmp_path / name) == "world/xe"
    for name in ("checkpoint-x", "photos", "checkpoint-6/captioner"):
        assert run_of(tmp_path / name) == tmp_path / name
        assert made(tmp_path / name) is None
    (tmp_path / "best").mkdir()
    assert made(written(tmp_path / "best", data={"path": "own"})).data.path == "own"  # a run that is called so
