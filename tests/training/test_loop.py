import json
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise

import pytest
import torch
from torch import nn
from training_toys import Toy, digest, to_features, toy_config, toy_data, toy_dataset

from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.data.images import EncodedImage
from tellapart.data.loader import TrainingData
from tellapart.data.order import Order
from tellapart.draws import mix_seeds
from tellapart.training.loop import train
from tellapart.types import ObjectiveModule, StepOutput

NOT_TIME = ("loss", "reward", "error/maximum", "grad_norm/captioner", "grad_norm/critic", "learning_rate/captioner")


def trained(folder, **options):
    objective = Toy()
    run = train(objective, toy_data(), toy_config(folder, **options))
    return objective, run


def assert_same_weights(one, other, tolerance):
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert (a - b).abs().max() <= tolerance, name


def test_a_step_is_one_adam_step_on_the_mean_loss(tmp_path):
    """One step re-computed by hand: batch order, draws, division by the weight, clip by norm, plain AdamW."""
    objective, expected = Toy(), Toy()
    train(objective, toy_data(), toy_config(tmp_path, max_steps=1, max_grad_norm=0.05, adam_epsilon=1.0))
    order = torch.randperm(20, generator=torch.Generator().manual_seed(mix_seeds(3, "order", 0)))[:8]
    batch = Collate(toy_data().collate.processors)([toy_dataset()[int(i)] for i in order])
    torch.manual_seed(mix_seeds(3, 0))
    expected.eval()
    with torch.no_grad():
        experience = expected.collect(batch, 0)
    (experience,) = expected.prepare([experience], lambda x: x)
    x = batch.inputs["toy"]["x"]
    optimizer = torch.optim.AdamW(expected.captioner.parameters(), lr=0.01, eps=1.0, weight_decay=0.0)
    ((expected.captioner(x)[:, 0] - experience.target) ** 2).mean().backward()
    nn.utils.clip_grad_norm_(expected.captioner.parameters(), 0.05)
    optimizer.step()
    assert_same_weights(objective, expected, 1e-6)
    assert digest(objective.critic) == digest(Toy().critic)


def test_accumulation_changes_neither_weights_nor_logs(tmp_path):
    whole, run = trained(tmp_path / "whole", per_device_train_batch_size=8)
    cut, cut_run = trained(tmp_path / "cut", per_device_train_batch_size=2, gradient_accumulation_steps=4)
    assert len(cut.seen) == 4 * len(whole.seen)
    assert_same_weights(whole, cut, 1e-6)
    assert len(run.history) == len(cut_run.history) == 6
    for line, other in zip(run.history, cut_run.history, strict=True):
        for name in set(NOT_TIME) - {"error/maximum"}:
            assert line[name] == pytest.approx(other[name], abs=1e-6), name


def test_images_replaced_between_two_logs_are_told_before_a_checkpoint(tmp_path):
    """The first image of the order is broken; the log would be written after step 100, and the run dies in its fourth."""

    class Dies(Toy):
        def collect(self, batch, step):
            if step == 3:
                raise RuntimeError("no power")
            return super().collect(batch, step)

    broken = Order(20, 3)[0]
    examples = list(toy_dataset())
    examples[broken] = replace(examples[broken], image=EncodedImage(b"", "broken.jpg"))
    data = TrainingData(CaptionDataset(examples, name="toys"), Collate({"toy": to_features}), replace_unreadable=True)
    told: list[tuple[set[str], bool]] = []
    data.on_replaced = lambda: told.append((set(data.replaced), (tmp_path / "checkpoint-2").exists()))
    with pytest.raises(RuntimeError, match="no power"):
        train(Dies(), data, toy_config(tmp_path, max_steps=200, logging_steps=100, save_steps=2))
    assert told == [({f"image-{broken}"}, False)]
    assert (tmp_path / "checkpoint-2").exists()


def test_logged_means_are_over_items(tmp_path):
    """Micro-batches that log different numbers of items: the mean is over items, not of means."""

    class Uneven(Toy):
        def losses(self, experience):
            first = "image-0" in experience.batch.ids
            for piece in super().losses(experience):
                yield replace(piece, logs={"count": torch.full((3,), 6.0) if first else torch.tensor(2.0)})
                return

    run = train(
        Uneven(),
        toy_data(4),
        toy_config(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=2),
    )
    assert [line["count"] for line in run.history] == [(3 * 6 + 2) / 4] * 2


def test_every_image_is_seen_once_an_epoch_and_steps_are_counted(tmp_path):
    objective, run = trained(tmp_path, max_steps=None, num_train_epochs=2, per_device_train_batch_size=5)
    assert run.step == 8
    assert [step for step, _ in objective.seen] == list(range(8))
    ids = [image for _, batch in objective.seen for image in batch]
    assert sorted(ids[:20]) == sorted(ids[20:]) == sorted(toy_dataset().ids)
    assert ids[:20] != ids[20:]
    assert [line["epoch"] for line in run.history] == [s / 4 for s in range(1, 9)]


