"""Diversity of published captioners and human captions, and what the doctor finds in them; writes docs/results/captioners.md.

    python benchmarks/captioners.py DATA [--docs docs/results/captioners.md]

DATA has ``results/`` with captions of published captioners (M2 Transformer and BLIP-2 on Karpathy's test split; systems of van
Miltenburg et al. 2018 on val2014), ``judgements/`` and, as they are there, ``coco-captions/``, ``nlvr/`` and ``video/``.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import tellapart
from tellapart.evaluation.caption_doctor import check_captions
from tellapart.metrics.diversity import coverage, div_n, mbleu_corpus, type_token_ratio
from tellapart.metrics.ptb import ptb_tokenize

PUBLISHED = {
    "Dai-et-al-2017": (1922, 0.23, 0.55),
    "Liu-et-al-2017": (598, 0.17, 0.38),
    "Shetty-et-al-2017": (2611, 0.24, 0.54),
    "Vinyals-et-al-2017": (953, 0.21, 0.43),
    "Wu-et-al-2016": (849, 0.14, 0.32),
}
"""Types, TTR1 and TTR2 as in the paper's table."""

Captions = list[str]
References = list[list[str]] | None


def results(path: Path) -> dict[int, str]:
    return {row["image_id"]: row["caption"] for row in json.loads(path.read_text())}


def annotations(path: Path) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    for row in json.loads(path.read_text())["annotations"]:
        found[row["image_id"]].append(row["caption"])
    return dict(found)


def captioners(data: Path) -> Iterator[tuple[str, Captions, References]]:
    """Name, captions and references of each captioner on the images of Karpathy's test split."""
    references = annotations(data / "results/karpathy-test/references.json")
    files = [*data.glob("results/karpathy-test/*.json"), *data.glob("results/val2014-systems/*.json")]
    for path in sorted(files):
        if path.stem in ("references", "simple_stats") or path.stem.startswith("expected"):
            continue
        said = results(path)
        yield path.stem, [said[image] for image in references], list(references.values())
    if (data / "video/tgif/results_lstm_cnn_finetune.json").is_file():
        said = results(data / "video/tgif/results_lstm_cnn_finetune.json")
        yield "TGIF, LSTM (11,000 clips)", list(said.values()), None


def people(data: Path) -> Iterator[tuple[str, Captions, References]]:
    """Human captions: each column of a set against the other columns."""
    sets = {"COCO, Karpathy test": annotations(data / "results/karpathy-test/references.json")}
    flickr = data / "judgements/flickr8k-cf/flickr8k_captions.json"
    if flickr.is_file():
        sets["Flickr8k"] = {name: texts for name, texts in json.loads(flickr.read_text()).items() if len(texts) == 5}
    for name, images in sets.items():
        for column in range(5):
            own = [texts[column] for texts in images.values()]
            yield f"{name}, {column + 1}", own, [t[:column] + t[column + 1 : 5] for t in images.values()]
    for name, file in (("NLVR, train", "nlvr/captions_train.json"), ("MSVD, test", "video/msvd/captions_test.json")):
        if (data / file).is_file():
            images = annotations(data / file)
            first = {key: texts for key, texts in images.items() if texts}
            others = [texts[1:] for texts in first.values()]
            yield name, [texts[0] for texts in first.values()], others if all(others) else None


def findings(captions: Captions, references: References) -> tuple[str, str]:
    """Names of the rules broken: against references, and against COCO captions."""
    told = []
    for known in (references, None):
        checked = check_captions(captions, known)
        told.append(", ".join(verdict.rule.name for verdict in checked.verdicts) or "nothing")
    return ("" if references is None else told[0]), told[1]


def figure_cells(captions: Captions) -> list[str]:
    f = check_captions(captions).figures
    return [
        f"{len(captions):,}",
        f"{f['types']:.0f}",
        f"{f['types_in_1000']:.0f}",
        f"{f['distinct_in_1000']:.1f}",
        f"{f['most_common_in_1000']:.2f}",
        f"{f['bad_endings']:.1f}",
        f"{f['repetition']:.2f}",
        f"{f['mean_length']:.1f}",
    ]


def table(heading: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows)]


HEADING = ["captions of", "number", "types", "types in 1,000", "distinct in 1,000, %", "most common in 1,000, %",
           "bad endings, %", "repetition, %", "words", "against references", "against COCO captions"]  # fmt: skip


def rows_of(sets: Iterator[tuple[str, Captions, References]]) -> list[list[str]]:
    return [[name, *figure_cells(own), *findings(own, references)] for name, own, references in sets]


