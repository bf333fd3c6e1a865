"""Steps in memory that stays: the same captions as by steps that grow, also when they are replayed, on a GPU by CUDA graphs."""

import gc
import warnings
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache, EncoderDecoderCache, MistralConfig

from family_checks import TINY, make
from tellapart.captioners import drawing
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.cache import can_be_fixed, fixed
from tellapart.captioners.contrastive import Contrast
from tellapart.captioners.families.base import Family
from tellapart.captioners.fixed import FixedCachedSteps, FixedDecoderSteps
from tellapart.captioners.graphs import TRIES, Recorder, Replayed
from tellapart.types import Decoding
from tiny_models import batch_of, tiny_ved

DECODINGS = {
    "greedy": Decoding(max_new_tokens=12),
    "samples": Decoding(max_new_tokens=12, do_sample=True, num_return_sequences=4),
    "beams": Decoding(max_new_tokens=12, num_beams=4, num_return_sequences=4),
    "restricted beams": Decoding(max_new_tokens=12, num_beams=3, no_repeat_ngram_size=2, min_new_tokens=4),
}
GROWS = {"BLIP-2 (T5)", "InstructBLIP (T5)", "PaliGemma 2"}
"""Families whose memory of words grows: T5 has a cache of two parts, Gemma 2 sliding windows."""


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


# A recorder for a CPU: the operations of torch that a function carries out, on the very memory that it carried them out on.


class Operations(TorchDispatchMode):
    """Takes operations down; ``undo`` puts back what they wrote to."""

    def __init__(self):
        super().__init__()
        self.taken, self.before = [], []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operation._schema.is_mutable:
            self.before += [(part, part.clone()) for part in tree_leaves((args, kwargs)) if torch.is_tensor(part)]
        found = operation(*args, **kwargs)
        self.taken.append((operation, args, kwargs, found))
        return found

    def undo(self):
        for part, was in reversed(self.before):
            if not torch.equal(part, was):
                part.copy_(was)


class Graph:
    """Carries operations out again; what they give is written to where it was the first time."""

    def __init__(self, taken):
        self.taken = taken

    def replay(self):
        for operation, args, kwargs, found in self.taken:
            again = operation(*args, **kwargs)
            if operation._schema.is_mutable or any(part.alias_info for part in operation._schema.returns):
                continue  # what is written to stays where it is, and so do views
            for old, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                if torch.is_tensor(old):
                    old.copy_(new)


class CpuRecorder:
    """Records functions and counts how often."""

    def __init__(self):
        self.count = 0

    def __call__(self, function, given):
        self.count += 1
        with Operations() as operations:
            found = function(*given)
        operations.undo()
        return Graph(operations.taken), found


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


def compare(captioner, monkeypatch, kinds, draw=drawn, *, exact=True):
    """Captions by steps that grow, of fixed shapes, and of fixed shapes replayed.

    In bfloat16 (not ``exact``) attention to more columns, of which some are hidden, may be rounded otherwise.
    """
    monkeypatch.setattr(drawing, "FEW", 0.9)
    monkeypatch.setattr(drawing, "LOOK", 2)
    batch = batch_of(captioner, 5)
    grown = draw(captioner, batch)
    assert not kinds
    monkeypatch.setattr(Family, "replays", lambda self, device: True)
    called = draw(captioner, batch)
    assert called == grown or not exact
    recorder = CpuRecorder()
    captioner.family.recorder.record = recorder
    assert draw(captioner, batch) == called
    assert (recorder.count > 0) == bool(kinds)
    return grown


@pytest.mark.parametrize("name", TINY)
def test_steps_of_fixed_shapes_draw_the_same_captions(name, tmp_path: Path, monkeypatch, kinds):
    expected = compare(make(name, tmp_path), monkeypatch, kinds)
    assert len(kinds) == (name not in GROWS)
    assert len({text for texts in expected for text in texts}) > 5


def unread(name, folder, **options):
    """A captioner whose decoder is read through its modules."""
    captioner = make(name, folder, **options)
    captioner.family.reads_parts = False
    return captioner


