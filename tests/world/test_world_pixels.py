"""The generator, checked by a second implementation: scenes are read back from pixels, and captions judged by them.

Nothing here uses the package's grammar, truth or list of shapes but as expected values: a cell's colours are counted, a shape is
told by where its outline runs, and a caption is split at its joining words.
"""

import re
from itertools import permutations

import numpy as np
import pytest

from tellapart.world import load_scenes, load_world
from tellapart.world.captions import full_description

PALETTE = {
    "red": (214, 39, 40),
    "orange": (255, 140, 0),
    "yellow": (248, 228, 44),
    "green": (44, 160, 44),
    "cyan": (60, 215, 225),
    "blue": (45, 80, 225),
    "purple": (140, 60, 190),
    "white": (248, 248, 248),
}
GROUNDS = {"black": (18, 18, 18), "gray": (125, 125, 125), "pink": (255, 178, 205), "brown": (105, 66, 38)}
MEANT = {"disc": "circle", "box": "square", "tiny": "small", "big": "large", "stripy": "striped", "spotted": "dotted"}
MEANT |= {"violet": "purple", "grey": "gray", "boxes": "square", "crosses": "cross"}
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross", "ring", "diamond")


def nearest(colour, palette):
    return min(palette, key=lambda name: np.abs(np.array(palette[name]) - colour).sum())


def inside_of(cell, ground):
    """``[32, 32]`` bool: pixels that are not background; noise of 6 in three channels seldom adds up to 60."""
    return np.abs(cell.astype(int) - np.array(GROUNDS[ground])).sum(axis=2) > 60