def ratios(data: Path) -> list[list[str]]:
    """Types and type-token ratios of all 40,504 captions, counted as the paper does: a full stop is a word."""
    rows = []
    for name, (types, first, second) in PUBLISHED.items():
        path = data / f"results/val2014-systems/{name}.json"
        if not path.is_file():
            continue
        said = list(results(path).values())
        words = [" ".join(text.lower().replace(".", " . ").split()) for text in said]
        ours = check_captions(said).figures
        with_stop = (type_token_ratio(words), type_token_ratio(words, 2))
        counted = len({word for text in words for word in text.split()})
        rows.append([name, f"{types:,}", f"{counted:,}", f"{ours['types']:,.0f}", f"{first:.2f}", f"{with_stop[0]:.3f}",
                     f"{ours['TTR1']:.3f}", f"{second:.2f}", f"{with_stop[1]:.3f}", f"{ours['TTR2']:.3f}"])  # fmt: skip
    return rows


def metrics_of(captions: Captions, references: list[list[str]]) -> list[str]:
    """Metrics against the references, Self-BLEU, and the share of the references' words that the captions use."""
    said, targets = dict(enumerate(captions)), dict(enumerate(references))
    metrics = tellapart.score(said, targets, meteor=True).metrics
    words = {word for text in ptb_tokenize(t for own in references for t in own) for word in text.split()}
    covered = coverage(ptb_tokenize(captions), words)
    keys = ("Bleu_1", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr")
    return [*(f"{100 * metrics[key]:.2f}" for key in keys), f"{metrics['Self-BLEU']:.1f}", f"{100 * covered:.1f}"]


def scored(data: Path) -> Iterator[tuple[str, Captions, list[list[str]]]]:
    """The captioners, and the first human caption."""
    for name, own, references in [*captioners(data), next(people(data))]:
        if references is not None:
            yield name, own, references


def several(data: Path) -> list[list[str]]:
    """Div-1, Div-2 and mBLEU-4 of the five human captions of each image."""
    sets: dict[str, list[list[str]]] = {}
    for name, own, _ in people(data):
        if name[-2:] in (" 1", " 2", " 3", " 4", " 5"):
            sets.setdefault(name[:-3], []).append(ptb_tokenize(own))
    rows = []
    for name, columns in sets.items():
        images = [list(own) for own in zip(*columns, strict=True)]
        figures = (div_n(images, 1), div_n(images, 2), mbleu_corpus(images)[-1])
        rows.append([name, *(f"{value:.3f}" for value in figures)])
    return rows


def page(data: Path) -> str:
    lines = [
        "# Published captioners under the doctor",
        "",
        "Made by `benchmarks/captioners.py`. [What the rules are](../how-to/doctor.md#captions-in-a-file).",
        "",
        "## Captioners",
        "",
        "On the 5,000 images of Karpathy's test split; the last two columns are what `tellapart doctor` finds with and without",
        "`--references`.",
        "",
        *table(HEADING, rows_of(captioners(data))),
        "",
        "## Metrics of the captioners",
        "",
        "Against all references; of one human caption against the other four. M2 Transformer as published",
        "(Cornia et al. 2020): 80.8, 39.1, 29.2, 58.6, 131.2. Coverage: percent of the references' words. Novelty needs",
        "the training captions, which were not at hand.",
        "",
        *table(
            ["captions of", "BLEU-1", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "Self-BLEU", "coverage"],
            [[name, *metrics_of(own, references)] for name, own, references in scored(data)],
        ),
        "",
        "Five human captions per image:",
        "",
        *table(["captions of", "Div-1", "Div-2", "mBLEU-4"], several(data)),
        "",
        "## People",
        "",
        "Human captions, one column of a set against the others. Every finding here is a false alarm.",
        "",
        *table(HEADING, rows_of(people(data))),
        "",
        "## Types and type-token ratios",
        "",
        "All 40,504 captions of val2014, in the files' order. *paper*: van Miltenburg, Elliott and Vossen 2018. *as paper*: our",
        "count with a full stop as a word. *ours*: without punctuation, as `tellapart score --all_metrics` and",
        "`tellapart doctor` count.",
        "",
        *table(
            [
                "system",
                "types, paper",
                "as paper",
                "ours",
                "TTR1, paper",
                "as paper",
                "ours",
                "TTR2, paper",
                "as paper",
                "ours",
            ],
            ratios(data),
        ),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--docs", type=Path)
    chosen = parser.parse_args()
    written = page(chosen.data)
    if chosen.docs is not None:
        chosen.docs.write_text(written)
    print(written)
