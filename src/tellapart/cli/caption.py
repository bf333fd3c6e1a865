"""``tellapart caption``: captions for photos, folders of them and data sets; a stopped run can be resumed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tellapart.captioning.defaults import ENDPOINT_PROMPT, IMAGE_SIZE, LOOKALIKES_PROMPT, TIMEOUT
from tellapart.captioning.gate import SEVERITY, Gate, load_openers
from tellapart.captioning.outputs.base import Output
from tellapart.captioning.outputs.files import CocoResults, Csv, JsonLines, Parquet
from tellapart.captioning.outputs.sidecars import Sidecars
from tellapart.captioning.outputs.webdataset import WebDataset
from tellapart.captioning.plan import plan
from tellapart.captioning.records import Caption, Item, Row
from tellapart.captioning.review import judged, require_own_review, write_review
from tellapart.captioning.review_page import require_own_page, write_review_page
from tellapart.captioning.style import STYLES, Finish
from tellapart.captioning.work import Work, remove_finished, resumable, run_of, was_finished
from tellapart.cli.caption_models import require_models
from tellapart.cli.caption_options import (
    CaptionOptions,
    asked_words,
    candidates,
    center_crops,
    check,
    gate_checks,
    kind_of,
    resampled_faults,
    samples,
    samplings,
    settings_of,
    style_of,
    top_p_of,
    weights_of,
)
from tellapart.cli.caption_shards import caption_by_shard, check_unsharded, merge
from tellapart.cli.command import options_of, require_another_file
from tellapart.cli.console import note, say
from tellapart.cli.unreadable import Errors, summarize
from tellapart.data.center_crop import cropped_image
from tellapart.data.features.base import FeatureInputs
from tellapart.errors import UsageError, count_of
from tellapart.files import in_a_cell, require_writable, require_written
from tellapart.recipe.feature_inputs import check_width, features_at
from tellapart.recipe.sections import CaptionerSection
from tellapart.rewards import REWARDS

if TYPE_CHECKING:
    import torch

    from tellapart.captioners.huggingface import HuggingFaceCaptioner
    from tellapart.captioning.apart import Comparison
    from tellapart.captioning.collection import Pace, Progress
    from tellapart.captioning.draw import Drawing
    from tellapart.captioning.serve import Station
    from tellapart.captioning.summary import Summarizer
    from tellapart.listeners.clip import ClipListener
    from tellapart.types import Decoding, Listener


FILES: dict[str, type[JsonLines | Csv | Parquet | WebDataset | CocoResults]] = {
    "jsonl": JsonLines,
    "csv": Csv,
    "parquet": Parquet,
    "webdataset": WebDataset,
    "coco": CocoResults,
}
"""Forms of output that are made of a place alone."""

IMPORTS = (
    "tellapart.cli.caption",
    "tellapart.captioners.huggingface",
    "tellapart.captioning.draw",
    "tellapart.captioning.read",
    "tellapart.recipe.models",
)
"""Modules that every worker process needs."""


def run(argv: Sequence[str]) -> int:
    """Caption what the words name; broken images are reported and left out, which --strict makes an error."""
    if any(word.partition("=")[0] == "--merge" for word in argv):
        return merge(argv)
    chosen = options_of(
        argv,
        CaptionOptions,
        usage="caption IMAGE_OR_FOLDER_OR_DATA ...",
        description="Caption images, folders of images, tables of paths or URLs, shards, videos and data sets. After a stop, "
        "the same command resumes.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if options.by_shard:
        return caption_by_shard(words, options, BuildStation, pace_of)
    check_unsharded(options)
    check(options)
    items = plan(
        words,
        split=options.split,
        format=options.format,
        pictures=options.features is None,
        frames=options.frames,
        sampling=samplings(options),
        image_column=options.image_column,
        id_column=options.id_column,
        allow_private=options.allow_private,
        context=options.context,
        context_extension=options.context_extension,
    )
    decodings(options)  # raises what only drawing can tell, before a model is loaded
    require_models(options)  # before look-alikes are searched, and before a work folder is begun
    items = items[: options.limit]
    if options.features is not None:
        _require_one_below(items)
    if options.dry_run is not None:
        if options.num_processes > 1:
            raise UsageError(
                f"--num_processes {options.num_processes} does not go with --dry_run, which uses one process: leave it out."
            )
        return show_captions(items, options)
    if options.output == "-" and options.out != "sidecars":
        return print_captions(items, options)
    require_another_file(words, options.output)
    return write_captions(items, options, words)


def _require_one_below(items: Sequence[Item]) -> None:
    """Raise where images of several folders have one path below these, by which features are found.

    Raises:
        UsageError: naming two of them.
    """
    below: dict[str, Item] = {}
    for item in (item for item in items if item.id == str(item.path)):  # not of a data set, whose ids features have
        before = below.setdefault(item.relative, item)
        if before is not item:
            raise UsageError(
                f"{before.image.name} and {item.image.name} are both {item.relative!r} below their folders, so --features cannot "
                "tell them apart: caption the folders one by one."
            )


def show_captions(items: Sequence[Item], options: CaptionOptions) -> int:
    """Captions before and after post-processing; nothing is written."""

    def show(item: Item, caption: Caption) -> None:
        say(f"{item.image.name}\n  drawn:   {caption.raw}\n  written: {caption.caption}")
        if caption.flags:
            say(f"  faults:  {' '.join(caption.flags)}")

    return _in_order(items, options, show, first=options.dry_run)


def print_captions(items: Sequence[Item], options: CaptionOptions) -> int:
    """A line per image on standard output."""
    return _in_order(items, options, lambda item, caption: say(f"{in_a_cell(item.image.name)}\t{caption.caption}"))


def _in_order(
    collection: Sequence[Item],
    options: CaptionOptions,
    show: Callable[[Item, Caption], None],
    *,
    first: int | None = None,
) -> int:
    """Caption without files the ``first`` images, by default all, showing each as soon as all before it are done."""
    from tellapart.captioning.collection import caption_items

    if options.num_processes > 1:
        raise UsageError(f"--num_processes {options.num_processes} needs files to write to: give --output.")
    items = collection[:first]
    errors, waiting, rows = _each(Errors()), dict[str, Caption](), list[Row]()
    following = iter(items)
    heads = [next(following, None)]

    def report(caption: Caption) -> None:
        errors(caption)
        waiting[caption.id] = caption
        while (item := heads[0]) is not None and item.id in waiting:
            done = waiting.pop(item.id)
            if done.error is None:
                show(item, done)
                rows.append((item, done))
            heads[0] = next(following, None)

    with lookalikes_of(collection, options, None) as near:
        progress = caption_items(items, BuildStation(options, near, collection), pace_of(options), report=report)
    code = _tell_broken(progress, len(items), options)
    note(summary(progress, _judged(rows, options)))
    return code


def write_captions(items: Sequence[Item], options: CaptionOptions, words: Sequence[str]) -> int:
    """Caption into files. A journal next to them lets the same command resume after a stop.

    A command that was killed after its last caption, while it removed its journal, is finished: repeated, it only completes
    the removal, so that nothing is appended to a sidecar twice.

    Raises:
        UsageError: the output exists, or was begun with other options.
        KeyboardInterrupt: it was interrupted; the message says how to resume.
    """
    from tellapart.captioning.collection import Progress, caption_items
    from tellapart.captioning.feature_ids import with_features_known

    features = features_at(options.features)
    items = items if features is None else with_features_known(items, features)
    output, settings = output_of(options, items, words), settings_of(options)
    run = run_of(settings | {"max_same": options.max_same}, [item.id for item in items])
    if was_finished(output.work, run) and output.holds(items):
        remove_finished(output.work)
        note(
            f"all {len(items)} images were captioned before by this command, which was stopped while it removed "
            f"{output.work}: that is done now, and nothing was captioned again."
        )
        return 0
    _make_room(output, items, options)
    work = Work(output.work, settings, overwrite=options.overwrite)
    progress = Progress()

    def how_far() -> str:
        return f"{progress.before + progress.drawn} of {len(items) - progress.kept} images captioned"

    with resumable(work, how_far):
        output.clean(items)
        with lookalikes_of(items, options, output.work / "lookalikes") as near:
            caption_items(
                items,
                BuildStation(options, near, items if options.apart_strength or options.lookalikes_in_prompt else ()),
                pace_of(options),
                report=_each(Errors()),
                output=output,
                work=work,
                progress=progress,
            )
        return _finish(items, options, output, work, progress, run)


def _make_room(output: Output, items: Sequence[Item], options: CaptionOptions) -> None:
    """See that the output can be written.

    Raises:
        UsageError: it exists, or its folder cannot be written to, or an image does not go with it, or another file has the
            name of its review.
    """
    place = output.place
    remove_finished(output.work)
    if output.exists() and not options.overwrite and not output.work.is_dir():
        raise UsageError(
            f"--output {place} exists: name another file, or give --overwrite to replace it. To caption only "
            "what is new, give the new images, or --out sidecars, which keeps those that are there."
        )
    require_writable(output.work.parent, "--output")
    output.check(items)
    _require_no_context(output, items, options)
    require_own_review(output.review)
    require_own_page(output.page)


def _require_no_context(output: Output, items: Sequence[Item], options: CaptionOptions) -> None:
    """Raise where a caption's sidecar would be the file with what is known of an image."""
    if options.context_extension is None or not isinstance(output, Sidecars):
        return
    known = {
        os.path.abspath(item.path.with_suffix(options.context_extension)) for item in items if item.path is not None
    }
    taken = next((target for target in map(output.target, items) if os.path.abspath(target) in known), None)
    if taken is not None:
        raise UsageError(
            f"the sidecar {taken} would replace what --context_extension {options.context_extension} reads: give another "
            "--caption_extension."
        )


