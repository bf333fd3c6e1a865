"""Evaluation: every number again by slow plain Python, and nothing outside is touched."""

import math
import random
from dataclasses import replace

import pytest
import torch
from evaluation_fakes import REFERENCES, FixedListener, SayingCaptioner, no_inputs, toy_dataset

from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.meteor import MeteorMeasure
from tellapart.evaluation.protocol import WORDS, data_digest
from tellapart.evaluation.spice import SpiceMeasure
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.types import Decoding

CAPTIONS = {"1": "a red star on a", "2": "a ring", "3": "A ring.", "4": "a star a star a star", "5": "two blue rings"}


def evaluation(**options) -> Evaluation:
    options = {"listeners": {"listener": FixedListener("l"), "judge": FixedListener("j")}} | options
    return Evaluation(toy_dataset(), no_inputs(), **options)


def slow_ranks(listener: FixedListener, captions: dict[str, str], *, by_image: bool) -> list[int]:
    """1 + how many others score at least as high as the pair itself."""
    ids = list(captions)
    images = [listener.vector(f"image {i}") for i in ids]
    texts = [listener.vector(captions[i]) for i in ids]

    def score(text: int, image: int) -> float:
        return sum(x * y for x, y in zip(texts[text], images[image], strict=True))

    ranks = []
    for own in range(len(ids)):
        others = [score(o, own) if by_image else score(own, o) for o in range(len(ids)) if o != own]
        ranks.append(1 + sum(other >= score(own, own) - 1e-6 for other in others))
    return ranks


def test_how_it_was_measured_names_no_metric_that_was_not():
    bare = CaptionDataset([replace(example, references=()) for example in toy_dataset()], name="bare")
    listeners = {"listener": FixedListener("l")}
    for dataset, measured in ((bare, False), (toy_dataset(), True)):
        run = Evaluation(dataset, no_inputs(), listeners=listeners)
        result = run.score(CAPTIONS, name="given")
        for line in (run.protocol.line(), result.protocol.line()):
            assert ("n-gram metrics" in line) == measured
        assert ("CIDEr" in result.metrics) == measured


@pytest.mark.parametrize("name", ["listener", "judge"])
def test_retrieval_again_in_plain_python(name):
    measured = evaluation()
    result = measured(SayingCaptioner(CAPTIONS))
    for prefix, by_image in (("", False), ("i2t_", True)):
        ranks = slow_ranks(measured.listeners[name], CAPTIONS, by_image=by_image)
        assert result.per_image[f"{name}_{prefix}rank"] == ranks
        for k in (1, 5, 10):
            share = 100 * sum(rank <= k for rank in ranks) / len(ranks)
            assert result.metrics[f"{name}_{prefix}R@{k}"] == pytest.approx(share)
    ranks = slow_ranks(measured.listeners[name], CAPTIONS, by_image=False)
    assert result.metrics[f"{name}_MRR"] == pytest.approx(sum(1 / rank for rank in ranks) / 5)
    assert result.metrics[f"{name}_MedR"] == sorted(ranks)[2]


def test_clipscore_again_in_plain_python():
    measured = evaluation()
    result, listener = measured(SayingCaptioner(CAPTIONS)), measured.listeners["judge"]
    scores = []
    for image_id, caption in CAPTIONS.items():
        pair = zip(listener.vector(caption), listener.vector(f"image {image_id}"), strict=True)
        scores.append(2.5 * max(0.0, sum(x * y for x, y in pair)))
    assert result.per_image["judge_CLIPScore"] == pytest.approx(scores, abs=1e-6)
    assert result.metrics["judge_CLIPScore"] == pytest.approx(sum(scores) / 5, abs=1e-6)


def test_style_by_counting():
    metrics = evaluation()(SayingCaptioner(CAPTIONS, unfinished=("1",))).metrics
    assert metrics["distinct_captions"] == pytest.approx(80)  # "a ring" and "A ring." are one
    assert metrics["most_common_caption"] == pytest.approx(40)
    assert metrics["bad_endings"] == pytest.approx(20)  # "... on a"
    assert metrics["unfinished"] == pytest.approx(20)
    assert metrics["mean_length"] == pytest.approx((5 + 2 + 2 + 6 + 3) / 5)
    # bigrams 4 + 1 + 1 + 5 + 2 = 13; in "a star a star a star": "a star" twice again, "star a" once again
    assert metrics["repetition"] == pytest.approx(100 * 3 / 13)