@pytest.mark.parametrize("name", ["BLIP-2 (OPT)", "LLaVA", "PaliGemma", "Qwen2-VL", "Qwen3-VL"])
def test_so_do_those_through_modules(name, tmp_path: Path, monkeypatch, kinds):
    compare(unread(name, tmp_path), monkeypatch, kinds)
    assert kinds == {FixedCachedSteps}


@pytest.mark.parametrize("name", TINY)
def test_also_under_autocast(name, tmp_path: Path, monkeypatch, kinds):
    compare(make(name, tmp_path, rollout_dtype="bfloat16"), monkeypatch, kinds, exact=False)


@pytest.mark.parametrize(("name", "made"), [("LLaVA", make), ("LLaVA", unread), ("BLIP", make)])
def test_also_with_an_adapter_and_against_look_alikes(name, made, tmp_path, monkeypatch, kinds):
    captioner = made(name, tmp_path, lora=LoraOptions(r=2))
    with torch.no_grad():
        for weight in captioner.parameters():
            if weight.requires_grad:
                weight.normal_(std=0.2, generator=torch.Generator().manual_seed(0))

    def draw(captioner, batch):
        contrast = Contrast(torch.tensor([[1, 2], [3, 4]]), 0.7)
        texts = drawn(captioner, batch)
        for decoding in DECODINGS.values():
            torch.manual_seed(0)
            texts.append(captioner.generate(batch, decoding, contrast=contrast).texts)
        return texts

    compare(captioner, monkeypatch, kinds, draw)
    assert kinds


def test_a_prefix_padded_on_the_left_is_hidden_from_words(tmp_path, monkeypatch, kinds):
    """Prompts of different lengths."""

    def draw(captioner, batch):
        inputs = batch.inputs["captioner"]
        inputs["attention_mask"] = inputs["attention_mask"].clone()
        inputs["attention_mask"][:2, :3] = 0
        return drawn(captioner, batch)

    for made, kind in ((make, FixedDecoderSteps), (unread, FixedCachedSteps)):
        kinds.clear()
        with monkeypatch.context() as patch:
            compare(made("Qwen2-VL", tmp_path / kind.__name__), patch, kinds, draw)
        assert kinds == {kind}


def filled(columns=3):
    cache = DynamicCache()
    parts = torch.arange(2.0 * columns).view(2, 1, columns, 1)
    cache.update(parts, -parts, 0)
    return cache


def test_a_cache_of_fixed_size():
    """Rows begin as the rows that are named; the words to come are there, and finite: 0 times NaN would be NaN."""
    cache = fixed(filled(), torch.tensor([1, 1, 0]), 2)
    (layer,) = cache.layers
    assert layer.keys[:, 0, :, 0].tolist() == [[3, 4, 5, 0, 0], [3, 4, 5, 0, 0], [0, 1, 2, 0, 0]]
    word = torch.tensor([7.0, 8.0, 9.0], dtype=torch.float64).view(3, 1, 1, 1)
    keys, values = cache.update(word, -word, 0)
    assert keys[:, 0, 3, 0].tolist() == [7, 8, 9]
    assert values[:, 0, 3, 0].tolist() == [-7, -8, -9]
    cache.place += 1
    cache.follow(torch.tensor([1, 0, 2]))
    assert layer.keys[:, 0, 3, 0].tolist() == [8, 7, 9]
    assert layer.keys[:, 0, 0, 0].tolist() == [3, 3, 0], "the prefix does not move"
    left = cache.select(torch.tensor([2]))
    left.place += 1
    assert (cache.read.tolist(), left.read.tolist()) == ([1], [2])
    assert left.layers[0].keys[0, 0, :, 0].tolist() == [0, 1, 2, 9, 0]
    assert cache.get_seq_length() == 3


def test_a_fixed_cache_shows_the_word_that_is_read_and_those_before():
    cache = fixed(filled(2), torch.arange(2), 3)
    cache.place += 1
    seen = cache.seen(torch.tensor([[0, 1], [1, 1]]))
    assert seen[:, 0, 0].tolist() == [[False, True, True, True, False], [True, True, True, True, False]]


