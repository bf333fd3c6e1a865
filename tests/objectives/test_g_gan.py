"""G-GAN: its published vector, its two losses against plain Python, and the order of its updates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from wtf_fakes import TableListener

from given import double, vector
from tellapart.captioners.base import Captioner, Continuations, Encoded
from tellapart.captioners.noise import ImageNoise
from tellapart.errors import UsageError
from tellapart.objectives.discriminator import DiscriminatorPretraining, OtherCaptions
from tellapart.objectives.g_gan import GGAN, prefix_values
from tellapart.types import Batch, Rollout, Scores

COUNT, PLACES, WORDS, ROLLOUTS, UPDATES = 3, 4, 5, 2, 2
LENGTHS = (4, 1, 3)


class RollingSpeaker(Captioner):
    """Image i says at place t a word of ``softmax(logits[i, t])`` plus the image state's own number; draws are given.

    A caption's text is ``<id>/drawn/<call>``, a continuation's ``<id>/<length of the prefix>/<sample>``.
    """

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits, self.calls = nn.Parameter(logits.clone()), 0

    def rows(self, batch):
        return torch.tensor([int(name) for name in batch.ids])

    def rollout(self, batch, texts, image=None):
        rows = self.rows(batch) if image is None else self.rows(batch)[image]
        mask = torch.arange(PLACES) < torch.tensor(LENGTHS)[rows][:, None]
        image = torch.arange(len(batch)) if image is None else image
        tokens = (rows[:, None] + torch.arange(PLACES)) % WORDS
        return Rollout(batch, image, texts, tokens, mask, torch.ones(len(image)).bool())

    def generate(self, batch, decoding, *, encoded=None):
        assert not torch.is_grad_enabled()
        self.calls += 1
        return self.rollout(batch, [f"{name}/drawn/{self.calls}" for name in batch.ids])

    def continue_from(self, rollout, decoding, *, shortest=1, encoded=None):
        rows = [
            (n, kept, sample)
            for n, length in enumerate(rollout.lengths.tolist())
            for kept in range(shortest, length)
            for sample in range(decoding.num_return_sequences)
        ]
        caption = torch.tensor([n for n, _, _ in rows], dtype=torch.long)
        texts = [f"{rollout.batch.ids[n]}/{kept}/{sample}" for n, kept, sample in rows]
        kept = torch.tensor([kept for _, kept, _ in rows], dtype=torch.long)
        return Continuations(self.rollout(rollout.batch, texts, caption), caption, kept)

    def tokenize(self, batch, texts, image):
        return self.rollout(batch, list(texts))

    def forward(self, rollout, *, encoded=None, want=()):
        logits = self.logits[self.rows(rollout.batch)] + encoded.states.sum(dim=(1, 2))[:, None, None] * torch.arange(
            WORDS
        )
        return Scores(logits.log_softmax(dim=2).gather(2, rollout.tokens[:, :, None]).squeeze(2))

    def process(self, images):
        return {}

    def encode(self, batch):
        return Encoded(torch.ones(len(batch), 1, 2, dtype=torch.float64))

    def reusable(self, encoded):
        return encoded

    def reference(self):
        raise NotImplementedError

    def save(self, folder):
        raise NotImplementedError

    def load_weights(self, folder):
        raise NotImplementedError


class TableEvaluator(nn.Module):
    """Gives each text a logit, times a factor that learns; reports what it was taught."""

    def __init__(self, logit) -> None:
        super().__init__()
        self.factor, self.logit = nn.Parameter(double(1.0)), logit

    def rows(self, rollout):
        return self.factor * double([self.logit(text) for text in rollout.texts])

    def forward(self, rollout):
        with torch.no_grad():
            return self.rows(rollout).sigmoid()

    def loss(self, real, fake):
        logits = torch.cat([self.rows(real), -self.rows(fake)])
        return -nn.functional.logsigmoid(logits), {"discriminator/fake": torch.arange(len(fake)).double()}


def by_text(text: str) -> float:
    """A number without pattern for every text; captions alike whenever they are drawn."""
    head = "/".join(text.split("/")[:2])
    return math.sin(
        sum(ord(character) * (place + 1) for place, character in enumerate(head if "drawn" in text else text))
    )


def images_of(ids="012") -> Batch:
    return Batch(list(ids), [[f"human {name}"] for name in ids])


REFERENCES = {"0": ["human 0"], "1": ["human 1"], "2": ["human 2"]}


def made(logit=by_text, *, noise=None, **options):
    logits = torch.randn(COUNT, PLACES, WORDS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = {"num_rollouts": ROLLOUTS, "evaluator_steps": UPDATES, **options}
    return GGAN(
        RollingSpeaker(logits),
        TableListener({}, {}),
        noise,
        OtherCaptions(REFERENCES),
        TableEvaluator(logit),
        **settings,
    )


def turns(objective, batches):
    """``(loss, gradients by parameter, logs)`` of every update, as the loop takes them."""
    experiences = []
    with torch.no_grad():
        for batch in batches:
            torch.manual_seed(0)
            experiences.append(objective.collect(batch, 0))
    found = []
    for _ in range(objective.turns):
        with torch.no_grad():
            experiences = objective.prepare(experiences, lambda tensor: tensor)
        objective.zero_grad(set_to_none=True)
        loss, weight, logs = 0.0, 0.0, {}
        for experience in experiences:
            for piece in objective.losses(experience):
                piece.loss.backward()
                loss, weight = loss + float(piece.loss.detach()), weight + float(piece.weight)
                logs |= piece.logs
        gradients = {name: p.grad / weight for name, p in objective.named_parameters() if p.grad is not None}
        found.append((loss / weight, gradients, logs))
    return found


def test_ggan_evaluator_loss():
    inputs, expected, tolerance = vector("ggan_evaluator_loss")

    def logit(text):
        kind, name = ("generated", text[0]) if "drawn" in text else text.split()[:2]
        return inputs[f"logit_{kind}"][int(name)]

    objective = made(
        logit, evaluator_steps=1, generated_weight=inputs["alpha"], mismatched_weight=inputs["beta"], num_rollouts=1
    )
    objective._others = lambda batch, read, seed: read(batch, [f"mismatched {name}" for name in batch.ids], None)
    batch = Batch(["0", "1"], [["real 0"], ["real 1"]])
    torch.manual_seed(0)
    with torch.no_grad():
        [experience] = objective.prepare([objective.collect(batch, 0)], lambda tensor: tensor)
    [piece] = objective.losses(experience)
    assert float(piece.loss.detach() / piece.weight) == pytest.approx(expected["loss"], abs=tolerance)
    reward = objective.discriminator(experience.rollout)
    assert reward.tolist() == pytest.approx(expected["reward_generated"], abs=tolerance)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def slow_values(ids):
    """``V_t`` of every caption, t from 0 to its length, in plain Python."""
    values = {}
    for name in ids:
        length = LENGTHS[int(name)]
        rolled = [
            sum(sigmoid(by_text(f"{name}/{kept}/{sample}")) for sample in range(ROLLOUTS)) / ROLLOUTS
            for kept in range(length)
        ]
        values[name] = [*rolled, sigmoid(by_text(f"{name}/drawn"))]
    return values


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("batches", [["012"], ["0", "12"]])
def test_losses_and_gradients_are_those_of_plain_python(baseline, batches):
    objective = made(prefix_baseline=baseline, generated_weight=0.5, mismatched_weight=2.0)
    found = turns(objective, [images_of(ids) for ids in batches])
    assert len(found) == UPDATES + 1
    for loss, gradients, _ in found[:-1]:
        assert list(gradients) == ["discriminator.factor"], "the captioner stays while the evaluator learns"
        own = [by_text(f"human {name}") for name in "012"]
        drawn = [by_text(f"{name}/drawn") for name in "012"]
        known = sum(math.log(1 + math.exp(-x)) for x in own) + 0.5 * sum(math.log(1 + math.exp(x)) for x in drawn)
        others = [{n: math.log(1 + math.exp(by_text(f"human {n}"))) for n in "012" if n != name} for name in "012"]
        possible = [a + b + c for a in others[0].values() for b in others[1].values() for c in others[2].values()]
        assert min(abs(loss - (known + 2.0 * mismatched) / 3) for mismatched in possible) < 1e-12
    loss, gradients, logs = found[-1]
    assert list(gradients) == ["captioner.logits"], "the evaluator stays while the captioner learns"
    values, expected = slow_values("012"), 0.0
    gradient = [[[0.0] * WORDS for _ in range(PLACES)] for _ in range(COUNT)]
    for i in range(COUNT):
        for t in range(LENGTHS[i]):
            weight = values[str(i)][t + 1] - (values[str(i)][t] if baseline else 0.0)
            # the fake speaker adds its image states, 2 in all, times the word's number
            row = [float(x) + 2.0 * w for w, x in enumerate(objective.captioner.logits[i, t].tolist())]
            total, word = sum(math.exp(x) for x in row), (i + t) % WORDS
            expected -= weight * (row[word] - math.log(total)) / COUNT
            for w in range(WORDS):
                gradient[i][t][w] = weight * (math.exp(row[w]) / total - (w == word)) / COUNT
    assert loss == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(gradients["captioner.logits"], double(gradient), atol=1e-12, rtol=0)
    last = batches[-1]
    assert logs["reward"].tolist() == pytest.approx([sigmoid(by_text(f"{name}/drawn")) for name in last], abs=1e-12)


def test_feedback_sums_to_the_score_of_the_whole_caption():
    """With the words before as baseline the advantages of a caption add up to its score less that of any caption."""
    objective = made(prefix_baseline=True)
    torch.manual_seed(0)
    with torch.no_grad():
        experiences = [objective.collect(images_of(), 0)]
        for _ in range(objective.turns):
            experiences = objective.prepare(experiences, lambda tensor: tensor)
    values = slow_values("012")
    for row, name in zip(experiences[0].advantage, "012", strict=True):
        assert float(row.sum()) == pytest.approx(values[name][-1] - values[name][0], abs=1e-12)


def test_values_of_prefixes_that_were_not_continued_are_0():
    continued = Continuations(None, torch.tensor([0, 0, 0]), torch.tensor([1, 1, 2]))
    found = prefix_values(double([0.2, 0.4, 0.9]), continued, double([1.0, 0.5]), torch.tensor([[1, 1, 1], [1, 0, 0]]))
    torch.testing.assert_close(found, double([[0.0, 0.3, 0.9, 1.0], [0.0, 0.5, 0.0, 0.0]]))


def test_the_captions_are_scored_by_the_evaluator_after_its_updates():
    objective = made()
    torch.manual_seed(0)
    with torch.no_grad():
        experiences = [objective.collect(images_of(), 0)]
        for turn in range(objective.turns):
            if turn == UPDATES:
                objective.discriminator.factor.mul_(3.0)
            experiences = objective.prepare(experiences, lambda tensor: tensor)
    expected = [sigmoid(3 * by_text(f"{name}/drawn")) for name in "012"]
    assert experiences[0].logs["reward"].tolist() == pytest.approx(expected, abs=1e-12)


def test_every_update_has_captions_of_its_own():
    objective = made()
    torch.manual_seed(0)
    with torch.no_grad():
        experience = objective.collect(images_of(), 0)
    drawn = [triples.generated.texts for triples in experience.triples] + [experience.rollout.texts]
    assert len({text for texts in drawn for text in texts}) == (UPDATES + 1) * COUNT


def test_noise_is_drawn_anew_and_its_projection_learns():
    torch.manual_seed(1)
    noise = ImageNoise(2, size=3).double()
    objective = made(noise=noise)
    gradients = turns(objective, [images_of()])[-1][1]
    assert set(gradients) == {"captioner.logits", "noise.projection.weight"}
    assert float(gradients["noise.projection.weight"].abs().sum()) > 0
    seen = []
    objective.noise.register_forward_hook(lambda module, given, output: seen.append(given[1]))
    torch.manual_seed(0)
    with torch.no_grad():
        objective.collect(images_of(), 0)
    assert len({tuple(z.flatten().tolist()) for z in seen}) == UPDATES + 1


def test_without_an_evaluator_nothing_can_be_learned():
    objective = made()
    objective.discriminator = None
    with pytest.raises(UsageError, match="g_gan learns from its discriminator"):
        objective.collect(images_of(), 0)


@pytest.mark.parametrize("wrong", [{"num_rollouts": 0}, {"evaluator_steps": 0}, {"generated_weight": -1.0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.* must be at least"):
        made(**wrong)


# Captions of other images.


def read(batch, texts, image):
    mask = torch.ones(len(texts), 1).bool()
    return Rollout(batch, torch.arange(len(texts)), list(texts), mask.long(), mask, mask[:, 0])


def test_captions_of_others_are_never_the_images_own():
    references = {str(i): [f"caption {i}", "a shape"] for i in range(6)} | {"none": []}
    others, seen = OtherCaptions(references), set()
    batch = Batch(["0", "3"], [references["0"], references["3"]])
    for seed in range(80):
        texts = others(batch, read, seed).texts
        assert texts == others(batch, read, seed).texts
        assert texts[1:] == others(batch.select([1]), read, seed).texts
        assert texts[0] not in references["0"]
        assert texts[1] not in references["3"]
        seen.add(texts[0])
    assert seen == {f"caption {i}" for i in range(1, 6)}


@pytest.mark.parametrize(
    ("references", "says"),
    [({"0": ["one"], "1": []}, "at least two images"), ({"0": ["a"], "1": ["a"]}, "the same captions")],
)
def test_there_must_be_other_captions(references, says):
    with pytest.raises(UsageError, match=says):
        OtherCaptions(references)(Batch(["0"], [["a"]]), read, 0)


def test_pre_training_may_reject_captions_of_others_too():
    batch = Batch(["0", "1"], [["human 0"], ["human 1"]])
    evaluator = TableEvaluator(by_text)

    def draw(images):
        return read(images, [f"{name}/drawn" for name in images.ids], None)

    objective = DiscriminatorPretraining(evaluator, draw, read, OtherCaptions({"0": ["human 0"], "1": ["human 1"]}))
    torch.manual_seed(0)
    [piece] = objective.losses(objective.collect(batch, 0))
    fakes = ["0/drawn", "1/drawn", "human 1", "human 0"]
    expected = sum(math.log(1 + math.exp(-by_text(f"human {i}"))) for i in (0, 1))
    expected += sum(math.log(1 + math.exp(by_text(text))) for text in fakes)
    assert float(piece.loss.detach()) == pytest.approx(expected, abs=1e-12)
    assert float(piece.weight) == 6
