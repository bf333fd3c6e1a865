"""Teaching a matching head: which pairs it is shown, and what they cost."""

import math

import pytest
import torch

from discriminator_fakes import tiny_listener
from pictures import CAPTIONS, images
from tellapart.listeners.matcher import ItmMatcher
from tellapart.listeners.trained import image_embeddings
from tellapart.objectives.matching_head import ALIKE, FALSE, OTHER, OWN, MatchingHead
from tellapart.types import Batch
from tiny.matchers import TINY_MATCHERS

HEADS = {"blip": {"use_itm_head": True}, "blip-2": {"use_image_text_matching_head": True}}


def recolour(text, rng):
    return text.replace("red", "green")


@pytest.fixture(params=TINY_MATCHERS, scope="module")
def matcher(request, tmp_path_factory):
    return ItmMatcher.from_pretrained(TINY_MATCHERS[request.param](tmp_path_factory.mktemp(request.param)))


def batch(matcher, texts):
    pictures = {matcher.name: matcher.process(images(len(texts)))}
    return Batch([f"image-{i}" for i in range(len(texts))], [[text] for text in texts], pictures)


def test_an_image_comes_with_its_text_another_and_a_false_one(matcher):
    texts = ["a red ring on a table", "a blue star on a table", "a red ring on a table", "a red heart on a table"]
    torch.manual_seed(0)
    matches = MatchingHead(matcher, negative=recolour).collect(batch(matcher, texts), 0)
    found = {kind: {} for kind in (OWN, OTHER, FALSE)}
    for image, text, kind in zip(matches.image.tolist(), matches.texts, matches.kinds, strict=True):
        assert image not in found[kind]
        found[kind][image] = text
    assert found[OWN] == dict(enumerate(texts))
    # Nothing is red in the second, so there is nothing to make false.
    assert found[FALSE] == {i: texts[i].replace("red", "green") for i in (0, 2, 3)}
    assert {1, 3} <= set(found[OTHER])
    for image, text in found[OTHER].items():
        assert text != texts[image]
        assert text in texts


def test_a_text_is_made_false_several_times_and_equal_results_count_once(matcher):
    colours = ("red", "green", "blue")
    texts = ["a red ring on a table", "a blue star on a table", "a ring on a table"]

    def repaint(text, rng):
        old = next((name for name in colours if name in text), None)
        return text if old is None else text.replace(old, str(rng.choice([name for name in colours if name != old])))

    counts = set()
    for seed in range(8):
        torch.manual_seed(seed)
        matches = MatchingHead(matcher, negative=repaint, negatives=3).collect(batch(matcher, texts), 0)
        rows = zip(matches.image.tolist(), matches.texts, matches.kinds, strict=True)
        false = [(image, text) for image, text, kind in rows if kind == FALSE]
        assert len(set(false)) == len(false)
        assert all(image < 2 and text != texts[image] for image, text in false)
        counts |= {sum(image == own for image, _ in false) for own in (0, 1)}
    assert counts == {1, 2}  # two other colours, drawn three times
    with pytest.raises(ValueError, match="negatives=0 must be at least 1"):
        MatchingHead(matcher, negatives=0)


def test_the_others_are_drawn_among_all_of_the_batch(matcher):
    objective, texts = MatchingHead(matcher), CAPTIONS[:4]
    drawn = set()
    for seed in range(40):
        torch.manual_seed(seed)
        matches = objective.collect(batch(matcher, texts), 0)
        drawn.add(matches.texts[matches.kinds.index(OTHER)])
    assert drawn == set(texts[1:])


