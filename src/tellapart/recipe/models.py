"""Models and data from what a user calls them: runs, folders, Hugging Face ids, stages of the built-in world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from safetensors import SafetensorError, safe_open

from tellapart.captioners.adapters import LoraOptions
from tellapart.data.load import load_dataset, require_limit
from tellapart.errors import UsageError
from tellapart.files import trained_part
from tellapart.listeners.clip import ClipListener, Pooling
from tellapart.listeners.kinds import is_late, is_vse, trained_folder
from tellapart.listeners.loading import require_dual_encoder
from tellapart.objectives import METHODS
from tellapart.ops import current_device, named_device
from tellapart.recipe.options import as_usage_errors
from tellapart.recipe.runs import recorded_recipe, start_captioner
from tellapart.recipe.sections import CaptionerSection, MatcherSection
from tellapart.rewards.grammar import Grammar
from tellapart.rewards.language_model import LanguageModel
from tellapart.run_files import RECORD_FILE
from tellapart.types import Decoding

if TYPE_CHECKING:
    from tellapart.captioners.huggingface import HuggingFaceCaptioner
    from tellapart.data.dataset import CaptionDataset
    from tellapart.evaluation.measures import Measure
    from tellapart.evaluation.scorers import Scorer
    from tellapart.listeners.pairs import PairMatcher
    from tellapart.rewards.matchers import AnyMatcher

WORLD = "world"
VIDEO_WORLD = "world/video"
BACKBONE = "world/backbone"
NEW = "new/"
"""What the names of captioners that begin with random weights begin with."""
CAPTIONER = "captioner"
"""Folder of the captioner within a checkpoint."""


def device() -> torch.device:
    """The accelerator that this process is to use, or the CPU."""
    return current_device()


def load_captioner(
    section: CaptionerSection | str, *, size: str = "full", seed: int | None = None
) -> HuggingFaceCaptioner:
    """A captioner by name, or that of a recipe.

    Args:
        section: a run, a model folder, a Hugging Face id, a stage of the built-in world; or a recipe's section, which also says
            what of it trains.
        size: of the built-in world.
        seed: draws the weights of a new adapter, and those of a captioner that starts from world/backbone, which without
            a seed must be trained already.

    Raises:
        UsageError: the model does not exist, or cannot be used here.

    Example:
        >>> captioner = load_captioner("runs/x")
        >>> batch = Collate({captioner.name: captioner.process})(load_dataset("photos/").examples)
        >>> captioner.generate(batch, Decoding(num_beams=5)).texts
    """
    from tellapart.captioners.huggingface import HuggingFaceCaptioner  # and transformers, which names do without

    section = CaptionerSection(model_name_or_path=section) if isinstance(section, str) else section
    if section.quantization is not None and section.lora is None:
        raise UsageError(
            f"captioner.quantization={section.quantization} rounds weights that then cannot learn: set captioner.lora, whose "
            "adapter is trained, or leave it out."
        )
    with as_usage_errors("captioner"), _weights(section, size, seed) as folder, _drawing_from(seed):
        return HuggingFaceCaptioner.from_pretrained(
            folder,
            train=section.train,
            lora=None if section.lora is None else LoraOptions(**asdict(section.lora)),
            dtype=section.dtype,
            gradient_checkpointing=section.gradient_checkpointing,
            prompt=section.prompt,
            quantization=section.quantization,
            logits_budget=section.logits_budget,
            use_liger_kernel=section.use_liger_kernel,
            rollout_dtype=section.rollout_dtype,
            length_buckets=section.length_buckets,
        )


@contextmanager
def _drawing_from(seed: int | None) -> Iterator[None]:
    """While the block runs, weights are drawn as the seed decides, if there is one."""
    if seed is None:
        yield
        return
    from tellapart.draws import seeded

    with seeded("adapter", seed):
        yield


@contextmanager
def _weights(section: CaptionerSection, size: str, seed: int | None) -> Iterator[str | Path]:
    """Where the captioner can be read from while the block runs."""
    name = section.model_name_or_path
    if name not in UNTRAINED or seed is None:
        yield captioner_folder(name, size=size)
        return
    if section.lora is not None:
        raise UsageError(f"captioner.lora adapts trained weights, but {name} has only a vision tower: leave lora out.")
    from tellapart.draws import seeded

    with TemporaryDirectory() as temporary:
        with seeded(name, seed):
            captioner = UNTRAINED[name](build_stage(name, size))
        captioner.save(Path(temporary))
        yield Path(temporary)


def _untrained_ved(tower: Path) -> HuggingFaceCaptioner:
    from transformers import CLIPVisionModel

    from tellapart.world.captioner import make_captioner

    return make_captioner(CLIPVisionModel.from_pretrained(tower))


def _untrained_blip2(tower: Path) -> HuggingFaceCaptioner:
    from tellapart.world.blip2 import make_blip2

    return make_blip2(tower)


def _untrained_video(tower: Path) -> HuggingFaceCaptioner:
    from tellapart.world.video.captioner import untrained

    return untrained(tower)


UNTRAINED: dict[str, Callable[[Path], HuggingFaceCaptioner]] = {
    BACKBONE: _untrained_ved,
    "world/blip2-backbone": _untrained_blip2,
    "world/video-backbone": _untrained_video,
}
"""Vision tower of the built-in world -> what makes a captioner of it, whose other weights are drawn."""


def captioner_folder(name: str, *, size: str = "full") -> str | Path:
    """Where the weights are: a run's selected checkpoint (else its last one), a stage of the world, or ``name`` itself.

    Raises:
        UsageError: a run has no checkpoint, or trained a listener.
    """
    if is_world(name):
        return build_stage(name, size)
    folder = Path(name).expanduser()
    if name.startswith(NEW) and not folder.exists():
        raise UsageError(f"{name} is a captioner to train, without weights yet: train it, and name its run.")
    if (folder / CAPTIONER).is_dir():
        return folder / CAPTIONER
    if not (folder / RECORD_FILE).is_file():
        return name
    found = trained_part(folder, CAPTIONER)
    if found is not None:
        return found
    return captioner_folder(_start_of(folder, name), size=size)


def _start_of(folder: Path, name: str) -> str:
    """The captioner of a run that has trained none of its own, such as one that trains its listener.

    Raises:
        UsageError: there is none, since the run has no checkpoint yet or is of ``train-listener``.
    """
    if trained_folder(folder) != folder:
        raise UsageError(
            f"{name} is a run of train-listener: name it as a listener, and a run of train as the captioner."
        )
    start = _kept_captioner(folder)
    # Without a checkpoint, a run whose captioner stays has nothing of its own either, and must not be measured as if it had.
    trained = (folder / "best").is_dir() or any(folder.glob("checkpoint-*"))
    if any(folder.glob("checkpoint-*/shards")):
        raise UsageError(f"the run {name} has checkpoints in shards only: resume it, and its end writes the captioner.")
    if start is None or not trained:
        raise UsageError(f"the run {name} has no checkpoint yet: let it train on, or name another.")
    return start


def _kept_captioner(folder: Path) -> str | None:
    """The name of a run's captioner, if its method leaves it as it is."""
    method = METHODS.get(str(recorded_recipe(folder).get("method")))
    return start_captioner(folder) if method is not None and CAPTIONER in method.keeps else None