def _finish(
    items: Sequence[Item], options: CaptionOptions, output: Output, work: Work, progress: Progress, run: str
) -> int:
    """Put the output together, write the review, and say what came out."""
    from tellapart.captioning.collection import captioned

    rows = _judged(captioned(items, work, progress), options)
    lost = len(rows) - output.assemble(rows) if rows else 0
    listed = 0
    if rows or progress.errors:
        listed = write_review(output.review, rows, progress.errors, items)
        write_review_page(output.page, rows, items)
    code = _tell_broken(progress, len(items), options)
    note(summary(progress, rows, output if listed else None))
    if lost:
        note(f"error: {lost} of {len(rows)} captions were not written (see above): run the same command again.")
        return 2
    if not progress.errors:
        work.remove(run)
    if rows:
        require_written(*output.written(rows), *([output.review] if listed else []))
    return code


def _judged(rows: Sequence[Row], options: CaptionOptions) -> list[Row]:
    checks = gate_checks(options)
    return judged(rows, checks=checks, max_same=options.max_same, min_match=options.min_match)


def _each(errors: Errors) -> Callable[[Caption], None]:
    """Shows the error of a caption that has one."""
    return lambda caption: None if caption.error is None else errors(caption.error)


def _tell_broken(progress: Progress, total: int, options: CaptionOptions) -> int:
    what, remedy = "could not be read and have no caption", "repair them"
    if options.endpoint is not None:  # whose server may have refused them
        what, remedy = "have no caption", "repair what the errors name"
    if options.output is not None:
        remedy += " and run the same command again"
    return summarize(len(progress.errors), total, what, remedy, strict=options.strict)


