"""The words of captions as a tokenizer."""

from collections import Counter

import pytest
from transformers import AutoTokenizer

from tellapart.captioners.fresh import build_tokenizer, fresh_captioner
from tellapart.errors import UsageError

CAPTIONS = [
    "A man's T-shirt, on a (red) table.",
    "Don\u2019t walk: a dog!",
    "a man's dog -- in Z\u00fcrich, 3 \u732b",
    "don't walk in Zürich",
]


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_words_are_counted_as_they_are_read():
    tokenizer = build_tokenizer(CAPTIONS, min_count=1)
    # by hand: hyphens and apostrophes inside words stay, everything else separates
    read = ["a man's t-shirt on a red table", "don't walk a dog", "a man's dog in zürich 3 猫", "don't walk in zürich"]
    counts = Counter(word for text in read for word in text.split())
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    assert tokenizer.get_vocab() == {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", *ordered])}


def test_rare_words_are_unknown_and_the_order_of_captions_does_not_matter():
    tokenizer, other = build_tokenizer(CAPTIONS, min_count=2), build_tokenizer(CAPTIONS[::-1], min_count=2)
    assert tokenizer.get_vocab() == other.get_vocab()
    assert set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens) == {
        "a", "man's", "don't", "walk", "dog", "in", "zürich",
    }  # fmt: skip
    assert ids(tokenizer, "A man's cat") == [4, ids(tokenizer, "man's")[0], 3]


def test_texts_come_back_with_one_space_between_words(tmp_path):
    tokenizer = build_tokenizer(CAPTIONS, min_count=1)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("A DOG,  a t-shirt!", "don\u2019t walk"):
        assert ids(loaded, text) == ids(tokenizer, text)
        assert loaded.decode(ids(loaded, text)) == " ".join(text.lower().replace("\u2019", "'").split()).replace(
            ",", ""
        ).replace("!", "")
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id, loaded.unk_token_id) == (0, 1, 2, 3)


def test_special_tokens_in_a_caption_are_no_special_tokens():
    """Someone may write "</s>": its brackets are punctuation."""
    assert build_tokenizer(["a </s> b"], min_count=1).get_vocab().keys() == {
        "<pad>", "<s>", "</s>", "<unk>", "a", "b", "s",
    }  # fmt: skip


def test_impossible_demands_are_one_sentence():
    with pytest.raises(UsageError, match=r"captioner\.new\.min_count"):
        build_tokenizer(CAPTIONS, min_count=9)
    with pytest.raises(UsageError, match="new/lstm is not a captioner that can be made"):
        fresh_captioner("lstm", CAPTIONS, feature_size=4)
    with pytest.raises(ValueError, match="hidden_size=0 must be at least 1"):
        fresh_captioner("fc_lstm", CAPTIONS, feature_size=4, hidden_size=0, min_count=1)
