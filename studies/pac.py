"""How far listeners agree with the world's exact quality: CLIP-S, PAC-S, and the difference with its interval.

``python studies/pac.py`` writes ``docs/results/world-pac.md``. Captions of many kinds of quality are made for the world's test
images; how good each one exactly is, is known. Scores and probes are kept in ``--output_dir``, and in the archive ``--kept``, so
that no listener is trained twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.draws import mix_seeds
from tellapart.evaluation.bootstrap import percentile_interval, resampled_sums
from tellapart.files import write_text
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.late import LateListener
from tellapart.listeners.opening import open_listener
from tellapart.metrics.correlation import kendall_tau_b, kendall_tau_c, pair_sums, spearman
from tellapart.metrics.scores import CLIP_WEIGHT, PAC_WEIGHT, clip_s
from tellapart.pretraining.start_captions import start_captions
from tellapart.recipe.fingerprint import key_of_models
from tellapart.sweep.claims import markdown_table
from tellapart.sweep.instruments import sampled_sentence
from tellapart.sweep.notes import Notes
from tellapart.sweep.page_parts import folded, reading
from tellapart.sweep.run_study import kept_notes
from tellapart.types import Decoding
from tellapart.world import alt_texts, load_scenes, load_world, spec
from tellapart.world.backbone import pixels
from tellapart.world.faults import faults
from tellapart.world.measures import world_measures
from tellapart.world.negatives import replace_attribute, shuffle_words, swap_attributes
from tellapart.world.probe import probe, probe_late
from tellapart.world.schedule import Schedule, Task, one_thread
from tellapart.world.schedules import STAGES
from tellapart.world.stages import resolve
from tellapart.world.vocabulary import MAX_NEW_TOKENS

TEMPERATURES = (0.7, 1.0, 1.5)
BEST = "longest reference"
"""The kind that all spoilt ones are made from."""

SPOILT = ("attributes swapped", "attribute replaced", "truncated", "words shuffled", "look-alike's", "other image's")
"""Kinds that are worse than :data:`BEST`, or no better."""

CLUSTER = 4  # images 4i to 4i + 3 of a split are mutants of one scene


@dataclass(frozen=True)
class Judged:
    """One caption of each kind of every image.

    Args:
        kinds: K names.
        texts: kind -> N captions, in the images' order.
        quality: kind -> ``[N]`` from 0 to 1: 0 unless the caption parses and all of it is true, else the share of the
            scene's attributes that it tells.
        ids: N images.
        drawn: the kinds that ``world/xe`` wrote.
    """

    kinds: tuple[str, ...]
    texts: dict[str, list[str]]
    quality: dict[str, np.ndarray]
    ids: list[str]
    drawn: tuple[str, ...] = ()

    def flat(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """``[N * K]`` of kind -> ``[N]`` values: an image's captions one after another."""
        return np.stack([values[kind] for kind in self.kinds], axis=1).reshape(-1)

    @property
    def images(self) -> np.ndarray:
        """``[N * K]`` row of the image of each caption."""
        return np.repeat(np.arange(len(self.ids)), len(self.kinds))


def judged_captions(dataset: CaptionDataset, drawn: Mapping[str, list[str]], *, split: str, size: str) -> Judged:
    """The captions of a split and their quality.

    Args:
        dataset: the split.
        drawn: kind -> what ``world/xe`` wrote, in the images' order.
        split: its name.
        size: of the world.
    """
    texts = {**_written(dataset, split, size), **drawn}
    scenes, ids = load_scenes(split, size=size), dataset.ids
    quality = {}
    for kind, captions in texts.items():
        measured = world_measures(dict(zip(ids, captions, strict=True)), scenes).per_image
        quality[kind] = np.array(measured["truthful"]) * np.array(measured["detail"]) / 1e4
    return Judged(tuple(texts), texts, quality, ids, tuple(drawn))