def test_log_lines_are_on_disk_with_the_agreed_keys(tmp_path):
    _, run = trained(tmp_path, logging_steps=4)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == run.history
    assert [line["step"] for line in lines] == [4, 6]
    keys = {"step", "epoch", "loss", "reward", "grad_norm/captioner", "grad_norm/critic", "learning_rate/captioner"}
    assert keys | {"learning_rate/critic", "seconds/collect", "seconds/update"} <= set(lines[0])
    described = json.loads((tmp_path / "run.json").read_text())
    assert described["seed"] == 3
    assert described["versions"]["torch"] == version("torch")
    assert described["data"] == toy_data().fingerprint()


def test_a_part_without_gradient_is_left_alone(tmp_path):
    """The critic learns in odd steps only: neither weight decay nor momentum may move it in even ones."""
    states = []

    def evaluate(objective):
        states.append(digest(objective.critic))
        return {"x": 0.0}

    train(Toy(), toy_data(), toy_config(tmp_path, max_steps=6, eval_steps=1, weight_decay=0.5), evaluate=evaluate)
    changed = [a != b for a, b in pairwise(states)]
    assert changed == [False, True, False, True, False, True]


def test_two_parts_have_their_own_rate_and_clipping(tmp_path):
    class Sgd(Toy):
        def losses(self, experience):
            x = experience.batch.inputs["toy"]["x"]
            yield StepOutput(1e3 * self.captioner(x).sum() + 1e-3 * self.critic(x).sum(), torch.tensor(float(len(x))))

    # With so large an epsilon AdamW's first step is learning rate x gradient / epsilon: clipping shows.
    objective, start = Sgd(), Sgd()
    options = {
        "learning_rate": {"captioner": 1e6, "critic": 2e6},
        "max_grad_norm": {"critic": 1.0},
        "max_grad_value": {"captioner": 0.1},
    }
    run = train(objective, toy_data(), toy_config(tmp_path, max_steps=1, adam_epsilon=1e6, **options))
    line = run.history[0]
    assert (line["learning_rate/captioner"], line["learning_rate/critic"]) == (1e6, 2e6)
    assert line["grad_norm/captioner"] > 1000, "logged before clipping"
    assert 0.001 < line["grad_norm/critic"] < 0.01
    moved = (start.captioner[3].bias - objective.captioner[3].bias).item()
    assert moved == pytest.approx(0.1, rel=1e-4), "a gradient of 1000, cut to 0.1"
    moved = (start.critic.bias - objective.critic.bias).item()
    assert moved == pytest.approx(2 * 1e-3, rel=1e-4), "a gradient of 0.001, far below its own norm limit"


def test_dropout_is_off_unless_asked_for(tmp_path):
    modes = []

    class Watched(Toy):
        def losses(self, experience):
            modes.append(self.training)
            yield from super().losses(experience)

    for dropout in (False, True):
        train(Watched(), toy_data(), toy_config(tmp_path / str(dropout), max_steps=1, dropout=dropout))
    assert modes == [False, True]


def test_a_step_without_loss_changes_nothing(tmp_path):
    class Idle(Toy):
        def losses(self, experience):
            yield StepOutput(torch.zeros(()), torch.zeros(()))

    objective = Idle()
    run = train(objective, toy_data(), toy_config(tmp_path, max_steps=1))
    assert digest(objective) == digest(Toy())
    assert run.history[0]["loss"] == 0


def test_bf16_computes_in_bfloat16_and_keeps_float32_weights(tmp_path):
    kinds = set()

    class Watched(ObjectiveModule):
        def __init__(self):
            super().__init__()
            self.captioner = nn.Linear(6, 1)

        def collect(self, batch, step):
            kinds.add(("collect", self.captioner(batch.inputs["toy"]["x"]).dtype))
            return batch

        def losses(self, batch):
            out = self.captioner(batch.inputs["toy"]["x"])
            kinds.add(("losses", out.dtype))
            yield StepOutput(out.float().sum(), torch.tensor(float(len(batch))))

    for bf16 in (True, False):
        kinds.clear()
        objective = Watched()
        train(objective, toy_data(), toy_config(tmp_path / str(bf16), max_steps=1, bf16=bf16))
        kind = torch.bfloat16 if bf16 else torch.float32
        assert kinds == {("collect", kind), ("losses", kind)}
        assert objective.captioner.weight.dtype == torch.float32


def test_tensorboard_gets_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, run = trained(tmp_path, report_to="tensorboard", max_steps=2)
    events = EventAccumulator(str(tmp_path / "runs" / "tellapart"))
    events.Reload()
    logged = [event.value for event in events.Scalars("loss")]
    assert logged == pytest.approx([line["loss"] for line in run.history])
