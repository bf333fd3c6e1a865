"""DPO, IPO and KTO on given pairs: losses and gradients by hand, and which captions are scored."""

from __future__ import annotations

import math

import pytest
import torch

from given import GivenCaptioner, double, images, run, vector
from tellapart.data.preferences import PreferencePair
from tellapart.objectives.preferences import IPO, KTO, OfflineDPO

POLICY, REFERENCE = [-1.0, -2.5, -3.0, -1.5], [-1.5, -2.0, -2.0, -2.0]
"""Of chosen 0, chosen 1, rejected 0, rejected 1: log-ratios .5, -.5, -1, .5; margins 1.5, -1."""


def two_pairs(objective, **options):
    column = double(POLICY)[:, None]
    captioner = GivenCaptioner(column, torch.ones(4, 1), torch.tensor([0, 1, 0, 1]), double(REFERENCE)[:, None])
    pairs = {str(i): [PreferencePair(f"chosen {i}", f"rejected {i}")] for i in range(2)}
    return objective(captioner, pairs, **options), captioner


def test_the_loss_of_dpo_by_hand():
    objective, captioner = two_pairs(OfflineDPO, beta=0.4)
    loss, _, (output,) = run(objective, images(2))
    sigmoid = [1 / (1 + math.exp(-0.4 * margin)) for margin in (1.5, -1.0)]
    assert loss == pytest.approx(-sum(map(math.log, sigmoid)) / 2, abs=1e-12)
    slopes = [0.4 * (1 - value) / 2 for value in sigmoid]
    expected = [-slopes[0], -slopes[1], slopes[0], slopes[1]]
    assert captioner.logprobs.grad.flatten().tolist() == pytest.approx(expected, abs=1e-12)
    assert output.logs["margin"].tolist() == pytest.approx([1.5, -1.0])
    assert output.logs["accuracy"].tolist() == [1.0, 0.0]
    assert output.logs["rewards/chosen"].tolist() == pytest.approx([0.2, -0.2])


def test_it_is_the_loss_of_the_methods_that_draw_pairs():
    """The vector of DiCO with two candidates: the same captions, given instead of drawn."""
    inputs, expected, tolerance = vector("dico_k2_equals_dpo")
    (policy,), (reference,), (rewards,) = (inputs[key] for key in ("policy_seq_logp", "ref_seq_logp", "rewards"))
    order = sorted(range(2), key=lambda place: -rewards[place])
    column, start = (double([values[place] for place in order])[:, None] for values in (policy, reference))
    captioner = GivenCaptioner(column, torch.ones(2, 1), torch.zeros(2, dtype=torch.long), start)
    loss, *_ = run(OfflineDPO(captioner, {"0": [PreferencePair("a", "b")]}, beta=inputs["beta"]), images(1))
    assert loss == pytest.approx(expected["loss"], abs=tolerance)


def test_the_loss_of_ipo_by_hand():
    """Margins 1.5 and -1 against 1 / (2 * 0.5) = 1."""
    objective, captioner = two_pairs(IPO, beta=0.5)
    loss, *_ = run(objective, images(2))
    assert loss == pytest.approx((0.5**2 + 2.0**2) / 2, abs=1e-12)
    assert captioner.logprobs.grad.flatten().tolist() == pytest.approx([0.5, -2.0, -0.5, 2.0], abs=1e-12)


class Drifting(GivenCaptioner):
    """Scores the four captions of the pairs, and captions of other images with given log-ratios."""

    others = (0.3, 0.7)

    def __init__(self, *given):
        super().__init__(*given)
        self.asked = []

    def tokenize(self, batch, texts, image):
        self.asked.append((texts, image.tolist()))
        rollout = self.rollout(batch)
        return rollout if len(texts) == 4 else rollout.select(range(len(texts)))

    def forward(self, rollout, *, encoded=None, want=()):
        scores = super().forward(rollout)
        return scores if len(rollout) == 4 else type(scores)(double(self.others)[: len(rollout), None])

    def reference(self):
        every = super().reference()
        zero = torch.zeros(2, 1, dtype=torch.float64)

        def score(rollout, *, encoded=None):
            scores = every(rollout)
            return scores if len(rollout) == 4 else type(scores)(zero[: len(rollout)])

        return score


