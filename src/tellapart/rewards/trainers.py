"""Our rewards as functions of other trainers: TRL's GRPO and RLOO trainers, and verl."""

from __future__ import annotations

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tellapart.data.decoding import decode
from tellapart.data.pixels import to_rgb, widened
from tellapart.errors import UsageError
from tellapart.names import require_known
from tellapart.rewards import REWARDS
from tellapart.types import Batch, Reward, Rollout

if TYPE_CHECKING:
    from PIL import Image

    from tellapart.listeners.clip import ClipListener
    from tellapart.rewards.kinds import RewardKind

IMAGES_KEPT = 100_000
"""Embeddings of images that are kept in memory: 512 numbers each, 200 MB."""

TrlReward = Callable[..., list[float | None]]
VerlReward = Callable[..., float | list[float]]


class KnownImages:
    """A frozen dual encoder that embeds each distinct picture once, as long as it is remembered.

    Args:
        listener: the encoder.
        most: embeddings kept in memory; the one that was asked for longest ago goes first.
    """

    def __init__(self, listener: ClipListener, *, most: int = IMAGES_KEPT) -> None:
        self.listener, self.name, self._most = listener, listener.name, most
        self._known: OrderedDict[str, Tensor] = OrderedDict()

    def see(self, pictures: Mapping[str, Image.Image]) -> None:
        """Embed those that are not known, in batches."""
        missing = [key for key in pictures if key not in self._known]
        for start in range(0, len(missing), self.listener.batch_size):
            keys = missing[start : start + self.listener.batch_size]
            inputs = {self.name: self.listener.process([pictures[key] for key in keys])}
            rows = self.listener.encode_images(Batch(keys, [[] for _ in keys], inputs)).cpu()
            self._known |= dict(zip(keys, rows, strict=True))
        for key in pictures:
            self._known.move_to_end(key)
        while len(self._known) > max(self._most, len(pictures)):
            self._known.popitem(last=False)

    def encode_ids(self, ids: Sequence[str]) -> Tensor:
        """``[M, D]`` of pictures that were seen."""
        return torch.stack([self._known[key] for key in ids]).to(self.listener.device)

    def encode_images(self, batch: Batch) -> Tensor:
        """The same of a batch."""
        return self.encode_ids(batch.ids)

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """``[M, D]``, by the encoder."""
        return self.listener.encode_texts(texts)


class Scorer:
    """Scores captions of images that come as objects, paths or bytes.

    Calls from several threads, as of verl's reward loop, take turns, because caches and tokenizers are not thread-safe.

    Args:
        name: of the reward.
        reward: callable of a rollout.
        known: the encoder that remembers pictures, where the reward has one.
        process: name of a matcher's tensors, and what makes them of pictures, where the reward has one.
        needs_references: whether every caption needs human captions of its image.
    """

    def __init__(
        self,
        name: str,
        reward: Reward,
        *,
        known: KnownImages | None = None,
        process: tuple[str, Callable[[list[Image.Image]], dict[str, Tensor]]] | None = None,
        needs_references: bool = False,
    ) -> None:
        self.name, self._reward, self._known, self._process = name, reward, known, process
        self.needs_references, self.needs_images = needs_references, known is not None or process is not None
        self._turn = Lock()

    @torch.no_grad()
    def __call__(
        self, texts: Sequence[str], images: Sequence[Any] | None, references: Sequence[Any] | None
    ) -> list[float | None]:
        """A reward per caption; None for a caption without an image, or without references, that needs them.

        Args:
            texts: N captions.
            images: N pictures, paths, or dicts of bytes and path; lists of one of these count as that one.
            references: N lists of human captions; a single caption need not be in a list.

        Raises:
            UsageError: a caption has several images, an image cannot be read, or there are not as many images or references as
                captions.
        """
        for what, column in (("images", images), ("references", references)):
            if column is not None and len(column) != len(texts):
                raise UsageError(f"{len(column)} {what} came with {len(texts)} captions: give one to each caption.")
        pictures = [_single(value) for value in images] if images is not None else [None] * len(texts)
        captions: list[list[str]] = [[] for _ in texts]
        if references is not None and self.needs_references:
            captions = [_listed(value) for value in references]
        scored = [
            place
            for place in range(len(texts))
            if (pictures[place] is not None or not self.needs_images) and (captions[place] or not self.needs_references)
        ]
        found: list[float | None] = [None] * len(texts)
        if scored:
            with self._turn:
                rollout = self._rollout(
                    [texts[i] for i in scored], [pictures[i] for i in scored], [captions[i] for i in scored]
                )
                values = self._reward(rollout).tolist()
            for place, value in zip(scored, values, strict=True):
                found[place] = float(value)
        return found

    def require_columns(self, images: Sequence[Any] | None, references: Sequence[Any] | None) -> None:
        """Raise where a column that the reward reads is missing.

        Raises:
            UsageError: naming the argument that names it.
        """
        if self.needs_images and images is None:
            raise UsageError(f"reward {self.name} looks at images, but none was given: name their column as images=.")
        if self.needs_references and references is None:
            raise UsageError(
                f"reward {self.name} compares with human captions, but none was given: name their column as references=."
            )

    def _rollout(self, texts: list[str], pictures: list[Any], captions: list[list[str]]) -> Rollout:
        """The captions as a rollout of distinct images; tokens are not known, and every caption counts as finished."""
        opened: dict[str, Image.Image] = {}
        keys, at = [], dict[int, str]()
        for picture in pictures:
            if id(picture) not in at:
                at[id(picture)], image = _opened(picture) if self.needs_images else (str(len(at)), None)
                if image is not None:
                    opened.setdefault(at[id(picture)], image)
            keys.append(at[id(picture)])
        rows: dict[tuple[str, tuple[str, ...]], int] = {}
        row_of = [rows.setdefault((key, tuple(own)), len(rows)) for key, own in zip(keys, captions, strict=True)]
        if self._known is not None:
            self._known.see(opened)
        inputs = {}
        if self._process is not None:
            name, process = self._process
            inputs[name] = process([opened[key] for key, _ in rows])
        batch = Batch([key for key, _ in rows], [list(own) for _, own in rows], inputs)
        return Rollout.of_texts(batch, row_of, texts)


