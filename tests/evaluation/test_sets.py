"""Several captions an image: the published vector, CIDEr slot by slot, and drawing them from a real (tiny) captioner."""

import numpy as np
import pytest
import torch

from given import vector
from pictures import images
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.evaluation.sets import draw_sets, set_decodings, set_measures
from tellapart.metrics.cider import cider_d
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.types import Decoding
from tiny_models import tiny_ved

SETS = {
    "a": ["A man riding a wave.", "a man on a board", "a surfer"],
    "b": ["two dogs play", "Two dogs, playing", "a red frisbee"],
}
REFERENCES = {"b": ["two dogs with a red frisbee", "dogs play"], "a": ["a surfer riding a wave"]}


def pictures(count):
    examples = [Example(f"p{i}", ArrayImage(np.asarray(picture))) for i, picture in enumerate(images(count))]
    return CaptionDataset(examples, name="pictures")


def test_diversity_is_the_vector():
    inputs, expected, tolerance = vector("diversity_metrics")
    metrics, columns = set_measures({"a": inputs["captions_a"]}, {}, "rs3")
    assert columns == {"rs3_Div-1": [expected["div1_a"]], "rs3_Div-2": [expected["div2_a"]]}
    assert "rs3_CIDEr" not in metrics
    pair = dict(enumerate(inputs["two_images"]))
    found = set_measures(pair, {}, "x")[0]["x_mBLEU-4"]
    assert found == pytest.approx(expected["mbleu_corpus_two_images"][-1], abs=tolerance)


def test_cider_is_the_mean_of_one_caption_an_image():
    metrics, columns = set_measures(SETS, REFERENCES, "bs3")
    targets = {name: ptb_tokenize(texts) for name, texts in REFERENCES.items()}
    slots = [cider_d({n: ptb_tokenize([texts[j]])[0] for n, texts in SETS.items()}, targets) for j in range(3)]
    for row, name in enumerate(SETS):
        assert columns["bs3_CIDEr"][row] == pytest.approx(sum(slot[name] for slot in slots) / 3, abs=1e-12)
    assert metrics["bs3_CIDEr"] == pytest.approx(np.mean(columns["bs3_CIDEr"]))
    assert metrics["bs3_CIDEr"] > 0.1


def test_captions_are_drawn_by_sampling_and_by_beams_and_nothing_else_changes():
    captioner = tiny_ved()
    collate = Collate({captioner.name: captioner.process})
    decodings = set_decodings(3, Decoding(num_beams=4, max_new_tokens=6, length_penalty=2.0))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    drawn = {}
    for name, decoding in decodings.items():
        by_size = [draw_sets(captioner, pictures(5), collate, decoding, batch_size=size) for size in (2, 5)]
        assert by_size[0] == by_size[1]
        assert {len(texts) for texts in by_size[0].values()} == {3}
        drawn[name] = by_size[0]
    assert torch.equal(torch.get_rng_state(), state)
    batch = collate(list(pictures(5)))
    beams = captioner.generate(batch, decodings["bs3"]).texts
    assert [text for texts in drawn["bs3"].values() for text in texts] == beams
    assert drawn["rs3"] != drawn["bs3"]
    assert draw_sets(captioner, pictures(5), collate, decodings["rs3"], seed=1) != drawn["rs3"]


def test_sets_keep_the_lengths_and_restrictions_that_the_protocol_names():
    limits = {"max_new_tokens": 20, "min_new_tokens": 4, "no_repeat_ngram_size": 3}
    assert set_decodings(5, Decoding(num_beams=3, **limits)) == {
        "rs5": Decoding(do_sample=True, num_return_sequences=5, **limits),
        "bs5": Decoding(num_beams=5, num_return_sequences=5, **limits),
    }


def test_one_caption_is_no_set():
    with pytest.raises(UsageError, match="samples is 1"):
        set_decodings(1, Decoding())
    with pytest.raises(UsageError, match="equally many"):
        set_measures({"a": ["x", "y"], "b": ["z"]}, {}, "rs2")
