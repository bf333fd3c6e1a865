"""The page in a real Chromium: drawn, operated by mouse and keys, at the width of a desk and of a phone; nothing leaves."""

from dataclasses import replace

import pytest
from evaluation_fakes import REFERENCES, toy_dataset, toy_result

from browser import PHONE, chromium, page, violations  # noqa: F401  # fixtures
from tellapart.evaluation.report import RunView, write_report
from tellapart.evaluation.report.record import Record

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

ODD = {
    "1": "<script>document.title='hacked'</script>",
    "2": "\"quotes\" & 'more' &lt;b&gt;",
    "3": "כלב חום על הדשא",
    "4": "a 🐈‍⬛ on a 🛹",
    "5": "</dd></article><img src=x onerror=\"document.title='hacked'\">",
}


def reported(folder, **options):
    """A start model, and a run whose judge finds images 1 to 5 at ranks 2, 4, 7, 1 and 50; before, all were at 4."""
    ids = list(REFERENCES)
    curves = {"eval_CIDEr": [(0, 1.0), (10, 0.4)], "eval_vocabulary": [(0, 9.0), (10, 8.0)], "loss": [(5, 2.0)]}
    runs = []
    for name, ranks, captions in (
        ("start model", [4] * 5, {i: f"a shape {i}" for i in ids}),
        ("<b>dico</b>", None, ODD),
    ):
        found = ranks or [2, 4, 7, 1, 50]
        result = toy_result(name, seed=len(runs), captions=captions)
        columns = {"judge_rank": found, "judge_MRR": [1 / rank for rank in found], "CIDEr": [0.1, 0.5, 0.2, 0.4, 0.3]}
        columns["unfinished"] = [0.0, 0.0, 0.0, 100.0 * (ranks is None), 0.0]
        record = None if ranks else Record(recipe={"method": "dico"}, versions={"torch": "2"})
        result = replace(result, per_image=columns)
        runs.append(RunView(name, result, {} if ranks else curves, record=record))
    return write_report(folder / "report.html", runs, dataset=toy_dataset(), **options)


def shown(page) -> list[str]:  # noqa: F811
    """Ids of the images on view, in order."""
    return page.locator("[data-card]:visible h3").all_inner_texts()


def choose(page, **values) -> None:  # noqa: F811
    for name, value in values.items():
        page.select_option(f"#choice-{name}", label=value)


def test_curves_are_drawn_and_captions_are_text(page, tmp_path):  # noqa: F811
    page.goto(reported(tmp_path).as_uri())
    page.wait_for_selector("#curve-eval-CIDEr .trace")
    assert page.locator(".canvas:visible .main-svg").count() >= 3  # trade-off, CIDEr, loss
    assert page.title() == "Image captioners compared"
    for image_id, caption in ODD.items():
        card = page.locator("[data-card]", has=page.locator("h3", has_text=image_id))
        assert card.locator(".caption").nth(1).inner_text() == caption
    assert page.locator("[data-card] script, [data-card] [onerror]").count() == 0
    hebrew = page.locator("[data-card]", has=page.locator("h3", has_text="3")).locator(".caption").nth(1)
    assert hebrew.evaluate("part => getComputedStyle(part).direction") == "rtl"
    assert page.locator("#alarms li").count() == 1
    page.click("#alarms li a")
    assert page.evaluate("location.hash") == "#curve-eval-CIDEr"


def test_gallery_orders_and_filters(page, tmp_path):  # noqa: F811
    page.goto(reported(tmp_path).as_uri())
    choose(page, score="judge MRR", order="biggest change from start model")
    assert shown(page) == ["5", "4", "1", "3", "2"]  # by the logarithm of rank / 4
    choose(page, order="biggest loss against start model")
    assert shown(page)[:2] == ["5", "3"]
    choose(page, order="biggest gain over start model")
    assert shown(page)[:2] == ["4", "1"]
    choose(page, order="worst score first")
    assert shown(page) == ["5", "3", "2", "1", "4"]
    choose(page, score="CIDEr")
    assert shown(page) == ["1", "3", "5", "4", "2"]
    page.fill("#choice-from", "25")
    page.fill("#choice-to", "45")
    assert shown(page) == ["5", "4"]
    assert page.inner_text("#count") == "2 of 2 images"
    page.click("text=Reset")
    page.locator("#count", has_text="5 of 5").wait_for()
    choose(page, fault="only: cut")
    assert shown(page) == ["4"]
    choose(page, fault="all")
    page.fill("#choice-words", "SHAPE 2")
    assert shown(page) == ["2"]
    page.fill("#choice-words", "nobody says this")
    assert page.inner_text("#count") == "No image is like that."
    page.fill("#choice-words", "")
    choose(page, run="start model")
    assert page.locator("#choice-order option[value=change]").is_disabled()
    assert page.input_value("#choice-order") == "worst"


