"""The card itself, from what a run's folder holds."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from tellapart.data.formats.hub import hub_name
from tellapart.errors import UsageError
from tellapart.evaluation.alarms import Alarm
from tellapart.evaluation.card.citations import citations
from tellapart.evaluation.card.loading import is_adapter, library, loading_code
from tellapart.evaluation.columns import PART_PREFIXES, describe, main_columns
from tellapart.evaluation.compare import compare_results
from tellapart.evaluation.report.record import Record, mix, read_record
from tellapart.evaluation.report.runs import START_FOLDER, Curve, RunView, read_curves, read_run
from tellapart.evaluation.results import METRICS_FILE, EvaluationResult
from tellapart.files import trained_part, write_text
from tellapart.objectives import METHODS
from tellapart.run_files import LOG_FILE

# What is known to be wrong with a captioner, in words.

LIMITS: dict[str, tuple[Callable[[float], bool], str]] = {
    "grammatical": (lambda v: v < 99, "{} % of its captions can be read by the data's grammar."),
    "truthful": (lambda v: v < 95, "{} % of its captions are grammatical and true of their image."),
    "hallucinated": (lambda v: v > 1, "{} % of the attributes it names are not in the image."),
    "CHAIRs": (lambda v: v > 1, "{} % of its captions mention an object that the image lacks."),
    "unfinished": (lambda v: v > 1, "{} % of its captions are cut at the longest length."),
    "bad_endings": (lambda v: v > 1, "{} % of its captions stop on a word like 'a' or 'of'."),
    "repetition": (lambda v: v > 10, "{} % of the pairs of words in a caption repeat an earlier pair of it."),
    "most_common_caption": (lambda v: v > 5, "Its most frequent caption is given to {} % of the images."),
    "distinct_captions": (lambda v: v < 80, "{} % of its captions differ from those of all other images."),
    "openers": (lambda v: v > 5, "{} % of its captions begin with words like 'a picture of'."),
}
"""Metric -> when it is worth a sentence, and the sentence."""


def failures(
    metrics: Mapping[str, float], before: Mapping[str, float] | None, alarms: Sequence[Alarm]
) -> tuple[list[str], list[str]]:
    """``(of the captioner, of its training)``, one sentence each.

    Args:
        metrics: of the captioner.
        before: of the model it began from.
        alarms: of the training's log.
    """
    told = []
    for key, (worth, sentence) in LIMITS.items():
        if key in metrics and worth(metrics[key]):
            column, text = describe(key), sentence.format(describe(key).text(metrics[key]))
            if before is not None and key in before:
                text = f"{text[:-1]} (before training: {column.text(before[key])})."
            told.append(text)
    return told, [f"From step {alarm.step}: {alarm.text}" for alarm in alarms]


def looked_at(metrics: Mapping[str, float]) -> str:
    """The measures of ``LIMITS`` that were taken, in words."""
    return ", ".join(describe(key).label for key in LIMITS if key in metrics)


# The YAML header of a card: what the hub lists a model under.

HUB_METRICS = {
    "CIDEr": "cider",
    "Bleu_4": "bleu",
    "METEOR": "meteor",
    "SPICE": "spice",
    "ROUGE_L": "rouge",
    "perplexity": "perplexity",
}
"""Our names -> those of the hub's metrics; others keep ours."""

OURS = ("world/", "new/", "runs/")
"""Prefixes of model names that are not models of the hub: stages of the world, fresh ones, runs of recipes that are not here."""

_CHAIN = 10


def base_model(record: Record | None) -> str | None:
    """The hub id of the model that a run, or the run it began from, started with; None where it is none of the hub's."""
    name = _began_from(record)
    for _ in range(_CHAIN):
        if name is None:
            return None
        folder = Path(name).expanduser()
        if not folder.exists():
            return None if name.startswith(OURS) else hub_name(name)
        name = _began_from(read_record(folder))
    return None


def _began_from(record: Record | None) -> str | None:
    section = record.recipe.get("captioner") if record is not None else None
    return section.get("model_name_or_path") if isinstance(section, dict) else None


def training_data(record: Record | None) -> str | None:
    """The hub id of the training data, or None."""
    section = record.recipe.get("data") if record is not None else None
    path = section.get("path") if isinstance(section, dict) else None
    return hub_name(str(path)) if path else None


