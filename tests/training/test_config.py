import json
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest

from tellapart.errors import UsageError
from tellapart.training.config import TrainConfig


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 0},
        {"max_steps": 2.5},
        {"per_device_train_batch_size": 0},
        {"learning_rate": 0.0},
        {"learning_rate": {"captioner": -1.0}},
        {"learning_rate": float("nan")},
        {"warmup_steps": -1},
        {"adam_beta1": 1.0},
        {"max_grad_norm": -1.0},
        {"lr_scheduler_type": "polynomial"},
        {"lr_step_size": 0, "lr_scheduler_type": "step", "lr_step_gamma": 0.8},
        {"lr_step_gamma": 0.0, "lr_scheduler_type": "step", "lr_step_size": 2},
        {"lr_step_gamma": 0.8},
        {"lr_step_epochs": 15, "lr_scheduler_type": "linear"},
        {"lr_scheduler_type": "step", "lr_step_size": 3},
        {"lr_scheduler_type": "step", "lr_step_gamma": 0.8},
        {"lr_scheduler_type": "step", "lr_step_gamma": 0.8, "lr_step_size": 3, "lr_step_epochs": 1.0},
        {"report_to": "mlflow"},
        {"best_floor": {"CIDEr": float("inf")}, "metric_for_best_model": "CIDEr"},
        {"best_floor": {"CIDEr": 0.6}},
        {"max_steps": "many"},
        {"max_steps": True},
        {"max_steps": {"a": 0}},
        {"learning_rate": "1e-5"},
        {"learning_rate": [1e-5]},
        {"learning_rate": {"captioner": "x"}},
        {"learning_rate": np.float32("inf")},
        {"logging_steps": Decimal("2.5")},
        {"max_grad_norm": {"captioner": {"b": 1}}},
        {"best_floor": {"CIDEr": "x"}, "metric_for_best_model": "CIDEr"},
        {"best_floor": {"CIDEr": True}, "metric_for_best_model": "CIDEr"},
        {"best_floor": 0.5, "metric_for_best_model": "CIDEr"},
        {"report_to": {"a": 1}},
        {"on_hack": {}},
    ],
)
def test_unusable_values_are_refused_by_name(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        TrainConfig(output_dir="out", **options)


def test_numbers_of_numpy_are_written_as_pythons():
    config = TrainConfig(output_dir="out", max_steps=np.int64(3), learning_rate={"captioner": np.float64(0.5)})
    assert json.loads(json.dumps(config.to_dict()))["learning_rate"] == {"captioner": 0.5}
    assert config.max_steps == 3


def test_steps_follow_from_epochs_unless_given():
    assert TrainConfig(output_dir="out", num_train_epochs=1.5).total_steps(10, 4) == 4  # 15 images, 4 a step
    assert TrainConfig(output_dir="out", num_train_epochs=0.1).total_steps(10, 4) == 1
    assert TrainConfig(output_dir="out", num_train_epochs=1.1).total_steps(29_000, 100) == 319  # floats round it up
    assert TrainConfig(output_dir="out", num_train_epochs=1.5, max_steps=9).total_steps(10, 4) == 9


def test_the_command_line_can_show_the_options_without_torch():
    """Every option has a sentence, and neither import nor help loads torch."""
    script = """
import sys
from tellapart.recipe.options import help_lines, options_of
from tellapart.training.config import TrainConfig
options = options_of(TrainConfig)
assert help_lines(options)
assert "torch" not in sys.modules and "transformers" not in sys.modules
undocumented = [name for name, option in options.items() if not option.help]
assert not undocumented, undocumented
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_images_are_read_ahead_by_default_on_cuda_only(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("sys.platform", "linux")
    by_default = TrainConfig(output_dir=tmp_path)
    assert [by_default.workers(device) for device in ("cuda", "cpu", "mps")] == [4, 0, 0]
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert by_default.workers("cuda") == 2
    monkeypatch.setattr("sys.platform", "win32")
    assert by_default.workers("cuda") == 0
    for given in (0, 3):
        assert TrainConfig(output_dir=tmp_path, dataloader_num_workers=given).workers("cuda") == given
