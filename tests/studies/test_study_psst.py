"""The page on PSST, a study of curves: numbers made by hand, nothing is trained."""

from __future__ import annotations

import pytest

from sweep.study_fakes import finish, module, rate, study_of
from tellapart.sweep import study_page
from tellapart.sweep.study_page import write_page
from tellapart.sweep.trainings import option

psst = module("psst")
CIDER = (2.0, 1.8, 1.6, 1.2, 1.0)
"""Of the four or five weights of every method; the start captioner's is 1.7, halfway between the second and the third."""

RECALL = {"psst": 60.0, "psst_gumbel": 50.0, "st_multinomial": 50.0, "reinforce_joint": 40.0, "luo2018": 30.0}
"""Own R@1 where CIDEr is 1.7, by method; the others have 45, and rho 0 and 1 less than those between."""

BETTER = {"psst, rho 0": 44.0, "psst, rho 0.5": 61.0, "psst, rho 1": 43.0}


def build(folder, changed=None):
    """The finished study with another CIDEr at some points; the higher the rate the better on val, except for reinforce_joint."""

    def on_val(row, task):
        better = -rate(task) if row == "reinforce_joint" else rate(task)
        metrics = {"listener_R@1": 1e4 * better, "own_listener_R@1": 1e4 * better, "CIDEr": 1.0, "grammatical": 90.0}
        further = {"exact_recall@1": 20.0, "truthful": 90.0}
        return {10: metrics | further, 60: metrics | further | {"CIDEr": 2.0}}

    def on_test(shown, task, decoding, point):
        found = on_curve(shown, task)
        return found | {"CIDEr": (changed or {}).get((shown, task.seed), found["CIDEr"])}

    return finish(study_of("psst", folder), on_val, on_test, selected=10)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return build(tmp_path_factory.mktemp("psst"))


def on_curve(shown, task):
    """Own R@1 rises by 50 where CIDEr falls by 1, and by one with every seed."""
    metrics = {"listener_R@1": 20.0, "exact_recall@1": 20.0, "truthful": 90.0}
    metrics |= {"Bleu_4": 0.5, "METEOR": 0.4, "ROUGE_L": 0.8}
    if shown == "xe":
        return metrics | {"CIDEr": 1.7}
    row, _, value = shown.removesuffix(")").partition(" (")
    places = {"0.0133": 0, "0.1": 1, "0.5": 2, "0.9": 3}
    places = {
        "reinforce_joint": {"0.5": 0, "0.8": 1, "0.9": 2, "0.97": 3, "0.99": 4},
        "luo2018": {"1": 0, "4": 1, "9": 2, "30": 3, "100": 4},
        "sr_pl": {"1": 0, "4": 1, "16": 2, "64": 3},
    }.get(row, places)
    cider = CIDER[places[value]] if value else 1.7
    at_start = (RECALL | BETTER).get(row, 45.0)
    return metrics | {"CIDEr": cider, "own_listener_R@1": at_start + 50 * (1.7 - cider) + task.seed}


def test_rates_are_tried_at_the_third_weight_and_kept_for_all(study):
    weights = {
        option(study.tried("psst", point)[0].recipe, "objective.discriminability_weight")
        for point in study.grid("psst")
    }
    assert weights == {0.5}
    assert [rate(study.tried("psst", point)[0]) for point in study.grid("psst")] == [1e-5, 3e-5, 1e-4, 3e-4, 1e-3]
    assert list(study.curve("luo2018").values()) == [f"luo2018 ({value})" for value in (1, 4, 9, 30, 100)]
    assert {rate(study.measured[name][0]) for name in study.curve("psst").values()} == {1e-3}
    assert {rate(study.measured[name][0]) for name in study.curve("reinforce_joint").values()} == {1e-5}
    assert study.grid("psst, rho 0.5") == []
    assert rate(study.measured["psst, rho 0.5 (0.5)"][0]) == 1e-3
    assert option(study.measured["psst, rho 0.5 (0.5)"][0].recipe, "objective.rho") == 0.5


