"""Telling the world's test images apart without training: search, comparing with look-alikes, contrastive decoding.

``python studies/apart.py`` writes ``docs/results/world-apart.md``. Finished rows are kept in ``--output_dir``, and in the archive
``--kept``, and are not repeated.
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioning.apart import Apart, find_lookalikes
from tellapart.data.dataset import CaptionDataset
from tellapart.evaluation.columns import describe
from tellapart.files import write_text
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.late import LateListener
from tellapart.metrics.coco import coco_metrics
from tellapart.recipe.fingerprint import key_of_models
from tellapart.recipe.models import load_captioner, load_listener
from tellapart.sweep.claims import Claim, Seeds, markdown_table
from tellapart.sweep.instruments import instruments_parts, probed, probed_stages
from tellapart.sweep.notes import Notes
from tellapart.sweep.run_study import kept_notes
from tellapart.world import load_scenes, load_world
from tellapart.world.measures import world_measures
from tellapart.world.probe import require_probe
from tellapart.world.stages import resolve
from tellapart.world.vocabulary import MAX_NEW_TOKENS

SEEDS = (0, 1, 2)
START = "world/xe"
MODELS = ("world/listener", "world/verifier", "world/judge")
PROBED = probed_stages([START], MODELS)
DEFAULTS = {name: one.default for name, one in inspect.signature(Apart).parameters.items()}
"""Options of :class:`Apart` that a row does not change."""

NONE = {"truth": 0.0, "likelihood": 0.0, "clip_s": 0.0, "fluency": 0.0}
"""Weights that leave the captioner's own order: of equal values the first candidate is kept."""


@dataclass(frozen=True)
class Row:
    """A way to caption.

    Args:
        num_beams: candidates per image.
        verified: whether ``world/verifier`` is at hand.
        options: of :class:`Apart`.
    """

    num_beams: int
    verified: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


OWN = {"weights": NONE, "redraw": 0}
ROWS = {
    "greedy": Row(1, options=OWN),
    "5 beams": Row(5, options=OWN),
    "10 beams": Row(10, options=OWN),
    "20 beams": Row(20, options=OWN),
    "best of 10 beams by CLIP-S": Row(10, options={"weights": {**NONE, "clip_s": 1.0}, "redraw": 0}),
    "contrastive decoding, 10 beams": Row(10, options={**OWN, "strength": 1.0}),
    "apart, no verifier": Row(20),
    "apart, no new tries": Row(20, True, {"redraw": 0}),
    "apart": Row(20, True),
    "apart, 10 beams": Row(10, True),
    "apart by contrastive decoding, 10 beams": Row(10, True, {"strength": 1.0}),
}
COLUMNS = {
    "exact_recall@1": "exact_recall@1",
    "listener_R@1": "listener R@1",
    "judge_R@1": "judge R@1",
    "lookalikes_listener": "listener, look-alikes",
    "lookalikes_judge": "judge, look-alikes",
    "truthful": "truthful",
    "grammatical": "grammatical",
    "detail": "detail",
    "CIDEr": "CIDEr",
    "words": "words",
    "confused": "confused",
    "seconds": "CPU s/image",
}


@dataclass(frozen=True)
class Instruments:
    """What captions are drawn with and measured by.

    Args:
        dataset: the test split.
        size: of the world.
        listener: finds look-alikes and compares candidates.
        verifier: judges truth while candidates are compared.
        judge: measures; no candidate is compared by it.
    """

    dataset: CaptionDataset
    size: str
    listener: ClipListener
    verifier: LateListener
    judge: LateListener

    @classmethod
    def load(cls, size: str, *, probed: bool = True) -> Instruments:
        """From the stages of the world.

        Raises:
            UsageError: the judge fails its probe.
        """
        dataset, folders = load_world("test", size=size), {}
        for name in ("verifier", "judge"):
            folders[name] = resolve(f"world/{name}", size=size)
            if probed:
                require_probe(folders[name], {"verifier": "truth", "judge": "judge"}[name])
        late = {name: LateListener.from_pretrained(folder, name=name) for name, folder in folders.items()}
        late["judge"].cache_images(dataset)
        return cls(dataset, size, load_listener("world/listener", size=size), **late)


def measure(row: Row, captioner: HuggingFaceCaptioner, tools: Instruments) -> dict[str, float]:
    """One way to caption, in percent, but for CIDEr, words and seconds."""
    start = time.process_time()
    options = {"max_new_tokens": MAX_NEW_TOKENS, "verifier": tools.verifier if row.verified else None, **row.options}
    found = Apart(captioner, tools.listener, num_beams=row.num_beams, **options)(list(tools.dataset))
    seconds = time.process_time() - start
    captions = {caption.id: caption.caption for caption in found}
    near = find_lookalikes(tools.listener, tools.dataset)
    metrics = dict(world_measures(captions, load_scenes("test", size=tools.size)).corpus)
    ids, texts = list(captions), list(captions.values())
    cosines = tools.listener.encode_texts(texts) @ tools.listener.encode_ids(ids).T
    for name, matrix in (("listener", cosines), ("judge", tools.judge.logprobs(texts, ids))):
        own = matrix.diagonal()
        metrics[f"{name}_R@1"] = 100.0 * ((matrix >= own[:, None]).sum(dim=1) == 1).float().mean().item()
        place = {image: i for i, image in enumerate(ids)}
        others = torch.tensor([[place[other] for other in some] for some in near.of(ids)])
        rivals = matrix.gather(1, others.to(matrix.device))
        metrics[f"lookalikes_{name}"] = 100.0 * (own > rivals.amax(dim=1)).float().mean().item()
    metrics["CIDEr"] = 100.0 * coco_metrics(captions, tools.dataset.references)[0]["CIDEr"]
    metrics["words"] = sum(len(text.split()) for text in texts) / len(texts)
    metrics["confused"] = 100.0 * sum("confused" in caption.flags for caption in found) / len(found)
    metrics["seconds"] = seconds / len(found)
    return metrics


