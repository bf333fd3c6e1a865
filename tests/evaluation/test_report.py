"""The page: complete in itself, safe against what captions contain, and drawn by a real browser where there is one."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from evaluation_fakes import REFERENCES, toy_dataset, toy_result

from tellapart.errors import UsageError
from tellapart.evaluation.report import RunView, read_run, write_report
from tellapart.evaluation.report.curves import thin
from tellapart.evaluation.report.gallery import choose
from tellapart.evaluation.report.runs import read_curves

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
    evil = replace(runs[1].result, captions={i: f"{EVIL} {i}" for i in REFERENCES})
    text = written(tmp_path, [runs[0], replace(runs[1], result=evil)], dataset=toy_dataset(references), title=EVIL)
    assert EVIL not in text
    assert html.escape(EVIL) in text
    page = Page(text)
    assert all("onerror" not in attributes for _, attributes in page.elements)
    kinds = [a.get("type") for a in page.all("script")]
    assert kinds.count(None) == 2  # plotly and the page's own: what the policy's two hashes allow
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


def test_gallery_says_why_and_shows_every_model(tmp_path):
    text = written(tmp_path, views("xe", "dico"), dataset=toy_dataset(), images=5)
    page = Page(text)
    assert len(page.all("article")) == 5
    assert all(image["alt"].startswith("Image ") and "data:image/png" in image["src"] for image in page.all("img"))
    assert text.count("dico says") == text.count("xe says") == 5
    assert "Drawn at random" in text


def test_gallery_balances_gains_and_losses():
    ids = [str(n) for n in range(30)]
    result = toy_result("xe", seed=0, captions=dict.fromkeys(ids, "a"))
    ranks = [
        replace(result, per_image={"judge_MRR": [1 / (1 + rank) for rank in row]}) for row in ([9] * 30, range(30))
    ]
    runs = [RunView("first", ranks[0]), RunView("later", ranks[1])]
    won, lost, drawn = choose(runs, ids, images=12, seed=0).values()
    assert won == ["0", "1", "2", "3"]  # later ranks 1, 2, 3, 4 against 10
    assert lost == ["29", "28", "27", "26"]
    assert len(drawn) == 4
    assert len({*won, *lost, *drawn}) == 12
    assert choose(runs[:1], ids, images=12, seed=0)["Drawn at random"] != drawn


def test_flags_say_what_is_known_of_a_caption(tmp_path):
    """The first caption retrieves and is true, the second is grammatical but false, the others are not known."""
    run = views("xe")[0]
    columns = {
        "judge_rank": [1, 7, None, None, None],
        "grammatical": [100.0, 100.0, None, None, None],
        "truthful": [100.0, 0.0, None, None, None],
    }
    runs = [replace(run, result=replace(run.result, per_image=columns))]
    text = written(tmp_path, runs, dataset=toy_dataset())
    flags = re.findall(r'class="flag (\w+)">([^<]+)<', text)
    assert sorted(flags) == sorted(
        [
            ("good", "judge: rank 1"),
            ("plain", "judge: rank 7"),
            ("good", "grammatical"),
            ("good", "grammatical"),
            ("good", "true"),
            ("bad", "not true"),
        ]
    )


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


def test_a_broken_log_line_is_named(tmp_path):
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1, "loss": 1}\nnonsense\n{"step": 2, "loss": 1}\n', encoding="utf-8")
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


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def chromium(page, profile, *options: str) -> subprocess.CompletedProcess[str]:
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    quiet += ["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr"]
    command = [CHROMIUM, *quiet, f"--user-data-dir={profile}", "--virtual-time-budget=8000", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_draws_every_visible_curve_without_a_complaint(tmp_path):
    runs = views("xe", EVIL)
    page = write_report(tmp_path / "report.html", runs, dataset=toy_dataset())
    seen = chromium(page, tmp_path / "profile", "--window-size=1280,900", "--dump-dom")
    assert "CONSOLE" not in seen.stderr  # script errors and refusals of the content security policy
    assert seen.stdout.count('class="main-svg"') >= 3  # trade-off, CIDEr and R@1
    assert seen.stdout.count('class="trace scatter') >= 6


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_phone_needs_no_sideways_scrolling(tmp_path):
    """The page in a frame of 390 pixels reports its own width; only tables may scroll, inside themselves."""
    write_report(tmp_path / "report.html", views("xe", "dico with a long name"), dataset=toy_dataset())
    frame = tmp_path / "frame.html"
    frame.write_text(
        '<body><iframe id="f" src="report.html" style="width:390px;height:800px;border:0"></iframe><script>'
        'const f=document.getElementById("f");f.onload=()=>setTimeout(()=>{document.title='
        '"width "+f.contentDocument.documentElement.scrollWidth},1500)</script>',
        encoding="utf-8",
    )
    seen = chromium(frame, tmp_path / "profile", "--allow-file-access-from-files", "--dump-dom")
    assert re.search(r"<title>width (\d+)", seen.stdout), seen.stdout[:500]
    assert int(re.search(r"<title>width (\d+)", seen.stdout)[1]) <= 390
