"""Reading the tokenizers and image processors of models, whose settings may have been written by anybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError, reason_of

TRIED = ["a small photo", ""]
"""Texts that every tokenizer can read."""

MOST = 8192
"""Pixels of the longest side that images are made larger to: the processors that exist stay below half of it."""

SETTINGS = ("size", "crop_size", "pad_size", "min_pixels")
"""Settings of transformers' image processors that make images larger or cut them."""

LEAST_AREAS = ("min_pixels", "shortest_edge")
MOST_AREAS = ("max_pixels", "longest_edge")
"""Of processors that keep an image's shape and bound its area: images are made larger to the first, and none to the second."""


def read_image_processor(source: str, **options: Any) -> Any:
    """A model's image processor on Pillow: of the two backends the other needs torchvision and resizes slightly differently.

    Args:
        source: folder or hub id.
        options: further ones of ``from_pretrained``.

    Raises:
        OSError: there is none.
        ValueError: it is of no known kind, or ``require_modest`` refuses it.
    """
    from transformers import AutoImageProcessor

    return require_modest(AutoImageProcessor.from_pretrained(source, backend="pil", **options))


def read_tokenizer(source: str | Path, **options: Any) -> Any:
    """A model's tokenizer, which is tried once: transformers takes settings of a wrong kind, and fails where they are used.

    Args:
        source: folder or hub id.
        options: further ones of ``from_pretrained``.

    Raises:
        OSError: there is none.
        ValueError: it is of no known kind, or cannot read text.
    """
    from transformers import AutoTokenizer

    with _panics_as_errors():
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    return require_readable(tokenizer)


def require_usable(processor: Any) -> Any:
    """A processor of images and text, unless ``require_modest`` or ``require_readable`` refuses a part of it.

    Raises:
        ValueError: as they do.
    """
    require_modest(processor.image_processor)
    require_readable(processor.tokenizer)
    return processor


def require_readable(tokenizer: Any) -> Any:
    """The tokenizer, unless it fails at plain text.

    Raises:
        ValueError: with its reason.
    """
    try:
        with _panics_as_errors():
            tokenizer.batch_decode(tokenizer(TRIED)["input_ids"], skip_special_tokens=True)
            tokenizer.convert_tokens_to_ids(tokenizer.all_special_tokens)
            _ = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id
    except Exception as error:  # whatever it may be, the tokenizer will not do
        raise ValueError(f"its tokenizer cannot read text: {reason_of(error)}") from error
    return tokenizer


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """A panic of the tokenizers library, which is written in Rust, is no ``Exception`` to Python."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(reason_of(error)) from error


def require_known(rows: Sequence[Sequence[int]], known: int, source: str) -> None:
    """Raise where a tokenizer gives ids that its model has no embedding of.

    Args:
        rows: ids of texts.
        known: ids that the model knows, from 0.
        source: what messages call the model.

    Raises:
        UsageError: naming the id.
    """
    highest = max((max(row) for row in rows if row), default=-1)
    if highest >= known:
        raise UsageError(
            f"the tokenizer of {source} gives the id {highest}, but the model knows ids from 0 to {known - 1}: restore its "
            "tokenizer.json."
        )


def require_modest(processor: Any) -> Any:
    """The processor, unless it would make images that are larger than any model takes.

    Raises:
        ValueError: naming the setting.
    """
    by_area = getattr(processor, "merge_size", None) is not None or getattr(processor, "min_pixels", None) is not None
    for name in SETTINGS:
        for key, value in _numbers(name, getattr(processor, name, None)):
            if by_area and key in MOST_AREAS:
                continue
            if value > (MOST**2 if by_area and key in LEAST_AREAS else MOST):
                raise ValueError(f"{name} asks for {value:.3g} pixels")
    return processor


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers of a setting that make images larger, with what they are called."""
    from transformers.image_utils import SizeDict

    members = dict(value).items() if isinstance(value, Mapping | SizeDict) else [(name, value)]
    for key, member in members:
        if isinstance(member, int | float):
            yield key, member
