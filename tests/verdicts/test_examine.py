"""Verdicts over logs: recorded runs of many methods on the world, and rules worked out by hand.

``recorded/`` holds the figures that rules read of finished runs (four digits, every fifth step): of each method one that stayed
well, and some that collapsed. Their rows in the tables of docs/results are where "well" and "collapsed" come from; that of xe is
of the small world, from an untrained captioner on.
"""

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tellapart.names import resolve
from tellapart.objectives import METHODS, SHIPPED
from tellapart.recipe import sections as schema
from tellapart.rewards import REWARDS
from tellapart.training.config import TrainConfig
from tellapart.verdicts.examine import Examination, examine
from tellapart.verdicts.rules import FLOOR_SAYS, HACKED, HACKING, HACKING_SAYS, RULES, WORSE

RECORDED = Path(__file__).resolve().parent / "recorded"

COLLAPSED = {
    "collapsed_wtf": (
        {
            "longer",
            "likeness",
            "grammar",
            "unfinished",
            "bad endings",
            "repetition",
            "drawn unfinished",
            "judge",
            "invention",
        },
        30,
    ),
    "collapsed_wtf_rl_judge": ({"grammar", "longer", "likeness", "invention", "judge"}, 50),
    "collapsed_wtf_rl_one_caption": (
        {"shorter", "few distinct", "hacking", "one caption", "likeness", "image ignored"},
        30,
    ),
    "collapsed_lstm_sle": ({"shorter", "one caption", "few distinct", "hacking", "image ignored"}, 20),
    "eroded_scst": ({"longer", "grammar", "hacking", "likeness"}, 30),
}
"""Run -> its verdicts, and the step at which a patience of two evaluations ends it (of 60)."""

HEALTHY = sorted(path.stem for path in RECORDED.glob("healthy_*.jsonl"))


def recorded(name):
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines()]


def ends_at(lines, patience=2):
    """The step after which ``--on_hack stop`` ends the run."""
    examination = Examination()
    for line in lines:
        examination.take(line)
        if examination.hacked >= patience:
            return line["step"]
    return None


@pytest.mark.parametrize("name", COLLAPSED)
def test_collapsed_runs_are_seen_and_ended(name):
    verdicts, step = COLLAPSED[name]
    assert {verdict.name for verdict in examine(recorded(name))} == verdicts
    assert ends_at(recorded(name)) == step


LESS_LIKE_REFERENCES = {"healthy_dpo"}
"""No healthy run of it kept 0.6 of its CIDEr to the end: its captions say more than the references do."""


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_raise_nothing(name):
    """Captions may grow, which is told as a change and not warned of."""
    told = {verdict.name for verdict in examine(recorded(name)) if not verdict.change}
    assert told == ({"likeness"} if name in LESS_LIKE_REFERENCES else set())
    assert ends_at(recorded(name), patience=1) is None


def test_every_method_has_a_healthy_run():
    assert {f"healthy_{name}" for name in SHIPPED} <= set(HEALTHY)


def test_later_captions_are_held_against_the_first_that_are_captions():
    """Babble at step 0 and one caption for nearly all images at step 10: what follows is shorter and names more."""
    keys = ("repetition", "bad_endings", "most_common_caption", "mean_length", "hallucinated")
    rows = [(97.0, 0.0, 52.0, 15.5, 25.0), (10.0, 90.0, 89.0, 1.9, 1.0), (23.0, 0.0, 21.0, 4.2, 55.0)]
    rows += [(14.0, 0.0, 8.0, 4.6, 48.0), (15.0, 0.0, 8.0, 2.7, 61.0)]
    lines = [
        {"step": 10 * n}
        | {f"eval_{key}": value for key, value in zip(keys, row, strict=True)}
        | {"eval_CIDEr": 0.1 * n}
        for n, row in enumerate(rows)
    ]
    found = examine(lines)
    # 0.67 of 4.2 is 2.8, and 55 + 5 points are 60.
    assert [(verdict.name, verdict.step, verdict.began) for verdict in found] == [
        ("shorter", 40, 20),
        ("invention", 40, 20),
    ]
    resumed = Examination(state=json.loads(json.dumps(after(lines[:2]).state())))
    assert [verdict for line in lines[2:] for verdict in resumed.take(line)] == found


