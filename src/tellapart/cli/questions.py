"""``tellapart questions``: multiple-choice questions about images, for question answering as metric and reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from tellapart.cli.command import options_of, refuse_unused, require_another_file, require_own
from tellapart.cli.console import note, say
from tellapart.cli.unreadable import Errors, summarize
from tellapart.data.formats.names import Readable
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.data.questions import MultipleChoice


@dataclass(frozen=True, kw_only=True)
class QuestionsOptions:
    """Options of ``tellapart questions``.

    Args:
        output: file of JSON lines to write (id, question, options, answer).
        model: an instruct vision-language model that writes the questions: a folder or a Hugging Face id; null writes them by
            template, from human captions or from the scenes of the built-in world.
        num_questions: questions per image at most.
        reader: a text-only language model; questions that it answers without image and caption are left out.
        max_new_tokens: tokens that the model may write per image.
        batch_size: images that the model reads at once; changes no question.
        num_workers: threads that read images ahead for the model.
        split: which part of the data; data without splits ignore it.
        images: folder that the file's image paths are relative to.
        format: layout of the data; null detects it.
        size: size of the built-in world; other data ignore it.
        limit: maximum number of images, the first ones; null means all.
        on_error: an image that the model is to see and that cannot be read is left out (skip), or is an error (fail).
        strict: exit with code 2 if an image could not be read; otherwise only if none could.
        overwrite: start again where a stopped run of a model was begun with other options.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart questions dataset_coco.json --split val --output questions.jsonl",
        "tellapart questions photos/ --model Qwen/Qwen2.5-VL-7B-Instruct --output questions.jsonl",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "questions": ("model", "num_questions", "reader", "max_new_tokens"),
        "images": ("split", "images", "format", "size", "limit", "on_error", "strict"),
        "output": ("output", "overwrite"),
        "speed": ("batch_size", "num_workers"),
    }
    output: Path
    model: str | None = None
    num_questions: int = 5
    reader: str | None = None
    max_new_tokens: int = 400
    batch_size: int = 8
    num_workers: int = 2
    split: str = "train"
    images: Path | None = None
    format: Readable | None = None
    size: Literal["full", "small"] = "full"
    limit: int | None = None
    on_error: Literal["fail", "skip"] = "skip"
    strict: bool = False
    overwrite: bool = False


ONLY_OF_A_MODEL = frozenset(
    ("max_new_tokens", "batch_size", "num_workers", "images", "on_error", "strict", "overwrite")
)
"""Options that do nothing where questions are made by template."""
DECIDING = ("model", "num_questions", "max_new_tokens", "split", "size")
"""Options that decide what a model answers about which image."""


