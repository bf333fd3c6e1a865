"""The page that tells how far listeners agree with the world's exact quality."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tellapart.evaluation.bootstrap import percentile_interval
from tellapart.experiments.listener_correlation import COEFFICIENTS, PAC, PLAIN, START, Found
from tellapart.experiments.quality_captions import BEST, SPOILT
from tellapart.files import write_text

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
        "## Correlation with quality, all captions of test\n\n" + _correlations(found),
        "## Differences\n\n" + _differences(found),
        "## Which of two captions of an image\n\n" + _preferences(found),
        "## The captions\n\n" + _captions(found),
        "## What the listeners can tell apart (the probe, on val, %)\n\n" + _probes(found),
    ]
    write_text(path, "\n\n".join(sections) + "\n")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown of rows, the first one being the heading."""
    first, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (first, ["---"] * len(first), *rest))


def _head(found: Found) -> str:
    judged = found.judged
    return f"""# How far CLIP-S and PAC-S agree with the world's exact quality

Made by `python -m tellapart.experiments.listener_correlation`; how to read it is in
[world-pac-analysis.md](world-pac-analysis.md).

{len(judged.kinds)} captions of each of the {len(judged.ids)} test images ({found.size} world), one of each kind below.
The quality of a caption is truthful x detail: 0 unless it parses and everything in it is true; then it is the share of the
scene's attributes that it tells (0 again for "two shapes"). `{START}` scores by CLIP-S (w = 2.5), `{PAC}` by PAC-S (w = 2):
ranks do not depend on w. *{PLAIN}* is trained as `{PAC}` is, on the same images, with the term of
generated captions left out. Coefficients are printed times 100; brackets are 95 % percentile intervals of {found.samples}
draws of the test images, the same draws for all, so that differences are paired. *tau-b within images* counts pairs of
captions of one image only; *tau-b without xe's* leaves out the captions of `world/xe`. Seeds redraw the training that goes
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
    return table(rows)


def _differences(found: Found) -> str:
    rows = [["difference", "seed", *COEFFICIENTS]]
    start = found.scorers[START]
    for one, other in DIFFERENCES:
        for seed, own in found.seeds.items():
            pair = {START: start, **own}
            values = [pair[one].draws[key] - pair[other].draws[key] for key in COEFFICIENTS]
            rows.append([f"{one} - {other}", str(seed), *(_text(each, signed=True) for each in values)])
    return table(rows)


def _preferences(found: Found) -> str:
    """How often the better caption scores higher."""
    about = f"""Share of images (%) whose *{BEST}* scores higher than the same caption spoilt, or another one, among the images
where it is the better one."""
    rows = [["held against", *found.scorers, f"{PAC} - {START}"]]
    for kind in SPOILT:
        draws = [own.draws[f"over {kind}"] for own in found.scorers.values()]
        difference = found.scorers[PAC].draws[f"over {kind}"] - found.scorers[START].draws[f"over {kind}"]
        rows.append([kind, *(_text(each, digits=1) for each in draws), _text(difference, digits=1, signed=True)])
    return f"{about}\n\n{table(rows)}"


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
    return table(rows)


def _probes(found: Found) -> str:
    asked = next(iter(found.scorers.values())).probe
    rows = [["asked", *found.scorers]]
    rows += [[name, *(f"{own.probe[name]:.1f}" for own in found.scorers.values())] for name in asked]
    return table(rows)