def test_what_needs_no_first_captions_is_told_of_babble_too():
    """A floor is a share of step 0, as where checkpoints are selected."""
    babble = {"step": 0, "eval_repetition": 97.0, "eval_SPICE": 0.2}
    fell = {"step": 10, "eval_repetition": 97.0, "eval_SPICE": 0.1}
    (floor,) = examine([babble, fell], floor={"SPICE": 0.9})
    assert (floor.name, floor.began, floor.limit) == ("floor", 0, pytest.approx(0.18))
    assert [v.name for v in examine([babble | {"eval_distinct_captions": 1.0}])] == ["image ignored"]


def evaluations(*rows):
    return [{"step": 10 * n} | {f"eval_{key}": value for key, value in row.items()} for n, row in enumerate(rows)]


def test_damage_is_told_whatever_else_is_wrong_with_the_captions():
    """Grammar is held against step 0, also of captions that share one text; 0.9 of 90 is 81."""
    first, later = {"bad_endings": 55.0, "grammatical": 90.0}, {"bad_endings": 60.0, "grammatical": 5.0}
    found = examine(evaluations(first | {"perplexity": 10.0}, later | {"perplexity": 400.0}))
    assert {v.name for v in found} == {"grammar", "fluency"}
    same = {"most_common_caption": 100.0}
    (grammar,) = examine(evaluations({"grammatical": 100.0} | same, {"grammatical": 0.0} | same))
    assert (grammar.name, grammar.began, grammar.first) == ("grammar", 0, 100.0)
    (grammar, _) = examine(evaluations({"grammatical": 90.0} | same, {"grammatical": 5.0}, {"grammatical": 5.0}))
    assert (grammar.began, grammar.limit) == (0, 81.0)


def test_what_was_learned_after_babble_can_get_lost():
    babble = {"grammatical": 0.0, "repetition": 97.0}
    (grammar,) = examine(evaluations(babble, {"grammatical": 86.0}, {"grammatical": 10.0}))
    assert (grammar.step, grammar.began, grammar.first) == (20, 10, 86.0)


def test_the_start_of_a_floor_is_no_other_rules():
    """A floor on length replaces shorter, and longer still waits for captions: 1.5 of 4 is 6."""
    rows = [{"mean_length": 2.0, "repetition": 97.0}, {"mean_length": 4.0}, {"mean_length": 5.0}, {"mean_length": 7.0}]
    (longer,) = examine(evaluations(*rows), floor={"mean_length": 0.9})
    assert (longer.name, longer.step, longer.began, longer.limit) == ("longer", 30, 10, 6.0)


def after(lines):
    """What was seen of a log once these lines were taken."""
    examination = Examination()
    for line in lines:
        examination.take(line)
    return examination


@pytest.mark.parametrize("name", ["collapsed_wtf", "eroded_scst"])
def test_a_state_goes_on_like_the_whole(name):
    """After any line, through JSON."""
    lines = recorded(name)
    whole = examine(lines)
    for cut in range(0, len(lines), 3):
        first = Examination()
        found = [verdict for line in lines[:cut] for verdict in first.take(line)]
        second = Examination(state=json.loads(json.dumps(first.state())))
        found += [verdict for line in lines[cut:] for verdict in second.take(line)]
        assert found == whole


def steps(key, *values, every=10):
    return [{"step": every * n, key: value} for n, value in enumerate(values, start=1)]


def told(lines):
    return [(verdict.name, verdict.step, verdict.looks) for verdict in examine(lines)]


def test_single_steps_of_training_must_last():
    """Three in a row; the count goes on, and begins anew after a step that is fine."""
    values = (0.91, 0.95, 0.9, 0.95, 1.0, 1.0, 1.0, 0.0)
    assert told(steps("frac_reward_zero_std", *values)) == [("no spread", 60, 3), ("no spread", 70, 4)]


def test_a_reward_near_0_is_told_of_either_sign_and_by_part():
    assert told(steps("reward", 9e-5, -9e-5, 0.0)) == [("zero reward", 30, 3)]
    assert told(steps("reward", 2e-4, -2e-4, 2e-4)) == []
    assert told(steps("rewards/cider_d", 0.0009, 0.0, 0.0)) == [("zero reward", 30, 3)]


def test_drawn_captions_may_be_cut_too_often_from_the_first_step_on():
    """10 points more than at first, but never more than half of them."""
    assert told(steps("completions/clipped_ratio", 0.51, 0.51, 0.51)) == [("drawn unfinished", 30, 3)]
    assert told(steps("completions/clipped_ratio", 0.2, 0.3, 0.29, 0.3)) == []
    assert told(steps("completions/clipped_ratio", 0.2, 0.31, 0.31, 0.31)) == [("drawn unfinished", 40, 3)]


