import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn
from training_toys import Toy, digest, toy_config, toy_data, toy_dataset

from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ImageFile
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.training.checkpoint import NonFiniteError
from tellapart.training.interrupt import Interrupts
from tellapart.training.loop import train
from tellapart.types import StepOutput


def trained(folder, **options):
    objective = Toy()
    run = train(objective, toy_data(), toy_config(folder, **options))
    return objective, run


@pytest.mark.parametrize("where", ["loss", "gradient", "weight"])
def test_non_finite_numbers_stop_the_run_and_are_never_saved(tmp_path, where):
    class Breaks(Toy):
        def losses(self, experience):
            x = experience.batch.inputs["toy"]["x"]
            loss = (self.captioner(x) ** 2).sum()
            if experience.step == 2 and where == "loss":
                loss = loss * math.nan
            if experience.step == 2 and where == "gradient":
                loss = loss + (self.critic(x) * 0).abs().sqrt().sum()  # 0 with an infinite slope
            if where == "weight":
                loss = loss + self.critic.bias.sum()
            yield StepOutput(loss, torch.tensor(float(len(x))), {"reward": torch.ones(3)})

    objective = Breaks()
    options = {}
    if where == "weight":
        nn.init.constant_(objective.critic.bias, -3.3e38)
        options = {"learning_rate": {"captioner": 1e-3, "critic": 3e37}}
    with pytest.raises(NonFiniteError, match="finite") as caught:
        train(objective, toy_data(), toy_config(tmp_path, save_steps=1 if where == "weight" else 2, **options))
    saved = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    if where == "weight":
        assert saved == [], "the loss was finite, the weights it led to were not"
        assert "critic.bias holds values that are not finite at step 1" in str(caught.value)
        return
    assert saved == ["checkpoint-2"]
    assert str(caught.value).endswith("and resume from the last checkpoint.")
    assert all(torch.isfinite(p).all() for p in objective.parameters())
    record = json.loads((tmp_path / "nonfinite.json").read_text())
    assert record["step"] == 3
    assert record["ids"] == [[objective.seen[2][1]]]
    assert record["logs"]["reward"] == 1.0
    assert "step 3" in str(caught.value)
    assert "reward 1" in str(caught.value)


def test_an_objective_that_does_not_decompose_refuses_accumulation(tmp_path):
    objective = Toy()
    objective.decomposes = False
    with pytest.raises(UsageError, match=r"Toy compares the images of a batch.*gradient_accumulation_steps=2"):
        train(objective, toy_data(), toy_config(tmp_path, gradient_accumulation_steps=2))
    assert not list(tmp_path.iterdir())
    train(objective, toy_data(), toy_config(tmp_path, max_steps=1))


def test_a_failing_objective_leaves_no_checkpoint(tmp_path):
    class Fails(Toy):
        def losses(self, experience):
            yield from super().losses(experience)
            if experience.step == 3:
                raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        train(Fails(), toy_data(), toy_config(tmp_path, save_steps=2))
    assert [path.name for path in tmp_path.glob("*checkpoint*")] == ["checkpoint-2"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_step_saves_and_can_be_resumed(tmp_path, number):
    whole, _ = trained(tmp_path / "whole")

    class Interrupted(Toy):
        def collect(self, batch, step):
            if step == 3:
                signal.raise_signal(number)
            return super().collect(batch, step)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match="stopped at step 4 of 6; resume_from_checkpoint=last"):
        train(Interrupted(), toy_data(), toy_config(tmp_path / "cut"))
    assert signal.getsignal(number) == before
    resumed = Toy(seed=9)
    run = train(resumed, toy_data(), toy_config(tmp_path / "cut", resume_from_checkpoint="last"))
    assert digest(resumed) == digest(whole)
    assert [line["step"] for line in run.history] == [1, 2, 3, 4, 5, 6]


