import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from training_toys import KILLED_OPTIONS, Toy, digest, mortal, toy_config, toy_data

from tellapart.errors import UsageError
from tellapart.files import checkpoints
from tellapart.run_files import STATE_FILE
from tellapart.training import checkpoint
from tellapart.training.loop import train

HERE = Path(__file__).resolve().parent


def trained(folder, objective=None, *, size=20, **options):
    objective = objective if objective is not None else Toy()
    run = train(objective, toy_data(size), toy_config(folder, **options))
    return objective, run


def without_seconds(path: Path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("seconds/")} for line in lines]


def start_process(script: str, **environment: str) -> subprocess.Popen:
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", "import torch; torch.set_num_threads(1)\n" + script],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(tmp_path):
    whole, _ = trained(tmp_path / "whole", **KILLED_OPTIONS)
    folder = tmp_path / "killed"
    process = start_process(
        "from training_toys import *\n"
        "from tellapart.training.loop import train\n"
        f"train(Slow(), toy_data(), toy_config({str(folder)!r}, **KILLED_OPTIONS))"
    )
    while not checkpoints(folder) and process.poll() is None:
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.5))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.stderr.read() if process.stderr else ""
    killed_at = max(checkpoints(folder))
    assert killed_at < 120, "the process was to be killed before its end"
    resumed = Toy(seed=5)
    _, run = trained(folder, resumed, **KILLED_OPTIONS, resume_from_checkpoint="last")
    assert digest(resumed) == digest(whole)
    assert without_seconds(folder / "metrics.jsonl") == without_seconds(tmp_path / "whole" / "metrics.jsonl")
    assert [line["step"] for line in run.history] == list(range(1, 121))
    assert not list(folder.glob(".*")), "nothing half-written is left"


@pytest.mark.slow
def test_a_run_killed_while_saving_keeps_the_checkpoint_before(tmp_path):
    options = {"max_steps": 6, "save_steps": 2}
    whole, _ = trained(tmp_path / "whole", mortal(), **options)
    folder = tmp_path / "killed"
    process = start_process(
        "from training_toys import *\nfrom tellapart.training.loop import train\n"
        f"train(mortal(), toy_data(), toy_config({str(folder)!r}, **{options!r}))",
        TOY_DIES="1",
    )
    assert process.wait() == -signal.SIGKILL, process.stderr.read() if process.stderr else ""
    assert list(checkpoints(folder)) == [2]
    assert len(list(folder.glob(".checkpoint-4.*"))) == 1, "killed in the middle of writing"
    resumed, run = trained(folder, mortal(), **options, resume_from_checkpoint=True)
    assert digest(resumed) == digest(whole)
    assert run.step == 6
    assert not list(folder.glob(".checkpoint*"))


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_stopping_and_resuming_gives_the_same_bits_and_lines(tmp_path, stop):
    """Odd and even stops: the critic's optimiser state may be absent, present, and in mid-epoch."""
    options = {"max_steps": 7, "lr_scheduler_type": "linear", "warmup_steps": 2, "dropout": True, "weight_decay": 0.1}
    whole, run = trained(tmp_path / "whole", **options, save_steps=stop)
    folder = tmp_path / "cut"
    folder.mkdir()
    shutil.copytree(tmp_path / "whole" / f"checkpoint-{stop}", folder / f"checkpoint-{stop}")
    # The log of a process killed two lines after its checkpoint, in the middle of a third.
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[: stop + 2]) + lines[-1][:20])
    resumed, resumed_run = trained(folder, Toy(seed=5), **options, resume_from_checkpoint="last")
    assert digest(resumed) == digest(whole)
    assert without_seconds(folder / "metrics.jsonl") == without_seconds(tmp_path / "whole" / "metrics.jsonl")
    assert len(run.history) == len(resumed_run.history) == 7
    assert json.loads((folder / "run.json").read_text())["resumed_at_step"] == stop


