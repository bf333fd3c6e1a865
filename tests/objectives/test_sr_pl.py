"""SR-PL: its published vector through the class, its loss against plain Python, and what joins a step."""

from __future__ import annotations

import math

import pytest
import torch
from psst_fakes import TableSpeaker
from wtf_fakes import alone, learn, step

from given import double, vector
from tellapart.errors import UsageError
from tellapart.objectives.sr_pl import SRPL
from tellapart.types import Batch

LABELLED, JOINED = 3, 3
PLACES, WORDS = 4, 5


class TableTexts:
    """Embeddings by text and by image id, of any norm."""

    def __init__(self, images: dict[str, list[float]], texts: dict[str, list[float]]) -> None:
        self.images, self.texts = images, texts

    def embed_images(self, batch):
        return double([self.images[name] for name in batch.ids])

    def embed_texts(self, texts):
        return double([self.texts[text] for text in texts])


def joins(by_id: dict[str, str]):
    """Joins a given image to each training image."""

    def unlabelled(ids, seed):
        return Batch([by_id[name] for name in ids], [[] for _ in ids])

    return unlabelled


def labelled(ids) -> Batch:
    return Batch(list(ids), [["people's words"] for _ in ids])


def only_labelled(table: dict[str, float]):
    """A reward by text that refuses captions of images without references."""

    def reward(rollout):
        assert all(rollout.references()), "captions of unlabelled images have no CIDEr"
        return double([table[text] for text in rollout.texts])

    return reward


def test_sr_pl_reward():
    """Caption 0 is of image 0, caption 1 of image 2, which has no references; each has the vector's three others."""
    inputs, expected, tolerance = vector("sr_pl_reward")
    assert inputs["labeled"] == [1, 0]
    truth, others = inputs["sim_true"], inputs["sim_negatives"]
    drawn = torch.tensor([[1], [1], [1], [1]])
    speaker = TableSpeaker(torch.zeros(4, 1, 2, dtype=torch.float64), sampled=drawn)
    cosines = {
        "0/drawn/1": [truth[0], *others[0]],
        "2/drawn/1": [*others[1][:2], truth[1], others[1][2]],
        "1/drawn/1": [0.0, 1.0, 0.0, 0.0],
        "3/drawn/1": [0.0, 0.0, 0.0, 1.0],
    }
    cosines |= {f"{i}/greedy/0": [0.0] * 4 for i in range(4)}
    listener = TableTexts({str(i): torch.eye(4)[i].tolist() for i in range(4)}, cosines)
    cider = {"0/drawn/1": inputs["cider"][0], "2/drawn/1": inputs["cider"][1], "1/drawn/1": 0.0}
    reward = only_labelled(cider | {f"{i}/greedy/0": 0.0 for i in range(4)})
    objective = SRPL(
        speaker,
        reward,
        listener,
        joins({"0": "2", "1": "3"}),
        retrieval_weight=inputs["alpha"],
        margin=inputs["margin"],
    )
    [groups] = step(objective, [labelled("01")])
    for group, name, place in ((groups[0], "", 0), (groups[1], "unlabelled/", 1)):
        assert float(group.logs[f"{name}own_listener/hinge"][0]) == pytest.approx(
            expected["retrieval_loss"][place], abs=tolerance
        )
        assert float(group.logs[f"{name}reward"][0]) == pytest.approx(expected["reward"][place], abs=tolerance)


def random_case(seed: int = 0, *, margin: float = 0.3, weight: float = 1.7):
    """A speaker, rewards and cosines without pattern, and the objective of them."""
    generator = torch.Generator().manual_seed(seed)
    count = LABELLED + JOINED
    logits = torch.randn(count, PLACES, WORDS, generator=generator, dtype=torch.float64)
    mask = torch.arange(PLACES) < torch.randint(2, PLACES + 1, (count, 1), generator=generator)
    drawn = torch.randint(0, WORDS, (count, PLACES), generator=generator)
    speaker = TableSpeaker(logits, mask, sampled=drawn)
    greedy = logits.argmax(dim=2)
    texts = {
        kind: ["/".join([str(i), kind, "".join(map(str, row.tolist()))]) for i, row in enumerate(tokens)]
        for kind, tokens in (("drawn", drawn), ("greedy", greedy))
    }
    spoken = texts["drawn"] + texts["greedy"]
    numbers = torch.randn(len(spoken) + count, 3, generator=generator, dtype=torch.float64)
    unit = (numbers / numbers.norm(dim=1, keepdim=True)).tolist()
    listener = TableTexts({str(i): unit[i] for i in range(count)}, dict(zip(spoken, unit[count:], strict=True)))
    cider = {
        text: float(value) for text, value in zip(spoken, torch.rand(len(spoken), generator=generator), strict=True)
    }
    by_id = {str(i): str(LABELLED + i) for i in range(LABELLED)}
    objective = SRPL(speaker, only_labelled(cider), listener, joins(by_id), retrieval_weight=weight, margin=margin)
    return objective, texts, cider


