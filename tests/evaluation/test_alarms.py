"""Alarms: limits worked out by hand, and nothing told where nothing is wrong."""

import pytest

from tellapart.evaluation.alarms import find_alarms


def over(*values: float, every: int = 10) -> list[tuple[int, float]]:
    return [(every * n, value) for n, value in enumerate(values)]


def test_a_fall_below_the_floor_is_told_with_its_numbers():
    """The floor of 2.0 is 0.6 x 2.0 = 1.2; CIDEr is printed times 100."""
    (alarm,) = find_alarms({"eval_CIDEr": over(2.0, 1.3, 1.1, 0.9)})
    assert (alarm.rule, alarm.key, alarm.step, alarm.lasting) == ("likeness", "eval_CIDEr", 20, True)
    assert alarm.limit == pytest.approx(1.2)
    assert alarm.points == ((20, 1.1), (30, 0.9))
    assert alarm.text == (
        "Captions no longer read like the references: lower learning_rate or max_steps, or tie the captioner to its start "
        "(objective.kl_coef or objective.beta, where the method has one). "
        "CIDEr: 200.0 at step 0, 110.0 at step 20, 90.0 at the last, 30; the limit is 120.0."
    )


def test_what_recovers_is_not_lasting_and_the_limit_itself_is_allowed():
    (alarm,) = find_alarms({"eval_unfinished": over(1.0, 6.0, 6.5, 2.0)})  # the limit is 1 + 5
    assert (alarm.rule, alarm.step, alarm.lasting) == ("unfinished", 20, False)
    assert find_alarms({"eval_unfinished": over(1.0, 6.0)}) == []


@pytest.mark.parametrize(
    ("key", "fine", "wrong", "rule"),
    [
        ("eval_grammatical", (100.0, 90.0), (100.0, 89.9), "grammar"),
        ("eval_bad_endings", (0.0, 5.0), (0.0, 5.1), "bad endings"),
        ("eval_repetition", (10.0, 30.0), (10.0, 30.1), "repetition"),
        ("eval_mean_length", (10.0, 15.0), (10.0, 15.1), "longer"),
        ("eval_mean_length", (10.0, 6.8), (10.0, 6.6), "shorter"),
        ("eval_most_common_caption", (2.0, 22.0), (2.0, 22.1), "one caption"),
        ("eval_perplexity", (20.0, 30.0), (20.0, 30.1), "fluency"),
        ("eval_hallucinated", (1.0, 6.0), (1.0, 6.1), "invention"),
        ("eval_CHAIRs", (1.0, 6.0), (1.0, 6.1), "objects"),
        ("eval_grammatical_head", (80.0, 72.0), (80.0, 71.9), "grammar head"),
        ("eval_distinct_captions", (60.0, 45.0), (60.0, 44.9), "few distinct"),
        ("doctor/non_finite", (0.0,), (1.0,), "non finite"),
    ],
)
def test_each_rule_has_its_limit(key, fine, wrong, rule):
    assert find_alarms({key: over(*fine)}) == []
    assert [alarm.rule for alarm in find_alarms({key: over(*wrong)})] == [rule]


def test_the_judge_may_not_fall_while_the_listener_rises():
    """Two points may be lost; where both fall, this rule is silent."""
    up, down = over(20.0, 30.0, 40.0), over(30.0, 28.0, 27.9)
    (alarm,) = find_alarms({"eval_listener_R@1": up, "eval_judge_R@1": down})
    assert (alarm.rule, alarm.step, alarm.limit) == ("judge", 20, 28.0)
    assert alarm.text.endswith(" Meanwhile listener R@1 rose from 20.0 to 40.0.")
    assert find_alarms({"eval_listener_R@1": over(20.0, 19.0, 18.0), "eval_judge_R@1": down}) == []
    assert find_alarms({"eval_judge_R@1": down}) == []


