"""A token in the environment appears in nothing that is printed or written."""

from __future__ import annotations

import pytest

from tellapart.cli.main import main

TOKEN = "hf_" + "xY7" * 11


@pytest.fixture
def token(monkeypatch) -> str:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY"):
        monkeypatch.setenv(name, TOKEN)
    return TOKEN


def test_a_run_its_report_and_its_errors_hold_no_token(materials, tmp_path, capsys, token, monkeypatch):
    run = tmp_path / "xe"
    assert main(["train", str(materials.recipe(tmp_path, "xe"))]) == 0
    assert main(["report", str(run), "--output", str(tmp_path / "report.html")]) == 0
    assert main(["doctor"]) in (0, 1, 2)
    from huggingface_hub import HfApi

    def refused(*_, **options):
        raise OSError(f"403 Forbidden for https://hub/api with header Bearer {token}")

    monkeypatch.setattr(HfApi, "create_repo", refused)
    assert main(["push", str(run), "--hub_model_id", "somebody/x"]) != 0
    assert main(["caption", "nowhere", "--captioner", "no/such"]) == 2
    said = capsys.readouterr()
    assert token not in said.out + said.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if token.encode() in path.read_bytes()]
