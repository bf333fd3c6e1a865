"""The page as a file: complete in itself, and safe against what captions contain; test_report_browser.py opens it."""

import html
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from evaluation_fakes import REFERENCES, toy_dataset, toy_result

from tellapart.errors import UsageError
from tellapart.evaluation.columns import Column
from tellapart.evaluation.compare import compare_results
from tellapart.evaluation.report import RunView, read_run, write_report
from tellapart.evaluation.report.curves import thin
from tellapart.evaluation.report.gallery import choose, new_words, rewritten, score_columns, scores_of
from tellapart.evaluation.report.page import _best
from tellapart.evaluation.report.record import Record
from tellapart.evaluation.report.runs import read_curves, with_start
from tellapart.training.logs import read_lines

EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Elements with their attributes, the text of data blocks, and headings in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.figures: dict[str, str] = {}
        self._figure: str | None = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._figure = dict(attrs).get("data-figure") if tag == "script" else None

    def handle_data(self, data):
        if self._figure:
            self.figures[self._figure] = self.figures.get(self._figure, "") + data

    def handle_endtag(self, tag):
        self._figure = None

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


def views(*names: str) -> list[RunView]:
    made = []
    for seed, name in enumerate(names):
        result = toy_result(name, seed=seed)
        curves = {
            "eval_CIDEr": [(0, 0.1), (10, 0.5 + seed)],
            "eval_judge_R@1": [(0, 5.0), (10, 25.0)],
            "loss": [(5, 2.0)],
        }
        made.append(RunView(name, result, curves))
    return made


def written(tmp_path, runs, **options) -> str:
    return write_report(tmp_path / "report.html", runs, **options).read_text(encoding="utf-8")


def test_nothing_is_asked_of_a_network(tmp_path):
    page = Page(written(tmp_path, views("xe", "dico"), dataset=toy_dataset()))
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert re.match(r"(#|data:)", attributes.get(name) or "#"), (tag, name, attributes[name][:80])
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "http" not in policy
    assert not re.search(
        r"url\(|@import", written(tmp_path, views("xe")).partition("<style>")[2].partition("</style>")[0]
    )


def test_plotly_stands_in_the_page_once(tmp_path):
    text = written(tmp_path, views("xe", "dico"), dataset=toy_dataset())
    assert text.count("* plotly.js v") == 1


def test_captions_names_and_references_are_text_not_code(tmp_path):
    references = {i: (EVIL, f'"><img src=x onerror=alert(1)>{i}') for i in REFERENCES}
    runs = views("xe", EVIL)
    evil = replace(runs[1].result, captions={i: f"{EVIL} {i} &quot;{chr(39)}" for i in REFERENCES})
    text = written(tmp_path, [runs[0], replace(runs[1], result=evil)], dataset=toy_dataset(references), title=EVIL)
    assert EVIL not in text
    assert html.escape(EVIL) in text
    page = Page(text)
    assert all("onerror" not in attributes for _, attributes in page.elements)
    kinds = [a.get("type") for a in page.all("script")]
    assert kinds.count(None) == 2  # plotly and the page's own: what the policy's two hashes allow
    assert not re.search("[<>&]", re.search(r'id="gallery-values">(.*?)</script>', text)[1])
    figure = page.figures["curve-eval-CIDEr"]
    assert not re.search("[<>&]", figure)  # cannot end the block
    trace = json.loads(figure)["data"][1]
    assert trace["name"] == html.escape(EVIL)  # plotly reads labels as markup, so they stay escaped inside it
    assert "<script" not in trace["hovertemplate"].replace("<extra>", "")


def test_scripts_are_those_the_policy_allows(tmp_path):
    import base64
    import hashlib

    text = written(tmp_path, views("xe"))
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in text.partition("</head>")[0]


def test_curves_hold_every_step_from_zero_as_printed(tmp_path):
    page = Page(written(tmp_path, views("xe", "dico")))
    spec = json.loads(page.figures["curve-eval-CIDEr"])
    assert [trace["x"] for trace in spec["data"]] == [[0, 10], [0, 10]]
    assert spec["data"][1]["y"] == pytest.approx([10.0, 150.0])  # CIDEr times 100
    assert json.loads(page.figures["curve-eval-judge-R-1"])["data"][0]["y"] == [5.0, 25.0]
    assert json.loads(page.figures["curve-loss"])["data"][0]["x"] == [5]


def test_the_trade_off_shows_the_results_of_what_was_not_trained(tmp_path):
    runs = views("xe", "dico")
    runs[0] = replace(runs[0], curves={key: curve[:1] for key, curve in runs[0].curves.items()})  # step 0, other images
    drawn = json.loads(Page(written(tmp_path, runs)).figures["trade-off"])["data"]
    metrics = runs[0].result.metrics
    assert drawn[0]["x"] == pytest.approx([metrics["judge_R@1"]])
    assert drawn[0]["y"] == pytest.approx([100 * metrics["CIDEr"]])
    assert (drawn[1]["x"], drawn[1]["y"]) == ([5.0, 25.0], pytest.approx([10.0, 150.0]))


