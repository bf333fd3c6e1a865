"""Measuring a captioner on images, or a file of captions where retrievers look at the images."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.captioning.defaults import NUM_BEAMS
from tellapart.errors import UsageError, count_of
from tellapart.progress import bar
from tellapart.recipe.feature_inputs import collate_of, features_at
from tellapart.recipe.measured import Where, load
from tellapart.recipe.questions import EXACT
from tellapart.recipe.runs import Made, made, start_captioner
from tellapart.recipe.score_options import DRAWING, ScoreOptions, further_measures
from tellapart.recipe.sections import CaptionerSection, EvaluationSection
from tellapart.run_files import RECORD_FILE

if TYPE_CHECKING:
    from tellapart.captioners.base import Captioner
    from tellapart.captioners.huggingface import HuggingFaceCaptioner
    from tellapart.captioning.summary import Summary
    from tellapart.data.dataset import CaptionDataset, Collate
    from tellapart.data.results import Results
    from tellapart.evaluation.measures import Measure
    from tellapart.evaluation.protocol import NamedProtocol
    from tellapart.evaluation.rerank import Rerank, Together
    from tellapart.evaluation.results import EvaluationResult
    from tellapart.evaluation.scorers import Scorer
    from tellapart.listeners.clip import ClipListener, Pooling
    from tellapart.listeners.late import LateListener
    from tellapart.listeners.vse import Vse
    from tellapart.types import Decoding

logger = logging.getLogger(__name__)

UNREADABLE = "unreadable_images"
"""Key of a result's ``details``: id of each image that could not be read and was left out -> why."""

FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet")
"""Endings of what is a file of captions and no captioner."""

OF_MODELS = ("config.json", "adapter_config.json", RECORD_FILE, "captioner")
"""One of these is in every folder of a model or a run."""


def _require_images(word: str, options: ScoreOptions, run: Made | None) -> None:
    if run is None and options.data is None:
        raise UsageError(
            f"the images of {word} are unknown: give --references, human captions of them, to score the text alone, or --data "
            "to read the images, too."
        )


def _refuse_to_draw(path: Path, options: ScoreOptions) -> None:
    """Raise where captions that are given would have to be drawn, or the file does not exist."""
    if not path.exists():
        raise UsageError(f"{path} does not exist: name a run, a model or a file of captions.")
    draws = next((name for name in DRAWING if getattr(options, name) != getattr(ScoreOptions, name)), None)
    if draws is not None:
        raise UsageError(
            f"{path} holds captions, but --{draws} is for drawing them: leave it out, or name a run or a model."
        )


def _captions_in(folder: Path) -> Results | None:
    """The captions in a folder; none where it is not there, or is a captioner's, or has none."""
    from tellapart.data.results import read_results

    if not folder.is_dir() or any((folder / name).exists() for name in OF_MODELS):
        return None
    try:
        return read_results(folder)
    except UsageError:
        return None