def build_stage(name: str, size: str) -> Path:
    """The folder of a stage of the built-in world, which is built if it is not there.

    Raises:
        UsageError: there is no such stage, or its weights in the cache are damaged.
    """
    from tellapart.world.stages import resolve

    folder = resolve(name, size=size)
    try:
        with safe_open(folder / "model.safetensors", framework="pt"):  # reads the header and checks the length
            return folder
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{folder} is damaged: delete it, and {name} is built again.") from error


def require_fit(name: str, use: str, *, data: str, size: str) -> None:
    """Raise where a model of the built-in world is to be a reward, but fails the probe of that use or is of the other world.

    Args:
        name: of the model; others than the world's pass.
        use: ``similarity`` or ``truth``.
        data: path of the images that it rewards captions of.
        size: of the world.

    Raises:
        UsageError: no reward by it means anything.
    """
    if not is_world(name):
        return
    from tellapart.world.probe import require_probe
    from tellapart.world.schedules import ALIASES, STAGES

    known = ALIASES.get(name, name)
    motion = known in STAGES and STAGES[known].use == "motion"
    if data == VIDEO_WORLD and not motion:
        raise UsageError(
            f"{name} knows still pictures and no word for what moves, so its reward would teach wrong captions of clips: name "
            "world/video-listener as matcher.model (reward truth) or as the listener of reward likelihood."
        )
    if data == WORLD and motion:
        raise UsageError(f"{name} knows clips, but the data are still pictures: name world/verifier.")
    folder = build_stage(name, size)
    if known in STAGES and STAGES[known].use:
        require_probe(folder, "motion" if motion else use)


def is_world(name: str) -> bool:
    """Whether a model's name is that of a stage of the built-in world."""
    return name.startswith(f"{WORLD}/")


def load_listener(
    path: str,
    *,
    name: str = "listener",
    prefix: str | None = None,
    size: str = "full",
    base: str | None = None,
    text_pooling: Pooling = "whole",
) -> ClipListener:
    """A retriever, on this process's device; ``base`` has the tokenizer and image processor of a ``.pth`` file, ``text_pooling``
    says how long texts are read.

    Raises:
        UsageError: the model does not exist or is of another kind.
    """
    folder = _cosine_folder(path, size)
    options: dict[str, Any] = {"prefix": prefix, "base": base, "text_pooling": text_pooling}
    return ClipListener.from_pretrained(folder, name=name, **options).to(device())


