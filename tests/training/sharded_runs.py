"""Trainings of tiny captioners that one process and several must take alike; imported by the processes that the tests start."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from family_checks import lengths, make, pictures
from pictures import CAPTIONS
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.data.preferences import PreferencePair
from tellapart.objectives.dico import DiCO
from tellapart.objectives.preferences import KTO, OfflineDPO
from tellapart.objectives.scst import SCST
from tellapart.objectives.xe import XE
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
BATCH = 4

# Only two of six images have pairs: in some steps a process has none to learn from.
PAIRS = {
    str(i): [PreferencePair(CAPTIONS[2 * i], "a star"), PreferencePair(CAPTIONS[i], CAPTIONS[i + 9])] for i in (1, 2)
}


class Recorded(SCST):
    """Keeps ``(step, image id, text)`` of the captions that were drawn."""

    def __init__(self, captioner: HuggingFaceCaptioner, **options: Any) -> None:
        given = {"baseline": "greedy", "num_generations": 2, "max_new_tokens": 6, "kl_coef": 0.1, "kl_in": "loss"}
        super().__init__(captioner, lengths, **{**given, **options})
        self.drawn: list[tuple[int, str, str]] = []

    def collect(self, batch, step):
        experience = super().collect(batch, step)
        rollout = experience.rollout
        self.drawn += [
            (step, batch.ids[i], text) for i, text in zip(rollout.image.tolist(), rollout.texts, strict=True)
        ]
        return experience


METHODS = {
    "xe": XE,
    "scst": Recorded,
    "dico": lambda captioner: DiCO(captioner, lengths, num_beams=2, max_new_tokens=6),
    "offline_dpo": lambda captioner: OfflineDPO(captioner, PAIRS, pairs_per_image=2),
    "kto": lambda captioner: KTO(captioner, PAIRS),
}


@dataclass(frozen=True)
class Case:
    """One training.

    Args:
        family: of ``family_checks``.
        method: of ``METHODS``.
        lora: whether an adapter trains.
        shard: how several processes share it.
        load: further arguments of the captioner.
    """

    family: str
    method: str = "scst"
    lora: bool = False
    shard: str = "full"
    load: tuple[tuple[str, Any], ...] = ()

    def name(self) -> str:
        """For folders and messages."""
        words = [self.family, self.method, self.shard, *(["lora"] if self.lora else []), *(key for key, _ in self.load)]
        return "-".join(words).replace(" ", "")


FAMILIES = ("CLIP + GPT-2", "BLIP", "BLIP-2 (OPT)", "LLaVA")
CASES = (
    *(Case(family, lora=lora) for family, lora in itertools.product(FAMILIES, (False, True))),
    Case("CLIP + GPT-2", "xe", load=(("train", "all"), ("gradient_checkpointing", True))),
    Case("CLIP + GPT-2", "dico", shard="grad_op", load=(("train", "all"),)),
    Case("BLIP", "offline_dpo"),
)
MATRIX = (
    *(Case(family, lora=lora) for family, lora in itertools.product(("Qwen2-VL", "Florence-2", "GIT"), (False, True))),
    *(
        Case(family)
        for family in ("ViT + GPT-2", "BLIP-2 (T5)", "InstructBLIP (Vicuna)", "PaliGemma", "SmolVLM", "Qwen3-VL")
    ),
    *(Case(family, shard="grad_op") for family in FAMILIES),
    Case("BLIP", "kto"),
)


def saved(family: str, models: Path) -> Path:
    """The folder of a family's tiny model."""
    folder = models / family.replace(" ", "")
    if not folder.is_dir():
        make(family, folder)
    return folder


def captioner_of(case: Case, models: Path) -> HuggingFaceCaptioner:
    """The captioner to train; an adapter adds something from the start."""
    given = {"lora": LoraOptions(r=2)} if case.lora else {}
    captioner = HuggingFaceCaptioner.from_pretrained(saved(case.family, models), **given, **dict(case.load))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in captioner.named_parameters():
        if "lora_" in name:
            parameter.data = 0.05 * torch.randn(parameter.shape, generator=generator)
    return captioner


def run(case: Case, models: Path, folder: Path, objective: Any = None, evaluate: Any = None, **options: Any) -> Any:
    """``(history, drawn captions, objective)`` of a training, whatever the number of processes that share a step."""
    captioner = objective.captioner if objective is not None else captioner_of(case, models)
    objective = METHODS[case.method](captioner) if objective is None else objective
    # An epsilon above the gradients' rounding keeps AdamW from turning its noise into whole steps.
    given = {
        "learning_rate": 1e-3,
        "adam_epsilon": 1e-3,
        "max_steps": 2,
        "logging_steps": 1,
        "shard": case.shard,
        **options,
    }
    config = TrainConfig(output_dir=folder, per_device_train_batch_size=BATCH // WORLD, **given)
    data = TrainingData(pictures(6), Collate({captioner.name: captioner.process}))
    done = train(objective, data, config, evaluate=evaluate)
    return done.history, getattr(objective, "drawn", []), objective
