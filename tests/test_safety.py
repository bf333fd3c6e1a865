"""What docs/explanation/safety.md promises: how files are read, what is started, who reads the cache, that tokens are hidden."""

from __future__ import annotations

import ast
import os
import stat
import struct
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tellapart.cli.console import note
from tellapart.data.archives import require_modest
from tellapart.data.decoding import decode
from tellapart.data.sniff import ImageError
from tellapart.errors import UsageError, without_secrets
from tellapart.files import cache_dir

SOURCE = Path(__file__).parents[1] / "src" / "tellapart"
TOKEN = "hf_" + "aB3" * 11


@cache
def calls() -> list[tuple[str, str, dict[str, str]]]:
    """Every call of the package: where, what is called, and its keywords."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                keywords = {str(word.arg): ast.unparse(word.value) for word in node.keywords}
                found.append((f"{path.name}:{node.lineno}", ast.unparse(node.func), keywords))
    return found


def test_nothing_is_loaded_that_may_run_code():
    assert len(calls()) > 5000
    for place, name, keywords in calls():
        assert keywords.get("trust_remote_code", "False") == "False", place  # left out, transformers asks at a terminal
        assert keywords.get("allow_pickle", "False") == "False", place
        if name == "torch.load":
            assert keywords.get("weights_only") == "True", place
        assert name not in ("pickle.load", "pickle.loads", "marshal.loads", "exec", "os.system", "os.popen"), place
        assert name not in ("yaml.unsafe_load", "yaml.full_load"), place
        assert not name.endswith((".extractall", ".extract", "shelve.open")), place
    assert [place.split(":")[0] for place, name, _ in calls() if name == "eval"] == ["ranges.py"]
    assert {place.split(":")[0] for place, name, _ in calls() if name == "yaml.load"} == {"read_yaml.py"}


def test_programs_are_started_without_a_shell():
    started = [(place, keywords) for place, name, keywords in calls() if name.startswith("subprocess.")]
    assert len(started) >= 4
    assert all("shell" not in keywords for _, keywords in started)


def test_a_new_cache_is_its_owners_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "a" / "cache"))
    assert stat.S_IMODE(cache_dir().stat().st_mode) == 0o700
    os.chmod(tmp_path / "a" / "cache", 0o750)
    assert stat.S_IMODE(cache_dir().stat().st_mode) == 0o750, "one that is there stays as its owner made it"
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").touch()
    assert cache_dir() == tmp_path / "file" / "cache"


def png(width: int, height: int) -> bytes:
    """A PNG of one bit per pixel, all black."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"\0" * (height * (1 + -(-width // 8))), 9)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_images_that_unfold_too_far_are_refused_before_they_are_decoded():
    assert decode(png(4000, 4000), "plain.png").size == (4000, 4000)
    bomb = png(13_000, 13_000)
    assert len(bomb) < 30_000
    with pytest.raises(
        ImageError, match=r"bomb\.png .* unfold to 169,000,000 pixels, as those of a decompression bomb"
    ):
        decode(bomb, "bomb.png")
    with pytest.raises(ImageError, match="more than the limit"):
        decode(png(20_000, 20_000), "large.png")


def test_arrays_that_unfold_too_far_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", feat=np.zeros(2**25, np.float32))
    assert (tmp_path / "bomb.npz").stat().st_size < 200_000
    with pytest.raises(UsageError, match=r"unfolds feat\.npy from .* to 134,217,8"):
        require_modest(tmp_path / "bomb.npz")
    np.savez_compressed(tmp_path / "fine.npz", feat=np.random.default_rng(0).normal(size=(50, 2048)))
    np.save(tmp_path / "fine.npy", np.zeros(3))
    require_modest(tmp_path / "fine.npz")
    require_modest(tmp_path / "fine.npy")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"401 for {TOKEN}: log in", "401 for hf_...: log in"),
        ("Authorization: Bearer abc.def-ghi_jkl123", "Authorization: Bearer ..."),
        ("https://x.y/z?token=0123456789abcdef&a=1", "https://x.y/z?token=...&a=1"),
        ("a token is a word, hf_hub too, and bearer of news", "a token is a word, hf_hub too, and bearer of news"),
    ],
)
def test_messages_hold_no_token(text, told, capsys):
    assert without_secrets(text) == told
    note(text)
    assert capsys.readouterr().err == f"{told}\n"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("AWS_SECRET_ACCESS_KEY", False),
        ("HF_TOKEN", False),
        ("PGPASSWORD", False),
        ("AZURE_STORAGE_CONNECTION_STRING", False),
        ("TOKENIZERS_PARALLELISM", True),
        ("KEYBOARD", True),
    ],
)
def test_secrets_of_the_environment_are_not_said(name, kept, monkeypatch):
    monkeypatch.setenv(name, "abc123-long-value")
    assert without_secrets("403 for abc123-long-value") == f"403 for {'abc123-long-value' if kept else '...'}"