def claims(found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Claim]:
    """What was expected before test was read."""

    def read(row: str, metric: str) -> Seeds:
        return Seeds([one[metric] for one in found[row]])

    out = []
    for metric, bar, goal in (("exact_recall@1", 62, 72), ("truthful", 94, 97), ("grammatical", 99, 99.5)):
        values = read("apart", metric)
        for name, least in (("bar", bar), ("goal", goal)):
            text = f"`apart` reaches {least} % {describe(metric).label.removesuffix(' %')} in every seed ({name})."
            out.append(Claim(text, min(values.values) >= least, f"{values}, lowest {min(values.values):.1f}."))
    recall, contrast = "exact_recall@1", "contrastive decoding, 10 beams"
    for text, one, other, metric in (
        (
            "Comparing candidates with look-alikes tells more apart than the likeliest of as many beams.",
            "apart",
            "20 beams",
            recall,
        ),
        ("A verifier makes captions true more often.", "apart", "apart, no verifier", "truthful"),
        ("New tries tell more images apart.", "apart", "apart, no new tries", recall),
        (
            "Contrastive decoding tells more images apart than ordinary beams.",
            contrast,
            "10 beams",
            recall,
        ),
        ("It adds to comparing.", "apart by contrastive decoding, 10 beams", "apart, 10 beams", recall),
    ):
        left, right = read(one, metric), read(other, metric)
        out.append(
            Claim(text, left.above(right), f"{left} against {right} ({describe(metric).label.removesuffix(' %')}).")
        )
    return out


def page(found: Mapping[str, Sequence[Mapping[str, float]]], images: int, seen: Mapping[str, Any]) -> str:
    """The page.

    Args:
        found: row -> what it measures, one mapping per seed.
        images: of the test split.
        seen: what each model sees, as ``probed`` returns it.
    """
    rows = []
    for name, metrics in found.items():
        cells = [name]
        for key in COLUMNS:
            values = Seeds([one[key] for one in metrics])
            cells.append(f"{values.mean:.3f}" if key == "seconds" else str(values))
        rows.append(cells)
    expected = "\n".join(claim.to_markdown() for claim in claims(found))
    instruments = "\n\n".join(instruments_parts(seen, [START], MODELS))
    return f"""# Telling images apart without training

Made by `python studies/apart.py`; what the options mean is in [the guide](../how-to/apart.md).

The start captioner `{START}` captions the {images} test images of the built-in world, for seeds
{", ".join(map(str, SEEDS))} of that captioner (mean ± standard deviation). Each image has 20 look-alikes by `world/listener`.
Candidates are compared by `world/listener` and, unless the row says otherwise, by `world/verifier`; new tries are sampled from
seed 42. `world/judge` took no part. Weights and the number of beams were chosen on val with seed 0.

*look-alikes* counts captions that suit their image better than all 20, *confused* those that do not by the listener. CIDEr is
printed times 100, words are counted, everything else except seconds is in percent. Seconds include finding look-alikes in cached
embeddings, on one thread of a shared machine.

{instruments}

{markdown_table(["row", *COLUMNS.values()], rows)}

## What was expected

{expected}
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/study"))
    parser.add_argument("--docs", type=Path, default=Path("docs/results"))
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--kept", type=Path, help="archive of finished rows, which is updated")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with kept_notes(options.kept, options.output_dir, usual=options.size == "full") as notes:
        found = measured(options.size, notes)
        seen = notes.read("apart probes", key_of_models(PROBED, options.size), partial(probed, options.size, PROBED))
        images = len(load_world("test", size=options.size))
        write_text(options.docs / "world-apart.md", page(found, images, seen))


def measured(size: str, notes: Notes) -> dict[str, list[dict[str, float]]]:
    """Row -> what it measures, one mapping per seed. Models are opened where a row is missing."""

    @cache
    def tools() -> Instruments:
        return Instruments.load(size, probed=size == "full")

    @cache
    def captioner(name: str) -> HuggingFaceCaptioner:
        return load_captioner(name, size=size).eval()

    found: dict[str, list[dict[str, float]]] = {name: [] for name in ROWS}
    for seed in SEEDS:
        start = f"{START}-seed{seed}" if seed else START
        for name, row in ROWS.items():
            key = key_of_models(["world", start, *MODELS], size, asdict(row), DEFAULTS, MAX_NEW_TOKENS)
            make = partial(_measured, row, partial(captioner, start), tools)
            found[name].append(notes.read(f"{name} seed {seed}", key, make))
    return found


def _measured(row: Row, captioner: Callable[[], HuggingFaceCaptioner], tools: Callable[[], Instruments]) -> Any:
    return measure(row, captioner(), tools())


if __name__ == "__main__":
    main()
