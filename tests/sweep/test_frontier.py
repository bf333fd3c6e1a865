"""Frontiers from chosen numbers: what is read off, with which certainty, and what is written."""

import csv
import io
import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from frontier_fakes import EVIL, begun_from, curve, two_curves

from evaluation.evaluation_fakes import toy_dataset
from tellapart.errors import UsageError
from tellapart.metrics.curves import t_quantile
from tellapart.sweep.curves import PlannedCurve
from tellapart.sweep.frontier import Curve, Training, band, levels, read, read_curves, write_frontier
from tellapart.sweep.frontier.examples import page_data
from tellapart.sweep.frontier.picture import draw, panels_of
from tellapart.sweep.frontier.readings import Reading, best_point, naturalness, recalls
from tellapart.sweep.frontier.tables import fixed_readings, points_table, to_csv, verdict
from tellapart.sweep.records import require_comparable, start_models


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    return two_curves(tmp_path_factory.mktemp("curves"))


@pytest.fixture(scope="module")
def written(curves, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frontier")
    write_frontier(folder, curves, dataset=toy_dataset(), images=5)
    return folder


def test_each_seed_is_read_on_its_own_curve(curves):
    dico = curves[0]
    found = read(dico, "selected", "CIDEr", 0.8, "judge_R@1")
    # seed 0 meets (0.80, 55); seed 1 lies between (0.72, 64) and (0.83, 57), seed 2 between (0.71, 60) and (0.82, 54)
    each = [55.0, 64 - 7 * 0.08 / 0.11, 60 - 6 * 0.09 / 0.11]
    assert found.value == pytest.approx(statistics.fmean(each))
    assert found.half == pytest.approx(t_quantile(2) * statistics.stdev(each) / math.sqrt(3))
    assert (found.reached, found.seeds, found.passes) == (3, 3, 1)


def test_unreached_partly_reached_and_turning_back(curves):
    dico, scst = curves
    assert read(dico, "selected", "CIDEr", 0.5, "judge_R@1") == Reading(None, None, 0, 3, 0)
    # seed 1 begins at 0.72 and seed 2 at 0.71: only seed 0 reaches 0.705, and one seed has no interval
    partly = read(dico, "selected", "CIDEr", 0.705, "judge_R@1")
    assert (partly.reached, partly.seeds, partly.half) == (1, 3, None)
    # kl_coef 0.1 and 1.0 both lie beyond CIDEr 0.86 or before: the path passes there twice
    assert read(scst, "selected", "CIDEr", 0.87, "judge_R@1").passes == 2
    assert read(scst, "selected", "CIDEr", 0.6, "judge_R@1").passes == 1


def test_the_band_is_where_all_seeds_reach(curves):
    dico = curves[0]
    drawn = band(dico, "selected", "CIDEr", "judge_R@1")
    assert drawn[0][0] == 0.72  # the latest beginning
    assert drawn[-1][0] == pytest.approx(0.93)  # the earliest end
    for at, low, high in drawn:
        inside = read(dico, "selected", "CIDEr", min(at, 0.93), "judge_R@1")
        assert (low + high) / 2 == pytest.approx(inside.value)
        assert (high - low) / 2 == pytest.approx(inside.half)
    one_seed = replace(dico, points=tuple(replace(p, trainings=p.trainings[:1]) for p in dico.points))
    assert band(one_seed, "selected", "CIDEr", "judge_R@1") == []


def test_levels_lie_where_all_curves_can_be_read(curves):
    # all seeds of dico enclose 0.72 to 0.93, all of scst 0.35 to 0.88: shared 0.72 to 0.88
    assert levels(curves, "selected", "CIDEr") == pytest.approx([0.76, 0.80, 0.84])
    for value in levels(curves, "selected", "CIDEr"):
        assert all(read(one, "selected", "CIDEr", value, "judge_R@1").reached == 3 for one in curves)
    # at the last step the two share no CIDEr: the quartiles of all models, which are points
    every = levels(curves, "last", "CIDEr")
    assert len(every) == 3
    assert all(
        any(read(one, "last", "CIDEr", value, "judge_R@1").value is not None for one in curves) for value in every
    )


def test_which_metrics_are_recall_and_which_are_naturalness():
    keys = [
        "own_listener_human_R@1",
        "own_listener_R@1",
        "judge_i2t_R@1",
        "judge_R@1",
        "exact_recall@5",
        "CIDEr",
        "perplexity",
        "judge_MRR",
        "mean_length",
        "METEOR",
    ]
    assert recalls(keys) == ["judge_R@1", "own_listener_R@1", "exact_recall@5"]
    assert naturalness(keys) == ["CIDEr", "perplexity", "METEOR"]


def test_the_best_point_is_the_nearest_to_the_best_of_both(curves):
    # mean CIDEr runs from 0.3233 (scst 0) to 0.94 (dico 0.2), mean R@1 from 21 (scst 1) to 68 (scst 0)
    means = {(0, 0): (0.71, 62.0), (0, 1): (2.45 / 3, 166 / 3), (0, 2): (0.94, 42.0)}
    means |= {(1, 0): (0.97 / 3, 68.0), (1, 1): (2.29 / 3, 151 / 3), (1, 2): (0.89, 91 / 3), (1, 3): (0.85, 21.0)}
    distances = {at: math.hypot((0.94 - x) / (0.94 - 0.97 / 3), (68 - y) / (68 - 21)) for at, (x, y) in means.items()}
    best = best_point(curves, "selected", "CIDEr", "judge_R@1")
    assert best == (0, 1) == min(distances, key=distances.get)
    assert best_point(curves, "selected", "mean_length", "judge_R@1") is None  # not measured
    # Self-BLEU is better where it is small, and here grows with recall: the two ends are equally far
    assert best_point(curves[1:], "selected", "Self-BLEU", "Self-BLEU") == (0, 3)
    told = verdict(curves, *best, "CIDEr", "judge_R@1")
    assert told == (
        "Best compromise between judge R@1 and CIDEr: dico, objective.beta=0.1. "
        "judge R@1 55.3 (start model 10.0), CIDEr 81.7 (start model 100.0); 3 seeds."
    )


def test_one_point_has_no_range_to_be_best_of(curves):
    alone = [replace(curves[0], points=curves[0].points[:1])]
    assert best_point(alone, "selected", "CIDEr", "judge_R@1") is None


def test_a_point_is_compared_with_its_own_start_model_or_with_none(curves):
    """Where a start model was not measured, that of another training would be taken for it."""

    def found(*begins):
        (told,) = page_data([begun_from(curves[0], *begins)], None, images=0)["curves"]
        return told["points"][0]["changes"]["selected"].get("judge_R@1", (None,))[0], told["points"][0]["begins"]

    one = start_of(curves)
    assert found(one, one, one) == (pytest.approx(statistics.fmean([52, 54, 50])), {"start": 0, "trainings": [0, 0, 0]})
    others = another(one, 11.0), another(one, 12.0)
    assert found(one, *others) == (pytest.approx((52 + 53 + 48) / 3), {"start": 0, "trainings": [0, 1, 2]})
    # two of three could not be measured: the one that was is not theirs, since a seed redraws the start model
    assert found(one, None, None) == (pytest.approx(52), {"start": 0, "trainings": [0, None, None]})
    assert found(None, None, None) == (None, {"start": None, "trainings": [None, None, None]})


def start_of(curves):
    return curves[0].points[0].trainings[0].start


def another(start, recall):
    """Another start model, which finds more or fewer images."""
    return replace(start, folder=start.folder / str(recall), metrics={**start.metrics, "judge_R@1": recall})


def test_start_models_that_a_knob_chooses_are_points_of_their_own(curves):
    one = start_of(curves)
    two = another(one, 30.0)
    chosen = [begun_from(curves[0], [one] * 3, [one] * 3, [two] * 3), curves[1]]
    table = points_table(chosen, "selected")
    recall = table.headings.index("judge R@1 %" if "judge R@1 %" in table.headings else "judge R@1")
    assert [(row[0], row[1], row[recall]) for row in table.rows if "start" in row[0]] == [
        (f"start model of dico: objective.beta=0.05, dico: objective.beta=0.1, {curves[1].label}", "1", "10.0"),
        ("start model of dico: objective.beta=0.2", "1", "30.0"),
    ]
    assert "judge R@1 42.0 (start model 30.0)" in verdict(chosen, 0, 2, "CIDEr", "judge_R@1")
    told = page_data(chosen[:1], None, images=0)
    assert [point["begins"]["start"] for point in told["curves"][0]["points"]] == [0, 0, 1]
    assert [start["point"]["means"]["start"]["judge_R@1"][0] for start in told["starts"]] == [10.0, 30.0]


def test_the_start_model_of_a_seed_whose_training_failed_is_not_in_the_comparison(curves):
    one = start_of(curves)
    redrawn = begun_from(curves[0], one, another(one, 20.0), another(one, 60.0))
    points = tuple(replace(point, trainings=point.trainings[:2], failed={2: "killed"}) for point in redrawn.points)
    assert "(start model 15.0)" in verdict([replace(redrawn, points=points)], 0, 2, "CIDEr", "judge_R@1")


def test_a_start_model_that_a_knob_does_not_change_counts_once_a_seed(curves):
    one = start_of(curves)
    same = replace(one, folder=one.folder / "of another rank")
    redrawn, other = another(one, 11.0), replace(another(one, 11.0), folder=one.folder / "of another rank, redrawn")
    found = start_models([begun_from(curves[0], [one, redrawn, None], [same, other, None], [same, None, None])])
    assert [[training.start for training in trainings] for _, trainings in found] == [[None, None]]
    assert [[(t.seed, t.checkpoints["start"]) for t in trainings] for _, trainings in found] == [
        [(0, one), (1, redrawn)]
    ]


def test_a_curve_knows_the_start_model_of_each_training(curves):
    """A start model that could not be measured is that of no training."""
    one = start_of(curves)

    def task(name, seed, done=True):
        return SimpleNamespace(
            folder=Path(name),
            seed=seed,
            done=lambda: done,
            measured=lambda: {"start": one} if name[:5] == "start" else {},
        )

    starts = [task("start-0", 0), task("start-1", 1, done=False)]
    trainings = [task("dico-0", 0), task("dico-1", 1)]
    begin_with = {training.folder: start for training, start in zip(trainings, starts, strict=True)}
    planned = PlannedCurve("", "", "", None, [({}, trainings)], begin_with)
    assert [training.start for training in planned.measured().points[0].trainings] == [one, None]


def test_csv_has_a_row_per_evaluation(curves):
    rows = list(csv.DictReader(io.StringIO(to_csv(curves))))
    assert len(rows) == 1 + 2 * (3 * 3 + 4 * 3)  # the start once; two checkpoints of every training
    assert (rows[0]["curve"], rows[0]["checkpoint"], rows[0]["CIDEr"]) == ("start model", "start", "1.0")
    (found,) = (
        row for row in rows if (row["objective.kl_coef"], row["seed"], row["checkpoint"]) == ("0.01", "1", "last")
    )
    assert found["curve"] == curves[1].label
    assert (found["objective.beta"], float(found["CIDEr"]), found["step"]) == ("", 0.39, "60")


def test_asked_values_are_as_printed(curves, tmp_path):
    write_frontier(tmp_path, curves, asked={"CIDEr": [80.0, 300.0]}, images=0, picture=False)
    readings = json.loads((tmp_path / "frontier.json").read_text())["readings"]
    assert {entry["at"] for entry in readings} == {0.8, 3.0}
    assert all(entry["value"] is None for entry in readings if entry["at"] == 3.0)
    text = (tmp_path / "frontier.md").read_text()
    assert re.search(r"\| dico \| 300\.0 \| unreached \| unreached", text)
    with pytest.raises(UsageError, match="--at CIDER was not measured: choose one of CIDEr"):
        fixed_readings(curves, {"CIDER": [1.0]})


def test_every_file_is_written(written):
    assert {path.name for path in written.iterdir()} == {
        *("frontier.md", "frontier.csv", "frontier.json", "frontier.html"),
        *("frontier.png", "frontier.svg", "frontier-last.png", "frontier-last.svg"),
    }
    assert (written / "frontier.png").read_bytes()[:4] == b"\x89PNG"
    picture = (written / "frontier.svg").read_text()
    assert "<script" not in picture
    assert "http://www.w3.org/2000/svg" in picture


def test_curves_come_back_as_they_were(written, curves):
    assert read_curves(written) == curves


def test_a_moved_frontier_finds_its_points(tmp_path):
    made = [curve(tmp_path / "old" / "points", "a", "objective.beta", {0.1: [(0.5, 10.0)], 0.2: [(0.7, 5.0)]})]
    write_frontier(tmp_path / "old", made, images=0, picture=False)
    (tmp_path / "old").rename(tmp_path / "new")
    (found,) = read_curves(tmp_path / "new")
    assert found.path("selected", 0, "CIDEr", "judge_R@1") == ([0.5, 0.7], [10.0, 5.0])
    with pytest.raises(UsageError, match="is not a frontier"):
        read_curves(tmp_path / "old")


def test_failures_are_told_everywhere(curves, tmp_path):
    broken = replace(curves[0].points[1], trainings=curves[0].points[1].trainings[:2], failed={2: "out of | <memory>"})
    told = [replace(curves[0], points=(curves[0].points[0], broken, curves[0].points[2])), curves[1]]
    page = write_frontier(tmp_path, told, images=0, picture=False).read_text()
    assert "dico: objective.beta=0.1, seed 2: out of | &lt;memory&gt;" in page
    assert "2 (1 failed)" in (tmp_path / "frontier.md").read_text()
    assert json.loads((tmp_path / "frontier.json").read_text())["failures"] == [
        "dico: objective.beta=0.1, seed 2: out of | <memory>"
    ]


def test_the_page_asks_no_network_and_reads_no_caption_as_html(written):
    page = (written / "frontier.html").read_text()
    assert page.count("</script>") == 3  # the data, plotly and the page's own
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=\"(?!data:|#)", own)
    for text in (EVIL[0], "<img src=x"):
        assert text not in own
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert "default-src 'none'" in policy[1]