def slowly(objective, texts, cider, *, margin: float = 0.3, weight: float = 1.7):
    """``(loss, [image][place][word] gradient)`` in plain Python."""
    speaker, listener, count = objective.captioner, objective._listener.module, LABELLED + JOINED

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    def reward(i, text):
        own = dot(listener.texts[text], listener.images[str(i)])
        best = max(dot(listener.texts[text], listener.images[str(j)]) for j in range(count) if j != i)
        return (cider[text] if i < LABELLED else 0.0) - weight * max(0.0, margin - own + best)

    lengths = speaker.mask.sum(dim=1).tolist()
    loss, gradient = 0.0, [[[0.0] * WORDS for _ in range(PLACES)] for _ in range(count)]
    for i in range(count):
        advantage = reward(i, texts["drawn"][i]) - reward(i, texts["greedy"][i])
        for t in range(lengths[i]):
            row = speaker.logits[i, t].tolist()
            total = sum(math.exp(x) for x in row)
            word = int(speaker.sampled[i, t])
            loss -= advantage * (row[word] - math.log(total)) / sum(lengths)
            for w in range(WORDS):
                gradient[i][t][w] = advantage * (math.exp(row[w]) / total - (w == word)) / sum(lengths)
    return loss, gradient


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_are_those_of_plain_python(seed):
    objective, texts, cider = random_case(seed)
    loss = learn(objective, step(objective, [labelled("012")]))
    expected, gradient = slowly(objective, texts, cider)
    assert loss == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(objective.captioner.logits.grad, double(gradient), atol=1e-12, rtol=0)


def test_how_a_step_is_cut_changes_nothing():
    objective, texts, cider = random_case()
    expected, gradient = slowly(objective, texts, cider)
    assert learn(objective, step(objective, [labelled("0"), labelled("12")])) == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(objective.captioner.logits.grad, double(gradient), atol=1e-12, rtol=0)
    assert objective.decomposes


def test_without_unlabelled_images_the_others_of_the_batch_are_negatives():
    objective, texts, cider = random_case()
    objective.unlabelled = None
    [[group]] = step(objective, [labelled("012")])
    listener = objective._listener.module
    for i in range(LABELLED):
        caption = listener.texts[texts["drawn"][i]]
        cosines = [sum(x * y for x, y in zip(caption, listener.images[str(j)], strict=True)) for j in range(LABELLED)]
        missed = max(0.0, 0.3 - cosines[i] + max(cosines[:i] + cosines[i + 1 :]))
        assert float(group.logs["reward"][i]) == pytest.approx(cider[texts["drawn"][i]] - 1.7 * missed, abs=1e-12)


def test_a_picture_under_another_id_is_no_negative_of_itself():
    objective, _, _ = random_case()
    listener = objective._listener.module
    listener.images["3"] = listener.images["0"]
    [groups] = step(objective, [labelled("012")])
    own = groups[0]
    images = torch.cat([group.images for group in groups])
    keys = torch.cat([group.keys for group in groups])
    _, rivals = objective._similarities(own, own.captions[0], images, keys)
    assert rivals[0].isneginf().tolist() == [True, False, False, True, False, False]
    assert rivals[1].isneginf().tolist() == [False, True, False, False, False, False]


def test_a_step_of_one_picture_is_refused():
    objective, _, _ = random_case()
    objective.unlabelled = None
    with pytest.raises(UsageError, match="a step has a single picture"):
        step(objective, [labelled("0")])


def test_unlabelled_images_follow_from_the_step():
    """The loop seeds every micro-batch of a step alike, and steps differently."""
    seeds = list[int]()

    def unlabelled(ids, seed):
        seeds.append(seed)
        return Batch(["3" for _ in ids], [[] for _ in ids])

    objective, _, _ = random_case()
    objective.unlabelled = unlabelled
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            objective.collect(labelled("01"), 0)
    assert seeds[0] == seeds[1] != seeds[2]


def test_the_frozen_listener_is_not_trained():
    objective, _, _ = random_case()
    assert [name for name, _ in objective.named_children()] == ["captioner"]


@pytest.mark.parametrize("wrong", [{"retrieval_weight": -1.0}, {"margin": -0.1}])
def test_impossible_numbers_are_refused(wrong):
    objective, _, _ = random_case()
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.* must be at least 0"):
        SRPL(objective.captioner, objective.reward, objective._listener.module, **wrong)


def test_gathered_images_of_other_devices_are_negatives_too():
    objective, _, _ = random_case()
    far = double([[1.0, 0.0, 0.0]])

    def gather(tensor):
        if tensor.dim() == 2:
            return torch.cat([tensor, far])
        return torch.cat([tensor, tensor.new_tensor([7])])

    [groups] = step(objective, [labelled("012")], gather)
    [before] = step(objective, [labelled("012")], alone)
    for group, fewer in zip(groups, before, strict=True):
        name = f"{group.prefix}own_listener/hinge"
        assert (group.logs[name] >= fewer.logs[name]).all()
    caption = groups[0].captions[0][0]
    missed = (
        0.3
        - float(caption @ groups[0].images[0])
        + max(float(caption[0]), *(float(caption @ image) for image in torch.cat([g.images for g in groups])[1:]))
    )
    assert float(groups[0].logs["own_listener/hinge"][0]) == pytest.approx(max(0.0, missed), abs=1e-12)
