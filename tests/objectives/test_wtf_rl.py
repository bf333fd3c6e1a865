"""WTF-RL and its baselines: what holds whatever the numbers."""

import json
import math
import random
from pathlib import Path

import pytest
import torch
from wtf_fakes import (
    TableCaptioner,
    TableDiscriminator,
    TableListener,
    TableNeighbours,
    alone,
    batch_of,
    learn,
    step,
)

from tellapart.errors import UsageError
from tellapart.objectives.scst_baselines import SCSTDiscriminator, SCSTGrammar
from tellapart.objectives.wtf_rl import WTFRL
from tellapart.types import Batch
from two_processes import run_two

KINDS = ("drawn", "human", "greedy")
WIDTH = 5


def table_world(count: int = 8, *, seed: int = 0):
    """``(captioner, listener, neighbours, discriminator, ids)`` with made-up numbers; neighbours are partly in the batch."""
    rng = random.Random(seed)
    ids = [f"i{n}" for n in range(count)]
    texts = [f"{i}/{kind}" for i in ids for kind in KINDS]

    def unit() -> list[float]:
        values = [rng.gauss(0, 1) for _ in range(6)]
        norm = math.sqrt(sum(v * v for v in values))
        return [v / norm for v in values]

    lengths = {text: rng.randint(1, WIDTH) for text in texts}
    rows = {
        text: ([-rng.random() - 0.1 for _ in range(WIDTH)], [float(t < lengths[text]) for t in range(WIDTH)])
        for text in texts
    }
    listener = TableListener({text: unit() for text in texts}, {i: unit() for i in [*ids, "far", "near"]})
    near = {i: [ids[(n + 1) % count], "far", "near"] for n, i in enumerate(ids)}
    scores = {text: rng.gauss(0, 1) for text in texts}
    return TableCaptioner(rows), listener, TableNeighbours(near), TableDiscriminator(scores), ids


def wtf_rl(world=None, **options):
    captioner, listener, neighbours, discriminator, ids = world or table_world()
    options = {"neighbour_ranks": (1, 2), "temperature": 0.2} | options
    return WTFRL(captioner, listener, neighbours, discriminator, **options), ids


def cut(ids, size):
    return [batch_of(ids[i : i + size]) for i in range(0, len(ids), size)]


def slow_rewards(listener, ids, near, temperature):
    """``{(id, kind): (i2t, t2i)}``, one exponential at a time; images are a set of ids, texts a list with repeats."""
    texts = [(i, kind) for kind in KINDS for i in ids]
    images = sorted({*ids, *(name for i in ids for name in near[i][:2])})

    def cosine(text, image):
        return sum(a * b for a, b in zip(listener.texts[f"{text[0]}/{text[1]}"], listener.images[image], strict=True))

    found = {}
    for text in texts:
        own = cosine(text, text[0])
        rivals = [math.exp(cosine(other, text[0]) / temperature) for other in texts if other != text]
        others = [math.exp(cosine(text, image) / temperature) for image in images if image != text[0]]
        found[text] = tuple(own - temperature * math.log(sum(terms)) for terms in (rivals, others))
    return found


def test_rewards_are_those_of_a_slow_computation():
    world = table_world()
    objective, ids = wtf_rl(world, combine="sum")
    [experience] = step(objective, [batch_of(ids)])
    slow = slow_rewards(world[1], ids, world[2].near, 0.2)
    for kind, name in (("policy", "drawn"), ("reference", "human")):
        for n, i in enumerate(ids):
            i2t, t2i = slow[i, name]
            assert float(experience.parts[kind]["i2t"][n]) == pytest.approx(0.94 * i2t, abs=1e-9)
            assert float(experience.parts[kind]["t2i"][n]) == pytest.approx(0.94 * t2i, abs=1e-9)
            judged = 0.06 * torch.sigmoid(world[3].scores.detach()[world[3].index[f"{i}/{name}"]])
            assert float(experience.advantages[kind][n]) == pytest.approx(0.94 * (i2t + t2i) + float(judged), abs=1e-9)