def test_a_step_schedule_resumes_and_may_be_made_longer(tmp_path):
    """8 of 20 images per step: half an epoch is a step and a quarter, so the rate is halved at steps 2, 3, 4 and 5."""
    options = {"lr_scheduler_type": "step", "lr_step_epochs": 0.5, "lr_step_gamma": 0.5}
    whole, run = trained(tmp_path / "whole", **options)
    rates = [line["learning_rate/captioner"] for line in run.history]
    assert rates == pytest.approx([0.01 * 0.5 ** (step * 8 // 10) for step in range(6)])
    trained(tmp_path / "cut", **options, max_steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a longer run is the same run, as at a constant rate
        resumed, _ = trained(tmp_path / "cut", **options, resume_from_checkpoint="last")
    assert digest(resumed) == digest(whole)


def test_what_was_selected_survives_resuming(tmp_path):
    def evaluate(objective):
        return {"score": -abs(float(objective.captioner[3].bias.detach()) - start - 0.02)}

    start = float(Toy().captioner[3].bias.detach())
    options = {"eval_steps": 1, "metric_for_best_model": "score", "save_steps": 3, "best_floor": {"score": 2.0}}
    whole = train(Toy(), toy_data(), toy_config(tmp_path / "whole", **options), evaluate=evaluate)
    first = toy_config(tmp_path / "cut", **{**options, "max_steps": 3})
    train(Toy(), toy_data(), first, evaluate=evaluate)
    again = toy_config(tmp_path / "cut", **options, resume_from_checkpoint="last")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # at a constant rate a longer run is the same run, and nothing is to be said
        resumed = train(Toy(), toy_data(), again, evaluate=evaluate)
    assert whole.best == resumed.best
    assert [line.get("eval_score") for line in whole.history] == [line.get("eval_score") for line in resumed.history]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr_scheduler_type": "cosine", "max_steps": 6}, "max_steps was 3 and is now 6"),
        ({"weight_decay": 0.1}, "0.1"),
        (
            {"dropout": True, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
            "per_device_train_batch_size was 8 and is now 4",
        ),
    ],
)
def test_an_option_that_changes_the_course_is_told(tmp_path, changed, message):
    kept = {name: value for name, value in changed.items() if name in ("lr_scheduler_type", "dropout")}
    before = {"max_steps": 3, "save_steps": 2, **kept}
    train(Toy(), toy_data(), toy_config(tmp_path, **before))
    with pytest.warns(UserWarning, match=message):
        train(Toy(), toy_data(), toy_config(tmp_path, **{**before, **changed}, resume_from_checkpoint="last"))


@pytest.mark.parametrize("value", ["x" * 70_000, None, [1]])
def test_an_option_of_a_wrong_kind_in_a_checkpoint_is_told(tmp_path, value):
    """It was compared with a number, and ended in a traceback."""
    train(Toy(), toy_data(), toy_config(tmp_path, max_steps=3, save_steps=2))
    state = tmp_path / "checkpoint-3" / "trainer_state.json"
    told = json.loads(state.read_text())
    state.write_text(json.dumps(told | {"config": told["config"] | {"warmup_steps": value}}))
    again = toy_config(tmp_path, max_steps=3, save_steps=2, resume_from_checkpoint="last")
    with pytest.warns(UserWarning, match="warmup_steps was .* and is now 0: the run resumes") as warned:
        train(Toy(), toy_data(), again)
    assert all(len(str(one.message)) < 300 for one in warned)


def test_a_finished_run_resumes_to_itself(tmp_path):
    objective, run = trained(tmp_path)
    resumed, again = trained(tmp_path, Toy(seed=5), resume_from_checkpoint="last")
    assert digest(resumed) == digest(objective)
    assert again.history == run.history
    assert not resumed.seen


def test_a_run_killed_behind_its_last_checkpoint_is_completed(tmp_path, monkeypatch):
    """Its state stayed that of the step before, and the checkpoint that was to be removed stayed."""
    options = {"save_steps": 1, "save_total_limit": 2, "max_steps": 4}
    trained(tmp_path / "whole", **options)
    write = checkpoint.write_json

    def killed(path, value, **how):
        if path == tmp_path / "cut" / STATE_FILE and value["step"] == 4:
            raise KeyboardInterrupt
        write(path, value, **how)

    with monkeypatch.context() as patch:
        patch.setattr("tellapart.training.loop.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "cut", **options)
    assert list(checkpoints(tmp_path / "cut")) == [2, 3, 4]
    trained(tmp_path / "cut", **options, resume_from_checkpoint="last")
    assert list(checkpoints(tmp_path / "cut")) == [3, 4]
    ours, theirs = (json.loads((tmp_path / name / STATE_FILE).read_text()) for name in ("cut", "whole"))
    assert ours.pop("config").keys() == theirs.pop("config").keys()
    assert ours == theirs


@pytest.mark.parametrize(
    ("limit", "kept"), [(1, [6]), (2, [5, 6]), (4, [3, 4, 5, 6]), (6, range(1, 7)), (10, range(1, 7))]
)
def test_as_many_checkpoints_are_kept_as_were_asked_for(tmp_path, limit, kept):
    """Limits of 3 and more deleted checkpoints while fewer were there."""
    trained(tmp_path, save_steps=1, save_total_limit=limit)
    assert list(checkpoints(tmp_path)) == list(kept)


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    config = toy_config(
        tmp_path, save_steps=1, save_total_limit=2, eval_steps=6, metric_for_best_model="score", max_steps=12
    )
    values = iter([3.0, 2.0, 1.0])
    train(Toy(), toy_data(), config, evaluate=lambda objective: {"score": next(values)})
    assert list(checkpoints(tmp_path)) == [11, 12]
    assert json.loads((tmp_path / "best" / "trainer_state.json").read_text())["step"] == 0
    assert not list(tmp_path.glob(".*"))


def test_a_checkpoint_holds_what_it_should_and_unpickles_no_code(tmp_path):
    trained(tmp_path, max_steps=2)
    folder = tmp_path / "checkpoint-2"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["captioner/model.safetensors", "critic/model.safetensors", "optimizer.pt", "trainer_state.json"]
    state = torch.load(folder / "optimizer.pt", weights_only=True)
    assert set(state["captioner.0.weight"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert float(state["captioner.0.weight"]["step"]) == 2
    assert float(state["critic.weight"]["step"]) == 1, "it learns in odd steps only"


def test_starting_over_a_run_is_refused(tmp_path):
    trained(tmp_path, max_steps=2)
    with pytest.raises(UsageError, match=r"already holds a run \(checkpoint-2\).*resume_from_checkpoint=last"):
        trained(tmp_path, max_steps=2)
    shutil.rmtree(tmp_path / "checkpoint-2")
    _, run = trained(tmp_path, max_steps=2)
    assert len(run.history) == 2, "without a checkpoint the old log is dropped"


def test_resuming_from_nothing_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"finds no checkpoint in .*leave it out to start"):
        trained(tmp_path, resume_from_checkpoint="last")
    with pytest.raises(UsageError, match="checkpoint-9' does not exist"):
        trained(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-9"))


def test_a_launcher_that_starts_again_gives_the_same_command_before_the_first_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    _, run = trained(tmp_path, max_steps=2, resume_from_checkpoint="last")
    assert [line["step"] for line in run.history] == [1, 2]


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ("optimizer.pt", "lacks optimizer.pt"),
        ("trainer_state.json", "trainer_state.json cannot be read"),
        ("captioner", "lacks captioner/"),
        ("critic/model.safetensors", "critic/model.safetensors cannot be read"),
    ],
)
@pytest.mark.parametrize("cut_short", [False, True])
def test_a_damaged_checkpoint_is_refused_with_a_remedy(tmp_path, lost, told, cut_short):
    trained(tmp_path, max_steps=2)
    path = tmp_path / "checkpoint-2" / lost
    if path.is_dir():
        shutil.rmtree(path)
    elif cut_short:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        told = told.replace("lacks optimizer.pt", "optimizer.pt cannot be read")
    else:
        path.unlink()
    with pytest.raises(
        UsageError, match=f"checkpoint-2 is not a complete checkpoint .*{told}.*restore it, or delete it"
    ):
        trained(tmp_path, max_steps=2, resume_from_checkpoint="last")


def test_another_run_is_not_resumed(tmp_path):
    trained(tmp_path, max_steps=4, save_steps=2)
    last = {"max_steps": 4, "resume_from_checkpoint": "last"}
    with pytest.raises(UsageError, match="another seed, 3 instead of 4: resume with the former"):
        trained(tmp_path, **last, seed=4)
    with pytest.raises(UsageError, match=r"another number of images per step .*, 8 instead of 16"):
        trained(tmp_path, **last, gradient_accumulation_steps=2)
    with pytest.raises(UsageError, match="another data"):
        trained(tmp_path, **last, size=19)
    with pytest.raises(UsageError, match="is older than checkpoint-4 in the same output_dir"):
        trained(tmp_path, max_steps=4, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    other = Toy()
    other.captioner = torch.nn.Linear(6, 2)
    with pytest.raises(UsageError, match="holds weights of another model"):
        trained(tmp_path, other, **last)
    # The same images a step, cut otherwise, are the same run.
    trained(tmp_path, **last, per_device_train_batch_size=4, gradient_accumulation_steps=2)


def test_a_branch_of_a_run_that_has_all_steps_is_refused_before_anything_is_written(tmp_path):
    """It left a run without any checkpoint, and complained of weights in a folder that was never there."""
    _, run = trained(tmp_path / "a", max_steps=2)
    last = str(run.checkpoint)
    for steps in (1, 2):
        with pytest.raises(UsageError, match=f"has 2 steps, and the run is to have {steps}, .* raise max_steps"):
            trained(tmp_path / "b", max_steps=steps, resume_from_checkpoint=last)
        assert not (tmp_path / "b").exists() or not list((tmp_path / "b").iterdir())
    trained(tmp_path / "b", max_steps=3, resume_from_checkpoint=last)
    trained(tmp_path / "a", max_steps=2, resume_from_checkpoint=last)  # its own has nothing left to do


def test_a_run_may_branch_off_into_another_folder(tmp_path):
    whole, _ = trained(tmp_path / "one", save_steps=2)
    branch, run = trained(tmp_path / "two", Toy(seed=5), resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-2"))
    assert digest(branch) == digest(whole)
    assert [line["step"] for line in run.history] == [3, 4, 5, 6]


@pytest.mark.parametrize("best_is_there", [True, False])
def test_a_run_that_branches_off_takes_the_best_checkpoint_along(tmp_path, best_is_there):
    """The score falls from step 1 on, so that no later evaluation replaces the best."""

    def evaluate(objective):
        scores.append(-len(scores))
        return {"score": float(scores[-1])}

    def run(name, **further):
        options = {"max_steps": 4, "save_steps": 2, "eval_steps": 1, "metric_for_best_model": "score", **further}
        return train(Toy(), toy_data(), toy_config(tmp_path / name, **options), evaluate=evaluate)

    scores: list[int] = []
    assert run("one").best.step == 0
    if not best_is_there:
        shutil.rmtree(tmp_path / "one" / "best")
    with pytest.warns(UserWarning, match="the best is chosen anew") if not best_is_there else nullcontext():
        branch = run("two", resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-2"))
    assert branch.best.step == (0 if best_is_there else 3)
    assert checkpoint.read_state(branch.selected).step == branch.best.step
    if best_is_there:
        weights = [
            (tmp_path / name / "best" / "captioner" / checkpoint.WEIGHTS).read_bytes() for name in ("one", "two")
        ]
        assert weights[0] == weights[1]


def run_scored(folder, scores, **options):
    """A run whose evaluation after step n gives the n-th of the scores."""
    steps = iter(sorted(scores))
    config = toy_config(folder, metric_for_best_model="score", **options)
    return train(Toy(), toy_data(), config, evaluate=lambda objective: {"score": scores[next(steps)], "other": 0.0})


def test_a_best_checkpoint_that_the_resumed_run_will_not_select_is_set_aside(tmp_path):
    """Killed after step 3, whose evaluation was the best: with other ``eval_steps`` the run never comes to it again, and its
    weights were called those of step 0."""
    run_scored(tmp_path / "killed", {0: 2.0, 1: 1.0, 2: 1.0, 3: 3.0, 4: 0.0}, max_steps=4, save_steps=2, eval_steps=1)
    shutil.rmtree(tmp_path / "killed" / "checkpoint-4")
    same = shutil.copytree(tmp_path / "killed", tmp_path / "same")
    last = {"max_steps": 4, "save_steps": 2, "resume_from_checkpoint": "last"}
    assert run_scored(same, {3: 3.0, 4: 0.0}, eval_steps=1, **last).best.step == 3
    with pytest.warns(UserWarning, match="is kept as best-before-3|the best is chosen anew") as told:
        run = run_scored(tmp_path / "killed", {4: 0.5}, eval_steps=2, **last)
    assert "is kept as best-before-3" in " ".join(str(one.message) for one in told)
    assert run.best.step == checkpoint.read_state(tmp_path / "killed" / "best").step == 4
    assert checkpoint.read_state(tmp_path / "killed" / "best-before-3").step == 3


def test_a_best_checkpoint_that_the_resumed_run_does_not_choose_again_is_set_aside(tmp_path):
    """Killed after step 3, whose evaluation was the best; resumed from step 2 with another rate, step 3 is no longer."""
    run_scored(tmp_path, {0: 0.0, 1: 1.0, 2: 2.0, 3: 9.0, 4: 0.0}, max_steps=4, save_steps=2, eval_steps=1)
    shutil.rmtree(tmp_path / "checkpoint-4")
    last = {"max_steps": 6, "save_steps": 2, "eval_steps": 1, "resume_from_checkpoint": "last", "learning_rate": 0.02}
    worse, later = tmp_path, shutil.copytree(tmp_path, tmp_path.with_name("later"))
    with pytest.warns(UserWarning, match="by steps that a stop undid: it is kept as best-before-3"):
        run = run_scored(worse, {3: 1.0, 4: 1.0, 5: 0.5, 6: 1.5}, **last)
    # step 2 was the best, but its weights were replaced before the kill
    assert run.best.step == checkpoint.read_state(worse / "best").step == 6
    assert checkpoint.read_state(worse / "best-before-3").step == 3
    with pytest.warns(UserWarning, match="learning_rate was"):
        run = run_scored(later, {3: 2.5, 4: 1.0, 5: 0.5, 6: 1.5}, **last)
    assert run.best.step == checkpoint.read_state(later / "best").step == 3
    assert not (later / "best-before-3").exists()


def test_a_run_that_no_longer_selects_leaves_no_best_checkpoint(tmp_path):
    """What reads the run took the folder for its weights."""
    run_scored(tmp_path, {0: 1.0, 2: 2.0}, max_steps=2, save_steps=2)
    config = toy_config(tmp_path, max_steps=4, save_steps=2, resume_from_checkpoint="last")
    with pytest.warns(UserWarning, match="was selected by other options than the run has now"):
        run = train(Toy(), toy_data(), config, evaluate=lambda objective: {"score": 0.0})
    assert run.selected == tmp_path / "checkpoint-4"
    assert not (tmp_path / "best").exists()
    assert checkpoint.read_state(tmp_path / "best-before-2").step == 2


def test_tidying_puts_back_what_was_about_to_be_replaced(tmp_path):
    (tmp_path / ".best.replaced").mkdir()
    (tmp_path / ".best.replaced" / "x").touch()
    (tmp_path / ".checkpoint-3.abc").mkdir()
    (tmp_path / ".checkpoint-1.pruned").mkdir()
    checkpoint.put_back_replaced(tmp_path)
    checkpoint.tidy(tmp_path)
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.rglob("*"))] == ["best", "best/x"]


def test_tidying_removes_half_written_files_and_nothing_else(tmp_path):
    """They stayed for good."""
    stays = [".metrics.jsonl.a", ".run.json.notours1x", ".vimrc.abcdefgh", "run.json", ".lock"]
    for name in [".metrics.jsonl.abcd_123", ".run.json.abcdefgh", ".trainer_state.json.00000000", *stays]:
        (tmp_path / name).touch()
    checkpoint.tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stays)


@pytest.mark.parametrize("size", [100, 2500])
def test_a_full_disk_is_one_error_and_the_run_resumes(tmp_path, size):
    """A limit on the size of files stands for the disk; safetensors and torch raise errors of their own over it."""
    whole, _ = trained(tmp_path / "whole", Toy(), max_steps=4, save_steps=2)
    folder = tmp_path / "full"
    trained(folder, Toy(), max_steps=2, save_steps=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before, about = sorted(folder.iterdir()), {"max_steps": 4, "save_steps": 2, "resume_from_checkpoint": "last"}
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(OSError, match=r"File too large|No space left") as caught:
            trained(folder, Toy(), **about)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value.filename).startswith(str(folder))
    assert sorted(folder.iterdir()) == before
    again, _ = trained(folder, Toy(), **about)
    assert digest(again) == digest(whole)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (SafetensorError("I/O error: File too large (os error 27)"), errno.EFBIG),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), errno.ENOSPC),
    ],
)
def test_errors_of_writers_are_errors_of_the_disk(tmp_path, monkeypatch, error, code):
    def fails(*_):
        raise error

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(OSError, match=re.escape(os.strerror(code))) as caught:
        trained(tmp_path / "x", max_steps=1)
    assert (caught.value.errno, caught.value.filename) == (code, str(tmp_path / "x" / "checkpoint-1"))
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(RuntimeError("a mistake of ours")))
    with pytest.raises(RuntimeError, match="of ours"):
        trained(tmp_path / "y", max_steps=1)


