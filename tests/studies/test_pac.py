"""How far listeners agree with the exact quality of captions: the captions, the figures, the page."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sweep.study_fakes import module, refused
from tellapart.evaluation.bootstrap import resampled_sums
from tellapart.world import load_scenes, load_world
from tellapart.world.grammar import parse
from tellapart.world.truth import is_true
from tiny_late import pictures, tiny_late

pac = module("pac")
BEST, COEFFICIENTS, SPOILT = pac.BEST, pac.COEFFICIENTS, pac.SPOILT
START, PLAIN, PAC, JUDGE = pac.START, pac.PLAIN, pac.PAC, pac.JUDGE


def written(dataset):
    """By the captioner; its greedy captions are of every image the same, its samples say where the star is."""
    return {"xe, greedy": ["a star"] * len(dataset), "xe, sampled at 1.0": ["a star in the top left"] * len(dataset)}


@pytest.fixture(scope="module")
def judged():
    dataset = load_world("test", size="small")
    return pac.judged_captions(dataset, written(dataset), split="test", size="small")


def test_scores_are_made_once_and_a_page_is_written_from_what_is_kept(tmp_path, monkeypatch, capsys):
    """Each scorer knows the quality, with noise of its own; no listener is trained."""
    made = []

    def scored(name, seed, judged, dataset, size):
        made.append((name, seed))
        noise = np.random.default_rng(len(made)).normal(size=(len(judged.ids), len(judged.kinds)))
        exact = np.stack([judged.quality[kind] for kind in judged.kinds], axis=1)
        return {"scores": (exact + 0.1 * noise).tolist(), "probe": {"shape": 90.0 + len(made)}}

    monkeypatch.setattr(pac, "_scored", scored)
    monkeypatch.setattr(pac, "drawn_captions", lambda dataset, size: written(dataset))
    words = ["--size", "small", "--samples", "20", "--seeds", "0", "1", "--kept", str(tmp_path / "pac.tar.xz")]
    for place in ("one", "two"):
        pac.main([*words, "--output_dir", str(tmp_path / place), "--docs", str(tmp_path / place)])
    assert made == [(START, 0), (JUDGE, 0), (PLAIN, 0), (PAC, 0), (PLAIN, 1), (PAC, 1)]
    pages = [(tmp_path / place / "world-pac.md").read_bytes() for place in ("one", "two")]
    assert pages[0] == pages[1]
    scenes = load_scenes("test", size="small").values()
    stars = [is_true(parse("a star"), scene) for scene in scenes]
    true = sum(is_true(parse("a star in the top left"), scene) for scene in scenes)
    opening = (
        f"Of the captions sampled from `world/xe`, {100 * true / len(scenes):.1f} % are true and 100.0 % grammatical."
    )
    assert (
        f"{opening} Of those that name a place or a relation and are otherwise true, {100 * true / sum(stars):.1f} %"
        in (pages[0].decode())
    )

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pac, "_scored", stop)
    stopped = [*words[:-1], str(tmp_path / "stopped.tar.xz"), "--output_dir", str(tmp_path / "three")]
    with pytest.raises(SystemExit) as ended:
        pac.main([*stopped, "--docs", str(tmp_path)])
    assert ended.value.code == 130
    assert (tmp_path / "stopped.tar.xz").is_file(), "the captions are kept"
    (tmp_path / "pac.tar.xz").write_bytes(b"no archive")
    with refused(capsys, r"pac\.tar\.xz cannot be read"):
        pac.main([*words, "--docs", str(tmp_path)])


def test_the_captions_are_what_their_names_say(judged):
    texts = judged.texts
    assert {BEST, "reference", "keywords", *SPOILT} < set(judged.kinds)
    for row, best in enumerate(texts[BEST]):
        assert sorted(texts["words shuffled"][row].split()) == sorted(best.split())
        assert best.startswith(texts["truncated"][row])
        assert len(texts["truncated"][row].split()) == (len(best.split()) + 1) // 2
        first = row // 4 * 4
        assert texts["look-alike's"][row] in texts[BEST][first : first + 4]
        other = texts[BEST].index(texts["other image's"][row])
        assert other // 4 != row // 4
    assert texts["look-alike's"][0] == texts[BEST][1]
    assert texts["look-alike's"][3] == texts[BEST][0]


def test_quality_is_truth_times_detail(judged):
    scenes = list(load_scenes("test", size="small").values())
    for kind in ("reference", BEST, "attributes swapped", "truncated", "other image's"):
        for text, scene, quality in zip(judged.texts[kind], scenes, judged.quality[kind], strict=True):
            said = parse(text)
            if said is None or not is_true(said, scene):
                assert quality == 0
    assert judged.quality[BEST].mean() > judged.quality["reference"].mean() > 0.2
    assert judged.quality[BEST].max() == 1.0
    assert judged.quality["attributes swapped"].mean() < 0.02
    for kind in ("words shuffled", "keywords"):
        assert not judged.quality[kind].any()


def test_a_scorer_that_knows_the_quality_agrees_with_it_and_its_opposite_does_not(judged):
    quality = np.stack([judged.quality[kind] for kind in judged.kinds], axis=1)
    draws = resampled_sums(np.eye(len(judged.ids)), samples=20)
    for sign in (1, -1):
        found = pac.agreement(sign * quality, judged, draws)
        for name, values in found.draws.items():
            assert values.shape == (21,)
            if name.startswith("over "):
                assert values[0] == (sign == 1), name
            elif name == "tau-c":
                assert np.all(sign * values > 0.3)  # less than 1 where so many truths are alike
            else:
                assert values == pytest.approx([sign] * 21), name
    assert judged.drawn == ("xe, greedy", "xe, sampled at 1.0")
    quality[:, [judged.kinds.index(kind) for kind in judged.drawn]] = 7.0
    spoilt = pac.agreement(quality, judged, draws).draws
    assert spoilt["tau-b without xe's"] == pytest.approx([1.0] * 21)
    assert spoilt["tau-b"].max() < 0.95
    assert found.means[BEST] == pytest.approx(-judged.quality[BEST].mean())


def test_draws_are_those_of_images_with_all_their_captions(judged):
    """A coefficient over drawn images is that of these images' captions written out."""
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(len(judged.ids), len(judged.kinds)))
    rows = rng.integers(len(judged.ids), size=len(judged.ids))
    draws = np.bincount(rows, minlength=len(judged.ids))[None, :].astype(float)
    texts = {kind: [own[row] for row in rows] for kind, own in judged.texts.items()}
    quality = {kind: own[rows] for kind, own in judged.quality.items()}
    drawn = pac.Judged(judged.kinds, texts, quality, [str(i) for i in range(len(rows))], judged.drawn)
    once = np.empty((0, len(rows)))
    expected, found = pac.agreement(scores[rows], drawn, once).draws, pac.agreement(scores, judged, draws).draws
    for name in set(found) - {"tau-c"}:  # its m is that of all captions
        assert found[name][1] == pytest.approx(expected[name][0]), name


