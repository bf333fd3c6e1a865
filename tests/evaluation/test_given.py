"""Given captions: the metrics, their intervals by a plain loop over draws, and the callable for Hugging Face's trainers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tellapart
from pictures import images
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import EncodedImage
from tellapart.data.load import load_dataset
from tellapart.data.results import Result, Results
from tellapart.errors import UsageError
from tellapart.evaluation.aggregate import Aggregate
from tellapart.evaluation.bootstrap import p_values
from tellapart.evaluation.compare import compare_results
from tellapart.evaluation.given import score, with_intervals
from tellapart.evaluation.matching import match, own_ids
from tellapart.evaluation.protocol import PROTOCOLS, title_of
from tellapart.evaluation.trainer import IGNORED, compute_metrics
from tellapart.metrics.bleu import bleu, count_matches
from tellapart.metrics.coco import coco_metrics

WORDS = ["a", "red", "blue", "green", "star", "ring", "box", "on", "the", "table", "near", "lamp"]


def made_up(images: int, seed: int) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Captions that share some words with their references."""
    rng = random.Random(seed)
    references = {
        str(i): [" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) for _ in range(rng.randint(1, 4))]
        for i in range(images)
    }
    captions = {
        i: " ".join(word if rng.random() < 0.7 else rng.choice(WORDS) for word in rng.choice(texts).split())
        for i, texts in references.items()
    }
    return captions, references


@pytest.fixture(scope="module")
def scored():
    captions, references = made_up(130, seed=0)
    return captions, references, score(captions, references, bootstrap=40, seed=3)


def test_the_metrics_are_those_of_the_metrics_room(scored):
    captions, references, result = scored
    corpus, rows = coco_metrics(captions, references)
    assert {key: result.metrics[key] for key in corpus} == pytest.approx(corpus, abs=1e-12)
    for key in ("ROUGE_L", "CIDEr"):
        assert result.per_image[key] == pytest.approx([rows[i][key] for i in result.captions])
    assert result.per_image["sentence_Bleu_4"] == pytest.approx([rows[i]["Bleu_4"] for i in result.captions])
    assert tellapart.score is score


def plainly_matched(pairs, references, compared):
    """Captions of the references' images, and the four kinds of ids that do not fit, by dictionaries."""
    said = {}
    for name, caption in pairs:
        said.setdefault(name, caption)
    names = [name for name, _ in pairs]
    return (
        {name: said[name] for name, texts in references.items() if name in said and (texts or not compared)},
        [name for name in references if name not in said],
        [name for name in said if name not in references],
        [name for name, count in Counter(names).items() if count > 1],
        [name for name, texts in references.items() if compared and not texts and name in said],
    )


@pytest.mark.parametrize("compared", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_captions_are_matched_as_by_dictionaries(seed, compared):
    rng = random.Random(seed)
    references = {str(n): ["a dog"] * (rng.random() < 0.8) for n in rng.sample(range(40), 30)}
    pairs = [(str(rng.randrange(50)), f"caption {n}") for n in range(60)]
    data = CaptionDataset([Example(i, EncodedImage(b"", i), tuple(texts)) for i, texts in references.items()], name="x")
    found = match(Results("y", [Result(caption, name) for name, caption in pairs]), data, compared=compared)
    wanted = plainly_matched(pairs, references, compared)
    assert (found.captions, found.missing, found.extra, found.duplicates, found.bare) == wanted
    assert [*found.captions] == [*wanted[0]]
    assert not found.by_name


def test_intervals_are_those_of_a_plain_loop_over_draws(scored):
    """Each draw's BLEU from its captions and references, not from our columns."""
    captions, references, result = scored
    ids, drawn = list(references), np.random.default_rng(3).integers(130, size=(40, 130)).tolist()
    values = []
    for row in drawn:
        said, texts = [captions[ids[i]] for i in row], [references[ids[i]] for i in row]
        values.append([*bleu(count_matches(said, texts)), np.mean([result.per_image["CIDEr"][i] for i in row])])
    for key, column in zip(("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "CIDEr"), np.array(values).T, strict=True):
        assert result.intervals[key] == pytest.approx(np.percentile(column, [2.5, 97.5]).tolist(), abs=1e-12), key
        assert result.intervals[key][0] < result.metrics[key] < result.intervals[key][1]
    assert "Self-BLEU" not in result.intervals
    assert score(captions, references).intervals == {}


def test_the_whole_set_by_its_rows_is_the_metric(scored):
    _, _, result = scored
    aggregate = Aggregate(list(result.metrics), result.per_image)
    assert {"Bleu_4", "CIDEr", "ROUGE_L", "mean_length"} <= set(aggregate.keys)
    values = dict(zip(aggregate.keys, aggregate(aggregate.rows.sum(axis=0)).tolist(), strict=True))
    assert values == pytest.approx({key: result.metrics[key] for key in aggregate.keys}, abs=1e-12)


def test_comparing_bleu_resamples_both_with_the_same_images(scored):
    captions, references, first = scored
    others = made_up(130, seed=1)[0]
    second = score(others, references, name="other")
    found = compare_results([first, second], samples=60, seed=8).differences[1]["Bleu_4"]
    ids, drawn = list(references), np.random.default_rng(8).integers(130, size=(60, 130)).tolist()
    gaps = []
    for row in drawn:
        texts = [references[ids[i]] for i in row]
        both = [bleu(count_matches([of[ids[i]] for i in row], texts))[3] for of in (captions, others)]
        gaps.append(both[1] - both[0])
    assert [found.low, found.high] == pytest.approx(np.percentile(gaps, [2.5, 97.5]).tolist())
    worse, better = sum(gap <= 0 for gap in gaps), sum(gap >= 0 for gap in gaps)
    assert found.p_value == pytest.approx(min(1.0, 2 * (1 + min(worse, better)) / 61))


def test_p_values_of_nothing_of_something_and_of_chance():
    rng = np.random.default_rng(0)
    draws = np.stack([np.zeros(999), 1e-15 * rng.standard_normal(999), rng.random(999) + 0.1, -rng.random(999) - 1], 1)
    assert p_values(draws).tolist() == pytest.approx([1.0, 1.0, 0.002, 0.002])
    share = np.where(np.arange(999) < 100, -1.0, 1.0)[:, None]
    assert p_values(share)[0] == pytest.approx(2 * 101 / 1000)


def test_p_values_of_equal_models_are_uniform():
    """Of 200 comparisons of captioners that differ by chance alone, about one in ten is below 0.1."""
    from tellapart.evaluation.bootstrap import resampled_sums

    rng = np.random.default_rng(5)
    differences = rng.standard_normal((300, 200))
    found = p_values(resampled_sums(differences, samples=400, seed=1) / 300)
    assert 0.04 < np.mean(found < 0.1) < 0.17
    assert 0.4 < np.mean(found < 0.5) < 0.6


def test_a_comparison_with_itself_is_no_difference(scored):
    _, _, result = scored
    for difference in compare_results([result, result], samples=50).differences[1].values():
        assert difference.value == 0
        assert difference.p_value in (None, 1.0)


def test_captions_and_references_in_memory():
    references = {1: ["a star", "a red star"], 2: "a ring"}
    rows = [{"image_id": 2, "caption": "a ring"}, {"image_id": "1", "caption": "a star"}]
    assert list(score(rows, references).captions.items()) == [("1", "a star"), ("2", "a ring")]
    with pytest.raises(UsageError, match=r"1 image without a caption \('2'\)"):
        score({1: "a star"}, references)
    assert score({1: "a star"}, references, on_mismatch="skip").protocol.images == 1
    with pytest.raises(UsageError, match="a caption is 3"):
        score({1: 3}, references)
    for captions in ({1: None, 2: "a ring"}, {1: "a ring", 2: None}):
        with pytest.raises(UsageError, match="a caption is None"):
            score(captions, references)
    with pytest.raises(UsageError, match="the references of image 1 are None"):
        score({1: "a star"}, {1: None})
    with pytest.raises(UsageError, match="captions lack 'caption'"):
        score([{"image_id": 1}], references)
    with pytest.raises(UsageError, match=r"2 images with captions|1 image without references \('3'\)"):
        score({1: "a", 2: "b", 3: "c"}, references | {3: []})


def test_files_with_one_name_are_not_guessed_at():
    names = ["a/1.jpg", "b/1.jpg", "a/2.jpg"]
    data = CaptionDataset(
        [Example(f"id{n}", EncodedImage(b"", name), ("x",)) for n, name in enumerate(names)], name="d"
    )
    rows = [Result("says", file="1.jpg"), Result("says", file="elsewhere/2.jpg")]
    assert own_ids(rows, data) == (["1.jpg", "id2"], True)


ALBUM = ("0.png", "1.png", "sub/0.png", "sub/1.png")


@pytest.fixture
def album(tmp_path) -> Path:
    """Pictures with the same names in a folder and in one below it."""
    (tmp_path / "album" / "sub").mkdir(parents=True)
    for name, picture in zip(ALBUM, images(4), strict=True):
        picture.save(tmp_path / "album" / name)
    return tmp_path / "album"


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("form", ["table", "ids", "sidecars"])
def test_captions_of_a_folder_fit_it_though_names_repeat_below_it(form, moved, album, tmp_path, monkeypatch):
    """As ``caption album`` writes them: ids are paths from where it was started, files absolute, sidecars below the folder."""
    files = {
        "table": [Result(name, f"album/{name}", str(album / name)) for name in ALBUM],
        "ids": [Result(name, f"album/{name}") for name in ALBUM],
        "sidecars": [Result(name, name.removesuffix(".png")) for name in ALBUM],
    }
    if moved:
        album = album.rename(tmp_path / "photos")
    assert own_ids(files[form], load_dataset(album)) == (list(ALBUM), True)
    monkeypatch.chdir(album)
    assert own_ids(files[form], load_dataset(".")) == (list(ALBUM), True)


def test_ids_of_shards_are_the_files_that_were_captioned(album):
    """The files of a WebDataset are named by their places in it."""
    rows = [Result(name, f"album/{name}", f"00000.tar/{place:09}.png") for place, name in enumerate(ALBUM)]
    assert own_ids(rows, load_dataset(album)) == (list(ALBUM), True)
    others = [Example(str(place), EncodedImage(b"", name), ("x",)) for place, name in enumerate(("0.png", "2.png"))]
    rows = [Result("x", "run/7", "elsewhere/2.png"), Result("x", "photos/0.png", "1.tar/000000000.png")]
    assert own_ids(rows, CaptionDataset(others, name="d")) == (["1", "0"], True)


def test_captions_of_a_larger_folder_are_not_taken_for_images_of_the_same_name(album):
    rows = [Result(name, f"album/{name}", str(album / name)) for name in ALBUM]
    matched = match(Results("captions", rows), load_dataset(album / "sub"), compared=False)
    assert dict(matched.captions) == {"0.png": "sub/0.png", "1.png": "sub/1.png"}
    assert (matched.duplicates, matched.extra) == ([], ["album/0.png", "album/1.png"])


def test_a_named_protocol_is_kept_to_or_refused():
    references = {str(i): ["a"] * 5 for i in range(1000)}
    assert title_of("flickr30k-1k", "file", references) == PROTOCOLS["flickr30k-1k"].title
    with pytest.raises(UsageError, match="an image with 4 references instead of 5"):
        title_of("flickr30k-1k", "file", references | {"0": ["a"] * 4})
    with pytest.raises(UsageError, match="999 images instead of 1,000"):
        title_of("flickr30k-1k", "file", {i: references[i] for i in list(references)[1:]})
    with pytest.raises(UsageError, match="document frequencies that are not those"):
        title_of("flickr30k-1k", "file", references, own_frequencies=False)
    result = score(dict.fromkeys(references, "a"), references, protocol="flickr30k-1k")
    assert result.protocol.line().startswith(f"{PROTOCOLS['flickr30k-1k'].title}; references: 1000 images")


class Decoder:
    """Ids are places in a list of words; 0 fills up and 1 ends."""

    words = ("<pad>", "<end>", *WORDS)
    pad_token_id = 0

    def batch_decode(self, sequences, *, skip_special_tokens):
        assert skip_special_tokens
        return [" ".join(self.words[i] for i in row if i > 1) for row in np.asarray(sequences).tolist()]

    def encode(self, texts):
        rows = [[self.words.index(word) for word in text.split()] + [1] for text in texts]
        longest = max(map(len, rows))
        return np.array([row + [IGNORED] * (longest - len(row)) for row in rows])


def test_compute_metrics_of_a_trainer():
    captions, references = made_up(120, seed=2)
    ids = Decoder().encode(captions.values())
    firsts = [texts[0] for texts in references.values()]
    given = SimpleNamespace(predictions=ids, label_ids=Decoder().encode(firsts))
    found = compute_metrics(Decoder(), list(references.values()))(given)
    expected, _ = coco_metrics(captions, references)
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert all(isinstance(value, float) for value in found.values())
    lone, _ = coco_metrics(captions, {i: texts[:1] for i, texts in references.items()})
    found = compute_metrics(Decoder())(SimpleNamespace(predictions=(ids, "more"), label_ids=given.label_ids))
    assert {key: found[key] for key in lone} == pytest.approx(lone)
    with pytest.raises(UsageError, match="got 120 captions but has references of 119 images"):
        compute_metrics(Decoder(), list(references.values())[1:])(given)


def test_compute_metrics_of_logits_says_that_they_are_no_captions(caplog):
    captions, _ = made_up(110, seed=3)
    ids = Decoder().encode(captions.values())
    logits = np.full((*ids.shape, len(Decoder.words)), -1.0)
    np.put_along_axis(logits, np.where(ids == IGNORED, 5, ids)[..., None], 1.0, axis=-1)
    found = compute_metrics(SimpleNamespace(tokenizer=Decoder(), batch_decode=Decoder().batch_decode))(
        SimpleNamespace(predictions=logits, label_ids=ids)
    )
    assert found["Bleu_1"] == pytest.approx(1.0)
    assert "teacher-forced" in caplog.text


def test_logits_of_a_decoder_only_model_predict_the_next_place():
    """A prompt that is not learnt, the caption, and EOS; what is predicted behind EOS does not count."""
    ids = Decoder().encode(made_up(110, seed=3)[0].values())
    labels = np.concatenate([np.full((len(ids), 2), IGNORED), ids], axis=1)
    following = np.concatenate([labels[:, 1:], np.full((len(ids), 1), 5)], axis=1)
    logits = np.full((*labels.shape, len(Decoder.words)), -1.0)
    np.put_along_axis(logits, np.where(following == IGNORED, 5, following)[..., None], 1.0, axis=-1)
    given = SimpleNamespace(predictions=logits, label_ids=labels)
    assert compute_metrics(Decoder(), causal=True)(given)["Bleu_1"] == pytest.approx(1.0)
    assert compute_metrics(Decoder(), causal=True)(given)["ROUGE_L"] == pytest.approx(1.0)
    assert compute_metrics(Decoder())(given)["Bleu_1"] < 0.95


def test_captions_among_their_own_references_are_named(caplog):
    references = {str(i): [f"a red star number {i}", "another star"] for i in range(4)}
    own = {i: texts[0].upper() + " ." for i, texts in references.items()}
    told = "4 of 4 captions are among the references of their own image"
    result = score(own, references)
    assert result.metrics["Bleu_4"] == pytest.approx(1.0)
    assert told in result.protocol.line()
    assert f"WARNING: {told}" in caplog.text
    caplog.clear()
    fresh = own | {"0": "a blue ring", "1": "a box", "2": "the moon"}  # 1 of 4 is below half
    assert "among the references" not in score(fresh, references).protocol.line()
    elsewhere = {i: references[str((int(i) + 1) % 4)][0] for i in references}  # of another image
    assert "among the references" not in score(elsewhere, references).protocol.line()
    assert "among the references" not in caplog.text


def test_a_metric_of_some_images_has_the_interval_of_those_that_are_drawn(scored):
    """Such as recall of claims, where some images' references claim nothing."""
    _, _, result = scored
    ids, generator = list(result.captions), np.random.default_rng(5)
    values = [float(value) if value > 20 else None for value in generator.uniform(0, 100, len(ids))]

    def with_column(rows, name):
        known = [value for value in rows if value is not None]
        metrics, columns = {"claim_recall": sum(known) / len(known)}, {"claim_recall": rows}
        return replace(
            result, name=name, metrics=result.metrics | metrics, per_image=result.per_image | columns, intervals={}
        )

    first = with_column(values, "first")
    drawn = np.random.default_rng(3).integers(len(ids), size=(40, len(ids))).tolist()
    means = [np.mean([values[i] for i in row if values[i] is not None]) for row in drawn]
    found = with_intervals(first, samples=40, seed=3).intervals
    assert found["claim_recall"] == pytest.approx(np.percentile(means, [2.5, 97.5]).tolist(), abs=1e-9)
    assert found["CIDEr"] == with_intervals(result, samples=40, seed=3).intervals["CIDEr"]
    other = [50.0 if value is None else value / 2 for value in values]  # of every image
    difference = compare_results([first, with_column(other, "other")], samples=40, seed=3).differences[1]
    gaps = [np.mean([other[i] for i in row]) - mean for row, mean in zip(drawn, means, strict=True)]
    wanted = np.percentile(gaps, [2.5, 97.5]).tolist()
    assert [difference["claim_recall"].low, difference["claim_recall"].high] == pytest.approx(wanted, abs=1e-9)
    assert difference["CIDEr"].low == difference["CIDEr"].high == 0.0