def measure(word: str, options: ScoreOptions, *, run: Made | None = None) -> EvaluationResult:
    """The scores of the captioner or the file.

    Args:
        word: a run, a model, or a file or folder of captions.
        options: how.
        run: what fills in the options that are null; None asks the run that ``word`` names.

    Raises:
        UsageError: something that is named does not exist, or does not fit the data.
    """
    from tellapart.evaluation.protocol import named_protocol

    path = Path(word)
    results = _captions_in(path)
    given = results is not None or word.lower().endswith(FILES)
    if given:
        _refuse_to_draw(path, options)
        _require_images(word, options, run)
    run = run or made(path)
    named = named_protocol(options.protocol) if options.protocol else None
    options = replace(options, split=options.split or named.split) if named else options
    where = load(options, run, word=word, seen_by=_seeing(options), tell=False)
    if given:
        where, captions, left_out = fitting(path, where, options, results)
    else:
        where, captions, left_out = _referenced(where, options), {}, ""
    title = _title(options, where)
    from tellapart.evaluation.evaluate import Evaluation

    listeners = _listeners(options, run, where)
    if options.hard_gallery and not listeners:
        raise UsageError("--hard_gallery asks which images look alike: name a --listener that sees them.")
    if options.hard_gallery >= len(where.dataset):
        raise UsageError(
            f"--hard_gallery is {options.hard_gallery}, but there are {len(where.dataset)} images: ask for fewer than that."
        )
    parts: dict[str, Any] = {"listeners": listeners, "hard_gallery": options.hard_gallery}
    parts |= {"measures": _measures(options, run, where), "scorers": _scorers(options, run, where)}
    if given:
        evaluation = Evaluation(where.dataset, **parts)
        result = evaluation.score(captions, name=options.name or path.stem, note=left_out)
        return _titled(result, title, where, options.split)
    captioner, how = _drawn_by(word, options, named or (run.evaluation if run else None), where)
    parts["scorers"] += _by_own_listener(path, run, where)
    collate = collate_of(captioner, features_at(where.features))
    if options.asked_words is not None and captioner.buckets is not None:
        captioner.ask_length(options.asked_words)
    if options.rerank is not None:
        parts["rerank"], collate = _rerank(options.rerank, captioner, where, collate)
    how, parts["together"] = _together(options, captioner, how, listeners, where, collate)
    evaluation = Evaluation(
        where.dataset,
        collate,
        decoding=how,
        batch_size=options.batch_size,
        samples=(run.evaluation.samples if run else 0) if options.samples is None else options.samples,
        words=options.asked_words,
        **parts,
    )
    return _titled(evaluation(captioner, name=options.name or path.stem), title, where, options.split)


def start_of(word: str) -> str:
    """The model that a run began from, as its recipe names it.

    Raises:
        UsageError: ``word`` is not a run, or its captioner began from random weights.
    """
    from tellapart.recipe.models import NEW, UNTRAINED

    start = start_captioner(Path(word))
    if start is None:
        raise UsageError(f"--start measures what a run began from, but {word} is not a run: leave it out.")
    if start.startswith(NEW) or start in UNTRAINED:
        raise UsageError(f"--start: {word} began from random weights ({start}), which say nothing: leave it out.")
    return start


def _rerank(name: str, captioner: HuggingFaceCaptioner, where: Where, collate: Collate) -> tuple[Rerank, Collate]:
    """What chooses by the reward of a recipe among captions of these images, and a collate with what it reads of them.

    Raises:
        UsageError: the recipe does not exist, or one of its rewards is missing, broken or reads references.
    """
    from tellapart.data.dataset import Collate
    from tellapart.evaluation.rerank import Rerank
    from tellapart.recipe.fingerprint import key_of
    from tellapart.recipe.parts import Parts
    from tellapart.recipe.recipe import Recipe
    from tellapart.recipe.rewards import build_reward

    recipe = Recipe.load(name, {"data.size": where.size})
    if not recipe.reward:
        raise UsageError(f"--rerank {name} has no reward to choose by: name a recipe with one.")
    for entry in recipe.reward:
        if recipe.catalogue.rewards[entry.name].needs_references:
            raise UsageError(
                f"--rerank {name} rewards {entry.name}, which reads the references that captions are measured by: name a "
                "recipe whose rewards do not."
            )
    parts = Parts(recipe, captioner, where.dataset, collate)
    weighted = " + ".join(f"{entry.weight:g} {entry.name}" for entry in recipe.reward)
    models = {need for entry in recipe.reward for need in recipe.catalogue.rewards[entry.name].needs}
    digits = key_of(recipe, sections=("reward", *models))[:8]
    found = Rerank(build_reward(parts), f"{weighted} [{digits}]")
    return found, Collate(collate.processors | parts.processors, features=collate.features)


