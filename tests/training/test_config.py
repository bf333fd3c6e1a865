import subprocess
import sys

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
        {"report_to": "mlflow"},
        {"best_floor": {"CIDEr": float("inf")}, "metric_for_best_model": "CIDEr"},
        {"best_floor": {"CIDEr": 0.6}},
    ],
)
def test_unusable_values_are_refused_by_name(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        TrainConfig(output_dir="out", **options)


def test_steps_follow_from_epochs_unless_given():
    assert TrainConfig(output_dir="out", num_train_epochs=1.5).total_steps(10, 4) == 4  # 15 images, 4 a step
    assert TrainConfig(output_dir="out", num_train_epochs=0.1).total_steps(10, 4) == 1
    assert TrainConfig(output_dir="out", num_train_epochs=1.5, max_steps=9).total_steps(10, 4) == 9


def test_the_command_line_can_show_the_options_without_torch():
    """jsonargparse finds a sentence for every option, and neither import nor help loads torch."""
    script = """
import sys
from dataclasses import fields
from jsonargparse import ArgumentParser
from tellapart.training.config import TrainConfig
parser = ArgumentParser()
parser.add_class_arguments(TrainConfig)
shown = parser.format_help()
assert "torch" not in sys.modules and "transformers" not in sys.modules
undocumented = [a.dest for a in parser._actions if a.dest in {f.name for f in fields(TrainConfig)} and not a.help]
assert not undocumented, undocumented
config = parser.parse_args(["--output_dir", "x", "--learning_rate", '{"captioner": 2e-6}', "--max_grad_norm", "0.1",
                            "--resume_from_checkpoint", "last"])
built = TrainConfig(**config.as_dict())
assert built.learning_rate == {"captioner": 2e-6} and built.max_grad_norm == 0.1
assert built.resume_from_checkpoint == "last" and str(built.output_dir) == "x"
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