@pytest.mark.parametrize("size", [8, 4, 2, 1])
def test_the_cut_into_micro_batches_changes_nothing(size):
    options = {"center_policy_reward": True, "reduction": "token_mean"}
    whole, ids = wtf_rl(**options)
    [expected] = step(whole, cut(ids, 8))
    loss = learn(whole, [expected])
    objective, _ = wtf_rl(**options)
    parts = step(objective, cut(ids, size))
    for kind in ("policy", "reference"):
        torch.testing.assert_close(torch.cat([e.advantages[kind] for e in parts]), expected.advantages[kind])
    assert learn(objective, parts) == pytest.approx(loss, abs=1e-7)
    for mine, other in zip(objective.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


SCRIPT = """
import json, sys
import torch
torch.set_num_threads(1)
import torch.distributed as dist
from test_wtf_rl import batch_of, learn, step, wtf_rl
from tellapart.training.config import TrainConfig
from tellapart.training.devices import Devices

devices = Devices(TrainConfig(output_dir=sys.argv[1]))
assert devices.world_size == 2 and dist.get_backend() == "gloo"
objective, ids = wtf_rl(reduction="token_mean", center_policy_reward=True)
own = ids[:4] if devices.rank == 0 else ids[4:]
experiences = step(objective, [batch_of(own[:2]), batch_of(own[2:])], devices.gather)
learn(objective, experiences)
# undo this device's own divisor: the loop divides by that of all
weight = sum(float(p.weight) for e in experiences for p in objective.losses(e))
total = float(devices.sum(torch.tensor(weight, dtype=torch.float64)))
gradients = [(p.grad * weight if p.grad is not None else torch.zeros_like(p)) for p in objective.parameters()]
gradients = [(devices.sum(g) / total).tolist() for g in gradients]
rewards = [e.advantages[k].tolist() for k in ("policy", "reference") for e in experiences]
result = devices.gather_objects(rewards)
if devices.rank == 0:
    json.dump({"rewards": result, "gradients": gradients}, open(sys.argv[1] + ".json", "w"))
devices.wait()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_see_one_batch(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    here = Path(__file__).resolve().parent
    run_two(str(script), str(tmp_path / "out"), PYTHONPATH=f"{here}:{here.parent}")
    result = json.loads((tmp_path / "out.json").read_text())
    objective, ids = wtf_rl(reduction="token_mean", center_policy_reward=True)
    [expected] = step(objective, [batch_of(ids)])
    learn(objective, [expected])
    for place, kind in enumerate(("policy", "reference")):
        found = [value for rank in result["rewards"] for part in rank[2 * place : 2 * place + 2] for value in part]
        assert found == pytest.approx(expected.advantages[kind].tolist(), abs=1e-9)
    for mine, parameter in zip(result["gradients"], objective.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(mine, dtype=torch.float64), parameter.grad)


@pytest.mark.parametrize("kind", ["wtf_rl", "discriminator", "grammar"])
def test_captions_and_greedy_ones_are_asked_for_together(kind, monkeypatch):
    captioner, listener, neighbours, discriminator, ids = table_world()
    objective = {
        "wtf_rl": lambda: WTFRL(captioner, listener, neighbours, discriminator, neighbour_ranks=(1,)),
        "discriminator": lambda: SCSTDiscriminator(captioner, listener, discriminator),
        "grammar": lambda: SCSTGrammar(captioner, listener, lambda rollout: torch.zeros(len(rollout))),
    }[kind]()
    together, asked = captioner.generate_with_greedy, []
    monkeypatch.setattr(
        captioner, "generate_with_greedy", lambda *a, **k: (asked.append(k["greedy"]), together(*a, **k))[1]
    )
    step(objective, [batch_of(ids)])
    assert asked == [objective.greedy]


@pytest.mark.parametrize("reduction", ["seq_mean", "seq_sum", "token_mean"])
@pytest.mark.parametrize("kind", ["wtf_rl", "scst"])
def test_the_discriminator_learns_the_mean_over_its_captions(kind, reduction):
    captioner, listener, neighbours, discriminator, ids = table_world()
    if kind == "scst":
        objective = SCSTDiscriminator(captioner, listener, discriminator, reduction=reduction)
    else:
        objective = WTFRL(captioner, listener, neighbours, discriminator, neighbour_ranks=(1,), reduction=reduction)
    learn(objective, step(objective, cut(ids, 2)))
    scores = discriminator.scores.detach().clone().requires_grad_()
    rows = [discriminator.index[f"{i}/{name}"] for name in ("human", "drawn") for i in ids]
    signs = torch.tensor([1.0] * len(ids) + [-1.0] * len(ids))
    (-torch.nn.functional.logsigmoid(signs * scores[rows])).mean().backward()
    torch.testing.assert_close(discriminator.scores.grad, scores.grad)


def test_gradients_follow_the_sign_of_the_reward():
    world = table_world()
    objective, ids = wtf_rl(world, temperature=0.01)
    [experience] = step(objective, [batch_of(ids)])
    learn(objective, [experience])
    gradient, captioner = world[0].logprobs.grad, world[0]
    signs = set()
    for kind, name in (("policy", "drawn"), ("reference", "human")):
        assert not experience.advantages[kind].requires_grad
        for reward, i in zip(experience.advantages[kind].tolist(), ids, strict=True):
            row = captioner.index[f"{i}/{name}"]
            length = int(captioner.masks[row].sum())
            # d/d logp of -r * mean(logp) / B; nothing where masked
            expected = [-reward / length / len(ids)] * length + [0.0] * (WIDTH - length)
            assert gradient[row].tolist() == pytest.approx(expected, abs=1e-12)
            signs.add(reward > 0)
    assert signs == {True, False}, "human captions below their rivals are made less likely"
    assert not gradient[[captioner.index[f"{i}/greedy"] for i in ids]].any()


def test_a_picture_is_no_negative_of_itself():
    """An image named twice, a neighbour that is in the batch, and another id with the same content count once."""
    captioner, listener, _, discriminator, ids = table_world(3)
    listener.images["copy"] = listener.images["i1"]
    apart = WTFRL(captioner, listener, discriminator=discriminator, neighbour_ranks=())
    [expected] = step(apart, [batch_of(ids)])
    near = TableNeighbours({"i0": ["i1", "copy"], "i1": ["i2", "i0"], "i2": ["i1", "i1"]})
    joined = WTFRL(captioner, listener, near, discriminator, neighbour_ranks=(1, 2))
    [experience] = step(joined, [batch_of(ids)])
    torch.testing.assert_close(experience.advantages, expected.advantages)


def test_an_image_that_occurs_twice_in_a_step_keeps_its_own_captions_as_rivals():
    """At the end of an epoch a step may hold an image twice: its equal captions are rivals of each other."""
    captioner, listener, *_, ids = table_world(2)
    objective = WTFRL(captioner, listener, neighbour_ranks=(), direction="i2t", temperature=1e-4)
    [experience] = step(objective, [batch_of([ids[0], ids[1], ids[0]])])
    rewards = experience.advantages["policy"]
    assert rewards[0] == rewards[2]
    assert float(rewards[0]) <= 0, "the same string is another candidate"


def test_a_drawn_caption_that_equals_the_greedy_one_gains_nothing():
    captioner, listener, neighbours, _, ids = table_world()
    captioner.same = {ids[0]: f"{ids[0]}/greedy"}
    rewards = {}
    for greedy in (True, False):
        objective = WTFRL(
            captioner, listener, neighbours, neighbour_ranks=(1,), direction="i2t", greedy_candidate=greedy
        )
        [experience] = step(objective, [batch_of(ids)])
        rewards[greedy] = float(experience.advantages["policy"][0])
    assert rewards[True] <= 0
    assert rewards[True] <= rewards[False]


@pytest.mark.parametrize("parts", [1, 2])
def test_text_to_image_alone_by_hand(parts):
    """Every caption against the other pictures of the step, neighbours included and no caption among them."""
    captioner, listener, neighbours, _, ids = table_world()
    temperature = 0.05
    objective = WTFRL(captioner, listener, neighbours, neighbour_ranks=(2,), direction="t2i", temperature=temperature)
    batches = [batch_of(ids[i::parts]) for i in range(parts)]
    pictures = dict.fromkeys([*ids, *(neighbours.near[name][1] for name in ids)])
    for batch, experience in zip(batches, step(objective, batches), strict=True):
        assert "greedy" not in experience.rollouts  # greedy captions would be compared with nothing
        for kind, said in (("policy", "drawn"), ("reference", "human")):
            assert set(experience.parts[kind]) == {"t2i"}
            for name, reward in zip(batch.ids, experience.advantages[kind].tolist(), strict=True):
                text = listener.texts[f"{name}/{said}"]
                cosine = {i: sum(a * b for a, b in zip(text, listener.images[i], strict=True)) for i in pictures}
                others = math.fsum(math.exp(c / temperature) for i, c in cosine.items() if i != name)
                assert reward == pytest.approx(cosine[name] - temperature * math.log(others), abs=1e-9)


def test_text_to_image_alone_is_the_margin_to_the_nearest_picture_at_a_low_temperature():
    """G_min, up to the logarithm of how many pictures are equally near."""
    captioner, listener, neighbours, _, ids = table_world()
    objective = WTFRL(captioner, listener, neighbours, neighbour_ranks=(1,), direction="t2i", temperature=1e-6)
    [experience] = step(objective, [batch_of(ids)])
    pictures = dict.fromkeys([*ids, *(neighbours.near[name][0] for name in ids)])
    for name, reward in zip(ids, experience.advantages["policy"].tolist(), strict=True):
        text = listener.texts[f"{name}/drawn"]
        cosine = {i: sum(a * b for a, b in zip(text, listener.images[i], strict=True)) for i in pictures}
        assert reward == pytest.approx(cosine.pop(name) - max(cosine.values()), abs=1e-4)


def test_stabilisers_are_off_and_do_one_thing_each():
    [plain] = step(*as_step(wtf_rl()))
    assert (plain.advantages["reference"] < 0).any()
    [clamped] = step(*as_step(wtf_rl(clamp_reference_reward=True)))
    torch.testing.assert_close(clamped.advantages["reference"], plain.advantages["reference"].clamp(min=0))
    torch.testing.assert_close(clamped.advantages["policy"], plain.advantages["policy"])
    [centred] = step(*as_step(wtf_rl(center_policy_reward=True)))
    policy = plain.advantages["policy"]
    torch.testing.assert_close(centred.advantages["policy"], policy - policy.mean())
    torch.testing.assert_close(centred.advantages["reference"], plain.advantages["reference"])
    [limited] = step(*as_step(wtf_rl(clamp=0.5, combine="sum")))
    assert float(limited.parts["policy"]["t2i"].max()) <= 0.94 * 0.2 * 0.5 + 1e-12


def as_step(made):
    objective, ids = made
    return objective, [batch_of(ids)]


def test_without_a_discriminator_alpha_is_one_and_only_the_captioner_learns():
    captioner, listener, neighbours, discriminator, ids = table_world()
    objective = WTFRL(captioner, listener, neighbours, neighbour_ranks=(1,))
    assert [name for name, _ in objective.named_children()] == ["captioner"]
    [experience] = step(objective, [batch_of(ids)])
    judged = WTFRL(captioner, listener, neighbours, discriminator, neighbour_ranks=(1,))
    assert [name for name, _ in judged.named_children()] == ["captioner", "discriminator"]
    [other] = step(judged, [batch_of(ids)])
    for name in ("i2t", "t2i"):
        torch.testing.assert_close(0.94 * experience.parts["policy"][name], other.parts["policy"][name])
    assert set(experience.parts["policy"]) == {"i2t", "t2i"}


def test_after_its_update_the_discriminator_scores_with_new_weights():
    world = table_world()
    objective, ids = wtf_rl(world, discriminator_score="post_update")
    assert objective.turns == 2
    first = step(objective, cut(ids, 4))
    learn(objective, first)
    assert world[0].logprobs.grad is None, "in the first turn the captioner rests"
    before, _ = wtf_rl(discriminator_score="pre_update")
    learn(before, step(before, cut(ids, 4)))
    torch.testing.assert_close(world[3].scores.grad, before.discriminator.scores.grad)
    with torch.no_grad():
        world[3].scores -= 3.0 * world[3].scores.grad
        second = objective.prepare(first, alone)
        now = 0.06 * world[3](first[0].rollouts["policy"])
    torch.testing.assert_close(second[0].parts["policy"]["discriminator"], now)
    torch.testing.assert_close(sum(second[0].parts["policy"].values()), second[0].advantages["policy"])
    learn(objective, second)
    assert world[3].scores.grad is None
    assert world[0].logprobs.grad is not None


def test_each_text_is_embedded_once_a_step():
    """Also by a discriminator that shares the listener, and over micro-batches; a new step starts from nothing."""
    captioner, listener, neighbours, _, ids = table_world()
    objective = WTFRL(captioner, listener, neighbours, neighbour_ranks=(1,))
    every = sorted(f"{i}/{kind}" for i in ids for kind in KINDS)
    for number in (0, 1):
        listener.embedded.clear()
        with torch.no_grad():
            collected = [objective.collect(batch, number) for batch in cut(ids, 4)]
            objective.listener.encode_texts(collected[0].rollouts["policy"].texts)
        assert sorted(listener.embedded) == every


def test_captions_reach_the_listener_without_full_stops():
    captioner, listener, neighbours, _, ids = table_world()
    for kind in KINDS:
        listener.texts[f"{ids[0]}/{kind}"] = [0.0] * 6
    captioner.index |= {" a star. ": 0}
    listener.texts["a star"] = [1.0] * 6
    objective = WTFRL(captioner, listener, neighbours, neighbour_ranks=(1,))
    step(objective, [Batch(ids[:2], [[" a star. "], [f"{ids[1]}/human"]])])
    assert "a star" in listener.embedded


def test_what_is_logged_adds_up():
    objective, ids = wtf_rl()
    [experience] = step(objective, [batch_of(ids)])
    first, *others = objective.losses(experience)
    logs = first.logs
    names = ("i2t", "t2i", "discriminator")
    for prefix, kind in (("", "policy"), ("reference/", "reference")):
        torch.testing.assert_close(sum(logs[f"{prefix}rewards/{n}"] for n in names), logs[f"{prefix}reward"])
        torch.testing.assert_close(logs[f"{prefix}reward"], experience.advantages[kind])
    assert logs["completions/mean_length"].shape == (len(ids),)
    assert [float(piece.weight) for piece in others] == [0.0, 0.0]
    assert set(others[-1].logs) == {"discriminator/accuracy"}


def test_what_cannot_be_done_is_said():
    captioner, listener, neighbours, discriminator, ids = table_world()
    with pytest.raises(UsageError, match="neighbour 5 of image 'i0', which has 3"):
        step(WTFRL(captioner, listener, neighbours, discriminator), [batch_of(ids)])
    with pytest.raises(UsageError, match="'i0' has no caption"):
        step(wtf_rl()[0], [Batch(["i0"], [[]])])
    with pytest.raises(UsageError, match="a step has only one"):
        step(WTFRL(captioner, listener, neighbour_ranks=()), [batch_of(ids[:1])])
    for wrong in (
        {"alpha": 1.5},
        {"temperature": 0.0},
        {"direction": "one way"},
        {"combine": "mean"},
        {"draw": "greedy"},
        {"neighbour_ranks": (0,)},
        {"trajectories": ("greedy",)},
        {"trajectories": ()},
        {"discriminator_score": "later"},
    ):
        with pytest.raises(ValueError, match="must be"):
            wtf_rl(**wrong)
    with pytest.raises(ValueError, match="needs neighbours"):
        WTFRL(captioner, listener)
    with pytest.raises(ValueError, match="draw="):
        SCSTGrammar(captioner, listener, lambda rollout: torch.zeros(len(rollout)), draw="greedy")


def test_what_changes_rewards_that_nothing_learns_from_is_refused():
    for kind, name in (("policy", "clamp_reference_reward"), ("reference", "center_policy_reward")):
        with pytest.raises(ValueError, match=f"{name} changes rewards of .* captions, which are not learned from"):
            wtf_rl(trajectories=(kind,), **{name: True})
        wtf_rl(trajectories=("policy", "reference"), **{name: True})


def test_captions_that_are_compared_with_captions_only_need_no_other_image():
    """Rewards are those of both directions with neighbours, and a step may have one image."""
    captioner, listener, neighbours, discriminator, ids = table_world()
    both = WTFRL(captioner, listener, neighbours, discriminator, neighbour_ranks=(1, 2), temperature=0.2, combine="sum")
    without = WTFRL(captioner, listener, None, discriminator, temperature=0.2, direction="i2t")
    for one, other in zip(*(step(made, [batch_of(ids)]) for made in (both, without)), strict=True):
        for kind, parts in other.parts.items():
            assert torch.equal(one.parts[kind]["i2t"], parts["i2t"])
            assert "t2i" not in parts
    (alone,) = step(without, [batch_of(ids[:1])])
    assert all(torch.isfinite(value).all() for value in alone.advantages.values())
