import json
import logging

import numpy as np
import pytest
import torch

from discriminator_fakes import SENTENCES, BagOfWords, captions, pictures, shuffled, tiny_listener
from given import double, vector
from tellapart.data.dataset import Collate
from tellapart.errors import UsageError
from tellapart.listeners.remember import RememberingTexts
from tellapart.rewards import discriminator_verdict
from tellapart.rewards.discriminator import (
    KINDS,
    Discriminator,
    DotProductDiscriminator,
    MLPDiscriminator,
    TextDiscriminator,
    load_discriminator,
)
from tellapart.rewards.discriminator_verdict import AccuracyWatch, verdict


class Given(Discriminator):
    """Gives each caption, a number, the logits of that row."""

    kind, learning_rate = "given", 1.0

    def __init__(self, logits):
        super().__init__(BagOfWords())
        self.given = torch.nn.Parameter(double(logits))

    def logits(self, rollout):
        return self.given[[int(text) for text in rollout.texts]]


@pytest.fixture
def listener():
    return tiny_listener()


@pytest.fixture
def batch(listener):
    return Collate({listener.name: listener.process})(pictures(8).examples)


def made(kind, listener, seed=0):
    torch.manual_seed(seed)
    return KINDS[kind](listener)


def test_published_vector():
    inputs, expected, tolerance = vector("wtf_discriminator_loss")
    assert inputs["labels"] == [0, 0, 1, 1]
    given = Given(inputs["logits"])
    fake, real = captions(["0", "1"]), captions(["2", "3"])
    want = expected["p_human"]
    assert torch.cat([given(fake), given(real)]).tolist() == pytest.approx(want, abs=tolerance)
    losses, logs = given.loss(real, fake)
    assert losses.shape == (4,)
    assert float(losses.detach().mean()) == pytest.approx(expected["loss"], abs=tolerance)
    # people's captions come first, and each row is the binary cross-entropy of its own probability
    by_row = -np.log([want[2], want[3], 1 - want[0], 1 - want[1]])
    assert losses.tolist() == pytest.approx(by_row.tolist(), abs=1e-8)
    assert float(logs["discriminator/accuracy"].mean()) == expected["accuracy"]
    assert logs["discriminator/real"].tolist() == pytest.approx(want[2:], abs=tolerance)
    assert logs["discriminator/fake"].tolist() == pytest.approx(want[:2], abs=tolerance)
    # d BCE / d logits = softmax - one-hot: a generated caption that looks human is pushed to class 0
    losses.sum().backward()
    assert given.given.grad[0].tolist() == pytest.approx([-want[0], want[0]], abs=1e-8)
    assert given.given.grad[2].tolist() == pytest.approx([1 - want[2], want[2] - 1], abs=1e-8)


def test_a_wrong_answer_and_a_tie_are_not_right():
    given = Given([[1.0, -0.5], [-1.0, 2.0], [0.3, 0.3]])
    _, logs = given.loss(captions(["0", "1", "2"]), captions(["0", "1", "2"]))
    assert logs["discriminator/accuracy"].tolist() == [0, 1, 0, 1, 0, 0]


def test_mlp_is_that_of_the_released_code():
    listener = BagOfWords(512)
    mlp = MLPDiscriminator(listener)
    layers = [layer for layer in mlp.layers if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(1024, 512), (512, 256), (256, 2)]
    drawn = captions(["a dog.", " a cat "])
    listener.asked.clear()
    found = mlp(drawn)
    assert listener.asked[:2] == ["a dog", "a cat"]
    state = np.concatenate([listener.encode_images(drawn.batch), listener.encode_texts(["a dog", "a cat"])], axis=1)
    for place, layer in enumerate(layers):
        state = state @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        state = np.maximum(state, 0) if place < 2 else state
    want = 1 / (1 + np.exp(state[:, 0] - state[:, 1]))
    assert found.tolist() == pytest.approx(want.tolist(), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_reaches_the_discriminator_alone(kind, listener, batch):
    discriminator = made(kind, listener)
    real, fake = captions(SENTENCES[:8], batch=batch), captions(SENTENCES[40:48], batch=batch)
    assert not discriminator(real).requires_grad
    assert discriminator(real).shape == (8,)
    losses, logs = discriminator.loss(real, fake)
    assert losses.shape == (16,)
    assert not any(values.requires_grad for values in logs.values())
    losses.mean().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in discriminator.parameters())
    assert all(parameter.grad is None for parameter in listener.model.parameters())
    held = {id(parameter) for parameter in listener.model.parameters()}
    assert not held & {id(parameter) for parameter in discriminator.parameters()}
    parts = {"mlp": {"layers"}, "text": {"start", "reader", "head"}, "dot_product": {"image", "reader"}}
    assert {name.split(".")[0] for name in discriminator.state_dict()} == parts[kind]


