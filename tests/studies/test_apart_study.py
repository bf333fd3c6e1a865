"""The study of telling apart without training: what it measures, what it claims, and its page."""

from __future__ import annotations

import pytest

from listeners.tiny_listeners import clip_parts
from pictures import CAPTIONS
from sweep.study_fakes import PROBES, module
from tellapart.captioning.gate import Gate
from tellapart.data.dataset import Collate
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.mining import mine
from tellapart.types import Decoding
from tellapart.world import load_world
from tiny_late import tiny_late
from tiny_models import tiny_ved, word_tokenizer

apart = module("apart")
SEEN = {name.removeprefix("world/"): PROBES.get(name, PROBES["world/judge"]) for name in apart.PROBED}


def test_a_row_measures_every_column(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path))
    monkeypatch.setattr(apart, "MAX_NEW_TOKENS", 4)
    dataset = load_world("test", size="small")
    listener = ClipListener.from_parts(*clip_parts(words=word_tokenizer(CAPTIONS)), prefix="")
    judge = tiny_late()
    judge.cache_images(dataset)
    tools = apart.Instruments(dataset, "small", listener, judge, judge)
    captioner = tiny_ved(seed=2).eval()
    found = apart.measure(apart.Row(2, options=apart.OWN), captioner, tools)
    assert set(found) >= set(apart.COLUMNS)
    texts = [
        caption.caption
        for caption in apart.Apart(captioner, listener, num_beams=2, max_new_tokens=4, **apart.OWN)(list(dataset))
    ]
    near = mine(listener, dataset, 20)
    told = 0
    for name, text in zip(dataset.ids, texts, strict=True):
        vector = listener.encode_texts([text])[0]
        own, *others = (listener.encode_ids([name, *near.of([name])[0]]) @ vector).tolist()
        told += own > max(others)
    assert found["lookalikes_listener"] == pytest.approx(100 * told / len(texts), abs=100.1 / len(texts))
    assert found["confused"] == pytest.approx(100 - found["lookalikes_listener"], abs=100.1 / len(texts))


def test_without_weights_the_likeliest_beam_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path))
    listener = ClipListener.from_parts(*clip_parts(words=word_tokenizer(CAPTIONS)), prefix="")
    dataset = list(load_world("test", size="small"))[:6]
    captioner = tiny_ved(seed=2).eval()
    beams = apart.Apart(captioner, listener, num_beams=3, max_new_tokens=6, lookalikes=3, **apart.OWN)(dataset)

    batch = Collate({captioner.name: captioner.process})(dataset)
    drawn = captioner.generate(batch, Decoding(num_beams=3, num_return_sequences=3, max_new_tokens=6))
    for row, caption in enumerate(beams):
        some = range(3 * row, 3 * row + 3)
        sound = [
            i for i in some if not Gate().faults(drawn.texts[i], raw=drawn.texts[i], finished=bool(drawn.finished[i]))
        ]
        assert caption.raw == drawn.texts[(sound or some)[0]]


def test_rows_are_measured_once_and_kept(tmp_path, monkeypatch):
    measured = []

    def measure(row, captioner, tools):
        measured.append((row.num_beams, captioner, tools))
        return dict.fromkeys(apart.COLUMNS, float(len(measured)))

    class Captioner(str):
        def eval(self):
            return self

    monkeypatch.setattr(apart, "measure", measure)
    monkeypatch.setattr(apart, "load_captioner", lambda name, size: Captioner(name))
    monkeypatch.setattr(apart.Instruments, "load", lambda size, probed: "tools")
    asked = []
    monkeypatch.setattr(apart, "probed", lambda size, stages: asked.append((size, stages)) or SEEN)
    words = ["--size", "small", "--kept", str(tmp_path / "apart.tar.xz")]
    for place in ("one", "two"):
        apart.main([*words, "--output_dir", str(tmp_path / place), "--docs", str(tmp_path / place)])
    assert len(measured) == len(apart.ROWS) * len(apart.SEEDS)
    assert [name for _, name, _ in measured[:: len(apart.ROWS)]] == ["world/xe", "world/xe-seed1", "world/xe-seed2"]
    pages = [(tmp_path / place / "world-apart.md").read_bytes() for place in ("one", "two")]
    assert pages[0] == pages[1]
    assert asked == [("small", apart.PROBED)], "models are probed once, too"
    assert f"| greedy | {(1 + 12 + 23) / 3:.1f} ± 11.0 |" in pages[0].decode()
    monkeypatch.setitem(apart.ROWS, "greedy", apart.Row(2, options=apart.OWN))
    apart.main([*words, "--output_dir", str(tmp_path / "three"), "--docs", str(tmp_path / "three")])
    assert [beams for beams, *_ in measured[33:]] == [2, 2, 2], "a row with other options is measured again"


def figures(**changed):
    base = dict.fromkeys(apart.COLUMNS, 50.0) | {"seconds": 0.0123}
    rows = {name: [dict(base) for _ in apart.SEEDS] for name in apart.ROWS}
    for row, values in changed.items():
        for seed, value in enumerate(values):
            rows[row][seed]["exact_recall@1"] = value
    return rows


def test_claims_hold_where_every_seed_does():
    found = {claim.text: claim.holds for claim in apart.claims(figures(apart=[62.0, 63.0, 72.5]))}
    recall = [holds for text, holds in found.items() if "exact" in text.lower() and "reaches" in text]
    assert recall == [True, False]
    assert found["Comparing candidates with look-alikes tells more apart than the likeliest of as many beams."]
    assert not found["It adds to comparing."]


def test_the_page_has_every_row_and_claim():
    page = apart.page(figures(), 1000, SEEN)
    for name in apart.ROWS:
        assert f"\n| {name} | 50.0 ± 0.0 |" in page
    assert "| 0.012 |" in page
    assert "| asked | backbone | xe | listener | verifier | judge |" in page
    assert "| shape | 99.3 | 99.6 | 98.6 | 99.5 | 99.5 |" in page
    assert "Order-blind: listener." in page
    assert page.count("- **") == len(apart.claims(figures()))
