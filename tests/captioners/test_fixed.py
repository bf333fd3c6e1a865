"""Steps in memory that stays: the same captions as by steps that grow, and on a GPU by graphs as without."""

from pathlib import Path

import pytest
import torch

from family_checks import TINY, make
from tellapart.captioners import drawing
from tellapart.captioners.cache import FixedCache
from tellapart.captioners.families.base import Family
from tellapart.captioners.fixed import FixedCachedSteps, FixedDecoderSteps
from tellapart.captioners.graphs import Replayed
from tellapart.types import Decoding
from tiny_models import batch_of

DECODINGS = {
    "greedy": Decoding(max_new_tokens=12),
    "samples": Decoding(max_new_tokens=12, do_sample=True, num_return_sequences=4),
    "beams": Decoding(max_new_tokens=12, num_beams=4, num_return_sequences=4),
    "restricted beams": Decoding(max_new_tokens=12, num_beams=3, no_repeat_ngram_size=2, min_new_tokens=4),
}
GROWS = {"BLIP-2 (T5)", "InstructBLIP (T5)", "PaliGemma 2"}
"""Families whose memory of words cannot stay: T5 has a cache of two parts, Gemma 2 sliding windows."""


def drawn(captioner, batch):
    """Captions of every kind, and greedy captions drawn next to samples and beams."""
    found = []
    for decoding in DECODINGS.values():
        torch.manual_seed(0)
        found.append(captioner.generate(batch, decoding).texts)
    for name in ("samples", "beams"):
        torch.manual_seed(0)
        found += [part.texts for part in captioner.generate_with_greedy(batch, DECODINGS[name])]
    return found


@pytest.fixture
def kinds(monkeypatch):
    """The kinds of steps that are made."""
    seen = set()
    for kind in (FixedDecoderSteps, FixedCachedSteps):
        made = kind.__init__
        monkeypatch.setattr(
            kind, "__init__", lambda self, *a, made=made, kind=kind, **k: (seen.add(kind), made(self, *a, **k))[1]
        )
    return seen


@pytest.mark.parametrize("name", TINY)
def test_steps_of_fixed_shapes_draw_the_same_captions(name, tmp_path: Path, monkeypatch, kinds):
    monkeypatch.setattr(drawing, "FEW", 0.9)
    monkeypatch.setattr(drawing, "LOOK", 2)
    captioner = make(name, tmp_path)
    batch = batch_of(captioner, 5)
    expected = drawn(captioner, batch)
    assert not kinds
    monkeypatch.setattr(Family, "replays", lambda self, device: True)
    assert drawn(captioner, batch) == expected
    assert len(kinds) == (name not in GROWS)
    assert len({text for texts in expected for text in texts}) > 5


def test_a_prefix_padded_on_the_left_is_hidden_from_words(tmp_path, monkeypatch, kinds):
    """Prompts of different lengths."""
    captioner = make("Qwen2-VL", tmp_path)
    batch = batch_of(captioner, 4)
    inputs = batch.inputs["captioner"]
    inputs["attention_mask"] = inputs["attention_mask"].clone()
    inputs["attention_mask"][:2, :3] = 0
    expected = drawn(captioner, batch)
    monkeypatch.setattr(Family, "replays", lambda self, device: True)
    assert drawn(captioner, batch) == expected
    assert kinds == {FixedCachedSteps}


def test_what_a_mask_hides_is_finite(tmp_path):
    """Attention multiplies hidden values by 0: memory that was never written could hold NaN, and 0 times NaN is NaN."""
    family = make("Qwen2-VL", tmp_path).family
    batch = batch_of(make("Qwen2-VL", tmp_path), 2)
    encoded = family.encode(batch.inputs["captioner"])
    with torch.no_grad():
        cache = family.new_cache()
        first = family.prefix(encoded, cache)
        steps = FixedCachedSteps(family, encoded, cache, first, count=2, longest=5, beams=False)
    for layer in steps._cache.layers:
        assert not layer.keys[:, :, steps._cache.prefix :].any()
        assert not layer.values[:, :, steps._cache.prefix :].any()


