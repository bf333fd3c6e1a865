"""How our own recipe's point is chosen and what is laid next to it; nothing is trained."""

from __future__ import annotations

import pytest

from sweep.study_fakes import module, note_measured, note_training, rate, study_of
from tellapart.sweep import study_page
from tellapart.sweep.dominance import TOGETHER
from tellapart.sweep.run_study import known
from tellapart.sweep.study_page import write_page
from tellapart.sweep.trainings import option

negclip = module("negclip")
FREE, OURS = negclip.FREE, negclip.OURS
KEYS = ("listener_R@1", "judge_R@1", "truthful", "hallucinated", "detail", "Self-BLEU", "mean_length")


def build(folder):
    """The table's rows have CIDEr 2, 1.9, 1.8 and so on and 30 of the others; most points lie below.

    ``FREE`` at 1e-4 has more exact recall than any row and less CIDEr; ``OURS`` at one point has more of all but is, with the
    first seed, below every row: only the mean over seeds shows it.
    """
    made = study_of("negclip", folder, kind=negclip.NegclipStudy)
    rows = list(made.rows_of_table)
    for name, tasks in made.rows_of_table.items():
        place = rows.index("scst-CIDEr" if name == "sll" else name)  # one training, as in truth
        for task in tasks:
            metrics = point(30.0, 2.0 - place / 10, 30.0)
            if task.trains:
                note_training(task, {0: metrics, 60: metrics}, selected=60)
            else:
                note_measured(task, next(iter(task.measures)), {"start": metrics})
    for name in made.tried_rows:
        for setting in made.grid(name):
            for task in made.tried(name, setting):
                metrics = point(*values(name, setting, task))
                note_training(task, {0: metrics, 60: metrics}, selected=60)
    return made


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """For tests that change nothing in it."""
    return build(tmp_path_factory.mktemp("negclip"))


def values(name, setting, task):
    weight = setting.overrides.get("reward.cider_d")
    if (name, weight, rate(task)) == (OURS, 0.2, 3e-5):
        return (20.0, 1.0, 20.0) if task.seed == 0 else (40.0, 3.0, 40.0)
    if (name, rate(task)) == (FREE, 1e-4):
        return 50.0, -2.0, 20.0
    if name == "dico-CIDEr":
        middle = {3e-5: (30.0, 1.95, 30.0), 1e-4: (31.0, 1.05, 30.0), 3e-4: (32.0, 1.05, 30.0)}
        return middle.get(rate(task), (0.0, 0.0, 0.0))
    return 10.0, 1.95, 29.0


def point(exact, cider, grammatical):
    return dict.fromkeys(KEYS, 1.0) | dict(zip(TOGETHER, (exact, cider, grammatical), strict=True))


def test_the_point_is_chosen_over_seeds_by_how_it_stands_in_the_table(study):
    chosen = study.chosen(OURS)
    assert (chosen.overrides["reward.cider_d"], chosen.overrides["training.learning_rate"]) == (0.2, 3e-5)
    # means over its seeds: exact recall and grammatical 33.3, CIDEr 2.33: over all of the table's rows
    assert study.standing(study.line(OURS, chosen)) == (len(study.table), 0)
    # by none dominated, though it dominates none
    free = study.chosen(FREE)
    assert free.overrides["training.learning_rate"] == 1e-4
    assert study.standing(study.line(FREE, free)) == (0, 0)


def test_being_dominated_counts_first_then_dominating_then_exact_recall(study):
    lines = [study.line("dico-CIDEr", setting) for setting in study.grid("dico-CIDEr")]
    # of n rows one has more CIDEr than the first point, which has more than the others; ten have more than the other points' 1.05
    n = len(study.table)
    assert [study.standing(line) for line in lines[1:4]] == [(n - 1, 1), (n - 10, 0), (n - 10, 0)]
    assert study.chosen("dico-CIDEr").overrides["training.learning_rate"] == 3e-4


def test_a_row_that_is_another_counts_once(study):
    names = [line.name for line in study.table]
    assert "scst-CIDEr" in names
    assert "sll" not in names
    assert not set(names) & set(negclip.LEFT_OUT)


