"""Post-training on truth plus likelihood on the built-in world, with control rows; results are kept by setting.

    python benchmarks/world_truth.py --out runs/world-truth                              # dico, truth + 0.25 likelihood, seed 0
    python benchmarks/world_truth.py --out runs/world-truth --parts truth sighted        # likelihood by the verifier, too
    python benchmarks/world_truth.py --out runs/world-truth --method scst --parts oracle
    python benchmarks/world_truth.py --out runs/world-truth --parts clip_s --seed 1      # the plain listener: turns false

A setting that has a file in the folder is printed and not trained again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.evaluation.drawing import draw_rollouts
from tellapart.files import write_json
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.late import LateListener
from tellapart.objectives.dico import DiCO
from tellapart.objectives.scst import SCST
from tellapart.rewards.likelihood import Likelihood
from tellapart.rewards.mix import Mix
from tellapart.rewards.similarity import Similarity
from tellapart.rewards.truth import Truth
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.types import Decoding, Reward
from tellapart.world import load_scenes, load_world
from tellapart.world.backbone import pixels
from tellapart.world.faults import faults
from tellapart.world.measures import world_measures
from tellapart.world.oracle import Oracle
from tellapart.world.probe import require_probe
from tellapart.world.stages import resolve
from tellapart.world.vocabulary import MAX_NEW_TOKENS

GREEDY = Decoding(max_new_tokens=MAX_NEW_TOKENS)
BEAM = Decoding(max_new_tokens=MAX_NEW_TOKENS, num_beams=5)
GALLERY_EVERY = 6
"""The verifier's likelihood compares a caption with every sixth training image, a thousand."""


def late(name: str, use: str, dataset: Any) -> LateListener:
    folder = resolve(name)
    require_probe(folder, use)
    listener = LateListener.from_pretrained(folder, name=use)
    listener.cache_images(dataset)
    return listener


def plain(dataset: Any) -> ClipListener:
    listener = ClipListener.from_pretrained(resolve("world/listener"), name="listener", prefix="")
    listener.cache_images(dataset)
    return listener


def reward(options: argparse.Namespace, dataset: Any) -> Reward:
    verifier = late("world/verifier", "truth", dataset) if {"truth", "sighted"} & set(options.parts) else None
    makers: dict[str, Callable[[], Reward]] = {
        "truth": lambda: Truth(verifier, floor=options.floor),
        "likelihood": lambda: Likelihood(plain(dataset), dataset.ids),
        "sighted": lambda: Likelihood(verifier, dataset.ids[::GALLERY_EVERY]),
        "clip_s": lambda: Similarity(plain(dataset)),
        "oracle": lambda: Oracle(load_scenes("train")),
    }
    weights = {"truth": 1.0, "likelihood": options.weight, "sighted": options.weight}
    scale = {name: options.factor * weights[name] if name in weights else 1.0 for name in options.parts}
    return Mix({name: makers[name]() for name in options.parts}, scale)


def measure(captioner: Any, split: str, decoding: Decoding, judge: LateListener | None = None) -> dict[str, float]:
    dataset, scenes = load_world(split), load_scenes(split)
    rollouts = draw_rollouts(captioner, dataset, Collate({captioner.name: pixels}), decoding, batch_size=128, seed=0)
    captions = {name: text for rollout in rollouts for name, text in zip(rollout.ids(), rollout.texts, strict=True)}
    found = world_measures(captions, scenes).corpus | faults(captions, scenes)
    found["words"] = sum(len(text.split()) for text in captions.values()) / len(captions)
    if judge is not None:
        judge.cache_images(dataset)
        matrix = judge.logprobs(list(captions.values()), dataset.ids)
        found["judge_true"] = 100.0 * (matrix.diagonal().exp() > 0.5).float().mean().item()
        found["judge_R@1"] = 100.0 * ((matrix >= matrix.diagonal()[:, None]).sum(dim=1) == 1).float().mean().item()
    return {name: round(value, 2) for name, value in found.items()}


def run(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    captioner = HuggingFaceCaptioner.from_pretrained(resolve("world/xe"), train="decoder")
    dataset, began = load_world("train"), time.process_time()
    given = reward(options, dataset)
    if options.method == "dico":
        objective: Any = DiCO(captioner, given, num_beams=5, max_new_tokens=MAX_NEW_TOKENS)
    else:
        objective = SCST(captioner, given, num_generations=5, max_new_tokens=MAX_NEW_TOKENS, kl_coef=0.01)
    curve: list[dict[str, float]] = []

    def watch(_: Any) -> dict[str, float]:
        curve.append(measure(captioner, "val", GREEDY))
        print({name: curve[-1][name] for name in ("truthful", "grammatical", "exact_recall@1", "words")}, flush=True)
        return curve[-1]

    with tempfile.TemporaryDirectory() as scratch:
        config = TrainConfig(
            output_dir=Path(scratch),
            learning_rate=options.lr,
            max_steps=options.steps,
            per_device_train_batch_size=48,
            eval_steps=options.every,
            save_total_limit=1,
            lr_scheduler_type=options.course,
            seed=options.seed,
        )
        train(objective, TrainingData(dataset, Collate({captioner.name: pixels})), config, evaluate=watch)
    seconds = time.process_time() - began
    judge = late("world/judge", "judge", load_world("test"))
    ends = {
        "val": measure(captioner, "val", GREEDY, judge),
        "test": measure(captioner, "test", GREEDY, judge),
        "test, 5 beams": measure(captioner, "test", BEAM, judge),
    }
    return {"settings": settings, "cpu_seconds": seconds, "curve": curve, **ends}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--method", choices=("dico", "scst"), default="dico")
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["truth", "likelihood"],
        choices=("truth", "likelihood", "sighted", "clip_s", "oracle"),
    )
    parser.add_argument("--weight", type=float, default=0.25, help="of likelihood and sighted beside truth")
    parser.add_argument("--factor", type=float, default=0.3, help="of truth, likelihood and sighted together")
    parser.add_argument("--floor", type=float, default=-40.0, help="of truth")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument(
        "--course", choices=("constant", "linear", "cosine"), default="linear", help="of the learning rate"
    )
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "every")}
    settings |= {"start": resolve("world/xe").name, "verifier": resolve("world/verifier").name}
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    path = options.out / f"{options.method}-{'+'.join(options.parts)}-{options.steps}-seed{options.seed}-{key}.json"
    if not path.is_file():
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(path, run(options, settings))
    found = json.loads(path.read_text(encoding="utf-8"))
    print(path.name, f"{found['cpu_seconds']:.0f} s")
    for name in ("val", "test", "test, 5 beams"):
        print(name, found[name])


if __name__ == "__main__":
    main()
