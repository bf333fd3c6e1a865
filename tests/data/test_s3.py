"""A local S3-like server (moto): listing, ranged reads, whole puts, and requests that fail."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

from captioning.captioning_fakes import OPENING, plain, shard_job
from tellapart.captioning.shards.launch import caption_shards, shards_of
from tellapart.captioning.shards.merge import merged
from tellapart.captioning.shards.output import ShardFolder
from tellapart.data.remote import folders
from tellapart.data.remote.folders import Folder
from tellapart.errors import UsageError

SECRET = "Local-Secret-0123456789"


@pytest.fixture
def s3(monkeypatch):
    """A file system over an S3-like server of this process, which s3:// addresses lead to."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    values = {
        "AWS_ACCESS_KEY_ID": "local-access-key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(folders, "BACK_OFF", 0.001)
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem = s3fs.S3FileSystem()
    if not filesystem.exists("bucket"):
        filesystem.mkdir("bucket")
    yield filesystem
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def build(rank, processes):
    return OPENING


def test_shards_in_and_out_of_s3(s3, monkeypatch):
    for number in range(3):
        s3.pipe(f"bucket/in/{number:05}.tar", plain(10 * number, 10))
    s3.pipe("bucket/in/00001.tar", b"x" * 4000)
    shards = shards_of(["s3://bucket/in"])
    assert shards == [f"s3://bucket/in/{number:05}.tar" for number in range(3)]
    output = ShardFolder.begin(Folder("s3://bucket/out"), {"captioner": "x"})
    monkeypatch.setattr("tellapart.captioning.shards.launch.BACK_OFF", 0.001)
    outcome = caption_shards(shards, build, output, shard_job("jsonl"), lambda outcome: None)
    assert (outcome.done, list(outcome.failed)) == (2, ["00001.jsonl"])
    s3.pipe("bucket/in/00001.tar", plain(10, 10))
    calls = []
    put = s3.put_file

    def flaky(source, target, **named):
        calls.append(target)
        if len(calls) == 1:
            raise ConnectionError("reset by peer")
        return put(source, target, **named)

    monkeypatch.setattr(s3, "put_file", flaky)
    outcome = caption_shards(shards, build, output, shard_job("jsonl"), lambda outcome: None)
    assert (outcome.before, outcome.done, outcome.failed, output.failed()) == (2, 1, {}, {})
    assert calls[:2] == ["bucket/out/00001.jsonl"] * 2
    lines = [line for name in sorted(output.done()) for line in output.folder.read(name).splitlines()]
    assert [json.loads(line)["caption"] for line in lines] == [f"caption of {number:05}" for number in range(30)]
    assert merged(output.parts(), output.failed()).captioned == 30
    names = {name.removeprefix("bucket/out/") for name in s3.find("bucket/out")}
    parts = {output.part_name(f"{n:05}.jsonl", len(output.folder.read(f"{n:05}.jsonl")), shards[n]) for n in range(3)}
    assert names == {"settings.json", *(f"{n:05}.jsonl" for n in range(3)), *parts}
    assert not [name for name in s3.find("bucket") if SECRET.encode() in s3.cat_file(name)]


def test_a_bucket_that_is_not_there(s3):
    with pytest.raises(UsageError, match="s3://nowhere/in does not exist") as error:
        shards_of(["s3://nowhere/in"])
    assert SECRET not in str(error.value)
