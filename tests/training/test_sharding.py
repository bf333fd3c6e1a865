"""Captioners and frozen models in shards: two processes against one, resuming with another number of them, what is refused."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from frozen_runs import RESUMED as GIVEN
from frozen_runs import save_frozen, train_with_frozen
from sharded_runs import CASES, MATRIX, Case, Recorded, captioner_of, run, saved

from listeners.tiny_listeners import clip_parts
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.objectives.psst import PSST
from tellapart.objectives.xe import XE
from tellapart.training import frozen
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.training.memory import memory_of, sharded_peak
from tellapart.training.sharding import large_models, require_shardable
from tellapart.types import Decoding
from tiny.language_models import tiny_language_model
from two_processes import run_two

HERE = Path(__file__).resolve().parent

RESUMED = Case("BLIP", load=(("train", "all"),))
LEGS = {"max_steps": 6, "save_steps": 2, "eval_steps": 3, "metric_for_best_model": "odd"}
HALF = Case("CLIP + GPT-2", load=(("train", "all"), ("dtype", "bfloat16")))
READ = Case("CLIP + GPT-2", "xe", load=(("train", "all"), ("dtype", "bfloat16")))
ADAPTED = Case("CLIP + GPT-2", "xe", lora=True, load=(("dtype", "bfloat16"),))

COMPARED = """
import json, os, shutil, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import torch.distributed as dist
from sharded_runs import *

folder, models, cases = Path(sys.argv[1]), Path(sys.argv[2]), {"short": CASES, "matrix": MATRIX}[sys.argv[3]]
if os.environ["RANK"] == "0":  # the other one waits for it in the first training
    for left in filter(Path.is_dir, folder.iterdir()):
        shutil.rmtree(left)  # of a launch that failed
found = {}
for case in cases:
    history, drawn, objective = run(case, models, folder / case.name())
    both = [None, None]
    dist.all_gather_object(both, drawn)
    learning = [p for p in objective.captioner.parameters() if p.requires_grad]
    held = sum(p.to_local().numel() for p in learning) / sum(p.numel() for p in learning)
    found[case.name()] = {"history": history, "drawn": sorted(both[0] + both[1]), "held": held}
if dist.get_rank() == 0:
    (folder / "found.json").write_text(json.dumps(found))
dist.barrier()
"""

FROZEN = """
import signal
from frozen_runs import cut_all, read_unequally, resume_across, train_with_frozen

signal.alarm(300)  # processes that wait for each other end here
refused, continued = resume_across(models, folder / "across")
read = read_unequally(models)
cut_all()
history, about = train_with_frozen(models, folder / "frozen")
signal.alarm(0)
rank = dist.get_rank()
done = {"read": read, "history": history, "about": about, "refused": refused, "continued": continued}
(folder / f"frozen-{rank}.json").write_text(json.dumps(done))
dist.barrier()
"""

FIRST_LEG = """
from test_sharding import LEGS, RESUMED, Killed, odd

run(RESUMED, models, folder / "resumed", Killed(captioner_of(RESUMED, models), 3), odd, **LEGS)
"""

LAST_LEG = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import torch.distributed as dist
from sharded_runs import *
from test_sharding import ADAPTED, HALF, LEGS, READ, RESUMED, odd

folder, models = Path(sys.argv[1]), Path(sys.argv[2])
history, _, _ = run(RESUMED, models, folder / "resumed", None, odd, **LEGS, resume_from_checkpoint="last")
half, drawn, objective = run(HALF, models, folder / "half", None, odd, bf16=True, eval_steps=1)
read, _, _ = run(READ, models, folder / "read", bf16=True)
adapted, _, _ = run(ADAPTED, models, folder / "adapted")
types = sorted({str(p.dtype) for p in objective.captioner.parameters() if p.requires_grad})
if dist.get_rank() == 0:
    found = {"history": history, "half": half, "read": read, "adapted": adapted, "drawn": drawn, "types": types}
    (folder / "last.json").write_text(json.dumps(found))
dist.barrier()
"""


