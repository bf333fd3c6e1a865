"""Models and data on disk count by content, however they are named."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import TrainingData
from tellapart.recipe.fingerprint import content_of, digest
from tellapart.recipe.images import read_further


def captions(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", ["a.txt", "a.caption", "results.token", "a.json", "a.ndjson"])
def test_captions_of_a_folder_count_by_content(tmp_path, name):
    """Of equal length, so that the file's size tells nothing."""
    folder = captions(tmp_path / "train", name, "a red dog")
    before = digest(folder)
    captions(folder, name, "a tan cat")
    assert digest(folder) != before


def test_what_is_behind_a_link_to_a_folder_counts(tmp_path):
    """Readers follow it; every such folder had the digest of nothing."""
    real, linked = captions(tmp_path / "real" / "sub", "a.txt", "a red dog").parent, tmp_path / "data"
    linked.mkdir()
    (linked / "train").symlink_to(real)
    before = content_of(str(linked), "full")
    (tmp_path / "empty").mkdir()
    assert before != digest(tmp_path / "empty")
    captions(real / "sub", "a.txt", "a tan cat")
    os.utime(real / "sub" / "a.txt", (1, 1))
    assert content_of(str(linked), "full") != before
    (real / "back").symlink_to(tmp_path)  # which leads to where it came from
    digest(linked)


def test_a_digest_is_of_names_sizes_and_what_can_be_read(tmp_path):
    """Archives of results are kept by it. Hidden files, which no reader sees, and the optimiser's state do not count."""
    folder = captions(tmp_path / "train" / "b", "a.txt", "a red dog").parent
    captions(folder, "a.txt", "a tan cat")
    (folder / "a.png").write_bytes(b"picture")
    told = [b"a.png 7\n", b"a.txt 9\n", b"a tan cat", b"b/a.txt 9\n", b"a red dog"]
    captions(folder / ".hidden", "b.json", "{}")
    (folder / "optimizer.pt").write_bytes(b"1")
    assert digest(folder) == hashlib.sha256(b"".join(told)).hexdigest()[:24]


def test_shards_of_a_pattern_count_by_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        (tmp_path / "a.txt").write_text(f"a red dog {number}")
        with tarfile.open(f"{number:03}.tar", "w") as archive:
            archive.add("a.txt")
    found = [content_of(pattern, "full") for pattern in ("{000..001}.tar", "*.tar", "{000..000}.tar")]
    assert found[0] == found[1] != found[2]
    Path("001.tar").write_bytes(Path("000.tar").read_bytes() + b"\0" * 512)
    assert content_of("{000..001}.tar", "full") != found[0]
    assert content_of("{000..000}.tar", "full") == found[2]
    # names of what is not here, or elsewhere, stand for themselves
    for name in ("{000..002}.tar", "none/*.tar", "https://example.org/{000..001}.tar", "Salesforce/blip"):
        assert content_of(name, "full") == name


def test_what_prompts_and_rewards_read_of_the_images_is_part_of_the_data():
    """Else a run goes on with other contexts, neighbours or questions without a word."""

    def data(context):
        example = Example("1", ArrayImage(np.zeros((4, 4, 3), np.uint8)), ("a star",), context)
        return TrainingData(CaptionDataset([example], name="t"), Collate({})).fingerprint()

    assert len({data(""), data("a tower"), data("a river")}) == 3


@pytest.mark.parametrize("name", ["neighbours", "questions"])
def test_files_that_a_training_reads_are_part_of_its_data(tmp_path, name):
    file = tmp_path / "read.json"
    file.write_text("{}")

    def told(path, users, own=None):
        entry = SimpleNamespace(parts={} if own is None else {name: SimpleNamespace(path=own)})
        recipe = SimpleNamespace(
            users=lambda part: users if part == name else [], parts={name: SimpleNamespace(path=path)}, reward=(entry,)
        )
        return read_further(SimpleNamespace(recipe=recipe))  # type: ignore[arg-type]

    assert told(None, ["method wtf_rl"]) == told(str(file), []) == told("world", ["reward.x"]) == ""
    before = told(file, ["method wtf_rl"])
    assert told(None, [], own=file) == before, "a reward may have a file of its own"
    file.write_text("[]")
    assert "" != told(file, ["method wtf_rl"]) == told(None, [], own=file) != before != ""