def summary(progress: Progress, rows: Sequence[Row], listed: Output | None = None) -> str:
    """Summary in one line: images, speed, and the number of flagged captions per fault.

    Args:
        progress: of the run.
        rows: images with captions.
        listed: where they are listed, if they are.
    """
    aside = [f"{progress.before} before"] if progress.before else []
    aside += [f"{progress.kept} kept"] if progress.kept else []
    told = f"captioned {count_of(progress.drawn, 'image')}" + (f" ({', '.join(aside)})" if aside else "")
    told += f" at {progress.rate:.1f} images/s" if progress.rate else ""
    often = Counter(flag for _, caption in rows for flag in caption.flags)
    flagged = sum(bool(caption.flags) for _, caption in rows)
    reasons = ", ".join(f"{name} {often[name]}" for name in SEVERITY if often[name])
    told += f"; {flagged} flagged ({reasons})" if flagged else "; none flagged"
    if listed is None:
        return f"{told}, which --output lists." if flagged else f"{told}."
    if not flagged:
        return f"{told}; {listed.review} lists the images without a caption."
    return f"{told}: see {listed.review}, or with images {listed.page}."


def output_of(options: CaptionOptions, items: Sequence[Item], words: Sequence[str]) -> Output:
    """Where captions go.

    Args:
        options: of the command.
        items: what is captioned.
        words: what was named. Sidecars next to the images of named folders have their journal and review there, whichever
            images the folders hold when the command is repeated.

    Raises:
        UsageError: the ending of --output says nothing.
    """
    kind, place = kind_of(options), Path(options.output)
    if kind != "sidecars":
        return FILES[kind](place)
    mirrored = options.output != "-"
    folders = [os.path.abspath(word) for word in words if Path(word).is_dir()]
    alone = len(folders) == len(words)
    paths = folders if alone else [os.path.abspath(item.path.parent) for item in items if item.path is not None]
    place = place if mirrored else Path(os.path.relpath(os.path.commonpath(paths))) if paths else Path()
    return Sidecars(place, extension=options.caption_extension, existing=options.existing, mirrored=mirrored)