def test_what_leaves_a_part_out_has_the_point_that_was_chosen(study):
    plain, without = study.chosen(negclip.PLAIN), study.chosen(negclip.WITHOUT_KL)
    assert plain.overrides == {"listener.path": "world/listener", "reward.cider_d": 0.2, "training.learning_rate": 3e-5}
    assert without.overrides == {"objective.kl_coef": 0.0, "training.learning_rate": 1e-4}


def test_rows_of_the_table_are_the_tables_trainings(study):
    table = study_of("table", study.sweep.root)
    for name in negclip.COMPARED:
        ours = study.task(name, study.chosen(name), 1)
        assert ours.folder == table.task(name, table.file.rows[name].setting, 1).folder


def test_the_rows_of_the_table_are_kept_with_the_study(study):
    """So that the archive of the table may be measured again without moving this study's points."""
    table = study_of("table", study.sweep.root)
    folders = {task.folder for task in known(study)}
    for name in ("xe", "scst-PAC", "vlrm"):
        assert table.task(name, table.file.rows[name].setting, 2).folder in folders


def test_the_page_shows_every_point_and_each_claim(tmp_path, monkeypatch):
    study = build(tmp_path)
    monkeypatch.setattr(study_page, "instruments", lambda study: [])
    monkeypatch.setattr(negclip, "places", lambda study: "places")
    heights = {FREE: 5.0, OURS: 4.0, "scst-CIDEr": 3.0}
    for name, tasks in study.measured.items():
        for task in tasks:
            metrics = dict.fromkeys((*KEYS, *TOGETHER), heights.get(name, 1.0) + task.seed / 10)
            checkpoints = ("selected", "last") if task.trains else ("start",)
            for place in task.measures:
                note_measured(task, place, dict.fromkeys(checkpoints, metrics))
    for task in study.trained():
        if not (task.folder / "metrics.jsonl").is_file():
            note_training(task, {60: metrics}, selected=60)
    sections, claims = [*negclip.sections(study)], [*negclip.claims(study)]
    text = write_page(study, tmp_path / "p.md", claims=claims, sections=sections).read_text()
    best = f"| **{OURS}** | **cider_d 0.2, learning_rate 3e-05** | **233.3 ± 115.5** | **33.3 ± 11.5** |"
    assert best in text
    assert "Points are tried with seeds 0, 1, 2 and chosen on **val** by their standing in the table" in text
    assert text.count("| dico-NegCLIP+CIDEr | ") == 2 * 2 + 5 + 5  # tables, points by standing, the grid
    holds = "- **Holds**: dico-NegCLIP+CIDEr has a higher"
    assert f"{holds} CIDEr than scst-CIDEr. Measured: 410.0 ± 10.0 against 310.0" in text
    assert f"{holds} exact recall than dico-CIDEr. Measured: 4.1 ± 0.1 against 1.1 ± 0.1." in text


def test_rows_of_the_table_are_as_they_were_when_points_were_chosen(study):
    """Two recipes took other rates later, and four rows came later; search draws nothing on val."""
    now = study_of("table", study.sweep.root).file.rows
    later = {name for name, row in now.items() if row.measure or name in negclip.LEFT_OUT}
    assert set(study.rows_of_table) == set(now) - later
    assert {"xe-sharp", "dico-truth-sharp", "xe, apart", "dico-truth, apart"} <= later
    for name, tasks in study.rows_of_table.items():
        recipe = study.sweep.load(now[name].setting)[1]
        key = "training.learning_rate.captioner" if name in negclip.RATES_THEN else "training.learning_rate"
        same = option(tasks[0].recipe, key) == option(recipe, key)
        assert same == (name not in negclip.RATES_THEN), name
    assert option(study.rows_of_table["wtf_rl"][0].recipe, "training.learning_rate.captioner") == 3e-5
    assert option(study.rows_of_table["reinforce_joint"][0].recipe, "training.learning_rate.captioner") == 1e-4
