"""Writing so that nothing is ever half there."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError

from tellapart.errors import UsageError
from tellapart.files import (
    beside,
    cache_dir,
    checkpoints,
    first_folder,
    fresh_folder,
    read_json,
    read_object,
    read_text,
    remove_half_written,
    require_written,
    trained_part,
    write_json,
    write_rows,
    write_text,
)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_rows_are_written_as_a_list_of_them_is(tmp_path, monkeypatch, count):
    monkeypatch.setattr("tellapart.files._ROWS", 3)
    rows = [{"id": n, "text": 'é\n"\ud83d', "list": [[], {}]} for n in range(count)]
    write_json(tmp_path / "whole.json", rows)
    write_rows(tmp_path / "rows.json", iter(rows))
    assert (tmp_path / "rows.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "a" / "x.json"
    write_json(path, {"é": 1})
    with pytest.raises(TypeError):
        write_json(path, {"bad": object()})

    def full(*where):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left") as caught:
            write_text(path, "x")
    assert caught.value.filename == str(path), "the error names the file, not a temporary one"
    with pytest.raises(FileNotFoundError) as caught, beside(path):
        open(tmp_path / "other")  # noqa: SIM115
    assert caught.value.filename == str(tmp_path / "other"), "but an error about another file keeps its name"
    assert path.read_text(encoding="utf-8") == '{\n  "é": 1\n}\n'
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "a." * 127])
def test_the_longest_names_can_be_written(tmp_path, name):
    write_text(tmp_path / name, "one")
    write_text(tmp_path / name, "two")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(name, "two")]


def test_names_of_other_encodings_come_back_from_json(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    write_json(tmp_path / "x.json", {name: "é"})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {name: "é"}


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


@pytest.mark.parametrize("folder", [fresh_folder, first_folder])
@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
    ],
)
def test_errors_of_writers_of_weights_are_errors_of_the_disk(tmp_path, folder, error):
    """A stage of the world on a full disk ended in safetensors' traceback."""
    with pytest.raises(OSError, match="No space left on device") as caught, folder(tmp_path / "x"):
        raise error
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "x"))
    for other in (RuntimeError("PytorchStreamReader failed reading zip archive: inline_container"), ValueError("x")):
        with pytest.raises(type(other)) as caught, folder(tmp_path / "x"):
            raise other
        assert caught.value is other


def test_a_fresh_folder_replaces_and_the_first_one_stays(tmp_path):
    for name in ("one", "two"):
        with fresh_folder(tmp_path / "fresh") as temporary:
            (temporary / name).touch()
        with first_folder(tmp_path / "first") as temporary:
            (temporary / name).touch()
    assert [p.name for p in (tmp_path / "fresh").iterdir()] == ["two"]
    assert [p.name for p in (tmp_path / "first").iterdir()] == ["one"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "fresh"]


def test_where_a_run_keeps_what(tmp_path):
    for name in ("checkpoint-2/a", "checkpoint-10/a", "checkpoint-9/b", "checkpoint-x/a", "checkpoint-²/a", "best/b"):
        (tmp_path / name).mkdir(parents=True)
    assert list(checkpoints(tmp_path)) == [2, 9, 10]  # by number, not by name
    assert trained_part(tmp_path, "a") == tmp_path / "checkpoint-10" / "a"
    assert trained_part(tmp_path, "b") == tmp_path / "best" / "b"  # the selected one comes before the last
    assert trained_part(tmp_path / "checkpoint-2", "a") == tmp_path / "checkpoint-2" / "a"
    assert trained_part(tmp_path, "c") is None
    (tmp_path / "best").rename(tmp_path / ".best.replaced")  # where a kill came before the next one took its place
    assert trained_part(tmp_path, "b") == tmp_path / ".best.replaced" / "b"


def test_objects_that_cannot_be_read_are_empty(tmp_path):
    for number, text in enumerate(('{"a": 1}', "[1]", '{"a": ', "\x80")):
        (tmp_path / f"{number}.json").write_bytes(text.encode("latin-1"))
    found = [read_object(tmp_path / f"{number}.json") for number in range(5)]
    assert found == [{"a": 1}, {}, {}, {}, {}]


