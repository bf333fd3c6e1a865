"""What a study has measured of a training already, for the table to take as it is.

The folder of a training is named after its setting, the world, listener, judge and start captioner, so that a saved evaluation
in it is of the same models; what else decides its numbers stands in its protocol. So it does in markers, but for those of
earlier builds, which name their setting alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.errors import UsageError
from tellapart.evaluation.results import EvaluationResult
from tellapart.experiments.jobs import agrees

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.experiments.world_run import Setting
    from tellapart.types import Decoding


def evaluated(
    folder: Path, dataset: CaptionDataset, decoding: Decoding, needed: Iterable[str]
) -> EvaluationResult | None:
    """The evaluation of a checkpoint that a study saved; none where it was measured otherwise, or not all of it.

    Args:
        folder: of the checkpoint's evaluations.
        dataset: that it must be of.
        decoding: by which its captions must be drawn.
        needed: metrics that it must have.
    """
    from tellapart.evaluation.evaluate import describe_decoding
    from tellapart.evaluation.protocol import Protocol, data_digest

    drawn = describe_decoding(decoding, 0)
    asked = Protocol(dataset.name, len(dataset), data_digest(dataset.references), drawn)
    try:
        found = EvaluationResult.load(folder / "eval" / asked.slug())
    except UsageError:
        return None
    same = found.protocol.software == asked.software and not found.protocol.differences(asked)
    return found if same and all(key in found.metrics for key in needed) else None


def sampled(
    output_dir: Path, setting: Setting, name: str, protocol: Mapping[str, str], *, unsigned: bool
) -> dict[str, float] | None:
    """The measures of several captions an image that a study noted of the selected checkpoint; none if it has none.

    Args:
        output_dir: of the training.
        setting: that it must be of.
        name: of the decoding, such as ``rs5``.
        protocol: how they must have been measured.
        unsigned: whether to take those of a marker that does not say how.
    """
    for marker in sorted(output_dir.glob("done*_sets*.json")):
        value = json.loads(marker.read_text(encoding="utf-8"))
        found = {key: figure for key, figure in value["test"]["selected"]["sets"].items() if key.startswith(f"{name}_")}
        same = agrees(value, protocol) and (unsigned or "protocol" in value)
        if value["setting"] == asdict(setting) and same and found:
            return found
    return None