def test_a_listener_that_would_be_trained_is_refused():
    with pytest.raises(ValueError, match=r"must not be an nn\.Module"):
        MLPDiscriminator(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_caption_is_judged_alone(kind, listener, batch):
    discriminator = made(kind, listener)
    texts = ["a red circle on a table", "blue", "", "a green star on the floor on the floor"]
    together = discriminator(captions(texts, batch=batch))
    for row, text in enumerate(texts):
        alone = discriminator(captions([text], batch=batch.select([row])))
        assert float(alone) == pytest.approx(float(together[row]), abs=1e-6)
    assert len({round(value, 6) for value in together.tolist()}) == 4
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(discriminator(captions(texts, batch=batch)), together)


def test_text_sees_words_in_order_their_end_and_the_image_but_no_case(listener, batch):
    text = made("text", listener)
    one = text(captions(["a red circle on a table"], batch=batch))
    assert torch.equal(text(captions(["A red circle on a table ."], batch=batch)), one)
    assert not torch.isclose(text(captions(["a table on a red circle"], batch=batch)), one, atol=1e-6)
    assert not torch.isclose(text(captions(["a red circle on a table"], batch=batch, finished=[False])), one, atol=1e-6)
    elsewhere = batch.select([1])
    assert not torch.isclose(text(captions(["a red circle on a table"], batch=elsewhere)), one, atol=1e-6)
    blind = TextDiscriminator(listener, see_image=False)
    same = [blind(captions(["a red circle on a table"], batch=some)) for some in (batch, elsewhere)]
    assert torch.equal(*same)


def test_text_reads_through_a_listener_that_remembers_and_needs_a_clip(listener):
    text = made("text", RememberingTexts(listener))
    assert text.describe() == made("text", listener).describe()
    for kind in (TextDiscriminator, DotProductDiscriminator):
        with pytest.raises(UsageError, match="kind text and dot_product read the token embeddings"):
            kind(BagOfWords())


def test_dot_product_by_numpy(listener, batch):
    """The last state of an LSTM over normalised token embeddings, times a linear layer of the image; captions may repeat."""
    evaluator = made("dot_product", listener)
    texts = ["a red circle on a table", "A blue star .", "a red circle on a table", "a blue star"]
    finished = [True, True, False, True]
    found = evaluator(captions(texts, batch=batch, finished=finished))
    layer, reader = evaluator.image, {name: p.detach().numpy() for name, p in evaluator.reader.named_parameters()}
    table = listener.model.text_model.get_input_embeddings().weight.detach().numpy()
    images = listener.encode_images(batch).numpy() @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    for row, text in enumerate(texts):
        words = [word for word in text.lower().split() if word != "."]
        ids = listener.tokenizer.convert_tokens_to_ids(
            words + ([listener.tokenizer.eos_token] if finished[row] else [])
        )
        hidden = cell = np.zeros(evaluator.width)
        for word in table[ids]:
            word = (word - word.mean()) / np.sqrt(word.var() + 1e-5)
            gates = reader["weight_ih_l0"] @ word + reader["bias_ih_l0"]
            gates = gates + reader["weight_hh_l0"] @ hidden + reader["bias_hh_l0"]
            enter, stay, inner, leave = np.split(gates, 4)
            cell = sigmoid(stay) * cell + sigmoid(enter) * np.tanh(inner)
            hidden = sigmoid(leave) * np.tanh(cell)
        assert float(found[row]) == pytest.approx(float(sigmoid(images[row] @ hidden)), abs=1e-5)
    assert float(found[0]) != float(found[2])


def learned(discriminator, real, fake, *, steps, rate):
    optimizer = torch.optim.Adam(discriminator.parameters(), lr=rate)
    for _ in range(steps):
        losses, _ = discriminator.loss(real, fake)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()


def accuracy(discriminator, real, fake) -> float:
    return float(discriminator.loss(real, fake)[1]["discriminator/accuracy"].mean())


def test_only_the_text_kind_learns_order(listener):
    """Half of the sentences are learned from, the others judged; a shuffled caption has the very words of its original."""
    sides = [
        (captions(texts), captions([shuffled(text) for text in texts])) for texts in (SENTENCES[::2], SENTENCES[1::2])
    ]
    torch.manual_seed(0)
    text = TextDiscriminator(listener, width=32, see_image=False)
    learned(text, *sides[0], steps=30, rate=1e-2)
    assert accuracy(text, *sides[1]) > 0.95
    # to embeddings without order both captions of a pair are one: whatever is said of it is right of one and wrong of one
    torch.manual_seed(0)
    mlp = MLPDiscriminator(BagOfWords(32))
    learned(mlp, *sides[0], steps=40, rate=3e-3)
    assert accuracy(mlp, *sides[0]) == 0.5
    assert accuracy(mlp, *sides[1]) == 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind, listener, batch, tmp_path):
    discriminator, folder = made(kind, listener), tmp_path / "checkpoint-3" / "discriminator"
    discriminator.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["discriminator.json", "model.safetensors"]
    drawn = captions(SENTENCES[:8], batch=batch)
    for path in (folder, folder.parent):  # the folder itself, or the checkpoint around it
        again = load_discriminator(path, listener)
        assert type(again) is type(discriminator)
        assert torch.equal(again(drawn), discriminator(drawn))
    other = made(kind, listener, seed=1)
    assert not torch.equal(other(drawn), discriminator(drawn))
    other.load_weights(folder)
    assert torch.equal(other(drawn), discriminator(drawn))


