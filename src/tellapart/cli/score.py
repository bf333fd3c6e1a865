"""``tellapart score``: measure a file of captions against references, or a captioner on images."""

from __future__ import annotations

from collections.abc import Sequence

from tellapart.cli.command import options_of
from tellapart.cli.console import say, table
from tellapart.cli.score_options import ScoreOptions
from tellapart.errors import UsageError


def run(argv: Sequence[str]) -> int:
    """Measure what the word names, print the figures, and keep them."""
    chosen = options_of(
        argv,
        ScoreOptions,
        usage="score CAPTIONS --references ANNOTATIONS | score RUN",
        description="Measure captions against references (text only, no model), or a captioner on images: a run, a model "
        "folder, a Hugging Face id, world/xe.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if options.protocols:
        say(protocols())
        return 0
    if len(words) != 1:
        raise UsageError(f"{len(words)} captioners were named: give one file of captions, run or model.")
    options.check()
    if options.references is not None:
        from tellapart.cli.score_given import score_given

        return score_given(words[0], options)
    from tellapart.cli.score_captioner import score_captioner

    return score_captioner(words[0], options)


def protocols() -> str:
    """The named protocols as a table."""
    from tellapart.evaluation.protocol import PROTOCOLS

    rows = [["protocol", "images", "references each", "split", "decoding", "what"]]
    for name, found in PROTOCOLS.items():
        decoding = f"beam {found.num_beams}, at most {found.max_new_tokens} tokens"
        rows.append([name, f"{found.images:,}", f"{found.references} or more", found.split, decoding, found.title])
    return table(rows)
