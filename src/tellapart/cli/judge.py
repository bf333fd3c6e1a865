"""``tellapart judge``: people compare the captions of two runs on a local page."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tellapart.cli.command import options_of, refuse_unused
from tellapart.cli.console import note, say
from tellapart.data.results import read_results
from tellapart.errors import UsageError, count_of
from tellapart.evaluation.judge.study import (
    ANSWERS_FILE,
    READS_BETTER,
    STUDY_FILE,
    WHICH_IMAGE,
    Study,
    choose_images,
    make_items,
    nearest_others,
    plain,
    random_others,
    require_stills,
    write_study,
)
from tellapart.evaluation.matching import match
from tellapart.evaluation.results import METRICS_FILE, find_result
from tellapart.files import read_object, write_json, write_text
from tellapart.listeners.neighbours import Neighbours
from tellapart.recipe.fingerprint import digest
from tellapart.recipe.measured import DataOptions, Where, load
from tellapart.recipe.runs import made

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.evaluation.judge.model import Orders


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(DataOptions):
    """Options of ``tellapart judge``; what is null of the data comes from the first run's own recipe.

    Args:
        images: the data whose images the runs caption; with --data, the folder that its paths are relative to.
        output_dir: folder of the study: items, pictures, answers and results. An unfinished study in it resumes.
        protocol: which evaluation to take where a run has several: the name of its folder under ``eval``.
        question: what raters are asked: which_image (which of two images does a caption describe), reads_better (which of the
            two runs' captions reads better), or both.
        num_items: images drawn for each question; which_image asks about each run's caption of an image.
        neighbours: file of tellapart mine; the other image is then the nearest neighbour.
        listener: CLIP or SigLIP model that mines the nearest neighbours; without listener and neighbours, the other image is
            chosen at random.
        seed: seed of the choice of items, their order and their sides.
        port: port of the page on this machine; 0 takes a free one.
        results: folder of a study: write and print its results instead of serving the page.
        vlm: an instruct vision-language model that answers the study instead of people: a folder or a Hugging Face id. It sees
            the two captions in both orders; its answers are kept next to people's, marked as a model's.
        export: preferences writes preferences.jsonl into the study's folder: a row per image of which raters preferred one
            caption, with TRL's columns; for the methods offline_dpo, ipo and kto.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart judge runs/x runs/y --listener world/listener",
        "tellapart judge --results runs/judge",
        "tellapart judge runs/judge --vlm Qwen/Qwen2.5-VL-7B-Instruct",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "study": (
            "output_dir",
            "question",
            "num_items",
            "neighbours",
            "listener",
            "seed",
            "protocol",
            "results",
            "vlm",
        ),
        "images": ("images", "data", "split", "features", "size", "limit", "center_crop", "on_error"),
        "page": ("port",),
    }
    output_dir: Path = Path("runs/judge")
    protocol: str | None = None
    question: Literal["both", "which_image", "reads_better"] = "both"
    num_items: int = 50
    neighbours: Path | None = None
    listener: str | None = None
    seed: int = 0
    port: int = 8000
    results: Path | None = None
    vlm: str | None = None
    export: Literal["preferences"] | None = None


