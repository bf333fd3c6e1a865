"""CHAIR: objects that captions name and images lack (Rohrbach et al. 2018, section 3.1).

An object of an image is a category of COCO's instances that is annotated in it or named by one of its references. The
published list of synonyms is not used: ours (``coco_objects.txt``) is made from the 80 category names with plurals and
common words for them, so values are near to, but not those of, the published tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from tellapart.errors import UsageError

_ANIMALS = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe")
_NONE = "-"


class ObjectNames:
    """Finds the objects that a tokenised caption names; of phrases that overlap the one that begins first, then the
    longest, counts.

    Args:
        text: lines of ``category: word, word, ...``; by default the list that comes with the package.
    """

    def __init__(self, text: str | None = None) -> None:
        if text is None:
            text = (files("tellapart.metrics") / "coco_objects.txt").read_text(encoding="utf-8")
        self._category: dict[tuple[str, ...], str] = {}
        for line in text.splitlines():
            if line.strip() and not line.startswith("#"):
                category, _, words = line.partition(":")
                for name in words.split(","):
                    self._add(name.split(), category)
        for animal in _ANIMALS:  # a baby elephant is not a person
            for kind in ("baby", "adult"):
                self._add([kind, animal], animal)
        self.categories = frozenset(self._category.values()) - {_NONE}
        self._longest = max(map(len, self._category), default=0)

    def _add(self, words: Sequence[str], category: str) -> None:
        self._category.setdefault(tuple(words), category)
        self._category.setdefault((*words[:-1], _plural(words[-1])), category)

    def named(self, caption: str) -> list[str]:
        """The category of every mention of an object, in order; a category may occur several times."""
        return [category for _, category in self.mentions(caption)]

    def mentions(self, caption: str) -> list[tuple[str, str]]:
        """The words of every mention, as the caption has them, and their category."""
        words, found, i = caption.split(), [], 0
        while i < len(words):
            for size in range(min(self._longest, len(words) - i), 0, -1):
                category = self._category.get(tuple(words[i : i + size]))
                if category is not None:
                    break
            else:
                i += 1
                continue
            if category != _NONE:
                found.append((" ".join(words[i : i + size]), category))
            i += size
        return found


def _plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"


def load_instances(*paths: Path) -> dict[str, set[str]]:
    """Image id (as text) -> categories annotated in it, of one or more COCO instance files.

    Raises:
        UsageError: a file cannot be read or is not of this format.
    """
    objects: dict[str, set[str]] = {}
    for path in paths:
        try:
            content = json.loads(path.read_bytes())
            names = {category["id"]: category["name"] for category in content["categories"]}
            objects |= {str(image["id"]): set() for image in content["images"] if str(image["id"]) not in objects}
            for row in content["annotations"]:
                objects.setdefault(str(row["image_id"]), set()).add(names[row["category_id"]])
        except OSError as error:
            raise UsageError(f"the instances {path} cannot be read ({error.strerror}): check the path.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path} is not a file of COCO instances ({error!r}): give instances_val2014.json or the like."
            ) from error
    return objects


def chair(
    captions: Mapping[str, str],
    objects: Mapping[str, set[str]],
    references: Mapping[str, Sequence[str]] | None = None,
    *,
    names: ObjectNames | None = None,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """CHAIR-i and CHAIR-s, and how many of the annotated objects are named: a caption that names nothing errs nowhere.

    Args:
        captions: image id -> tokenised caption.
        objects: image id -> annotated categories (``load_instances``).
        references: image id -> tokenised references, whose objects count as in the image (as published).
        names: words for the objects.

    Returns:
        ``(metrics, columns)``, fractions: ``CHAIRi``, mentions of objects that the image lacks over all mentions (lower is
        better; 0 if there are none); ``CHAIRs``, share of captions with such a mention; ``object_recall``, annotated
        categories that are named over all annotated. Columns ``[N]``: ``objects_named``, ``objects_hallucinated``
        (mentions), ``objects_recalled``, ``objects_annotated`` (categories), ``CHAIRs``.

    Raises:
        UsageError: an image is not in ``objects``, or a category is none of COCO's 80.
    """
    names = names or ObjectNames()
    _check(captions, objects, names)
    named, false, recalled, annotated = [], [], [], []
    for image_id, caption in captions.items():
        mentions = names.named(caption)
        truth = objects[image_id] | {
            name for text in (references or {}).get(image_id, ()) for name in names.named(text)
        }
        named.append(len(mentions))
        false.append(sum(name not in truth for name in mentions))
        recalled.append(len(objects[image_id].intersection(mentions)))
        annotated.append(len(objects[image_id]))
    wrong = np.array([float(count > 0) for count in false])
    metrics = {
        "CHAIRi": sum(false) / max(sum(named), 1),
        "CHAIRs": float(wrong.mean()),
        "object_recall": sum(recalled) / max(sum(annotated), 1),
    }
    counts = {"named": named, "hallucinated": false, "recalled": recalled, "annotated": annotated}
    return metrics, {f"objects_{what}": np.array(count) for what, count in counts.items()} | {"CHAIRs": wrong}


def _check(captions: Mapping[str, str], objects: Mapping[str, set[str]], names: ObjectNames) -> None:
    if not captions:
        raise UsageError("there are no captions to check for objects: give at least one.")
    missing = [image_id for image_id in captions if image_id not in objects]
    if missing:
        raise UsageError(
            f"the instances have no image {missing[0]!r} ({len(missing)} such captions): give the file of that split."
        )
    unknown = set().union(*(objects[image_id] for image_id in captions)) - names.categories
    if unknown:
        raise UsageError(f"category {min(unknown)!r} is none of COCO's 80: CHAIR needs COCO's own instance files.")
