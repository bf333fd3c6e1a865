from hypothesis import given as forall
from hypothesis import strategies as st

from tellapart.metrics.tokenizer import PUNCTUATION, tokenize


def test_words_are_lower_case_and_free_of_sentence_punctuation():
    assert tokenize(["A man,  riding a Wave.", 'The "dog\'s" close-up ...', "  ", "?!"]) == [
        "a man riding a wave",
        "the dog's close-up",
        "",
        "",
    ]


@forall(st.lists(st.text()))
def test_one_line_a_caption_and_stable(captions):
    once = tokenize(captions)
    assert len(once) == len(captions)
    assert tokenize(once) == once
    assert all(word[0] not in PUNCTUATION and word[-1] not in PUNCTUATION for line in once for word in line.split())