def test_every_row_has_three_seeds(study):
    found = {name: [task.seed for task in tasks] for name, tasks in study.measured.items()}
    assert set(map(tuple, found.values())) == {(0, 1, 2)}
    # xe, eight curves, two of them with a fifth weight, g_gan, two of listener_only, and at two weights each four values of rho
    # and two rows whose EOS is constant
    assert len(found) == 1 + 8 * 4 + 2 + 1 + 2 + 6 * 2


def test_curves_are_read_between_neighbouring_weights(study):
    read = study.at_fixed("psst", "CIDEr", 1.7, "own_listener_R@1")
    assert read.values == pytest.approx([60.0, 61.0, 62.0])  # 55 at 1.8, 65 at 1.6, and one more with every seed
    # the start captioner lies at the very CIDEr that is asked for, and is not a point of the curve
    assert study.at_fixed("luo2018", "CIDEr", 1.7, "own_listener_R@1").values == pytest.approx([30.0, 31.0, 32.0])
    assert study.at_fixed("st_gumbel", "own_listener_R@1", 47.0, "CIDEr").values == pytest.approx([166.0, 168.0, 170.0])
    assert study.at_fixed("psst", "CIDEr", 2.1, "own_listener_R@1") is None
    assert study.common_middle(("psst", "luo2018"), "CIDEr") == pytest.approx((1.2 + 2.0) / 2)


def test_what_one_seed_does_not_enclose_is_unreached(tmp_path):
    third = {
        (f"psst ({value})", 2): cider
        for value, cider in zip((0.0133, 0.1, 0.5, 0.9), (1.6, 1.5, 1.4, 1.3), strict=True)
    }
    study = build(tmp_path, third)
    assert study.at_fixed("psst", "CIDEr", 1.7, "own_listener_R@1") is None
    assert len(study.at_fixed("psst", "CIDEr", 1.55, "own_listener_R@1").values) == 3
    assert study.common_middle(("psst", "luo2018"), "CIDEr") == pytest.approx((1.3 + 1.6) / 2)


def test_curves_are_read_where_most_of_them_can_be(tmp_path):
    """All curves enclose CIDEr from 1.6 to 2, those with more than two weights more."""
    lower = {(f"luo2018 ({value:g})", 0): 0.5 + value / 1000 for value in (1, 4, 9, 30, 100)}
    whole = build(tmp_path / "all")
    assert psst.levels(whole, "CIDEr") == {1.8: psst.curved(whole)}
    found = psst.levels(build(tmp_path / "less", lower), "CIDEr")
    assert [*found] == pytest.approx([1.8])
    assert "luo2018" not in found[1.8]
    higher = {(f"luo2018 ({value:g})", seed): 3 + value / 100 for value in (1, 4, 9, 30, 100) for seed in range(3)}
    found = psst.levels(build(tmp_path / "more", higher), "CIDEr")
    assert [*found] == pytest.approx([1.8, 3.505])
    assert found[3.505] == ["luo2018"]


class Training:
    """CIDEr on val at steps 0, 10, ...; truth is one less with every step."""

    def __init__(self, *cider):
        self.cider = cider

    def watched(self):
        return {10 * n: {"CIDEr": value, "truthful": 90.0 - n} for n, value in reversed([*enumerate(self.cider)])}


def test_a_training_is_read_where_it_first_passes_a_value():
    there_and_back = Training(1.0, 2.0, 1.2)
    assert psst.over_steps([there_and_back], "CIDEr", 1.5, "truthful").values == pytest.approx([89.5])
    assert psst.over_steps([there_and_back, Training(1.0, 1.4)], "CIDEr", 1.5, "truthful") is None