def for_trl(
    reward: str = "clip_s",
    *,
    model: Any = None,
    images: str | None = None,
    references: str = "references",
    device: str | torch.device | None = None,
    opening: Mapping[str, Any] | None = None,
    **options: Any,
) -> TrlReward:
    """A reward function for TRL's ``GRPOTrainer`` and ``RLOOTrainer``.

    It takes ``completions`` (text, or conversations of one message) and the data's columns, and returns a list of floats, None
    for a row without an image. All captions of a call are scored together, and a listener embeds each distinct picture once. The
    reward's model is frozen and in eval mode; nothing of it is trained.

    Args:
        reward: a reward of recipes: clip_s, ref_clip_s, pac_s, ref_pac_s, itm, truth, vqa_score (with
            ``opening={"kind": "vqa_score"}``), claim_precision, claim_f1, language_model, grammar, meteor, cider_d.
        model: its model as a path or Hugging Face id, or one that is open: a listener (CLIP, SigLIP), a matcher, a language
            model, a grammar head; of cider_d a file of document frequencies.
        images: column with the images; by default ``image``, else ``images``.
        references: column with human captions.
        device: where the model is; by default the accelerator of this process, else the CPU.
        opening: options of opening the model, such as ``prefix``, ``dtype`` or ``batch_size``.
        options: options of the reward, such as ``clamp``.

    Raises:
        UsageError: the reward or an option is unknown, the reward needs more than a model, or the model cannot be loaded.

    Example::

        reward = for_trl("clip_s", model="openai/clip-vit-base-patch32")
        trainer = GRPOTrainer(model, reward_funcs=[reward], train_dataset=dataset, args=GRPOConfig(...))
        reward(completions=["a red car"], image=[picture])  # [0.71]
    """
    scorer = _scorer(reward, model, device, opening or {}, options)

    def trl_reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The reward of each completion."""
        names = (images,) if images is not None else ("image", "images")
        pictures = next((columns[name] for name in names if columns.get(name) is not None), None)
        scorer.require_columns(pictures, columns.get(references))
        return scorer([_said(one) for one in completions], pictures, columns.get(references))

    trl_reward.__name__ = trl_reward.__qualname__ = reward  # TRL logs it as rewards/<name>/mean
    return trl_reward


def for_verl(
    reward: str = "clip_s",
    *,
    model: Any = None,
    images: str = "image",
    references: str = "references",
    device: str | torch.device | None = None,
    opening: Mapping[str, Any] | None = None,
    **options: Any,
) -> VerlReward:
    """A ``compute_score`` for verl's ``custom_reward_function``, for one solution or, with verl's batch reward manager, for many.

    verl gives no image to a reward. So the data's ``extra_info`` must hold it: a path, or bytes. References are taken from
    ``extra_info`` too, else from ``ground_truth``. A caption that lacks what the reward needs is an error.

    Args:
        reward: as for ``for_trl``.
        model: likewise.
        images: key of ``extra_info`` with the image.
        references: key of ``extra_info`` with human captions.
        device: likewise; verl computes rewards in processes without a GPU unless it is configured otherwise.
        opening: likewise.
        options: likewise.

    Raises:
        UsageError: as for ``for_trl``.

    Example::

        compute_score = for_verl("clip_s", model="openai/clip-vit-base-patch32", device="cpu")
        compute_score("photos", "a red car", None, {"image": "photos/7.jpg"})  # 0.71
    """
    scorer = _scorer(reward, model, device, opening or {}, options)

    def compute_score(
        data_source: Any = None,
        solution_str: str | None = None,
        ground_truth: Any = None,
        extra_info: Mapping[str, Any] | None = None,
        *,
        solution_strs: Sequence[str] | None = None,
        ground_truths: Sequence[Any] | None = None,
        extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
        **further: Any,
    ) -> float | list[float]:
        """The reward of ``solution_str``, or of each of ``solution_strs``."""
        many = solution_strs is not None
        texts = list(solution_strs) if solution_strs is not None else [str(solution_str)]
        infos = [info or {} for info in (extra_infos if extra_infos is not None else [extra_info] * len(texts))]
        truths = list(ground_truths) if ground_truths is not None else [ground_truth] * len(texts)
        given: list[list[str]] = [[] for _ in texts]
        if scorer.needs_references:
            own = [_listed(info.get(references)) for info in infos]
            given = [captions or _listed(truth) for captions, truth in zip(own, truths, strict=True)]
        scores = scorer(texts, [info.get(images) for info in infos], given)
        if any(score is None for score in scores):
            raise UsageError(
                f"reward {reward} cannot score a row of the data: put the image (and references, where it needs them) into "
                f"extra_info as {images!r} (and {references!r})."
            )
        numbers = [float(score) for score in scores if score is not None]
        return numbers if many else numbers[0]

    return compute_score


# Opening a reward by name.


def _scorer(
    name: str, model: Any, device: str | torch.device | None, opening: Mapping[str, Any], options: Mapping[str, Any]
) -> Scorer:
    require_known(name, REWARDS, "a reward")
    kind = REWARDS[name]
    if not _of_model(kind) or len(kind.needs) > 1:
        needs = [*kind.needs, *(["contexts"] if kind.needs_context else [])]
        raise UsageError(
            f"reward {name} needs {' and '.join(needs)} of a training, which another trainer does not have: choose one of "
            f"{', '.join(key for key in REWARDS if _of_model(REWARDS[key]))}."
        )
    if kind.needs and model is None:
        raise UsageError(f"reward {name} lacks its {kind.needs[0].replace('_', ' ')}: give model=.")
    if model is not None and not kind.needs:
        raise UsageError(f"reward {name} reads no model: leave model= out.")
    _require_no_stage(model)
    if opening and not isinstance(model, str | Path):
        raise UsageError(f"opening={dict(opening)!r} is for a model given by its path or id: leave it out.")
    make = kind.load()
    _require_options(make, [*options], f"an option of reward {name}", fixed=kind.fixed)
    parts = [_OPENERS[need](model, _device(device), opening) for need in kind.needs]
    known = next((part for part in parts if isinstance(part, KnownImages)), None)
    try:
        made = make(*parts, **kind.fixed, **options)
    except ValueError as error:
        raise UsageError(f"reward {name}: {error}.") from error
    processor = (parts[0].name, parts[0].process) if kind.needs == ("matcher",) else None
    return Scorer(name, made, known=known, process=processor, needs_references=kind.needs_references)


def _of_model(kind: RewardKind) -> bool:
    """Whether a reward reads nothing but captions, images, references, and models that can be opened here."""
    return set(kind.needs) <= set(_OPENERS) and not kind.needs_context


def _require_no_stage(model: Any) -> None:
    """Raise where a model is named as a stage of the built-in world, which would be looked for on the hub."""
    if isinstance(model, str) and model.startswith("world/") and not Path(model).exists():
        raise UsageError(
            f"model={model!r} is a stage of the built-in world, whose names recipes know: give its folder, "
            f"tellapart.world.stages.resolve({model!r}), or another model."
        )


def _require_options(make: Callable[..., Any], given: Sequence[str], what: str, *, fixed: Collection[str] = ()) -> None:
    """Raise where an option was given that ``make`` does not have, or that is fixed.

    Raises:
        UsageError: with the closest name, or all.
    """
    parameters = inspect.signature(make).parameters.values()
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in fixed]
    for name in given:
        require_known(name, known, what)


def _opened_by(make: Callable[..., Any], path: str | Path, opening: Mapping[str, Any]) -> Any:
    """What ``make`` opens from a path, with the options of ``opening``."""
    _require_options(make, [*opening], "an option of opening the model")
    return make(path, **opening)


def _listener(model: Any, device: torch.device, opening: Mapping[str, Any]) -> KnownImages:
    from tellapart.listeners.clip import ClipListener
    from tellapart.listeners.kinds import trained_folder

    if isinstance(model, str | Path):
        model = _opened_by(ClipListener.from_pretrained, trained_folder(str(model)), opening).to(device)
    model.model.eval().requires_grad_(False)
    return KnownImages(model)


def _matcher(model: Any, device: torch.device, opening: Mapping[str, Any]) -> Any:
    from tellapart.rewards.matchers import open_matcher

    return _opened_by(open_matcher, model, opening).to(device) if isinstance(model, str | Path) else model


def _language_model(model: Any, device: torch.device, opening: Mapping[str, Any]) -> Any:
    from tellapart.rewards.language_model import LanguageModel

    return (
        _opened_by(LanguageModel.from_pretrained, model, opening).to(device) if isinstance(model, str | Path) else model
    )


def _grammar(model: Any, device: torch.device, opening: Mapping[str, Any]) -> Any:
    from tellapart.rewards.grammar import Grammar

    return _opened_by(Grammar.from_pretrained, model, opening).to(device) if isinstance(model, str | Path) else model


def _frequencies(model: Any, device: torch.device, opening: Mapping[str, Any]) -> Any:
    from tellapart.metrics.frequencies import load_frequencies

    return _opened_by(load_frequencies, Path(model), opening) if isinstance(model, str | Path) else model


_OPENERS: Mapping[str, Callable[[Any, torch.device, Mapping[str, Any]], Any]] = {
    "listener": _listener,
    "matcher": _matcher,
    "language_model": _language_model,
    "grammar": _grammar,
    "document_frequencies": _frequencies,
}
"""Part that a reward needs -> what opens it from a path."""


def _device(given: str | torch.device | None) -> torch.device:
    from tellapart.ops import current_device, named_device

    return current_device() if given is None else named_device(given, "device")


# What other trainers give.


def _said(completion: Any) -> str:
    """A completion as text: itself, or the content of a conversation's last message (text, or parts of it; of a call of a tool
    alone nothing)."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or () if part.get("type", "text") == "text")


