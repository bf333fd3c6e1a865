import logging
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from pycocoevalcap.cider.cider_scorer import CiderScorer

from given import vector
from tellapart.errors import UsageError
from tellapart.metrics.cider import DocumentFrequencies, cider_d
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.metrics.scores import refclip_s
from tellapart.rewards.mix import Mix
from tellapart.rewards.reference import CiderD
from tellapart.rewards.similarity import RefSimilarity, Similarity
from tellapart.types import Batch, MixedReward, Rollout


def rollout(texts, image, references, finished=None) -> Rollout:
    batch = Batch([f"i{i}" for i in range(len(references))], references)
    count = len(texts)
    finished = torch.ones(count).bool() if finished is None else torch.tensor(finished)
    return Rollout(
        batch, torch.tensor(image), texts, torch.zeros(count, 1).long(), torch.ones(count, 1).bool(), finished
    )


class Table:
    """A listener of given unit vectors."""

    name = "table"

    def __init__(self, images, texts):
        self.images, self.texts, self.asked = torch.tensor(images), texts, 0

    def encode_images(self, batch):
        return self.images.requires_grad_()

    def encode_ids(self, ids):
        raise AssertionError("not asked for")

    def encode_texts(self, texts):
        return torch.tensor([self.texts[text] for text in texts])


def angle(cosine: float) -> list[float]:
    return [cosine, (1 - cosine**2) ** 0.5]


def test_similarity_is_clip_s():
    inputs, expected, _ = vector("clip_and_pac_scores")
    cosines = inputs["cos_image_caption"]
    listener = Table([angle(1.0), angle(-1.0)], {f"c{i}": angle(c) for i, c in enumerate(cosines)})
    drawn = rollout(["c2", "c0", "c1", "c1"], [0, 0, 0, 1], [[], []])
    # the second image points the other way, so that c1 has cosine +0.05 with it
    want = [expected["clip_s"][2], expected["clip_s"][0], expected["clip_s"][1], 2.5 * 0.05]
    found = Similarity(listener)(drawn)
    assert found.tolist() == pytest.approx(want, abs=1e-6)
    assert not found.requires_grad
    assert found.dtype == torch.float32
    assert Similarity(listener, weight=2.0)(drawn)[0].item() == pytest.approx(expected["pac_s"][2], abs=1e-6)
    assert Similarity(listener, weight=1.0, clamp=False)(drawn)[2].item() == pytest.approx(cosines[1], abs=1e-6)


def test_ref_similarity_is_refclip_s():
    rng = np.random.default_rng(0)
    unit = rng.standard_normal((12, 3))
    unit = (unit / np.linalg.norm(unit, axis=1, keepdims=True)).astype(np.float32)
    texts = {f"t{i}": row.tolist() for i, row in enumerate(unit[2:])}
    references = [["t4", "t5", "t6"], ["t7"]]
    image = [0, 1, 1, 0]
    drawn = rollout([f"t{i}" for i in range(4)], image, references)
    captions = unit[2:6]
    cosines = (captions * unit[image]).sum(axis=1)
    others = [[float(np.dot(captions[n], texts[t])) for t in references[i]] for n, i in enumerate(image)]
    want = refclip_s(cosines, others)
    assert (want > 0).any()
    assert (want == 0).any()
    found = RefSimilarity(Table(unit[:2].tolist(), texts))(drawn)
    np.testing.assert_allclose(found.numpy(), want, atol=1e-6)
    with pytest.raises(UsageError, match="image 'i1' has none"):
        RefSimilarity(Table(unit[:2].tolist(), texts))(rollout(["t0"], [1], [["t1"], []]))


def corpus(images: int, seed: int = 0) -> dict[str, list[str]]:
    rng = random.Random(seed)
    words = ["a", "red", "dog", "on", "the", "big", "wave", "and", "board", "runs"]
    return {f"i{i}": [" ".join(rng.choices(words, k=rng.randint(3, 9))) + "." for _ in range(3)] for i in range(images)}


def test_cider_d_is_the_metric_with_the_end_as_a_word():
    references = corpus(120)
    reward = CiderD(DocumentFrequencies.from_references(references))
    texts = ["A red dog!", "the big wave", "a red dog", ""]
    finished = [True, True, False, True]
    found = reward(rollout(texts, [0, 1, 0, 1], list(references.values()), finished))
    # pycocoevalcap on the same words, the end written as "eos", with every image's references in its corpus
    with_end = {name: [text.rstrip(".") + " eos" for text in texts] for name, texts in references.items()}
    rows = {"i0": ["a red dog eos", "a red dog"], "i1": ["the big wave eos", "eos"]}
    expected = {}
    for name, captions in rows.items():
        for caption in captions:
            one = CiderScorer(n=4, sigma=6.0)
            for other, refs in with_end.items():
                one += (caption if other == name else "", refs)
            expected[caption] = one.compute_score()[1][list(with_end).index(name)]
    want = [expected[c] for c in ("a red dog eos", "the big wave eos", "a red dog", "eos")]
    np.testing.assert_allclose(found.numpy(), want, rtol=0, atol=1e-6)
    assert found[0] != found[2]  # the end counts