def run(argv: Sequence[str]) -> int:
    """Make or open the study and serve it until interrupted, or print results."""
    chosen = options_of(
        argv,
        JudgeOptions,
        usage="judge RUN_A RUN_B --images DATA | judge STUDY | judge --results STUDY | judge STUDY --vlm MODEL | "
        "judge STUDY --export preferences",
        description="Serve a page on this machine that asks people which of two images a caption describes, and which of two "
        "runs' captions reads better. Answers are kept in the study's folder.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if options.results is not None:
        if words:
            raise UsageError(f"--results is {options.results}, but {words[0]} is named as well: give one of them.")
        refuse_unused(options, ("results",), "with --results: leave it out")
        return results(options.results)
    _check(words, options)
    if options.export is not None:
        return export(Path(words[0]))
    if options.vlm is not None:
        return answer_by_model(
            Study.load(Path(words[0])) if len(words) == 1 else make_or_open(words, options), options.vlm
        )
    from tellapart.evaluation.judge.serve import listen, require_server, serve

    require_server()
    with listen(options.port) as listening:  # before a study is made, which may take a while
        if len(words) == 1:
            study = Study.load(Path(words[0]))
        else:
            study = make_or_open(words, options)
        study.require_pictures()
        _announce(study, listening.getsockname()[1])
        try:
            serve(study, listening)
        except KeyboardInterrupt:
            note(
                f"stopped; the answers are kept. For the results: tellapart judge --results {shlex.quote(str(study.folder))}"
            )
    return 0


def _check_made(word: str, options: JudgeOptions) -> None:
    """Raise where the word cannot be a study that is made already, or an option would do nothing to it."""
    if Path(word).is_file():
        raise UsageError(f"{word} is not the folder of a study: name one, or two runs or files of captions.")
    used = next((name for name in ("export", "vlm") if getattr(options, name) is not None), "port")
    refuse_unused(options, (used,), f"to the study in {word}, which is made: leave it out, or name two runs")


def _check(words: Sequence[str], options: JudgeOptions) -> None:
    if len(words) not in (1, 2):
        raise UsageError(f"{len(words)} runs were named: give two, or the folder of one study to resume.")
    if len(words) == 1:
        _check_made(words[0], options)
    if len(words) == 2 and options.export is not None:
        raise UsageError("--export writes the answers of a study: name its folder alone.")
    if options.num_items < 1:
        raise UsageError(f"--num_items is {options.num_items}: ask about at least 1 image.")
    if options.seed < 0:
        raise UsageError(f"--seed is {options.seed}: give 0 or more.")
    _check_port(options)
    if options.neighbours is not None and options.listener is not None:
        raise UsageError("--neighbours and --listener both choose the other image: give one of them.")


def _check_port(options: JudgeOptions) -> None:
    if not 0 <= options.port < 65536:
        raise UsageError(f"--port is {options.port}: give one up to 65535, or 0 for any free one.")
    if options.vlm is not None and options.port != JudgeOptions.port:
        raise UsageError("--port is for the page, and --vlm shows none: leave it out.")


def _announce(study: Study, port: int) -> None:
    note(f"{len(study.items)} items; the study is in {study.folder}. Ctrl-C stops; the same command resumes.")
    say(f"http://127.0.0.1:{port}/")
    sys.stdout.flush()  # whoever reads the address from a pipe waits for it


def results(folder: Path) -> int:
    """Write ``results.json``, ``results.md`` and ``answers.csv`` into a study, and print the second.

    Raises:
        UsageError: it holds no study.
    """
    from tellapart.evaluation.judge.answers import Answers
    from tellapart.evaluation.judge.results import summarize
    from tellapart.evaluation.judge.tables import to_csv, to_markdown

    study = Study.load(folder)
    kept = Answers(folder / ANSWERS_FILE)
    given = kept.all()
    kept.close()
    summary = summarize(study, given, _models(folder))
    page = to_markdown(summary)
    write_json(folder / "results.json", summary)
    write_text(folder / "results.md", page)
    write_text(folder / "answers.csv", to_csv(study, given))
    say(page.rstrip())
    note(f"written to {folder}: results.json, results.md and answers.csv ({len(given)} answers)")
    return 0


def _models(folder: Path) -> dict[str, Any]:
    """What a study keeps of the models that answered it, by rater.

    Raises:
        UsageError: it is damaged.
    """
    path = folder / MODELS_FILE
    if not path.is_file():
        return {}
    found = read_object(path)
    if not found or not all(map(_is_described, found.values())):
        raise _damaged(path)
    return found


def _is_described(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), dict) for key in ("model", "position_bias"))


def answer_by_model(study: Study, path: str) -> int:
    """Have a model answer what it has not answered of a study, keep its answers batch by batch, and print the results.

    Raises:
        UsageError: the model does not exist or cannot be asked, another one of its name has answered, or a picture is gone.
    """
    from tellapart.evaluation.judge.answers import Answers, key_of, marked
    from tellapart.evaluation.judge.model import details, judge_study, open_judge, record
    from tellapart.recipe.models import device

    choice, fits = open_judge(path, device=device())
    known, described = _models(study.folder), choice.describe()
    name = key_of(marked(choice.source))
    own = [one for rater, one in known.items() if key_of(rater) == name]
    if any(one["model"].get("weights") != described["weights"] for one in own):
        raise UsageError(f"another model named {choice.source} has answered this study: rename the folder of {path}.")
    before = [order for one in own for order in _said_before(study.folder, one)]
    kept, said, counts = Answers(study.folder / ANSWERS_FILE), list(before), [0]

    def keep(orders: Sequence[Orders]) -> None:
        rater, new = record(kept, choice.source, orders)
        said.extend(orders)
        counts[0] += new
        write_json(study.folder / MODELS_FILE, known | {rater: details(rater, described, said)})

    try:
        orders = judge_study(study, choice, fits, known=before, keep=keep)
        rater, missing = record(kept, choice.source, orders)  # of an earlier run whose file of answers was removed
    except KeyboardInterrupt:
        note(f"stopped; {count_of(len(said), 'answer')} kept. The same command resumes.")
        raise
    finally:
        kept.close()
    write_json(study.folder / MODELS_FILE, known | {rater: details(rater, described, orders)})
    note(f"{rater}: {len(orders)} items, {counts[0] + missing} answered now")
    return results(study.folder)


