"""Choosing captions by look-alikes: the sums, which candidate stays, new tries, and the page of what stays confused."""

import math

import pytest
import torch

from damaged_images import make_damaged
from listeners.tiny_listeners import clip_parts
from pictures import CAPTIONS, images
from tellapart.captioning.apart import Apart, Comparison, warmer
from tellapart.captioning.defaults import REDRAW_ON, WEIGHTS
from tellapart.captioning.gate import CONFUSED, Gate
from tellapart.captioning.records import Caption, Item
from tellapart.captioning.review_page import marked, require_own_page, write_review_page
from tellapart.cli.caption import decodings
from tellapart.cli.caption_options import CaptionOptions, resampled_faults
from tellapart.data.images import ArrayImage, ImageFile
from tellapart.errors import UsageError
from tellapart.listeners.among import AmongLookalikes
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.late import LateListener
from tellapart.listeners.matcher import ItmMatcher
from tellapart.listeners.mining import mine
from tellapart.types import Batch, Decoding, Rollout
from tiny.matchers import tiny_blip_itm
from tiny.qwen2_5_vl import tiny_qwen2_5_vl
from tiny_models import tiny_ved, word_tokenizer


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def listener():
    return ClipListener.from_parts(*clip_parts(words=word_tokenizer(CAPTIONS)), prefix="")


def pictures(count):
    """Items as a command makes them, of different pictures."""
    arrays = [torch.tensor(list(image.tobytes())).byte().view(32, 32, 3).numpy() for image in images(count, seed=3)]
    return [Item(f"i{row}", ArrayImage(array), f"i{row}.png") for row, array in enumerate(arrays)]


def rollout(captioner, batch, texts_each=2):
    return captioner.generate(batch, Decoding(num_beams=texts_each, num_return_sequences=texts_each, max_new_tokens=6))


def faults(drawn, row):
    return Gate().faults(drawn.texts[row], raw=drawn.texts[row], finished=bool(drawn.finished[row]))


def test_likelihood_margin_and_rival_are_those_of_plain_sums(listener):
    items = pictures(4)
    listener.cache_images(items)
    near = {"i0": ["i1", "i3"], "i1": ["i2"], "i2": ["i0", "i1", "i3"]}
    texts, names = ["a dog", "a red bus", "two cats on a sofa"], ["i0", "i1", "i2"]
    batch = Batch(names, [[]] * 3, {})
    zeros = torch.zeros(3, 1, dtype=torch.long)
    drawn = Rollout(batch, torch.arange(3), texts, zeros, zeros == 0, torch.ones(3, dtype=torch.bool))
    found = AmongLookalikes(listener, near)(drawn)
    scale = math.exp(float(listener.logit_scale))
    for row, (name, text) in enumerate(zip(names, texts, strict=True)):
        vector = listener.encode_texts([text])[0].tolist()
        cosines = [
            sum(a * b for a, b in zip(listener.encode_ids([one])[0].tolist(), vector, strict=True))
            for one in [name, *near[name]]
        ]
        total = math.log(sum(math.exp(scale * cosine) for cosine in cosines))
        assert found.likelihood[row].item() == pytest.approx(scale * cosines[0] - total, abs=1e-4)
        assert found.margin[row].item() == pytest.approx(cosines[0] - max(cosines[1:]), abs=1e-5)
        assert found.rival[row] == near[name][cosines.index(max(cosines[1:]), 1) - 1]


def test_an_image_without_lookalikes_is_told(listener):
    listener.cache_images(pictures(1))
    one = torch.zeros(1, 1, dtype=torch.long)
    drawn = Rollout(Batch(["i0"], [[]]), torch.tensor([0]), ["a dog"], one, one == 0, torch.tensor([True]))
    with pytest.raises(UsageError, match="'i0' has no look-alikes"):
        AmongLookalikes(listener, {})(drawn)