def spans(inside):
    """Fraction of each row's width that is inside, over rows from the top of the object to its bottom, at five heights."""
    rows = np.flatnonzero(inside.sum(axis=1) > 1)
    columns = np.flatnonzero(inside.sum(axis=0) > 1)
    box = inside[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return box, len(rows), len(columns)


def coarse(inside):
    """``[6, 6]``: how much of each part of the bounding box is inside."""
    box, _, _ = spans(inside)
    grid = np.zeros((6, 6))
    for i, rows in enumerate(np.array_split(np.arange(box.shape[0]), 6)):
        for j, columns in enumerate(np.array_split(np.arange(box.shape[1]), 6)):
            part = box[np.ix_(rows, columns)]
            grid[i, j] = part.mean() if part.size else 0.0
    return grid


def read_picture(picture, shapes):
    """``(background, {cell: (shape, colour, size, texture)})`` of ``[64, 64, 3]`` pixels."""
    corners = np.concatenate([picture[:2, :2], picture[-2:, -2:]]).reshape(-1, 3)
    ground, found = nearest(np.median(corners, axis=0), GROUNDS), {}
    for row in (0, 1):
        for column in (0, 1):
            cell = picture[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
            inside = inside_of(cell, ground)
            if inside.sum() < 30:
                continue
            _, height, width = spans(inside)
            bright = cell[inside].astype(int)
            colour = nearest(
                np.median(bright[bright.sum(axis=1) >= np.percentile(bright.sum(axis=1), 70)], axis=0), PALETTE
            )
            dark = np.abs(bright - 0.3 * np.array(PALETTE[colour])).sum(axis=1) < np.abs(
                bright - np.array(PALETTE[colour])
            ).sum(axis=1)
            texture = "plain" if dark.mean() < 0.1 else "striped" if dark.mean() > 0.38 else "dotted"
            grid = coarse(inside)
            shape = min(shapes, key=lambda name: np.abs(shapes[name] - grid).sum())
            found[row, column] = (shape, colour, "large" if max(height, width) > 18 else "small", texture)
    return ground, found


@pytest.fixture(scope="module")
def pictures():
    """``(scene, pixels)`` of val."""
    scenes = load_scenes("val", size="small")
    return [(scenes[example.id], np.asarray(example.image.open())) for example in load_world("val", size="small")]


@pytest.fixture(scope="module")
def outlines():
    """Shape -> mean coarse outline, learnt from pictures of the training split."""
    scenes, grids = load_scenes("train", size="small"), {name: [] for name in SHAPES}
    for example in load_world("train", size="small").examples:
        pixels, scene = np.asarray(example.image.open()), scenes[example.id]
        for thing in scene.objects:
            cell = pixels[32 * thing.row :, 32 * thing.column :][:32, :32]
            inside = inside_of(cell, scene.background)
            if thing.texture == "plain" and inside.sum() > 30:
                grids[thing.shape].append(coarse(inside))
    return {name: np.mean(found, axis=0) for name, found in grids.items()}


def test_pictures_read_back_are_their_scenes(pictures, outlines):
    right = {name: [] for name in ("background", "cells", "shape", "colour", "size", "texture")}
    for scene, pixels in pictures:
        ground, found = read_picture(pixels, outlines)
        right["background"].append(ground == scene.background)
        right["cells"].append(set(found) == {thing.cell for thing in scene.objects})
        for thing in scene.objects:
            if thing.cell in found:
                for name, value in zip(("shape", "colour", "size", "texture"), found[thing.cell], strict=True):
                    right[name].append(value == getattr(thing, name))
    shares = {name: np.mean(hits) for name, hits in right.items()}
    # Where things are, and all but the shape, is plain to see; a dark stripe on black may hide an outline.
    assert shares.pop("shape") > 0.85, shares
    assert min(shares.values()) > 0.95, shares


def describe(text):
    """A caption as ``(phrases, relations, background)``; a phrase is ``(count, words, cell)``."""
    text = re.sub(r"^(a picture of|an image of|a drawing of|a photo of|we see) ", "", text)
    text, _, ground = text.partition(" on a")
    ground = MEANT.get(word := ground.removesuffix(" background").split()[-1], word) if ground else None
    parts = re.split(r" (and|with|above|below|left of|right of) (?=(?:a|an|two|three) )", text)
    phrases = []
    for part in parts[::2]:
        head, _, place = part.partition(" in the ")
        first, *words = head.split()
        cell = (place.split()[0] == "bottom", place.split()[1] == "right") if place else None
        words = [MEANT.get(word, word) for word in words]
        singular = [
            word.removesuffix("s") if word not in MEANT.values() and word.endswith("s") else word for word in words
        ]
        said = {word for word in singular if word != "shape"}
        phrases.append(({"two": 2, "three": 3}.get(first, 1), said, cell))
    return phrases, parts[1::2], ground


def holds(text, things, ground):
    """Whether a caption is true of ``{cell: attributes}``, by trying every way to give its phrases objects."""
    phrases, relations, said_ground = describe(text)
    if said_ground not in (None, ground):
        return False
    cells = list(things)

    def fits(phrase, cell):
        return phrase[1] <= set(things[cell]) and phrase[2] in (None, tuple(map(bool, cell)))

    for phrase in phrases:
        if phrase[0] > 1 and sum(fits(phrase, cell) for cell in cells) != phrase[0]:
            return False
    slots = [i for i, phrase in enumerate(phrases) for _ in range(phrase[0])]
    if len(slots) > len(cells):
        return False
    for order in permutations(cells, len(slots)):
        given = {i: [cell for slot, cell in zip(slots, order, strict=True) if slot == i] for i in range(len(phrases))}
        if not all(fits(phrases[i], cell) for i, own in given.items() for cell in own):
            continue
        stands = {
            "above": lambda a, b: a[0] < b[0],
            "below": lambda a, b: a[0] > b[0],
            "left of": lambda a, b: a[1] < b[1],
            "right of": lambda a, b: a[1] > b[1],
        }
        if all(
            stands[relation](a, b)
            for i, relation in enumerate(relations)
            if relation in stands
            for a in given[i]
            for b in given[i + 1]
        ):
            return True
    return False


def test_references_are_true_of_what_the_pixels_show(pictures, outlines):
    dataset = load_world("val", size="small").examples
    checked = 0
    for example, (scene, pixels) in zip(dataset, pictures, strict=True):
        ground, found = read_picture(pixels, outlines)
        things = {thing.cell: (thing.shape, thing.colour, thing.size, thing.texture) for thing in scene.objects}
        if found != things:
            continue  # a picture that was misread says nothing about captions
        checked += 1
        for text in (*example.references, full_description(scene)):
            assert holds(text, found, ground), text
    assert checked > 60


def test_both_truths_agree_on_captions_of_other_pictures():
    from tellapart.world.grammar import parse
    from tellapart.world.truth import is_true

    scenes = load_scenes("val", size="small")
    names, seen = list(scenes), {True: 0, False: 0}
    for number, example in enumerate(load_world("val", size="small").examples):
        # A mutant of the same cluster, of which much is true.
        scene = scenes[names[number ^ 1]]
        things = {thing.cell: (thing.shape, thing.colour, thing.size, thing.texture) for thing in scene.objects}
        for text in example.references:
            expected = is_true(parse(text), scene)
            assert holds(text, things, scene.background) == expected, (text, scene)
            seen[expected] += 1
    assert min(seen.values()) > 100
