"""False siblings of the moving world's captions: another event, another order, other actors, or another attribute.

They teach ``world/video-listener``, as NegCLIP's teach CLIP (Yuksekgonul et al., ICLR 2023). A sibling differs from its
caption; of a clip in which both happen it is true, which is rare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tellapart.world.scenes import VALUES
from tellapart.world.video import spec
from tellapart.world.video.grammar import THEN, Clause, MovingDescription, parse, write

RATES = {"motion": 0.45, "order": 0.25, "actors": 0.2, "attributes": 0.1}
"""How often each kind of false text is tried first."""


def hard_negative(text: str, rng: np.random.Generator) -> str:
    """A false sibling of a caption; where the kind that was drawn cannot be made, another is.

    Raises:
        ValueError: the text is not of the moving world's language.
    """
    said = parse(text)
    if said is None:
        raise ValueError(f"{text!r} is not a caption of the moving world")
    first = list(_MAKERS)[int(rng.choice(len(RATES), p=list(RATES.values())))]
    makers = [_MAKERS[first], with_other_motion, with_other_attribute, with_another_clause]
    return write(next(found for make in makers if (found := make(said, rng)) is not None))


def with_other_motion(said: MovingDescription, rng: np.random.Generator) -> MovingDescription | None:
    """One verb, direction or colour turned to is another; none where no clause has a verb."""
    places = [i for i, clause in enumerate(said.clauses) if clause.verb is not None]
    if not places:
        return None
    place = int(rng.choice(places))
    clause = said.clauses[place]
    if clause.to is not None and rng.random() < 0.6:
        values = tuple(spec.DIRECTIONS) if clause.verb == "moves" else VALUES["colour"]
        others = [value for value in values if value not in (clause.to, clause.phrase.colour)]
        changed = replace(clause, to=str(rng.choice(others)))
    else:
        verbs = [verb for verb in (*spec.VERBS, spec.STAYS) if verb != clause.verb and _fits(verb, place, said)]
        changed = _with_verb(clause, str(rng.choice(verbs)), rng)
    return replace(said, clauses=(*said.clauses[:place], changed, *said.clauses[place + 1 :]))


def _fits(verb: str, place: int, said: MovingDescription) -> bool:
    """Whether a clause may have this verb: what stays has no place in an order."""
    return verb != spec.STAYS or THEN not in said.orders[max(0, place - 1) : place + 1]


def _with_verb(clause: Clause, verb: str, rng: np.random.Generator) -> Clause:
    choices = {"moves": tuple(spec.DIRECTIONS), "turns": VALUES["colour"]}.get(verb, ())
    choices = tuple(value for value in choices if value != clause.phrase.colour)
    return Clause(clause.phrase, verb, str(rng.choice(choices)) if choices else None)


def with_other_order(said: MovingDescription, rng: np.random.Generator) -> MovingDescription | None:
    """The clauses on both sides of a "then" exchanged; none where no order is stated, or both say the same."""
    places = [i for i, order in enumerate(said.orders) if order == THEN and said.clauses[i] != said.clauses[i + 1]]
    if not places:
        return None
    place = int(rng.choice(places))
    clauses = list(said.clauses)
    clauses[place], clauses[place + 1] = clauses[place + 1], clauses[place]
    return replace(said, clauses=tuple(clauses))


def with_other_actors(said: MovingDescription, rng: np.random.Generator) -> MovingDescription | None:
    """Two objects exchange what they do; none where that says the same."""
    if len(said.clauses) < 2:
        return None
    place = int(rng.integers(len(said.clauses) - 1))
    first, second = said.clauses[place : place + 2]
    exchanged = replace(first, phrase=second.phrase), replace(second, phrase=first.phrase)
    if first.phrase == second.phrase or (first.verb, first.to) == (second.verb, second.to):
        return None
    return replace(said, clauses=(*said.clauses[:place], *exchanged, *said.clauses[place + 2 :]))


def with_other_attribute(said: MovingDescription, rng: np.random.Generator) -> MovingDescription | None:
    """One attribute that is named is another; none where none is named."""
    named = [(i, name) for i, clause in enumerate(said.clauses) for name in VALUES if getattr(clause.phrase, name)]
    if not named:
        return None
    place, name = named[int(rng.integers(len(named)))]
    clause = said.clauses[place]
    others = [value for value in VALUES[name] if value != getattr(clause.phrase, name)]
    phrase = replace(clause.phrase, **{name: str(rng.choice(others))})  # type: ignore[arg-type]  # names of attributes
    return replace(said, clauses=(*said.clauses[:place], replace(clause, phrase=phrase), *said.clauses[place + 1 :]))


def with_another_clause(said: MovingDescription, rng: np.random.Generator) -> MovingDescription:
    """Another object appears, too."""
    phrase = replace(
        said.clauses[0].phrase, shape=str(rng.choice(VALUES["shape"])), colour=str(rng.choice(VALUES["colour"]))
    )
    return replace(said, clauses=(*said.clauses, Clause(phrase, "appears")), orders=(*said.orders, "and"))


_MAKERS: dict[str, Callable[[MovingDescription, np.random.Generator], MovingDescription | None]] = {
    "motion": with_other_motion,
    "order": with_other_order,
    "actors": with_other_actors,
    "attributes": with_other_attribute,
}
"""Kinds of ``RATES`` -> what makes them."""