def test_a_value_is_the_weighted_sum_of_its_parts(listener, tmp_path):
    captioner = tiny_ved().eval()
    verifier = ItmMatcher.from_pretrained(tiny_blip_itm(tmp_path / "itm"), name="verifier")
    items = pictures(3)
    listener.cache_images(items)
    shown = [item.image.open() for item in items]
    inputs = {model.name: model.process(shown) for model in (captioner, listener, verifier)}
    batch = Batch([item.id for item in items], [[]] * 3, inputs)
    near = {"i0": ["i1"], "i1": ["i2"], "i2": ["i0"]}
    weights = {"truth": 2.0, "likelihood": 0.5, "clip_s": 3.0, "fluency": 0.7}
    comparison = Comparison.by(listener, near, verifier=verifier, weights=weights)
    drawn, encoded = rollout(captioner, batch), captioner.encode(batch)
    value, among = comparison(captioner, drawn, encoded)
    with torch.no_grad():
        fluency = captioner(drawn).logprobs.sum(dim=1) / drawn.mask.sum(dim=1)
    cosines = (listener.encode_images(batch)[drawn.image] * listener.encode_texts(drawn.texts)).sum(dim=1)
    truth = torch.log_softmax(verifier.rollout_logits(drawn), dim=1)[:, 1]
    wanted = 2.0 * truth + 0.5 * among.likelihood + 3.0 * 2.5 * cosines.clamp(min=0) + 0.7 * fluency
    torch.testing.assert_close(value, wanted, atol=1e-5, rtol=1e-5)
    plain = Comparison.by(listener, near, weights=dict.fromkeys(WEIGHTS, 0.0))
    assert plain(captioner, drawn, encoded)[0].tolist() == [0.0] * len(drawn)


def test_the_listener_reads_each_candidate_once_and_no_picture_again(listener, monkeypatch):
    captioner, items, read = tiny_ved(seed=2).eval(), pictures(4), []
    listener.cache_images(items)
    encode_texts = listener.encode_texts
    monkeypatch.setattr(listener, "encode_texts", lambda texts: read.append(len(texts)) or encode_texts(texts))
    monkeypatch.setattr(listener, "encode_images", lambda batch: pytest.fail("its embedding is known"))
    monkeypatch.setattr(listener, "process", lambda images: pytest.fail("its embedding is known"))
    found = Apart(captioner, listener, num_beams=3, redraw=0, lookalikes=2, max_new_tokens=6, batch_size=4)(items)
    assert read == [4 * 3]
    cosines = (listener.encode_ids([one.id for one in found]) * encode_texts([one.caption for one in found])).sum(dim=1)
    assert [one.match for one in found] == pytest.approx((2.5 * cosines.clamp(min=0)).tolist(), abs=1e-5)


def test_the_best_candidate_is_kept_and_what_stays_confused_is_drawn_again(listener):
    captioner = tiny_ved(seed=2).eval()
    items = pictures(6)
    once = Apart(captioner, listener, num_beams=4, redraw=0, lookalikes=3, max_new_tokens=6)(items)
    again = Apart(captioner, listener, num_beams=4, redraw=3, lookalikes=3, max_new_tokens=6)(items)
    near = mine(listener, items, 3)
    comparison = Comparison.by(listener, dict(zip(near.ids, near.of(near.ids), strict=True)))
    batch = Batch(
        [item.id for item in items],
        [[]] * 6,
        {captioner.name: captioner.process([item.image.open() for item in items])},
    )
    drawn = rollout(captioner, batch, 4)
    value, among = comparison(captioner, drawn, captioner.encode(batch))
    assert any(CONFUSED in caption.flags for caption in once)
    for row, (first, last) in enumerate(zip(once, again, strict=True)):
        mine_rows = [i for i in range(len(drawn)) if drawn.image[i] == row]
        best = max(mine_rows, key=lambda i: (not faults(drawn, i), value[i].item()))
        assert first.caption == drawn.texts[best]
        assert first.score == pytest.approx(value[best].item(), abs=1e-4)
        assert first.margin == pytest.approx(among.margin[best].item(), abs=1e-5)
        assert (CONFUSED in first.flags) == (among.margin[best].item() <= 0)
        assert last.score >= first.score or set(last.flags) < set(first.flags)
        if CONFUSED not in first.flags:
            assert last == first
    assert any(caption.attempt > 0 for caption in again)


