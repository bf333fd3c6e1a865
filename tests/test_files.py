"""Writing so that nothing is ever half there."""

import pytest

from tellapart.files import first_folder, fresh_folder, write_json, write_text


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "a" / "x.json"
    write_json(path, {"é": 1})
    with pytest.raises(TypeError):
        write_json(path, {"bad": object()})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text(encoding="utf-8") == '{\n  "é": 1\n}\n'
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


@pytest.mark.parametrize("folder", [fresh_folder, first_folder])
def test_a_folder_appears_whole_or_not_at_all(tmp_path, folder):
    def interrupted():
        with folder(tmp_path / "x") as temporary:
            (temporary / "half").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with folder(tmp_path / "x") as temporary:
        (temporary / "whole").touch()
        assert not (tmp_path / "x").exists()
    assert [p.name for p in (tmp_path / "x").iterdir()] == ["whole"]


def test_a_fresh_folder_replaces_and_the_first_one_stays(tmp_path):
    for name in ("one", "two"):
        with fresh_folder(tmp_path / "fresh") as temporary:
            (temporary / name).touch()
        with first_folder(tmp_path / "first") as temporary:
            (temporary / name).touch()
    assert [p.name for p in (tmp_path / "fresh").iterdir()] == ["two"]
    assert [p.name for p in (tmp_path / "first").iterdir()] == ["one"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "fresh"]
