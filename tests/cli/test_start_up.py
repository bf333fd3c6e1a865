"""What the command line costs and says before any work is done."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import pytest

import tellapart
from tellapart.cli.main import COMMANDS, main
from tellapart.names import resolve
from tellapart.objectives import METHODS

HEAVY = {"torch", "transformers", "peft", "accelerate", "numpy"}


def children_seconds() -> float:
    """Cpu seconds of finished child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def imported_by(code: str) -> tuple[set[str], float]:
    """Heavy packages in a fresh interpreter after ``code``, and the cpu seconds it took."""
    script = f"import sys\n{code}\nsys.stderr.write('\\nMODULES ' + ' '.join(sys.modules))"
    before = children_seconds()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names = set(done.stderr.rpartition("MODULES ")[2].split())
    assert "sys" in names
    return names & HEAVY, children_seconds() - before


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("import tellapart", 0.5),
        ("from tellapart.cli.main import main; main(['--help'])", 1.0),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code, limit):
    heavy, seconds = imported_by(code)
    assert heavy == set()
    assert seconds < limit


@pytest.mark.parametrize(
    "words",
    [["train"], ["train-listener"], ["caption"], ["doctor"], ["data"], ["data", "check"], ["data", "convert"]],
    ids=" ".join,
)
def test_help_waits_for_no_model(words):
    _waits_for_no_model([*words, "--help"])


@pytest.mark.parametrize("words", [["methods"], ["methods", "--json"], ["recipes"]], ids=" ".join)
def test_lists_wait_for_no_model(words):
    _waits_for_no_model(words)


def _waits_for_no_model(words):
    heavy, seconds = imported_by(f"from tellapart.cli.main import main; main({words})")
    assert heavy <= {"numpy"}
    assert seconds < 2.0


def test_the_options_of_recipes_are_read_without_transformers():
    names = ["world_ved_dico_truth", "world_blip2_vlrm", "world_blip2_vlrm_rs", "world_ved_psst", "world_ved_g_gan"]
    code = f"from tellapart.cli.main import main; [main(['train', name, '--help']) for name in {names}]"
    assert imported_by(code)[0] == {"torch", "numpy"}


@pytest.mark.parametrize(
    "words", [["score"], ["report"], ["judge"], ["data", "check"], ["data", "convert"]], ids=" ".join
)
def test_help_describes_inherited_options_too(words, capsys):
    assert main([*words, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    options = [(line, after) for line, after in zip(lines, [*lines[1:], ""], strict=True) if line.startswith("  --")]
    assert len(options) > 5
    assert [line for line, after in options if not after.startswith("      ")] == []


def test_every_public_name_resolves():
    assert len(tellapart.__all__) > 15
    assert sorted(tellapart.__all__) == tellapart.__all__
    for name in tellapart.__all__:
        assert getattr(tellapart, name) is not None
    assert set(tellapart.__all__) <= set(dir(tellapart))
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        tellapart.Trainer  # noqa: B018


def test_every_command_and_method_resolves():
    for line, target in COMMANDS.values():
        assert line
        assert callable(resolve(target))
    for method in METHODS.values():
        assert isinstance(resolve(method.target), type)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(words, capsys):
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_every_command_has_help(capsys):
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert f"tellapart {name}" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tellapart {tellapart.__version__}\n"


def test_methods_table(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "method"
    assert max(map(len, lines)) <= 100
    begins = [place for place, line in enumerate(lines) if place > 1 and not line.startswith(" ")]
    parts = [lines[begin:end] for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True)]
    shown = {part[0].split()[0]: " ".join(" ".join(part).split()) for part in parts}
    assert set(shown) == set(METHODS)
    assert "needed" in shown["xe"]
    assert METHODS["xe"].paper in shown["xe"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "'trian' is not a command of tellapart: did you mean train?"),
        (["qqq"], "'qqq' is not a command of tellapart: choose one of demo, "),
        (["methods", "dicoo"], "'dicoo' is not a method: did you mean dico?"),
        (["caption", "--num_beans", "3"], "--num_beans is not an option: did you mean --num_beams?"),
        (["caption", "--captioner"], "--captioner has no value"),
        (["caption", "x.jpg"], "--captioner is missing: give --captioner, a run of tellapart, a model folder"),
        (["features", "x"], "--model is missing: give --model, a vision model of transformers"),
    ],
)
def test_wrong_words_are_one_sentence_and_exit_2(words, sentence, capsys):
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: {sentence}")
    assert said.err.count("\n") == 1


