import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import get_scheduler

from tellapart.errors import UsageError
from tellapart.training.config import TrainConfig
from tellapart.training.optim import Optimizer, clip_gradients, learning_rate_factor

VECTORS = Path(__file__).resolve().parents[1] / "vectors.json"


def test_clip_per_child():
    """Each part is clipped on its own, by value or by norm; updates are those of plain SGD."""
    vector = next(v for v in json.loads(VECTORS.read_text()) if v["name"] == "clip_per_child")
    children, tolerance = vector["inputs"]["children"], vector["tolerance"]
    parts = {}
    for name, child in children.items():
        parts[name] = [nn.Parameter(torch.zeros_like(torch.tensor(grad))) for grad in child["grads"].values()]
        for parameter, grad in zip(parts[name], child["grads"].values(), strict=True):
            parameter.grad = torch.tensor(grad)
    norms = clip_gradients(
        parts,
        {name: child["clip_norm"] for name, child in children.items() if "clip_norm" in child},
        {name: child["clip_value"] for name, child in children.items() if "clip_value" in child},
    )
    torch.optim.SGD([{"params": parts[name], "lr": child["lr"]} for name, child in children.items()]).step()
    for name, expected in vector["expected"].items():
        assert float(norms[name]) == pytest.approx(expected["norm_before"], abs=tolerance)
        for parameter, key in zip(parts[name], children[name]["grads"], strict=True):
            torch.testing.assert_close(parameter.grad, torch.tensor(expected["clipped"][key]), atol=tolerance, rtol=0)
            update = torch.tensor(expected["sgd_update"][key])
            torch.testing.assert_close(parameter.detach(), update, atol=tolerance, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "reference"), [("constant", "constant_with_warmup"), ("linear",) * 2, ("cosine",) * 2]
)
@pytest.mark.parametrize("warmup", [0, 3])
def test_schedules_are_those_of_transformers(kind, reference, warmup):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler(reference, optimizer, num_warmup_steps=warmup, num_training_steps=12)
    for step in range(12):
        assert learning_rate_factor(kind, step, 12, warmup) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_the_step_schedule_is_torchs():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.8)
    for step in range(12):
        factor = learning_rate_factor("step", step, 12, 0, interval=Fraction(3), gamma=0.8)
        assert factor == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12)
        risen = learning_rate_factor("step", step, 12, 4, interval=Fraction(3), gamma=0.8)
        assert risen == pytest.approx(factor * min(1.0, step / 4), abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_epochs_of_the_step_schedule_are_counted_in_images():
    """COCO's 113,287 images at 128 per step: epoch 15 ends within step 13,276, so the rate changes at step 13,276 (from 0)."""
    config = TrainConfig(output_dir="out", lr_scheduler_type="step", lr_step_epochs=15, lr_step_gamma=0.8)
    interval = config.lr_interval(113_287, 128)
    rates = {
        s: learning_rate_factor("step", s, 10**6, 0, interval=interval, gamma=0.8) for s in (13_275, 13_276, 26_552)
    }
    assert [rates[step] for step in rates] == pytest.approx([1.0, 0.8, 0.64])
    assert 13_275 * 128 < 15 * 113_287 <= 13_276 * 128
    # An interval that floats would round up: 0.3 epochs of 100 images at 10 per step are 3 steps.
    config = TrainConfig(output_dir="out", lr_scheduler_type="step", lr_step_epochs=0.3, lr_step_gamma=0.5)
    assert learning_rate_factor("step", 3, 10, 0, interval=config.lr_interval(100, 10), gamma=0.5) == 0.5


@pytest.mark.parametrize("limits", [({}, {"idle": 0.1}), ({"idle": 1.0}, {})])
def test_a_part_without_gradients_is_clipped_to_nothing(limits):
    norms = clip_gradients({"idle": [nn.Parameter(torch.ones(2))]}, *limits)
    assert float(norms["idle"]) == 0.0


def test_warmup_may_be_a_fraction_and_the_course_ends_at_zero():
    assert [learning_rate_factor("constant", s, 10, 0.2) for s in range(4)] == [0.0, 0.5, 1.0, 1.0]
    assert learning_rate_factor("linear", 10, 10, 0) == 0.0
    assert learning_rate_factor("linear", 15, 10, 0) == 0.0, "a run made longer than its course stays at its end"


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_cannot_learn(kind, tmp_path):
    """A step of 1e-6 moves no weight of 0.5 held in bfloat16, whose neighbours are 2e-3 away."""
    objective = nn.ModuleDict({"captioner": nn.Linear(2, 2).to(kind)})
    with pytest.raises(UsageError, match=rf"captioner.weight is held in {str(kind)[6:]}.*dtype float32"):
        Optimizer(objective, TrainConfig(output_dir=tmp_path), 1)
    objective["adapter"] = nn.Linear(2, 2)
    objective["captioner"].requires_grad_(False)
    assert list(Optimizer(objective, TrainConfig(output_dir=tmp_path), 1).parts) == ["adapter"]


def test_all_gradients_are_divided_and_absent_ones_stay_absent(tmp_path):
    objective = nn.ModuleDict({"captioner": nn.Linear(3, 2)})
    optimizer = Optimizer(objective, TrainConfig(output_dir=tmp_path), 10)
    assert optimizer._adamw.defaults["fused"]
    optimizer.divide(3.0)
    weight, bias = optimizer.parameters
    weight.grad = torch.tensor([[3.0, -1.0, 7.0], [0.5, 2.0, 1e-30]])
    before = weight.grad.clone()
    optimizer.divide(3.0)
    assert torch.equal(weight.grad, before / 3.0)
    assert bias.grad is None


def test_updates_in_one_pass_are_those_of_torchs_default(tmp_path):
    module = nn.ModuleDict({"captioner": nn.Linear(33, 7)})
    other = nn.Linear(33, 7)
    other.load_state_dict(module["captioner"].state_dict())
    config = TrainConfig(
        output_dir=tmp_path, learning_rate=1e-2, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.1
    )
    optimizer = Optimizer(module, config, 20)
    reference = torch.optim.AdamW(
        other.parameters(),
        lr=1e-2,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=0.1,
        fused=False,
        foreach=False,
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        for one, same in zip(module.parameters(), other.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            same.grad = one.grad.clone()
        optimizer.step(step)
        reference.step()
    for one, same in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, same, rtol=0, atol=1e-6)