def test_values_lie_between_the_highest_start_and_what_half_of_the_rows_reach():
    rows = {"a": [Training(1.0, 3.0), Training(1.2, 2.0)], "b": [Training(1.1, 4.0)], "c": [Training(1.1, 1.15)]}
    assert psst.step_levels(rows, "CIDEr") == pytest.approx([1.4, 1.6, 1.8, 2.0])
    assert psst.step_levels({"c": rows["c"], "d": [Training(1.3)]}, "CIDEr") == []


def test_claims(study):
    """Where CIDEr is 1.6 each method has 5 more than where it is 1.7."""
    claims = [*psst.claims(study)]
    assert [claim.holds for claim in claims] == [True] * 10
    assert claims[0].evidence == "66.0 ± 1.0 against 56.0 ± 1.0 at CIDEr 160."
    said = "rho 0: 40.0 ± 1.0, rho 0.25: 56.0 ± 1.0, rho 0.5: 57.0 ± 1.0, rho 0.75: 41.0 ± 1.0, rho 1: 39.0 ± 1.0 at CIDEr 180."
    assert claims[-1].evidence == said


def test_curves_without_a_common_cider_are_compared_at_equal_recall(tmp_path):
    """With a CIDEr higher by 1, psst has an own R@1 of 56 at a CIDEr of 2.78, 2.8 and 2.82, luo2018 at 1.18, 1.2 and 1.22."""
    weights = (0.0133, 0.1, 0.5, 0.9)
    higher = {(f"psst ({weights[i]})", seed): CIDER[i] + 1 for i in range(4) for seed in range(3)}
    claim = [*psst.claims(build(tmp_path, higher))][2]
    assert claim.holds
    assert claim.text == "psst has a higher CIDEr than luo2018 at equal own R@1."
    assert claim.evidence == "280.0 ± 2.0 against 120.0 ± 2.0 at own R@1 56."


def test_an_end_that_cannot_be_compared_is_not_beaten(tmp_path):
    claims = [*psst.claims(build(tmp_path, {("psst, rho 1 (0.0133)", 0): 3.6, ("psst, rho 1 (0.5)", 0): 3.4}))]
    assert not claims[-1].holds


def test_the_sweep_of_rho_is_read_between_the_same_weights(tmp_path):
    """A curve with more points bends where others are straight, which must not decide for it."""
    study = build(tmp_path, {("psst (0.1)", 0): 1.99})
    assert study.at_fixed("psst", "CIDEr", 1.8, "own_listener_R@1").values[0] != 55.0
    assert "rho 0.25: 56.0" in [*psst.claims(study)][-1].evidence


def test_the_page(study, tmp_path, monkeypatch):
    monkeypatch.setattr(study_page, "instruments", lambda study: [])
    text = write_page(study, tmp_path / "p.md", claims=[*psst.claims(study)], sections=psst.sections(study)).read_text()
    assert text.count("**Holds**") == 10
    table = text.partition("<summary>At fixed CIDEr, over weights")[2].partition("</details>")[0]
    assert (
        "| CIDEr | method | own R@1 | listener R@1 | exact_recall@1 | BLEU-4 | METEOR | ROUGE-L | truthful |" in table
    )
    # the rows with two weights enclose 1.6 to 2, all others more
    assert "| 180.0 | psst | 56.0 ± 1.0 | 20.0 ± 0.0 | 20.0 ± 0.0 |" in table
    assert "unreached" not in table
    assert "enclose no CIDEr" not in table
    assert "listener_only" not in table
    assert "g_gan" not in table
    assert "<summary>At fixed own R@1, over weights" in text
    steps = text.partition("<summary>At fixed CIDEr, over steps")[2].partition("</details>")[0]
    assert "| own R@1 | CIDEr 125.0 | CIDEr 150.0 | CIDEr 175.0 | CIDEr 200.0 |" in steps
    listening = text.partition("## Test, greedy: listening")[2].partition("##")[0]
    assert "| psst (0.0133) | last | 46.0 ± 1.0 |" in listening
    assert "| xe | - | - | - | - | 20.0 ± 0.0 |" in listening
