"""Tar archives of others, and such as no program writes."""

from __future__ import annotations

import io
import tarfile

import pytest

from tellapart import load_dataset
from tellapart.captioning.shards.samples import DamagedError, tar_samples
from tellapart.data.tars import members_within, reading_tar
from tellapart.data.unlabelled.source import members_of
from tellapart.errors import UsageError
from unlabelled_files import jpeg, shard


def written(path, *members, pax=None):
    """A tar of members (name, data)."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.pax_headers = pax or {}
            archive.addfile(member, io.BytesIO(data))
    return path


def negative(path, name, kind=b"0"):
    """A tar whose second header steps back by itself: a size in base 256, which may be negative."""
    data = bytearray(written(path, ("k0.jpg", b"x" * 10), (name, b"")).read_bytes())
    at = 1024  # a header and a block of data before
    data[at + 124 : at + 136] = (-512).to_bytes(12, "big", signed=True)
    data[at + 156 : at + 157] = kind
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    path.write_bytes(data)
    return path


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["k1.jpg", ".x"])
@pytest.mark.parametrize("kind", [b"0", b"L", b"x"])
def test_a_size_below_zero_ends_every_reader(tmp_path, name, kind):
    """tarfile stepped back and read the same header for ever."""
    path = negative(tmp_path / "x.tar", name, kind)
    with (
        pytest.raises(tarfile.ReadError, match="size of -512 bytes"),
        path.open("rb") as file,
        reading_tar(file) as tar,
    ):
        list(members_within(tar))
    with pytest.raises(UsageError, match=r"not a whole tar archive .*size of -512 bytes"):
        load_dataset(path, split="any")
    members, problem = members_of(path, "x")
    assert len(members) == 1
    assert "size of -512 bytes" in problem
    with pytest.raises(DamagedError, match="size of -512 bytes"), path.open("rb") as file:
        list(tar_samples(file, "x"))


@pytest.mark.timeout(20)
def test_a_size_below_zero_of_an_extended_header(tmp_path):
    path = written(tmp_path / "x.tar", ("k0.jpg", b"x" * 10), pax={"size": "-1024"})
    with (
        pytest.raises(tarfile.ReadError, match="size of -1024 bytes"),
        path.open("rb") as file,
        reading_tar(file) as tar,
    ):
        list(members_within(tar))


def test_members_come_in_their_order_up_to_a_cut(tmp_path):
    path = written(tmp_path / "x.tar", ("a.jpg", b"x" * 700), ("b.jpg", b"y" * 700))
    with path.open("rb") as file, reading_tar(file) as archive:
        assert [(member.name, member.size) for member in members_within(archive)] == [("a.jpg", 700), ("b.jpg", 700)]
        assert archive.members == [], "a large archive's would fill the memory"
    path.write_bytes(path.read_bytes()[:2700])
    with path.open("rb") as file, reading_tar(file) as archive:
        members = members_within(archive)
        assert next(members).name == "a.jpg"
        with pytest.raises(tarfile.ReadError, match=r"ends in the middle of b\.jpg"):
            next(members)


def test_endings_in_capitals_are_tars(tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    shard(shards / "A.TAR", 0, 2)
    shard(shards / "b.tar", 2, 1)
    keys = ["00000", "00001", "00002"]
    assert load_dataset(shards, split="any").ids == keys
    assert load_dataset(shards / "A.TAR", split="any").ids == keys[:2]
    assert load_dataset(shards / "A.TAR", split="any", format="webdataset").ids == keys[:2]
    (shards / "c.jpg").write_bytes(jpeg(3))
    assert len(load_dataset(shards, split="any")) == 4  # unlabelled: tars with images next to them
