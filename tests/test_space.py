"""The Gradio Space: its logic on tiny models, and its page where gradio is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from listeners.tiny_listeners import clip_parts
from pictures import CAPTIONS, images
from tellapart import Apart, ClipListener, UsageError
from tiny_models import tiny_ved, word_tokenizer

SPACE = Path(__file__).resolve().parents[1] / "space"


@pytest.fixture
def space(monkeypatch):
    """Imports a module of the Space."""
    monkeypatch.syspath_prepend(str(SPACE))
    yield import_module
    for name in ("app", "captions"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def apart():
    listener = ClipListener.from_parts(*clip_parts(words=word_tokenizer(CAPTIONS)), prefix="")
    return Apart(tiny_ved(), listener, num_beams=2, redraw=0, max_new_tokens=5)


@pytest.fixture
def photos(tmp_path):
    paths = []
    for number, picture in enumerate(images(4)):
        (tmp_path / str(number)).mkdir()
        paths.append(tmp_path / str(number) / "photo.png")  # uploads may share a name
        picture.save(paths[-1])
    return paths


def test_every_photo_gets_a_caption_and_a_rival(space, apart, photos):
    captions = space("captions")
    photos[3].write_bytes(b"no image")
    found = captions.describe(apart, photos)
    names = [f"{number}: photo.png" for number in (1, 2, 3, 4)]
    assert [one.photo for one in found] == names
    for one in found[:3]:
        assert one.error == ""
        assert one.rival in names[:3]
        assert one.rival != one.photo
        assert one.confused == (one.margin <= 0)
    assert "not a readable image" in found[3].error
    assert found[3].caption == ""


def test_the_next_request_may_name_other_photos_alike(space, apart, photos):
    """An id was that of the first photo uploaded under it until the process ended."""
    captions = space("captions")
    first = captions.describe(apart, photos), captions.likeness(apart.listener, photos)
    changed = list(reversed(photos))
    again = captions.describe(apart, changed), captions.likeness(apart.listener, changed)
    assert [one.caption for one in again[0]] == [one.caption for one in reversed(first[0])]
    assert again[1][0][1] == pytest.approx(first[1][3][2])
    with pytest.raises(UsageError, match="has no embedding of image"):
        apart.listener.encode_ids(["1: photo.png"])


def test_likeness_is_the_matrix_of_cosines(space, apart, photos):
    captions = space("captions")
    alike = captions.likeness(apart.listener, photos)
    with apart.listener.other_images():
        apart.listener.cache_images(captions.as_dataset(photos))
        vectors = apart.listener.encode_ids(captions.as_dataset(photos).ids).tolist()
    for a in range(4):
        for b in range(4):
            assert alike[a][b] == pytest.approx(
                sum(x * y for x, y in zip(vectors[a], vectors[b], strict=True)), abs=1e-5
            )
        assert alike[a][a] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("count", [0, 1, 33])
def test_too_few_and_too_many_photos_are_refused(space, apart, photos, count):
    with pytest.raises(UsageError, match=f"{count} photos were given: upload 2 to 32"):
        space("captions").describe(apart, (photos * 9)[:count])


def test_the_page_answers_a_request(space, apart, photos):
    pytest.importorskip("gradio", reason="the Space's own requirement (space/requirements.txt)")
    app = space("app")
    page = app.build(apart)
    run = next(function.fn for function in page.fns.values() if function.api_name == "captions")
    gallery, table, matrix = run([str(path) for path in photos])
    assert [path for path, _ in gallery] == [str(path) for path in photos]
    assert all(len(line) == len(app.HEADINGS) and line[4] in ("yes", "no") for line in table)
    assert matrix.value["headers"] == ["photo", "1", "2", "3", "4"]
    assert [line[0] for line in matrix.value["data"]] == [line[0] for line in table]
    with pytest.raises(app.gr.Error, match="upload 2 to 32"):
        run(None)


def test_what_it_needs_is_written_down():
    needed = (SPACE / "requirements.txt").read_text()
    assert needed.splitlines() == ["tellapart @ git+https://github.com/tellapart/tellapart", "gradio>=6"]
    head = (SPACE / "README.md").read_text().split("---")[1]
    assert "sdk: gradio" in head
    assert f"app_file: {next(path.name for path in SPACE.glob('app.py'))}" in head