def test_a_checkpoint_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A power cut keeps names whose content it loses, unless that was flushed first."""
    synced, renamed, fsync, rename = set(), [], os.fsync, Path.rename

    def noted(opened):
        synced.add(os.readlink(f"/proc/self/fd/{opened}"))
        fsync(opened)

    def checked(path, target):
        files = {str(file) for file in path.rglob("*") if file.is_file()}
        renamed.append((Path(target).name, files <= synced))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", checked)
    folder = tmp_path / "run"
    trained(folder, max_steps=2)
    assert ("checkpoint-2", True) in renamed
    assert all(whole for _, whole in renamed)
    assert {str(folder), str(folder / "metrics.jsonl")} <= synced


def test_a_folder_that_holds_another_run_takes_no_branch(tmp_path):
    trained(tmp_path / "one", save_steps=2)
    trained(tmp_path / "two", max_steps=1)
    before = (tmp_path / "two" / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match=r"already holds a run \(checkpoint-1\), and .*checkpoint-2 is of another one"):
        trained(tmp_path / "two", resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-2"))
    assert (tmp_path / "two" / "metrics.jsonl").read_bytes() == before


def test_a_runs_own_checkpoint_may_be_a_link(tmp_path):
    whole, _ = trained(tmp_path / "one", save_steps=2)
    for later in (4, 6):
        shutil.rmtree(tmp_path / "one" / f"checkpoint-{later}")
    (tmp_path / "one" / "checkpoint-2").rename(tmp_path / "kept")
    (tmp_path / "one" / "checkpoint-2").symlink_to(tmp_path / "kept")
    resumed, _ = trained(tmp_path / "one", Toy(seed=5), resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-2"))
    assert digest(resumed) == digest(whole)


def test_a_launcher_that_restarts_a_branch_resumes_the_branch(tmp_path, monkeypatch):
    """It repeats the command that began at another run's checkpoint."""
    trained(tmp_path / "one", save_steps=2)
    branch = {"resume_from_checkpoint": str(tmp_path / "one" / "checkpoint-2"), "max_steps": 6, "save_steps": 2}
    whole, _ = trained(tmp_path / "whole", Toy(seed=5), **branch)
    trained(tmp_path / "two", Toy(seed=5), **branch)
    shutil.rmtree(tmp_path / "two" / "checkpoint-6")
    monkeypatch.setenv(checkpoint.RESTARTS, "3")
    resumed, run = trained(tmp_path / "two", Toy(seed=7), **branch)
    assert digest(resumed) == digest(whole)
    assert [line["step"] for line in run.history] == [3, 4, 5, 6]