@pytest.mark.parametrize(("others", "z"), [((0.3, 0.7), 0.5), ((-1.0, 0.2), 0.0)])
def test_the_loss_of_kto_by_hand(others, z):
    """z is the mean log-ratio of captions of the other image, at least 0, without gradient; each caption counts alone."""
    captioner = Drifting(
        double(POLICY)[:, None], torch.ones(4, 1), torch.tensor([0, 1, 0, 1]), double(REFERENCE)[:, None]
    )
    captioner.others = others
    pairs = {str(i): [PreferencePair(f"chosen {i}", f"rejected {i}")] for i in range(2)}
    objective = KTO(captioner, pairs, beta=0.4, desirable_weight=1.5, undesirable_weight=0.5)
    loss, *_ = run(objective, images(2))
    sigmoid = [1 / (1 + math.exp(-0.4 * x)) for x in (0.5 - z, -0.5 - z, z + 1.0, z - 0.5)]
    weights = (1.5, 1.5, 0.5, 0.5)
    assert loss == pytest.approx(sum(w * (1 - s) for w, s in zip(weights, sigmoid, strict=True)) / 4, abs=1e-12)
    signs = (-1, -1, 1, 1)
    expected = [sign * w * 0.4 * s * (1 - s) / 4 for sign, w, s in zip(signs, weights, sigmoid, strict=True)]
    assert captioner.logprobs.grad.flatten().tolist() == pytest.approx(expected, abs=1e-12)
    assert captioner.asked[1] == (["chosen 1", "chosen 0"], [0, 1])


class Recording(GivenCaptioner):
    """Remembers what is tokenised."""

    def tokenize(self, batch, texts, image):
        self.texts, self.rows = texts, image.tolist()
        count = len(texts)
        self.image, self.given_mask = image, torch.ones(count, 1).bool()
        self.logprobs.data = torch.zeros(count, 1)
        self.reference_logprobs = torch.zeros(count, 1)
        return self.rollout(batch)


def test_pairs_are_drawn_by_image_and_seed():
    """Without replacement, the same whatever stands beside an image in its batch; images without pairs are passed over."""
    pairs = {"0": [PreferencePair(f"c{n}", f"r{n}") for n in range(6)], "2": [PreferencePair("x", "y")]}

    def drawn(count, per_image, seed=0):
        captioner = Recording(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1).long(), torch.zeros(1, 1))
        torch.manual_seed(seed)
        OfflineDPO(captioner, pairs, pairs_per_image=per_image).collect(images(count), 0)
        return captioner.texts, captioner.rows

    texts, rows = drawn(3, 2)
    assert rows == [0, 0, 2, 0, 0, 2]
    assert [text.replace("c", "r").replace("x", "y") for text in texts[:3]] == texts[3:]
    assert len(set(texts[:2])) == 2
    assert drawn(1, 2)[0] == [*texts[:2], *texts[3:5]]
    assert len({tuple(drawn(1, 1, seed)[0]) for seed in range(20)}) > 3
    assert len(drawn(3, None)[0]) == 14


@pytest.mark.parametrize("options", [{"beta": 0.0}, {"pairs_per_image": 0}])
def test_numbers_that_cannot_be_used(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}=.* must be"):
        two_pairs(OfflineDPO, **options)
    for pairs in ({"0": [PreferencePair("a", "b")]}, {"0": [PreferencePair("a", "b")], "1": []}):
        with pytest.raises(ValueError, match="two images"):
            KTO(two_pairs(OfflineDPO)[1], pairs)


def test_memory_counts_both_captions_of_every_pair():
    pairs = {"0": [PreferencePair(f"c{n}", f"r{n}") for n in range(3)], "1": [PreferencePair("x", "y")]}
    captioner = two_pairs(OfflineDPO)[1]
    for per_image, captions in ((1, 2), (2, 4), (9, 6), (None, 6)):
        assert OfflineDPO(captioner, pairs, pairs_per_image=per_image).num_return_sequences == captions


class Scanned(list):
    """Counts the entries that are read."""

    read = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 1
        return found


def test_a_caption_of_another_image_is_found_without_reading_all_pairs():
    """The one at ``place``, or the next of another image; all pairs were copied for each image of each step."""
    pairs = {str(i): [PreferencePair(f"chosen {i} {n}", "x") for n in range(4)] for i in range(250)}
    objective = KTO(two_pairs(OfflineDPO)[1], pairs)
    objective._every = Scanned(objective._every)
    assert objective._of_another("7", 0.5) == "chosen 125 0"
    assert objective._of_another("125", 0.5) == "chosen 126 0"
    assert objective._of_another("249", 0.9999) == "chosen 0 0"
    assert objective._every.read == 1 + 5 + 2