def require_listener(path: str) -> None:
    """Raise where a retriever cannot be loaded, going by its configuration; loads no weights.

    Raises:
        UsageError: the model does not exist or is of another kind.
    """
    require_dual_encoder(_cosine_folder(path, "full"))


def _cosine_folder(path: str, size: str) -> str | Path:
    """Where a CLIP or SigLIP is; raises for listeners that have no cosines."""
    if is_vse(path):
        raise UsageError(
            f"{path} is a VSE, but a reward, a miner and the like need a CLIP or SigLIP: a VSE ranks images (--listener and "
            "--judge of score, evaluation.judge) and is trained with a captioner (own_listener)."
        )
    folder = listener_folder(path, size=size)
    if is_late(folder):
        raise UsageError(
            f"{path} is a late-interaction listener, which has no cosines: name it as matcher.model (reward truth), as the "
            "listener of reward likelihood or lookalikes, or as evaluation.judge."
        )
    return folder


def listener_folder(path: str, *, size: str = "full") -> str | Path:
    """Where the weights are: what a run of ``train-listener`` has kept, a stage of the world, or ``path`` itself.

    Raises:
        UsageError: a stage of the world is damaged, or a run trained a captioner.
    """
    if is_world(path):
        return build_stage(path, size)
    found, run = trained_folder(path), Path(path).expanduser()
    if found == path and (run / RECORD_FILE).is_file() and trained_part(run, CAPTIONER) is not None:
        raise UsageError(
            f"{path} is a run of train, which holds a captioner: name a run of train-listener, or a model."
        )
    return found


def model_folder(path: str, *, size: str) -> str | Path:
    """Where the weights are: a stage of the world, or ``path`` itself.

    Raises:
        UsageError: a stage of the world is damaged.
    """
    return build_stage(path, size) if is_world(path) else path


def load_language_model(
    path: str, *, dtype: Literal["float32", "bfloat16", "float16"] = "float32", size: str = "full"
) -> LanguageModel:
    """A causal language model, on this process's device.

    Raises:
        UsageError: the model does not exist or is of another kind.
    """
    return LanguageModel.from_pretrained(model_folder(path, size=size), dtype=dtype).to(device())


def load_grammar(path: str, *, size: str = "full") -> Grammar:
    """A grammar head with its text tower, on this process's device.

    Raises:
        UsageError: there is no such folder, or it holds no head.
    """
    return Grammar.from_pretrained(model_folder(path, size=size)).to(device())


def load_matcher(section: MatcherSection, *, size: str = "full", name: str = "matcher") -> AnyMatcher:
    """The matcher of a section, frozen, on the device that it names, else on this process's.

    Raises:
        UsageError: there is no such model or device, or an option is not for its kind.
    """
    from tellapart.rewards.matchers import open_matcher

    where = device() if section.device is None else named_device(section.device, "matcher.device")
    matcher = open_matcher(
        model_folder(str(section.model), size=size),
        name=name,
        kind=section.kind,
        question=section.question,
        batch_size=section.batch_size,
        dtype=section.dtype,
        autocast=section.autocast,
        scaled=section.scaled,
    )
    return matcher.to(where)


def load_verifier(
    path: str, *, size: str = "full", dtype: Literal["float32", "bfloat16", "float16"] = "float32"
) -> PairMatcher:
    """A model that tells true captions from false ones, for ``Apart``: frozen, on this process's device.

    Args:
        path: a BLIP or BLIP-2 with a matching head, an instruct vision-language model, or ``world/verifier``.
        size: of the built-in world.
        dtype: precision of its weights.

    Raises:
        UsageError: the model does not exist, or does not decide what is true.

    Example:
        >>> verifier = load_verifier("Salesforce/blip-itm-base-coco")
        >>> apart = Apart(load_captioner("runs/x"), load_listener("openai/clip-vit-base-patch32"), verifier=verifier)
        >>> next(apart("photos/")).caption
    """
    from tellapart.captioning.apart import no_verifier
    from tellapart.listeners.pairs import PairMatcher

    matcher = load_matcher(MatcherSection(model=path, dtype=dtype), name="verifier", size=size)
    if not isinstance(matcher, PairMatcher):
        raise no_verifier(path)
    return matcher


