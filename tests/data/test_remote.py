"""Images, tables and shards elsewhere: fetched from public addresses only, within limits, again after failures, once in all."""

from __future__ import annotations

import gzip
import json
import socket
import time
from contextlib import suppress
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.layouts import picture, tar, write
from data.test_inputs import WRITERS, shades
from local_server import serving
from tellapart.captioning.plan import plan
from tellapart.captioning.shards.launch import shards_of
from tellapart.captioning.shards.samples import Reading
from tellapart.data.check import check
from tellapart.data.convert import convert
from tellapart.data.load import load_dataset, source_at
from tellapart.data.remote import images as remote_images
from tellapart.data.remote import web
from tellapart.data.remote.addresses import require_no_password
from tellapart.data.remote.folders import Folder
from tellapart.data.remote.images import UrlImage, fetch_ahead
from tellapart.data.remote.stores import StoredImage
from tellapart.data.remote.web import FetchError, addresses_of, fetch, is_public
from tellapart.data.sniff import ImageError
from tellapart.errors import UsageError


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """Four pictures of different greys, and a cache of the test's own."""
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    for number in range(4):
        picture(tmp_path / "photos" / f"{number} x.png", 60 * number)
    return tmp_path / "photos"


@pytest.fixture
def server(photos, monkeypatch):
    monkeypatch.setattr(web, "BACK_OFF", 0.01)
    with serving(photos) as running:
        yield running


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *dict.fromkeys(("8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808"), True).items(),
        *dict.fromkeys(("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"), False).items(),
        *dict.fromkeys(("0.0.0.0", "100.64.0.1", "255.255.255.255", "224.0.0.1", "198.18.0.1"), False).items(),
        *dict.fromkeys(("::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1"), False).items(),
        *dict.fromkeys(("fec0::1", "64:ff9b:1::7f00:1", "::7f00:1", "5f00::1", "168.63.129.16"), False).items(),
        *dict.fromkeys(("2002:7f00:1::", "64:ff9b::7f00:1", "::ffff:169.254.169.254", "fe80::1%1"), False).items(),
    ],
)
def test_which_addresses_are_public(address, public):
    assert is_public(address) is public


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]"])
def test_private_hosts_are_refused_by_whatever_name(host, server):
    port = server.url.rpartition(":")[2]
    with pytest.raises(ImageError, match=r"is not a public address: leave it out, or give --allow_private|is unknown"):
        UrlImage(f"http://{host}:{port}/1%20x.png").open()
    assert server.asked == []


def test_one_private_address_among_several_is_enough(monkeypatch):
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 80)) for host in ("8.8.8.8", "10.0.0.1")]
    monkeypatch.setattr(web, "getaddrinfo", lambda *words, **options: places)
    with pytest.raises(FetchError, match=r"the host example\.org leads to 10\.0\.0\.1"):
        addresses_of("example.org", 80, allow_private=False)
    assert addresses_of("example.org", 80, allow_private=True) == ["8.8.8.8", "10.0.0.1"]


def test_a_redirect_does_not_lead_to_private_addresses(server, monkeypatch):
    """The first host counts as public here, the one that it redirects to does not."""
    server.answers["/a.png"] = (302, {"location": server.url.replace("127.0.0.1", "localhost") + "/1%20x.png"}, b"")
    real = addresses_of
    monkeypatch.setattr(
        web, "addresses_of", lambda host, port, allow_private: real(host, port, allow_private=host == "127.0.0.1")
    )
    with pytest.raises(ImageError, match="the host localhost leads to"):
        UrlImage(f"{server.url}/a.png").open()
    assert server.asked == ["/a.png"]


def test_redirects_are_followed_a_few_times_and_to_http_only(server):
    server.answers["/a"] = (301, {"location": "/b?c=d"}, b"")
    server.answers["/b?c=d"] = (307, {"location": f"{server.url}/2%20x.png"}, b"")
    assert UrlImage(f"{server.url}/a", allow_private=True).open().getpixel((0, 0)) == (120, 120, 120)
    server.answers["/loop"] = (302, {"location": "/loop"}, b"")
    with pytest.raises(ImageError, match="is redirected more than 5 times"):
        UrlImage(f"{server.url}/loop", allow_private=True).read()
    server.answers["/file"] = (302, {"location": "file:///etc/passwd"}, b"")
    with pytest.raises(ImageError, match=r"leads to 'file:.*passwd', which is not an http or https address"):
        UrlImage(f"{server.url}/file", allow_private=True).read()