def test_layers_with_windows_keep_growing():
    """A mask that is given as it is has no window."""
    cache = filled()
    assert can_be_fixed(cache, MistralConfig(sliding_window=None))
    assert not can_be_fixed(cache, MistralConfig(sliding_window=4))
    kinds = type("Config", (), {"layer_types": ["full_attention", "full_attention"], "sliding_window": 4})()
    assert can_be_fixed(cache, kinds), "a window that no layer has"
    kinds.layer_types = ["full_attention", "sliding_attention"]
    assert not can_be_fixed(cache, kinds)
    assert not can_be_fixed(EncoderDecoderCache(filled(), filled()), MistralConfig(sliding_window=None))


def test_beams_that_do_not_move_stay(tmp_path):
    """A second word without a new order of beams is not moved by the last one."""
    captioner = unread("Qwen2-VL", tmp_path)
    family, batch = captioner.family, batch_of(captioner, 2)
    words, parent = torch.tensor([5, 6, 7, 8]), torch.tensor([1, 0, 3, 2])

    def states(replays):
        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Family, "replays", lambda self, device: replays)
            encoded = family.encode(batch.inputs["captioner"])
            steps = family.steps(encoded, 2, 5, beams=True)
            found = [steps.read(words)]
            steps.follow(parent)
            return torch.stack([*found, *(steps.read(words + i) for i in range(3))])

    torch.testing.assert_close(states(True), states(False), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "made_by"), [("BLIP", make), ("LLaVA", make), ("LLaVA", unread)])
def test_what_was_drawn_is_forgotten_at_once(name, made_by, tmp_path, monkeypatch):
    """Python may look for cycles much later, and a GPU's memory is full by then."""
    made = []
    for kind in (FixedDecoderSteps, FixedCachedSteps):
        first = kind.__init__
        monkeypatch.setattr(
            kind,
            "__init__",
            lambda self, *a, first=first, **k: (made.append(weakref.ref(self)), first(self, *a, **k))[1],
        )
    monkeypatch.setattr(Family, "replays", lambda self, device: True)
    captioner = made_by(name, tmp_path)
    captioner.family.recorder.record = CpuRecorder()
    batch = batch_of(captioner, 3)
    gc.collect()
    gc.disable()
    try:
        drawn(captioner, batch)
        assert len(made) == 6
        assert not any(one() for one in made)
    finally:
        gc.enable()