def test_a_metric_that_is_no_number_is_a_dash_and_never_the_best(tmp_path):
    runs = [replace(view, curves={}) for view in views("xe", "dico", "scst")]
    lost = replace(runs[0].result, metrics=runs[0].result.metrics | {"CIDEr": math.nan})
    runs[0] = replace(runs[0], result=lost)
    page = Page(written(tmp_path, runs))
    assert [trace["name"] for trace in json.loads(page.figures["trade-off"])["data"]] == ["dico", "scst"]
    column = Column("CIDEr", "CIDEr", 100, 1, 1)
    best = max(run.result.metrics["CIDEr"] for run in runs[1:])
    assert _best(column, compare_results([run.result for run in runs])) == column.text(best)


def test_table_prints_each_model_once_with_its_numbers(tmp_path):
    runs = views("xe", "dico")
    text = written(tmp_path, runs)
    table = text.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', table, flags=re.DOTALL)
    assert len(rows) == 2
    for row, run in zip(rows, runs, strict=True):
        assert run.name in row
        assert f">{100 * run.result.metrics['CIDEr']:.1f}<" in row
        assert f">{run.result.metrics['judge_R@1']:.1f}<" in row
    assert runs[0].result.protocol.line() in html.unescape(text)


def ranked(name: str, ranks, seed: int = 0) -> RunView:
    """A run whose captions were found at these ranks."""
    ids = [str(n) for n in range(len(ranks))]
    result = toy_result(name, seed=seed, captions={i: f"a caption {i}" for i in ids})
    columns = {"judge_rank": list(ranks), "judge_MRR": [1 / rank for rank in ranks]}
    return RunView(name, replace(result, per_image=columns))


def test_gallery_shows_every_model_and_every_reference(tmp_path):
    text = written(tmp_path, views("xe", "dico"), dataset=toy_dataset())
    page = Page(text)
    assert len(page.all("article")) == len(REFERENCES)
    assert all(image["alt"].startswith("Image ") and "data:image/webp" in image["src"] for image in page.all("img"))
    plain = re.sub(r"</?ins>", "", text)
    for texts in REFERENCES.values():
        assert f"xe says {texts[0]}<" in plain
        assert f"dico says {texts[0]}<" in plain
        assert all(f'<li dir="auto">{reference}</li>' in text for reference in texts)
    assert "All 5 images." in text


def test_gallery_without_data_has_captions_and_scores(tmp_path):
    page = Page(written(tmp_path, views("xe")))
    assert len(page.all("article")) == len(REFERENCES)
    assert not page.all("img")
    assert not Page(written(tmp_path, views("xe"), images=0)).all("article")


def test_gallery_without_photos_says_so(tmp_path):
    """Captioners that read features are reported where their pictures are not."""

    class Gone:
        def open(self):
            raise UsageError("photo.png does not exist")

    whole = toy_dataset()
    gone = type(whole)([replace(example, image=Gone()) for example in whole], name="toy test")
    text = written(tmp_path, views("xe"), dataset=gone)
    assert "There are no pictures: none of toy test can be read here." in text
    assert len(Page(text).all("article")) == len(REFERENCES)
    assert "a small red star" in text  # references stay
    some = type(whole)([replace(whole[0], image=Gone()), *whole.examples[1:]], name="toy test")
    text = written(tmp_path, views("xe"), dataset=some)
    assert "1 of 5 pictures cannot be read, the first being 1: photo.png does not exist" in text
    assert len(Page(text).all("img")) == len(REFERENCES) - 1


def test_gallery_takes_gains_losses_and_worst_in_turn_and_half_by_chance():
    """Ranks 10 before and 1 to 30 after: 0 gains most, 29 loses most and is the worst, no word was changed."""
    runs = [ranked("first", [10] * 30), ranked("later", range(1, 31))]
    columns = score_columns(runs)
    scores = [scores_of(run, columns) for run in runs]
    chosen = choose(runs, scores, columns, images=12, seed=0)
    assert [column.key for column in columns] == ["judge_MRR"]
    assert chosen[:6] == ["0", "29", "1", "28", "2", "27"]
    assert len(set(chosen)) == 12
    assert chosen[6:] != choose(runs, scores, columns, images=12, seed=1)[6:]
    assert choose(runs, scores, columns, images=30, seed=0) == [str(n) for n in range(30)]
    alone = choose(runs[1:], scores[1:], columns, images=12, seed=0)
    assert alone[:6] == ["29", "28", "27", "26", "25", "24"]


