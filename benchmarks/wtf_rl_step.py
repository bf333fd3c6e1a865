"""Where a step of WTF-RL spends its time on the built-in world: drawing, reward, learning.

    OMP_NUM_THREADS=1 python benchmarks/wtf_rl_step.py [--images 48] [--steps 8] [--draw beam]

One step draws a caption and the greedy one of each image, embeds them and a human one, compares all texts with all images,
asks the discriminator, and learns. Times are medians of CPU milliseconds over the steps after the first; the share of the
reward is to stay below a tenth. The world's start captioner and listener are built if they are not in the cache.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from tellapart import Recipe
from tellapart.data.loader import Cut
from tellapart.objectives.wtf_rl import WTFRL

PARTS = (
    "draw",
    "read the references",
    "embed texts",
    "images and neighbours",
    "contrast",
    "discriminator scores",
    "learn",
)
REWARD = PARTS[2:6]


class Clock:
    """CPU milliseconds by part; an inner part's time does not count for the outer one."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, with its time added to ``part``."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                taken = 1000 * (time.process_time() - start)
                self.spent[part] += taken - self._inner.pop()
                self._inner[-1] += taken

        return timed


def instrument(objective: WTFRL, clock: Clock) -> None:
    """Measure the objective's parts where they are called."""
    captioner: Any = objective.captioner
    for name, part in (("encode", "draw"), ("generate", "draw"), ("tokenize", "read the references")):
        object.__setattr__(captioner, name, clock.around(part, getattr(captioner, name)))
    listener: Any = objective.listener
    listener.encode_texts = clock.around("embed texts", listener.encode_texts)
    listener.encode_images = clock.around("images and neighbours", listener.encode_images)
    for name, part in (
        ("_embedded", "images and neighbours"),
        ("judged", "discriminator scores"),
        ("prepare", "contrast"),
    ):
        object.__setattr__(objective, name, clock.around(part, getattr(objective, name)))


def step(objective: WTFRL, optimizer: torch.optim.Optimizer, batch: Any, number: int) -> None:
    """One whole step, as the training loop takes it."""
    objective.eval()
    with torch.no_grad():
        torch.manual_seed(number)
        [experience] = objective.prepare([objective.collect(batch, number)], lambda tensor: tensor)
    for piece in objective.losses(experience):
        piece.loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--draw", choices=("beam", "sample"), default="beam")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = Recipe.load("world_ved_wtf_rl", {"data.size": options.size, "objective.draw": options.draw})
    built = recipe.build(dry_run=True)  # an untrained discriminator, which costs as much
    objective, data = built.objective, built.data
    clock = Clock()
    instrument(objective, clock)
    optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-6)
    rows: list[dict[str, float]] = []
    for number, [batch] in enumerate(data.batches(Cut(options.images), seed=0, stop=options.steps)):
        clock.spent.clear()
        start = time.process_time()
        step(objective, optimizer, batch, number)
        whole = 1000 * (time.process_time() - start)
        learn = whole - sum(clock.spent.values())
        rows.append(clock.spent.copy() | {"whole": whole, "learn": learn})
    kept = rows[1:] or rows
    median = {name: statistics.median(row.get(name, 0.0) for row in kept) for name in (*PARTS, "whole")}
    for name in PARTS:
        print(f"{name:24}{median[name]:8.1f} ms {100 * median[name] / median['whole']:6.1f} %")
    reward = statistics.median(sum(row.get(name, 0.0) for name in REWARD) / row["whole"] for row in kept)
    print(f"{'whole step':24}{median['whole']:8.1f} ms; the reward's share is {100 * reward:.1f} %")


if __name__ == "__main__":
    main()