def test_more_images_come_when_asked_and_take_the_focus(page, tmp_path):  # noqa: F811
    ids = [str(n) for n in range(30)]
    result = toy_result("xe", seed=0, captions={i: f"caption {i}" for i in ids})
    run = RunView("xe", replace(result, per_image={"CIDEr": [float(i) for i in ids]}))
    page.goto(write_report(tmp_path / "report.html", [run]).as_uri())
    assert shown(page) == ids[:12]
    page.focus("#more")
    page.keyboard.press("Enter")
    assert shown(page) == ids[:24]
    assert page.evaluate("document.activeElement.querySelector('h3').textContent") == "12"
    page.click("#more")
    assert shown(page) == ids
    assert not page.is_visible("#more")


def test_keys_reach_everything_in_order_and_the_focus_is_seen(page, tmp_path):  # noqa: F811
    page.goto(reported(tmp_path).as_uri())
    stops = []
    for _ in range(32):
        page.keyboard.press("Tab")
        stops.append(
            page.evaluate(
                "() => { const e = document.activeElement, s = getComputedStyle(e); return {"
                "what: e.id || e.getAttribute('href') || e.getAttribute('aria-label') || e.textContent.trim(),"
                "line: parseFloat(s.outlineWidth), style: s.outlineStyle, y: e.getBoundingClientRect().top + scrollY } }"
            )
        )
    names = [stop["what"] for stop in stops]
    assert names[:3] == ["#results", "#results", "#alarms"]  # the skip link comes first
    controls = [f"choice-{name}" for name in ("run", "score", "order", "fault", "from", "to", "words")]
    first = names.index("choice-run")
    assert names[first : first + 8] == [*controls, "Reset"]
    assert all(stop["line"] >= 1 and stop["style"] != "none" for stop in stops)
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("select, input").evaluate_all("all => all.every(one => one.labels.length === 1)")


def test_a_phone_needs_no_sideways_scrolling(page, tmp_path):  # noqa: F811
    page.set_viewport_size(PHONE)
    page.goto(reported(tmp_path).as_uri())
    page.wait_for_selector("#curve-eval-CIDEr .trace")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.locator("[data-card]:visible details:has(table) summary").first.click()
    assert page.locator("[data-card]:visible table").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    small = page.locator("select:visible, input:visible, button:visible")
    assert min(small.evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")) >= 40  # for fingers


def test_rows_are_sorted_by_a_click_and_intervals_shown_by_a_tap(page, tmp_path):  # noqa: F811
    page.goto(reported(tmp_path).as_uri())
    names = page.locator("#results table").first.locator("tbody th bdi")
    given, head = names.all_inner_texts(), page.locator("#results th[data-sort]").first
    values = [
        float(text) for text in page.locator("#results table").first.locator("td:nth-child(2) .value").all_inner_texts()
    ]
    by_value = [name for _, name in sorted(zip(values, given, strict=True), reverse=True)]
    head.locator("button").click()
    assert (head.get_attribute("aria-sort"), names.all_inner_texts()) == ("descending", by_value)
    head.locator("button").click()
    assert (head.get_attribute("aria-sort"), names.all_inner_texts()) == ("ascending", by_value[::-1])
    head.locator("button").click()
    assert (head.get_attribute("aria-sort"), names.all_inner_texts()) == (None, given)
    difference = page.locator("#results details.difference").first
    assert not difference.evaluate("part => part.open")
    difference.locator("summary").click()
    assert "p=" in difference.inner_text()


def test_a_link_into_closed_details_opens_them(page, tmp_path):  # noqa: F811
    page.goto(reported(tmp_path).as_uri() + "#curve-eval-vocabulary")
    page.wait_for_selector("#curve-eval-vocabulary .trace")


def test_axe_finds_nothing(page, tmp_path):  # noqa: F811
    page.goto(reported(tmp_path).as_uri())
    page.wait_for_selector("#curve-eval-CIDEr .trace")
    assert violations(page) == []