def killed_while_writing(path: Path, kind: str) -> None:
    """A process is killed before what it writes gets its name."""
    code = "import os, sys; from pathlib import Path; from tellapart.files import beside, fresh_folder\n"
    code += f"with {kind}(Path(sys.argv[1])) as temporary:\n"
    code += (
        "    (temporary / 'a' if temporary.is_dir() else temporary).write_text('half')\n    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    assert len(list(path.parent.iterdir())) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="has no locks that end with a process")
@pytest.mark.parametrize("times", [1, 2])
def test_what_a_kill_left_is_used_again(tmp_path, times):
    """Files of caches and outputs that no lock guards stayed beside them for good."""
    for _ in range(times):
        killed_while_writing(tmp_path / "file", "beside")
    write_text(tmp_path / "file", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "whole"
    (tmp_path / "file").unlink()
    for _ in range(times):
        killed_while_writing(tmp_path / "folder", "fresh_folder")
    with fresh_folder(tmp_path / "folder") as folder:
        (folder / "b").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "b"]


def test_two_writers_of_one_file_do_not_share_what_they_write(tmp_path):
    with beside(tmp_path / "x") as first, beside(tmp_path / "x") as second:
        assert first != second
        first.write_text("1")
        second.write_text("2")
    with fresh_folder(tmp_path / "y") as first, fresh_folder(tmp_path / "y") as second:
        assert first != second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("locks", [True, False])
def test_new_files_and_folders_follow_the_umask(tmp_path, monkeypatch, locks):
    """What a person keeps from others was readable for all."""
    if not locks:
        monkeypatch.setattr("tellapart.files.fcntl", None)
    before = os.umask(0o077)
    try:
        write_text(tmp_path / "x", "x")
        with fresh_folder(tmp_path / "folder") as temporary:
            (temporary / "y").touch()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("x", "folder", "folder/y")]
    assert modes == [0o600, 0o700, 0o600]
    write_text(tmp_path / "z", "z")
    assert stat.S_IMODE((tmp_path / "z").stat().st_mode) == 0o666 & ~before


def test_a_link_in_the_way_of_a_temporary_file_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".x._partial").symlink_to(tmp_path / "mine")
    write_text(tmp_path / "x", "new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "x").read_text() == "new"


@pytest.mark.parametrize("how", ["no fcntl", "no locks"])
def test_without_locks_names_are_random_and_nothing_stays(tmp_path, monkeypatch, how):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    if how == "no fcntl":
        monkeypatch.setattr("tellapart.files.fcntl", None)
    else:
        monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refused)
    with beside(tmp_path / "x") as first, fresh_folder(tmp_path / "y") as second:
        assert not {first.name, second.name} & {".x._partial", ".y._partial"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_what_was_removed_while_it_was_written_is_told(tmp_path):
    """``bench people`` and ``caption`` ended with code 0 where their output was removed at the end."""
    (tmp_path / "a").write_text("")
    require_written(tmp_path / "a", tmp_path)
    with pytest.raises(UsageError, match=r"b was removed while it was being written: run the same command again\."):
        require_written(tmp_path / "a", tmp_path / "b")


def test_what_killed_builders_of_a_folder_left_is_removed(tmp_path):
    """Each had a name of its own, so that nobody came upon it again."""
    killed = "import os, sys; from pathlib import Path; from tellapart.files import first_folder\n"
    killed += "with first_folder(Path(sys.argv[1])) as own: (own / 'half').write_text('x'); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", killed, tmp_path / "world"], check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".world-")
    with first_folder(tmp_path / "world") as own:
        (own / "whole").write_text("x")
        assert not left.exists()
        with first_folder(tmp_path / "world") as another:  # that of a process at work stays
            assert own.is_dir()
            (another / "other").write_text("x")
    assert [path.name for path in tmp_path.rglob("*")] == ["world", "other"]


