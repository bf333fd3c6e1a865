"""How far listeners agree with the world's exact quality: CLIP-S, PAC-S, and the difference with its interval.

``python -m tellapart.experiments.listener_correlation`` writes ``docs/results/world-pac.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tellapart.data.dataset import CaptionDataset
from tellapart.evaluation.bootstrap import resampled_sums
from tellapart.experiments.quality_captions import BEST, SPOILT, Judged, judged_captions
from tellapart.listeners.clip import ClipListener
from tellapart.metrics.correlation import kendall_tau_b, kendall_tau_c, pair_sums, spearman
from tellapart.metrics.scores import CLIP_WEIGHT, PAC_WEIGHT, clip_s
from tellapart.world import load_world, spec
from tellapart.world.probe import probe
from tellapart.world.schedule import Schedule, Task, one_thread
from tellapart.world.schedules import STAGES
from tellapart.world.stages import resolve

SPLIT = "test"
START, PLAIN, PAC, JUDGE = "world/listener", "further, without generated", "world/pac", "world/judge"
"""The four scorers; the second is trained as ``world/pac`` is, but on people's captions alone."""

COEFFICIENTS = ("tau-b", "tau-c", "rho", "tau-b within images", "tau-b without xe's")
"""The last one leaves out the captions of ``world/xe``, which ``world/pac`` has learnt from others like."""


@dataclass(frozen=True)
class Agreement:
    """How far one scorer agrees with the truth.

    Args:
        draws: coefficient, or ``over <kind>`` -> ``[1 + S]``: of all images, then of images drawn again.
        means: kind of caption -> mean score.
        probe: what the probe tells of it.
    """

    draws: dict[str, np.ndarray]
    means: dict[str, float]
    probe: dict[str, float] = field(default_factory=dict)


def agreement(scores: np.ndarray, judged: Judged, draws: np.ndarray) -> Agreement:
    """All coefficients of one scorer.

    Args:
        scores: ``[N, K]``, of the captions of each kind in the order of ``judged.kinds``.
        judged: the captions with their quality.
        draws: ``[S, N]`` how often each image is drawn.
    """
    flat, truth, images = scores.reshape(-1), judged.flat(judged.quality), judged.images
    every = np.concatenate([np.ones((1, len(judged.ids))), draws])
    sums = pair_sums(flat, truth, images)
    written = np.tile([kind not in judged.drawn for kind in judged.kinds], len(judged.ids))
    found = {
        "tau-b": kendall_tau_b(sums, every),
        "tau-c": kendall_tau_c(sums, every),
        "rho": spearman(flat, truth, images, every),
        "tau-b within images": kendall_tau_b(sums, every, within=True),
        "tau-b without xe's": kendall_tau_b(pair_sums(flat[written], truth[written], images[written]), every),
    }
    column = {kind: scores[:, place] for place, kind in enumerate(judged.kinds)}
    for kind in SPOILT:
        worse = judged.quality[kind] < judged.quality[BEST]
        right = worse & (column[BEST] > column[kind])
        found[f"over {kind}"] = (every @ right) / np.maximum(every @ worse, 1)
    return Agreement(found, {kind: float(values.mean()) for kind, values in column.items()})


def score(listener: ClipListener, judged: Judged, dataset: CaptionDataset, *, weight: float) -> np.ndarray:
    """``[N, K]`` CLIP-S, or PAC-S with a weight of 2, of all captions."""
    listener.cache_images(dataset)
    images = listener.encode_ids(judged.ids)
    cosines = [(listener.encode_texts(judged.texts[kind]) * images).sum(dim=1).cpu().numpy() for kind in judged.kinds]
    return clip_s(np.stack(cosines, axis=1), weight=weight)


@dataclass(frozen=True)
class Found:
    """Everything the page tells.

    Args:
        judged: the captions.
        scorers: name -> its agreement, seed 0.
        seeds: seed -> name -> agreement, of the two that are trained further.
        size: of the world.
        samples: of the bootstrap.
    """

    judged: Judged
    scorers: dict[str, Agreement]
    seeds: dict[int, dict[str, Agreement]]
    size: str
    samples: int


def measure(size: str = "full", *, seeds: Sequence[int] = (0, 1, 2), samples: int = 1000) -> Found:
    """Train what is missing, score all captions of test, correlate.

    Args:
        size: of the world.
        seeds: of training further, the first being that of ``world/pac``.
        samples: how often images are drawn again.
    """
    dataset = load_world(SPLIT, size=size)
    with one_thread():
        judged = judged_captions(dataset, split=SPLIT, size=size)
        draws = resampled_sums(np.eye(len(dataset)), samples=samples)

        def of(folder: Path, weight: float = CLIP_WEIGHT, *, probed: bool = True) -> Agreement:
            listener = ClipListener.from_pretrained(folder, name="scorer", prefix="")
            told = agreement(score(listener, judged, dataset, weight=weight), judged, draws)
            return Agreement(told.draws, told.means, probe(listener, size=size)["accuracy"] if probed else {})

        scorers = {START: of(resolve(START, size=size)), JUDGE: of(resolve(JUDGE, size=size))}
        found: dict[int, dict[str, Agreement]] = {}
        for seed in seeds:
            with TemporaryDirectory(prefix="tellapart-pac-") as scratch:
                first, again = seed == seeds[0], Path(scratch) / "pac"
                plain = _further(Path(scratch) / "plain", size, seed, caption_weight=0.0)
                ours = resolve(PAC, size=size) if seed == 0 else _further(again, size, seed, caption_weight=0.1)
                found[seed] = {PLAIN: of(plain, probed=first), PAC: of(ours, PAC_WEIGHT, probed=first)}
        order = {START: scorers[START], **found[seeds[0]], JUDGE: scorers[JUDGE]}
        return Found(judged, order, found, size, samples)


def _further(folder: Path, size: str, seed: int, *, caption_weight: float) -> Path:
    """Train as ``world/pac`` is trained, with another seed or weight; returns the folder."""
    from tellapart.world.pac import generated_captions, train_further

    folder.mkdir(parents=True)
    needs = {need: resolve(need, size=size) for need in STAGES[PAC].needs}
    task = Task(PAC, folder, Schedule(**STAGES[PAC].schedules[size]), needs, size, seed)
    dataset = load_world("train", size=size)
    generated = generated_captions(needs["world/xe"], dataset) if caption_weight else {}
    train_further(task, dataset, generated, caption_weight=caption_weight)
    return folder


def main(argv: list[str] | None = None) -> None:
    """Measure and write the page."""
    from tellapart.experiments.correlation_page import write_page

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(spec.SPLIT_SIZES), default="full")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of training further; 0 is world/pac")
    parser.add_argument("--samples", type=int, default=1000, help="how often images are drawn again")
    parser.add_argument("--docs", type=Path, default=Path("docs/results"), help="folder of the page")
    options = parser.parse_args(argv)
    found = measure(options.size, seeds=options.seeds, samples=options.samples)
    write_page(found, options.docs / "world-pac.md")


if __name__ == "__main__":
    main()
