"""The claims of a caption of the world, exactly, and whether they are true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tellapart.metrics.claims import Claim
from tellapart.world import spec
from tellapart.world.grammar import Description, NounPhrase, parse, write
from tellapart.world.scenes import Scene
from tellapart.world.truth import is_true

PARSER = "the world's grammar"


def exact_claims(caption: str) -> list[Claim]:
    """Every claim is itself a caption of the world; a caption that cannot be read claims nothing.

    Of each phrase: the object, each attribute and the place with its shape, and, if there are several, all of these together, so
    that "a small red circle" needs one circle that is both. Counts are claimed with all attributes. Of each relation: the two
    phrases by colour and shape, and counted ones with all attributes, since there may be more red circles than small red ones.
    And the background.

    Example:
        >>> [claim.text for claim in exact_claims("a red circle above a star")]
        ['a circle', 'a red circle', 'a star', 'a red circle above a star']
    """
    said = parse(caption)
    if said is None:
        return []
    found = {claim.key: claim for claim in _claims(said)}
    return list(found.values())


def _claims(said: Description) -> Iterator[Claim]:
    for phrase in said.phrases:
        yield from _of_phrase(phrase)
    for first, second, relation in zip(said.phrases, said.phrases[1:], said.relations, strict=False):
        if relation != "and":
            yield _claim("relation", _short(first), _short(second), relation=relation)
    if said.background is not None:
        yield _claim("background", NounPhrase(), background=said.background)


def _of_phrase(phrase: NounPhrase) -> Iterator[Claim]:
    if phrase.count > 1:
        yield _claim("count", phrase)
        return
    yield _claim("object", NounPhrase(shape=phrase.shape))
    own: dict[str, Any] = {name: getattr(phrase, name) for name in ("colour", "size", "texture", "place")}
    said = {name: value for name, value in own.items() if value is not None}
    for name, value in said.items():
        one: dict[str, Any] = {name: value}
        yield _claim("place" if name == "place" else "attribute", replace(NounPhrase(shape=phrase.shape), **one))
    if len(said) > 1:
        yield _claim("binding", phrase)


def _short(phrase: NounPhrase) -> NounPhrase:
    return phrase if phrase.count > 1 else replace(phrase, size=None, texture=None, place=None)


def _claim(kind: str, *phrases: NounPhrase, relation: str = "", background: str | None = None) -> Claim:
    text = write(Description(phrases, (relation,) if relation else (), background))
    return Claim(text, kind, (text,))


class SceneVerifier:
    """Knows the scenes, and so whether a claim is true.

    Args:
        scenes: image id -> scene.
    """

    def __init__(self, scenes: Mapping[str, Scene]) -> None:
        self._scenes = scenes

    def verify(self, ids: Sequence[str], claims: Sequence[Sequence[Claim]]) -> list[list[bool]]:
        """Of each image's claims whether they are true; claims that cannot be read are not."""
        return [[self._true(claim.text, name) for claim in own] for name, own in zip(ids, claims, strict=True)]

    def _true(self, text: str, image: str) -> bool:
        said = parse(text)
        return said is not None and is_true(said, self._scenes[image])

    def describe(self) -> dict[str, Any]:
        """The world's version takes the place of the weights' hash."""
        return {"model": "the scenes of the built-in world", "weights": spec.version()}