def pace_of(options: CaptionOptions) -> Pace:
    """How the work is cut."""
    from tellapart.captioning.collection import Pace

    return Pace(
        batch_size=options.batch_size,
        threads=options.num_workers,
        processes=options.num_processes,
        by_size=options.batch_by_size,
        fail=options.on_error == "fail",
        imports=IMPORTS,
    )


def _beams(options: CaptionOptions) -> int:
    """Beams where none are asked for: servers of chat models do not search."""
    if options.endpoint is not None:
        return 1
    return candidates(options) if options.apart else 5


def decodings(options: CaptionOptions) -> tuple[Decoding, Decoding]:
    """How captions are drawn first, and when they are drawn again.

    Raises:
        UsageError: a number cannot be used.
    """
    from tellapart.recipe.options import as_usage_errors
    from tellapart.types import Decoding

    style = style_of(options)
    with as_usage_errors("decoding"):
        searching = Decoding(
            num_beams=options.num_beams or _beams(options),
            num_return_sequences=candidates(options) if options.apart and not options.do_sample else 1,
            max_new_tokens=style.max_new_tokens,
            min_new_tokens=style.min_new_tokens,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
        )
        sampling = replace(
            searching,
            num_beams=1,
            do_sample=True,
            num_return_sequences=candidates(options),
            temperature=options.temperature,
            top_p=top_p_of(options),
            top_k=options.top_k,
        )
    return (sampling if samples(options) else searching), sampling


def drawing_of(
    options: CaptionOptions,
    captioner: HuggingFaceCaptioner | None,
    listener: Listener | None,
    summarize: Summarizer | None = None,
    apart: Comparison | None = None,
) -> Drawing:
    """How captions are drawn and judged; a served model has no captioner here."""
    from tellapart.captioning.draw import Drawing

    first, again = decodings(options)
    style = style_of(options)
    openers = tuple(map(tuple, load_openers(options.openers)))
    if captioner is None:
        asked = served_prompt(options)
    else:
        asked = captioner.family.prompt if apart is None else apart.asks(captioner)
    clip_s = REWARDS["clip_s"]
    match = None if listener is None or apart is not None else clip_s.load()(listener, **clip_s.fixed)
    return Drawing(
        decoding=first,
        sampling=again,
        seed=options.seed,
        resample=options.resample,
        resample_on=resampled_faults(options),
        finish=Finish(style, openers, options.prefix, options.suffix),
        gate=Gate(
            gate_checks(options),
            openers,
            summarize.prompt if summarize else asked,
            options.min_match,
            asked_words(options),
        ),
        summarize=summarize,
        reward=match if options.rerank == "clip_s" else None,
        match=match,
        keep_all=options.keep_all,
        apart=apart,
    )