def _written(dataset: CaptionDataset, split: str, size: str) -> dict[str, list[str]]:
    """What people wrote, and what became of it."""
    references = dataset.references
    best = [max(texts, key=len) for texts in references.values()]
    rngs = [np.random.default_rng(mix_seeds("quality", name)) for name in references]
    pairs = list(zip(best, rngs, strict=True))
    shift = len(best) // 2 // CLUSTER * CLUSTER
    return {
        "reference": [texts[0] for texts in references.values()],
        BEST: best,
        "attributes swapped": [
            swap_attributes(text, rng) or replace_attribute(text, rng) or text for text, rng in pairs
        ],
        "attribute replaced": [replace_attribute(text, rng) or text for text, rng in pairs],
        "truncated": [" ".join(text.split()[: -(-len(text.split()) // 2)]) for text in best],
        "words shuffled": [shuffle_words(text, rng) for text, rng in pairs],
        "look-alike's": [best[_sibling(row, len(best))] for row in range(len(best))],
        "other image's": [best[(row + shift) % len(best)] for row in range(len(best))],
        "keywords": [texts[0] for texts in alt_texts(split, size=size).values()],
    }


def _sibling(row: int, images: int) -> int:
    """The next image of the same cluster."""
    first = row // CLUSTER * CLUSTER
    return first + (row - first + 1) % min(CLUSTER, images - first)


def drawn_captions(dataset: CaptionDataset, size: str) -> dict[str, list[str]]:
    """What ``world/xe`` writes; the cache keeps it."""
    captioner = HuggingFaceCaptioner.from_pretrained(resolve(XE, size=size))
    decoding = partial(Decoding, max_new_tokens=MAX_NEW_TOKENS)
    ways = {"xe, greedy": decoding()}
    ways |= {SAMPLED.format(value): decoding(do_sample=True, temperature=value) for value in TEMPERATURES}
    texts = {}
    with one_thread():
        for kind, way in ways.items():
            found = start_captions(captioner, dataset, dataset.ids, Collate({captioner.name: pixels}), way)
            texts[kind] = [found.texts[image_id] for image_id in dataset.ids]
    return texts


SPLIT = "test"
XE = "world/xe"
SAMPLED = "xe, sampled at {}"
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


def score(
    listener: ClipListener | LateListener, judged: Judged, dataset: CaptionDataset, *, weight: float
) -> np.ndarray:
    """``[N, K]`` CLIP-S, or PAC-S with a weight of 2, of all captions; by late interaction their log-probabilities."""
    if isinstance(listener, LateListener):
        listener.know_images(dataset)
        texts = list(zip(*(judged.texts[kind] for kind in judged.kinds), strict=True))
        return np.stack([listener.score(each).numpy() for each in listener.match_ids(judged.ids, texts)])
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


def measure(notes: Notes, size: str = "full", *, seeds: Sequence[int] = (0, 1, 2), samples: int = 1000) -> Found:
    """Train what is missing, score all captions of test, correlate.

    Args:
        notes: captions, scores and probes; models are opened where one is missing.
        size: of the world.
        seeds: of training further, the first being that of ``world/pac``.
        samples: how often images are drawn again.
    """
    dataset = load_world(SPLIT, size=size)
    with one_thread():
        key = key_of_models(["world", XE], size, TEMPERATURES, MAX_NEW_TOKENS)
        drawn = notes.read("drawn", key, lambda: drawn_captions(dataset, size))
        judged = judged_captions(dataset, drawn, split=SPLIT, size=size)
        draws = resampled_sums(np.eye(len(dataset)), samples=samples)

        def of(name: str, seed: int = 0) -> Agreement:
            key = key_of_models(["world", XE, PAC, JUDGE], size, name, seed, judged.texts)
            told = notes.read(f"scores {name} seed {seed}", key, lambda: _scored(name, seed, judged, dataset, size))
            return replace(agreement(np.array(told["scores"]), judged, draws), probe=told["probe"])

        scorers = {START: of(START), JUDGE: of(JUDGE)}
        found = {seed: {name: of(name, seed) for name in (PLAIN, PAC)} for seed in seeds}
        order = {START: scorers[START], **found[seeds[0]], JUDGE: scorers[JUDGE]}
        return Found(judged, order, found, size, samples)


def _scored(name: str, seed: int, judged: Judged, dataset: CaptionDataset, size: str) -> dict[str, Any]:
    """Scores of all captions by a scorer, ``[N, K]``, and its probe."""
    with TemporaryDirectory(prefix="tellapart-pac-") as scratch:
        if name == PLAIN:
            folder = _further(Path(scratch) / "plain", size, seed, caption_weight=0.0)
        elif name == PAC and seed:
            folder = _further(Path(scratch) / "pac", size, seed, caption_weight=0.1)
        else:
            folder = resolve(name, size=size)
        listener = open_listener(folder, name="scorer", prefix="")
        weight = PAC_WEIGHT if name == PAC else CLIP_WEIGHT
        scores = score(listener, judged, dataset, weight=weight)
        if isinstance(listener, LateListener):
            asked = probe_late(listener, size=size)
        else:
            asked = probe(listener, size=size)
        return {"scores": scores.tolist(), "probe": asked["accuracy"]}


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


DIFFERENCES = ((PAC, START), (PAC, PLAIN), (PLAIN, START))
"""Scorer and the one it is held against."""


def write_page(found: Found, path: Path) -> None:
    """Write the page.

    Args:
        found: what was measured.
        path: of the Markdown file.
    """
    sections = [
        _head(found),
        folded("## What the listeners can tell apart: percent of the probe on val\n\n" + _probes(found)),
        _samples(found),
        reading(path),
        "## Correlation with quality, all captions of test\n\n" + _correlations(found),
        folded("## Differences\n\n" + _differences(found)),
        folded("## Which of two captions of an image\n\n" + _preferences(found)),
        folded("## The captions\n\n" + _captions(found)),
    ]
    write_text(path, "\n\n".join(sections) + "\n")


def _head(found: Found) -> str:
    judged = found.judged
    return f"""# How far CLIP-S and PAC-S agree with the world's exact quality

Made by `python studies/pac.py`.

{len(judged.kinds)} captions of each of the {len(judged.ids)} test images ({found.size} world), one of each kind below.
The quality of a caption is truthful x detail: 0 unless it parses and everything in it is true; then it is the share of the
scene's attributes that it tells (0 again for "two shapes"). `{START}` scores by CLIP-S (w = 2.5), `{PAC}` by PAC-S (w = 2):
ranks do not depend on w. `{JUDGE}` scores by the log-probability that a caption is true. *{PLAIN}* is trained as
`{PAC}` is, on the same images, with the term of generated captions left out. Coefficients are printed times 100; brackets are
95 % percentile intervals of {found.samples} draws of the test images, the same draws for all, so that differences are paired.
*tau-b within images* counts pairs of captions of one image only; *tau-b without xe's* leaves out the captions of `world/xe`.
Seeds redraw the training that goes
further (`{PAC}` is seed 0); everything else is fixed."""


def _text(values: np.ndarray, *, digits: int = 2, signed: bool = False) -> str:
    """``[1 + S]`` as the value and its interval, times 100."""
    low, high = percentile_interval(values[1:, None])
    sign = "+" if signed else ""
    ends = (100 * float(low[0]), 100 * float(high[0]))
    return f"{100 * values[0]:{sign}.{digits}f} [{ends[0]:{sign}.{digits}f}, {ends[1]:{sign}.{digits}f}]"


def _correlations(found: Found) -> str:
    rows = [["scorer", *COEFFICIENTS]]
    rows += [[name, *(_text(own.draws[key]) for key in COEFFICIENTS)] for name, own in found.scorers.items()]
    return markdown_table(rows[0], rows[1:])


def _differences(found: Found) -> str:
    rows = [["difference", "seed", *COEFFICIENTS]]
    start = found.scorers[START]
    for one, other in DIFFERENCES:
        for seed, own in found.seeds.items():
            pair = {START: start, **own}
            values = [pair[one].draws[key] - pair[other].draws[key] for key in COEFFICIENTS]
            rows.append([f"{one} - {other}", str(seed), *(_text(each, signed=True) for each in values)])
    return markdown_table(rows[0], rows[1:])


def _preferences(found: Found) -> str:
    """How often the better caption scores higher."""
    about = f"""Share of images (%) whose *{BEST}* scores higher than the same caption spoilt, or another one, among the images
where it is the better one."""
    rows = [["held against", *found.scorers, f"{PAC} - {START}"]]
    for kind in SPOILT:
        draws = [own.draws[f"over {kind}"] for own in found.scorers.values()]
        difference = found.scorers[PAC].draws[f"over {kind}"] - found.scorers[START].draws[f"over {kind}"]
        rows.append([kind, *(_text(each, digits=1) for each in draws), _text(difference, digits=1, signed=True)])
    return f"{about}\n\n{markdown_table(rows[0], rows[1:])}"


def _captions(found: Found) -> str:
    judged = found.judged
    rows = [
        ["kind", "example", "quality > 0 (%)", "mean quality (%)", *(f"mean score, {name}" for name in found.scorers)]
    ]
    for kind in judged.kinds:
        quality = judged.quality[kind]
        figures = [f"{100 * float((quality > 0).mean()):.1f}", f"{100 * float(quality.mean()):.1f}"]
        scores = [f"{own.means[kind]:.3f}" for own in found.scorers.values()]
        rows.append([kind, judged.texts[kind][0], *figures, *scores])
    return markdown_table(rows[0], rows[1:])


def _probes(found: Found) -> str:
    asked = next(iter(found.scorers.values())).probe
    rows = [["asked", *found.scorers]]
    rows += [[name, *(f"{own.probe[name]:.1f}" for own in found.scorers.values())] for name in asked]
    return markdown_table(rows[0], rows[1:])


def _samples(found: Found) -> str:
    """How true what ``world/xe`` writes is, by the test images."""
    captions = dict(zip(found.judged.ids, found.judged.texts[SAMPLED.format(1.0)], strict=True))
    scenes = load_scenes(SPLIT, size=found.size)
    return sampled_sentence(XE, world_measures(captions, scenes).corpus | faults(captions, scenes)).strip()


def main(argv: list[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(spec.SPLIT_SIZES), default="full")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of training further; 0 is world/pac")
    parser.add_argument("--samples", type=int, default=1000, help="how often images are drawn again")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/study"), help="folder of scores and probes")
    parser.add_argument("--docs", type=Path, default=Path("docs/results"), help="folder of the page")
    parser.add_argument("--kept", type=Path, help="archive of scores and probes, which is updated")
    options = parser.parse_args(argv)
    usual = options.size == "full" and options.seeds == [0, 1, 2]
    with kept_notes(options.kept, options.output_dir, usual=usual) as notes:
        found = measure(notes, options.size, seeds=options.seeds, samples=options.samples)
        write_page(found, options.docs / "world-pac.md")


if __name__ == "__main__":
    main()
