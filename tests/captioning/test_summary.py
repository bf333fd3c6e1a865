"""One caption of several by a language model: what it is asked, that it answers greedily, and that batches change nothing."""

import pytest
import torch
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

from captioning.captioning_fakes import Scripted
from pictures import CAPTIONS
from tellapart.captioning.draw import Drawer, Drawing
from tellapart.captioning.gate import EMPTY, UNFINISHED
from tellapart.captioning.records import Caption
from tellapart.captioning.summary import PROMPT, Summarizer, Summary
from tellapart.errors import UsageError
from tellapart.types import Batch, Decoding
from tiny.language_models import VOCABULARY, tiny_language_model
from tiny.prompted import byte_tokenizer
from tiny_models import redraw

ASK = "say all:\n{captions}\none:"
GROUPS = [["a red circle", "a dog"], ["a blue star on a table", "a star", "two stars by a dog on a table"], ["a"]]
FAMILIES = ("gpt2", "opt", "llama", "t5")


def parts(family):
    """Model and tokenizer; T5 reads the prompt whole, and its EOS is that of the tokenizer."""
    if family != "t5":
        return tiny_language_model(family, positions=512, std=0.5)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 3}
    model = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, **sizes, **ids))
    redraw(model, std=0.5, seed=1)
    return model.eval(), byte_tokenizer(CAPTIONS, VOCABULARY)


def summarizer(family, **options):
    return Summarizer(*parts(family), **{"prompt": ASK, "max_new_tokens": 12, **options})


def token_by_token(asked, family, *, longest=12):
    """The greedy answer to a prompt without generate: ids, up to and with EOS."""
    model, tokenizer = parts(family)
    ids = torch.tensor([tokenizer(asked)["input_ids"]])
    written = []
    for _ in range(longest):
        with torch.no_grad():
            if family == "t5":
                logits = model(input_ids=ids, decoder_input_ids=torch.tensor([[0, *written]])).logits
            else:
                logits = model(input_ids=torch.cat([ids, torch.tensor([written], dtype=torch.long)], dim=1)).logits
        written.append(int(logits[0, -1].argmax()))
        if written[-1] == 3:
            break
    return written


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_greedy_and_those_of_each_prompt_alone(family):
    write = summarizer(family)
    found = write(GROUPS)
    assert found == [write([group])[0] for group in GROUPS]
    assert found == write(GROUPS)
    for group, summary in zip(GROUPS, found, strict=True):
        ids = token_by_token(write.asked(group), family)
        text = write.tokenizer.decode([i for i in ids if i != 3], skip_special_tokens=True).lstrip()
        assert summary == Summary(" ".join(text.split("\n")[0].split()), ids[-1] == 3 or "\n" in text)
    assert any(summary.text for summary in found), "a test on empty answers shows nothing"


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_checkpoints_own_decoding_is_left_out(family, tmp_path):
    """Many sample by default, and summarising ones demand a length."""
    for part in parts(family):
        part.save_pretrained(tmp_path)
    model = parts(family)[0]
    ids = {"eos_token_id": 3, "pad_token_id": 0, "decoder_start_token_id": 0}
    model.generation_config = GenerationConfig(do_sample=True, temperature=2.0, num_beams=3, min_length=50, **ids)
    model.save_pretrained(tmp_path)
    loaded = Summarizer.from_pretrained(tmp_path, prompt=ASK, max_new_tokens=12)
    assert loaded(GROUPS) == summarizer(family)(GROUPS)


def test_what_is_asked():
    write = summarizer("opt")
    assert write.asked(["a  red\ncircle", "a </s> dog"]) == "say all:\n- a red circle\n- a dog\none:"
    assert "{captions}" in PROMPT
    asked = []
    write.tokenizer.chat_template = (
        "{{ '<s>' }}{% for turn in messages %}[{{ turn.role }}: {{ turn.content }}]{% endfor %}"
    )
    original = write.tokenizer.__call__
    write.tokenizer.__class__ = type(
        "Noted",
        (type(write.tokenizer),),
        {"__call__": lambda self, text, **how: asked.append((text, how)) or original(text, **how)},
    )
    write([["a dog"]])
    assert asked == [("<s>[user: say all:\n- a dog\none:]", {"add_special_tokens": False})]


