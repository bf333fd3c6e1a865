"""The demo on the small world: from recipes in the package to one table and one page, and nothing is trained twice."""

from __future__ import annotations

import json

import pytest

from tellapart.sweep.demo import run_demo


@pytest.mark.slow
@pytest.mark.nightly  # .ci/run runs the same command
def test_the_demo_compares_and_reports_and_resumes(tmp_path, monkeypatch):
    said, comparison, page = run_demo(tmp_path, size="small", workers=1)
    names = [result.name for result in comparison.results]
    assert names == [
        "xe",
        "xe --apart, no training",
        "scst-CLIP, last step",
        "dico on truth, selected",
        "human",
        "full description",
        "empty caption",
    ]
    assert said.partition(" tells images apart best: exact R@1 ")[0] in names
    assert "captions drawn otherwise than in the other rows: told apart" in page.read_text(encoding="utf-8")
    assert page == tmp_path / "report.html"
    trained = [json.loads(path.read_text())["step"] for path in tmp_path.glob("points/*/trainer_state.json")]
    assert trained == [4, 4]
    text = page.read_text(encoding="utf-8")
    assert all(name in text for name in names)
    monkeypatch.setattr("tellapart.sweep.jobs.Job.start", lambda job: pytest.fail(f"{job.name} ran again"))
    again_said, again, _ = run_demo(tmp_path, size="small", workers=1)
    assert again_said == said
    assert [result.metrics for result in again.results] == [result.metrics for result in comparison.results]
