"""``tellapart questions``: multiple-choice questions about images, for question answering as metric and reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from tellapart.cli.command import options_of, refuse_unused, require_another_file, require_own
from tellapart.cli.console import note, say
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
        split: which part of the data; data without splits ignore it.
        images: folder that the file's image paths are relative to.
        format: layout of the data; null detects it.
        size: size of the built-in world; other data ignore it.
        limit: maximum number of images, the first ones; null means all.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart questions dataset_coco.json --split val --output questions.jsonl",
        "tellapart questions photos/ --model Qwen/Qwen2.5-VL-7B-Instruct --output questions.jsonl",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "questions": ("model", "num_questions", "reader", "max_new_tokens", "batch_size"),
        "images": ("split", "images", "format", "size", "limit"),
        "output": ("output",),
    }
    output: Path
    model: str | None = None
    num_questions: int = 5
    reader: str | None = None
    max_new_tokens: int = 400
    batch_size: int = 8
    split: str = "train"
    images: Path | None = None
    format: Readable | None = None
    size: Literal["full", "small"] = "full"
    limit: int | None = None


def run(argv: Sequence[str]) -> int:
    """Write the questions, and print how many there are."""
    chosen = options_of(
        argv,
        QuestionsOptions,
        usage="questions DATA --output FILE",
        description="Write multiple-choice questions about images: by template from human captions, from the scenes of the "
        "built-in world, or by a vision-language model. score --reader and the reward question_answering read the file.",
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

    dataset = _data(words[0], options)
    found = _by_template(words[0], dataset, options) if options.model is None else _by_model(dataset, options)
    found = {image: own[: options.num_questions] for image, own in found.items()}
    if options.reader is not None:
        found = _needing_the_image(found, options.reader, words[0], options)
    if not found:
        raise UsageError("no question is left: name another model, or another reader.")
    write_questions(options.output, found)
    count = sum(map(len, found.values()))
    say(f"{options.output}: {count} questions about {len(found)} of {len(dataset)} images")
    return 0


def _check(options: QuestionsOptions) -> None:
    for name in ("num_questions", "max_new_tokens", "batch_size"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} is {getattr(options, name)}: give 1 or more.")
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit is {options.limit}: keep at least 1 image.")
    if options.model is None:
        used = [field.name for field in fields(options) if field.name not in ("max_new_tokens", "batch_size", "images")]
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
    )


def _by_template(data: str, dataset: CaptionDataset, options: QuestionsOptions) -> dict[str, list[MultipleChoice]]:
    from tellapart.recipe.questions import REFERENCES, WORLD, load_questions

    source = WORLD if data == WORLD else REFERENCES
    most = options.num_questions
    return load_questions(source, dataset, data=data, split=options.split, size=options.size, most=most)


def _by_model(dataset: CaptionDataset, options: QuestionsOptions) -> dict[str, list[MultipleChoice]]:
    from tellapart.data.dataset import Collate
    from tellapart.evaluation.question_writing import INSTRUCTION, write_by_model
    from tellapart.recipe.models import device, load_captioner
    from tellapart.recipe.sections import CaptionerSection

    asked = INSTRUCTION.format(count=options.num_questions)
    section = CaptionerSection(model_name_or_path=str(options.model), prompt=asked)
    captioner = load_captioner(section, size=options.size).to(device())
    collate = Collate({captioner.name: captioner.process})
    written = write_by_model(
        captioner, dataset, collate, max_new_tokens=options.max_new_tokens, batch_size=options.batch_size
    )
    if written.unreadable:
        note(
            f"note: {written.unreadable} questions of {options.model} have another form than asked for and are left out."
        )
    if not written.questions:
        raise UsageError(f"{options.model} wrote no question of the form asked for: name a larger instruct model.")
    return written.questions


def _needing_the_image(
    questions: dict[str, list[MultipleChoice]], reader: str, data: str, options: QuestionsOptions
) -> dict[str, list[MultipleChoice]]:
    from tellapart.evaluation.question_writing import needing_the_image
    from tellapart.recipe.questions import load_reader

    kept = needing_the_image(questions, load_reader(reader, data=data, size=options.size))
    lost = sum(map(len, questions.values())) - sum(map(len, kept.values()))
    note(f"note: {lost} questions are left out: {reader} answers them without the image.")
    return kept
