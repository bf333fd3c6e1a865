"""What raters' answers say: accuracy and preference by majority, intervals, tests, agreement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tellapart.evaluation.judge.answers import Answer, is_model
from tellapart.evaluation.judge.study import READS_BETTER, UNSURE, WHICH_IMAGE, Item, Study
from tellapart.metrics.agreement import cohen_kappa, fleiss_kappa, majority, observed_agreement
from tellapart.metrics.proportions import sign_test, wilson_interval

METHODS = {
    "majority": "An item's verdict is the answer that more raters gave than any other; where none leads, or most cannot tell, "
    "it is undecided.",
    "accuracy": "The share of judged items whose verdict is the right image; undecided ones are not right. Where both runs wrote "
    "the same caption, it was asked once and counts for both.",
    "interval": "95 % Wilson score intervals over items, which were drawn independently (answers of several raters to one item "
    "are not).",
    "paired": "Exact two-sided sign test (McNemar's) over images for which one run alone has the right verdict.",
    "preference": "The share of run B among images with a verdict for A or B; images with equal captions were not asked.",
    "sign_test": "Exact two-sided sign test of A against B over these images; undecided ones are left out.",
    "agreement": "The share of pairs of raters with the same answer, and Cohen's kappa (1960) where two raters answered, Fleiss' "
    "(1971) where more did, over the items that have two answers or more. Answers are target, distractor and unsure, or a, b "
    "and unsure. Kappa is low where nearly all answers are alike, however well raters agree.",
    "models": "A model prefers a caption if it does so in both orders of the two, else it is unsure. Which image is answered "
    "from one image at a time, by the log-odds that the caption fits. Models' answers count in no verdict of people.",
}
"""How the numbers are made, for the files that hold them."""


def summarize(
    study: Study, answers: Sequence[Answer], models: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Everything that ``results.json`` holds; numbers that need a missing answer are None.

    Shares are fractions. Majorities, tables and agreement are those of people; each model has figures of its own.

    Args:
        study: the items.
        answers: to them, of people and models.
        models: rater -> what ``models.json`` keeps of a model.
    """
    items = {item.id: item for item in study.items}
    votes = _votes(study, [answer for answer in answers if not is_model(answer.rater)])
    given = Counter(answer.rater for answer in answers if answer.item in votes and not is_model(answer.rater))
    by_model = {answer.rater: _votes(study, _of(answers, answer.rater)) for answer in answers if is_model(answer.rater)}
    return {
        "runs": {"a": study.runs[0], "b": study.runs[1]},
        "about": study.about,
        "raters": [{"name": name, "answers": given[name], "items": len(items)} for name in given],
        WHICH_IMAGE: _which_image(study, votes),
        READS_BETTER: _reads_better(study, votes),
        "models": [_model(study, name, own, votes, (models or {}).get(name, {})) for name, own in by_model.items()],
        "methods": METHODS if by_model else {key: text for key, text in METHODS.items() if key != "models"},
        "items": [_row(item, votes[item.id]) for item in study.items],
    }


def _of(answers: Sequence[Answer], rater: str) -> list[Answer]:
    return [answer for answer in answers if answer.rater == rater]


def _votes(study: Study, answers: Sequence[Answer]) -> dict[str, dict[str, str]]:
    """Item -> rater -> choice."""
    votes: dict[str, dict[str, str]] = {item.id: {} for item in study.items}
    for answer in answers:
        if answer.item in votes:
            votes[answer.item][answer.rater] = answer.choice
    return votes


def _model(
    study: Study,
    name: str,
    own: Mapping[str, Mapping[str, str]],
    people: Mapping[str, Mapping[str, str]],
    kept: Mapping[str, Any],
) -> dict[str, Any]:
    """The figures of one model, and how often it and the people's majority agree where both decide."""
    decided = [(verdict(own[item]), verdict(votes)) for item, votes in people.items() if votes and own[item]]
    both = [pair for pair in decided if UNSURE not in pair]
    return {
        "rater": name,
        WHICH_IMAGE: _which_image(study, own),
        READS_BETTER: _reads_better(study, own),
        "with_people": {"items": len(both), **share(sum(one == other for one, other in both), len(both))},
        "position_bias": kept.get("position_bias"),
        "model": kept.get("model"),
    }


def verdict(votes: Mapping[str, str]) -> str:
    """What most raters said, ``unsure`` where none leads."""
    return majority(list(votes.values())) or UNSURE


def share(successes: int, trials: int) -> dict[str, Any]:
    """A share with its 95 % Wilson interval; None without trials."""
    if not trials:
        return {"share": None, "interval": None}
    return {"share": successes / trials, "interval": list(wilson_interval(successes, trials))}


def agreement(votes: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """How far raters agree over the items that two or more answered.

    Args:
        votes: of each item, rater -> choice.
    """
    raters = sorted({rater for answered in votes for rater in answered})
    shared = [answered for answered in votes if len(answered) >= 2]
    found: dict[str, Any] = {"raters": len(raters), "items": len(shared), "observed": None, "kappa": None, "kind": None}
    if not shared:
        return found
    rows = [list(answered.values()) for answered in shared]
    found["observed"] = observed_agreement(rows)
    if len(raters) == 2:
        columns = [[answered[rater] for answered in shared] for rater in raters]
        return found | {"kind": "Cohen", "kappa": cohen_kappa(*columns)}
    return found | {"kind": "Fleiss", "kappa": fleiss_kappa(rows)}


def _which_image(study: Study, votes: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    items = study.items_of(WHICH_IMAGE)
    right: list[dict[str, bool]] = [{}, {}]
    rows = []
    for run, name in enumerate(study.runs):
        own = [item for item in items if run in item.runs and votes[item.id]]
        verdicts = Counter(verdict(votes[item.id]) for item in own)
        said = [choice for item in own for choice in votes[item.id].values()]
        right[run] = {item.images[0]: verdict(votes[item.id]) == "target" for item in own}
        counts = {"items": len(own), "right": verdicts["target"], "wrong": verdicts["distractor"]}
        counts |= {"undecided": verdicts[UNSURE], "answers": len(said), "answers_right": said.count("target")}
        rows.append({"run": name, **counts, **share(verdicts["target"], len(own))})
    both = [image for image in right[0] if image in right[1]]
    only = [sum(right[run][i] and not right[1 - run][i] for i in both) for run in (0, 1)]
    paired = {"images": len(both), "only_a": only[0], "only_b": only[1], "p_value": sign_test(*only) if both else None}
    return {
        "asked": len(items),
        "judged": sum(bool(votes[item.id]) for item in items),
        "runs": rows,
        "paired": paired,
        "agreement": agreement([votes[item.id] for item in items]),
    }


def _reads_better(study: Study, votes: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    items = study.items_of(READS_BETTER)
    judged = [votes[item.id] for item in items if votes[item.id]]
    verdicts = Counter(map(verdict, judged))
    a, b = verdicts["a"], verdicts["b"]
    return {
        "asked": len(items),
        "judged": len(judged),
        "answers": sum(map(len, judged)),
        "a": a,
        "b": b,
        "undecided": verdicts[UNSURE],
        **share(b, a + b),
        "p_value": sign_test(a, b) if a + b else None,
        "agreement": agreement(judged),
    }


def _row(item: Item, votes: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": item.id,
        "question": item.question,
        "runs": "".join("ab"[run] for run in item.runs),
        "images": list(item.images),
        "captions": list(item.captions),
        "votes": dict(votes),
        "verdict": verdict(votes) if votes else None,
    }
