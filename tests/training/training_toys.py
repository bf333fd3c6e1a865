"""Small objectives and data for the tests of the loop; also imported by the processes those tests start."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import TrainingData
from tellapart.draws import base_seed, uniforms
from tellapart.training.config import TrainConfig
from tellapart.types import Batch, ObjectiveModule, StepOutput


def toy_dataset(size: int = 20) -> CaptionDataset:
    pixels = np.random.default_rng(0).integers(0, 256, (size, 1, 2, 3), dtype=np.uint8)
    return CaptionDataset(
        [Example(f"image-{i}", ArrayImage(pixels[i]), (f"caption {i}",)) for i in range(size)], name="toys"
    )


def to_features(images) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([torch.from_numpy(np.asarray(image).reshape(-1) / 255.0).float() for image in images])}


def toy_data(size: int = 20) -> TrainingData:
    return TrainingData(toy_dataset(size), Collate({"toy": to_features}))


@dataclass(frozen=True)
class Experience:
    batch: Batch
    target: torch.Tensor
    step: int


class Toy(ObjectiveModule):
    """A captioner regresses noisy targets standardised over the whole step; a critic learns in every other step."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.captioner = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))
        self.critic = nn.Linear(6, 1)
        self.frozen = nn.Linear(6, 1).requires_grad_(False)
        self.seen: list[tuple[int, list[str]]] = []

    def collect(self, batch: Batch, step: int) -> Experience:
        assert not torch.is_grad_enabled()
        assert not self.training
        self.seen.append((step, batch.ids))
        noise = uniforms(batch.ids, 1, base_seed())[:, 0].float()
        x = batch.inputs["toy"]["x"]
        return Experience(batch, noise.to(x.device) + x.sum(dim=1), step)

    def prepare(self, experiences, gather):
        everything = gather(torch.cat([e.target for e in experiences]))
        mean, std = everything.double().mean().float(), everything.double().std().float()
        return [replace(e, target=(e.target - mean) / std) for e in experiences]

    def losses(self, experience):
        x = experience.batch.inputs["toy"]["x"]
        error = self.captioner(x)[:, 0] - experience.target
        logs = {"reward": -(error.detach() ** 2), "error/maximum": error.detach().abs().max()}
        yield StepOutput((error**2).sum(), torch.tensor(float(len(x))), logs)
        if experience.step % 2:
            yield StepOutput(((self.critic(x)[:, 0] - 1) ** 2).sum(), torch.tensor(0.0))


class Slow(Toy):
    """Leaves time to be killed in."""

    def collect(self, batch, step):
        time.sleep(0.02)
        return super().collect(batch, step)


class DiesWhileSaving(nn.Linear):
    """Writes half a file at its second saving, then its process is killed."""

    saved = 0

    def save(self, folder: Path) -> None:
        DiesWhileSaving.saved += 1
        if DiesWhileSaving.saved == 2 and os.environ.get("TOY_DIES"):
            (folder / "weights.pt").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        torch.save(self.state_dict(), folder / "weights.pt")

    def load_weights(self, folder: Path) -> None:
        self.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))


def mortal() -> Toy:
    objective = Toy()
    torch.manual_seed(1)
    objective.critic = DiesWhileSaving(6, 1)
    return objective


def toy_config(folder: Path, **options) -> TrainConfig:
    defaults = {"max_steps": 6, "per_device_train_batch_size": 8, "learning_rate": 0.01, "logging_steps": 1, "seed": 3}
    return TrainConfig(output_dir=folder, **{**defaults, **options})


def digest(module: nn.Module) -> str:
    """A hash of every bit of every weight that may learn."""
    weights = [t for name, t in module.state_dict().items() if not name.startswith("frozen.")]
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in weights)).hexdigest()


KILLED_OPTIONS = {"max_steps": 120, "save_steps": 7, "per_device_train_batch_size": 4, "lr_scheduler_type": "cosine"}