def test_the_page_tells_values_intervals_and_paired_differences(judged, tmp_path):
    def fake(shift: float):
        names = (*COEFFICIENTS, *(f"over {kind}" for kind in SPOILT))
        values = shift + np.concatenate([[0.5], np.linspace(0.4, 0.6, 101)])
        return pac.Agreement(dict.fromkeys(names, values), dict.fromkeys(judged.kinds, 0.25 + shift), {"shape": 90.0})

    own = {PLAIN: fake(0.01), PAC: fake(0.03)}
    found = pac.Found(judged, {START: fake(0.0), **own, JUDGE: fake(0.2)}, {0: own, 1: own}, "small", 101)
    pac.write_page(found, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert f"| {PAC} | 53.00 [43.50, 62.50] |" in page
    assert f"| {PAC} - {START} | 1 | +3.00 [+3.00, +3.00] |" in page
    assert f"| {PAC} - {PLAIN} | 0 | +2.00 [+2.00, +2.00] |" in page
    assert "| truncated | 50.0 [40.5, 59.5] |" in page
    rows = [line for line in page.splitlines() if line.startswith("| words shuffled | ")]
    assert any(" | 0.0 | 0.0 | 0.250 | 0.260 | 0.280 | 0.450 |" in row for row in rows)
    widths = {line.count("|") for line in page.splitlines() if line.startswith(f"| {BEST} ")}
    assert widths == {9}


def test_a_late_interaction_listener_scores_by_its_log_probability():
    """Which needs no vectors of all images for the captions of one."""
    listener, dataset = tiny_late(), pictures()
    texts = {"one": ["a red star", "two shapes", "a blue ring"], "other": ["a star", "a red ring", "two shapes"]}
    given = SimpleNamespace(ids=[example.id for example in dataset], kinds=("one", "other"), texts=texts)
    found = pac.score(listener, given, dataset, weight=2.0)
    listener.cache_images(dataset)
    for column, kind in enumerate(given.kinds):
        own = listener.logprobs(texts[kind], given.ids).diagonal().numpy()
        assert found[:, column] == pytest.approx(own, abs=1e-5)
