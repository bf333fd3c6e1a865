"""``tellapart score``: measure a captioner, or a file of captions, on a data set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.cli.command import options_of
from tellapart.cli.console import note, result_console
from tellapart.cli.measured import DataOptions, Where, load
from tellapart.cli.runs import Made, made
from tellapart.cli.schema import CaptionerSection
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.evaluation.results import EvaluationResult
    from tellapart.listeners.clip import ClipListener


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(DataOptions):
    """Options of ``tellapart score``; what is null comes from the run's own recipe.

    Args:
        listener: a retriever to rank the images by each caption: a model folder, a Hugging Face id, or world/listener.
        prefix: words put before each caption for that retriever; null takes what belongs to the model.
        judge: a second retriever that no reward ever saw, such as world/judge.
        num_beams: beams of the search; 1 is greedy.
        max_new_tokens: longest caption in tokens.
        output_dir: run folder to keep the result in; null takes the run itself, and keeps nothing of other captioners.
        name: what tables call it; null takes the folder's or file's name.
        batch_size: images captioned at once; it changes no caption.
        all_metrics: print every metric instead of the main ones.
    """

    listener: str | None = None
    prefix: str | None = None
    judge: str | None = None
    num_beams: int | None = None
    max_new_tokens: int | None = None
    output_dir: Path | None = None
    name: str | None = None
    batch_size: int = 64
    all_metrics: bool = False


def run(argv: Sequence[str]) -> int:
    """Measure what the word names, print the figures, and keep them with the run."""
    chosen = options_of(
        argv,
        ScoreOptions,
        usage="score RUN_OR_CAPTIONS",
        description="Measure a captioner (a run, a model folder, a Hugging Face id, world/xe) or a .json of captions.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if len(words) != 1:
        raise UsageError(f"{len(words)} captioners were named: give one run, model or .json file of captions.")
    from tellapart.evaluation.compare import compare_results

    result = measure(words[0], options)
    folder = options.output_dir or (Path(words[0]) if made(Path(words[0])) else None)
    if folder is not None:
        note(f"kept in {result.save(folder)}")
    compare_results([result]).print(result_console(), every_metric=options.all_metrics)
    return 0


def measure(word: str, options: ScoreOptions) -> EvaluationResult:
    """What the captioner or the file scores.

    Raises:
        UsageError: something that is named does not exist, or does not fit the data.
    """
    path = Path(word)
    captions = read_captions(path) if path.suffix == ".json" else None
    run = made(path)
    where = load(options, run)
    from tellapart.cli.models import decoding, device, load_captioner, truth_of
    from tellapart.data.dataset import Collate
    from tellapart.evaluation.evaluate import Evaluation

    listeners = _listeners(options, run, where)
    truth = truth_of(where.path, where.split, size=where.size, dataset=where.dataset)
    name = options.name or path.stem
    if captions is not None:
        captions = by_own_ids(captions, where.dataset)
        return Evaluation(where.dataset, listeners=listeners, measures=truth).score(captions, name=name)
    beams = options.num_beams or (run.evaluation.num_beams if run else 1)
    longest = options.max_new_tokens or (run.evaluation.max_new_tokens if run else 40)
    how = decoding(beams, longest)
    captioner = load_captioner(CaptionerSection(model_name_or_path=word), size=where.size).to(device())
    collate = Collate({captioner.name: captioner.process})
    evaluation = Evaluation(
        where.dataset, collate, listeners=listeners, decoding=how, batch_size=options.batch_size, measures=truth
    )
    return evaluation(captioner, name=name)


def by_own_ids(captions: dict[str, str], dataset: CaptionDataset) -> dict[str, str]:
    """Captions by the data's ids, where they go by what ``tellapart caption`` calls the images' files."""
    from tellapart.cli.caption import image_id
    from tellapart.data.images import ImageFile

    if not captions.keys().isdisjoint(dataset.position):
        return captions
    own: dict[str, list[str]] = {}
    for example in dataset:
        if isinstance(example.image, ImageFile):
            own.setdefault(str(image_id(example.image.path)), []).append(example.id)
    return {own[name][0] if len(own.get(name, ())) == 1 else name: text for name, text in captions.items()}


def _listeners(options: ScoreOptions, run: Made | None, where: Where) -> dict[str, ClipListener]:
    """The retrievers by name, knowing the images."""
    from tellapart.cli.models import load_listener

    paths = {
        "listener": (options.listener or (run.listener.path if run else None)),
        "judge": (options.judge or (run.evaluation.judge if run else None)),
    }
    prefix = options.prefix if options.prefix is not None or run is None else run.listener.prefix
    prefixes = {"listener": prefix, "judge": None}
    found = {
        name: load_listener(path, name=name, prefix=prefixes[name], size=where.size)
        for name, path in paths.items()
        if path
    }
    for listener in found.values():
        listener.cache_images(where.dataset)
    return found


def read_captions(path: Path) -> dict[str, str]:
    """Captions by image id: COCO results (a list of ``image_id`` and ``caption``) or a mapping of ids to captions.

    Raises:
        UsageError: the file is missing, broken or of another form, or captions an image twice.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist: name a run, a model, or a .json file of captions.") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not readable JSON ({error}): write it again.") from error
    rows = [{"image_id": key, "caption": text} for key, text in value.items()] if isinstance(value, dict) else value
    try:
        pairs = [(str(row["image_id"]), row["caption"]) for row in rows]
    except (TypeError, KeyError) as error:
        raise UsageError(
            f"{path} is no list of {{image_id, caption}}: write COCO results, or ids to captions."
        ) from error
    captions: dict[str, str] = {}
    for image_id, caption in pairs:
        if not isinstance(caption, str):
            raise UsageError(f"{path} gives image {image_id!r} the caption {caption!r}: a caption must be text.")
        if image_id in captions:
            raise UsageError(f"{path} captions image {image_id!r} twice: give one caption an image.")
        captions[image_id] = caption
    return captions