def load_pair_matcher(path: str, dataset: CaptionDataset, *, option: str, size: str) -> PairMatcher:
    """A matcher that gives the probability of a match, on this process's device, which knows the images.

    Args:
        path: its folder or id, or a stage of the world.
        dataset: the images.
        option: that names it, also the key of its tensors.
        size: of the built-in world.

    Raises:
        UsageError: there is no such model, or it gives no probability.
    """
    from tellapart.listeners.pairs import require_probabilities
    from tellapart.rewards.matchers import open_matcher

    matcher = open_matcher(model_folder(path, size=size), name=option).to(device())
    require_probabilities(matcher, path, option)
    matcher.know_images(dataset)
    return cast("PairMatcher", matcher)


def load_scorers(
    dataset: CaptionDataset,
    *,
    pac: str | None,
    pac_base: str | None,
    itm: str | None,
    vqa_score: str | None = None,
    size: str = "full",
) -> list[Scorer]:
    """PAC-S, image-text matching and VQAScore, by models on this process's device that know the images.

    Args:
        dataset: the images.
        pac: encoder of PAC-S: the authors' ``.pth`` file, a folder or an id; None leaves it out.
        pac_base: whose tokenizer and image processor go with the file.
        itm: a matcher's folder or id; None leaves it out.
        vqa_score: folder or id of a model that answers questions about images; None leaves it out.
        size: of the built-in world.

    Raises:
        UsageError: a model does not exist, or is of another kind.
    """
    from tellapart.evaluation.scorers import MatchScorer, PacScorer

    found: list[Scorer] = []
    if pac is not None:
        encoder = load_listener(pac, name="pac", size=size, base=pac_base)
        encoder.cache_images(dataset)
        found.append(PacScorer(encoder))
    if itm is not None:
        found.append(MatchScorer(load_pair_matcher(itm, dataset, option="itm", size=size)))
    if vqa_score is not None:
        from tellapart.evaluation.vqa_score import VqaScorer
        from tellapart.rewards.vqa_score import VqaScoreMatcher

        asked = VqaScoreMatcher.from_pretrained(vqa_score, name="vqa_score").to(device())
        asked.model.requires_grad_(False)
        asked.know_images(dataset)
        found.append(VqaScorer(asked))
    return found


def load_data(
    path: str,
    split: str,
    *,
    images: Path | None,
    format: str | None,
    size: str,
    limit: int | None,
    missing_files: bool = False,
    seconds_between: float = 0.0,
    center_crop: bool = False,
    ignore_unused: bool = False,
    **columns: Any,
) -> CaptionDataset:
    """A split of the built-in world, still or moving, or of other data.

    With ``center_crop``, each image is cut to its largest centred square.

    Further arguments say how tables are read, as ``load_dataset`` takes them.

    Raises:
        UsageError: it does not exist, is broken or empty.
    """
    if center_crop:
        from tellapart.data.center_crop import center_cropped

        whole = load_data(
            path,
            split,
            images=images,
            format=format,
            size=size,
            limit=limit,
            missing_files=missing_files,
            seconds_between=seconds_between,
            ignore_unused=ignore_unused,
            **columns,
        )
        return center_cropped(whole)
    if path not in (WORLD, VIDEO_WORLD):
        kind: Any = format
        return load_dataset(
            path,
            split=split,
            images=images,
            format=kind,
            limit=limit,
            missing_files=missing_files,
            seconds_between=seconds_between,
            ignore_unused=ignore_unused,
            **columns,
        )
    from tellapart.world import load_world
    from tellapart.world.source import require_no_layout
    from tellapart.world.video import load_video_world

    require_limit(limit)
    if not ignore_unused:
        require_no_layout({"images": images, "format": format, **columns})
    return (load_world if path == WORLD else load_video_world)(split, size=size)[:limit]


def truth_of(path: str, split: str, *, size: str, dataset: CaptionDataset) -> tuple[Measure, ...]:
    """Measures that need known pictures: for the built-in world its truth, for other data none."""
    if path not in (WORLD, VIDEO_WORLD):
        return ()
    from tellapart.world.measures import measure_against, world_measures

    if path == VIDEO_WORLD:
        from tellapart.world.video import load_moving_scenes
        from tellapart.world.video.measures import moving_measures

        moving = load_moving_scenes(split, size=size)
        return (measure_against({clip_id: moving[clip_id] for clip_id in dataset.ids}, moving_measures),)
    from tellapart.world import load_scenes

    scenes = load_scenes(split, size=size)
    return (measure_against({image_id: scenes[image_id] for image_id in dataset.ids}, world_measures),)


def decoding(
    num_beams: int, max_new_tokens: int, *, no_repeat_ngram_size: int = 0, min_new_tokens: int = 0
) -> Decoding:
    """How captions are drawn.

    Raises:
        UsageError: a number cannot be used.
    """
    with as_usage_errors("decoding"):
        return Decoding(
            num_beams=num_beams,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            no_repeat_ngram_size=no_repeat_ngram_size,
        )
