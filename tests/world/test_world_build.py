"""Building the world: the same every time, splits that share nothing, clusters that differ."""

import hashlib
import json
import resource
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from tellapart.errors import UsageError
from tellapart.progress import bar
from tellapart.world import WORLD_SPLITS, alt_texts, load_scenes, load_world, spec
from tellapart.world.build import _write_images, build, world_folder
from tellapart.world.grammar import parse
from tellapart.world.render import Renderer
from tellapart.world.scenes import Scene, SceneObject, draw_splits

SIZES = {"train": 40, "web": 40, "val": 20, "test": 20}


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_the_world_is_the_same_every_time_and_another_with_another_seed(tmp_path):
    for name in ("one", "two", "other"):
        (tmp_path / name).mkdir()
    build(tmp_path / "one", SIZES)
    build(tmp_path / "two", SIZES)
    build(tmp_path / "other", SIZES, seed=spec.SEED + 1)
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")
    assert not set(hashes(tmp_path / "one").values()) & set(hashes(tmp_path / "other").values())


def test_held_out_scenes_occur_nowhere_else_and_splits_are_alike():
    splits = draw_splits(spec.SPLIT_SIZES["full"], spec.SEED)
    assert {split: len(scenes) for split, scenes in splits.items()} == spec.SPLIT_SIZES["full"]
    counts = Counter(scene for scenes in splits.values() for scene in scenes)
    assert {counts[scene] for split in spec.HELD_OUT for scene in splits[split]} == {1}
    # if all scenes had to differ, the single objects would run out and later splits would hold fewer of them
    for scenes in splits.values():
        for number, share in spec.OBJECT_COUNTS.items():
            assert sum(len(scene.objects) == number for scene in scenes) / len(scenes) == pytest.approx(share, abs=0.05)


def kind_of_change(base, mutant):
    """How a mutant differs, told from the two scenes alone."""
    if len(base.objects) != len(mutant.objects):
        return "objects"
    looks = [Counter((o.shape, o.colour, o.size, o.texture) for o in scene.objects) for scene in (base, mutant)]
    cells = [[o.cell for o in scene.objects] for scene in (base, mutant)]
    if looks[0] == looks[1] and base.background == mutant.background:
        return "moved" if len(set(cells[0]) ^ set(cells[1])) == 2 else "cells"
    if cells[0] != cells[1]:
        return "several"
    values = [
        {name: Counter(getattr(o, name) for o in scene.objects) for name in ("shape", "colour", "size", "texture")}
        for scene in (base, mutant)
    ]
    if values[0] == values[1] and base.background == mutant.background:
        return "values"
    pairs = zip(base.objects, mutant.objects, strict=True)
    changes = sum(getattr(a, n) != getattr(b, n) for a, b in pairs for n in values[0])
    return "attributes" if 1 <= changes + (base.background != mutant.background) <= 2 else "several"


def test_a_cluster_is_a_scene_and_mutants_that_differ_in_one_way():
    scenes = draw_splits({"train": 4000}, 3)["train"]
    found = Counter()
    for start in range(0, 4000, spec.CLUSTER_SIZE):
        base, *mutants = scenes[start : start + spec.CLUSTER_SIZE]
        assert len({base, *mutants}) == spec.CLUSTER_SIZE
        # Only scenes of several objects can be changed in every way.
        found.update(kind_of_change(base, mutant) for mutant in mutants if len(base.objects) == 2)
    # Two attributes of two objects that change into each other's look like an exchange, which is rare.
    for kind, share in spec.MUTATIONS.items():
        assert found[kind] / found.total() == pytest.approx(share, abs=0.05), kind
    assert set(found) == set(spec.MUTATIONS)


def test_one_caption_in_five_names_a_cell_and_one_in_five_a_relation():
    said = [parse(text) for example in load_world("web", size="small") for text in example.references]
    cells = sum(any(phrase.place is not None for phrase in one.phrases) for one in said) / len(said)
    relations = sum(any(relation != "and" for relation in one.relations) for one in said) / len(said)
    # 4000 captions of 800 pictures: three standard deviations are two to four points.
    assert cells == pytest.approx(0.2, abs=0.03)
    assert relations == pytest.approx(0.19, abs=0.03)