def test_panels_compare_what_two_methods_have(tmp_path):
    def measured(name, further):
        made = curve(tmp_path, name, "objective.beta", {0.1: [(0.7, 5.0)], 0.2: [(0.9, 4.0)]})
        for each in made.all_measured():
            each.metrics.update(further)
        return made

    shared = {"exact_recall@1": 20.0, "exact_recall@5": 40.0, "truthful": 90.0, "grammatical": 99.0, "Bleu_4": 0.3}
    dico = measured("dico", shared)
    psst = measured("psst", {**shared, "own_listener_R@1": 30.0, "perplexity": 4.0})
    wanted = ["exact_recall@1", "judge_R@1"], ["CIDEr", "truthful", "grammatical"]
    assert panels_of([dico, psst]) == wanted
    assert panels_of([psst]) == (["exact_recall@1", "own_listener_R@1", "judge_R@1"], wanted[1])


def test_axes_keep_to_the_points(tmp_path):
    """Seeds far apart: their interval reaches below 0 and above 100, where no recall can be, and the picture does not."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    wide = curve(tmp_path, "wide", "objective.beta", {0.1: [(0.7, 5.0), (0.7, 95.0)], 0.2: [(0.9, 0.0), (0.9, 90.0)]})
    assert min(low for _, low, _ in band(wide, "selected", "CIDEr", "judge_R@1")) < -100
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *given, **how: drawn.append(figure))
        draw(tmp_path, [wide], "selected")
    assert "t-interval over seeds, cut at the axes" in drawn[0].get_supxlabel()
    panel = next(axes for axes in drawn[0].axes if axes.get_ylabel() == "judge R@1")
    # recall 0 to 95; CIDEr 70 to 90, and 100 at the start: six hundredths more on each side
    assert panel.get_ylim() == pytest.approx((-5.7, 100.7))
    assert panel.get_xlim() == pytest.approx((68.2, 101.8))


def test_pictures_that_are_gone_cost_only_themselves(tmp_path, curves):
    class Gone:
        def open(self):
            raise UsageError("photo.png does not exist")

    whole = toy_dataset()
    gone = type(whole)([replace(whole[0], image=Gone()), *whole.examples[1:]], name="toy test")
    write_frontier(tmp_path, curves, dataset=gone, images=5, picture=False)
    page = (tmp_path / "frontier.html").read_text()
    assert page.count('"source": "data:image/') == 4
    assert whole[0].references[0] in page


def test_a_model_without_a_finite_value_is_no_point_of_the_curve(tmp_path):
    points = {0.1: [(0.5, 40.0), (0.5, 41.0)], 0.2: [(math.nan, 50.0), (0.6, 51.0)], 0.4: [(0.7, 60.0), (0.7, 61.0)]}
    broken = curve(tmp_path, "dico", "objective.beta", points)
    assert broken.path("selected", 0, "CIDEr", "judge_R@1") == ([0.5, 0.7], [40.0, 60.0])
    drawn = band(broken, "selected", "CIDEr", "judge_R@1")
    assert (drawn[0][0], drawn[-1][0]) == (0.5, 0.7)
    assert all(map(math.isfinite, levels([broken], "selected", "CIDEr")))


def test_tables_show_points_once_and_the_start_once(curves):
    table = points_table(curves, "selected")
    assert [row[0] for row in table.rows if "start" in row[0]] == ["start model"]
    assert len(table.rows) == 1 + 3 + 4
    cell = table.rows[1][table.headings.index("CIDEr")]
    assert cell == f"71.0 ± {100 * t_quantile(2) * 0.01 / math.sqrt(3):.1f}"
    assert table.to_markdown().count("\n|") == 2 + 8


def test_what_was_measured_otherwise_is_refused(curves):
    other = curves[1].points[0].trainings[0]
    protocol = replace(other.checkpoints["selected"].protocol, decoding="beam 5")
    changed = replace(other, checkpoints={"selected": replace(other.checkpoints["selected"], protocol=protocol)})
    point = replace(curves[1].points[0], trainings=(changed,))
    with pytest.raises(UsageError, match=r"dico and scst .* were measured differently \(decoding\)"):
        require_comparable([curves[0], replace(curves[1], points=(point,))])
    judged, *rest = curves[1].points
    bare = replace(other.checkpoints["last"], protocol=replace(protocol, decoding="greedy", listeners={}))
    judge = replace(protocol, decoding="greedy", listeners={"judge": "another"})
    moved = replace(other, checkpoints={"last": replace(other.checkpoints["last"], protocol=judge)})
    mixed = replace(curves[1], points=(replace(judged, trainings=(replace(moved, start=None),)), *rest))
    with pytest.raises(UsageError, match=r"measured differently \(listeners\)"):
        require_comparable([begun_from(curves[0], bare, bare, bare), mixed])
    with pytest.raises(UsageError, match="no training of the frontier was measured"):
        require_comparable([Curve("a", "dico", "a.yaml", None, ())])


def test_without_retrievers_there_is_a_page_but_no_picture(tmp_path, curves):
    def silent(one):
        return replace(one, metrics={"CIDEr": one.metrics["CIDEr"]})

    points = tuple(
        replace(
            p,
            trainings=tuple(Training(t.seed, {k: silent(m) for k, m in t.checkpoints.items()}) for t in p.trainings),
        )
        for p in curves[0].points
    )
    with pytest.raises(UsageError, match="no curve to draw"):
        write_frontier(tmp_path, [replace(curves[0], points=points)], images=0)
    assert (tmp_path / "frontier.html").exists()