def test_cider_d_prepares_an_image_once_and_never_grows_its_frequencies(monkeypatch):
    references = corpus(120)
    reward = CiderD(DocumentFrequencies.from_references(references), prepared_images=2)
    size = len(reward.document_frequencies.counts)
    calls = []
    prepare = reward._scorer.prepare_numbered
    monkeypatch.setattr(
        reward._scorer, "prepare_numbered", lambda words, sizes: calls.append(len(sizes)) or prepare(words, sizes)
    )
    drawn = rollout(["new words", "unseen too"], [0, 1], list(references.values())[:3])
    first = reward(drawn)
    assert torch.equal(reward(drawn), first)
    assert calls == [2]  # both images at once, and only once
    reward(rollout(["a dog"], [2], list(references.values())[:3]))
    assert calls == [2, 1]
    assert len(reward._prepared) == 2
    assert torch.equal(reward(drawn), first)
    every = rollout(["new words", "unseen too", "a dog"], [0, 1, 2], list(references.values())[:3])
    assert torch.equal(reward(every)[:2], first)  # more images than are kept
    assert len(reward._prepared) == 2
    assert len(reward.document_frequencies.counts) == size


def test_cider_d_is_the_metric_before_it_is_rounded():
    references = corpus(150)
    frequencies = DocumentFrequencies.from_references(references, end="")
    rng = random.Random(5)
    names = [*references]
    image = [rng.randrange(150) for _ in range(320)]
    texts = [rng.choice([*references[names[i]], "a red dog a red dog", "wholly new words", ""]) for i in image]
    reward = CiderD(frequencies)
    drawn = rollout(texts, image, [*references.values()])
    tokens = {name: ptb_tokenize(captions, alone=True) for name, captions in references.items()}
    expected = [
        cider_d({names[i]: ptb_tokenize([text], alone=True)[0]}, {names[i]: tokens[names[i]]}, frequencies)[names[i]]
        for text, i in zip(texts, image, strict=True)
    ]
    np.testing.assert_allclose(reward.score(drawn), expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(reward(drawn).numpy(), expected, rtol=1e-6, atol=0)
    assert reward(drawn).dtype == torch.float32
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: reward.score(drawn), range(16)):
            assert found.tolist() == reward.score(drawn).tolist()


def test_cider_d_of_no_captions():
    assert CiderD(DocumentFrequencies.from_references(corpus(100)))(rollout([], [], [["a"]])).shape == (0,)


def test_cider_d_refuses_what_cannot_be_rewarded(caplog):
    with pytest.raises(UsageError, match=r"from 1 image,"):
        CiderD(DocumentFrequencies.from_references({"a": ["a dog"]}))
    reward = CiderD(DocumentFrequencies.from_references(corpus(99)))
    assert "only 99 images" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        CiderD(DocumentFrequencies.from_references(corpus(100)))
    assert caplog.text == ""
    drawn = rollout(["a"], [1], [["a dog"], []])
    with pytest.raises(UsageError, match="image 'i1' has none"):
        reward(drawn)
    assert reward(rollout(["a"], [0], [["a dog"], []])).shape == (1,)  # the bare image has no caption here


def test_mix_shows_its_parts_as_applied():
    drawn = rollout(["x", "y"], [0, 0], [[]])
    rewards = {"one": lambda r: torch.tensor([1.0, 2.0]), "two": lambda r: torch.tensor([10.0, 30.0])}
    mix = Mix(rewards, {"two": 0.5})
    assert isinstance(mix, MixedReward)
    assert {name: part.tolist() for name, part in mix.parts(drawn).items()} == {"one": [1, 2], "two": [5, 15]}
    assert mix(drawn).tolist() == [6, 17]
    with pytest.raises(UsageError, match="'three', which is not a reward"):
        Mix(rewards, {"three": 1.0})
    with pytest.raises(UsageError, match="no rewards to mix"):
        Mix({}, {})


@pytest.mark.parametrize("given", [[1.0, 2.0], torch.ones(2, 1), torch.ones(3)])
def test_a_reward_within_a_mix_must_give_one_number_per_caption(given):
    """Lists ended in an AttributeError."""
    mix = Mix({"mine": lambda r: given})
    with pytest.raises(UsageError, match=r"reward 'mine' gives .* for 2 captions"):
        mix(rollout(["x", "y"], [0, 0], [[]]))