def test_self_bleu_equals_nltk():
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    words = [text.split() for text in ptb_tokenize(CAPTIONS.values())]
    smooth = SmoothingFunction().method1
    scores = [
        sentence_bleu(words[:i] + words[i + 1 :], own, weights=[0.2] * 5, smoothing_function=smooth)
        for i, own in enumerate(words)
    ]
    result = evaluation()(SayingCaptioner(CAPTIONS))
    assert result.metrics["Self-BLEU"] == pytest.approx(100 * sum(scores) / len(scores))


def test_reference_metrics_equal_pycocoevalcap():
    cider = pytest.importorskip("pycocoevalcap.cider.cider").Cider()
    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu").Bleu(4)
    result = evaluation()(SayingCaptioner(CAPTIONS))
    targets = {i: ptb_tokenize(texts) for i, texts in REFERENCES.items()}
    said = {i: ptb_tokenize([text]) for i, text in CAPTIONS.items()}
    corpus, rows = cider.compute_score(targets, said)
    assert result.metrics["CIDEr"] == pytest.approx(float(corpus))
    assert result.per_image["CIDEr"] == pytest.approx(rows.tolist())
    assert result.metrics["Bleu_4"] == pytest.approx(bleu.compute_score(targets, said, verbose=0)[0][3])


def test_a_column_with_a_metrics_name_averages_to_it():
    result = evaluation(measures=[lambda captions: ({"truthful": 40.0}, {"truthful": [100, 0, 0, 100, 0]})])(
        SayingCaptioner(CAPTIONS, unfinished=("2",))
    )
    shared = [key for key in result.per_image if key in result.metrics]
    assert {"CIDEr", "ROUGE_L", "listener_R@1", "judge_MRR", "unfinished", "truthful"} <= set(shared)
    for key in shared:
        assert len(result.per_image[key]) == 5
        assert result.metrics[key] == pytest.approx(math.fsum(result.per_image[key]) / 5), key


def test_draws_in_eval_mode_without_gradients_and_restores_each_mode():
    captioner = SayingCaptioner(CAPTIONS)
    captioner.train()
    captioner.dropout.eval()
    evaluation(batch_size=2)(captioner)
    assert [(training, gradients) for training, gradients, _ in captioner.seen] == [(False, False)] * 3
    assert captioner.training
    assert captioner.layer.training
    assert not captioner.dropout.training


def test_random_numbers_outside_stay_as_they_are():
    captioner = SayingCaptioner(CAPTIONS)  # its layer draws its weights, so before the generators are looked at
    torch.manual_seed(11)
    random.seed(11)
    torch_before, python_before = torch.get_rng_state(), random.getstate()
    evaluation(decoding=Decoding(do_sample=True))(captioner)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert random.getstate() == python_before


def test_sampled_captions_depend_on_the_seed_only():
    def drawn(**options):
        torch.manual_seed(options.pop("outside", 0))
        return evaluation(decoding=Decoding(do_sample=True), **options)(SayingCaptioner(CAPTIONS)).captions

    once = drawn()
    assert drawn(outside=7) == once
    assert drawn(batch_size=2) == once
    assert drawn(seed=1) != once


def test_each_distinct_caption_is_embedded_once():
    measured = evaluation(listeners={"judge": FixedListener("j")})
    measured.score(dict.fromkeys(REFERENCES, "the same"), name="constant")
    references = [text for texts in REFERENCES.values() for text in texts]
    assert sorted(measured.listeners["judge"].asked) == sorted({"the same", *references})
    measured.score(dict.fromkeys(REFERENCES, "another"), name="constant")
    assert measured.listeners["judge"].asked[1 + len(set(references)) :] == ["another"]  # references are remembered


def test_constant_captions_retrieve_nothing_more_than_their_tie():
    """Image to caption all five tie, and ties count against the caption: rank 5 for all."""
    result = evaluation().empty()
    assert result.per_image["judge_i2t_rank"] == [5] * 5
    assert result.metrics["judge_i2t_R@1"] == 0
    assert result.metrics["CIDEr"] == 0
    assert result.metrics["most_common_caption"] == 100