def run(argv: Sequence[str]) -> int:
    """Write the questions, and print how many there are."""
    chosen = options_of(
        argv,
        QuestionsOptions,
        usage="questions DATA --output FILE",
        description="Write multiple-choice questions about images: by template from human captions, from the scenes of the "
        "built-in world, or by a vision-language model, which after a stop resumes with the same command. score --reader and the "
        "reward question_answering read the file.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if len(words) != 1:
        raise UsageError(f"{len(words)} data were given: name one data set, such as world or a COCO json.")
    _check(options)
    require_another_file(words, options.output)
    from tellapart.data.questions import read_questions, write_questions

    require_own(options.output, read_questions, "questions")

    data = words[0]

    def write(found: dict[str, list[MultipleChoice]], images: int) -> None:
        found = {image: own[: options.num_questions] for image, own in found.items()}
        if options.reader is not None:
            found = _needing_the_image(found, options.reader, data, options)
        if not found:
            raise UsageError("no question is left: name another model, or another reader.")
        write_questions(options.output, found)
        count = sum(map(len, found.values()))
        say(f"{options.output}: {count} questions about {len(found)} of {images} images")

    dataset = _data(data, options)
    if options.model is not None:
        return _by_model(data, dataset, options, write)
    write(_by_template(data, dataset, options), len(dataset))
    return 0


def _check(options: QuestionsOptions) -> None:
    for name in ("num_questions", "max_new_tokens", "batch_size"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} is {getattr(options, name)}: give 1 or more.")
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit is {options.limit}: keep at least 1 image.")
    if options.model is None:
        used = [field.name for field in fields(options) if field.name not in ONLY_OF_A_MODEL]
        refuse_unused(options, used, "without --model: leave it out")


def _data(data: str, options: QuestionsOptions) -> CaptionDataset:
    """The images; of those that no model looks at the captions suffice."""
    from tellapart.data.load import load_references
    from tellapart.recipe.models import VIDEO_WORLD, WORLD, load_data

    if options.model is None and data not in (WORLD, VIDEO_WORLD):
        return load_references(data, split=options.split, format=options.format)[: options.limit]
    return load_data(
        data,
        options.split,
        images=options.images,
        format=options.format,
        size=options.size,
        limit=options.limit,
        missing_files=options.model is not None and options.on_error == "skip",
    )


def _by_template(data: str, dataset: CaptionDataset, options: QuestionsOptions) -> dict[str, list[MultipleChoice]]:
    from tellapart.recipe.questions import REFERENCES, WORLD, load_questions

    source = WORLD if data == WORLD else REFERENCES
    most = options.num_questions
    return load_questions(source, dataset, data=data, split=options.split, size=options.size, most=most)


def _by_model(
    data: str,
    dataset: CaptionDataset,
    options: QuestionsOptions,
    write: Callable[[dict[str, list[MultipleChoice]], int], None],
) -> int:
    """Have the model write, and return the exit code; its answers are kept until the questions are written."""
    from tellapart.captioning.answers import answer_all
    from tellapart.captioning.collection import Pace
    from tellapart.captioning.records import Item
    from tellapart.data.dataset import with_damaged
    from tellapart.evaluation.question_writing import INSTRUCTION, questions_in
    from tellapart.recipe.models import device, load_captioner
    from tellapart.recipe.sections import CaptionerSection
    from tellapart.types import Decoding

    asked = INSTRUCTION.format(count=options.num_questions)
    section = CaptionerSection(model_name_or_path=str(options.model), prompt=asked)
    captioner = load_captioner(section, size=options.size).to(device())
    items = [Item(example.id, example.image, example.id) for example in with_damaged(dataset.examples)]
    errors = Errors()

    def use(answers: dict[str, str]) -> None:
        written = questions_in(answers)
        if written.unlike:
            note(
                f"note: {written.unlike} questions of {options.model} have another form than asked for and are left out."
            )
        if answers and not written.questions:
            raise UsageError(
                f"{options.model} wrote no question of the form asked for: name a larger instruct model, and give --overwrite."
            )
        if answers:
            write(written.questions, len(items))

    answer_all(
        captioner,
        items,
        Decoding(max_new_tokens=options.max_new_tokens),
        Pace(options.batch_size, options.num_workers, fail=options.on_error == "fail"),
        folder=options.output.with_name(f"{options.output.name}.work"),
        settings={"DATA": data} | {name: getattr(options, name) for name in DECIDING},
        overwrite=options.overwrite,
        report=lambda one: None if one.error is None else errors(one.error),
        use=use,
    )
    what, remedy = "could not be read and have no questions", "repair them and run the same command again"
    return summarize(errors.count, len(items), what, remedy, strict=options.strict)


def _needing_the_image(
    questions: dict[str, list[MultipleChoice]], reader: str, data: str, options: QuestionsOptions
) -> dict[str, list[MultipleChoice]]:
    from tellapart.evaluation.question_writing import needing_the_image
    from tellapart.recipe.questions import load_reader

    kept = needing_the_image(questions, load_reader(reader, data=data, size=options.size))
    lost = sum(map(len, questions.values())) - sum(map(len, kept.values()))
    note(f"note: {lost} questions are left out: {reader} answers them without the image.")
    return kept
