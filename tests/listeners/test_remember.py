"""Texts that a listener remembers."""

import pytest
import torch

from tellapart.listeners.remember import RememberingTexts


class Counting:
    """Embeds a text as its length, and tells which it was asked for."""

    name = "listener"

    def __init__(self):
        self.asked = []

    def encode_images(self, batch):
        return f"images of {batch}"

    def encode_ids(self, ids):
        return f"embeddings of {ids}"

    def encode_texts(self, texts):
        self.asked.append(list(texts))
        return torch.tensor([[float(len(text)), 1.0] for text in texts]).view(-1, 2)


def test_each_text_is_embedded_once_in_the_order_asked_for():
    counting = Counting()
    listener = RememberingTexts(counting)
    assert listener.encode_texts(["aa", "b", "aa"])[:, 0].tolist() == [2, 1, 2]
    assert listener.encode_texts(["ccc", "b"])[:, 0].tolist() == [3, 1]
    assert counting.asked == [["b", "aa"], ["ccc"]]
    listener.forget()
    listener.encode_texts(["b"])
    assert counting.asked[-1] == ["b"]


def test_a_step_begins_with_nothing_remembered():
    counting = Counting()
    listener = RememberingTexts(counting)
    for step in (0, 0, 1):
        listener.begin(step)
        listener.encode_texts(["a"])
    assert counting.asked == [["a"], ["a"]]


def test_a_step_whose_texts_could_not_all_be_kept_begins_with_nothing_remembered():
    """Which of them are kept follows from the step before."""
    counting = Counting()
    listener = RememberingTexts(counting, capacity=2)
    for _ in range(2):
        listener.begin("references")
        listener.encode_texts(["a", "bb", "ccc"])
    assert counting.asked == [["a", "bb", "ccc"]] * 2
    listener = RememberingTexts(counting, capacity=3)
    for _ in range(2):
        listener.begin("references")
        listener.encode_texts(["a", "bb", "ccc"])
    assert len(counting.asked) == 3


def test_what_was_asked_for_longest_ago_is_dropped():
    counting = Counting()
    listener = RememberingTexts(counting, capacity=2)
    for texts in (["a", "bb"], ["a"], ["ccc"], ["a"], ["bb"]):
        listener.encode_texts(texts)
    assert counting.asked == [["a", "bb"], ["ccc"], ["bb"]]
    # more texts at once than are kept
    assert listener.encode_texts(["x", "yy", "zzz"])[:, 0].tolist() == [1, 2, 3]
    assert len(listener._kept) == 2


def test_no_text_and_images_are_the_listeners_affair():
    counting = Counting()
    listener = RememberingTexts(counting)
    assert listener.encode_texts([]).shape == (0, 2)
    assert listener.encode_images(3) == "images of 3"
    assert listener.encode_ids(["a"]) == "embeddings of ['a']"
    assert listener.name == "listener"
    assert RememberingTexts.around(listener) is listener
    assert RememberingTexts.around(counting).listener is counting
    with pytest.raises(ValueError, match="capacity=0"):
        RememberingTexts(counting, capacity=0)


def test_a_remembered_row_does_not_keep_its_batch_alive():
    listener = RememberingTexts(Counting())
    listener.encode_texts([str(i) for i in range(100)])
    assert listener._kept["7"].untyped_storage().nbytes() == 2 * 4


def test_texts_of_similar_length_are_embedded_together():
    counting = Counting()
    texts = ["x" * n for n in (5, 1, 4, 2, 3)]
    assert RememberingTexts(counting, group=2).encode_texts(texts)[:, 0].tolist() == [5, 1, 4, 2, 3]
    assert [[len(text) for text in call] for call in counting.asked] == [[1, 2], [3, 4], [5]]
