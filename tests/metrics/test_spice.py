"""SPICE through its authors' program, with a stand-in for Java, and what is said where a part of it is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from java_fakes import small_jar, stand_in
from pycocoevalcap.spice.spice import Spice as ReferenceSpice

from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.evaluation.spice import SpiceMeasure
from tellapart.metrics import spice as module
from tellapart.metrics.spice import PARTS, Spice, SpiceProgram, java_error, java_version, spice_figures

CAPTIONS = ["a red star", "a star", "", "two rings of é", "a red star"]
REFERENCES = [
    ["a star on a red table", "a star"],
    ["ring"],
    ["a dog"],
    ["rings é in a row", "blue rings"],
    ["a star on a red table", "a star"],
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def java(tmp_path, monkeypatch):
    """Makes a stand-in of a kind the Java of this machine."""

    def made(behaviour: str = "scores", **options):
        found = stand_in(tmp_path / "java", behaviour, **options)
        monkeypatch.setenv("JAVA_HOME", str(found.home))
        return found

    return made


def f_of(caption: str, references: list[str]) -> float:
    """What the stand-in does, again."""
    found, wanted = set(caption.split()), set(" ".join(references).split())
    both = len(found & wanted)
    return 2 * both / (len(found) + len(wanted)) if both else 0.0


def test_scores_come_back_to_their_captions_whatever_the_chunks(java):
    fake = java()
    scores = Spice(SpiceProgram.find(fake.jar, heap="3G"), images_a_run=2).score(CAPTIONS, REFERENCES)
    assert [found["All"]["f"] for found in scores] == pytest.approx(list(map(f_of, CAPTIONS, REFERENCES)))
    assert scores[0] == scores[4]  # asked for once
    assert [len(items) for items in fake.asked()] == [2, 2]
    assert [item["test"] for items in fake.asked() for item in items] == CAPTIONS[:4]
    first = fake.calls()[0]
    assert first[:2] == ["-Xmx3G", "-jar"]
    assert {"-subset", "-silent", "-out"} <= set(first)


def test_what_was_scored_is_not_scored_again(java):
    fake = java()
    spice = Spice(SpiceProgram.find(fake.jar))
    before = spice.score(CAPTIONS[:2], REFERENCES[:2])
    after = spice.score(CAPTIONS, REFERENCES)
    assert after[:2] == before
    assert [item["test"] for item in fake.asked()[1]] == CAPTIONS[2:4]
    Spice(SpiceProgram.find(fake.jar)).score(CAPTIONS, REFERENCES)
    spice.score(CAPTIONS[:1], [["another reference"]])
    assert [len(items) for items in fake.asked()] == [2, 2, 1]
    (fake.jar.parent / "lib" / "helper.jar").write_bytes(b"another version")
    Spice(SpiceProgram.find(fake.jar)).score(CAPTIONS[:1], REFERENCES[:1])
    assert len(fake.calls()) == 4


def test_a_damaged_cache_is_scored_again_with_a_warning(java, own_cache, caplog):
    fake = java()
    spice = Spice(SpiceProgram.find(fake.jar))
    spice.score(CAPTIONS, REFERENCES)
    (path,) = (own_cache / "spice").glob("scores-*.sqlite")
    path.write_bytes(b"nonsense" * 1000)
    assert len(spice.score(CAPTIONS, REFERENCES)) == 5
    assert "is damaged" in caplog.text
    assert len(fake.calls()) == 2
    spice.score(CAPTIONS, REFERENCES)
    assert len(fake.calls()) == 2


def test_what_ran_before_a_failure_is_kept(java):
    fake = java("fails the second time")
    spice = Spice(SpiceProgram.find(fake.jar), images_a_run=2)
    with pytest.raises(UsageError, match=r"exit code 3 \(without a word; .* is kept"):
        spice.score(CAPTIONS, REFERENCES)
    assert len(spice.score(CAPTIONS, REFERENCES)) == 5
    assert [len(items) for items in fake.asked()] == [2, 2, 2]


def test_the_corpus_value_is_that_of_the_reference_tool(java, tmp_path, monkeypatch):
    """pycocoevalcap's wrapper around the same stand-in; only its constructor, which downloads, is left out."""
    fake = java()
    metrics, columns = spice_figures(Spice(SpiceProgram.find(fake.jar)).score(CAPTIONS, REFERENCES))
    folder = tmp_path / "reference"
    folder.mkdir()
    monkeypatch.setattr("pycocoevalcap.spice.spice.__file__", str(folder / "spice.py"))
    monkeypatch.setenv("PATH", f"{fake.home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    reference = object.__new__(ReferenceSpice)
    ids = range(len(CAPTIONS))
    corpus, rows = reference.compute_score({i: REFERENCES[i] for i in ids}, {i: [CAPTIONS[i]] for i in ids})
    assert metrics["SPICE"] == pytest.approx(corpus, abs=1e-12)
    assert columns["SPICE"] == pytest.approx([row["All"]["f"] for row in rows])
    assert columns["SPICE_precision"] == pytest.approx([row["All"]["pr"] for row in rows])
    for part in PARTS:
        theirs = np.array([row[part]["f"] for row in rows])
        assert np.array(columns[f"SPICE_{part}"], float) == pytest.approx(theirs, nan_ok=True)
        known = theirs[~np.isnan(theirs)]
        if len(known):
            assert metrics[f"SPICE_{part}"] == pytest.approx(known.mean())
        else:
            assert f"SPICE_{part}" not in metrics


def test_progress_moves_with_each_run(java, monkeypatch):
    seen = []

    class Bar:
        def __init__(self, description, total, *, done=0):
            seen.append((description, total, done))

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def advance(self, amount):
            seen.append(amount)

    monkeypatch.setattr(module, "bar", Bar)
    spice = Spice(SpiceProgram.find(java().jar), images_a_run=3)
    spice.score(CAPTIONS[:1], REFERENCES[:1])
    spice.score(CAPTIONS, REFERENCES)
    assert seen == [("SPICE (Java)", 1, 0), 1, ("SPICE (Java)", 4, 1), 3]


def test_javas_own_error_is_told_and_kept(java, own_cache):
    spice = Spice(SpiceProgram.find(java("fails").jar))
    with pytest.raises(UsageError) as raised:
        spice.score(CAPTIONS, REFERENCES)
    assert 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space' in str(raised.value)
    kept = own_cache / "spice" / "java_messages.txt"
    assert str(kept) in str(raised.value)
    assert "at edu.anu.Spice" in kept.read_text()
    spice = Spice(SpiceProgram.find(java("writes nothing").jar))
    with pytest.raises(UsageError, match="wrote no scores"):
        spice.score(CAPTIONS, REFERENCES)


def test_the_line_that_names_javas_error():
    trace = (
        "Error: Could not score batched file input:\njava.io.IOException: x\n\tat java.lang.Exception.y\nCaused by: a.B"
    )
    assert java_error(trace) == "java.io.IOException: x"
    start = "Error occurred during initialization of VM\nCould not reserve enough space\n"
    assert java_error(start) == "Error occurred during initialization of VM, Could not reserve enough space"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_run_has_a_time_limit_and_no_process_outlives_it(java):
    fake = java("hangs")
    spice = Spice(SpiceProgram.find(fake.jar, timeout=3))
    with pytest.raises(UsageError, match="took more than 3 s: give a larger --spice_timeout"):
        spice.score(CAPTIONS, REFERENCES)
    assert not alive(int((fake.home / "pid").read_text()))


def test_ctrl_c_ends_java_too(java):
    fake = java("hangs")
    spice = Spice(SpiceProgram.find(fake.jar))

    def interrupt():
        for _ in range(1000):
            time.sleep(0.02)
            if (fake.home / "pid").exists() and (fake.home / "pid").read_text():
                break
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        spice.score(CAPTIONS, REFERENCES)
    thread.join()
    assert not alive(int((fake.home / "pid").read_text()))


def test_missing_parts_are_told_in_one_sentence_before_anything_starts(java, tmp_path, monkeypatch):
    fake = java()
    monkeypatch.setattr(subprocess, "Popen", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    assert SpiceProgram.find(fake.jar.parent).jar == fake.jar
    stanford = ["lib/stanford-corenlp-3.6.0.jar", "lib/stanford-corenlp-3.6.0-models.jar"]
    jar = small_jar(tmp_path / "lacking", ["lib/a-library-with-a-long-name.jar", *stanford], missing=2)
    told = refusal(jar)
    assert "Stanford CoreNLP 3.6.0 is missing" in told
    assert "put stanford-corenlp-3.6.0.jar and stanford-corenlp-3.6.0-models.jar (from nlp.stanford.edu" in told
    assert told.endswith(f"into {jar.parent / 'lib'}.")
    other = small_jar(tmp_path / "poorer", ["lib/one.jar", "lib/two.jar"], missing=1)
    assert "1 libraries of spice-1.0.jar are missing: put two.jar into" in refusal(other)
    assert "holds no spice-*.jar: install pycocoevalcap" in refusal(tmp_path / "nowhere")
    (tmp_path / "text.jar").write_text("no archive")
    assert "is not a jar" in refusal(tmp_path / "text.jar")
    monkeypatch.setattr("tellapart.metrics.spice.find_spec", lambda name: None)
    assert "its jar is missing: install pycocoevalcap" in refusal(None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    told = refusal(jar)  # both at once
    assert "CoreNLP 3.6.0 is missing and there is no Java" in told
    assert "and install Java 8 (at most 14) and set JAVA_HOME to it" in told


def refused(*words, **options):
    raise AssertionError("nothing is to be started or fetched")


def refusal(jar) -> str:
    with pytest.raises(UsageError) as raised:
        SpiceProgram.find(jar)
    text = str(raised.value)
    assert text.startswith("SPICE is left out, because")
    assert len(re.findall(r"\.(?: |$)", text)) == 1
    return text


@pytest.mark.parametrize(
    ("version", "works"), [("1.8.0_392", True), ("14.0.1", True), ("15", False), ("17.0.15", False)]
)
def test_a_java_without_javascript_is_refused(java, version, works):
    fake = java(version=version)
    major = 8 if version.startswith("1.") else int(version.partition(".")[0])
    assert java_version(fake.home / "bin" / "java") == major
    if works:
        SpiceProgram.find(fake.jar)
    else:
        assert f"does not work with Java {major}, only with 8 to 14: set JAVA_HOME" in refusal(fake.jar)


def test_the_measure_is_left_out_in_words_and_never_fails(java):
    captions = dict(zip("abcd", ["A red star.", "a star", "", "two rings"], strict=True))
    references = dict(zip("abcd", REFERENCES, strict=False))
    fake = java()
    measure = SpiceMeasure(references, jar=fake.jar)
    metrics, columns = measure(captions)
    assert columns["SPICE"][0] == pytest.approx(f_of("a red star", REFERENCES[0]))  # in the words of all metrics
    assert metrics["SPICE"] == pytest.approx(np.mean(columns["SPICE"]))
    assert measure.left_out == {}
    assert measure.measured_by["SPICE"].startswith("spice-1.0.jar [")
    assert SpiceMeasure(references | {"b": []}, jar=fake.jar)(captions) == ({}, {})
    failing = SpiceMeasure(references, jar=java("fails").jar)
    failing._spice.fingerprint = "another"
    assert failing(captions) == ({}, {})
    assert "OutOfMemoryError" in failing.left_out["SPICE"]
    missing = SpiceMeasure(references, jar=fake.home)
    assert missing(captions) == ({}, {})
    assert missing.left_out["SPICE"].startswith("SPICE is left out, because")
    assert missing.measured_by == {}


def scored(tmp_path, capsys, *words) -> tuple[dict, str]:
    said = {"1": "a red star", "2": "a star"}
    (tmp_path / "refs.json").write_text(json.dumps({"1": REFERENCES[0], "2": REFERENCES[1]}))
    (tmp_path / "said.json").write_text(json.dumps(said))
    command = ["score", str(tmp_path / "said.json"), "--references", str(tmp_path / "refs.json"), *map(str, words)]
    assert main([*command, "--json", "--bootstrap", "10"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    return told, capsys.readouterr().out


def test_the_command_line_scores_or_says_what_is_missing(java, tmp_path, capsys):
    fake = java()
    told, table = scored(tmp_path, capsys, "--spice_jar", fake.jar, "--spice_heap", "2G")
    want = (f_of("a red star", REFERENCES[0]) + f_of("a star", REFERENCES[1])) / 2
    assert told["metrics"]["SPICE"] == pytest.approx(want)
    assert "SPICE" in told["intervals"]
    assert "SPICE by spice-1.0.jar [" in told["protocol"]["line"]
    assert re.search(r"^SPICE +\d", table, re.M)
    assert len(fake.calls()) == 1
    told, table = scored(tmp_path, capsys, "--spice_jar", tmp_path / "nothing")
    assert "SPICE" not in told["metrics"]
    assert told["details"]["left_out"]["SPICE"].startswith("SPICE is left out, because")
    assert re.search(r"^SPICE +-", table, re.M)
    assert "SPICE is left out, because" in table
    assert "SPICE by" not in told["protocol"]["line"]
    told, table = scored(tmp_path, capsys)
    assert "SPICE" not in table
    assert main(["score", "x", "--references", "y", "--spice_heap", "much"]) == 2
    assert main(["score", "x", "--references", "y", "--spice_timeout", "0"]) == 2


@pytest.mark.java
@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")
def test_the_true_java_tells_what_the_true_jar_lacks():
    """pycocoevalcap brings the jar and not CoreNLP; our own check, which would tell before, is passed over."""
    jar = Path(next(iter(find_spec("pycocoevalcap").submodule_search_locations))) / "spice" / "spice-1.0.jar"
    if (jar.parent / "lib" / "stanford-corenlp-3.6.0.jar").exists():
        pytest.skip("CoreNLP is there")
    assert "Stanford CoreNLP 3.6.0 is missing" in refusal(None)
    spice = Spice(SpiceProgram(jar, shutil.which("java"), "500M"))
    with pytest.raises(UsageError) as raised:
        spice.score(CAPTIONS, REFERENCES)
    assert "java.lang.NoClassDefFoundError: edu/stanford/nlp/semgraph/semgrex/SemgrexPattern" in str(raised.value)
    assert not any(jar.parent.glob("**/stanford-corenlp*"))


def test_no_torch_is_needed():
    code = "import sys, tellapart.evaluation.spice; sys.exit(bool({'torch', 'transformers', 'pycocoevalcap'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
