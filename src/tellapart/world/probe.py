"""What a listener of the world can and cannot tell apart, attribute by attribute; measured on val.

Retrieval alone hides it: a listener that knows colours only reaches a fair recall@5, and every run it rewards then learns
to name wrong shapes. So no training on the world counts unless the listener passes (:func:`require_probe`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.metrics.retrieval import recall_at_k, retrieval_ranks
from tellapart.world import Scene, SceneObject, alt_texts, load_scenes, load_world, spec
from tellapart.world.captions import full_description
from tellapart.world.grammar import article, parse
from tellapart.world.negatives import shuffle_words, swap_relation
from tellapart.world.render import Renderer
from tellapart.world.scenes import VALUES, pick, relations_between
from tellapart.world.truth import is_true

PROBE = "probe.json"
DEMANDED = {"shape": 90.0, "colour": 90.0, "size": 90.0, "background": 90.0}
"""Percent right that a listener must reach on single objects before its reward means anything."""

ORDER_AWARE = 80.0
"""Below this percentage of full descriptions preferred to their shuffled words, a listener is called order-blind. Not all of
the preference is for order: shuffling also parts "top" from "left", so that where things are is lost."""

RECALL_AT = (1, 5, 10)
_SEED = 71


def probe(listener: ClipListener, *, size: str = "full") -> dict[str, Any]:
    """All figures in percent.

    Args:
        listener: to be measured.
        size: of the world whose val split is used.

    Returns:
        ``accuracy``: how often the right text scores highest, among as many as the attribute has values (shape, colour,
        size, texture, background: pictures of one object), or of two (binding: colours exchanged, relation: turned into
        its opposite, order: the words of a full description shuffled, sentence: its attribute words alone, which are no
        less true). ``recall``: kind of text -> t2i and i2t recall@k on val. ``cosine``: kind of text -> mean cosine with its
        image, times 100. ``order_blind``: whether ``order`` is under ``ORDER_AWARE``.
    """
    scenes = load_scenes("val", size=size)
    images = _embed(listener, [example.image.open() for example in load_world("val", size=size).examples])
    accuracy = _single_objects(listener, list(scenes.values())) | _two_ways(listener, list(scenes.values()), images)
    recall, cosine = _retrieval(listener, size, images)
    blind = accuracy["order"] < ORDER_AWARE
    return {"accuracy": accuracy, "recall": recall, "cosine": cosine, "order_blind": blind}


def require_probe(folder: Path) -> dict[str, Any]:
    """The probe that was saved beside a listener, once it is good enough.

    The stages of the ``small`` world, which exist to try things out, demand nothing (``demanded`` is empty there).

    Raises:
        UsageError: it was not probed, or reads some attribute too badly.
    """
    path = Path(folder) / PROBE
    if not path.is_file():
        raise UsageError(f"{folder} holds no {PROBE}: give the folder of a listener that was built for the world.")
    found = json.loads(path.read_text(encoding="utf-8"))
    for name, least in found["demanded"].items():
        if found["accuracy"][name] < least:
            raise UsageError(
                f"the listener {folder} tells {name} right in {found['accuracy'][name]:.1f} % of pictures, under {least:g} %, "
                "so its reward would teach wrong words: delete the folder to build it again, or train it longer."
            )
    return found


def _embed(listener: ClipListener, images: Sequence[Any]) -> Tensor:
    """``[M, D]`` of PIL images."""
    with torch.no_grad():
        chunks = [images[start : start + 250] for start in range(0, len(images), 250)]
        return torch.cat([listener.embed_images(listener.process(list(chunk))["pixel_values"]) for chunk in chunks])


def _noun(thing: SceneObject, **said: str) -> str:
    words = [*(word for word in said.values()), thing.shape]
    return f"{article(words[0])} {' '.join(words)}"


QUESTIONS: dict[str, tuple[Sequence[str], Callable[[SceneObject, str], str]]] = {
    "shape": (VALUES["shape"], lambda thing, value: f"{article(value)} {value}"),
    "colour": (VALUES["colour"], lambda thing, value: _noun(thing, colour=value)),
    "size": (VALUES["size"], lambda thing, value: _noun(thing, size=value)),
    "texture": (VALUES["texture"], lambda thing, value: _noun(thing, texture=value)),
    "background": (
        tuple(spec.BACKGROUNDS),
        lambda thing, value: f"{_noun(thing)} on {article(value)} {value} background",
    ),
}
"""Attribute -> its values, and the text that says one of them of an object."""


def single_objects(scenes: Sequence[Scene]) -> tuple[list[Scene], list[ArrayImage]]:
    """Each scene's first object alone on the scene's background, and new pictures of that."""
    single = [replace(scene, objects=scene.objects[:1]) for scene in scenes]
    return single, [ArrayImage(array) for array in Renderer((_SEED,))(single)]


def question(name: str, single: Sequence[Scene]) -> tuple[list[list[str]], list[int]]:
    """What is asked of pictures of one object: for each the texts, one a value of the attribute ``name``, and which is true."""
    values, say = QUESTIONS[name]
    texts = [[say(scene.objects[0], value) for value in values] for scene in single]
    truth = [getattr(scene if name == "background" else scene.objects[0], name) for scene in single]
    return texts, [values.index(value) for value in truth]


def _single_objects(listener: ClipListener, scenes: Sequence[Scene]) -> dict[str, float]:
    """n-way accuracy on new pictures of single objects."""
    single, pictures = single_objects(scenes)
    images, found = _embed(listener, [picture.open() for picture in pictures]), {}
    for name in QUESTIONS:
        texts, true = question(name, single)
        embeddings = listener.encode_texts([text for own in texts for text in own]).view(len(single), len(texts[0]), -1)
        right = (embeddings @ images[:, :, None])[:, :, 0].argmax(dim=1) == torch.tensor(true)
        found[name] = 100.0 * right.float().mean().item()
    return found


def two_ways(scenes: Sequence[Scene]) -> dict[str, list[tuple[int, str, str]]]:
    """What is asked of whole pictures: binding, relation, order or sentence -> (row of the scene, true text, false text)."""
    rng, words = random.Random(_SEED), np.random.default_rng(_SEED)
    pairs: dict[str, list[tuple[int, str, str]]] = {name: [] for name in ("binding", "relation", "order", "sentence")}
    for row, scene in enumerate(scenes):
        full = full_description(scene)
        pairs["order"].append((row, full, shuffle_words(full, words)))
        pairs["sentence"].append((row, full, _keywords(scene, words)))
        if len(scene.objects) < 2:
            continue
        one, other = sorted(scene.objects, key=lambda thing: rng.random())[:2]
        if one.shape != other.shape and one.colour != other.colour:
            true = f"{_noun(one, colour=one.colour)} and {_noun(other, colour=other.colour)}"
            false = f"{_noun(one, colour=other.colour)} and {_noun(other, colour=one.colour)}"
            pairs["binding"] += [(row, true, false)] * (not _is_true(false, scene))
        if (one.shape, one.colour) != (other.shape, other.colour):
            relation = pick(rng, relations_between(one, other))
            said = f"{_noun(one, colour=one.colour)} {relation} {_noun(other, colour=other.colour)}"
            opposite = swap_relation(said, words) or said
            pairs["relation"] += [(row, said, opposite)] * (not _is_true(opposite, scene))
    return pairs


def _two_ways(listener: ClipListener, scenes: Sequence[Scene], images: Tensor) -> dict[str, float]:
    """How often the true text of a pair scores higher than the false one."""
    return {name: _preferred(listener, images, found) for name, found in two_ways(scenes).items()}


def _keywords(scene: Scene, rng: np.random.Generator) -> str:
    """Every attribute word of a scene and nothing else, in random order."""
    named = [getattr(thing, name) for thing in scene.objects for name in VALUES]
    return shuffle_words(" ".join([*named, scene.background, "background"]), rng)


def _is_true(caption: str, scene: Scene) -> bool:
    said = parse(caption)
    return said is not None and is_true(said, scene)


def _preferred(listener: ClipListener, images: Tensor, pairs: Sequence[tuple[int, str, str]]) -> float:
    rows, trues, falses = zip(*pairs, strict=True)
    true, false = ((listener.encode_texts(texts) * images[list(rows)]).sum(dim=1) for texts in (trues, falses))
    return 100.0 * (true > false).float().mean().item()


def _retrieval(
    listener: ClipListener, size: str, images: Tensor
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Kind of text -> recall@k over val, one text an image; and kind of text -> mean cosine x 100."""
    scenes, words = load_scenes("val", size=size), np.random.default_rng(_SEED)
    references, keywords = load_world("val", size=size).references, alt_texts("val", size=size)
    full = [full_description(scene) for scene in scenes.values()]
    kinds = {
        "human": [texts[0] for texts in references.values()],
        "longest human": [max(texts, key=len) for texts in references.values()],
        "alt text": [texts[0] for texts in keywords.values()],
        "full": full,
        "full, shuffled": [shuffle_words(text, words) for text in full],
        "keywords": [_keywords(scene, words) for scene in scenes.values()],
    }
    recall, cosine = {}, {}
    for kind, texts in kinds.items():
        embeddings = listener.encode_texts(texts)
        cosine[kind] = 100.0 * (embeddings * images).sum(dim=1).mean().item()
        t2i, i2t = retrieval_ranks(embeddings.cpu().numpy(), images.cpu().numpy())
        ways = {"t2i": t2i, "i2t": i2t}
        recall[kind] = {f"{way}_R@{k}": recall_at_k(ranks, k) for way, ranks in ways.items() for k in RECALL_AT}
    return recall, cosine