@pytest.mark.skipif(sys.platform == "win32", reason="has no locks that end with a process")
def test_a_builder_that_was_killed_while_it_renamed_leaves_nothing_for_good(tmp_path):
    """Its folder had a second temporary name, that of no hidden folder, which stayed in the cache."""
    killed = "import os, sys; from pathlib import Path; from tellapart.files import first_folder\n"
    killed += "count = [0]\n"
    killed += "def hear(event, _):\n"
    killed += "    count[0] += event == 'os.rename'\n"
    killed += "    if count[0] == int(sys.argv[2]): os._exit(9)\n"
    killed += "with first_folder(Path(sys.argv[1])) as own:\n"
    killed += "    (own / 'a').write_text('x')\n    sys.addaudithook(hear)"
    codes = []
    while 0 not in codes:
        command = [sys.executable, "-c", killed, str(tmp_path / "world"), str(len(codes) + 1)]
        codes.append(subprocess.run(command, check=False).returncode)
    assert codes[0] == 9
    assert [path.name for path in tmp_path.iterdir()] == ["world"]


def test_a_folder_that_was_removed_while_it_was_made_is_told(tmp_path):
    """A writer made it again, without its first files."""

    def make():
        with fresh_folder(tmp_path / "data") as own:
            (own / "first").write_text("x")
            shutil.rmtree(own)
            own.mkdir()
            (own / "second").write_text("x")

    with pytest.raises(UsageError, match="data was removed while it was being written"):
        make()
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_a_file_that_never_ends_is_not_read(tmp_path):
    """A model folder may hold a link to a device, or a pipe that nobody writes to."""
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("zero", "pipe"):
        with pytest.raises(OSError, match="not a file"):
            read_text(tmp_path / f"{name}.json")
        assert read_object(tmp_path / f"{name}.json") == {}


def test_json_is_text_of_a_sane_depth(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(tmp_path / "deep.json")
    (tmp_path / "latin.json").write_bytes(b'"\xe9"')
    with pytest.raises(ValueError, match="utf-8"):
        read_json(tmp_path / "latin.json")
    (tmp_path / "good.json").write_text('{"a": [1]}', encoding="utf-8")
    assert read_json(tmp_path / "good.json") == {"a": [1]}


def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (Path("."), Path("../") / tmp_path.name, tmp_path.parent):
        with pytest.raises(UsageError, match="the command runs in the folder"), fresh_folder(path):
            pass


def test_a_folder_is_written_though_the_current_one_is_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with fresh_folder(tmp_path / "new") as folder:
        (folder / "a.txt").write_text("here")
    assert (tmp_path / "new" / "a.txt").read_text() == "here"


def test_a_cache_may_be_in_the_home_folder(tmp_path, monkeypatch):
    """Quoted, or read from a file of variables, no shell expands it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TELLAPART_CACHE", "~/kept")
    assert cache_dir() == tmp_path / "kept"


def test_a_kill_between_the_two_renamings_loses_no_folder(tmp_path):
    """The old one lay under a hidden name, and tidying deleted it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "data").write_text("precious")
    (tmp_path / "out").rename(tmp_path / ".out.replaced")
    remove_half_written(tmp_path)
    assert (tmp_path / "out" / "data").read_text() == "precious"
    (tmp_path / "out").rename(tmp_path / ".out.replaced")
    with pytest.raises(ValueError, match="half"), fresh_folder(tmp_path / "out"):
        raise ValueError("half")
    assert (tmp_path / "out" / "data").read_text() == "precious"
    with fresh_folder(tmp_path / "out") as made:
        (made / "data").write_text("new")
    shutil.copytree(tmp_path / "out", tmp_path / ".out.replaced")  # killed before it was removed
    remove_half_written(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "data").read_text() == "new"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_to_a_file_stays_and_the_file_is_written(tmp_path, there):
    kept = tmp_path / "kept" / "captions.jsonl"
    if there:
        write_text(kept, "old")
    (tmp_path / "captions.jsonl").symlink_to(kept)
    write_text(tmp_path / "captions.jsonl", "new")
    assert (tmp_path / "captions.jsonl").is_symlink()
    assert kept.read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["captions.jsonl", "captions.jsonl", "kept"]


def test_a_link_to_a_folder_and_a_long_name_are_replaced_again_and_again(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for path in (tmp_path / "link", tmp_path / ("n" * 250)):
        for number in range(3):
            with fresh_folder(path) as made:
                (made / "x").write_text(str(number))
        assert (path / "x").read_text() == "2"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "x").read_text() == "2"