def test_what_does_not_fit_is_refused(listener, tmp_path):
    made("text", listener).save(tmp_path / "text")
    with pytest.raises(UsageError, match="holds a discriminator of another kind, text instead of mlp: use it with"):
        made("mlp", listener).load_weights(tmp_path / "text")
    with pytest.raises(UsageError, match="of another listener"):
        load_discriminator(tmp_path / "text", tiny_listener(seed=1))
    with pytest.raises(UsageError, match="of another options"):
        TextDiscriminator(listener, see_image=False).load_weights(tmp_path / "text")
    with pytest.raises(UsageError, match=r"nowhere holds no discriminator \(discriminator\.json cannot be read\)"):
        load_discriminator(tmp_path / "nowhere", listener)
    (tmp_path / "text" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(UsageError, match=r"model\.safetensors cannot be read"):
        load_discriminator(tmp_path / "text", listener)
    told = tmp_path / "text" / "discriminator.json"
    told.write_text(json.dumps(json.loads(told.read_text()) | {"kind": "oracle"}))
    with pytest.raises(UsageError, match="kind 'oracle': use one of mlp, text, dot_product"):
        load_discriminator(tmp_path / "text", listener)


@pytest.mark.parametrize(
    ("share", "rows", "said"),
    [
        (0.508, 2000, "50.8 % of x right, where guessing tells 50 %"),
        (0.3, 2000, "guessing"),
        (0.549, 100, "guessing"),
        (0.55, 2000, None),
        (0.9, 2000, None),
        (0.98, 2000, None),
        (0.985, 2000, "98.5 % of x right, so that its reward is about the same for every generated caption"),
        (0.5, 99, None),
        (1.0, 99, None),
    ],
)
def test_verdict(share, rows, said):
    sentence = verdict(share, rows, "x")
    assert (sentence is None) == (said is None)
    if sentence is not None:
        assert said in sentence
        assert sentence.count(". ") == 0
        assert sentence.endswith(".")


def test_a_useless_discriminator_is_told_once(caplog, monkeypatch):
    monkeypatch.setattr(discriminator_verdict, "WINDOW", 200)
    watch = AccuracyWatch()
    fair, right = torch.tensor([1.0, 0.0]).repeat(25), torch.ones(50)
    with caplog.at_level(logging.WARNING):
        watch.add(fair, fair)
        assert not caplog.messages  # not enough captions yet
        for _ in range(3):
            watch.add(fair, fair)
        assert len(caplog.messages) == 1
        assert "50.0 % of the last 200 captions of the training right, where guessing" in caplog.messages[0]
        for _ in range(4):
            watch.add(right, right)
        assert len(caplog.messages) == 2
        assert "100.0 %" in caplog.messages[1]


def test_the_watch_weighs_both_sides_alike(caplog, monkeypatch):
    monkeypatch.setattr(discriminator_verdict, "WINDOW", 200)
    watch = AccuracyWatch()
    with caplog.at_level(logging.WARNING):
        watch.add(torch.zeros(40), torch.ones(160))  # "generated", always: 80 % of the captions, and mere guessing
    assert "50.0 %" in caplog.text


def test_a_discriminator_that_is_watched_tells_its_watch(caplog, monkeypatch):
    monkeypatch.setattr(discriminator_verdict, "WINDOW", 100)
    given = Given([[0.0, 1.0]])
    real, fake = captions(["0"] * 50), captions(["0"] * 50)
    with caplog.at_level(logging.WARNING):
        given.loss(real, fake)
        assert not caplog.messages
        given.watch = AccuracyWatch()
        given.loss(real, fake)
    assert "50.0 %" in caplog.text
    assert list(given.state_dict()) == ["given"]
