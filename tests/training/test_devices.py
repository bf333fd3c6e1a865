"""Two processes against one. The processes are real (torchrun, gloo); each check says what it compared."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_toys import Toy, toy_config, toy_data

from tellapart.training.devices import Devices
from tellapart.training.loop import train
from two_processes import run_two

HERE = Path(__file__).resolve().parent

SCRIPT = """
import json, sys
import torch
torch.set_num_threads(1)
import torch.distributed as dist
from training_toys import *
from tellapart.errors import UsageError
from tellapart.training.devices import Devices
from tellapart.training.loop import train

folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
# Ranks begin with different weights on purpose: training must make them those of the main one.
first = toy_config(folder, **{**options, "max_steps": 3})
devices = Devices(first)
assert devices.world_size == 2 and dist.get_backend() == "gloo"
rank = devices.rank


class Shifted(Toy):
    # Only the second device's images have a gradient for the critic in step 0.
    def losses(self, experience):
        yield from super().losses(experience)
        if experience.step == 0 and rank == 1:
            x = experience.batch.inputs["toy"]["x"]
            yield StepOutput((self.critic(x) ** 2).sum(), torch.tensor(0.0), {"only": torch.tensor([1.0, 3.0])})


evaluated = []
def evaluate(objective):
    evaluated.append(rank)
    return {"bias": float(objective.critic.bias)}

objective = Shifted(seed=0 if rank == 0 else 9)
train(objective, toy_data(), first, evaluate=evaluate)
resumed = Shifted(seed=7)
run = train(resumed, toy_data(), toy_config(folder, **options, resume_from_checkpoint="last"), evaluate=evaluate)
digests = devices.gather_objects(digest(resumed))
assert digests[0] == digests[1], "both devices end with the same bits"
assert set(evaluated) == ({0} if rank == 0 else set())

rows = devices.gather(torch.full((rank + 1, 2), float(rank)))
assert rows.tolist() == [[0, 0], [1, 1], [1, 1]], rows
flags = devices.gather(torch.tensor([rank == 1]))
assert flags.dtype == torch.bool and flags.tolist() == [False, True]
assert devices.any(rank == 1) and not devices.any(False)


class Breaks(Toy):
    def losses(self, experience):
        for piece in super().losses(experience):
            yield StepOutput(piece.loss * float("nan") if rank == 1 else piece.loss, piece.weight)

try:
    train(Breaks(), toy_data(), toy_config(folder / "broken", per_device_train_batch_size=2))
    raise SystemExit("the run with NaN on one device was not refused")
except UsageError as error:
    ids = json.loads((folder / "broken" / "nonfinite.json").read_text())["ids"] if rank == 0 else None


# The main process alone evaluates; all end at the same step, with the weights of step 1.
grammar = iter([99.0, 100.0, 20.0, 10.0])
hacked = Toy()
options = {"per_device_train_batch_size": 4, "eval_steps": 1, "on_hack": "rollback", "metric_for_best_model": "grammatical"}
done = train(hacked, toy_data(), toy_config(folder / "hacked", **options), evaluate=lambda o: {"grammatical": next(grammar)})
assert (done.step, done.best.step, bool(done.ended)) == (3, 1, True)
assert len(set(devices.gather_objects((done.ended, digest(hacked))))) == 1


class Interrupted(Toy):
    def collect(self, batch, step):
        if rank == 1 and step == 1:
            signal.raise_signal(signal.SIGTERM)
        return super().collect(batch, step)

try:
    train(Interrupted(), toy_data(), toy_config(folder / "stopped", per_device_train_batch_size=2))
    raise SystemExit("the interrupt of one device was lost")
except KeyboardInterrupt as error:
    assert "stopped at step 2 of 6" in str(error), error

if rank == 0:
    (folder / "result.json").write_text(json.dumps({"history": run.history, "ids": ids, "digest": digests[0]}))
devices.wait()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """``(history and weights of two processes, of one)``; the run of two is stopped and resumed in the middle."""
    folder = tmp_path_factory.mktemp("devices")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    options = {"max_steps": 6, "eval_steps": 3}
    arguments = {**options, "per_device_train_batch_size": 4}
    run_two(str(script), str(folder / "two"), json.dumps(arguments), timeout=200, PYTHONPATH=str(HERE))
    result = json.loads((folder / "two" / "result.json").read_text())
    weights = load_file(folder / "two" / "checkpoint-6" / "captioner" / "model.safetensors")

    class Shifted(Toy):
        def losses(self, experience):
            yield from super().losses(experience)
            if experience.step == 0:
                from tellapart.types import StepOutput

                x = experience.batch.inputs["toy"]["x"][4:]  # the second device's half
                yield StepOutput((self.critic(x) ** 2).sum(), torch.tensor(0.0), {"only": torch.tensor([1.0, 3.0])})

    objective = Shifted()
    config = toy_config(folder / "one", **options, per_device_train_batch_size=8)
    run = train(objective, toy_data(), config, evaluate=lambda o: {"bias": float(o.critic.bias)})
    return folder, result, weights, objective, run


@pytest.mark.slow
def test_two_devices_with_half_the_batch_each_train_as_one(both):
    _, result, weights, objective, run = both
    assert len(result["history"]) == len(run.history) == 6 + 3
    for line, other in zip(result["history"], run.history, strict=True):
        names = {name for name in other if not name.startswith("seconds/") and name != "error/maximum"}
        assert names <= set(line)
        for name in names:
            assert line[name] == pytest.approx(other[name], abs=1e-6), (line["step"], name)
    for name, value in objective.captioner.state_dict().items():
        assert (weights[name] - value).abs().max() <= 1e-6, name


@pytest.mark.slow
def test_logs_of_one_device_alone_count_once(both):
    assert both[1]["history"][1]["only"] == 2.0


@pytest.mark.slow
def test_the_ids_of_all_devices_are_kept_when_a_number_is_not_finite(both):
    first = next(toy_data().batches(cut(4), seed=3, stop=1))[0].ids
    assert both[1]["ids"] == [[first[:2]], [first[2:]]]


def cut(size):
    from tellapart.data.loader import Cut

    return Cut(size)


def test_one_device_is_the_identity(tmp_path):
    devices = Devices(toy_config(tmp_path))
    x = torch.arange(6.0).reshape(3, 2)
    assert devices.gather(x) is x
    assert devices.sum(x) is x
    assert devices.gather_objects("a") == ["a"]
    assert devices.world_size == 1