RESTARTED = """
import os, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
import torch.distributed as dist
from sharded_runs import *
from test_sharding import LEGS, RESUMED, Killed, odd

folder, models = Path(sys.argv[1]), Path(sys.argv[2])
dies = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1"
objective = Killed(captioner_of(RESUMED, models), 3, code=9) if dies else None
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" and os.environ["RANK"] == "1":
    time.sleep(2)  # the store still holds the address of the process that was restarted
run(RESUMED, models, folder / "restarted", objective, odd, **LEGS, resume_from_checkpoint="last")
dist.barrier()
"""


class Killed(Recorded):
    """Its process ends in the middle of a step, without a word."""

    def __init__(self, captioner, step, code=0):
        super().__init__(captioner)
        self.last, self.code = step, code

    def collect(self, batch, step):
        experience = super().collect(batch, step)
        if step == self.last:
            os._exit(self.code)
        return experience


class Stopped(Recorded):
    """Asked to stop in step 3."""

    def collect(self, batch, step):
        if step == 3:
            signal.raise_signal(signal.SIGTERM)
        return super().collect(batch, step)


def odd(objective):
    """An evaluation: the main process alone draws captions."""
    from family_checks import lengths, pictures
    from tellapart.data.dataset import Collate

    captioner = objective.captioner
    batch = Collate({captioner.name: captioner.process})(list(pictures(3)))
    return {"odd": float(lengths(captioner.generate(batch, Decoding(max_new_tokens=6))).mean())}


def launch(folder, models, source, *words, **options):
    script = folder / "script.py"
    script.write_text(source)
    places = os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    run_two(str(script), str(folder), str(models), *words, timeout=1500, PYTHONPATH=places, **options)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for case in (*CASES, RESUMED, HALF):
        saved(case.family, folder)
    save_frozen(folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory, models):
    """What two processes found of every case and of frozen models; then the first leg of the run that is resumed, which is
    killed in step 3."""
    folder = tmp_path_factory.mktemp("two")
    launch(folder, models, COMPARED + FROZEN + FIRST_LEG, "short", TELLAPART_CACHE=str(folder / "cache"))
    return folder


@pytest.fixture(scope="module")
def both(two):
    """What each of the two processes found of frozen models."""
    return [json.loads((two / f"frozen-{rank}.json").read_text()) for rank in (0, 1)]


def compare(case, found, models, folder):
    history, drawn, _ = run(case, models, folder)
    two = found[case.name()]
    losses = [
        [line[key] for line in lines for key in ("loss", "grad_norm/captioner")] for lines in (history, two["history"])
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5), case
    assert [tuple(caption) for caption in two["drawn"]] == sorted(drawn), case
    assert 0.4 < two["held"] < 0.6, "each process holds half of what learns"


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_two_processes_in_shards_train_as_one(case, two, models, tmp_path):
    compare(case, json.loads((two / "found.json").read_text()), models, tmp_path)


def test_frozen_models_in_shards_are_read_unequally(both):
    """One process reads 10 captions and the pictures, the other one 2 captions or none, in another order of models."""
    first, second = (found["read"] for found in both)
    for name, values in first["before"].items():
        assert first["after"][name] == pytest.approx(values, rel=1e-5, abs=1e-6), name
        assert second["after"][name] == pytest.approx(second["before"][name], rel=1e-5, abs=1e-6), name
        assert first["calls"][name] > second["calls"][name], name
        for held, expected, whole in (first["held"][name], second["held"][name]):
            assert held == pytest.approx(expected, rel=0.01), name
            assert held < (0.97 if name == "late" else 0.7) * whole, name  # most of this tiny one is in no layer
    assert first["same"], "hashes are those of whole weights"


