"""``tellapart score``: measure a file of captions against references, or a captioner on images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.cli.command import options_of, require_alone, require_another_file, require_own
from tellapart.cli.console import note, result_console, say, say_json, table
from tellapart.cli.unreadable import leave_out
from tellapart.errors import UsageError, count_of
from tellapart.files import require_writable
from tellapart.recipe.score_options import ScoreOptions, further_measures

if TYPE_CHECKING:
    from tellapart.evaluation.given import Given
    from tellapart.evaluation.results import EvaluationResult


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
    require_alone("score", "start it once")
    if options.protocols:
        say(protocols())
        return 0
    if len(words) != 1:
        raise UsageError(f"{len(words)} captioners were named: give one file of captions, run or model.")
    options.check()
    if options.references is not None:
        return score_given(words[0], options)

    return score_captioner(words[0], options)


def protocols() -> str:
    """The named protocols as a table."""
    from tellapart.evaluation.protocol import PROTOCOLS

    rows = [["protocol", "images", "references each", "split", "decoding", "what"]]
    for name, found in PROTOCOLS.items():
        decoding = f"beam {found.num_beams}, at most {found.max_new_tokens} tokens"
        rows.append([name, f"{found.images:,}", f"{found.references} or more", found.split, decoding, found.title])
    return table(rows)


# ``tellapart score CAPTIONS --references ANNOTATIONS``: text against text, without images, models or torch.

IDS_FILE = "ids.json"
ORDER = (
    "Bleu_1",
    "Bleu_2",
    "Bleu_3",
    "Bleu_4",
    "METEOR",
    "ROUGE_L",
    "CIDEr",
    "SPICE",
    "Self-BLEU",
    "distinct_captions",
)
"""Columns of the table, the number of words among them; the rest with ``--all_metrics``."""


def score_given(word: str, options: ScoreOptions) -> int:
    """Measure, print, and write ``metrics.json``, ``per_image.parquet``, ``captions_results.json`` and ``ids.json``.

    Raises:
        UsageError: something cannot be read, or images do not fit.
    """
    from tellapart.evaluation.given import (
        Given,
        as_frequencies,
        as_references,
        as_results,
        under_protocol,
        with_intervals,
    )
    from tellapart.evaluation.protocol import named_protocol
    from tellapart.recipe.questions import question_measure

    if options.output_dir is not None:
        from tellapart.data.results import WRITTEN
        from tellapart.evaluation.results import FILES, METRICS_FILE, EvaluationResult

        inputs = (word, Path(word) / WRITTEN, options.references, options.cider_df, options.questions)
        read = [str(name) for name in inputs if name is not None]
        for name in (*FILES, IDS_FILE):
            require_another_file(read, options.output_dir / name, option="--output_dir")
        metrics = options.output_dir / METRICS_FILE
        require_own(metrics, lambda file: EvaluationResult.load(file.parent), "evaluation", option="--output_dir")
    prefer = named_protocol(options.protocol).split if options.protocol else None
    results = as_results(word, caption_column=options.caption_column)
    data = as_references(options.references or "", split=options.split, prefer=prefer, format=options.format)
    frequencies, described = as_frequencies(options.cider_df, options.cider_df_images)
    given = Given.of(results, data)
    _tell(given, options)
    measures = further_measures(options, data.references)
    measures += question_measure(
        options.reader, options.questions, data, data=str(options.references), split=options.split or "", size="full"
    )
    result = given.measure(name=options.name, frequencies=frequencies, described=described, measures=measures)
    if options.protocol:
        result = under_protocol(result, given, options.protocol, strict=options.on_mismatch == "fail")
        if result.protocol.standard.startswith("NOT "):
            note(f"note: this is {result.protocol.standard}.")
    if options.bootstrap:
        result = with_intervals(result, samples=options.bootstrap, seed=options.seed)
    if options.output_dir is not None:
        note(f"kept in {result.save_in(options.output_dir)}")
    _print(result, options)
    return 0


def _tell(given: Given, options: ScoreOptions) -> None:
    """Say what of the captions does not fit, and write down all of it; raise unless it may be left out."""
    matched, folder = given.matched, options.output_dir
    listed = ""
    if folder is not None:
        from tellapart.files import write_json

        write_json(folder / IDS_FILE, {"by_file_name": matched.by_name, **matched.lists()})
        listed = f" (all ids are in {folder / IDS_FILE})"
    if options.on_mismatch == "fail":
        given.require_fit(f"--on_mismatch skip{listed}")
    if not matched.fits:
        note(f"WARNING: {matched.left_out()}; {count_of(len(matched.captions), 'image')} scored{listed}.")
    if matched.by_name:
        note("note: captions are matched to images by the names of their files.")
    if given.results.several:
        note(f"note: of {count_of(given.results.several, 'image')} with several captions the first is scored.")
    empty = given.details()["empty_captions"]
    if empty:
        note(f"note: {count_of(empty, 'caption')} empty, which counts as saying nothing.")


def _print(result: EvaluationResult, options: ScoreOptions) -> None:
    if options.json:
        say_json(result.to_json(), indent=2)
        return
    from tellapart.evaluation.columns import describe

    left_out = result.details.get("left_out", {})
    further = (
        "QA",
        "QA_floor",
        "perplexity",
        "grammatical_head",
        "CHAIRi",
        "CHAIRs",
        "object_recall",
        "novel_captions",
        "mean_length",
    )
    shown = [key for key in (*ORDER, *further) if key in result.metrics or key in left_out]
    if options.all_metrics:
        shown += [key for key in result.metrics if key not in shown]
    rows = [["metric", "value", "95 % interval", "printed as"]]
    for key in shown:
        column = describe(key)
        ends = result.intervals.get(key)
        interval = f"[{column.text(ends[0])}, {column.text(ends[1])}]" if ends else ""
        scale = f"x {column.scale:g}" if column.scale != 1 else "%" if "%" in column.label else ""
        scale += ", CIDEr-D of 0 to 10" if key == "CIDEr" else ""
        rows.append([column.label.removesuffix(" %"), column.text(result.metrics.get(key)), interval, scale])
    say(table(rows))
    say("")
    for sentence in left_out.values():
        say(sentence)
    say(f"Measured: {result.protocol.line()}")


def score_captioner(word: str, options: ScoreOptions) -> int:
    """Measure, print, and keep the result with the run."""
    from tellapart.evaluation.compare import compare_results
    from tellapart.evaluation.results import with_choice
    from tellapart.recipe.runs import made
    from tellapart.recipe.score import UNREADABLE, measure, start_of

    run = Path(word) if made(Path(word)) else None
    start = start_of(word) if options.start else ""  # refused now, not after the measurement
    if (keeps := options.output_dir or run) is not None:
        require_writable(keeps)
    result = _measured(measure(word, options), options)
    if run is not None:
        result = with_choice(result, run)
    for sentence in result.details.get("left_out", {}).values():
        note(f"note: {sentence}")
    if keeps is not None:
        note(f"kept in {result.save(keeps)}")
    shown = [result]
    if start and keeps is not None:
        shown = [_start(word, start, keeps, options), result]
    if options.json:
        say_json(result.to_json(), indent=2)
    else:
        compare_results(shown).print(result_console(), every_metric=options.all_metrics)
        _print_lengths(result)
    unreadable = result.details.get(UNREADABLE, {})
    return leave_out(unreadable.values(), len(result.captions) + len(unreadable), strict=options.strict)


def _print_lengths(result: EvaluationResult) -> None:
    """Asked against given length, one row per asked length."""
    lengths = result.details.get("lengths", ())
    if not lengths:
        return
    rows = [["asked words", "images", "given words", "asked length %", "words off"]]
    for one in lengths:
        figures = (f"{one['words']:.1f}", f"{one['asked_length_kept']:.1f}", f"{one['asked_length_distance']:.2f}")
        rows.append([one["asked"], f"{one['images']:,}", *figures])
    say("")
    say(table(rows))


def _measured(result: EvaluationResult, options: ScoreOptions) -> EvaluationResult:
    """The result with its intervals."""
    from tellapart.evaluation.given import with_intervals

    return with_intervals(result, samples=options.bootstrap, seed=options.seed) if options.bootstrap else result


def _start(word: str, start: str, folder: Path, options: ScoreOptions) -> EvaluationResult:
    """Measure the model that a run began from, and keep it where compare and report find it."""
    from tellapart.evaluation.report.runs import START_FOLDER, START_NAME
    from tellapart.recipe.runs import made
    from tellapart.recipe.score import measure

    run = made(Path(word))
    own = (
        None if run is None else replace(run, own_listener=None)
    )  # the run's own listener was trained with its captioner
    result = _measured(replace(measure(start, options, run=own), name=START_NAME), options)
    note(f"kept in {result.save(folder / START_FOLDER)}")
    return result