def header(name: str, record: Record | None, captioner: Path | None, result: EvaluationResult | None) -> str:
    """The header's YAML, without the lines around it.

    Paths of this machine in a run's record are left out.
    """
    from huggingface_hub import ModelCardData

    base, data = base_model(record), training_data(record)
    tags = ["image-captioning", "tellapart"] + ([record.method] if record is not None and record.method else [])
    found: dict[str, Any] = {
        "library_name": library(captioner) if captioner is not None else "tellapart",
        "pipeline_tag": "image-to-text",
        "tags": tags,
        "base_model": base,
        "datasets": [data] if data else None,
    }
    if base and captioner is not None:
        found["base_model_relation"] = "adapter" if is_adapter(captioner) else "finetune"
    if result is not None:
        columns = main_columns(result.metrics)
        found["metrics"] = [HUB_METRICS.get(column.key, column.key) for column in columns]
        found |= {"model_name": name, "eval_results": _results(result)}
    return ModelCardData(**{key: value for key, value in found.items() if value is not None}).to_yaml()


def _results(result: EvaluationResult) -> list[Any]:
    from huggingface_hub import EvalResult

    slug = re.sub(r"[^a-z0-9]+", "-", result.protocol.data.lower()).strip("-") or "data"
    return [
        EvalResult(
            task_type="image-to-text",
            task_name="image captioning",
            dataset_type=slug,
            dataset_name=result.protocol.data,
            metric_type=HUB_METRICS.get(column.key, column.key),
            metric_name=column.label,
            metric_value=round(result.metrics[column.key] * column.scale, column.digits),
        )
        for column in main_columns(result.metrics)
    ]


CARD_FILE = "README.md"
MARKER = "<!-- Written by tellapart from the run's files, and rewritten with them: remove this line to keep your own text. -->"
SAMPLES = 6


