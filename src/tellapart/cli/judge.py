"""``tellapart judge``: people compare the captions of two runs on a local page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tellapart.cli.command import options_of, refuse_unused
from tellapart.cli.console import note, say
from tellapart.errors import UsageError
from tellapart.recipe.measured import DataOptions

if TYPE_CHECKING:
    from tellapart.evaluation.judge.study import Study


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(DataOptions):
    """Options of ``tellapart judge``; what is null of the data comes from the first run's own recipe.

    Args:
        images: the images that the runs caption, as --data; with --data, the folder that its paths are relative to.
        output_dir: folder of the study: its items and pictures, the answers, the results. An unfinished study in it goes
            on.
        protocol: which evaluation to take where a run has several: the name of its folder under ``eval``.
        question: what is asked: which_image (which of two images does a caption describe), reads_better (which of the two
            runs' captions), or both.
        num_items: images drawn for each question; which_image asks about each run's caption of an image.
        neighbours: file of tellapart mine: the other image is the nearest neighbour.
        listener: CLIP or SigLIP model by which nearest neighbours are mined; without it and neighbours, the other image is
            any other one.
        seed: of the items, their order and their sides.
        port: of this machine where the page is served; 0 takes a free one.
        results: folder of a study: write and print what its answers say, and serve nothing.
    """

    output_dir: Path = Path("runs/judge")
    protocol: str | None = None
    question: Literal["both", "which_image", "reads_better"] = "both"
    num_items: int = 50
    neighbours: Path | None = None
    listener: str | None = None
    seed: int = 0
    port: int = 8000
    results: Path | None = None


def run(argv: Sequence[str]) -> int:
    """Make or open the study and serve it until interrupted, or print results."""
    chosen = options_of(
        argv,
        JudgeOptions,
        usage="judge RUN_A RUN_B --images DATA | judge STUDY | judge --results STUDY",
        description="Serve a page on this machine that asks people which of two images a caption describes, and which of two "
        "runs' captions reads better. Answers are kept in the study's folder.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if options.results is not None:
        if words:
            raise UsageError(
                f"--results is {options.results}, but {words[0]} is named as well: give the one or the other."
            )
        refuse_unused(options, ("results",), "beside --results: leave it out")
        return results(options.results)
    _check(words, options)
    from tellapart.evaluation.judge.serve import listen, require_server, serve
    from tellapart.evaluation.judge.study import Study

    require_server()
    with listen(options.port) as listening:  # before a study is made, which may take a while
        if len(words) == 1:
            study = Study.load(Path(words[0]))
        else:
            from tellapart.cli.judge_study import make_or_open

            study = make_or_open(words, options)
        study.require_pictures()
        _announce(study, listening.getsockname()[1])
        try:
            serve(study, listening)
        except KeyboardInterrupt:
            note(f"stopped; the answers are kept. For what they say: tellapart judge --results {study.folder}")
    return 0


def _check(words: Sequence[str], options: JudgeOptions) -> None:
    if len(words) not in (1, 2):
        raise UsageError(f"{len(words)} runs were named: give two, or the folder of one study to go on with.")
    if len(words) == 1:
        refuse_unused(options, ("port",), f"to the study in {words[0]}, which is made: leave it out, or name two runs")
    if options.num_items < 1:
        raise UsageError(f"--num_items is {options.num_items}: ask about at least 1 image.")
    if options.seed < 0:
        raise UsageError(f"--seed is {options.seed}: give 0 or more.")
    if not 0 <= options.port < 65536:
        raise UsageError(f"--port is {options.port}: give one up to 65535, or 0 for any free one.")
    if options.neighbours is not None and options.listener is not None:
        raise UsageError("--neighbours and --listener both say which image is near: give one of them.")


def _announce(study: Study, port: int) -> None:
    note(f"{len(study.items)} items; the study is in {study.folder}. Ctrl-C stops; the same command goes on.")
    say(f"http://127.0.0.1:{port}/")
    sys.stdout.flush()  # whoever reads the address from a pipe waits for it


def results(folder: Path) -> int:
    """Write ``results.json``, ``results.md`` and ``answers.csv`` into a study, and print the second.

    Raises:
        UsageError: it holds no study.
    """
    from tellapart.evaluation.judge.answers import Answers
    from tellapart.evaluation.judge.results import summarize
    from tellapart.evaluation.judge.study import ANSWERS_FILE, Study
    from tellapart.evaluation.judge.tables import to_csv, to_markdown
    from tellapart.files import write_json, write_text

    study = Study.load(folder)
    kept = Answers(folder / ANSWERS_FILE)
    given = kept.all()
    kept.close()
    summary = summarize(study, given)
    page = to_markdown(summary)
    write_json(folder / "results.json", summary)
    write_text(folder / "results.md", page)
    write_text(folder / "answers.csv", to_csv(study, given))
    say(page.rstrip())
    note(f"written to {folder}: results.json, results.md and answers.csv ({len(given)} answers)")
    return 0