def test_errors_of_the_system_are_sentences_too(monkeypatch, capsys):
    def full(words):
        raise OSError(28, "No space left on device", "/disk/file")

    monkeypatch.setitem(COMMANDS, "methods", ("", "tellapart.cli.methods:run"))
    monkeypatch.setattr("tellapart.cli.methods.run", full)
    assert main(["methods"]) == 2
    assert capsys.readouterr().err == (
        "error: /disk/file: No space left on device: free some space or write to another disk.\n"
    )
    with pytest.raises(OSError, match="No space left"):
        main(["methods", "--debug"])


def test_an_interrupt_in_a_finalizer_is_not_lost(monkeypatch, capsys):
    """It printed "Exception ignored in", and the command continued."""

    class Final:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def run(words):
        Final()
        time.sleep(5)
        return 0

    monkeypatch.setattr("tellapart.cli.main.resolve", lambda name: run)
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    assert main(["methods"]) == 130
    assert capsys.readouterr().err == "interrupted.\n"
    assert not ignored

    class Other:
        def __del__(self):
            raise ValueError

    monkeypatch.setattr("tellapart.cli.main.resolve", lambda name: lambda words: Other() and 0)
    assert main(["methods"]) == 0
    assert [each.exc_type for each in ignored] == [ValueError], "others are heard as before"


def test_importing_is_not_held_up_by_looking_for_garbage():
    """By Python's own numbers the help of a recipe looks through all objects three times."""
    script = (
        "import atexit, gc, sys\nfrom tellapart.cli.main import program\nbefore = gc.get_stats()[2]['collections']\n"
    )
    script += "atexit.register(lambda: print(gc.get_stats()[2]['collections'] - before, gc.isenabled()))\n"
    script += "sys.argv = ['tellapart', 'train', 'world_ved_dico', '--help']\nprogram()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 True"


@pytest.mark.skipif(sys.platform == "win32", reason="has other signals")
def test_an_interrupt_after_the_end_of_a_command_prints_nothing():
    script = "import atexit, signal, sys\nfrom tellapart.cli.main import program\n"
    script += "atexit.register(signal.raise_signal, signal.SIGINT)\nsys.argv = ['tellapart', 'version']\nprogram()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert done.stdout == f"tellapart {tellapart.__version__}\n"


def test_an_interrupt_at_the_very_beginning_ends_with_130(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(os.environ), "setdefault", interrupted)  # the first thing that a command does
    assert main(["methods"]) == 130
    assert capsys.readouterr().err == "interrupted.\n"


def test_an_interrupt_ends_with_130(monkeypatch, capsys):
    for said, shown in ((), "interrupted."), (("stopped at step 3",), "stopped at step 3"):

        def interrupted(words, said=said):
            raise KeyboardInterrupt(*said)

        monkeypatch.setattr("tellapart.cli.methods.run", interrupted)
        assert main(["methods"]) == 130
        assert capsys.readouterr().err == f"{shown}\n"


@pytest.mark.parametrize("word", ["nope/", "nope.csv", "owner/name"])
def test_a_missing_path_is_reported_before_models_are_imported(word):
    words = ["caption", word, "--captioner", "nobody/none"]
    heavy, seconds = imported_by(f"from tellapart.cli.main import main; assert main({words}) == 2")
    assert heavy <= {"numpy"}
    assert seconds < 2.0, "0.3 on a machine with nothing else to do"
