"""Markers say how they were measured, and a study asks for the same data and decodings."""

import json
from pathlib import Path

from tellapart.evaluation.protocol import data_digest, software
from tellapart.experiments import world_run
from tellapart.experiments.world import World
from tellapart.experiments.world_run import TRAINED, Setting, marker_of, protocol_of, run
from tellapart.world import load_world

SETTING = Setting(row="dico", knob=0.2, steps=4, size="small")


def test_a_protocol_has_what_a_key_lacks():
    told = protocol_of((), "small")
    assert told["software"] == software()
    assert told["digest"] == data_digest(load_world("test", size="small").references)
    assert (told["greedy"], told["beam5"]) == ("greedy, max_new_tokens=38", "beam 5, max_new_tokens=38")
    assert protocol_of(("sets",), "small").keys() - told.keys() == {"rs5", "bs5"}


def test_other_words_are_measured_anew_and_another_version_is_not(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(World, "load", lambda *_: None)
    measured = []
    monkeypatch.setattr(world_run, "_test", lambda *given: measured.append(given) or {"greedy": {}})
    job = SETTING.job(tmp_path, test=True)
    job.folder.mkdir()
    (job.folder / TRAINED).write_text("{}")
    marker = job.folder / marker_of()

    def measured_now() -> int:
        before = len(measured)
        done = job.done()
        run(SETTING, job.folder, test=True)
        assert done == (len(measured) == before)
        assert job.done()
        return len(measured) - before

    assert measured_now() == 1
    written = json.loads(marker.read_text())
    assert written["protocol"] == protocol_of((), "small")
    assert measured_now() == 0
    for name, other, again in (("greedy", "greedy", 1), ("digest", "00000000", 1), ("software", "tellapart 0.0.1", 0)):
        marker.write_text(json.dumps(written | {"protocol": written["protocol"] | {name: other}}))
        assert measured_now() == again
    marker.write_text(json.dumps({key: value for key, value in written.items() if key != "protocol"}))
    assert measured_now() == 0  # of an earlier build