def _together(
    options: ScoreOptions,
    captioner: HuggingFaceCaptioner,
    how: Decoding,
    listeners: Mapping[str, Any],
    where: Where,
    collate: Collate,
) -> tuple[Decoding, Together | None]:
    """How candidates are drawn, and what makes one caption of them, if anything does but the captioner."""
    if options.apart:
        how = replace(how, num_beams=options.num_beams or NUM_BEAMS)
        return how, _told_apart(options, captioner, how, listeners, where)
    if options.summarize is not None:
        how = replace(how, do_sample=True, num_beams=1)
        return how, _summarized(options.summarize, options.n, how, where, collate, options.batch_size)
    return how, None


def _told_apart(
    options: ScoreOptions, captioner: HuggingFaceCaptioner, how: Decoding, listeners: Mapping[str, Any], where: Where
) -> Together:
    """The captioner that tells images apart without training.

    Raises:
        UsageError: there is no listener, one of the models cannot compare, or the captioner reads features.
    """
    from tellapart.captioning.apart import Apart
    from tellapart.evaluation.rerank import Together
    from tellapart.recipe.models import load_verifier

    if "listener" not in listeners:
        raise UsageError(
            "--apart needs a listener: give --listener, a CLIP model such as openai/clip-vit-base-patch32."
        )
    if where.features is not None:
        raise UsageError("--apart compares pictures, but the captioner reads features: leave --apart out.")
    verifier, by = None, listeners["listener"].source
    if options.verifier is not None:
        verifier = load_verifier(options.verifier, size=where.size)
        by += f" and {options.verifier}"
    apart = Apart(
        captioner,
        listeners["listener"],
        verifier=verifier,
        num_beams=how.num_beams,
        max_new_tokens=how.max_new_tokens,
        min_new_tokens=how.min_new_tokens,
        no_repeat_ngram_size=how.no_repeat_ngram_size,
        batch_size=max(1, options.batch_size // how.num_beams),
    )

    def caption(_: Captioner, images: CaptionDataset) -> dict[str, str]:
        found = apart(list(images))
        for one in found:
            if one.error is not None:
                raise UsageError(one.error)
        return {one.id: one.caption for one in found}

    return Together(caption, f"told apart from at most {apart.lookalikes} look-alikes by {by}")


def _summarized(path: str, n: int, how: Decoding, where: Where, collate: Collate, batch_size: int) -> Together:
    """The captioner whose captions a language model merges into one per image.

    Raises:
        UsageError: the model does not exist, or is of another kind.
    """
    from tellapart.evaluation.rerank import Together
    from tellapart.evaluation.sets import draw_sets

    summarizer, sampled = _summarizer(path, where), replace(how, num_return_sequences=n)

    def caption(captioner: Captioner, images: CaptionDataset) -> dict[str, str]:
        drawn = draw_sets(captioner, images, collate, sampled, batch_size=max(1, batch_size // n))
        names, found = list(drawn), dict[str, str]()
        with bar("merging captions", len(names)) as shown:
            for start in range(0, len(names), batch_size):
                some = names[start : start + batch_size]
                for name, one in zip(some, summarizer([drawn[name] for name in some]), strict=True):
                    if one.error is not None:
                        raise UsageError(f"{name} has no summary: {one.error}")
                    found[name] = one.text
                shown.advance(len(some))
        return found

    return Together(caption, f"{n} of these merged by {path}")


def _summarizer(path: str, where: Where) -> Callable[[Sequence[Sequence[str]]], list[Summary]]:
    """The language model that merges captions, on this process's device, or the world's grammar."""
    from tellapart.captioning.summary import Summarizer
    from tellapart.recipe.models import WORLD, device

    if path != EXACT:
        return Summarizer.from_pretrained(path).to(device())
    if where.path != WORLD:
        raise UsageError(
            f"--summarize exact merges captions of the built-in world only, not those of {where.path}: name a language model."
        )
    from tellapart.world.merging import ExactSummarizer

    return ExactSummarizer()


def _by_own_listener(path: Path, run: Made | None, where: Where) -> list[Scorer]:
    """The measure of a run by its captioner's own listener, if it has one."""
    if run is None or run.own_listener is None:
        return []
    from tellapart.recipe.own_listener import trained_scorers

    features = features_at(where.features)
    return trained_scorers(path, run.own_listener, where.dataset, size=where.size, features=features)


def _titled(result: EvaluationResult, title: str, where: Where, split: str | None) -> EvaluationResult:
    """The result, called by the named protocol that the data are of, if there is one; it lists the images that were left out
    and names the split that was asked for."""
    from tellapart.evaluation.results import SPLIT

    details = result.details | ({UNREADABLE: dict(where.unreadable)} if where.unreadable else {})
    details |= {SPLIT: split} if split else {}
    return replace(result, protocol=replace(result.protocol, standard=title), details=details)


def _measures(options: ScoreOptions, run: Made | None, where: Where) -> tuple[Measure, ...]:
    """What is measured of the captions as text, and of the pictures where these are known."""
    from tellapart.recipe.models import truth_of
    from tellapart.recipe.questions import question_measure

    truth = truth_of(where.path, where.split, size=where.size, dataset=where.dataset)
    usual = run.evaluation if run else EvaluationSection()
    further = replace(
        options,
        language_model=options.language_model or usual.language_model,
        grammar=options.grammar or usual.grammar,
        meteor=options.meteor or usual.meteor,
        size=where.size,
    )
    asked = question_measure(
        options.reader or usual.reader,
        options.questions or usual.questions,
        where.dataset,
        data=where.path,
        split=where.split,
        size=where.size,
    )
    return truth + further_measures(further, where.dataset.references) + asked


def _title(options: ScoreOptions, where: Where) -> str:
    """The title of the named protocol, if there is one, which the data must be of."""
    from tellapart.evaluation.protocol import title_of

    if not options.protocol:
        return ""
    strict = options.on_mismatch == "fail"
    title = title_of(options.protocol, where.dataset.name, where.dataset.references, strict=strict)
    logger.warning("note: this is %s.", title)
    return title


def _drawn_by(
    word: str, options: ScoreOptions, usual: NamedProtocol | EvaluationSection | None, where: Where
) -> tuple[HuggingFaceCaptioner, Decoding]:
    """The captioner and how it draws: as the options say, else as is usual for the protocol or the run."""
    from tellapart.recipe.models import decoding, device, load_captioner

    beams = options.num_beams or (usual.num_beams if usual else 1)
    longest = options.max_new_tokens or (usual.max_new_tokens if usual else 40)
    watched = usual if isinstance(usual, EvaluationSection) else EvaluationSection()
    blocked, shortest = watched.no_repeat_ngram_size, watched.min_new_tokens
    if options.no_repeat_ngram_size is not None:
        blocked = options.no_repeat_ngram_size
    if options.min_new_tokens is not None:
        shortest = options.min_new_tokens
    how = decoding(beams, longest, no_repeat_ngram_size=blocked, min_new_tokens=shortest)
    return load_captioner(CaptionerSection(model_name_or_path=word), size=where.size).to(device()), how


def _referenced(where: Where, options: ScoreOptions) -> Where:
    """The images that have references, where others may be left out and some have any."""
    from tellapart.data.dataset import CaptionDataset

    if options.on_mismatch == "fail":
        return where
    kept = [example for example in where.dataset if example.references]
    if len(kept) in (0, len(where.dataset)):
        return where
    lacking = count_of(len(where.dataset) - len(kept), "image")
    logger.warning("WARNING: %s without references: left out.", lacking)
    return replace(where, dataset=CaptionDataset(kept, name=where.dataset.name))


def fitting(
    path: Path, where: Where, options: ScoreOptions, results: Results | None = None
) -> tuple[Where, Mapping[str, str], str]:
    """The captions of a file by the data's ids, the images that they are of, and in words what was left out.

    Args:
        path: of the file.
        where: the images.
        options: what may be left out.
        results: what is in the file, if it has been read.

    Raises:
        UsageError: the file is missing, broken or of another form, or, unless they may be left out, captions and images do
            not fit.
    """
    from tellapart.data.dataset import CaptionDataset
    from tellapart.data.results import read_results
    from tellapart.evaluation.matching import match

    results = results or read_results(path)
    compared = any(where.whole.references.values())  # else there are none to be lacked
    matched, readable = match(results, where.whole, compared=compared), where.dataset.position
    extra = len(matched.extra)
    matched = replace(
        matched,
        captions={name: caption for name, caption in matched.captions.items() if name in readable},
        missing=[name for name in matched.missing if name in readable],
        extra=[] if options.limit is not None else matched.extra,
    )
    captions, scored = matched.captions, count_of(len(matched.captions), "image")
    if matched.by_name:
        logger.warning("note: captions are matched to images by the names of their files.")
    if options.limit is not None and extra:
        logger.warning("note: captions of %s are not scored, which --limit may have cut off.", count_of(extra, "image"))
    if results.several:
        logger.warning("note: of %s with several captions the first is scored.", count_of(results.several, "image"))
    if matched.fits:
        return where, captions, ""
    if options.on_mismatch == "fail":
        raise UsageError(
            f"{path} does not fit {where.dataset.name}, {matched.misfit()}: give one caption per image, or --on_mismatch "
            f"skip to score the {scored} that can be."
        )
    logger.warning("WARNING: %s; %s scored.", matched.left_out(), scored)
    kept = [example for example in where.dataset if example.id in captions]
    where = replace(where, dataset=CaptionDataset(kept, name=where.dataset.name))
    return where, captions, matched.left_out()


def _listeners(options: ScoreOptions, run: Made | None, where: Where) -> dict[str, ClipListener | LateListener | Vse]:
    """The retrievers by name, knowing the images."""
    from tellapart.recipe.soft_listeners import load_retriever, tell_same

    own = run.evaluation.listener if run else None
    paths = {
        "listener": (options.listener or own or (run.listener.path if run else None)),
        "judge": (options.judge or (run.evaluation.judge if run else None)),
    }
    unread = next((name for name in ("prefix", "text_pooling") if getattr(options, name) is not None), None)
    if unread is not None and not paths["listener"]:
        raise UsageError(f"--{unread} says how a retriever reads captions: name one as --listener, or leave it out.")
    of_run = run is not None and not (options.listener or own)
    prefix = run.listener.prefix if run is not None and of_run and options.prefix is None else options.prefix
    prefixes = {"listener": prefix, "judge": None}
    bases = {
        "listener": run.listener.base if run is not None and of_run else options.pac_base,
        "judge": options.pac_base,
    }
    features = features_at(where.features)
    pooling = options.text_pooling or (run.listener.text_pooling if run is not None and of_run else "whole")
    poolings: dict[str, Pooling] = {"listener": pooling, "judge": "whole"}
    found = {
        name: load_retriever(
            path,
            name=name,
            prefix=prefixes[name],
            size=where.size,
            base=bases[name],
            features=features,
            text_pooling=poolings[name],
        )
        for name, path in paths.items()
        if path
    }
    tell_same(found)
    for listener in found.values():
        listener.cache_images(where.dataset)
    return found


def _scorers(options: ScoreOptions, run: Made | None, where: Where) -> list[Scorer]:
    """Further models that see the images: of the options, else those of the run's own evaluation."""
    from tellapart.recipe.claims import claim_scorers
    from tellapart.recipe.models import load_scorers

    usual = run.evaluation if run else EvaluationSection()
    pac, base, itm = options.pac or usual.pac, options.pac_base or usual.pac_base, options.itm or usual.itm
    asked, claims = options.vqa_score or usual.vqa_score, options.claims or usual.claims
    found = load_scorers(where.dataset, pac=pac, pac_base=base, itm=itm, vqa_score=asked, size=where.size)
    return found + claim_scorers(
        claims, options.claim_file, where.dataset, data=where.path, split=where.split, size=where.size
    )


def _seeing(options: ScoreOptions) -> list[str | None]:
    """The models of the options that see images."""
    return [options.listener, options.judge, options.pac, options.itm, options.vqa_score, options.claims]