def _said_before(folder: Path, described: Mapping[str, Any]) -> list[Orders]:
    """What a model answered before.

    Raises:
        UsageError: it is damaged.
    """
    from tellapart.evaluation.judge.model import said_before

    try:
        return said_before(described)
    except ValueError as error:
        raise _damaged(folder / MODELS_FILE) from error


def _damaged(path: Path) -> UsageError:
    return UsageError(f"{path} is damaged: restore it, or remove it and let the models answer again (--vlm).")


def export(folder: Path) -> int:
    """Write ``preferences.jsonl`` into a study.

    Raises:
        UsageError: it holds no study, or no answers that prefer a caption.
    """
    from tellapart.evaluation.judge.answers import Answers
    from tellapart.evaluation.judge.export import preferences

    study = Study.load(folder)
    kept = Answers(folder / ANSWERS_FILE)
    rows, contradicted = preferences(study, kept.all())
    kept.close()
    if contradicted:
        note(
            f"note: {count_of(len(contradicted), 'image')} left out, of which the two questions prefer opposite captions."
        )
    if not rows:
        raise UsageError(f"no caption of {folder} is preferred by a majority so far: collect more answers.")
    write_text(folder / PREFERENCES, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    say(str(folder / PREFERENCES))
    note(f"{len(rows)} preferences; train on them with --method offline_dpo --preferences.path {folder / PREFERENCES}")
    return 0


PREFERENCES = "preferences.jsonl"
MODELS_FILE = "models.json"
"""Of a study: each model that answered, with its answers in either order."""
_CAPTIONS = ("captions_a", "captions_b")
"""What a study's file calls the hash of either run's captions."""
_NOT_PART = ("output_dir", "port", "results", "export", "vlm")
"""Options that change nothing about what is asked."""


def make_or_open(words: Sequence[str], options: JudgeOptions) -> Study:
    """The study in ``output_dir`` if it was made with the same words and options, else a new one there.

    Raises:
        UsageError: another study is there, or this one cannot be made.
    """
    asked = _asked(words, options)
    if (options.output_dir / STUDY_FILE).is_file():
        study = Study.load(options.output_dir)
        others = [key for key in asked if study.asked.get(key, asked[key]) != asked[key]]
        if others and others[0] in _CAPTIONS:
            changed = study.asked[f"run_{others[0][-1]}"]
            raise UsageError(
                f"{options.output_dir} holds a study of other captions, since {changed} has changed: give another "
                f"--output_dir, or name {options.output_dir} alone to resume that study."
            )
        if others:
            was, now = study.asked.get(others[0]), asked[others[0]]
            raise UsageError(
                f"{options.output_dir} holds a study with {others[0]} {was!r}, not {now!r}: give another --output_dir."
            )
        return study
    if options.images is not None and options.data is None:
        options = replace(options, data=str(options.images), images=None)
    where = load(options, made(Path(words[0])), word=words[0], pictures=True)
    dataset = where.dataset
    names, captions = _runs(words, options, dataset)
    chosen = choose_images(*captions, count=options.num_items, seed=options.seed)
    kept = {question: ids for question, ids in chosen.items() if options.question in ("both", question)}
    _tell_shortage(kept, options.num_items)
    distractors, source = _distractors(options, where, kept.get(WHICH_IMAGE, []))
    items = make_items(kept, *captions, distractors, seed=options.seed)
    if options.vlm is not None:
        require_stills(dataset, items)
    about = {"data": f"Images of {dataset.name}.", "distractors": source, **_alike(*captions)}
    return write_study(options.output_dir, dataset, items, runs=names, seed=options.seed, asked=asked, about=about)


def _asked(words: Sequence[str], options: JudgeOptions) -> dict[str, Any]:
    """The settings that decide a study, as its file keeps them."""
    values = {field.name: getattr(options, field.name) for field in fields(options) if field.name not in _NOT_PART}
    plain_values = {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
    held = {key: found for key, word in zip(_CAPTIONS, words, strict=True) if (found := _content(Path(word), options))}
    return {"run_a": str(Path(words[0])), "run_b": str(Path(words[1])), **plain_values, **held}


def _content(path: Path, options: JudgeOptions) -> str | None:
    """A hash of what a run or file of captions holds; none where it is gone, or does not say which evaluation is meant."""
    try:
        if _is_measured(path):
            said = json.dumps(find_result(path, options.protocol).captions, sort_keys=True)
            return hashlib.sha256(said.encode()).hexdigest()[:24]
        return digest(path) if path.exists() else None
    except (OSError, UsageError):
        return None


def _is_measured(path: Path) -> bool:
    return path.is_dir() and ((path / METRICS_FILE).is_file() or (path / "eval").is_dir())


def _runs(
    words: Sequence[str], options: JudgeOptions, dataset: CaptionDataset
) -> tuple[tuple[str, str], tuple[dict[str, str], dict[str, str]]]:
    """Names and captions of both runs, of the images that the data hold."""
    (first, a), (second, b) = (_captions(Path(word), options.protocol, dataset) for word in words)
    if first == second:
        first, second = f"{first} ({words[0]})", f"{second} ({words[1]})"
    for name, captions in ((first, a), (second, b)):
        lacking = [image_id for image_id in captions if image_id not in dataset.position]
        if len(lacking) == len(captions):
            raise UsageError(
                f"{name} captions no image of {dataset.name}, but {lacking[0]!r}: name the data and the split it was "
                "measured on."
            )
    a, b = ({image_id: found[image_id] for image_id in dataset.ids if image_id in found} for found in (a, b))
    shared = len(a.keys() & b.keys())
    if shared < len(dataset):
        note(f"note: {shared} of the {len(dataset)} images of {dataset.name} are captioned by both runs.")
    return (first, second), (a, b)


def _captions(path: Path, protocol: str | None, dataset: CaptionDataset) -> tuple[str, Mapping[str, str]]:
    """Name and captions of a measured run, or of a file or folder of captions."""
    if _is_measured(path):
        result = find_result(path, protocol)
        return result.name, result.captions
    results = read_results(path)
    return results.name, match(results, dataset, compared=False).captions


def _tell_shortage(chosen: dict[str, list[str]], wanted: int) -> None:
    reasons = {WHICH_IMAGE: "are captioned by both runs", READS_BETTER: "have different captions by the two runs"}
    for question, ids in chosen.items():
        if len(ids) < wanted:
            note(f"note: {question} asks about {count_of(len(ids), 'image')}: no more {reasons[question]}.")


def _distractors(options: JudgeOptions, where: Where, ids: Sequence[str]) -> tuple[dict[str, str], str]:
    """The other image of each image, and in words where it comes from."""
    dataset = where.dataset
    if not ids:
        for name in ("neighbours", "listener"):
            if getattr(options, name) is not None:
                raise UsageError(f"--{name} is for the question which_image, which is not asked: leave it out.")
        return {}, ""
    if options.neighbours is not None:
        found = nearest_others(Neighbours.load(options.neighbours), dataset, ids)
        return found, f"The other image is the nearest neighbour by {options.neighbours}."
    if options.listener is not None:
        from tellapart.listeners.mining import mine
        from tellapart.recipe.models import load_listener

        listener = load_listener(options.listener, name="listener", size=where.size)
        found = nearest_others(mine(listener, dataset, 1), dataset, ids)
        return found, f"The other image is the nearest neighbour among {len(dataset)} images by {options.listener}."
    note(
        "warning: the other image of which_image is chosen at random, which is easy to tell apart: give --neighbours, or "
        "--listener to mine look-alikes."
    )
    return random_others(
        dataset, ids, seed=options.seed
    ), "The other image was drawn at random: no look-alikes were mined."


def _alike(first: dict[str, str], second: dict[str, str]) -> dict[str, Any]:
    both = [image_id for image_id in first if image_id in second]
    alike = sum(plain(first[image_id]) == plain(second[image_id]) for image_id in both)
    text = f"Of {len(both)} images captioned by both runs, {alike} have equal captions."
    return {"captions": text, "images": len(both), "equal_captions": alike}