def test_only_the_first_line_of_an_answer_counts():
    write = summarizer("gpt2")

    def text(*words):
        return write.tokenizer(" ".join(words), add_special_tokens=False)["input_ids"]

    newline = write.tokenizer("\n", add_special_tokens=False)["input_ids"]
    assert write._summary([*text("a dog"), *newline, *text("Descriptions")]) == Summary("a dog", True)
    assert write._summary([*newline, *text("a dog")]) == Summary("a dog", False)
    assert write._summary([*text("a dog"), 3, 0, 0]) == Summary("a dog", True)


def test_unusable_ones_are_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="has no place for the captions"):
        summarizer("gpt2", prompt="say all")
    with pytest.raises(UsageError, match="at most 0 tokens says nothing"):
        summarizer("gpt2", max_new_tokens=0)
    with pytest.raises(UsageError, match="has places for 512 tokens, and the prompt alone takes 5"):
        summarizer("gpt2", max_new_tokens=510)
    with pytest.raises(UsageError, match="does not exist"):
        Summarizer.from_pretrained(tmp_path / "none")
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(UsageError, match="cannot be loaded"):
        Summarizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_captions_that_the_model_cannot_read_cost_their_image_alone(family):
    write = summarizer(family)
    long = ["a red circle on a table"] * 60
    found = write([GROUPS[0], long, GROUPS[2]])
    assert [found[0], found[2]] == write([GROUPS[0], GROUPS[2]])
    assert "has places for 512: sample fewer" in found[1].error
    assert write([long])[0].error == found[1].error
    assert write([]) == []


def test_an_image_without_a_summary_has_an_error_instead():
    """One that was written before stays, though the captions drawn again are too long."""

    def short(groups):
        return [
            Summary("", False, "too long") if "long" in group else Summary(group[0], "cut" not in group)
            for group in groups
        ]

    two = Decoding(do_sample=True, num_return_sequences=2)
    captioner = Scripted({"a": [["long", "a cat"]], "b": [["a dog", "x"]], "c": [["cut", "u"], ["long", "v"]]})
    how = Drawing(decoding=two, sampling=two, resample=1, summarize=short)
    captions = Drawer(captioner, how)(Batch(["a", "b", "c"], [[], [], []]))
    assert captions[0] == Caption("a", error="a has no summary: too long")
    assert [(c.caption, c.flags) for c in captions[1:]] == [("a dog", ()), ("cut", (UNFINISHED,))]


class Merged:
    """A summarizer that joins what it is given."""

    def __init__(self):
        self.asked = []

    def __call__(self, groups):
        self.asked.append([list(group) for group in groups])
        return [Summary(" and ".join(group) if "no" not in group else "", "cut" not in group) for group in groups]


def test_all_samples_of_an_image_become_one_caption():
    """A summary with a fault is written again, of new samples."""
    two = Decoding(do_sample=True, num_return_sequences=2)
    captioner = Scripted(
        {"a": [["a  dog", "a cat"]], "b": [["no", "x"], ["y", "z"]], "c": [["cut", "u"], ["cut", "v"]]},
        unfinished=["a  dog"],
    )
    merged = Merged()
    how = Drawing(decoding=two, sampling=two, resample=1, summarize=merged)
    captions = Drawer(captioner, how)(Batch(["a", "b", "c"], [[], [], []]))
    assert [(c.caption, c.flags, c.attempt) for c in captions] == [
        ("a dog and a cat", (), 0),  # that a sample was cut is no fault of the summary
        ("y and z", (), 1),
        ("cut and u", (UNFINISHED,), 0),
    ]
    assert [c.candidates for c in captions] == [
        (("a dog", None), ("a cat", None)),
        (("y", None), ("z", None)),
        (("cut", None), ("u", None)),
    ]
    assert merged.asked == [[["a dog", "a cat"], ["no", "x"], ["cut", "u"]], [["y", "z"], ["cut", "v"]]]
    assert EMPTY not in captions[1].flags
    assert Caption.from_json(captions[0].as_json()) == captions[0]


def test_the_match_is_that_of_the_summary():
    def length(rollout):
        assert len(rollout) == len(rollout.batch)
        return torch.tensor([float(len(text)) for text in rollout.texts])

    two = Decoding(do_sample=True, num_return_sequences=2)
    captioner = Scripted({"a": [["a dog", "a cat"]], "b": [["x", "y"]]})
    how = Drawing(decoding=two, sampling=two, summarize=Merged(), match=length)
    captions = Drawer(captioner, how)(Batch(["a", "b"], [[], []]))
    assert [c.match for c in captions] == [15.0, 7.0]