@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.999])
def test_a_text_alike_is_drawn_by_how_well_it_suits_the_image(scale, share, matcher, monkeypatch):
    listener, texts = tiny_listener(seed=1), [*CAPTIONS[:4], CAPTIONS[0]]
    listener.logit_scale.data.fill_(math.log(scale) if scale else -math.inf)
    given = batch(matcher, texts)
    given.inputs[listener.name] = listener.process(images(len(texts)))
    cosines = (image_embeddings(listener, given) @ listener.embed_texts(texts).T).tolist()
    monkeypatch.setattr("tellapart.objectives.matching_head.uniforms", lambda ids, *_: torch.full((len(ids), 1), share))
    matches = MatchingHead(matcher, similar=listener).collect(given, 0)
    rows = zip(matches.image.tolist(), matches.texts, matches.kinds, strict=True)
    found = {image: text for image, text, kind in rows if kind == ALIKE}
    for i, own in enumerate(texts):
        others = [j for j in range(5) if texts[j] != own]
        powers = [math.exp(scale * (cosines[i][j] - max(cosines[i][k] for k in others))) for j in others]
        left = share * sum(powers)
        while left > powers[0] and len(others) > 1:
            left, others = left - powers.pop(0), others[1:]
        assert found[i] == texts[others[0]]


def test_nothing_is_alike_where_all_say_the_same(matcher):
    listener = tiny_listener()
    given = batch(matcher, [CAPTIONS[0]] * 3)
    given.inputs[listener.name] = listener.process(images(3))
    assert MatchingHead(matcher, similar=listener).collect(given, 0).kinds == [OWN] * 3


def test_the_loss_is_the_cross_entropy_of_the_models_own_logits(matcher):
    texts = ["a red ring on a table", "a blue star on a table", "a red moon"]
    torch.manual_seed(1)
    given = batch(matcher, texts)
    objective = MatchingHead(matcher, negative=recolour, buckets=2)
    matches = objective.collect(given, 0)
    [piece] = objective.losses(matches)
    pixels, expected, right = given.inputs[matcher.name]["pixel_values"], 0.0, []
    for image, text, kind in zip(matches.image.tolist(), matches.texts, matches.kinds, strict=True):
        words = matcher.tokenizer([text], return_tensors="pt")
        read = {"input_ids": words["input_ids"], "attention_mask": words["attention_mask"]}
        head = HEADS[matcher.model.config.model_type]
        with torch.no_grad():
            output = matcher.model(pixel_values=pixels[image : image + 1], **read, **head)
        logits = output.logits_per_image if hasattr(output, "logits_per_image") else output.itm_score
        no, yes = logits[0].double().tolist()
        expected += math.log(math.exp(no) + math.exp(yes)) - (yes if kind == OWN else no)
        right.append(float((yes > no) == (kind == OWN)))
    assert float(piece.loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert int(piece.weight) == len(matches.texts)
    logged = torch.cat([piece.logs[f"accuracy/{kind}"] for kind in dict.fromkeys(matches.kinds)])
    assert sorted(logged.tolist()) == sorted(right)


def test_what_learns_is_what_pairs_reach(matcher):
    objective = MatchingHead(matcher)
    torch.manual_seed(0)
    [piece] = objective.losses(objective.collect(batch(matcher, CAPTIONS[:3]), 0))
    piece.loss.backward()
    learning = {name for name, parameter in objective.matcher.named_parameters() if parameter.requires_grad}
    assert learning
    assert not any(name.startswith("vision_model") for name in learning)
    reached = {name for name, parameter in objective.matcher.named_parameters() if parameter.grad is not None}
    assert reached <= learning
    assert {"itm_head.weight", "itm_head.bias"} <= reached
    objective.matcher.zero_grad(set_to_none=True)


def test_a_head_learns_to_match(tmp_path):
    matcher = ItmMatcher.from_pretrained(TINY_MATCHERS["blip-2"](tmp_path))
    objective = MatchingHead(matcher)
    optimizer = torch.optim.AdamW([p for p in objective.parameters() if p.requires_grad], lr=3e-3)
    given, losses = batch(matcher, CAPTIONS[:8]), []
    for step in range(30):
        torch.manual_seed(step)
        [piece] = objective.losses(objective.collect(given, step))
        losses.append(float(piece.loss.detach() / piece.weight))
        optimizer.zero_grad()
        (piece.loss / piece.weight).backward()
        optimizer.step()
    assert sum(losses[-5:]) / 5 < 0.5 * sum(losses[:5]) / 5