def _single(value: Any) -> Any:
    """The image of a row; nothing of an empty list."""
    if isinstance(value, list | tuple):
        if len(value) > 1:
            raise UsageError(f"a row has {len(value)} images, but a caption is of one: leave one image per row.")
        return value[0] if value else None
    return value


def _listed(value: Any) -> list[str]:
    """Human captions, without blank ones."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        raise UsageError(
            f"references of a row are a mapping ({', '.join(map(str, value))}): give a caption, or a list of them."
        )
    if not isinstance(value, str | Iterable):
        raise UsageError(f"references of a row are {value!r}: give a caption, or a list of them.")
    texts = [value] if isinstance(value, str) else [str(text) for text in value if text is not None]
    return [text for text in texts if text.strip()]


def _opened(picture: Any) -> tuple[str, Image.Image]:
    """A picture as RGB, and a name that tells it from others: its path, or a hash of its content.

    Files and bytes are decoded as a recipe's data are. A PIL image is taken as it is, since its pixels are what the trainer's
    model sees.
    """
    from PIL import Image

    if isinstance(picture, dict):
        picture = picture.get("path") if picture.get("bytes") is None else picture["bytes"]
    if isinstance(picture, str | Path):
        return f"file {picture}", decode(_read(Path(picture)), str(picture))
    if isinstance(picture, bytes):
        return f"bytes {hashlib.sha256(picture).hexdigest()}", decode(picture, "an image given as bytes")
    if not isinstance(picture, Image.Image):
        raise UsageError(f"an image is given as {type(picture).__name__}: give a PIL image, a path, or bytes.")
    picture.load()
    image = widened(to_rgb(picture))
    return f"pixels {image.size} {hashlib.sha256(image.tobytes()).hexdigest()}", image


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"the image {path} cannot be read ({error}): check the path in the data.") from error
