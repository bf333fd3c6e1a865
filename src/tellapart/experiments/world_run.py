"""One training on the world, watched on val and, if asked, measured on test: what the demo and the study run in parallel.

``python -m tellapart.experiments.world_run --row dico --learning_rate 3e-5 --knob 0.2 --output_dir runs/dico``
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from tellapart.errors import UsageError
from tellapart.experiments.dico_rows import DICO_ROWS
from tellapart.experiments.jobs import Job, written_by
from tellapart.experiments.negclip_rows import NEGCLIP_ROWS
from tellapart.experiments.psst_rows import PSST_ROWS
from tellapart.experiments.sle_rows import SAMPLES, SLE_ROWS
from tellapart.experiments.vlrm_rows import VLRM_ROWS
from tellapart.experiments.world_rows import ROWS as BASE_ROWS
from tellapart.experiments.world_rows import STARTS
from tellapart.experiments.wtf_rows import CHANGES, WTF_ROWS
from tellapart.files import checkpoints, write_json
from tellapart.world.protocol import measured_on_test, without_software
from tellapart.world.stages import SEED, stage_folder
from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.evaluation.measures import Measure
    from tellapart.experiments.world import World

ROWS = {**BASE_ROWS, **WTF_ROWS, **CHANGES, **SLE_ROWS, **PSST_ROWS, **DICO_ROWS, **VLRM_ROWS, **NEGCLIP_ROWS}
"""Every method that a study may lay beside others."""

TRAINED = "trained.json"
FURTHER = ("meteor", "sets", "own", "pac", "wording")
"""What may be measured on test beside the usual: METEOR, several captions an image, what a listener that learned along
says (of others the copy of the world's that it begins as) with the perplexity under the world's language model, PAC-S,
and how captions are worded (colours, and phrases that VLRM penalises)."""

MEASURED_BY = {"own": "world/language_model", "pac": "world/pac"}
"""Of ``FURTHER``, what a stage measures that need not stand in a setting's key, since the training has nothing of it."""

BEAMS = {"greedy": 1, "beam5": 5}
"""Decodings of the test split."""

CIDER_FLOOR = 0.6
"""A checkpoint is selected only while its val CIDEr is at least this share of step 0's."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What decides the numbers of one training.

    Args:
        row: key of ``ROWS``, or of ``STARTS`` for a start captioner itself (no steps).
        learning_rate: of the captioner.
        knob: value of the row's knob.
        seed: redraws the start captioner and the post-training.
        steps: optimiser steps.
        images: images a step.
        eval_steps: steps between evaluations on val.
        size: of the world.
    """

    row: str
    learning_rate: float = 1e-4
    knob: float | None = None
    seed: int = 0
    steps: int = 60
    images: int = 48
    eval_steps: int = 10
    size: str = "full"

    @property
    def start(self) -> str:
        """The captioner it begins with."""
        return STARTS[self.row] if self.row in STARTS else ROWS[self.row].start

    def key(self) -> str:
        """A folder name that differs whenever the setting does, or the world and the models that it starts from."""
        seeds = {"world/listener": 0, "world/judge": 0, self.start: self.seed}
        seeds |= dict.fromkeys(ROWS[self.row].stages if self.row in ROWS else (), 0)
        start = [stage_folder(name, self.size, seed).name for name, seed in seeds.items()]
        text = json.dumps([asdict(self), start], sort_keys=True)
        slug = re.sub("[^a-z0-9]+", "-", self.row.lower())
        return f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def job(self, root: Path, *, test: bool, further: Sequence[str] = ()) -> Job:
        """The process that runs it under ``root``; with ``test`` it is done only once measured on test, with what is asked
        for of ``FURTHER``."""
        options = [f"--{name}={value}" for name, value in asdict(self).items() if value is not None]
        knob = "" if self.knob is None else f", {ROWS[self.row].knob} {self.knob:g}"
        name = self.row if self.row in STARTS else f"{self.row} (lr {self.learning_rate:g}{knob}, seed {self.seed})"
        arguments = (*options, *(["--test"] if test else []), *(f"--{name}" for name in further if test))
        work = (name, __spec__.name, arguments, root / self.key(), self.steps)
        if not test:
            return Job(*work, TRAINED)
        protocol = without_software(protocol_of(further, self.size))
        return Job(*work, marker_of(further), measuring(further, self.size), protocol)


def marker_of(further: Sequence[str] = ()) -> str:
    """The file that says that a setting was measured on test, and with what."""
    return f"{'_'.join(['done', *further])}.json"


def measuring(further: Sequence[str], size: str) -> tuple[str, ...]:
    """The models that what is asked for is measured with, each named after everything that decides its weights."""
    return tuple(stage_folder(MEASURED_BY[name], size, SEED).name for name in further if name in MEASURED_BY)


def protocol_of(further: Sequence[str], size: str) -> dict[str, str]:
    """How what is asked for is measured: data, decodings and version."""
    from tellapart.evaluation.sets import set_decodings
    from tellapart.types import Decoding

    decodings = {name: Decoding(num_beams=beams, max_new_tokens=MAX_NEW_TOKENS) for name, beams in BEAMS.items()}
    return measured_on_test(size, decodings | (set_decodings(SAMPLES, MAX_NEW_TOKENS) if "sets" in further else {}))


def run(setting: Setting, output_dir: Path, *, test: bool, further: Sequence[str] = ()) -> None:
    """Train (resuming what an interrupted process left), then measure the last and the selected step on test."""
    from tellapart.experiments.world import World

    parts = World.load(setting.size, setting.seed, setting.start)
    if not (output_dir / TRAINED).exists():
        write_json(output_dir / TRAINED, {"setting": asdict(setting), **_train(setting, parts, output_dir)})
    marker, models = output_dir / marker_of(further), measuring(further, setting.size)
    protocol = protocol_of(further, setting.size)
    if test and not written_by(marker, models, without_software(protocol)):
        results = {point: _test(setting, parts, output_dir, point, further) for point in points_of(output_dir)}
        noted = {"setting": asdict(setting), "measured_by": models, "protocol": protocol}
        write_json(marker, {**noted, "test": results})


def _train(setting: Setting, parts: World, output_dir: Path) -> dict[str, Any]:
    if setting.row in STARTS:
        result = parts.evaluation("val")(parts.captioner)
        line = {"step": 0} | {f"eval_{name}": value for name, value in result.metrics.items()}
        output_dir.mkdir(parents=True, exist_ok=True)
        (output_dir / "metrics.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
        return {"selected_step": 0, "val": result.metrics}
    from tellapart.captioners.modes import quiet
    from tellapart.training.config import TrainConfig
    from tellapart.training.loop import train

    row = ROWS[setting.row]
    objective = row.build(parts, setting.knob)
    config = TrainConfig(
        output_dir=output_dir,
        learning_rate=row.rates(setting.learning_rate),
        max_steps=setting.steps,
        per_device_train_batch_size=setting.images,
        eval_steps=setting.eval_steps,
        logging_steps=1,
        save_total_limit=1,
        seed=setting.seed,
        metric_for_best_model=row.metric,
        best_floor={"CIDEr": CIDER_FLOOR},
        resume_from_checkpoint="last" if any(output_dir.glob("checkpoint-*")) else None,
        **row.options,
    )
    evaluation = parts.evaluation("val", own_listener=row.own_listener)
    with quiet():
        train(objective, parts.training_data(), config, evaluate=lambda _: evaluation(parts.captioner).metrics)
    lines = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return _selected(lines, f"eval_{row.metric}")


def _selected(lines: list[dict[str, Any]], metric: str = "eval_listener_R@1") -> dict[str, Any]:
    """The val metrics of the step that the selection rule picks, and of the last step."""
    evaluated = [line for line in lines if "eval_CIDEr" in line]
    floor = CIDER_FLOOR * evaluated[0]["eval_CIDEr"]
    chosen = max((line for line in evaluated if line["eval_CIDEr"] >= floor), key=lambda line: line[metric])

    def metrics(line: dict[str, Any]) -> dict[str, float]:
        return {name.removeprefix("eval_"): value for name, value in line.items() if name.startswith("eval_")}

    return {"selected_step": chosen["step"], "val": metrics(chosen), "val_last": metrics(evaluated[-1])}


def points_of(output_dir: Path) -> dict[str, Path | None]:
    """Name of a point -> its checkpoint; none for the start captioner."""
    kept = [*checkpoints(output_dir).values()]
    return {"last": kept[-1], "selected": output_dir / "best"} if kept else {"selected": None}


def load_checkpoint(parts: World, output_dir: Path, point: str, *, own_listener: bool = True) -> None:
    """Put the weights of a finished training's point into the parts of the world; a start captioner has no others.

    Args:
        parts: of the training's seed and start captioner.
        output_dir: of the training.
        point: ``selected`` or ``last``.
        own_listener: whether the listener that learned along is wanted, too, if there is one.
    """
    checkpoint = points_of(output_dir)[point]
    if checkpoint is not None and (checkpoint / "captioner").is_dir():
        parts.captioner.load_weights(checkpoint / "captioner")
    if own_listener and checkpoint is not None and (checkpoint / "own_listener").is_dir():
        parts.own_listener.load_weights(checkpoint / "own_listener")


def _test(
    setting: Setting, parts: World, output_dir: Path, point: str, further: Sequence[str]
) -> dict[str, dict[str, float]]:
    from tellapart.evaluation.fluency import PerplexityMeasure
    from tellapart.evaluation.meteor import MeteorMeasure
    from tellapart.world.phrases import wording

    own = "own" in further
    measures: tuple[Measure, ...] = (PerplexityMeasure(parts.language_model),) if own else ()
    measures += (MeteorMeasure(parts.dataset("test").references),) if "meteor" in further else ()
    measures += (wording,) if "wording" in further else ()
    load_checkpoint(parts, output_dir, point)
    measured = {}
    for decoding, beams in BEAMS.items():
        evaluation = parts.evaluation(
            "test", num_beams=beams, measures=measures, own_listener=own, pac="pac" in further
        )
        result = evaluation(parts.captioner, name=setting.row)
        result.save(output_dir / point)
        measured[decoding] = result.metrics
    return measured | ({"sets": _sets(parts)} if "sets" in further else {})


def _sets(parts: World) -> dict[str, float]:
    """Several captions of each test image, sampled and by beam search: how good, and how different."""
    from tellapart.evaluation.sets import draw_sets, set_decodings, set_measures

    dataset, metrics = parts.dataset("test"), dict[str, float]()
    for name, decoding in set_decodings(SAMPLES, MAX_NEW_TOKENS).items():
        sets = draw_sets(parts.captioner, dataset, parts.collate, decoding)
        metrics |= set_measures(sets, dataset.references, name)[0]
    return metrics


def _parse(argv: list[str] | None) -> tuple[Setting, dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--test", action="store_true", help="measure on test after training")
    for name in FURTHER:
        parser.add_argument(f"--{name}", action="store_true", help="measure this on test, too")
    add_setting(parser)
    options = vars(parser.parse_args(argv))
    how = {name: options.pop(name) for name in ("output_dir", "test")}
    how["further"] = [name for name in FURTHER if options.pop(name)]
    return setting_of(options), how


def add_setting(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of a setting."""
    for name, hint in get_type_hints(Setting).items():
        kinds = [kind for kind in get_args(hint) if kind is not type(None)] or [hint]
        default = getattr(Setting, name, None)
        parser.add_argument(f"--{name}", type=kinds[0], default=default, required=name == "row")


def setting_of(options: dict[str, Any]) -> Setting:
    """The setting that parsed options are.

    Raises:
        UsageError: its row is unknown.
    """
    if options["row"] not in {**STARTS, **ROWS}:
        raise UsageError(f"--row {options['row']!r} is unknown: choose {', '.join([*STARTS, *ROWS])}.")
    return Setting(**options)


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run on one thread."""
    import torch

    torch.set_num_threads(1)
    setting, how = _parse(argv)
    run(setting, **how)


if __name__ == "__main__":
    main()