def test_a_fixed_cache_shows_the_word_that_is_read_and_those_before():
    keys = torch.zeros(2, 1, 5, 3)
    cache = FixedCache.of([], 2, torch.tensor([3]), lambda part: part)
    cache.layers = [type("Layer", (), {"keys": keys})()]
    seen = cache.seen(torch.tensor([[0, 1], [1, 1]]))
    assert seen[:, 0, 0].tolist() == [[False, True, True, True, False], [True, True, True, True, False]]
    assert cache.read.tolist() == [1]


def test_away_from_cuda_a_function_is_called():
    calls = []
    doubled = Replayed(lambda rows: calls.append(1) or 2 * rows)
    assert [doubled(torch.ones(2) * i).tolist() for i in range(3)] == [[0, 0], [2, 2], [4, 4]]
    assert len(calls) == 3


class Recording:
    """What a recorder gives: the function is carried out by ``replay`` only, and writes to the same memory each time."""

    def __init__(self, function, given):
        self.function, self.given, self.found = function, given, torch.zeros_like(given[0])

    def replay(self):
        self.found.copy_(self.function(*self.given))


def running_sum(total, refuses=()):
    """A function with a memory, a recorder that fails at the given attempts, and the attempts."""
    attempts = []

    def step(rows):
        total.add_(rows)
        return 2 * total

    def record(function, given):
        attempts.append(1)
        if len(attempts) in refuses:
            raise RuntimeError("cannot be recorded")
        recording = Recording(function, given)
        return recording, recording.found

    return step, record, attempts


@pytest.mark.parametrize(("refuses", "tries"), [((), 1), ((1,), 2), ((1, 2), 2)])
def test_a_recorded_function_computes_what_it_does_when_called(refuses, tries, caplog):
    step, record, attempts = running_sum(torch.zeros(2), refuses)
    replayed = Replayed(step, record)
    found = [replayed(torch.full((2,), float(i))) for i in range(6)]
    assert [part[0].item() for part in found] == [0, 2, 6, 12, 20, 30]
    assert len(attempts) == tries
    assert len(caplog.records) == (len(refuses) == 2), "a single failure is not told"


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.gpu
@needs_gpu
def test_a_graph_computes_what_the_function_does():
    calls = []

    def step(rows):
        calls.append(1)
        total.add_(rows)
        return total * 2

    total = torch.zeros(3, device="cuda")
    replayed = Replayed(step)
    found = [replayed(torch.full((3,), float(i), device="cuda")) for i in range(5)]
    assert [part[0].item() for part in found] == [0, 2, 6, 12, 20]
    assert len(calls) == 2


@pytest.mark.gpu
@needs_gpu
def test_what_cannot_be_recorded_is_called(caplog):
    replayed = Replayed(lambda rows: rows * float(rows.sum()))
    found = [replayed(torch.full((2,), float(i), device="cuda"))[0].item() for i in range(4)]
    assert found == [0, 2, 8, 18]
    assert ["without a CUDA graph" in record.message for record in caplog.records] == [True]
    calls = []
    again = Replayed(lambda rows: calls.append(1) or 2 * rows)
    assert [again(torch.full((2,), float(i), device="cuda"))[0].item() for i in range(4)] == [0, 2, 4, 6]
    assert len(calls) == 2


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", TINY)
def test_graphs_draw_the_captions_of_steps_that_grow(name, tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setattr(drawing, "FEW", 0.9)
    captioner = make(name, tmp_path).cuda()
    batch = batch_of(captioner, 5).to("cuda")
    by_graph = drawn(captioner, batch)
    assert not caplog.records
    monkeypatch.setattr(Family, "replays", lambda self, device: False)
    assert by_graph == drawn(captioner, batch)
