"""The table over every method: who dominates whom, what a row says, its page and picture; nothing is trained."""

from __future__ import annotations

import pytest

from sweep.study_fakes import finish, module, study_of
from tellapart.sweep.dominance import TOGETHER, Line, dominates, front, unbeaten
from tellapart.sweep.tasks import SECONDS_FILE

table = module("table")
PLANE = table.PLANE


@pytest.fixture
def columns(tmp_path):
    (found,) = study_of("table", tmp_path).file.tables.values()
    return found


def line(name, cider, exact, grammatical=100.0, seconds=1.0):
    """Two seeds around the means."""
    seeds = [dict.fromkeys(("listener_R@1", "judge_R@1", "truthful"), 1.0) for _ in range(2)]
    for one, away in zip(seeds, (-0.01, 0.01), strict=True):
        one.update({"CIDEr": cider + away, "exact_recall@1": exact + away, "grammatical": grammatical})
    return Line(name, seeds, seconds)


A, B, C, D = line("a", 1.0, 30.0), line("b", 2.0, 20.0), line("c", 1.0, 20.0), line("d", 2.0, 25.0, 90.0)


def test_a_row_dominates_another_that_is_nowhere_better():
    assert dominates(A, C, PLANE)
    assert dominates(B, C, PLANE)
    assert not dominates(A, B, PLANE)
    assert not dominates(B, A, PLANE)
    assert not dominates(A, A, PLANE)
    assert dominates(D, B, PLANE)
    assert not dominates(D, B, TOGETHER)  # it is less grammatical


def test_the_front_is_what_none_dominates():
    assert front([A, B, C], PLANE) == {"a", "b"}
    assert front([A, B, C, D], PLANE) == {"a", "d"}
    assert front([A, B, C, D], TOGETHER) == {"a", "b", "d"}


def test_a_row_is_unbeaten_if_none_is_ahead_of_it_in_most_figures():
    assert unbeaten([A, B, C, D], PLANE) == ["a", "b", "d"], "d is ahead of c in both"
    a, b, c = (
        Line(name, [dict(zip(table.PROMISED, values, strict=True))])
        for name, values in (("a", (3.0, 1.0, 2.0)), ("b", (2.0, 3.0, 1.0)), ("c", (1.0, 2.0, 3.0)))
    )
    assert unbeaten([a, b], table.PROMISED) == ["a"]  # by recall and CIDEr
    assert unbeaten([a, b, c], table.PROMISED) == [], "each is ahead of one and behind another"
    assert "`a`." in table.best([a, b])
    assert table.best([a, b, c]).endswith(": none.")


def test_the_table_marks_and_counts(columns):
    rows = {text.split("|")[1].strip(): text for text in table.table([A, B, C, D], columns).splitlines()[2:]}
    assert set(rows) == {"a *", "b", "c", "d *"}
    cells = [cell.strip() for cell in rows["a *"].split("|")]
    assert "100.0 ± 1.4" in cells  # CIDEr 0.99 and 1.01, times 100: the deviation of two values 2 apart is sqrt(2)
    assert cells[-4:-1] == ["1.00", "1", "0"]
    assert [cell.strip() for cell in rows["c"].split("|")][-3:-1] == ["0", "2"]  # a and b, not d
    missing = Line("e", [{"CIDEr": 1.0, "exact_recall@1": 1.0, "grammatical": 1.0}])
    assert "| - |" in table.table([missing], columns)


def test_the_page(tmp_path, monkeypatch):
    """Of the last step a row that is trained has other numbers, a start captioner the same; beams give half a point each."""

    def on_test(shown, task, decoding, point):
        value = {"dico": 3.0, "xe": 1.0, "dico-truth, apart": 9.0}.get(shown, 2.0) + task.seed / 10 - (point == "last")
        value += int(decoding.removeprefix("beam ")) / 10 if decoding != "greedy" else 0
        keys = ("CIDEr", "exact_recall@1", "grammatical", "truthful", "listener_R@1", "judge_R@1", "rs5_mBLEU-4")
        return dict.fromkeys(keys, value)

    study = study_of("table", tmp_path)
    study.file = study.file.keeping({"dico", "vlrm", "dico-truth, apart"}).seeded([0, 1, 2, 3, 4])
    finish(study, lambda row, task: {0: {"CIDEr": 1.0}, 60: {"CIDEr": 1.0}}, on_test, selected=0)
    for task in study.timings():
        (task.folder / SECONDS_FILE).write_text('{"seconds": 0.87}')
    monkeypatch.setattr(table, "instruments", lambda study: ["What each model sees."])
    text = table.write(study, tmp_path).read_text()
    assert "The 15 trainings took 30.0 hours of one thread" in text
    assert text.index("What each model sees.") < text.index("![recall against CIDEr]")
    selected, last, by_beams, last_by_beams = text.partition("## The selected checkpoint")[2].split("<summary>")[:4]
    # judge R@1 of five seeds 0.1 apart, CIDEr and mBLEU-4 times 100; dico is above xe, blip2 and vlrm
    assert "| dico | 3.2 ± 0.2 | 3.2 ± 0.2 | 3.2 ± 0.2 | 320.0 ± 15.8 | - | - | 320.0 ± 15.8 |" in selected
    assert "| 0.87 | 3 | 1 |" in selected
    assert "CIDEr (means over seeds): `dico-truth, apart`." in selected
    assert "| xe | 1.2 ± 0.2 |" in last
    assert "| dico | 2.2 ± 0.2 |" in last
    heads = by_beams.partition("| row ")[2].partition("\n")[0]
    assert [head.strip() for head in heads.strip("|").split("|")] == [
        f"{key}, {decoding}" for decoding in ("greedy", "beam 5", "beam 10") for key in table.PROMISED
    ]
    three = "{0} ± 0.2 | {0} ± 0.2 | {1} ± 15.8"
    dico = " | ".join(three.format(*pair) for pair in ((3.2, "320.0"), (3.7, "370.0"), (4.2, "420.0")))
    assert f"| dico | {dico} |" in by_beams
    assert "dico-truth, apart |" not in by_beams, "it has one decoding"
    assert (
        "(means over seeds): `dico-truth, apart`. Rows are those of the table above, and of beam 5 and beam 10."
        in by_beams
    )
    assert "| dico | 2.2 ± 0.2 | 2.2 ± 0.2 |" in last_by_beams
    recipes = text.partition("<summary>The recipe of each row")[2]
    assert "| dico | `world_ved_dico` | `dico` | `world/xe` | 60 | 48 | 3e-05 |" in recipes
    assert (
        "| vlrm | `world_blip2_vlrm` | `vlrm` | `world/blip2` | 40 | 512 | captioner 0.0001, critic 0.001 |" in recipes
    )
    assert "| xe | no training | - | `world/xe` | - | - | - |" in recipes
    search = "10 beams, told apart by `world/listener` and `world/verifier`"
    assert f"| dico-truth, apart | `world_ved_dico_truth`; {search} | `dico` | `world/xe` | 240 |" in recipes
    assert {path.name for path in tmp_path.glob("leaderboard*")} == {
        "leaderboard.md",
        "leaderboard.png",
        "leaderboard.svg",
    }


def test_a_picture_is_the_same_bytes_when_drawn_again(tmp_path):
    lines = [
        Line(name, [dict.fromkeys((*PLANE, *table.UPWARDS), place + seed) for seed in (0.0, 0.5)])
        for place, name in enumerate("ab")
    ]
    first = [path.read_bytes() for path in table.draw(tmp_path / "first", lines)]
    assert [path.read_bytes() for path in table.draw(tmp_path / "again", lines)] == first