def test_captions_do_not_depend_on_the_batch(listener):
    captioner = tiny_ved().eval()
    options = {"num_beams": 3, "redraw": 1, "lookalikes": 3, "max_new_tokens": 6, "strength": 1.0, "num_distractors": 2}
    whole, single = (Apart(captioner, listener, batch_size=size, **options)(pictures(5)) for size in (5, 1))
    assert [caption.caption for caption in whole] == [caption.caption for caption in single]


def test_a_batch_too_large_for_the_memory_is_halved_with_its_distractors(listener, monkeypatch):
    captioner = tiny_ved().eval()
    options = {"num_beams": 2, "redraw": 0, "lookalikes": 3, "max_new_tokens": 6, "strength": 2.0, "num_distractors": 2}
    whole = Apart(captioner, listener, batch_size=4, **options)(pictures(5))
    generate = captioner.generate

    def small(batch, *given, contrast, **more):
        if len(contrast.distractors) > 1:
            raise torch.OutOfMemoryError("too large")
        return generate(batch, *given, contrast=contrast, **more)

    monkeypatch.setattr(captioner, "generate", small)
    halved = Apart(captioner, listener, batch_size=4, **options)(pictures(5))
    assert [caption.caption for caption in halved] == [caption.caption for caption in whole]


def test_candidates_of_a_prompt_with_lookalikes_are_drawn_and_then_scored_like_others(listener):
    captioner = tiny_qwen2_5_vl().eval()
    items = pictures(5)
    options = {"num_beams": 3, "redraw": 0, "lookalikes": 3, "max_new_tokens": 6}
    shown = {"lookalikes_in_prompt": 2, "lookalikes_prompt": "a dog on grass"}
    found = Apart(captioner, listener, batch_size=5, **options, **shown)(items)
    near = mine(listener, items, 3)
    lookalikes = dict(zip(near.ids, near.of(near.ids), strict=True))
    comparison = Comparison.by(listener, lookalikes)
    names = [item.id for item in items]
    batch = Batch(names, [[]] * 5, {captioner.name: captioner.process([item.image.open() for item in items])})
    rows = [[names.index(one) for one in (name, *lookalikes[name][:2])] for name in names]
    beams = Decoding(num_beams=3, num_return_sequences=3, max_new_tokens=6)
    together = captioner.encode_together(batch, rows, "a dog on grass")
    drawn = captioner.generate(batch, beams, encoded=together)
    value, _ = comparison(captioner, drawn, captioner.encode(batch))  # fluency is that of the image alone
    for row, caption in enumerate(found):
        best = max(range(3 * row, 3 * row + 3), key=lambda i: (not faults(drawn, i), value[i].item()))
        assert caption.caption == drawn.texts[best]
        assert caption.score == pytest.approx(value[best].item(), abs=1e-3)
    single = Apart(captioner, listener, batch_size=1, **options, **shown)(items)
    assert [caption.caption for caption in single] == [caption.caption for caption in found]
    fewer = Apart(captioner, listener, **options, **(shown | {"lookalikes_in_prompt": 1}))(items)
    alone = Apart(captioner, listener, **options)(items)
    for other in (fewer, alone):
        assert [caption.caption for caption in other] != [caption.caption for caption in found]


def test_a_prompt_shows_the_image_first_and_what_could_be_read(listener):
    near = {"a": ["b", "x", "c"], "b": ["a", "c", "y"]}
    comparison = Comparison.by(listener, near, lookalikes_in_prompt=2)
    assert comparison.distractors(["a", "b"]) == ["x", "c"]
    assert comparison.shown(Batch(["a", "b", "c"], [[]] * 3), 2) == [[0, 1], [1, 0, 2]]  # x could not be read