def test_words_are_recorded_on_a_gpu_where_all_weights_lie_on_it_as_they_are(monkeypatch):
    family, gpu = tiny_ved().family, torch.device("cuda")
    assert family.replays(gpu)
    assert not family.replays(torch.device("cpu"))
    for part, name, value, replays in (
        (family, "lockstep", True, False),
        (family.model, "hf_device_map", {"encoder": 0, "decoder": 1}, False),
        (family.model, "hf_device_map", {"": 0}, True),
        (family.model, "is_quantized", True, False),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(part, name, value, raising=False)
            assert family.replays(gpu) == replays


def test_eager_attention_grows(tmp_path, monkeypatch, kinds):
    """It adds its mask to the scores, where one of true and false would change little."""
    captioner = unread("Qwen2-VL", tmp_path)
    captioner.family.model.set_attn_implementation("eager")
    compare(captioner, monkeypatch, kinds)
    assert not kinds


def test_away_from_cuda_a_function_is_called():
    calls, replayed = [], Replayed(Recorder())
    found = [replayed(lambda rows: calls.append(1) or 2 * rows, torch.ones(2) * i).tolist() for i in range(3)]
    assert found == [[0, 0], [2, 2], [4, 4]]
    assert len(calls) == 3


def refusing(attempts):
    """A recorder that fails at these attempts, and all its attempts."""
    made, recorder = [], CpuRecorder()

    def record(function, given):
        made.append(1)
        if len(made) in attempts:
            raise RuntimeError("cannot be recorded")
        return recorder(function, given)

    return Recorder(record), made


@pytest.mark.parametrize(("refuses", "tries"), [((), 1), ((1,), 2), ((1, 2), 2)])
def test_a_recorded_function_computes_what_it_does_when_called(refuses, tries, caplog):
    total = torch.zeros(2)
    recorder, made = refusing(refuses)
    replayed = Replayed(recorder)

    def step(rows):
        total.add_(rows)
        return 2 * total

    found = [replayed(step, torch.full((2,), float(i))) for i in range(6)]
    assert [part[0].item() for part in found] == [0, 2, 6, 12, 20, 30]
    assert len(made) == tries
    assert len(caplog.records) == (len(refuses) == TRIES), "a single failure is not told"


def test_a_model_that_cannot_be_recorded_is_not_tried_for_ever(caplog):
    recorder, made = refusing(range(100))
    for _ in range(5):
        replayed = Replayed(recorder)
        for i in range(4):
            assert replayed(lambda rows: rows + 1, torch.ones(2) * i).tolist() == [i + 1, i + 1]
    assert len(made) == TRIES
    assert len(caplog.records) == 1


# On a GPU.

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.gpu
@needs_gpu
def test_a_graph_computes_what_the_function_does():
    calls, total, replayed = [], torch.zeros(3, device="cuda"), Replayed(Recorder())

    def step(rows):
        calls.append(1)
        total.add_(rows)
        return total * 2

    found = [replayed(step, torch.full((3,), float(i), device="cuda")) for i in range(5)]
    assert [part[0].item() for part in found] == [0, 2, 6, 12, 20]
    assert len(calls) == 2


@pytest.mark.gpu
@needs_gpu
def test_what_cannot_be_recorded_is_called(caplog):
    replayed = Replayed(Recorder())
    found = [
        replayed(lambda rows: rows * float(rows.sum()), torch.full((2,), float(i), device="cuda")) for i in range(5)
    ]
    assert [part[0].item() for part in found] == [0, 2, 8, 18, 32]
    assert ["without CUDA graphs" in record.message for record in caplog.records] == [True]
    torch.nn.functional.dropout(torch.ones(4, device="cuda"))
    calls, again = [], Replayed(Recorder())
    found = [
        again(lambda rows: calls.append(1) or 2 * rows, torch.full((2,), float(i), device="cuda")) for i in range(4)
    ]
    assert [part[0].item() for part in found] == [0, 2, 4, 6]
    assert len(calls) == 2


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", TINY)
def test_graphs_draw_the_captions_of_steps_that_grow(name, tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setattr(drawing, "FEW", 0.9)
    monkeypatch.setattr(drawing, "LOOK", 4)
    captioner = make(name, tmp_path).cuda()
    batch = batch_of(captioner, 5).to("cuda")
    by_graph = drawn(captioner, batch)
    assert not caplog.records
    monkeypatch.setattr(Family, "replays", lambda self, device: False)
    assert by_graph == drawn(captioner, batch)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", TINY)
def test_words_wait_for_the_device_only_when_it_is_asked_what_ended(name, tmp_path: Path):
    """Eight more words, one look more."""
    captioner = make(name, tmp_path).cuda()
    batch = batch_of(captioner, 5).to("cuda")
    if name in GROWS:
        pytest.skip("its steps are not replayed")
    waits = {}
    for words in (drawing.LOOK + 1, 2 * drawing.LOOK + 1):
        for kind, decoding in DECODINGS.items():
            asked = replace(decoding, max_new_tokens=words, min_new_tokens=words)
            captioner.generate(batch, asked)
            waits[kind, words] = waits_of(lambda asked=asked: captioner.generate(batch, asked))
    for kind in DECODINGS:
        shorter, longer = (waits[kind, words] for words in (drawing.LOOK + 1, 2 * drawing.LOOK + 1))
        assert len(longer) - len(shorter) == 1, (kind, Counter(longer) - Counter(shorter))


def waits_of(draws):
    """The lines at which Python waits for the device."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            draws()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [f"{wait.filename}:{wait.lineno}" for wait in found if "called a synchronizing" in str(wait.message)]