def test_the_start_that_is_told_is_that_of_the_first_captions():
    """Step 0 is babble; 0.67 of 4.2 words are 2.8."""
    curves = {"eval_repetition": over(97.0, 20.0, 20.0), "eval_mean_length": over(15.5, 4.2, 2.0)}
    (alarm,) = find_alarms(curves)
    assert alarm.rule == "shorter"
    assert ": 4.2 at step 10, 2.0 at step 20; the limit is 2.8." in alarm.text


def test_a_runs_own_floor_replaces_the_rule_and_adds_others():
    curves = {"eval_CIDEr": over(2.0, 1.3), "eval_SPICE": over(0.2, 0.1)}
    assert find_alarms(curves) == []
    found = find_alarms(curves, floor={"CIDEr": 0.8, "eval_SPICE": 0.9})
    assert [(alarm.rule, alarm.limit) for alarm in found] == [
        ("likeness", pytest.approx(1.6)),
        ("floor", pytest.approx(0.18)),
    ]


def test_each_metric_of_a_floor_is_told_by_itself():
    """CIDEr's floor is a rule of its own; 0.9 of 0.2 is 0.18, 0.5 of 0.4 is 0.2."""
    curves = {"eval_SPICE": over(0.2, 0.1, 0.19), "eval_METEOR": over(0.4, 0.3, 0.15)}
    found = find_alarms(curves, floor={"SPICE": 0.9, "METEOR": 0.5})
    assert [(alarm.rule, alarm.key, alarm.step, alarm.lasting, alarm.points) for alarm in found] == [
        ("floor", "eval_SPICE", 10, False, ((10, 0.1),)),
        ("floor", "eval_METEOR", 20, True, ((20, 0.15),)),
    ]


def test_hacking_lasts_also_when_another_sign_takes_over():
    """Grammar is broken at step 20 alone; the judge, 30 at the start, is more than two points below it from 30 on."""
    curves = {
        "eval_grammatical": over(100.0, 99.0, 50.0, 98.0, 98.0),
        "eval_judge_R@1": over(30.0, 30.0, 30.0, 27.0, 26.0),
        "reward": over(1.0, 1.1, 1.2, 1.3, 1.4),
    }
    found = {alarm.rule: alarm for alarm in find_alarms(curves)}
    assert {name: (alarm.key, alarm.lasting, alarm.points) for name, alarm in found.items()} == {
        "grammar": ("eval_grammatical", False, ((20, 50.0),)),
        "hacking": ("eval_grammatical", True, ((20, 50.0),)),  # points of a plot are of its own metric
    }
    assert found["hacking"].text.endswith(" At step 40 the sign is judge R@1: 26.0; the limit is 28.0.")
    over_by_the_end = {alarm.rule: alarm for alarm in find_alarms(curves | {"eval_judge_R@1": over(*[30.0] * 5)})}
    assert not over_by_the_end["hacking"].lasting


def test_alarms_come_in_order_of_steps_and_need_two_values():
    curves = {"eval_CIDEr": over(2.0, 1.9, 0.1), "eval_bad_endings": over(0.0, 9.0), "eval_grammatical": [(0, 3.0)]}
    assert [alarm.step for alarm in find_alarms(curves)] == [10, 20]
    assert find_alarms({}) == []


def test_a_verdict_that_held_several_times_is_one_alarm():
    """Grammar at steps 20 and 30, hacking by the same captions: the reward is above its first."""
    curves = {"eval_grammatical": over(100.0, 99.0, 50.0, 40.0), "reward": [(10, 1.0), (20, 1.1), (30, 1.2)]}
    found = {alarm.rule: alarm for alarm in find_alarms(curves)}
    assert {name: (alarm.step, alarm.points) for name, alarm in found.items()} == {
        "grammar": (20, ((20, 50.0), (30, 40.0))),
        "hacking": (20, ((20, 50.0), (30, 40.0))),
    }
    assert found["hacking"].text.endswith(" Meanwhile reward rose from 1.0000 to 1.1000.")