def test_datasets_scenes_and_alt_texts_belong_together():
    for split in WORLD_SPLITS:
        dataset, scenes = load_world(split, size="small"), load_scenes(split, size="small")
        texts = alt_texts(split, size="small")
        assert dataset.ids == list(scenes) == list(texts)
        assert len(dataset) == spec.SPLIT_SIZES["small"][split]
        assert all(len(example.references) == spec.REFERENCES_PER_IMAGE for example in dataset)
        assert all(len(words) == spec.ALT_TEXTS_PER_IMAGE for words in texts.values())
    image = load_world("test", size="small")[0].image
    assert image.open().size == (64, 64)
    assert image.open().mode == "RGB"


def test_pictures_show_their_scenes():
    """The mean colour of a cell's centre is that of its object; an empty cell is background; texture darkens."""
    plain = SceneObject("square", "red", "large", "plain", 1, 0)
    pictures = Renderer((1,))([Scene((plain,), "black")] * 20).astype(float)
    centre, empty = pictures[:, 42:54, 10:22].mean(axis=(0, 1, 2)), pictures[:, 2:30, 2:30].mean(axis=(0, 1, 2))
    assert centre == pytest.approx(spec.COLOURS["red"], abs=1.5)
    assert empty == pytest.approx(spec.BACKGROUNDS["black"], abs=1.5)
    for texture, share in (("striped", 1 / 2), ("dotted", 3 / 4)):
        drawn = Renderer((1,))([Scene((SceneObject("square", "red", "large", texture, 1, 0),), "black")] * 20)
        expected = (share + (1 - share) * spec.DARK) * np.array(spec.COLOURS["red"])
        assert drawn[:, 42:54, 10:22].mean(axis=(0, 1, 2)) == pytest.approx(expected, abs=3)


def test_annotators_differ_as_specified():
    references = [text for example in load_world("train", size="small") for text in example.references]
    lengths = np.array([len(text.split()) for text in references])
    assert 4 < lengths.mean() < 9
    assert lengths.max() > 30
    assert Counter(references).most_common(1)[0][1] > 0.01 * len(references)


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="train"):
        load_world("dev", size="small")
    with pytest.raises(UsageError, match="full"):
        load_world("train", size="huge")


@pytest.mark.slow
def test_two_processes_that_build_at_once_do_not_disturb_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path))
    script = "from tellapart.world import load_world; print(load_world('test', size='small')[0].references[0])"
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] != ""
    assert [path.name for path in (tmp_path / "world").iterdir()] == [world_folder("small").name]
    assert json.loads((world_folder("small") / "test.json").read_text())["scenes"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test.npy", "test.json"])
@pytest.mark.parametrize("content", [b"junk", None])
def test_a_damaged_cache_is_named_with_its_remedy(tmp_path, monkeypatch, name, content):
    monkeypatch.setattr(spec, "SPLIT_SIZES", {"full": spec.SPLIT_SIZES["full"], "small": {"test": 8}})
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path))
    assert len(load_world("test", size="small")) == 8
    path = world_folder("small") / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{name} is missing or damaged: delete {path.parent}, and it is built again"):
        load_world("test", size="small")


def test_scenes_come_in_the_proportions_of_the_specification():
    scenes = draw_splits({"train": 4000}, 9)["train"][:: spec.CLUSTER_SIZE]
    counts = Counter(len(scene.objects) for scene in scenes)
    for number, share in spec.OBJECT_COUNTS.items():
        assert counts[number] / len(scenes) == pytest.approx(share, abs=0.06)


def test_a_full_disk_ends_in_an_error(tmp_path):
    """Pictures were written through a mapped file: the process was ended by a signal, without a word."""
    scenes = draw_splits(SIZES, spec.SEED)["val"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with bar("building", 16) as running:
        _write_images(tmp_path / "whole.npy", scenes, (0, 1), running)
        whole = np.load(tmp_path / "whole.npy")
        assert (whole.shape, whole.dtype) == ((len(scenes), 64, 64, 3), np.uint8)
        assert (whole == Renderer((0, 1))(scenes)).all()
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                _write_images(tmp_path / "cut.npy", scenes, (0, 1), running)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