def test_contrast_names_rows_of_the_batch_and_itself_for_what_is_not_there(listener):
    near = {"a": ["b", "x", "c"], "b": ["a", "c", "y"]}
    comparison = Comparison.by(listener, near, strength=1.0, num_distractors=2)
    assert comparison.distractors(["a", "b"]) == ["x", "c"]
    contrast = comparison.contrast(Batch(["a", "b", "c"], [[]] * 3), 2)
    assert contrast.distractors.tolist() == [[1, 0], [0, 2]]  # x could not be read
    near = {"a": ["b", "c"], "b": ["a"]}  # c has no look-alikes, as in groups that people gave
    comparison = Comparison.by(listener, near, strength=1.0, num_distractors=2)
    contrast = comparison.contrast(Batch(["a", "b", "c"], [[]] * 3), 3)
    assert contrast.distractors.tolist() == [[1, 2], [0, 1], [2, 2]]
    assert Comparison.by(listener, near).contrast(Batch(["a"], [[]]), 1) is None
    assert Comparison.by(listener, near).distractors(["a"]) == []


def test_new_tries_are_the_same_from_python_and_from_the_command_line(listener):
    """Numbers, temperature and faults that call for them; the command adds what only it has options for."""
    apart = Apart(tiny_ved(), listener)
    options = CaptionOptions(captioner="x", apart=True, listener="y")
    searching, sampling = decodings(options)
    assert (apart.beams, apart.samples) == (searching, sampling)
    assert sampling.top_p == 1.0
    assert (options.resample, resampled_faults(options)) == (apart.redraw, REDRAW_ON)
    assert decodings(CaptionOptions(captioner="x"))[1].top_p == 0.9


def test_new_tries_draw_more_at_a_higher_temperature():
    sampling = Decoding(do_sample=True, num_return_sequences=5, temperature=0.5)
    assert [(warmer(sampling, t).num_return_sequences, warmer(sampling, t).temperature) for t in (1, 2)] == [
        (5, pytest.approx(0.6)),
        (10, pytest.approx(0.7)),
    ]


def test_a_folder_with_a_broken_image(listener, tmp_path):
    for row, item in enumerate(pictures(3)):
        item.image.open().save(tmp_path / f"{row}.png")
    make_damaged(tmp_path / "bad")
    broken = next(path for path in sorted((tmp_path / "bad").iterdir()) if path.stat().st_size == 0)
    broken.rename(tmp_path / "empty.png")
    for path in (tmp_path / "bad").iterdir():
        path.unlink()
    found = Apart(tiny_ved().eval(), listener, num_beams=4, redraw=0, max_new_tokens=4)(tmp_path)
    assert [caption.error is None for caption in found] == [True, True, True, False]
    with pytest.raises(UsageError, match="at least two that can be read, but there are 1"):
        Apart(tiny_ved().eval(), listener)(pictures(1))


def test_what_cannot_be_compared_is_refused(listener):
    with pytest.raises(UsageError, match="a weight is given for 'clip'"):
        Apart(tiny_ved(), listener, weights={"clip": 1.0})
    for name, value in {"strength": -1, "num_distractors": 0, "lookalikes": 0, "num_beams": 0, "redraw": -1}.items():
        with pytest.raises(UsageError, match=f"{name} is {value}: it must be at least"):
            Apart(tiny_ved(), listener, **{name: value})
    with pytest.raises(UsageError, match="lookalikes_in_prompt is -1"):
        Apart(tiny_ved(), listener, lookalikes_in_prompt=-1)
    with pytest.raises(UsageError, match="reads one image per prompt"):
        Apart(tiny_ved(), listener, lookalikes_in_prompt=2)
    with pytest.raises(UsageError, match="strength does not go with lookalikes_in_prompt"):
        Apart(tiny_qwen2_5_vl(), listener, lookalikes_in_prompt=2, strength=1.0)
    late = LateListener.__new__(LateListener)
    late.name = "late"
    with pytest.raises(UsageError, match="'late' has no cosines"):
        AmongLookalikes(late, {})


