"""What discriminators see on the built-in world: held-out accuracy after equal pre-training, by kind and by what they learn from.

    OMP_NUM_THREADS=1 python benchmarks/discriminators.py [--steps 1000] [--seeds 0 1 2] [--kinds text] [--sources sample]

Pre-trained on train, measured on val: in each row the share of captions told right, one reference and one generated caption an
image; chance is 50 %. ``shuffled`` and ``repeating`` are the shares told as generated of references with their words in
random order, and of references whose last two words are said five times more; ``longest`` is the share of the same (the longest)
references, unchanged, that is told as generated: a mistake. What is learned from: the start captioner's beams, its samples, its
beams with half of them replaced by spoilt references, or references in random order alone.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import torch

from tellapart import Recipe
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.data.loader import TrainingData
from tellapart.evaluation.evaluate import Evaluation
from tellapart.listeners.clip import ClipListener
from tellapart.objectives.discriminator import DiscriminatorPretraining
from tellapart.pretraining.discriminator import new_discriminator, pretrain
from tellapart.pretraining.discriminator_accuracy import measure
from tellapart.pretraining.discriminator_settings import DiscriminatorSettings
from tellapart.pretraining.start_captions import StartCaptions, start_captions
from tellapart.recipe.build import Built
from tellapart.rewards.discriminator import Discriminator
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train as train_loop
from tellapart.world.vocabulary import MAX_NEW_TOKENS

SHUFFLED = "shuffled references"
BEAM = DiscriminatorSettings(max_new_tokens=MAX_NEW_TOKENS)
SAMPLE = replace(BEAM, num_beams=1, do_sample=True, no_repeat_ngram_size=0)
SOURCES = {"beam 5": BEAM, "sample": SAMPLE, "beam 5, half spoilt": replace(BEAM, corrupted=0.5), SHUFFLED: BEAM}
KINDS = {
    "mlp, lr 7e-5": {"kind": "mlp"},
    "mlp, lr 1e-3": {"kind": "mlp", "learning_rate": 1e-3},
    "text, words alone": {"kind": "text", "see_image": False},
    "text": {"kind": "text"},
}


def shuffled(text: str) -> str:
    words = text.split()
    random.Random(text).shuffle(words)
    return " ".join(words)


def repeating(text: str) -> str:
    return " ".join([text, *(text.split()[-2:] * 5)])


def changed(dataset: CaptionDataset, built: Built, how: Callable[[str], str], *, longest: bool = True) -> StartCaptions:
    """A changed reference of every image: the longest, in which a change is plain to see, or the first."""
    texts = {e.id: how(max(e.references, key=len) if longest else e.references[0]) for e in dataset}
    return StartCaptions(texts, dict.fromkeys(texts, True), built.captioner.tokenize)


def drawn(dataset: CaptionDataset, built: Built, settings: DiscriminatorSettings) -> StartCaptions:
    return start_captions(built.captioner, dataset, dataset.ids, built.data.collate, settings.decoding())


def watched(built: Built) -> Evaluation:
    """What knows the listener and the held-out images."""
    assert built.evaluate is not None
    return built.evaluate


def learned(built: Built, source: str, settings: DiscriminatorSettings) -> Discriminator:
    train, evaluation = built.dataset, watched(built)
    listener = evaluation.listeners["listener"]
    assert isinstance(listener, ClipListener)
    listener.cache_images(train)
    if source != SHUFFLED:
        held_out = evaluation.dataset
        return pretrain(built.captioner, listener, train, built.data.collate, settings, held_out=held_out)[0]
    discriminator = new_discriminator(listener, settings)
    fake = changed(train, built, shuffled, longest=False)
    with tempfile.TemporaryDirectory() as scratch:
        config = TrainConfig(
            output_dir=Path(scratch),
            learning_rate=settings.learning_rate or discriminator.learning_rate,
            max_steps=settings.pretraining_steps,
            per_device_train_batch_size=settings.batch_size,
            seed=settings.seed,
        )
        train_loop(DiscriminatorPretraining(discriminator, fake, fake.read), TrainingData(train, Collate({})), config)
    return discriminator


def row(built: Built, source: str, settings: DiscriminatorSettings) -> list[float]:
    val = watched(built).dataset
    began = time.process_time()
    discriminator = learned(built, source, settings)
    seconds = time.process_time() - began
    generated = (drawn(val, built, BEAM), drawn(val, built, SAMPLE), changed(val, built, shuffled, longest=False))
    told = [measure(discriminator, val, captions, built.captioner).accuracy for captions in generated]
    for how in (str, shuffled, repeating):
        told.append(measure(discriminator, val, changed(val, built, how), built.captioner).generated)
    return [*(100 * value for value in told), seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--size", default="full")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    built = Recipe.load("world_ved_rl", {"data.size": options.size}).build(dry_run=True)
    heads = ["learned from", "kind", "beam 5", "sample", "shuffled first ref"]
    heads += ["longest told generated", "shuffled", "repeating", "cpu s"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for source in options.sources:
        for kind in options.kinds:
            settings = replace(SOURCES[source], pretraining_steps=options.steps, **KINDS[kind])
            columns = zip(*(row(built, source, replace(settings, seed=seed)) for seed in options.seeds), strict=True)
            cells = [f"{mean(c):.1f}" + (f" ± {stdev(c):.1f}" if len(c) > 1 else "") for c in columns]
            print(f"| {source} | {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