def write_card(
    run: Path,
    *,
    protocol: str | None = None,
    references: Mapping[str, Sequence[str]] | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Path | None:
    """Write ``README.md`` of a run in one rename; returns its path.

    A ``README.md`` that somebody else wrote, or that lost its marker line, stays: then nothing is returned.

    Args:
        run: folder of a training.
        protocol: which evaluation to tell of, where there are several; default: the one that its training made.
        references: image id -> captions of people, for the samples.
        name: hub id that the captioner will be loaded by; default: none yet.
        seed: of the samples and the bootstrap.

    Raises:
        UsageError: the folder is not one of a training, or its evaluation cannot be read.
    """
    path = run / CARD_FILE
    if path.is_file() and not is_ours(path):
        return None
    write_text(path, card_text(run, protocol=protocol, references=references, name=name, seed=seed))
    return path


def is_ours(path: Path) -> bool:
    """Whether a card is there and tellapart may rewrite it."""
    return path.is_file() and MARKER in path.read_text(encoding="utf-8", errors="replace")


def card_text(
    run: Path,
    *,
    protocol: str | None = None,
    references: Mapping[str, Sequence[str]] | None = None,
    name: str | None = None,
    seed: int = 0,
) -> str:
    """The card's text; arguments and errors are those of ``write_card``."""
    record, captioner = read_record(run), trained_part(run, "captioner")
    if record is None and captioner is None:
        raise UsageError(f"{run} is not a run of tellapart train (it has no run.json): name the folder of one.")
    record = record or Record()
    view = _view(run, protocol)
    called = run.resolve().name
    base = base_model(record)
    base_name = base or _base_in_words(record)
    curves = view.curves if view is not None else _curves(run)
    method = METHODS.get(record.method or "")
    bibtex = citations(method.paper if method else "", list(record.rewards))
    return _render(
        header=header(called, record, captioner, view.result if view else None).strip(),
        marker=MARKER,
        name=called,
        about=_about(record, base_name),
        lines=_lines(record, base_name),
        parts=_parts(curves),
        address=name or "THE_FOLDER_OR_HUB_ID",
        code=None if captioner is None else loading_code(captioner, name or "THE_FOLDER_OR_HUB_ID", base),
        adapter=captioner is not None and is_adapter(captioner),
        paper=method.paper if method else "",
        bibtex="\n\n".join(bibtex),
        origin=base_name,
        seed=seed,
        **_measured(view, references or {}, seed),
    )


def _view(run: Path, protocol: str | None) -> RunView | None:
    """The run with its evaluation: the one that was named, else the one that its training made, else the only one."""
    held = [path.parent.name for path in sorted((run / "eval").glob(f"*/{METRICS_FILE}"))]
    if not held and protocol is None:
        return None
    own = [
        path.parent.name for path in (run / START_FOLDER / "eval").glob(f"*/{METRICS_FILE}") if path.parent.name in held
    ]
    return read_run(run, protocol=protocol or next(iter(own), None) or held[0])


def _curves(run: Path) -> dict[str, Curve]:
    log = run / LOG_FILE
    return read_curves(log) if log.is_file() else {}


def _measured(view: RunView | None, references: Mapping[str, Sequence[str]], seed: int) -> dict[str, Any]:
    """Values of the card that come from the evaluation."""
    if view is None:
        nothing: list[Any] = []
        return {
            "table": "",
            "protocol": "",
            "several": False,
            "failures": nothing,
            "looked": "",
            "alarms": nothing,
            "samples": nothing,
        }
    before = view.start
    results = [before, view.result] if before is not None else [view.result]
    comparison = compare_results(results, seed=seed)
    wrong, alarms = failures(view.result.metrics, before.metrics if before else None, view.alarms)
    return {
        "table": comparison.sheet().to_markdown().partition("\n\n")[0],
        "protocol": comparison.protocol,
        "several": before is not None,
        "failures": wrong,
        "looked": looked_at(view.result.metrics),
        "alarms": alarms,
        "samples": _samples(view, references, seed),
    }


def _samples(view: RunView, references: Mapping[str, Sequence[str]], seed: int) -> list[tuple[str, str, str, str]]:
    ids = list(view.result.captions)
    drawn = random.Random(seed).sample(ids, min(SAMPLES, len(ids)))
    first = view.start.captions if view.start is not None else {}
    people = {i: next(iter(references.get(i, ())), "").strip() or "-" for i in drawn}
    return [(i, people[i], first.get(i, ""), view.result.captions[i] or "(empty)") for i in drawn]


def _about(record: Record, base: str) -> str:
    method = METHODS.get(record.method or "")
    how = f" by `{record.method}` ({method.summary})" if method else ""
    reward = f", rewarded by {mix(record.rewards)}" if record.rewards else ""
    return f"An image captioner, trained{how}{reward}. It began from {_plain(base)}."


def _base_in_words(record: Record) -> str:
    """The start model without a path of this machine."""
    section = record.recipe.get("captioner")
    name = str(section.get("model_name_or_path") or "") if isinstance(section, dict) else ""
    if name.startswith("world/"):
        return f"{name}, a stage of tellapart's built-in world"
    if name.startswith("new/"):
        return "random weights"
    return f"a model called {Path(name).name}" if name else "a model that its record does not name"


def _lines(record: Record, base: str) -> list[tuple[str, str]]:
    """The run's record without what names paths of this machine."""
    section = record.recipe.get("data")
    path = str(section.get("path") or "") if isinstance(section, dict) else ""
    heard = [Path(one).name if Path(one).expanduser().exists() else one for one in record.listeners()]
    safe = {
        "Began from": base,
        "Training data": training_data(record) or Path(path).name,
        "Reward's listener": ", ".join(heard),
    }
    told = [(name, safe.get(name, said)) for name, said in record.lines()]
    return [(name, said) for name, said in told if said]


def _parts(curves: Mapping[str, Curve]) -> list[tuple[str, str, str]]:
    """Reward and its parts: the first and the last logged mean."""
    keys = [key for key in curves if key == "reward" or key.startswith(PART_PREFIXES)]
    return [(key, f"{curves[key][0][1]:.4f}", f"{curves[key][-1][1]:.4f}") for key in keys]


def _plain(text: object) -> str:
    """Text as Markdown shows it: nothing in it is markup, and it stays on its line."""
    line = " ".join(str(text).split())
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", html.escape(line, quote=False))


def _render(**values: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        autoescape=False,  # noqa: S701  # Markdown, whose values are escaped where they are put in
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["text"] = _plain
    source = files("tellapart.evaluation.card").joinpath("card.md").read_text(encoding="utf-8").replace("\r\n", "\n")
    return environment.from_string(source).render(**values).rstrip() + "\n"