@contextmanager
def lookalikes_of(items: Sequence[Item], options: CaptionOptions, folder: Path | None) -> Iterator[Path | None]:
    """Where the look-alikes of the collection are, found before the processes start; none without --apart.

    Args:
        items: the whole collection.
        options: of the command.
        folder: where to keep them; none takes a temporary one.

    Raises:
        UsageError: no two different pictures can be read, or the listener cannot be used.
    """
    if not options.apart:
        yield None
        return
    from tellapart.captioning.apart import readable_lookalikes
    from tellapart.captioning.lookalikes import Lookalikes
    from tellapart.recipe.models import load_listener

    with TemporaryDirectory() as temporary:
        kept = Path(temporary) / "lookalikes" if folder is None else folder
        listener = load_listener(str(options.listener), name="listener")
        cropped = _cropped(items) if center_crops(options) else items
        near = readable_lookalikes(listener, cropped, options.lookalikes)
        Lookalikes.write(kept, near, listener)
        del listener
        yield kept


def _cropped(items: Sequence[Item]) -> list[Item]:
    """The images as the models see them."""
    return [replace(item, image=cropped_image(item.image)) for item in items]


@dataclass(frozen=True)
class BuildStation:
    """Loads the models in whatever process it is called; it can be sent to a new one.

    Args:
        options: of the command.
        lookalikes: folder of the look-alikes, for --apart.
        items: the collection, where drawing reads look-alikes of it.
    """

    options: CaptionOptions
    lookalikes: Path | None = None
    items: Sequence[Item] = ()

    def __call__(self, rank: int, processes: int) -> Station:
        """The station of one process, on its own GPU or its share of the CPU.

        Raises:
            UsageError: a model cannot be used.
        """
        import torch

        from tellapart.captioning.apart import distractor_items
        from tellapart.captioning.draw import Drawer
        from tellapart.captioning.read import Reader
        from tellapart.captioning.serve import Station
        from tellapart.recipe.models import device, load_listener

        if processes > 1:
            os.environ["LOCAL_RANK"] = str(rank % max(torch.accelerator.device_count(), 1))
            torch.set_num_threads(max(torch.get_num_threads() // processes, 1))
        options = self.options
        if options.endpoint is not None:
            return served_station(options)
        captioner = prompted_captioner(options).to(device())
        options = within_limits(options, captioner)
        features = features_at(options.features)
        check_width(captioner, features)
        by_id = {} if features is None else {captioner.name: FeatureInputs(features)}
        processors = {captioner.name: captioner.process} if features is None else {}
        listener = None if options.listener is None else load_listener(options.listener, name="listener")
        if listener is not None and self.lookalikes is None:  # else the look-alikes have its embeddings
            processors[listener.name] = listener.process
        apart, distractors = None, None
        if self.lookalikes is not None and listener is not None:
            apart = comparison_of(options, listener, self.lookalikes)
            distractors = distractor_items(apart, self.items)
            processors |= {} if apart.verifier is None else {apart.verifier.name: apart.verifier.process}
        reader = Reader(processors, features=by_id, center_crop=center_crops(options), distractors=distractors)
        summarize = None if options.summarize is None else summarizer_of(options, device())
        return Station(reader, Drawer(captioner, drawing_of(options, captioner, listener, summarize, apart)))


def served_station(options: CaptionOptions) -> Station:
    """The station of one process that asks an endpoint; only the models that judge captions are loaded.

    Raises:
        UsageError: the listener or the language model cannot be used.
    """
    from tellapart.captioning.endpoint import Endpoint, EndpointCaptioner, EndpointDrawer
    from tellapart.captioning.read import Reader
    from tellapart.captioning.serve import Station
    from tellapart.recipe.models import device, load_listener

    endpoint = Endpoint(
        str(options.endpoint),
        options.captioner,
        served_prompt(options),
        image_size=options.endpoint_image_size or IMAGE_SIZE,
        timeout=options.endpoint_timeout or TIMEOUT,
        concurrency=options.batch_size,
    )
    captioner = EndpointCaptioner(endpoint)
    processors = {captioner.name: captioner.process}
    listener = None if options.listener is None else load_listener(options.listener, name="listener")
    if listener is not None:
        processors[listener.name] = listener.process
    summarize = None if options.summarize is None else summarizer_of(options, device())
    reader = Reader(processors, center_crop=center_crops(options))
    return Station(reader, EndpointDrawer(captioner, drawing_of(options, None, listener, summarize), device()))


def served_prompt(options: CaptionOptions) -> str:
    """What a served model is asked."""
    from tellapart.captioners.asking import with_context

    prompt = options.prompt or STYLES[options.style].prompt or ENDPOINT_PROMPT
    return with_context(prompt) if _says_context(options) else prompt


def _says_context(options: CaptionOptions) -> bool:
    """Whether something says what is known of an image.

    Raises:
        UsageError: nothing does, but --prompt has a place for it.
    """
    from tellapart.captioners.families.base import CONTEXT

    says = options.context is not None or options.context_extension is not None
    if not says and CONTEXT in (options.prompt or ""):
        raise UsageError(
            f"--prompt has a place for {CONTEXT}, but nothing says what is known of an image: give --context, a column, or "
            f"--context_extension, the ending of files next to the images, or leave {CONTEXT} out."
        )
    return says


def comparison_of(options: CaptionOptions, listener: ClipListener, folder: Path) -> Comparison:
    """How candidates are compared with the look-alikes in a folder.

    Raises:
        UsageError: the verifier cannot be used.
    """
    from tellapart.captioning.apart import Comparison
    from tellapart.captioning.lookalikes import Lookalikes
    from tellapart.recipe.models import load_verifier

    verifier = None
    if options.verifier is not None:
        verifier = load_verifier(options.verifier, dtype=options.dtype)
    near = Lookalikes(folder)
    return Comparison.by(
        listener,
        near,
        verifier=verifier,
        weights=weights_of(options),
        strength=options.apart_strength,
        num_distractors=options.num_distractors,
        lookalikes_in_prompt=options.lookalikes_in_prompt,
        lookalikes_prompt=options.lookalikes_prompt or LOOKALIKES_PROMPT,
        embed=near.embed,
    )


def summarizer_of(options: CaptionOptions, where: torch.device) -> Summarizer:
    """The language model of --summarize, on the captioner's device.

    Raises:
        UsageError: there is no such model, or it is of another kind.
    """
    from tellapart.captioning.summary import PROMPT, Summarizer

    prompt, longest = options.summary_prompt or PROMPT, options.summary_max_new_tokens
    found = Summarizer.from_pretrained(
        str(options.summarize), prompt=prompt, max_new_tokens=longest, dtype=options.dtype
    )
    return found.to(where)


def within_limits(options: CaptionOptions, captioner: HuggingFaceCaptioner) -> CaptionOptions:
    """The options with captions no longer than the model has places for.

    Raises:
        UsageError: --max_new_tokens asks for more.
    """
    asked, room = style_of(options).max_new_tokens, captioner.family.longest
    if room is None or asked <= room:
        return options
    if options.max_new_tokens is not None:
        captioner.require_room(asked)
    return replace(options, max_new_tokens=room)


def prompted_captioner(options: CaptionOptions) -> HuggingFaceCaptioner:
    """The captioner, asked what --prompt says, or the style if the model answers questions put in words.

    Other models read a prompt as the beginning of the caption, which an instruction is not.
    """
    from tellapart.captioners.asking import with_context
    from tellapart.recipe.models import load_captioner

    says_context = _says_context(options)
    section = CaptionerSection(model_name_or_path=options.captioner, dtype=options.dtype, prompt=options.prompt)
    captioner, asked = load_captioner(section), STYLES[options.style].prompt
    if options.prompt is None and asked is not None and follows_instructions(captioner):
        captioner.set_prompt(asked)
    if says_context:
        captioner.set_prompt(with_context(captioner.family.prompt))
    if captioner.buckets is not None:
        middle = captioner.buckets.range((len(captioner.buckets) - 1) // 2)
        captioner.ask_length(asked_words(options) or middle)
    return captioner


def follows_instructions(captioner: HuggingFaceCaptioner) -> bool:
    """Whether the model was trained to answer a user's words: its processor or tokenizer has a chat template."""
    parts = (captioner.family.processors.joint, captioner.tokenizer)
    return any(getattr(part, "chat_template", None) for part in parts)