def test_an_image_is_fetched_once(server):
    image = UrlImage(f"{server.url}/3 x.png", allow_private=True)
    assert image.open().getpixel((0, 0)) == (180, 180, 180)
    assert image.read() == (server.folder / "3 x.png").read_bytes()
    assert image.fingerprint() == UrlImage(image.url).fingerprint(), (
        "a kept image is not fetched, so nothing is refused"
    )
    assert server.asked == ["/3%20x.png"]


def test_what_may_pass_is_tried_again(server):
    body = (server.folder / "0 x.png").read_bytes()
    left = [(503, {"retry-after": "0"}, b""), (429, {}, b""), (200, {}, body)]

    def flaky(handler):
        status, headers, data = left.pop(0)
        handler.send_response(status)
        for name, value in ({"content-length": str(len(data))} | headers).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    server.answers["/flaky"] = flaky
    assert UrlImage(f"{server.url}/flaky", allow_private=True).read() == body
    server.answers["/down"] = (500, {}, b"")
    with pytest.raises(
        ImageError, match=r"/down cannot be fetched \(HTTP 500 Internal Server Error\): check the address, or"
    ):
        UrlImage(f"{server.url}/down", allow_private=True).read()
    assert server.times("/down") == web.ATTEMPTS
    with pytest.raises(ImageError, match=r"/none cannot be fetched \(HTTP 404 Not Found\): check the address\."):
        UrlImage(f"{server.url}/none", allow_private=True).read()
    assert server.times("/none") == 1


def test_a_body_that_breaks_off_is_no_image(server):
    def half(handler):
        handler.send_response(200)
        handler.send_header("content-length", "1000")
        handler.end_headers()
        handler.wfile.write(b"x" * 10)
        handler.close_connection = True

    server.answers["/half"] = half
    server.answers["/half.csv"] = half
    with pytest.raises(UsageError, match=r"/half\.csv broke off after 10 bytes"):
        load_dataset(f"{server.url}/half.csv", allow_private=True)
    assert server.times("/half.csv") == web.ATTEMPTS
    with pytest.raises(ImageError, match=r"/half broke off after 10 bytes"):
        UrlImage(f"{server.url}/half", allow_private=True).read()
    assert server.times("/half") == web.ATTEMPTS


def test_limits_of_size_and_time(server, monkeypatch):
    server.answers["/big"] = (200, {}, b"x" * 5000)
    with pytest.raises(FetchError, match="has more than 4,999 bytes, the limit"):
        fetch(f"{server.url}/big", most=4999, allow_private=True)
    assert len(fetch(f"{server.url}/big", most=5000, allow_private=True)) == 5000

    def endless(handler):
        handler.send_response(200)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        while True:
            handler.wfile.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
            time.sleep(0.001)

    server.answers["/endless"] = endless
    with pytest.raises(FetchError, match="has more than 20,000 bytes"):
        fetch(f"{server.url}/endless", most=20_000, allow_private=True)
    with pytest.raises(FetchError, match=r"takes longer than 0\.2 seconds"):
        fetch(f"{server.url}/endless", most=10**9, allow_private=True, seconds=0.2)