def test_values_for_the_script_are_the_scores_in_the_order_of_cards(tmp_path):
    runs = [ranked("first", [2, 1, 4]), ranked("later", [1, 1, 8])]
    text = written(tmp_path, runs)
    told = json.loads(re.search(r'id="gallery-values">(.*?)</script>', text)[1])["runs"]
    assert told[1]["scores"][0]["value"] == [100.0, 100.0, 12.5]  # reciprocal ranks times 100
    assert told[1]["scores"][0]["level"] == pytest.approx([0.0, 0.0, -2.079442])  # log(1/8)
    faults = re.findall(r"only: ([^<]+)<", text)
    assert [faults[n] for n in told[1]["faults"][2]] == ["not found by judge"]
    assert told[1]["faults"][:2] == [[], []]
    assert told[1]["rewritten"] == [0.0, 0.0, 0.0]


def test_words_that_are_new_and_share_that_was_changed():
    assert new_words("a Red star and a ring", "a red ring") == [("a Red", False), ("star and", True), ("a ring", False)]
    assert rewritten("a red ring", "a red ring") == 0.0
    assert rewritten("one two", "three four") == 100.0
    assert rewritten("a red ring", "a ring") == pytest.approx(100 * (1 - 2 * 2 / 5))  # two of five words are in common


def test_flags_say_what_is_known_of_a_caption(tmp_path):
    """The first caption retrieves and is true, the second is grammatical but false, the others are not known."""
    run = views("xe")[0]
    columns = {
        "judge_rank": [1, 7, None, None, None],
        "grammatical": [100.0, 100.0, None, None, None],
        "truthful": [100.0, 0.0, None, None, None],
        "unfinished": [0.0, 0.0, 100.0, 0.0, 0.0],
    }
    runs = [replace(run, result=replace(run.result, per_image=columns))]
    text = written(tmp_path, runs, dataset=toy_dataset())
    flags = re.findall(r'class="flag (\w+)">([^<]+)<', text)
    wanted = [("good", "judge: rank 1"), ("plain", "judge: rank 7"), ("bad", "not true"), ("bad", "cut")]
    assert sorted(flags) == sorted(wanted)


def test_alarms_are_told_and_marked_in_their_curves(tmp_path):
    runs = views("xe")
    curves = {"eval_CIDEr": [(0, 1.0), (10, 0.5), (20, 0.9)], "loss": [(5, 2.0)]}
    record = Record(selected={"step": 20, "metric": "CIDEr"})
    text = written(tmp_path, [replace(runs[0], curves=curves, record=record)])
    assert "Captions no longer read like the references" in text
    assert "over by the end" in text
    assert "the results above are of step 20" in text
    spec = json.loads(Page(text).figures["curve-eval-CIDEr"])
    ringed = [trace for trace in spec["data"] if trace["mode"] == "markers"]
    assert [(trace["x"], trace["y"]) for trace in ringed] == [([10], [50.0])]
    levels = {shape["line"]["dash"]: (shape["x0"], shape["y0"]) for shape in spec["layout"]["shapes"]}
    assert levels == {"dot": (20, 0), "dash": (0, pytest.approx(60.0))}
    assert "The logs broke no rule." in written(tmp_path, views("xe"))


def test_parts_of_the_reward_stand_in_one_plot(tmp_path):
    runs = views("xe")
    curves = {"reward": [(1, 1.5)], "rewards/clip_s": [(1, 1.0), (2, 1.1)], "reference/rewards/cider_d": [(1, 0.5)]}
    figures = Page(written(tmp_path, [replace(runs[0], curves=curves)])).figures
    assert [trace["name"] for trace in json.loads(figures["parts-0"])["data"]] == ["clip_s", "cider_d (human captions)"]
    assert "curve-rewards-clip-s" not in figures
    alone = {"reward": [(1, 1.0)], "rewards/clip_s": [(1, 1.0)]}
    assert "parts-0" not in Page(written(tmp_path, [replace(runs[0], curves=alone)])).figures  # it is the reward


def test_the_start_model_comes_first_where_all_runs_began_from_it():
    first, second = views("dico", "scst")
    start, other = toy_result("start model", seed=7), toy_result("another", seed=8)
    runs = [replace(first, start=start), replace(second, start=start)]
    assert [run.name for run in with_start(runs)] == ["start model", "dico", "scst"]
    assert with_start([first, second]) == [first, second]
    apart = [runs[0], replace(second, start=other)]
    assert with_start(apart) == apart
    same = RunView("xe", start)
    assert with_start([same, *runs]) == [same, *runs]


