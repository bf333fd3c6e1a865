"""Frozen models in shards, read unequally by two processes; imported by the processes that the tests start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from sharded_runs import Case, captioner_of, run
from torch.distributed.device_mesh import init_device_mesh

from family_checks import pictures
from listeners.tiny_listeners import clip_parts, siglip_parts
from pictures import CAPTIONS, images
from tellapart.data.dataset import Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.evaluation.evaluate import Evaluation
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.loading import model_digest
from tellapart.listeners.matcher import ItmMatcher
from tellapart.listeners.remember import RememberingTexts
from tellapart.objectives.scst import SCST
from tellapart.recipe.build import Watch
from tellapart.rewards.language_model import LanguageModel, MeanLogProbability
from tellapart.rewards.matchers import open_matcher
from tellapart.rewards.matching import Matching
from tellapart.rewards.mix import Mix
from tellapart.rewards.similarity import Similarity
from tellapart.training import frozen
from tellapart.training.memory import frozen_models
from tellapart.training.sharding import local
from tellapart.types import Batch, Decoding, Rollout
from tiny.language_models import tiny_language_model
from tiny.llava import tiny_llava
from tiny.matchers import tiny_blip2_itm, tiny_blip_itm
from tiny.qwen2_vl import tiny_qwen2_vl
from tiny_late import tiny_late

IDS = ["x", "y", "z"]
WORDS = [*CAPTIONS, *["is this it ? yes or no Yes No"] * 40]
TEXTS = [
    "a red star on a table",
    "a moon",
    "a blue moon on a table a blue moon on a table",
    "a red ring",
    "the dog runs",
]
PAIRS = [(row, text) for row in range(3) for text in TEXTS[: 5 - row]]
"""Of 12 captions one process reads 10, of all images, the other one 2 of the last image, or none."""
SHARES = (PAIRS[:10], PAIRS[10:])
TRAINED = Case("CLIP + GPT-2", load=(("train", "all"),))
RESUMED = Case("BLIP", "xe", load=(("train", "all"),))


def cut_all() -> None:
    """Cut frozen models of any size; of the tiny ones, embeddings of words but not of places."""
    frozen.LARGE, frozen.LARGE_EMBEDDING = 0, 1024


def examples() -> list[Example]:
    """Three pictures of several shapes."""
    shaped = [image.resize(size) for image, size in zip(images(3), [(64, 64), (64, 32), (32, 48)], strict=True)]
    return [Example(name, ArrayImage(np.asarray(image))) for name, image in zip(IDS, shaped, strict=True)]


def save_frozen(models: Path) -> None:
    """Write the matchers that are read from folders; within a process group only one of the processes could."""
    tiny_llava(models / "llava", captions=WORDS, vocab=160)
    tiny_qwen2_vl(models / "qwen2-vl", captions=WORDS, vocab=320)
    tiny_blip_itm(models / "blip-itm")
    tiny_blip2_itm(models / "blip-2-itm")


def readers(models: Path) -> dict[str, Any]:
    """Name -> reward of a frozen model; each reads at most two captions at once."""
    question, options = "is this {caption} ? yes or no", {"batch_size": 2}
    matchers = {name: ItmMatcher.from_pretrained(models / name, **options) for name in ("blip-itm", "blip-2-itm")}
    asked = {name: open_matcher(models / name, question=question, **options) for name in ("llava", "qwen2-vl")}
    matchers |= asked | {"late": tiny_late(**options)}
    for matcher in matchers.values():
        matcher.know_images(examples())
    listeners = {name: ClipListener.from_parts(*parts(), name=name, **options) for name, parts in LISTENERS.items()}
    for listener in listeners.values():
        listener.cache_images(examples())
    found = {name: Similarity(listener, clamp=False) for name, listener in listeners.items()}
    found |= {name: Matching(matcher) for name, matcher in matchers.items()}
    return found | {"llama": MeanLogProbability(LanguageModel(*tiny_language_model("llama"), tokens_at_once=40))}


LISTENERS = {"clip": clip_parts, "siglip": siglip_parts}


def rollout_of(pairs: list[tuple[int, str]], listeners: dict[str, ClipListener] | None = None) -> Rollout:
    """Captions of pictures, which the listeners are given, or know already."""
    chosen = [example.image.open() for example in examples()]
    inputs = {name: listener.process(chosen) for name, listener in (listeners or {}).items()}
    return Rollout.of_texts(Batch(IDS, [[]] * 3, inputs), [row for row, _ in pairs], [text for _, text in pairs])


def read_unequally(models: Path) -> dict[str, Any]:
    """What each of two processes found of its own captions before and after the models were cut."""
    rank = dist.get_rank()
    rewards = readers(models)
    held_by = {name: next(iter(frozen_models(reward).values())) for name, reward in rewards.items()}
    own = rollout_of(SHARES[rank])
    before = {name: reward(own).tolist() for name, reward in rewards.items()}
    digests = {name: model_digest(model) for name, model in held_by.items()}
    whole = {name: sum(p.nbytes for p in model.parameters()) for name, model in held_by.items()}
    cut_all()
    parts = {
        name: [p.nbytes for part in frozen.parts_of(model) for p in part.parameters()]
        for name, model in held_by.items()
    }
    turns = frozen.Turns(list(held_by.values()), init_device_mesh("cpu", (2,)))
    calls = dict.fromkeys(held_by, 0)
    for name, model in held_by.items():

        def count(module: Any, inputs: Any, output: Any, name: str = name) -> None:
            calls[name] += 1

        for part in frozen.parts_of(model):
            part.register_forward_hook(count)
    # The first process embeds the pictures, the other one has their embeddings and reads the models in reversed order.
    listeners = {reward.listener.name: reward.listener for reward in rewards.values() if hasattr(reward, "listener")}
    given = rollout_of(SHARES[rank], listeners if rank == 0 else None)
    after = {}
    for name in rewards if rank == 0 else reversed(rewards):
        idle = rank == 1 and name in ("blip-itm", "clip", "llama")
        after[name] = before[name] if idle else rewards[name](given).tolist()
    turns.finish()
    same = rank == 1 or {name: model_digest(model) for name, model in held_by.items()} == digests
    turns.finish()
    held = {name: sum(local(p).nbytes for p in model.parameters()) for name, model in held_by.items()}
    expected = {name: whole[name] - sum(parts[name]) / 2 for name in held_by}
    return {
        "before": before,
        "after": after,
        "calls": calls,
        "same": same,
        "held": {name: [held[name], expected[name], whole[name]] for name in held},
    }


def train_with_frozen(models: Path, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The log of a training with a listener, a matcher, a start model and a judge of the evaluation; what this process holds."""
    captioner = captioner_of(TRAINED, models)
    listener = ClipListener.from_parts(*clip_parts(), batch_size=2)
    judge = ClipListener.from_parts(*siglip_parts(), name="judge", batch_size=2)
    matcher = ItmMatcher.from_pretrained(models / "blip-itm", batch_size=1)
    for each in (listener, judge):
        each.cache_images(pictures(6))
    matcher.know_images(pictures(6))
    reward = Mix({"clip_s": Similarity(RememberingTexts(listener), clamp=False), "itm": Matching(matcher)})
    objective = SCST(captioner, reward, num_generations=3, max_new_tokens=6, kl_coef=0.1, kl_in="loss")
    collate = Collate({captioner.name: captioner.process})
    decoding = Decoding(max_new_tokens=6)
    watch = Watch(Evaluation(pictures(6), collate, listeners={"judge": judge}, decoding=decoding, num_workers=0), "run")
    frozen_parts = {"listener": listener.model, "judge": judge.model, "matcher": matcher.model}
    frozen_parts["reference"] = objective.reference.captioner
    whole = {name: sum(p.nbytes for p in model.parameters()) for name, model in frozen_parts.items()}
    calls = [0]
    matcher.model.text_encoder.encoder.layer[0].register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    history, _, _ = run(TRAINED, models, folder / "run", objective, watch, eval_steps=1)
    held = {
        name: sum(local(p).nbytes for p in model.parameters()) / whole[name] for name, model in frozen_parts.items()
    }
    return history, {"held": held, "calls": calls[0]}


def resume_across(models: Path, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Why processes in shards do not resume what replicas wrote; the log of replicas that resume what shards wrote."""
    replicas, again = replace(RESUMED, shard="none"), {"max_steps": 2, "resume_from_checkpoint": "last"}
    run(replicas, models, folder / "replicas", max_steps=1)
    run(RESUMED, models, folder / "shards", max_steps=1)
    history, _, _ = run(replicas, models, folder / "shards", **again)
    try:
        run(RESUMED, models, folder / "replicas", **again)
    except UsageError as error:
        return str(error), history
    return "", history
