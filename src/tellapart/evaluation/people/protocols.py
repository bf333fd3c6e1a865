"""How each set of judgements is measured in the literature, and the values that were published.

Published values are times 100. CLIPScore and RefCLIPScore are those of CLIP ViT-B/32, PAC-S and RefPAC-S those of the ViT-B/32
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tellapart.data.judgements.layouts import CAPARENA, COMPOSITE, CROWD, EXPERT, SUGARCREPE, THUMB
from tellapart.data.judgements.records import Rated

Statistic = Literal["tau_b", "tau_c", "pearson", "accuracy"]
TOLERANCE = 0.1
"""The largest difference from a published value, times 100, that is not marked."""

HUMAN = "Human"
"""What THumB calls the system that wrote human captions."""


def everyone(row: Rated) -> bool:
    """All captions."""
    return True


def machines(row: Rated) -> bool:
    """Captions that no person wrote."""
    return row.system != HUMAN


@dataclass(frozen=True)
class Protocol:
    """One column of figures.

    Args:
        name: of the set, and what of it is measured.
        statistic: tau_b and tau_c (Kendall's and Stuart's), pearson, or the share of pairs ordered as people do.
        published: metric -> value times 100, as text with the digits that were printed.
        source: of the published values.
        keep: which captions take part.
        rating: what a caption is held against: its ratings, or an aspect of that name.
        about: one sentence.
    """

    name: str
    statistic: Statistic
    published: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    keep: Callable[[Rated], bool] = everyone
    rating: str = ""
    about: str = ""


def off(value: float, published: str) -> bool:
    """Whether a value (times 100) is further from a published one than ``TOLERANCE`` and than its printed digits allow."""
    half_a_unit = 0.5 * 10 ** -len(published.partition(".")[2])
    return abs(value - float(published)) > max(TOLERANCE, half_a_unit) + 1e-9


HESSEL = (
    "Hessel et al. 2021 (CLIPScore), Sarto et al. 2023 and 2025 (PAC-S, PAC-S++), Matsuda et al. 2024, Wada et al. 2024"
)

_RATED: dict[str, tuple[Protocol, ...]] = {
    EXPERT: (
        Protocol(
            EXPERT,
            "tau_c",
            {
                "Bleu_1": "32.3", "Bleu_4": "30.8", "ROUGE_L": "32.3", "METEOR": "41.8", "CIDEr": "43.9", "SPICE": "44.9",
                "CLIPScore": "51.2", "RefCLIPScore": "53.0", "PAC-S": "54.3", "RefPAC-S": "55.9",
            },
            HESSEL,
            about="Three experts rate 5,664 pairs from 1 to 4; each rating is one judgement, the score of its pair repeated.",
        ),
    ),
    CROWD: (
        Protocol(
            CROWD,
            "tau_b",
            {
                "Bleu_1": "17.9", "Bleu_4": "16.9", "ROUGE_L": "19.9", "METEOR": "22.2", "CIDEr": "24.6", "SPICE": "24.4",
                "CLIPScore": "34.4", "RefCLIPScore": "36.4", "PAC-S": "36.0", "RefPAC-S": "37.6",
            },
            HESSEL,
            about="Share of at least three crowd workers who say that the caption is of the image.",
        ),
    ),
    COMPOSITE: (
        Protocol(
            COMPOSITE,
            "tau_c",
            {
                "Bleu_1": "31.3", "Bleu_4": "30.6", "ROUGE_L": "32.4", "METEOR": "38.9", "CIDEr": "37.7", "SPICE": "40.3",
                "CLIPScore": "53.8", "RefCLIPScore": "55.4", "PAC-S": "55.7", "RefPAC-S": "57.3",
            },
            HESSEL,
            about="Crowd workers rate correctness from 1 to 5 (Aditya et al. 2015).",
        ),
    ),
    "polaris": (
        Protocol(
            "polaris",
            "tau_c",
            {
                "Bleu_4": "46.3", "ROUGE_L": "46.3", "METEOR": "51.2", "CIDEr": "52.1", "SPICE": "51.0", "CLIPScore": "52.3",
                "RefCLIPScore": "52.3", "PAC-S": "52.5", "RefPAC-S": "56.0",
            },
            "Wada et al. 2024 (Polos), Table 1",
            about="Ratings of captions by modern captioners, test split.",
        ),
    ),
    "nebula": (
        Protocol(
            "nebula",
            "tau_c",
            {
                "Bleu_4": "44.1", "ROUGE_L": "43.4", "METEOR": "47.6", "CIDEr": "48.8", "SPICE": "47.4", "CLIPScore": "47.9",
                "RefCLIPScore": "46.9", "PAC-S": "48.3", "RefPAC-S": "50.6",
            },
            "Matsuda et al. 2024 (DENEB), and EXPERT (arXiv 2512.21582), Table 1",
            about="Ratings of captions by modern captioners, test split.",
        ),
    ),
    THUMB: tuple(
        Protocol(
            f"{THUMB} {rating or 'total'}, {who}",
            "pearson",
            {} if rating else published,
            "" if rating else "Kasai et al. 2022, Table 3, two digits, from memory",
            keep,
            rating,
            about="Rubric by precision, recall and language of four captioners"
            + (" and human captions." if keep is everyone else "."),
        )
        for who, keep, published in (
            ("without Human", machines, {"ROUGE_L": "31", "CIDEr": "33"}),
            ("with Human", everyone, {"ROUGE_L": "19", "CIDEr": "22"}),
        )
        for rating in ("", "P", "R")
    ),
}  # fmt: skip
"""Set of ratings -> its protocols."""

PAIRS = {
    SUGARCREPE: "A true caption against one with one thing changed; 50 is chance for a metric without ties.",
    CAPARENA: "Long captions of two models; battles with the human caption and ties are left out.",
}
"""Set of preferences -> one sentence."""


def rated_protocols(name: str) -> tuple[Protocol, ...]:
    """Those of a set of ratings; tau_c of any other, and the order within images of sets with several captions of an image."""
    return _RATED.get(name, (Protocol(name, "tau_c", about="Ratings of captions."),))
