"""What captioning a collection needs, built from the options of ``tellapart caption``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.captioning.collection import Pace
from tellapart.captioning.draw import Drawer, Drawing
from tellapart.captioning.gate import Gate, load_openers
from tellapart.captioning.outputs.base import Output
from tellapart.captioning.outputs.files import CocoResults, JsonLines, Parquet
from tellapart.captioning.outputs.sidecars import Sidecars
from tellapart.captioning.outputs.webdataset import WebDataset
from tellapart.captioning.read import Reader
from tellapart.captioning.records import Item
from tellapart.captioning.serve import Station
from tellapart.captioning.style import STYLES, Finish
from tellapart.cli.caption_choices import (
    REWARDS,
    decodings,
    gate_checks,
    kind_of,
    rerank_weights,
    resampled_faults,
    style_of,
)
from tellapart.data.features.base import FeatureInputs
from tellapart.errors import UsageError
from tellapart.recipe.feature_inputs import check_width, features_at
from tellapart.recipe.sections import CaptionerSection

if TYPE_CHECKING:
    from tellapart.captioners.huggingface import HuggingFaceCaptioner
    from tellapart.cli.caption import CaptionOptions
    from tellapart.types import Listener

FILES: dict[str, type[JsonLines | Parquet | WebDataset | CocoResults]] = {
    "jsonl": JsonLines,
    "parquet": Parquet,
    "webdataset": WebDataset,
    "coco": CocoResults,
}
"""Forms of output that are made of a place alone."""


def output_of(options: CaptionOptions, items: Sequence[Item]) -> Output:
    """Where captions go.

    Raises:
        UsageError: the ending of --output says nothing.
    """
    kind, place = kind_of(options), Path(options.output)
    if kind != "sidecars":
        return FILES[kind](place)
    mirrored = options.output != "-"
    paths = [os.path.abspath(item.path.parent) for item in items if item.path is not None]
    place = place if mirrored else Path(os.path.relpath(os.path.commonpath(paths))) if paths else Path()
    return Sidecars(place, extension=options.caption_extension, existing=options.existing, mirrored=mirrored)


def pace_of(options: CaptionOptions) -> Pace:
    """How the work is cut."""
    return Pace(
        batch_size=options.batch_size,
        threads=options.num_workers,
        processes=options.num_processes,
        by_size=options.batch_by_size,
        fail=options.on_error == "fail",
    )


def drawing_of(options: CaptionOptions, captioner: HuggingFaceCaptioner, listener: Listener | None) -> Drawing:
    """How captions are drawn and judged."""
    from tellapart.rewards.mix import Mix

    first, again = decodings(options)
    style = style_of(options)
    openers = tuple(map(tuple, load_openers(options.openers)))
    weights = rerank_weights(options)
    heard = None if listener is None else _Once(listener)
    reward = Mix({name: REWARDS[name](heard) for name in weights}, weights) if weights and heard is not None else None
    return Drawing(
        decoding=first,
        sampling=again,
        seed=options.seed,
        resample=options.resample,
        resample_on=resampled_faults(options),
        finish=Finish(style, openers, options.prefix, options.suffix),
        gate=Gate(gate_checks(options), openers, captioner.family.prompt, options.min_match),
        reward=reward,
        match=None if heard is None else REWARDS["clip_s"](heard),
        keep_all=options.keep_all,
    )


class _Once:
    """A listener that embeds the images of a batch once for all rewards."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.name = listener, listener.name
        self._of: Any = None
        self._embedded: Any = None

    def encode_images(self, batch: Any) -> Any:
        if self._of is not batch:
            self._of, self._embedded = batch, self.listener.encode_images(batch)
        return self._embedded

    def encode_ids(self, ids: Any) -> Any:
        return self.listener.encode_ids(ids)

    def encode_texts(self, texts: Any) -> Any:
        return self.listener.encode_texts(texts)


@dataclass(frozen=True)
class BuildStation:
    """Loads the models in whatever process it is called; it can be sent to a new one."""

    options: CaptionOptions

    def __call__(self, rank: int, processes: int) -> Station:
        """The station of one process, on its own GPU or its share of the CPU.

        Raises:
            UsageError: a model cannot be used.
        """
        import torch

        from tellapart.recipe.models import device, load_listener

        if processes > 1:
            os.environ["LOCAL_RANK"] = str(rank % max(torch.accelerator.device_count(), 1))
            torch.set_num_threads(max(torch.get_num_threads() // processes, 1))
        options = self.options
        captioner = prompted_captioner(options).to(device())
        options = within_limits(options, captioner)
        features = features_at(options.features)
        check_width(captioner, features)
        by_id = {} if features is None else {captioner.name: FeatureInputs(features)}
        processors = {captioner.name: captioner.process} if features is None else {}
        listener = None if options.listener is None else load_listener(options.listener, name="listener")
        if listener is not None:
            processors[listener.name] = listener.process
        return Station(Reader(processors, features=by_id), Drawer(captioner, drawing_of(options, captioner, listener)))


def within_limits(options: CaptionOptions, captioner: HuggingFaceCaptioner) -> CaptionOptions:
    """The options with captions no longer than the model has places for.

    Raises:
        UsageError: --max_new_tokens asks for more.
    """
    config = captioner.family.model.config
    text = getattr(config, "decoder", None) or config.get_text_config()
    places = getattr(text, "max_position_embeddings", None)
    asked = style_of(options).max_new_tokens
    room = None if places is None else places - len(captioner.family.start)
    if room is None or asked <= room:
        return options
    if options.max_new_tokens is not None:
        raise UsageError(f"--max_new_tokens is {asked}, but the model has room for {room} tokens: give at most {room}.")
    return replace(options, max_new_tokens=room)


def prompted_captioner(options: CaptionOptions) -> HuggingFaceCaptioner:
    """The captioner, asked what --prompt says, or the style if the model answers questions put in words.

    Other models read a prompt as the beginning of the caption, which an instruction is not.
    """
    from tellapart.recipe.models import load_captioner

    section = CaptionerSection(model_name_or_path=options.captioner, dtype=options.dtype, prompt=options.prompt)
    captioner, asked = load_captioner(section), STYLES[options.style].prompt
    if options.prompt is None and asked is not None and follows_instructions(captioner):
        captioner.set_prompt(asked)
    return captioner


def follows_instructions(captioner: HuggingFaceCaptioner) -> bool:
    """Whether the model was trained to answer a user's words: its processor or tokenizer has a chat template."""
    parts = (captioner.family.processors.joint, captioner.tokenizer)
    return any(getattr(part, "chat_template", None) for part in parts)