def test_how_a_run_was_made_is_read_from_its_folder(tmp_path):
    toy_result("dico", seed=1).save(tmp_path)
    recipe = {"method": "dico", "objective": {"beta": 0.2}, "reward": {"clip_s": 1.0, "cider_d": 0.0}}
    told = {
        "recipe": recipe,
        "config": {"learning_rate": 3e-5},
        "versions": {"torch": "2"},
        "seed": 4,
        "total_steps": 60,
    }
    (tmp_path / "run.json").write_text(json.dumps(told | {"effective_batch_size": 48}), encoding="utf-8")
    state = {"selection": {"start": {}, "best": {"step": 40, "metric": "listener_R@1", "value": 38.6}}}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    assert dict(read_run(tmp_path).record.lines()) == {
        "Method": "dico (beta 0.2)",
        "Reward": "1 × clip_s",
        "Training": "60 steps of 48 images, learning rate 3e-05",
        "Selected": "step 40, by listener_R@1",
        "Seed": "4",
        "Versions": "torch 2",
    }
    (tmp_path / "trainer_state.json").write_text(json.dumps(state).replace("40", "0"), encoding="utf-8")
    selected = dict(read_run(tmp_path).record.lines())["Selected"]
    assert selected == "step 0 (the start itself: no later checkpoint was better), by listener_R@1"
    (tmp_path / "best").mkdir()
    (tmp_path / "trainer_state.json").rename(tmp_path / "best" / "trainer_state.json")
    assert dict(read_run(tmp_path).record.lines())["Selected"] == selected, "the run has no checkpoint yet"
    (tmp_path / "run.json").write_text("[", encoding="utf-8")
    assert read_run(tmp_path).record is None


def test_headings_never_skip_a_level(tmp_path):
    page = Page(written(tmp_path, views("xe", "dico"), dataset=toy_dataset()))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    identities = [a["id"] for _, a in page.elements if "id" in a]
    assert len(identities) == len(set(identities))


def test_run_is_read_from_its_folder(tmp_path):
    result = toy_result("dico", seed=1)
    result.save(tmp_path)
    lines = [
        {"step": 0, "eval_CIDEr": 1.0},
        {"step": 5, "epoch": 0.5, "loss": 2.0},
        {"step": 5, "loss": 1.5, "note": "text", "kl": None, "bad": float("nan")},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 6, "lo', encoding="utf-8")
    run = read_run(tmp_path)
    assert (run.name, run.result) == ("dico", result)
    assert run.curves == {"eval_CIDEr": [(0, 1.0)], "loss": [(5, 1.5)]}  # the later line holds, the torn one is left


@pytest.mark.parametrize("name", ["plain", "torn"])
def test_bytes_that_are_no_text_spoil_their_line_only(tmp_path, name):
    log = tmp_path / "metrics.jsonl"
    damaged = {"plain": b'{"step": 2, "lo\xffs": 1}\n', "torn": b'{"step": 3, "loss": 4}\n{"step": \xff'}[name]
    log.write_bytes(b'{"step": 1, "loss": 1}\n' + damaged)
    assert read_curves(log)["loss"] == {"plain": [(1, 1.0)], "torn": [(1, 1.0), (3, 4.0)]}[name]
    log.write_bytes(b'{"step": 1, "loss": 1}\n{"step": \xff}\n{"step": 2, "loss": 1}\n')
    with pytest.raises(UsageError, match=r"metrics\.jsonl:2 is not a log entry"):
        read_curves(log)
    assert [line["step"] for line in read_lines(log)] == [1, 2]


def test_a_broken_log_line_is_named(tmp_path):
    log = tmp_path / "metrics.jsonl"
    for line in ("nonsense", "[" * 100_000, '{"step": Infinity}'):
        log.write_text(f'{{"step": 1, "loss": 1}}\n{line}\n{{"step": 2, "loss": 1}}\n', encoding="utf-8")
        with pytest.raises(UsageError, match=r"metrics\.jsonl:2 is not a log entry"):
            read_curves(log)


def test_long_curves_are_thinned_and_keep_both_ends():
    curve = [(step, float(step)) for step in range(5001)]
    short = thin(curve)
    assert 300 < len(short) <= 401
    assert (short[0], short[-1]) == (curve[0], curve[-1])
    assert thin(curve[:400]) == curve[:400]


def test_wrong_data_and_wrong_protocol_are_refused(tmp_path):
    runs = views("xe", "dico")
    with pytest.raises(UsageError, match=r"xe captions 3 images that toy test lacks, first '3'"):
        written(tmp_path, runs, dataset=toy_dataset({i: REFERENCES[i] for i in ("1", "2")}))
    beam = replace(runs[1], result=toy_result("beam", seed=1, decoding="beam 5"))
    with pytest.raises(UsageError, match="measured differently"):
        written(tmp_path, [runs[0], beam])
    with pytest.raises(UsageError, match="no runs were given"):
        written(tmp_path, [])
    assert not (tmp_path / "report.html").exists()
