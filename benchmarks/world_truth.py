"""How true captions of the built-in world are: the exact truth, their faults, and what the judge holds true.

    tellapart train recipes/world_ved_dico_truth.yaml --seed 1 --output_dir runs/truth-seed1
    python benchmarks/world_truth.py world/xe runs/truth-seed1/checkpoint-240
    python benchmarks/world_truth.py runs/truth-seed1 --split val --num_beams 5

One line of JSON per captioner, in percent except for ``words``. ``tellapart score`` measures everything else.
"""

from __future__ import annotations

import argparse
import json

import torch

from tellapart import Collate, Decoding, load_captioner
from tellapart.evaluation.evaluate import Evaluation
from tellapart.listeners.late import LateListener
from tellapart.world import load_scenes, load_world
from tellapart.world.faults import faults
from tellapart.world.measures import world_measures
from tellapart.world.probe import require_probe
from tellapart.world.stages import resolve
from tellapart.world.vocabulary import MAX_NEW_TOKENS


def measure(name: str, split: str, decoding: Decoding, judge: LateListener) -> dict[str, float]:
    """Metrics of a captioner on a split, one caption per image."""
    captioner, dataset, scenes = load_captioner(name), load_world(split), load_scenes(split)
    collate = Collate({captioner.name: captioner.process})
    captions, _ = Evaluation(dataset, collate, decoding=decoding, batch_size=128).draw(captioner)
    found = world_measures(captions, scenes).corpus | faults(captions, scenes)
    found["words"] = sum(len(text.split()) for text in captions.values()) / len(captions)
    matrix = judge.logprobs(list(captions.values()), dataset.ids)
    found["judge_true"] = 100.0 * (matrix.diagonal().exp() > 0.5).float().mean().item()
    found["judge_R@1"] = 100.0 * ((matrix >= matrix.diagonal()[:, None]).sum(dim=1) == 1).float().mean().item()
    return {name: round(value, 2) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captioners", nargs="+", help="runs, checkpoints or stages")
    parser.add_argument("--split", default="test")
    parser.add_argument("--num_beams", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = resolve("world/judge")
    require_probe(folder, "judge")
    judge = LateListener.from_pretrained(folder, name="judge")
    judge.cache_images(load_world(options.split))
    decoding = Decoding(max_new_tokens=MAX_NEW_TOKENS, num_beams=options.num_beams)
    for name in options.captioners:
        print(name, json.dumps(measure(name, options.split, decoding, judge)), flush=True)


if __name__ == "__main__":
    main()
