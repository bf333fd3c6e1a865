"""The YAML header of a card: what the hub files a model under."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tellapart.data.formats.hub import hub_name
from tellapart.evaluation.card.loading import is_adapter, library
from tellapart.evaluation.columns import main_columns
from tellapart.evaluation.report.record import Record, read_record
from tellapart.evaluation.results import EvaluationResult

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
"""What names of models begin with that are no models of the hub: stages of the world, fresh ones, runs of recipes here."""

_CHAIN = 10


def base_model(record: Record | None) -> str | None:
    """The hub id of the model that a run, or the run it began from, started with; None where it is none of the hub's."""
    name = _began_from(record)
    for _ in range(_CHAIN):
        if name is None or name.startswith(OURS):
            return None
        folder = Path(name).expanduser()
        if not folder.exists():
            return hub_name(name)
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

    What stands in a run's record as a path of this machine is left out.
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
