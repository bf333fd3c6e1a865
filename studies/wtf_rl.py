"""The page on WTF-RL: the seven rows of the paper's table, and what makes its reward stable."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim, Seeds
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study


def claims(study: Study) -> Iterator[Claim]:
    """The published orderings (methods, Table 1), on test with beam 5, which the paper decodes with."""

    def pair(ours: str, theirs: str, key: str) -> tuple[Seeds, Seeds]:
        first, second = (study.read(row, key, decoding="beam 5") for row in (ours, theirs))
        return first, second

    yield _ordered("wtf retrieves better than xe.", *pair("wtf", "xe", "listener_R@1"))
    kept, start = pair("wtf", "xe", "CIDEr")  # holds unless every seed of xe lies above
    yield Claim("wtf keeps xe's CIDEr.", not start.above(kept), f"{kept} against {start}.")
    for row in ("rl", "wtf_rl"):
        text = f"{row} retrieves far better than wtf (10 points or more)."
        yield _ordered(text, *pair(row, "wtf", "listener_R@1"), by=10)
    for ours, theirs in (("wtf_rl", "rl"), ("rl", "scst_discriminator"), ("rl", "scst_grammar")):
        yield _ordered(f"{ours} has a higher CIDEr than {theirs}.", *pair(ours, theirs, "CIDEr"))
    yield _ordered(
        "Two ways beat one on text-to-image recall (rl over rl_unidirectional).",
        *pair("rl", "rl_unidirectional", "listener_R@1"),
    )
    yield _ordered(
        "... and on image-to-text recall, where the paper finds less.",
        *pair("rl", "rl_unidirectional", "listener_i2t_R@1"),
    )


def _ordered(text: str, ours: Seeds, theirs: Seeds, *, by: float = 0.0) -> Claim:
    return Claim(text, ours.above(theirs) and ours.mean - theirs.mean >= by, f"{ours} against {theirs}.")


if __name__ == "__main__":
    run(__file__, claims=claims)