def test_an_ignored_image_is_told_at_the_start_and_is_no_hack():
    lines = steps("eval_distinct_captions", 4.9, 4.9, 4.9)
    assert [name for name, *_ in told(lines)] == ["image ignored"] * 3
    assert ends_at(lines) is None


def test_hacking_is_a_reward_that_rises_while_something_else_falls():
    falls = [{"step": 0, "eval_grammatical": 100.0}, {"step": 10, "eval_grammatical": 80.0}]
    up = [{"step": 1, "reward": 1.0}, {"step": 9, "reward": 1.1}]
    down = [{"step": 1, "reward": 1.0}, {"step": 9, "reward": 0.9}]
    fine = [{"step": 0, "eval_grammatical": 100.0}, {"step": 10, "eval_grammatical": 95.0}]

    def names(evaluations, rewards):
        lines = [evaluations[0], *rewards, evaluations[1]]
        return [verdict.name for verdict in examine(lines)]

    assert names(falls, up) == ["grammar", "hacking"]
    assert names(falls, down) == ["grammar"]
    assert names(fine, up) == []
    (_, hacking) = examine([falls[0], *up, falls[1]])
    assert hacking.rose == ("reward", 1.0, 1.1)
    assert hacking.text.endswith("(eval_grammatical 80; 100 at step 0; limit 90; reward 1.1, first 1).")
    assert ends_at([*falls, {"step": 20, "eval_grammatical": 80.0}]) == 20, "a fall alone counts, too"


def test_the_judge_alone_is_no_verdict_but_beside_a_rising_reward_it_is():
    lines = [{"step": 0, "eval_judge_R@1": 30.0}, {"step": 10, "eval_judge_R@1": 27.0}]
    assert told(lines) == []
    up = [{"step": 1, "reward": 0.1}, {"step": 9, "reward": 0.2}]
    assert told([lines[0], *up, lines[1]]) == [("hacking", 10, 1)]


def test_what_is_no_number_is_passed_over():
    lines = [{"step": 0, "eval_CIDEr": 1.0}, {"step": 10, "eval_CIDEr": None}, {"step": 20, "eval_CIDEr": 0.5}]
    assert told(lines) == [("likeness", 20, 1)]
    assert told([{"step": 1, "reward": float("nan")}] * 3) == []


def test_every_verdict_is_one_sentence_that_names_settings_which_exist():
    """``section.option`` of a recipe, or an option of the loop."""
    sections = {
        "evaluation": schema.EvaluationSection,
        "listener": schema.ListenerSection,
        "data": schema.DataSection,
        "captioner": schema.CaptionerSection,
    }
    known = {f"{name}.{field.name}" for name, kind in sections.items() for field in fields(kind)}
    known |= {f"reward.{name}" for name in REWARDS}
    parameters = {name for method in METHODS.values() for name in inspect.signature(resolve(method.target)).parameters}
    known |= {f"objective.{name}" for name in parameters}
    loop = {field.name for field in fields(TrainConfig)}
    for says in {*(rule.says for rule in RULES), HACKING_SAYS, FLOOR_SAYS}:
        named = set(re.findall(r"\b(?:reward|evaluation|listener|data|captioner|objective)\.\w+", says))
        assert named <= known, named - known
        assert named or any(re.search(rf"\b{option}\b", says) for option in loop | {"weights of reward"})
        assert says.endswith(".")
        assert says.count(". ") == 0


def test_what_has_a_metric_measured_exists():
    """Options of a recipe, or a function for those who train from Python."""
    sections = {"evaluation": schema.EvaluationSection, "data": schema.DataSection}
    for named in {rule.measured_by for rule in RULES if rule.measured_by}:
        module, _, name = re.split("[ ,]", named)[0].rpartition(".")
        if module in sections:
            assert name in {field.name for field in fields(sections[module])}
        else:
            assert callable(resolve(f"{module}:{name}"))


def test_the_named_subsets_are_rules():
    names = {rule.name for rule in RULES}
    assert set(HACKED) - {HACKING} <= names
    assert set(WORSE) - {"judge fell"} <= names
    assert all(rule.says == other.says for rule in RULES for other in RULES if rule.name == other.name)