@pytest.mark.parametrize("sent", [b"HTTP/1.1 102 Processing\r\n\r\n", b"x-a: b\r\n"], ids=["interim", "headers"])
def test_an_answer_that_never_begins_is_given_up(sent, server, monkeypatch):
    """Each line gave the server as much time again."""
    monkeypatch.setattr(web, "HEAD_SECONDS", 0.3)

    def drip(handler):
        handler.wfile.write(b"" if sent.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\n")
        with suppress(OSError):
            for _ in range(400):
                handler.wfile.write(sent)
                time.sleep(0.05)

    server.answers["/drip"] = drip
    with pytest.raises(FetchError, match=r"timed out|no whole answer in time"):
        fetch(f"{server.url}/drip", most=10**9, allow_private=True)
    assert server.times("/drip") == web.ATTEMPTS
    assert fetch(f"{server.url}/0%20x.png", most=10**9, allow_private=True)
    monkeypatch.setattr(web, "READ_SECONDS", 0.1)
    server.answers["/slow"] = lambda handler: time.sleep(1)
    with pytest.raises(FetchError, match=r"/slow cannot be fetched \(.*\): check the address, or try again later"):
        fetch(f"{server.url}/slow", most=5000, allow_private=True)


def test_a_body_that_is_compressed_unasked_is_refused(server):
    """As object stores send files that were uploaded with an encoding; read as they are, they would be no table."""
    server.answers["/list.csv"] = (200, {"content-encoding": "gzip"}, gzip.compress(b"path\n1 x.png\n"))
    with pytest.raises(UsageError, match=r"list\.csv is sent compressed \(gzip\) unasked: copy the file"):
        load_dataset(f"{server.url}/list.csv", allow_private=True)
    server.answers["/list.csv"] = (200, {"content-encoding": "aws-chunked"}, b"path\n1 x.png\n")
    assert len(load_dataset(f"{server.url}/list.csv", allow_private=True)) == 1


def test_a_page_in_place_of_an_image_is_not_kept(server):
    server.answers["/5.png"] = (200, {}, b"<!doctype html><p>come back later")
    image = UrlImage(f"{server.url}/5.png", allow_private=True)
    with pytest.raises(ImageError, match=r"5\.png is not a readable image \(it is HTML\)"):
        image.read()
    server.answers["/5.png"] = (200, {}, (server.folder / "0 x.png").read_bytes())
    assert image.open().size == (5, 4)


def test_a_bomb_is_not_kept_either(server, monkeypatch):
    monkeypatch.setenv("TELLAPART_MAX_IMAGE_PIXELS", "19")
    image = UrlImage(f"{server.url}/0 x.png", allow_private=True)
    with pytest.raises(ImageError, match="more than the limit of 19"):
        image.read()
    assert not image.cached.exists()


def test_images_are_fetched_side_by_side(server, monkeypatch):
    def slowly(handler):
        time.sleep(0.3)
        data = (server.folder / "0 x.png").read_bytes()
        handler.send_response(200)
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    images = [UrlImage(f"{server.url}/slow{n}", allow_private=True) for n in range(remote_images.AT_ONCE)]
    server.answers |= {f"/slow{n}": slowly for n in range(remote_images.AT_ONCE)}
    start = time.monotonic()
    none = UrlImage(f"{server.url}/none", allow_private=True)
    failed = fetch_ahead([*images, none])
    assert list(failed) == [none.name]
    assert "HTTP 404" in failed[none.name]
    assert time.monotonic() - start < 1.5, "one after another they take 2.4 seconds"
    assert all(image.cached.is_file() for image in images)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_table_of_addresses(kind, server, tmp_path):
    rows = [{"sku": f"A{n}", "url": f"{server.url}/{n} x.png", "TEXT": f"shade {n}"} for n in (3, 1, 9)]
    table = WRITERS[kind](tmp_path / f"urls.{kind}", rows)
    data = load_dataset(table, allow_private=True)
    assert server.asked == [], "an index fetches nothing"
    assert data.ids == [row["url"] for row in rows]
    assert data.references[rows[1]["url"]] == ["shade 1"]
    assert shades(data[:2]) == [180, 60]
    report = check({"all": load_dataset(table, allow_private=True, id_column="sku")}, num_workers=0)
    assert [broken.id for broken in report.splits["all"].broken] == ["A9"]
    assert "HTTP 404" in report.splits["all"].broken[0].why
    with pytest.raises(ImageError, match="is not a public address"):
        load_dataset(table)[2].image.open()
    assert convert(source_at(table, allow_private=True), tmp_path / "out", "folder", limit=2).images == {"train": 2}
    assert shades(load_dataset(tmp_path / "out")) == [180, 60]


def test_addresses_of_images_tables_and_shards(server, photos, tmp_path):
    assert shades(load_dataset(f"{server.url}/{{0..2}} x.png", allow_private=True)) == [0, 60, 120]
    WRITERS["csv"](photos / "list.csv", [{"path": "2 x.png"}, {"path": "inner/0.png"}])
    picture(photos / "inner" / "0.png", 7)
    assert shades(load_dataset(f"{server.url}/list.csv", allow_private=True)) == [120, 7], "paths lie beside the table"
    for number in range(2):
        tar(photos / f"{number}.tar", {f"a{number}.png": (photos / "1 x.png").read_bytes(), f"a{number}.txt": "hi"})
    data = load_dataset(f"{server.url}/{{0..1}}.tar", allow_private=True)
    assert (data.references, shades(data)) == ({"a0": ["hi"], "a1": ["hi"]}, [60, 60])
    with pytest.raises(UsageError, match="HTTP lists no folders"):
        load_dataset(f"{server.url}/", allow_private=True)
    with pytest.raises(UsageError, match="HTTP lists no folders"):
        load_dataset(f"{server.url}/*.tar", allow_private=True)
    with pytest.raises(UsageError, match="is not a public address"):
        load_dataset(f"{server.url}/list.csv")


def test_a_copy_is_taken_again_only_when_the_original_has_changed(server, photos):
    bodies = []

    def counted(handler):
        known = handler.headers.get("if-none-match")
        handler.send_response(304 if known == '"1"' else 200)
        body = b"" if known == '"1"' else b"path\n1 x.png\n"
        bodies.append(body)
        handler.send_header("etag", '"1"')
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    server.answers["/list.csv"] = counted
    for _ in range(3):
        assert len(load_dataset(f"{server.url}/list.csv", allow_private=True)) == 1
    assert list(map(bool, bodies)) == [True, False, False]
    server.answers["/list.csv"] = (200, {"etag": '"2"'}, b"path\n1 x.png\n2 x.png\n")
    assert len(load_dataset(f"{server.url}/list.csv", allow_private=True)) == 2


@pytest.fixture(params=["memory", "file"])
def store(request, photos, tmp_path):
    """The pictures in a file system of fsspec, by its address."""
    if request.param == "file":
        yield f"file://{photos}"
        return
    filesystem = fsspec.filesystem("memory")
    for path in photos.iterdir():
        filesystem.pipe(f"/bucket/photos/{path.name}", path.read_bytes())
    yield "memory://bucket/photos"
    filesystem.rm("/bucket", recursive=True)


def put(store: str, name: str, data: bytes) -> None:
    with fsspec.open(f"{store}/{name}", "wb", auto_mkdir=True) as file:
        file.write(data)


def test_a_folder_in_a_store(store, photos):
    data = load_dataset(store)
    assert data.ids == [f"{n} x.png" for n in range(4)]
    assert shades(data) == [0, 60, 120, 180]
    assert shades(load_dataset(f"{store}/[12] x.png")) == [60, 120]
    assert shades(load_dataset(f"{store}/1 x.png")) == [60]
    time.sleep(0.02)
    put(store, "1 x.png", (photos / "3 x.png").read_bytes())
    assert shades(load_dataset(store)) == [0, 180, 120, 180], "what was changed is fetched again"
    with pytest.raises(UsageError, match="does not exist"):
        load_dataset(f"{store}/nowhere")
    put(store, ".hidden/inner/a.png", (photos / "3 x.png").read_bytes())
    assert len(load_dataset(store)) == 4
    assert shades(load_dataset(f"{store}/.hidden/inner/*.png")) == [180], (
        "a hidden folder that is named is not passed over"
    )


def test_tables_and_shards_in_a_store(store, photos, tmp_path):
    put(store, "metadata.jsonl", b'{"file_name": "2 x.png", "text": "grey"}\n')
    assert load_dataset(store).references == {"2 x.png": ["grey"]}
    assert shades(load_dataset(store)) == [120]
    for number in range(2):
        shard = tar(tmp_path / "s.tar", {f"a{number}.png": (photos / "1 x.png").read_bytes(), f"a{number}.txt": "hi"})
        put(store, f"shards/{number}.tar", shard.read_bytes())
    for name in (f"{store}/shards", f"{store}/shards/*.tar", f"{store}/shards/{{0..1}}.tar"):
        data = load_dataset(name)
        assert (data.references, shades(data)) == ({"a0": ["hi"], "a1": ["hi"]}, [60, 60])
    assert len(load_dataset(f"{store}/shards", format="unlabelled")) == 2
    rows = [{"image": {"bytes": (photos / "3 x.png").read_bytes(), "path": "z.png"}}]
    put(store, "parquet/train.parquet", WRITERS["parquet"](tmp_path / "t.parquet", rows).read_bytes())
    assert shades(load_dataset(f"{store}/parquet")) == [180]
    put(store, "films/a.mp4", b"")
    with pytest.raises(UsageError, match=r"holds no images, tables or tars \(\.mp4\): copy other data here first"):
        load_dataset(f"{store}/films")


def test_file_systems_that_are_not_there(tmp_path):
    with pytest.raises(UsageError, match="nofs://x/y"):
        load_dataset("nofs://x/y")
    with pytest.raises(UsageError, match="chains addresses"):
        load_dataset("zip://x.png::memory://x.zip")
    with pytest.raises(UsageError, match="is not a name on the hub: write hf://owner/name"):
        load_dataset("hf://x")
    image = StoredImage("nofs://bucket/x.png")
    with pytest.raises(ImageError, match=r"nofs://bucket/x\.png"):
        image.read()
    table = write(tmp_path / "x.jsonl", json.dumps({"image": "memory://bucket/secret.png"}) + "\n")
    with pytest.raises(UsageError, match="tables may name paths and addresses of http"):
        load_dataset(table)


PASSWORDS = [
    "s3://user:s3cret@bucket/x.png",
    "s3://user:s3c/ret+@bucket/x.png",
    "https://user:s3cret@example.org/x.png",
    "https://s3cret@example.org/x.png",
    "ftp://user:s3cret@example.org/x.png",
]


@pytest.mark.parametrize("address", PASSWORDS)
def test_an_address_with_a_password_is_neither_shown_nor_kept(address, tmp_path):
    table = write(tmp_path / "x.jsonl", json.dumps({"image": address}) + "\n")
    readings = [
        lambda: load_dataset(address),
        lambda: plan([address]),
        lambda: shards_of([address.replace(".png", ".tar")]),
        lambda: load_dataset(table),
        lambda: plan([str(table)]),
        lambda: Folder(address),
    ]
    for read in readings:
        with pytest.raises(UsageError, match=r"holds a user (and|or) a password") as told:
            read()
        assert "s3c" not in str(told.value)


@pytest.mark.parametrize(
    "address",
    [
        "https://example.org:8080/a@b.png",
        "https://example.org/x.png?by=a:b@c",
        "s3://bucket/a:b.png",
        "abfs://container@account.dfs.core.windows.net/x.png",
        "hf://datasets/a/b@main/x.png",
        "photos/a:b@c.png",
    ],
)
def test_addresses_without_a_password_pass(address):
    require_no_password(address)


def test_a_shard_counts_an_address_with_a_password_as_broken(tmp_path):
    pq.write_table(pa.table({"image": PASSWORDS[:1]}), tmp_path / "0.parquet")
    (sample,) = Reading().samples(str(tmp_path / "0.parquet"))
    assert sample.item is None
    assert "s3cret" not in str(sample)


def test_several_tables_in_a_store_name_images_next_to_themselves(store, photos):
    """Both tables name "x.png", each the one in its own folder."""
    for name, number in (("a", 1), ("b", 3)):
        put(store, f"lists/{name}/x.png", (photos / f"{number} x.png").read_bytes())
        put(store, f"lists/{name}/list.jsonl", json.dumps({"path": "x.png", "image_id": name}).encode())
    for pattern in ("*", "{a,b}"):
        data = load_dataset(f"{store}/lists/{pattern}/list.jsonl")
        assert (data.ids, shades(data)) == (["a", "b"], [60, 180])


def test_folders_of_a_store_by_a_pattern_lose_no_image(store, photos):
    """Below "some/a", "some/ab/x.png" would be "b/x.png", as is the image in its folder b."""
    for name, number in (("a/b", 1), ("ab", 2), ("c", 3)):
        put(store, f"some/{name}/x.png", (photos / f"{number} x.png").read_bytes())
    data = load_dataset(f"{store}/some/{{a,ab,c}}")
    assert (data.ids, shades(data)) == (["a/b/x.png", "ab/x.png", "c/x.png"], [60, 120, 180])


def test_a_remote_table_cannot_name_files_of_this_machine(store, photos, tmp_path):
    """Not by a path, which is below the table's own folder, and not by a path that stands next to missing bytes."""
    own = str(picture(tmp_path / "private" / "x.png", 9))
    put(store, "tables/paths.jsonl", json.dumps({"path": own.lstrip("/")}).encode())
    rows = [{"image": {"bytes": data, "path": own}} for data in (None, (photos / "1 x.png").read_bytes())]
    put(store, "tables/bytes.parquet", WRITERS["parquet"](tmp_path / "t.parquet", rows).read_bytes())
    for name in ("paths.jsonl", "bytes.parquet"):
        with pytest.raises(ImageError, match=r"does not exist|is empty"):
            load_dataset(f"{store}/tables/{name}")[0].image.read()