def test_human_captions_are_scored_against_the_other_references():
    measured = evaluation()
    result = measured.human()
    first = {i: texts[0] for i, texts in REFERENCES.items()}
    others = {i: list(texts[1:]) for i, texts in REFERENCES.items()}
    assert result.captions == first
    assert result.metrics["CIDEr"] == measured.score(first, name="x", references=others).metrics["CIDEr"]
    assert result.metrics["CIDEr"] < measured.score(first, name="x").metrics["CIDEr"]
    assert "against its others" in result.protocol.line()


def test_measures_with_references_compare_human_captions_with_the_others_too():
    """METEOR of the first reference was that against itself."""

    class Copied:
        def __init__(self, references):
            self.references = references

        def against(self, references):
            return Copied(references)

        def __call__(self, captions):
            return {"copied": float(sum(text in self.references[i] for i, text in captions.items()))}, {}

    dataset = toy_dataset(REFERENCES)
    measured = Evaluation(dataset, measures=(Copied(dataset.references),))
    first = {i: texts[0] for i, texts in REFERENCES.items()}
    assert measured.human().metrics["copied"] == 0
    assert measured.score(first, name="x").metrics["copied"] == len(REFERENCES)
    meteor = MeteorMeasure({"a": ["x"]})
    assert meteor.against({"a": ["y"]}).references == {"a": ["y"]}
    assert SpiceMeasure({"a": ["x"]}).against({"a": ["y"]}).references == {"a": ["y"]}


def test_human_captions_need_two_references():
    lone = toy_dataset({"1": ("a star",), "2": ("a ring", "a box")})
    with pytest.raises(UsageError, match=r"'1' of toy test has 1 references"):
        Evaluation(lone).human()


def test_without_references_only_what_needs_them_is_left_out():
    bare = toy_dataset(dict.fromkeys(REFERENCES, ()))
    metrics = Evaluation(bare, no_inputs(), listeners={"judge": FixedListener("j")})(SayingCaptioner(CAPTIONS)).metrics
    assert not {"CIDEr", "Bleu_4", "ROUGE_L"} & metrics.keys()
    assert {"judge_R@1", "Self-BLEU", "unfinished"} <= metrics.keys()


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        ({"1": "a", "2": "b"}, r"3 images without a caption \('3', '4', '5'\)"),
        (CAPTIONS | {"6": "c"}, r"1 caption of unknown images \('6'\)"),
        ({f"{n:02}": "a" for n in range(7)}, r"7 captions of unknown images \('00', '01', '02', '03', '04', \.\.\.\)"),
    ],
)
def test_ids_that_do_not_fit_are_named(captions, message):
    with pytest.raises(UsageError, match=message):
        evaluation().score(captions, name="file.json")


def test_given_captions_are_put_in_the_data_sets_order():
    backwards = dict(reversed(CAPTIONS.items()))
    result = evaluation().score(backwards, name="file")
    assert list(result.captions) == list(REFERENCES)
    assert result.per_image == evaluation().score(CAPTIONS, name="file").per_image


def test_several_captions_an_image_are_refused():
    with pytest.raises(UsageError, match="num_return_sequences is 3"):
        evaluation(decoding=Decoding(do_sample=True, num_return_sequences=3))


def test_captioning_needs_collate():
    with pytest.raises(UsageError, match="without collate"):
        Evaluation(toy_dataset())(SayingCaptioner(CAPTIONS))


def test_protocol_names_data_decoding_and_retrievers():
    protocol = evaluation(decoding=Decoding(num_beams=5, max_new_tokens=20)).protocol
    line = protocol.line()
    digest = data_digest(toy_dataset().references)
    assert f"toy test: 5 images [{digest}], one caption each (beam 5, max_new_tokens=20)" in line
    assert "listener = l-0123456789, judge = j-0123456789" in line
    assert "\n" not in line
    assert protocol.slug() == "toy-test-5-beam-5-max-new-tokens-20"


def test_protocol_says_truly_how_words_are_cut():
    """The line states a rule of another module: this fails when that rule changes, so that the line changes too."""
    assert ptb_tokenize([" The giraffe's Head, (close-up) ..."]) == ["the giraffe 's head -lrb- close-up -rrb-"]
    assert "Penn Treebank" in WORDS
    assert WORDS in evaluation().protocol.line()