def test_a_training_with_frozen_models_in_shards_is_that_of_one_process(both, models, tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    alone, about = train_with_frozen(models, tmp_path)
    assert set(about["held"].values()) == {1.0}
    for found in both:
        for line, other in zip(alone, found["history"], strict=True):
            names = {name for name in line if not name.startswith("seconds/")}
            assert {n: other[n] for n in names} == pytest.approx({n: line[n] for n in names}, rel=1e-5, abs=1e-5)
        assert set(found["about"]["held"]) == {"listener", "judge", "matcher", "reference"}
        assert max(found["about"]["held"].values()) < 0.7
    assert both[0]["about"]["calls"] != both[1]["about"]["calls"], "captions of both processes are not as many"


def test_shards_and_replicas_resume_each_other_or_say_why_not(two, both, models, tmp_path):
    whole, _, _ = run(GIVEN, models, tmp_path, max_steps=2)
    for found in both:
        assert "written without shards, which processes in shards cannot read" in found["refused"]
        assert found["continued"][-1]["loss"] == pytest.approx(whole[-1]["loss"], rel=1e-5)
    again = {"max_steps": 2, "resume_from_checkpoint": "last"}
    alone, _, _ = run(GIVEN, models, two / "across" / "replicas", **again)  # one process has no shards
    assert alone[-1]["loss"] == pytest.approx(whole[-1]["loss"], rel=1e-5)


@pytest.mark.nightly  # it takes 25 seconds; one family is tried on every change, above
@pytest.mark.slow
def test_other_families_in_shards_train_as_one(models, tmp_path):
    for case in MATRIX:
        saved(case.family, models)
    launch(tmp_path, models, COMPARED, "matrix")
    found = json.loads((tmp_path / "found.json").read_text())
    for case in MATRIX:
        compare(case, found, models, tmp_path / "one" / case.name())


def test_a_run_is_resumed_by_one_process_and_by_two_again(two, models, tmp_path):
    folder = two / "resumed"
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2"], "killed in step 3"
    assert not (folder / "checkpoint-2" / "captioner").exists(), "gathered only where it is used"
    stopping = Stopped(captioner_of(RESUMED, models))
    with pytest.raises(KeyboardInterrupt, match="stopped at step 4 of 6"):
        run(RESUMED, models, folder, stopping, odd, **LEGS, resume_from_checkpoint="last")
    launch(two, models, LAST_LEG)
    found = json.loads((two / "last.json").read_text())
    whole, _, objective = run(RESUMED, models, tmp_path, None, odd, **LEGS)
    for line, other in zip(whole, found["history"], strict=True):
        names = {name for name in line if not name.startswith("seconds/")}
        assert {n: other[n] for n in names} == pytest.approx({n: line[n] for n in names}, rel=1e-5, abs=1e-5)
    last = HuggingFaceCaptioner.from_pretrained(folder / "checkpoint-6" / "captioner")
    for name, value in objective.captioner.state_dict().items():
        assert (last.state_dict()[name] - value).abs().max() < 1e-5, name
    assert HuggingFaceCaptioner.from_pretrained(folder / "best" / "captioner").has_lora is False

    # Weights that were loaded in bfloat16 learn in float32 shards, and layers compute in bfloat16.
    assert found["types"] == ["torch.float32"]
    assert all(torch.isfinite(torch.tensor(line["loss"])) for line in found["half"] if "loss" in line)
    assert len({text for _, _, text in found["drawn"]}) > 1
    for case, name in ((READ, "read"), (ADAPTED, "adapted")):
        alone, _, _ = run(case, models, tmp_path / name, bf16=case is READ)
        losses = [[line["loss"] for line in lines] for lines in (alone, found[name])]
        assert losses[1] == pytest.approx(losses[0], rel=0.02), "equal except for rounding in bfloat16"


@pytest.mark.nightly  # it takes 20 seconds, and `test_meeting.py` tries what it tries of ours
@pytest.mark.slow
def test_torchrun_starts_a_run_again_from_its_last_checkpoint(models, tmp_path):
    launch(tmp_path, models, RESTARTED, torchrun=True, PET_MAX_RESTARTS="1")
    lines = [json.loads(line) for line in (tmp_path / "restarted" / "metrics.jsonl").read_text().splitlines()]
    assert json.loads((tmp_path / "restarted" / "run.json").read_text())["resumed_at_step"] == 2
    whole, _, _ = run(RESUMED, models, tmp_path / "one", None, odd, **LEGS)
    losses = [[line["loss"] for line in each if "loss" in line] for each in (whole, lines)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_shards_of_another_model_are_refused(two, models):
    with pytest.raises(UsageError, match="optimiser states hold"):
        run(Case("BLIP", lora=True), models, two / "resumed", max_steps=8, resume_from_checkpoint="last")


def test_what_cannot_be_sharded_is_refused_before_training(models, tmp_path):
    captioner = captioner_of(Case("CLIP + GPT-2"), models)
    objective = XE(captioner)
    require_shardable(objective, "full")
    objective.discriminator = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="trains captioners only, not XE's discriminator: set training"):
        train(objective, None, TrainConfig(output_dir=tmp_path, shard="full"))
    with pytest.raises(UsageError, match="shard='half' must be one of none, grad_op, full"):
        TrainConfig(output_dir=tmp_path, shard="half")
    assert not PSST.shards


def test_the_estimate_counts_each_device_once(models):
    """By hand: everything in float32, all of it learns, so a device holds 4 bytes x 4 of each number over the devices."""
    captioner = captioner_of(Case("BLIP", load=(("train", "all"),)), models)
    captioner.requires_grad_(True)
    weights = sum(p.nbytes for p in captioner.parameters())
    layers = [sum(p.nbytes for p in layer.parameters()) for layer in captioner.family.layers]
    assert len(layers) == 4
    rest = weights - sum(layers)
    rows = memory_of({"captioner": captioner}, {})
    buffers = sum(buffer.nbytes for buffer in captioner.buffers())
    assert rows[0].lasting == 4 * weights + buffers
    how = {"devices": 4, "bf16": False}
    full = sharded_peak(rows, captioner, [], full=True, draws=False, **how)
    assert full == pytest.approx(4 * weights / 4 + rest + 2 * max(layers), abs=buffers + 8)
    kept = sharded_peak(rows, captioner, [], full=False, draws=True, **how)
    assert kept == pytest.approx(4 * weights / 4 + weights, abs=buffers + 8)
    drawn = sharded_peak(rows, captioner, [], full=True, draws=True, **how)
    assert drawn == pytest.approx(max(full, 3 * weights / 4 + weights), abs=buffers + 8)


def test_the_estimate_counts_large_frozen_models(models, monkeypatch):
    """By hand: of four devices each holds a quarter of a listener's layers and all of the rest, and gathers the largest layer."""
    captioner = captioner_of(Case("BLIP", load=(("train", "all"),)), models)
    captioner.requires_grad_(True)
    listener = ClipListener.from_parts(*clip_parts()).model
    assert large_models([listener], [captioner]) == [], "it is small"
    monkeypatch.setattr(frozen, "LARGE", 0)
    assert large_models([listener, captioner.family.model], [captioner]) == [listener], (
        "what trains is cut in another way"
    )
    layers = [sum(p.nbytes for p in layer.parameters()) for layer in frozen.parts_of(listener)]
    assert len(layers) == 4, "two of each tower; embeddings are small"
    rows = memory_of({"captioner": captioner}, {"listener": listener})
    peak = sharded_peak(rows, captioner, [], [listener], devices=4, full=True, bf16=False, draws=True)
    weights, rest = sum(p.nbytes for p in captioner.parameters()), rows[1].weights - sum(layers)
    own = [sum(p.nbytes for p in layer.parameters()) for layer in captioner.family.layers]
    drawing, scoring = weights + max(layers), weights - sum(own) + 2 * max(own) + weights / 4
    buffers = sum(buffer.nbytes for buffer in captioner.buffers())
    expected = 3 * weights / 4 + max(drawing, scoring) + rest + sum(layers) / 4
    assert peak == pytest.approx(expected, abs=buffers + 8)
    assert drawing > scoring


def test_tied_and_packed_weights_stay_whole(monkeypatch):
    monkeypatch.setattr(frozen, "LARGE", 0)
    monkeypatch.setattr(frozen, "LARGE_EMBEDDING", 0)
    tied, _ = tiny_language_model("gpt2")
    apart, _ = tiny_language_model("llama")
    assert tied.lm_head.weight is tied.transformer.wte.weight
    assert frozen.parts_of(tied) == [tied.transformer.wpe, *tied.transformer.h]
    assert frozen.parts_of(apart) == [apart.model.embed_tokens, *apart.model.layers, apart.lm_head]
    apart.lm_head.weight = torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.uint8), requires_grad=False)
    assert frozen.parts_of(apart) == []
