"""NLVR's pictures for the study ``nlvr``: square canvases, what is in each box, and the groups of look-alikes.

The data set is that of Suhr, Lewis, Yeh and Artzi (A Corpus of Natural Language for Visual Reasoning, ACL 2017).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tellapart.errors import UsageError
from tellapart.files import fresh_folder, write_json

SHAPES = ("circle", "square", "triangle")
COLOURS = {"Yellow": "yellow", "Black": "black", "#0099ff": "blue"}
RGB = {"yellow": (255, 255, 0), "black": (0, 0, 0), "blue": (0, 153, 255)}
SIZES = (10, 20, 30)
KINDS = tuple((colour, shape) for colour in RGB for shape in SHAPES)

BOX, BOXES, PITCH = 100, 3, 150
"""Side of a box, boxes per image, and distance from one box to the next, in pixels of the corpus."""

SIDE = 96
"""Side of the canvas that models see: two by two boxes of 48 pixels, the last one empty."""

GREY = 128
SLACK = 4
"""Pixels by which smoothed edges make a shape seem smaller than it is."""

HELD_OUT_EVERY = 3
"""Every third group with validated labels of the training split is held out."""

TRAIN, HELD_OUT = "train", "held_out"


@dataclass(frozen=True)
class Thing:
    """An object in a box.

    Args:
        colour: ``yellow``, ``black`` or ``blue``.
        shape: ``circle``, ``square`` or ``triangle``.
        size: width and height in pixels: 10, 20 or 30.
        x: left edge, 0 to 90.
        y: upper edge, 0 to 90.
    """

    colour: str
    shape: str
    size: int
    x: int
    y: int

    @property
    def touches(self) -> set[str]:
        """Those of ``left``, ``right``, ``top``, ``base`` that it touches."""
        ends = {
            "left": self.x <= 1,
            "top": self.y <= 1,
            "right": self.x + self.size >= BOX - 1,
            "base": self.y + self.size >= BOX - 1,
        }
        return {name for name, touched in ends.items() if touched}


Scene = tuple[tuple[Thing, ...], ...]
"""The things in each of three boxes."""


@dataclass(frozen=True)
class Group:
    """A sentence, and the images it was written about.

    Args:
        name: of the group.
        split: ``train``, ``held_out``, ``val``, or ``test`` where the folder has one.
        sentence: in words, lower case.
        true: file names of images that it is true of, in the corpus's first order of the boxes.
        false: those that it is false of.
    """

    name: str
    split: str
    sentence: str
    true: tuple[str, ...]
    false: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """The folder of the data, as its README describes it.

    Args:
        folder: with ``dataset_nlvr.json``, ``groups.json``, ``structured.json`` and ``images``.
    """

    folder: Path

    @cached_property
    def groups(self) -> dict[str, Group]:
        """Name -> group; of the training split every third validated one is held out.

        Raises:
            UsageError: the folder lacks a file.
        """
        written = self._read("groups.json")
        validated = sorted(name for name, group in written.items() if _is_validated(group))
        held_out = set(validated[::HELD_OUT_EVERY])
        found = {}
        for name, group in written.items():
            images: dict[str, list[str]] = {"true": [], "false": []}
            for image in group["images"]:
                if image["sentence_is"] in images:
                    images[image["sentence_is"]].append(image["file_name"])
            split = HELD_OUT if name in held_out else group["split"]
            sides = (tuple(sorted(images[said])) for said in ("true", "false"))
            found[name] = Group(name, split, words_of(group["sentence"]), *sides)
        return found

    @cached_property
    def scenes(self) -> dict[str, Scene]:
        """Scene, such as ``dev-1572-0`` -> what ``structured.json`` says of it."""
        return {name: _scene(boxes) for name, boxes in self._read("structured.json").items()}

    @cached_property
    def captioned(self) -> list[dict[str, Any]]:
        """The images that have a caption, as ``dataset_nlvr.json`` lists them."""
        return list(self._read("dataset_nlvr.json")["images"])

    def picture(self, file_name: str) -> Image.Image:
        """An image as it is stored, in RGB."""
        with Image.open(self.folder / "images" / file_name) as image:
            return image.convert("RGB")

    def _read(self, name: str) -> Any:
        path = self.folder / name
        if not path.is_file():
            raise UsageError(f"{path} does not exist: give the folder of NLVR's captions (docs/how-to/studies.md).")
        return json.loads(path.read_text(encoding="utf-8"))


def _is_validated(group: Mapping[str, Any]) -> bool:
    labels = {image["label_source"] for image in group["images"]}
    said = {image["sentence_is"] for image in group["images"]}
    return group["split"] == TRAIN and labels == {"validated"} and said >= {"true", "false"}


def words_of(sentence: str) -> str:
    """A sentence in lower case without punctuation, one space between words."""
    kept = "".join(letter if letter.isalnum() or letter in "'-" else " " for letter in sentence.lower())
    return " ".join(word.strip("'-") for word in kept.split() if word.strip("'-"))


def scene_name(file_name: str) -> str:
    """``dev-1572-0`` of ``dev-1572-0-3.png``."""
    return file_name.rsplit("-", 1)[0]


def _scene(boxes: Sequence[Sequence[Mapping[str, Any]]]) -> Scene:
    return tuple(
        tuple(
            Thing(COLOURS[thing["color"]], thing["type"], thing["size"], round(thing["x_loc"]), round(thing["y_loc"]))
            for thing in box
        )
        for box in boxes
    )


def boxes_of(picture: Image.Image) -> list[Image.Image]:
    """The three boxes of an image of the corpus."""
    return [picture.crop((left, 0, left + BOX, BOX)) for left in range(0, BOXES * PITCH, PITCH)]


def canvas(boxes: Sequence[Image.Image]) -> Image.Image:
    """Three boxes on a square: two above, one below, each at half of the side."""
    side, made = SIDE // 2, Image.new("RGB", (SIDE, SIDE), (GREY,) * 3)
    for place, box in enumerate(boxes):
        small = box if box.size == (side, side) else box.resize((side, side), Image.Resampling.BOX, reducing_gap=None)
        made.paste(small, (place % 2 * side, place // 2 * side))
    return made


def read_box(box: Image.Image) -> tuple[Thing, ...] | None:
    """What is in a box, by its pixels: connected areas of one colour, told apart by how much of their frame they fill.

    Returns:
        the things from top to bottom; None where some area is no single shape (two of one colour touch).
    """
    pixels, found = np.asarray(box), []
    for colour, rgb in RGB.items():
        for area in _areas((pixels == rgb).all(axis=2)):
            if len(area) < 12:
                return None
            thing = _shape(colour, np.array(area))
            if thing is None:
                return None
            found.append(thing)
    return tuple(sorted(found, key=lambda thing: (thing.y, thing.x)))


def _shape(colour: str, area: np.ndarray) -> Thing | None:
    (top, left), (bottom, right) = area.min(axis=0), area.max(axis=0) + 1
    height, width = int(bottom - top), int(right - left)
    size = next((size for size in SIZES if size - SLACK <= max(height, width) <= size), 0)
    if not size or min(height, width) < size - SLACK:
        return None
    filled = len(area) / (height * width)
    shape = "square" if filled > 0.97 else "circle" if filled > 0.66 else "triangle"
    # The smoothed edge lies around the area, evenly: its frame is that of the shape.
    x = min(max(round(left - (size - width) / 2), 0), BOX - size)
    y = min(max(int(bottom) - size if shape == "triangle" else round(top - (size - height) / 2), 0), BOX - size)
    return Thing(colour, shape, size, int(x), int(y))


def _areas(mask: np.ndarray) -> Iterator[list[tuple[int, int]]]:
    left = {(int(row), int(column)) for row, column in zip(*mask.nonzero(), strict=True)}
    while left:
        waiting = [left.pop()]
        area = []
        while waiting:
            row, column = waiting.pop()
            area.append((row, column))
            for near in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
                if near in left:
                    left.remove(near)
                    waiting.append(near)
        yield area


def read_scene(picture: Image.Image) -> Scene | None:
    """What is in an image, by its pixels; None where one of its boxes cannot be read."""
    boxes = [read_box(box) for box in boxes_of(picture)]
    return None if any(box is None for box in boxes) else tuple(boxes)  # type: ignore[arg-type]


def prepare_pictures(corpus: Corpus, folder: Path) -> Path:
    """Write canvases of all images, with their captions in Karpathy's layout; returns the path of the data file.

    Splits are ``train`` without the held-out groups, ``held_out`` in the first order of the boxes, and the corpus's own others.
    """
    path = folder / "dataset_nlvr.json"
    if path.is_file():
        return path
    with fresh_folder(folder) as temporary:
        (temporary / "images").mkdir()
        for source in sorted((corpus.folder / "images").iterdir()):
            canvas(boxes_of(corpus.picture(source.name))).save(temporary / "images" / source.name)
        write_json(temporary / path.name, {"dataset": "nlvr", "images": list(_images(corpus))})
        read = {}
        for group in corpus.groups.values():
            for name in (*group.true, *group.false):
                scene = corpus.scenes.get(scene_name(name)) or read_scene(corpus.picture(name))
                read[scene_name(name)] = None if scene is None else [[vars(thing) for thing in box] for box in scene]
        write_json(temporary / "scenes.json", read)
    return path


def _images(corpus: Corpus) -> Iterator[dict[str, Any]]:
    for image in corpus.captioned:
        group = corpus.groups[image["group"]]
        if group.split == HELD_OUT and image["permutation"]:
            continue
        text = words_of(image["sentences"][0]["raw"])
        sentence = {**image["sentences"][0], "raw": text, "tokens": text.split()}
        yield {**image, "split": group.split, "sentences": [sentence]}


def read_scenes(folder: Path) -> dict[str, Scene]:
    """Scene -> what is in it, of the images that :func:`prepare_pictures` could read."""
    written = json.loads((folder / "scenes.json").read_text(encoding="utf-8"))
    return {
        name: tuple(tuple(Thing(**thing) for thing in box) for box in boxes)
        for name, boxes in written.items()
        if boxes is not None
    }
