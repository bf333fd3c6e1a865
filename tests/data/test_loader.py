import os
from itertools import chain

import numpy as np
import pytest
import torch

from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import Cut, TrainingData


def numbered(size: int, *, reference: str = "a") -> TrainingData:
    """Image i is a single pixel of value i."""
    examples = [
        Example(str(i), ArrayImage(np.full((1, 1, 3), i, dtype=np.uint8)), (f"{reference} {i}",)) for i in range(size)
    ]

    def process(images):
        first = torch.tensor([np.asarray(image)[0, 0, 0] for image in images])
        return {"x": first, "process": torch.full((len(images),), os.getpid())}

    return TrainingData(CaptionDataset(examples, name="numbers"), Collate({"toy": process}))


def ids(data: TrainingData, cut: Cut, *, seed: int = 1, start: int = 0, stop: int = 6, num_workers: int = 0):
    return [
        [batch.ids for batch in micro_batches]
        for micro_batches in data.batches(cut, seed=seed, start=start, stop=stop, num_workers=num_workers)
    ]


def flat(steps):
    return [[image for batch in micro_batches for image in batch] for micro_batches in steps]


def test_epochs_are_permutations_laid_end_to_end():
    data = numbered(10)
    sequence = list(chain(*flat(ids(data, Cut(4), stop=5))))
    assert sorted(sequence[:10], key=int) == sorted(sequence[10:], key=int) == data.dataset.ids
    assert sequence[:10] != sequence[10:]
    assert sequence[:10] != data.dataset.ids


def test_the_order_follows_from_the_seed():
    data = numbered(10)
    assert ids(data, Cut(4), seed=1) == ids(data, Cut(4), seed=1)
    assert ids(data, Cut(4), seed=1) != ids(data, Cut(4), seed=2)


def test_a_step_is_cut_contiguously_over_ranks_and_micro_batches():
    data = numbered(13)
    whole = flat(ids(data, Cut(12)))
    ranks = [ids(data, Cut(2, 3, rank, 2)) for rank in range(2)]
    assert all(len(micro_batches) == 3 for rank in ranks for micro_batches in rank)
    joined = [first + second for first, second in zip(*map(flat, ranks), strict=True)]
    assert joined == whole


def test_reading_begins_anywhere():
    data = numbered(7)
    assert ids(data, Cut(3, 2), start=4, stop=6) == ids(data, Cut(3, 2), stop=6)[4:]


def test_a_dataset_smaller_than_a_batch_repeats():
    (step,) = flat(ids(numbered(3), Cut(8), stop=1))
    assert len(step) == 8
    assert sorted(step[:3]) == sorted(step[3:6]) == ["0", "1", "2"]


@pytest.mark.parametrize("threads", [1, 2])
def test_workers_read_the_same_batches(threads):
    """Also when this process has computed on several threads before the workers are forked."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.rand(400, 400) @ torch.rand(400, 400)
        data = numbered(9)
        here = list(data.batches(Cut(2, 2), seed=1, stop=3))
        there = list(data.batches(Cut(2, 2), seed=1, stop=3, num_workers=2))
    finally:
        torch.set_num_threads(before)
    processes = set()
    for micro, other in zip(chain(*here), chain(*there), strict=True):
        assert micro.ids == other.ids
        assert micro.references == other.references
        assert torch.equal(micro.inputs["toy"]["x"], other.inputs["toy"]["x"])
        assert micro.inputs["toy"]["x"].tolist() == [int(i) for i in micro.ids]
        processes.add(int(other.inputs["toy"]["process"][0]))
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_the_fingerprint_is_of_ids_and_references():
    assert numbered(4).fingerprint() == numbered(4).fingerprint()
    assert len({numbered(4).fingerprint(), numbered(5).fingerprint(), numbered(4, reference="b").fingerprint()}) == 3
    plain, further = (TrainingData(numbered(4).dataset, Collate({}), further=also) for also in ("", "pairs"))
    assert plain.fingerprint() == numbered(4).fingerprint() != further.fingerprint()
