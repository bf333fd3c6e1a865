"""The picture of the README: three look-alike images of the built-in world, captioned as usual and told apart.

``python studies/picture.py`` chooses the images by a rule and writes ``docs/apart.svg``.
"""

from __future__ import annotations

import argparse
import base64
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

import torch
from PIL import Image

from tellapart.captioning.apart import Apart
from tellapart.captioning.review_page import marked
from tellapart.errors import UsageError
from tellapart.files import write_text
from tellapart.listeners.late import LateListener
from tellapart.recipe.models import load_captioner, load_listener
from tellapart.world import load_scenes, load_world
from tellapart.world.measures import world_measures
from tellapart.world.stages import resolve
from tellapart.world.vocabulary import MAX_NEW_TOKENS

CARD, GAP, SIDE, TEXT_AT, LINE = 290, 20, 250, 300, 22
"""Pixels: width of a card, space between cards, side of an image, where its texts begin, height of a line."""

LETTERS = 30
"""Per line of a caption."""

MOST_WORDS = 24
"""Captions of more words do not fit a card."""

SEARCHED = 200
"""Test images that are told apart, the first ones."""


@dataclass(frozen=True)
class Captions:
    """Captions of test images, and which of them are right.

    Args:
        before: image id -> its greedy caption.
        after: image id -> its caption among look-alikes.
        true: ids whose greedy caption is true.
        apart: ids whose caption among look-alikes is true of no other test image.
    """

    before: Mapping[str, str]
    after: Mapping[str, str]
    true: frozenset[str]
    apart: frozenset[str]


def draw(size: str) -> Captions:
    """Caption the test split of the world greedily, and its first images among each other."""
    images, scenes = list(load_world("test", size=size)), load_scenes("test", size=size)
    captioner = load_captioner("world/xe", size=size).eval()
    listener = load_listener("world/listener", size=size)
    verifier = LateListener.from_pretrained(resolve("world/verifier", size=size), name="verifier")
    none = {"truth": 0.0, "likelihood": 0.0, "clip_s": 0.0, "fluency": 0.0}
    greedy = Apart(captioner, listener, weights=none, num_beams=1, redraw=0, max_new_tokens=MAX_NEW_TOKENS)
    among = Apart(captioner, listener, verifier=verifier, max_new_tokens=MAX_NEW_TOKENS)
    before = {caption.id: caption.caption for caption in greedy(images)}
    after = {caption.id: caption.caption for caption in among(images[:SEARCHED])}
    true = world_measures(before, scenes).per_image["truthful"]
    found = world_measures(before | after, scenes).per_image["exact_recall@1"]
    return Captions(
        before,
        after,
        frozenset(image for image, share in zip(before, true, strict=True) if share == 100),
        frozenset(image for image, share in zip(before, found, strict=True) if share == 100 and image in after),
    )


def choose(captions: Captions) -> tuple[str, str, str]:
    """Three images with one true greedy caption, each told apart in a longer one; of several the three with the fewest words.

    Raises:
        UsageError: there are none.
    """
    same = defaultdict(list)
    for image in captions.true & captions.apart:
        usual, words = captions.before[image], len(captions.after[image].split())
        if len(usual.split()) < words <= MOST_WORDS:
            same[usual].append((words, image))
    threes = [tuple(sorted(group)[:3]) for group in same.values() if len(group) > 2]
    if not threes:
        raise UsageError("No three images share a true greedy caption and are told apart: use the full world.")
    first, second, third = (
        image for _, image in min(threes, key=lambda three: (sum(words for words, _ in three), three))
    )
    return first, second, third


def lines_of(caption: str, usual: str) -> Iterator[str]:
    """SVG text of a caption, with the words that the usual caption does not have in bold."""
    words = [(word, new) for part, new in marked(caption, usual)[0] for word in part.split()]
    for line in wrap(caption, LETTERS):
        taken, words = words[: len(line.split())], words[len(line.split()) :]
        yield " ".join(f'<tspan class="new">{escape(word)}</tspan>' if new else escape(word) for word, new in taken)


def texts_of(before: str, after: str) -> list[tuple[str, str]]:
    """Lines below an image: class and SVG text."""
    usual = [("usual", escape(line)) for line in wrap(before, LETTERS)]
    told = [("told", line) for line in lines_of(after, before)]
    return [("label", "usual caption"), *usual, ("", ""), ("label", "told apart"), *told]


def card(picture: Image.Image, texts: Sequence[tuple[str, str]], left: int, height: int) -> str:
    """One image above its two captions."""
    kept = io.BytesIO()
    picture.resize((SIDE, SIDE), Image.Resampling.NEAREST).save(kept, "PNG", optimize=True)
    data = base64.b64encode(kept.getvalue()).decode()
    x = left + (CARD - SIDE) // 2
    written = "\n".join(
        f'<text class="{kind}" x="{x}" y="{TEXT_AT + LINE * i}">{line}</text>' for i, (kind, line) in enumerate(texts)
    )
    return f"""<rect class="card" x="{left}" y="0" width="{CARD}" height="{height}" rx="12"/>
<image x="{x}" y="20" width="{SIDE}" height="{SIDE}" href="data:image/png;base64,{data}"/>
{written}"""


STYLE = """text { font: 14px system-ui, sans-serif; fill: #1f2328 } .label { font-size: 12px; fill: #59636e }
.card { fill: #fff; stroke: #d1d9e0 } .new { font-weight: 700; fill: #0a6640 }"""


def picture(cards: Sequence[tuple[Image.Image, str, str]]) -> str:
    """The SVG of cards side by side; readable on light and dark pages."""
    texts = [texts_of(before, after) for _, before, after in cards]
    width, height = len(cards) * (CARD + GAP) - GAP, TEXT_AT + LINE * max(map(len, texts))
    shown = "\n".join(
        card(image, lines, i * (CARD + GAP), height)
        for i, ((image, _, _), lines) in enumerate(zip(cards, texts, strict=True))
    )
    told = "; ".join(after for _, _, after in cards)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 {width + 2} {height + 2}" role="img">
<title>Three images with one usual caption: {escape(cards[0][1])}. Captions that tell them apart: {escape(told)}</title>
<style>{STYLE}</style>
{shown}
</svg>
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Choose the images and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--size", choices=("full", "small"), default="full")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    captions = draw(options.size)
    images = {example.id: example.image for example in load_world("test", size=options.size)}
    cards = [(images[name].open(), captions.before[name], captions.after[name]) for name in choose(captions)]
    write_text(options.docs / "apart.svg", picture(cards))


if __name__ == "__main__":
    main()