def test_a_run_that_is_to_stop_saves_before_it_evaluates(tmp_path):
    """An evaluation may take longer than whoever stops the run waits. The resumed run makes it up: nothing else differs."""
    options = {"eval_steps": 2, "save_steps": 6, "metric_for_best_model": "score"}
    scores = {0: 0.0, 2: 3.0, 4: 1.0, 6: 2.0}

    class Interrupted(Toy):
        def __init__(self, at=None, seed=0):
            super().__init__(seed=seed)
            self.at, self.evaluated = at, []

        def collect(self, batch, step):
            self.done = step + 1
            if step == self.at:
                signal.raise_signal(signal.SIGTERM)
            return super().collect(batch, step)

        def score(self, start=0):
            step = getattr(self, "done", start)
            self.evaluated.append(step)
            return {"score": scores[step]}

    whole, first, second = Interrupted(), Interrupted(at=1), Interrupted(seed=7)
    expected = train(
        whole, toy_data(), toy_config(tmp_path / "whole", **options), evaluate=lambda objective: whole.score()
    )
    with pytest.raises(KeyboardInterrupt, match="stopped at step 2 of 6"):
        train(first, toy_data(), toy_config(tmp_path / "cut", **options), evaluate=lambda objective: first.score())
    assert first.evaluated == [0]
    assert (tmp_path / "cut" / "checkpoint-2").is_dir()
    # killed before, while it wrote that checkpoint once more
    (tmp_path / "cut" / "checkpoint-2").rename(tmp_path / "cut" / ".checkpoint-2.replaced")
    config = toy_config(tmp_path / "cut", **options, resume_from_checkpoint="last")
    run = train(second, toy_data(), config, evaluate=lambda objective: second.score(2))
    assert second.evaluated == [2, 4, 6]
    assert digest(second) == digest(whole)
    assert run.best == expected.best
    assert run.best.step == 2

    def lines(folder):
        found = [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]
        return [{name: value for name, value in line.items() if not name.startswith("seconds/")} for line in found]

    assert lines("cut") == lines("whole")


def test_a_second_interrupt_stops_at_once(tmp_path):
    class Impatient(Toy):
        def collect(self, batch, step):
            if step == 1:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            return super().collect(batch, step)

    with pytest.raises(KeyboardInterrupt):
        train(Impatient(), toy_data(), toy_config(tmp_path))
    assert not list(tmp_path.glob("*checkpoint*"))


def test_an_interrupt_in_the_last_step_is_not_forgotten(tmp_path):
    class Interrupted(Toy):
        def collect(self, batch, step):
            if step == 5:
                signal.raise_signal(signal.SIGINT)
            return super().collect(batch, step)

    with pytest.raises(KeyboardInterrupt):
        train(Interrupted(), toy_data(), toy_config(tmp_path))
    assert (tmp_path / "checkpoint-6").is_dir()


def test_unusable_options_are_refused(tmp_path):
    refused = [
        ({"learning_rate": {"captioner": 0.1}}, "leaves out 'critic'"),
        ({"learning_rate": {"captioner": 0.1, "critic": 0.1, "judge": 0.1}}, "names 'judge'"),
        ({"max_grad_norm": {"frozen": 1.0}}, "max_grad_norm names 'frozen'"),
        ({"eval_steps": 2}, "eval_steps=2 needs an evaluation"),
        ({"report_to": "trackio"}, "pip install trackio"),
    ]
    for options, sentence in refused:
        with pytest.raises(UsageError, match=sentence):
            trained(tmp_path / "refused", **options)
    assert not (tmp_path / "refused").exists()


def test_nothing_to_train_is_refused(tmp_path):
    with pytest.raises(UsageError, match="Toy has no trainable parameter"):
        train(Toy().requires_grad_(False), toy_data(), toy_config(tmp_path))


def test_loose_parameters_are_a_mistake(tmp_path):
    class Loose(Toy):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.ones(()))

    with pytest.raises(ValueError, match="wrap them in a module"):
        train(Loose(), toy_data(), toy_config(tmp_path))


def test_a_broken_image_raises_its_own_sentence(tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image")
    examples = [*toy_dataset(3), Example("broken", ImageFile(broken))]
    data = TrainingData(CaptionDataset(examples, name="x"), Collate(toy_data().collate.processors))
    for workers in (0, 1):
        with pytest.raises(UsageError, match=r"^\S*broken.png is not a readable image"):
            train(
                Toy(),
                data,
                toy_config(tmp_path / str(workers), per_device_train_batch_size=4, dataloader_num_workers=workers),
            )


class WithoutNumbers(Toy):
    """A reward that is no number."""

    def losses(self, experience):
        for output in super().losses(experience):
            yield replace(
                output, loss=output.loss * torch.nan, logs=output.logs | {"reward": torch.tensor([torch.nan])}
            )


def test_a_worker_leaves_an_interrupt_to_the_process_that_trains():
    """A terminal interrupts loaders' workers, too: each said that it stops after this step, once per process."""
    with Interrupts() as interrupts:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            os._exit(int(interrupts.requested))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_reward_that_is_not_finite_is_blamed(tmp_path):
    with pytest.raises(NonFiniteError, match=r"correct the reward, which is not finite") as caught:
        train(WithoutNumbers(), toy_data(), toy_config(tmp_path))
    assert "learning_rate" not in str(caught.value)
    assert not list(tmp_path.glob("checkpoint-*"))
    assert str(caught.value).endswith("not finite for them, and give --overwrite_output_dir.")


def test_a_step_larger_than_the_data_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"a step takes 8 images .* but the data hold 7"):
        train(Toy(), toy_data(7), toy_config(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert train(Toy(), toy_data(8), toy_config(tmp_path / "run", max_steps=1)).step == 1
