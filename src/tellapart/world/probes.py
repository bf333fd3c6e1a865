"""Accuracy of every model of the world, in one table: towers, captioner, listeners, verifier, judge and matching head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import Collate
from tellapart.evaluation.evaluate import Evaluation
from tellapart.files import read_json, read_object, write_json
from tellapart.types import Decoding
from tellapart.world import load_scenes, load_world
from tellapart.world.backbone import ACCURACY, pixels
from tellapart.world.faults import faults
from tellapart.world.lstm import KINDS, POOLS, collate_pictures, feature_collate
from tellapart.world.measures import world_measures
from tellapart.world.probe import PROBE, accuracies, by_captioner, greedy_and_sampled
from tellapart.world.schedule import one_thread
from tellapart.world.schedules import ALIASES, STAGES
from tellapart.world.stages import resolve
from tellapart.world.video import probe as video
from tellapart.world.video.lstm import video_features
from tellapart.world.vocabulary import MAX_NEW_TOKENS

PROBED = (
    "world/backbone",
    "world/judge-backbone",
    "world/listener",
    "world/verifier",
    "world/sighted",
    "world/judge",
    "world/xe",
)
"""What is probed unless other stages are named; others, such as ``world/itm``, take long to build."""

DRAWN = greedy_and_sampled(MAX_NEW_TOKENS)

OF_CLIPS = "world/video-"
"""How stages of the moving world are called."""

CAPTIONER_PROBE = "captioner_probe.json"
"""Not ``PROBE``: the files of that name that older versions left next to captioners were measured with dropout."""

EVERY = 4
"""A captioner is asked about one picture of each cluster."""

GATES = {
    ("greedy", "truthful"): (95.0, None),
    ("sampled", "place"): (90.0, None),
    ("greedy", "doubled"): (None, 1.0),
}
"""Decoding and measure of the start captioner -> least and largest percentage that post-training needs to begin from."""


def probe_all(size: str = "full", *, stages: Sequence[str] = PROBED) -> dict[str, Any]:
    """Accuracy of each stage; missing stages are built.

    Args:
        size: of the world.
        stages: names.

    Returns:
        ``{"size", "stages": {name: {"folder", "cpu_seconds", "probe": {question: percent right}, "details"}}}``. The
        questions of a tower are those of its linear heads; a captioner answers by log-probability per token. ``details`` are
        all other figures that were kept. An alias also has ``same_as``.

    Raises:
        UsageError: there is no such stage or size.

    Example:
        >>> probe_all("small")["stages"]["world/verifier"]["probe"]["place"]
    """
    return {"size": size, "stages": {name: _probed(name, size) for name in stages}}


def probe_captioner(
    captioner: HuggingFaceCaptioner, *, size: str = "full", collate: Collate | None = None
) -> dict[str, Any]:
    """Accuracy of a captioner's likelihoods, and faults of its captions for val, in percent.

    Args:
        captioner: to be measured.
        size: of the world.
        collate: what it reads of images; none: what its own processor makes of them.

    Returns:
        ``accuracy``: see ``accuracies``. ``greedy`` and ``sampled``: ``truthful``, ``grammatical``,
        ``detail`` and ``exact_recall@1`` of such captions, and their ``faults``.
    """
    accuracy = accuracies(by_captioner(captioner, collate=collate), size=size, every=EVERY)
    read = Collate({captioner.name: pixels}) if collate is None else collate
    return {"accuracy": accuracy} | {name: _written(captioner, read, drawn, size) for name, drawn in DRAWN.items()}


def failed_gates(probe: dict[str, Any]) -> list[str]:
    """A sentence for each gate that the start captioner misses, from ``probe_captioner``."""
    missed = []
    for (drawn, measure), (least, most) in GATES.items():
        value = probe[drawn][measure]
        if least is not None and value < least:
            missed.append(f"{measure} of {drawn} captions is {value:.1f} %, under {least:g} %")
        if most is not None and value >= most:
            missed.append(f"{measure} of {drawn} captions is {value:.1f} %, not under {most:g} %")
    return missed


def _probed(name: str, size: str) -> dict[str, Any]:
    folder = resolve(name, size=size)
    accuracy, details = _read(ALIASES.get(name, name), folder, size)
    about = read_json(folder / "stage.json")
    found = {"folder": str(folder), "cpu_seconds": about["cpu_seconds"], "probe": accuracy, "details": details}
    return found | ({"same_as": ALIASES[name]} if name in ALIASES else {})


def _read(stage: str, folder: Path, size: str) -> tuple[dict[str, float], dict[str, Any]]:
    """The accuracy that was kept in a folder, and all other figures; a captioner's are measured once."""
    if (folder / ACCURACY).is_file():
        return read_object(folder / ACCURACY), {}
    if STAGES[stage].use:
        found = read_object(folder / PROBE)
        return found.pop("accuracy"), found
    if not (folder / CAPTIONER_PROBE).is_file():
        captioner = HuggingFaceCaptioner.from_pretrained(folder)
        probed = video.probe_captioner if stage.startswith(OF_CLIPS) else probe_captioner
        with one_thread():
            write_json(folder / CAPTIONER_PROBE, probed(captioner, size=size, collate=_reads(captioner, stage, size)))
    found = read_object(folder / CAPTIONER_PROBE)
    return found.pop("accuracy"), found


def _reads(captioner: HuggingFaceCaptioner, stage: str, size: str) -> Collate | None:
    """What gives a captioner over features its own; none: it reads frames."""
    if stage in KINDS:
        return collate_pictures(captioner.name, resolve("world/backbone", size=size), POOLS[KINDS[stage]])
    if stage == "world/video-lstm":
        return feature_collate(captioner.name, video_features(resolve("world/video-backbone", size=size), size))
    return None


def _written(captioner: HuggingFaceCaptioner, collate: Collate, decoding: Decoding, size: str) -> dict[str, float]:
    dataset, scenes = load_world("val", size=size), load_scenes("val", size=size)
    evaluation = Evaluation(dataset, collate, decoding=decoding, batch_size=128)
    captions, _ = evaluation.draw(captioner)
    corpus = world_measures(captions, scenes).corpus
    kept = ("truthful", "grammatical", "detail", "exact_recall@1")
    return {name: corpus[name] for name in kept} | faults(captions, scenes)