def test_a_caption_that_suits_a_lookalike_as_well_is_confused():
    for margin, flags in ((0.0, (CONFUSED,)), (-0.1, (CONFUSED,)), (0.01, ()), (None, ())):
        assert Gate().faults("a dog", raw="a dog", finished=True, margin=margin) == flags
    assert Gate(checks=("empty",)).faults("a dog", raw="a dog", finished=True, margin=-1.0) == ()


def test_fewer_lookalikes_than_asked_for(listener):
    items = pictures(4)
    with pytest.raises(UsageError, match="at most 3"):
        mine(listener, items, 5)
    assert mine(listener, items, 5, fewer=True).k == 3
    assert mine(listener, items, 5, fewer=True).k == 3  # from the cache
    with pytest.raises(UsageError, match="at most 3"):
        mine(listener, items, 5)


def test_the_words_that_differ_are_marked():
    ours, theirs = marked("A red cup, on a table", "a blue cup on the table")
    assert [word for word, differs in ours if differs] == ["red", "a"]
    assert [word for word, differs in theirs if differs] == ["blue", "the"]
    assert marked("5 € tea", "5 $ tea") == (
        [("5", False), ("€", True), ("tea", False)],
        [("5", False), ("$", True), ("tea", False)],
    )
    assert marked("", "a cup") == ([], [("a", True), ("cup", True)])


def test_the_page_shows_both_pictures_and_goes_when_nothing_is_flagged(tmp_path):
    items = pictures(3)
    confused = Caption("i0", "a <b>red</b> cup", flags=(CONFUSED,), margin=-0.25, rival="i2")
    rows = [
        (items[0], confused),
        (items[1], Caption("i1", "a dog", margin=0.5, rival="i0")),
        (items[2], Caption("i2", "a blue cup")),
    ]
    page = tmp_path / "c.review.html"
    assert write_review_page(page, rows, items) == 1
    text = page.read_text()
    assert text.count("data:image/jpeg;base64,") == 2
    assert "&lt;b&gt;red&lt;/b&gt;" in text
    assert "<b>red" not in text
    assert "<mark>blue</mark>" in text
    assert "-0.250" in text
    assert "1 of 3 captions" in text
    assert write_review_page(page, rows[1:], items) == 0
    assert not page.exists()


def test_a_page_of_somebody_else_is_not_replaced(tmp_path):
    """It was deleted where nothing stayed confused."""
    page = tmp_path / "captions.review.html"
    page.write_text("<!doctype html><title>Mine</title>")
    with pytest.raises(UsageError, match=r"captions\.review\.html is not a page of captions to review"):
        require_own_page(page)
    page.unlink()
    require_own_page(page)


def test_a_rival_that_has_left_the_collection_is_not_shown(tmp_path):
    """A stopped run was compared with an image that is not there when it is resumed."""
    items = pictures(2)
    rows = [(items[0], Caption("i0", "a cup", flags=(CONFUSED,), margin=-0.25, rival="gone"))]
    assert write_review_page(tmp_path / "c.html", rows, items) == 1
    assert (tmp_path / "c.html").read_text().count("data:image/jpeg") == 1


def test_the_page_shows_captions_with_any_fault_in_the_order_of_the_review(tmp_path):
    items = [*pictures(3), Item("gone", ImageFile(tmp_path / "gone.png"), "gone.png")]
    rows = [
        (items[0], Caption("i0", "a picture of a cup", flags=("opener",))),
        (items[1], Caption("i1", "a cup")),
        (items[2], Caption("i2", "a a a a", flags=("loop", "unfinished"))),
        (items[3], Caption("gone", "", flags=("empty",))),
    ]
    assert write_review_page(tmp_path / "c.html", rows, items) == 3
    text = tmp_path.joinpath("c.html").read_text()
    places = [text.index(told) for told in ("Faults: empty.", "Faults: loop, unfinished.", "Faults: opener.")]
    assert places == sorted(places)
    assert text.count("data:image/jpeg") == 2
    assert "3 of 4 captions have a fault." in text
    assert "look-alike" not in text
