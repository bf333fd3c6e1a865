"""The grammar head and the reward that reads it, against plain transformers and plain Python."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from listeners.tiny_listeners import LIMIT, PARTS
from tellapart.errors import UsageError
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.grammar import GrammarMeasure
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.pooled import embed_and_pool, encode_pooled, pooled_width
from tellapart.listeners.trained import TrainedListener
from tellapart.rewards.grammar import (
    HEAD_SETTINGS,
    HEAD_WEIGHTS,
    Grammar,
    GrammarHead,
    GrammarListener,
    make_head,
    plain,
)
from tellapart.rewards.mix import Mix
from tellapart.types import Batch, Rollout
from tiny_models import redraw

TEXTS = ["a red dog", "a cat on the big sofa", "two", "a red dog", "the blue bus and the dog on the sofa runs on"]


def make(kind: str, **options) -> ClipListener:
    listener = ClipListener.from_parts(*PARTS[kind](), **options)
    redraw(listener.model, std=0.3, seed=1)
    return listener


def make_grammar(kind: str = "clip", **options) -> Grammar:
    listener = make(kind, **options)
    torch.manual_seed(3)
    head = make_head(listener)
    redraw(head, std=0.5, seed=2)
    return Grammar(listener, head)


def rollout_of(texts: list[str]) -> Rollout:
    count = len(texts)
    mask = torch.ones(count, 1, dtype=torch.bool)
    batch = Batch([str(i) for i in range(count)], [[] for _ in range(count)])
    return Rollout(batch, torch.arange(count), texts, mask.long(), mask, mask[:, 0])


@pytest.mark.parametrize("kind", PARTS)
def test_pooled_is_what_transformers_projects(kind):
    listener = make(kind, prefix="a photo ")
    with torch.no_grad():
        embeddings, pooled = embed_and_pool(listener, TEXTS)
        model, tokenizer = listener.model, listener.tokenizer
        for i, text in enumerate(TEXTS):
            ids = torch.tensor([tokenizer(f"a photo {text}")["input_ids"]])
            if ids.shape[1] > LIMIT:
                continue
            if kind == "siglip":
                ids = nn.functional.pad(ids, (0, LIMIT - ids.shape[1]), value=tokenizer.pad_token_id)
            hidden = model.text_model(input_ids=ids).last_hidden_state[0]
            at = -1 if kind == "siglip" else ids[0].tolist().index(tokenizer.eos_token_id)
            torch.testing.assert_close(pooled[i], hidden[at], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(embeddings, listener.embed_texts(TEXTS), rtol=1e-5, atol=1e-6)
    assert pooled.shape == (len(TEXTS), pooled_width(listener))


@pytest.mark.parametrize("kind", PARTS)
def test_pooled_without_gradients_is_the_same_in_any_cut(kind):
    listener = make(kind)
    whole = embed_and_pool(listener, TEXTS)[1]
    assert whole.requires_grad
    listener.batch_size = 2
    listener.model.train()
    found = encode_pooled(listener, TEXTS)
    assert not found.requires_grad
    assert listener.model.training
    torch.testing.assert_close(found, whole.detach(), rtol=1e-4, atol=1e-5)
    assert encode_pooled(listener, []).shape == (0, pooled_width(listener))
    assert not any(layer._forward_pre_hooks for layer in listener.model.modules())


def test_the_head_is_two_layers_without_biases():
    head = GrammarHead(3)
    assert [tuple(weight.shape) for weight in head.parameters()] == [(3, 3), (2, 3)]
    feature = [0.5, -1.0, 2.0]
    first, second = head.hidden.weight.tolist(), head.output.weight.tolist()
    hidden = [max(0.0, sum(w * x for w, x in zip(row, feature, strict=True))) for row in first]
    logits = [sum(w * x for w, x in zip(row, hidden, strict=True)) for row in second]
    expected = math.exp(logits[1]) / (math.exp(logits[0]) + math.exp(logits[1]))
    assert float(head.probability(torch.tensor([feature])).detach()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", PARTS)
def test_reward_is_the_heads_probability_of_plain_words(kind):
    grammar = make_grammar(kind)
    found = grammar(rollout_of(["A red dog.", *TEXTS]))
    with torch.no_grad():
        expected = grammar.head(encode_pooled(grammar.listener, TEXTS)).softmax(dim=1)[:, 1]
    torch.testing.assert_close(found[1:], expected)
    assert found[0] == found[1]  # neither the capital nor the full stop is read
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert len(set(found.tolist())) > 2


def test_what_is_plain():
    assert plain(["A dog, (two) cats!", "...", ""]) == ["a dog two cats", "", ""]


def test_silence_is_worth_nothing():
    grammar = make_grammar()
    assert grammar(rollout_of(["", " . ", "a dog"])).tolist()[:2] == [0.0, 0.0]
    assert grammar(rollout_of(["a dog"])).item() > 0
    assert grammar(rollout_of([])).shape == (0,)


def test_the_prefix_is_read():
    plain_grammar, with_prefix = make_grammar(prefix=""), make_grammar(prefix="a photo depicts ")
    assert not torch.equal(plain_grammar.probabilities(TEXTS), with_prefix.probabilities(TEXTS))
    prefixed = [f"a photo depicts {text}" for text in TEXTS]
    torch.testing.assert_close(plain_grammar.probabilities(prefixed), with_prefix.probabilities(TEXTS))


def test_the_reward_is_frozen_and_mixes():
    grammar = make_grammar()
    holder = nn.Module()
    holder.reward = grammar
    assert not list(holder.parameters())
    rollout = rollout_of(TEXTS)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = Mix({"grammar": grammar}, {"grammar": 3.0})(rollout)
    torch.testing.assert_close(mixed, 3.0 * grammar(rollout))


@pytest.mark.parametrize("kind", PARTS)
def test_saved_beside_the_listener_and_read_back(kind, tmp_path):
    grammar = make_grammar(kind, prefix="a photo ")
    part = GrammarListener(grammar.listener, grammar.head)
    part.save(tmp_path / "listener")
    for path in (tmp_path / "listener", tmp_path):  # the folder itself, and that of a run
        again = Grammar.from_pretrained(path)
        assert torch.equal(again.probabilities(TEXTS), grammar.probabilities(TEXTS))
        assert again.listener.prefix == "a photo "
    assert again.identity().split("[")[1] == grammar.identity().split("[")[1]
    assert json.loads((tmp_path / "listener" / HEAD_SETTINGS).read_text())["width"] == 16
    loaded = ClipListener.from_pretrained(tmp_path / "listener")
    assert torch.equal(loaded.encode_texts(TEXTS), grammar.listener.encode_texts(TEXTS))
    other = make_grammar(kind)
    redraw(other.listener.model, std=0.3, seed=7)
    redraw(other.head, std=0.3, seed=7)
    assert not torch.equal(other.probabilities(TEXTS), grammar.probabilities(TEXTS))
    GrammarListener(other.listener, other.head).load_weights(tmp_path / "listener")
    other.listener.prefix = "a photo "
    assert torch.equal(other.probabilities(TEXTS), grammar.probabilities(TEXTS))


def test_errors_name_the_folder_and_the_remedy(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere does not exist: train one with tellapart train-listener --grammar"):
        Grammar.from_pretrained(tmp_path / "nowhere")
    listener = make("clip")
    listener.save(tmp_path / "plain")
    with pytest.raises(UsageError, match=rf"plain holds no grammar head \({HEAD_SETTINGS}\)"):
        Grammar.from_pretrained(tmp_path / "plain")
    GrammarListener(listener, make_head(listener)).save(tmp_path / "whole")
    (tmp_path / "whole" / HEAD_WEIGHTS).write_bytes(b"broken")
    with pytest.raises(UsageError, match=f"{HEAD_WEIGHTS} is damaged or of another model"):
        Grammar.from_pretrained(tmp_path / "whole")
    (tmp_path / "whole" / HEAD_WEIGHTS).unlink()
    with pytest.raises(UsageError, match="whole holds no grammar head"):
        Grammar.from_pretrained(tmp_path / "whole")
    GrammarHead(4).save(tmp_path / "whole")
    with pytest.raises(UsageError, match="width 16"):
        Grammar.from_pretrained(tmp_path / "whole")
    with pytest.raises(UsageError, match="reads features of width 4, but the listener's text tower has 16"):
        Grammar(listener, GrammarHead(4))
    with pytest.raises(UsageError, match="lacks the weights of this listener"):
        TrainedListener(make("siglip")).load_weights(tmp_path / "plain")
    with pytest.raises(UsageError, match="lacks the weights of this listener"):
        TrainedListener(listener).load_weights(tmp_path / "nothing")


def test_the_measure_is_the_mean_in_percent():
    from tellapart.data.dataset import CaptionDataset, Example
    from tellapart.data.images import ArrayImage

    grammar = make_grammar()
    examples = [Example(str(i), ArrayImage(torch.zeros(4, 4, 3).byte().numpy())) for i in range(3)]
    evaluation = Evaluation(CaptionDataset(examples, name="three"), measures=(GrammarMeasure(grammar),))
    captions = {"0": "a red dog", "1": "", "2": "dog the a"}
    result = evaluation.score(captions, name="given")
    rows = [100 * value for value in grammar.probabilities(list(captions.values())).tolist()]
    assert rows[1] == 0
    assert result.per_image["grammatical_head"] == pytest.approx(rows)
    assert result.metrics["grammatical_head"] == pytest.approx(sum(rows) / 3)
    assert result.protocol.measured_by == {"grammatical_head": grammar.identity()}


def test_features_of_whole_texts_are_not_asked_of_a_listener_of_sentences():
    """It has one of each sentence, which were taken for those of the texts."""
    listener = make("clip")
    listener.text_pooling = "sentence_mean"
    with pytest.raises(UsageError, match="pools texts by sentence_mean"):
        embed_and_pool(listener, ["a red dog. a cat.", "a bird."])
