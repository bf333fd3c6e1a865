"""VLRM and VLRM-RS: their published vectors, and that no cut of the effective batch changes an update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from vlrm_fakes import GivenCritic, NumberListener, by_words, images, make, speaker, step

from given import GivenCaptioner, double, vector
from given import images as no_pixels
from tellapart.captioners import critic
from tellapart.captioners.scoring import token_states
from tellapart.objectives.vlrm import VLRM, VLRMRS
from tellapart.rewards.phi import phi
from tellapart.types import Rollout
from two_processes import run_two


class Told(VLRM):
    """VLRM whose returns are given."""

    given: torch.Tensor

    def _returns(self, rollout, rewards, logs):
        return self.given


def told(policy_loss="probability", **options):
    inputs, expected, tolerance = vector("vlrm_value_and_policy")
    mask = double(inputs["mask"])
    captioner = GivenCaptioner(double(inputs["p_k"]).log(), mask, torch.arange(2))
    critic = GivenCritic(double(inputs["values"]))
    objective = Told(captioner, lambda rollout: double([0.0, 0.0]), critic, policy_loss=policy_loss, **options)
    objective.given = double(inputs["returns"])
    return objective, inputs, expected, tolerance


def close(actual, expected, tolerance):
    torch.testing.assert_close(torch.as_tensor(actual).double(), double(expected), atol=tolerance, rtol=0.0)


def pieces(objective, batch):
    with torch.no_grad():
        [experience] = objective.prepare([objective.collect(batch, 0)], lambda tensor: tensor)
    outputs = []
    for output in objective.losses(experience):
        output.loss.backward()
        outputs.append(output)
    return experience, outputs


def test_the_vector_of_value_and_policy_loss():
    objective, inputs, expected, tolerance = told()
    experience, (policy, value) = pieces(objective, no_pixels(2))
    assert float(policy.weight) == 2
    assert float(value.weight) == 0
    mask = double(inputs["mask"])
    close(experience.advantage * mask, expected["M_unbiased_std"], tolerance)
    close((experience.returns - experience.values) * mask, expected["advantage"], tolerance)
    close(policy.loss.detach() / 2, expected["policy_loss_unbiased"], tolerance)
    close(value.loss.detach() / 2, expected["value_loss"], tolerance)
    close(objective.captioner.logprobs.grad / 2, expected["grad_logp_unbiased"], tolerance)
    # d/dV of (1/n)(R - V)^2, by hand; padding gets none.
    returns, values = double(inputs["returns"]), double(inputs["values"])
    by_hand = -2 * (returns - values) * mask / mask.sum(dim=1, keepdim=True)
    close(objective.critic.values.grad, by_hand.tolist(), tolerance)
    close(torch.tensor(sum(value.logs["value_loss"].tolist()) / 2), expected["value_loss"], tolerance)


def test_log_probabilities_are_the_score_function_gradient():
    objective, inputs, expected, tolerance = told("log_probability")
    pieces(objective, no_pixels(2))
    mask = double(inputs["mask"])
    by_hand = -double(expected["M_unbiased_std"]) * mask / mask.sum(dim=1, keepdim=True)
    close(objective.captioner.logprobs.grad, by_hand.tolist(), tolerance)


def flags_of(inputs, tokens):
    """Penalties that are given, for captions cut to so many tokens."""

    def penalties(rollout: Rollout):
        return tuple(torch.tensor([inputs[name][:tokens]]).bool() for name in ("bad", "repeat"))

    return penalties


def test_all_tokens_of_the_batch_may_count_alike():
    objective, inputs, expected, tolerance = told(reduction="token_mean")
    _, (policy, value) = pieces(objective, no_pixels(2))
    mask, returns, values = (double(inputs[name]) for name in ("mask", "returns", "values"))
    tokens = float(mask.sum())
    assert float(policy.weight) == tokens != 2
    assert float(value.weight) == 0
    losses = -double(inputs["p_k"]) * double(expected["M_unbiased_std"]) * mask
    close(policy.loss.detach() / tokens, float(losses.sum()) / tokens, tolerance)
    close(value.loss.detach() / tokens, float(((returns - values) ** 2 * mask).sum()) / tokens, tolerance)
    close(objective.captioner.logprobs.grad, losses.tolist(), tolerance)  # d p / d log p is p


@pytest.mark.parametrize(("cut", "wanted"), [(17, "R"), (16, "R_without_eos")])
def test_the_vector_of_returns(cut, wanted):
    inputs, expected, tolerance = vector("vlrm_returns_table1")
    captioner = GivenCaptioner(torch.zeros(1, cut).double(), torch.ones(1, cut), torch.zeros(1).long())
    drawn = captioner.rollout
    captioner.rollout = lambda *given: replace(drawn(*given), finished=torch.tensor([cut == 17]))
    critic = GivenCritic(torch.zeros(1, cut).double())
    reward = lambda rollout: double([inputs["sim"] + inputs["ref"]])  # noqa: E731
    objective = VLRM(captioner, reward, critic, flags_of(inputs, cut))
    with torch.no_grad():
        experience = objective.collect(no_pixels(1), 0)
    close(experience.returns[0], expected[wanted], tolerance)
    assert experience.logs["penalties/bad_tokens"].tolist() == [6]
    assert experience.logs["penalties/repeated_tokens"].tolist() == [1]


def test_penalties_have_weights():
    inputs, _, _ = vector("vlrm_returns_table1")
    captioner = GivenCaptioner(torch.zeros(1, 17).double(), torch.ones(1, 17), torch.zeros(1).long())
    drawn = captioner.rollout
    captioner.rollout = lambda *given: replace(drawn(*given), finished=torch.tensor([False]))
    critic = GivenCritic(torch.zeros(1, 17).double())
    weights = {"bad_phrase_penalty": 2.0, "repeated_word_penalty": 0.25, "no_eos_penalty": 3.0}
    objective = VLRM(captioner, lambda rollout: double([1.0]), critic, flags_of(inputs, 17), **weights)
    with torch.no_grad():
        returns = objective.collect(no_pixels(1), 0).returns[0].tolist()
    for k, value in enumerate(returns):
        assert value == 1.0 - 3.0 - 2.0 * sum(inputs["bad"][k:]) - 0.25 * sum(inputs["repeat"][k:])


class GivenCosines:
    """Images and texts whose products are a given matrix, row for row; unit vectors are not needed for that."""

    name = "listener"

    def __init__(self, cosines: torch.Tensor) -> None:
        # Unit rows a and b with a_i . b_j = S_ij: images are (S_i., rest), texts unit vectors of the first columns.
        rest = (1 - cosines.square().sum(dim=1, keepdim=True)).sqrt()
        self.images = torch.cat([cosines, rest], dim=1)
        self.texts = torch.eye(len(cosines), len(cosines) + 1, dtype=torch.float64)

    def encode_images(self, batch):
        return self.images[[int(name) for name in batch.ids]]

    def encode_texts(self, texts):
        return self.texts[[int(text.split("/")[0]) for text in texts]]


def test_the_vector_of_phi():
    inputs, expected, tolerance = vector("vlrm_rs_phi")
    captioner = GivenCaptioner(torch.zeros(3, 2).double(), torch.ones(3, 2), torch.arange(3))
    reward = lambda rollout: double(inputs["itm_logit"])  # noqa: E731
    critic, listener = GivenCritic(torch.zeros(3, 2).double()), GivenCosines(double(inputs["S_image_by_text"]))
    objective = VLRMRS(captioner, reward, listener, critic, phi_weight=inputs["weight"])
    experience, _ = pieces(objective, no_pixels(3))
    close(experience.returns, [[value] * 2 for value in expected["sim_unbiased"]], tolerance)
    close(experience.logs["reward"], expected["sim_unbiased"], tolerance)
    close(experience.logs["rewards/phi"] / inputs["weight"], expected["Phi_unbiased"], tolerance)


def test_the_spread_among_an_images_captions_is_that_of_the_whole_reward():
    """It was that without Phi."""
    objective = make("vlrm_rs", num_generations=2, top_k=0, max_new_tokens=4)
    objective.reward = lambda rollout: torch.ones(len(rollout), dtype=torch.double)
    with torch.no_grad():
        torch.manual_seed(0)
        [done] = objective.compared([objective.collect(images(4), 0)], lambda tensor: tensor)
    total = done.logs["reward"].reshape(4, 2)
    spread = (total[:, 0] - total[:, 1]).abs() / 2**0.5
    assert (spread > 0).any()
    torch.testing.assert_close(done.logs["reward_std"].reshape(4, 2), spread[:, None].expand(4, 2))
    assert done.logs["frac_reward_zero_std"].reshape(4, 2)[:, 0].tolist() == (spread == 0).double().tolist()


def test_equal_returns_leave_no_variance_to_explain():
    """The figure was -1e12 there."""
    captioner = GivenCaptioner(torch.zeros(2, 2).double(), torch.ones(2, 2), torch.arange(2))
    critic = GivenCritic(double([[0.1, 0.2], [0.3, 0.5]]))
    objective = VLRM(captioner, lambda rollout: double([1.0, 1.0]), critic)
    experience, _ = pieces(objective, no_pixels(2))
    assert "explained_variance" not in experience.logs
    assert "advantage_std" in experience.logs


def test_a_step_reads_its_captions_whatever_earlier_steps_read():
    """Else a training that is resumed reads other groups of captions than one that went on, and ends with other weights."""
    objective, asked = make("vlrm_rs", max_new_tokens=3), []
    read = objective.listener.listener.encode_texts
    objective.listener.listener.encode_texts = lambda texts: asked.append(list(texts)) or read(texts)
    objective.listener.listener.encode_images = lambda batch: read(batch.ids)
    with torch.no_grad():
        for current in (0, 0, 1):
            torch.manual_seed(0)
            objective.collect(images(4), current)
    assert len(asked) == 2
    assert asked[0] == asked[1]


def test_each_process_finds_the_phi_of_its_own_captions():
    """That of the second of two, whose rows come after those of the first; some captions of an image are equal."""
    objective, first = make("vlrm_rs", num_generations=6, top_k=2, max_new_tokens=2), []
    with torch.no_grad():
        torch.manual_seed(0)
        theirs, *mine = (objective.collect(part, 0) for part in parts_of(images(9), 3))
        objective.compared([theirs], lambda rows: first.append(rows) or rows)
        done = objective.compared(mine, lambda rows: torch.cat([first.pop(0), rows]))
    texts = mine[0].rollout.texts
    assert len(set(zip(mine[0].rollout.ids(), texts, strict=True))) < len(texts)
    pairs = [e.pairs for e in (theirs, *mine)]
    wanted = 0.3 * phi(*(torch.cat(column) for column in zip(*pairs, strict=True)))[len(theirs.rollout) :]
    torch.testing.assert_close(torch.cat([e.logs["rewards/phi"] for e in done]).float(), wanted)


def gradients(objective):
    return {name: parameter.grad for name, parameter in objective.named_parameters() if parameter.grad is not None}


def parts_of(batch, size):
    return [batch.select(range(first, first + size)) for first in range(0, len(batch), size)]


@pytest.mark.parametrize(
    ("kind", "count", "part", "scored", "reduction"),
    [
        pytest.param("vlrm_rs", 4096, 64, None, "seq_mean", marks=pytest.mark.nightly),
        ("vlrm_rs", 64, 8, None, "seq_mean"),
        ("vlrm", 64, 8, 3, "seq_mean"),
        ("vlrm", 15, 5, 3, "token_mean"),
        ("vlrm_rs", 15, 5, 3, "token_mean"),
    ],
)
def test_64_times_64_images_are_the_same_update_as_4096(kind, count, part, scored, reduction):
    options = {"max_new_tokens": 4, "reduction": reduction}
    whole, cut = make(kind, **options), make(kind, scoring_batch_size=scored, keep_image_states=False, **options)
    batch = images(count)
    at_once = step(whole, [batch])
    in_parts = step(cut, parts_of(batch, part))
    wanted, found = gradients(whole), gradients(cut)
    assert len(wanted) > 20
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)
    for name in ("reward", "value_loss", "penalties/bad_tokens"):
        torch.testing.assert_close(in_parts[name], at_once[name], rtol=1e-9, atol=1e-9)
    assert len(at_once["reward"]) == count


@pytest.mark.parametrize("samples", [1, 3])
def test_scoring_in_parts_changes_nothing(samples):
    options = {"num_generations": samples}
    whole, cut = make("vlrm_rs", **options), make("vlrm_rs", scoring_batch_size=3, **options)
    batch = images(8)
    logs = step(whole, [batch])
    assert step(cut, [batch])["value"] == pytest.approx(logs["value"])
    wanted = gradients(whole)
    for name, gradient in gradients(cut).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-12)
    assert len(logs["reward"]) == 8 * samples


@pytest.mark.parametrize("keeps", [True, False])
def test_a_critic_without_adapter_reads_captions_once(keeps, monkeypatch):
    objective = make(keep_image_states=keeps, scoring_batch_size=3)
    reads = []
    monkeypatch.setattr(critic, "token_states", lambda *a, **k: (reads.append(1), token_states(*a, **k))[1])
    step(objective, [images(5)])
    assert len(reads) == (1 if keeps else 3)


def test_returns_and_advantages_by_hand():
    objective = make("vlrm", num_generations=2)
    batch = images(6)
    with torch.no_grad():
        torch.manual_seed(0)
        raw = objective.collect(batch, 0)
        [done] = objective.prepare([raw], lambda tensor: tensor)
    rollout, advantages = raw.rollout, []
    for i, text in enumerate(rollout.texts):
        words, count = text.split(), int(rollout.lengths[i])
        whole = float(by_words(rollout)[i]) - count / 3 - float(not rollout.finished[i])
        bad = [words[k : k + 3] for k in range(len(words))]
        bad = [any(bad[j] == ["on", "a", "table"] for j in range(max(0, k - 2), k + 1)) for k in range(len(words))]
        exempt = {"a", "on", "red", "green", "blue", "yellow", "black", "white", "orange", "purple"}
        again = [word in words[:k] and word not in exempt for k, word in enumerate(words)]
        for k in range(count):
            ahead = sum(bad[k:]) + sum(again[k:])
            assert float(raw.returns[i, k]) == pytest.approx(whole - ahead)
            advantages.append(float(raw.returns[i, k] - raw.values[i, k]))
    mean = sum(advantages) / len(advantages)
    std = (sum((a - mean) ** 2 for a in advantages) / (len(advantages) - 1)) ** 0.5
    torch.testing.assert_close(done.advantage[rollout.mask], double([(a - mean) / (std + 1e-8) for a in advantages]))
    assert float(done.logs["advantage_std"]) == pytest.approx(std)
    assert any(rollout.texts[2 * i] != rollout.texts[2 * i + 1] for i in range(6))


def test_drawing_is_tempered_and_cut_while_probabilities_are_not():
    objective = make("vlrm", top_k=2, num_generations=20, max_new_tokens=1)
    batch = images(4)
    with torch.no_grad():
        torch.manual_seed(0)
        rollout = objective.collect(batch, 0).rollout
        logits = objective.captioner(rollout, want=("logits",)).logits[:, 0]
        logprobs = objective.captioner(rollout).logprobs[:, 0]
    drawn = rollout.tokens[:, 0]
    assert all(int(token) in row.topk(2).indices.tolist() for token, row in zip(drawn, logits, strict=True))
    exact = logits.log_softmax(dim=1).gather(1, drawn[:, None])[:, 0]
    torch.testing.assert_close(logprobs, exact.float())


def test_values_learn_what_returns_are():
    objective, batch = make("vlrm", max_new_tokens=4), images(16)
    objective.reward = lambda rollout: torch.full((len(rollout),), 3.0)
    optimizer = torch.optim.Adam(objective.critic.parameters(), lr=1e-2)
    errors = []
    for _ in range(25):
        optimizer.zero_grad()
        errors.append(sum(step(objective, [batch])["value_loss"]) / 16)
        optimizer.step()
    assert errors[-1] < 0.2 * errors[0]


def test_unusable_numbers_are_refused():
    captioner, critic = speaker()
    for options in (
        {"policy_loss": "odds"},
        {"scoring_batch_size": 0},
        {"no_eos_penalty": -1.0},
        {"temperature": 0.0},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            VLRM(captioner, by_words, critic, **options)


TWO_PROCESSES = [(kind, reduction) for kind in ("vlrm", "vlrm_rs") for reduction in ("seq_mean", "token_mean")]


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    here = Path(__file__).resolve().parent
    script = tmp_path / "process.py"
    script.write_text("from test_vlrm import one_of_two; import sys; one_of_two(sys.argv[1])")
    run_two(str(script), str(tmp_path / "out"), PYTHONPATH=f"{here}:{here.parent}")
    for kind, reduction in TWO_PROCESSES:
        alone = make(kind, reduction=reduction)
        step(alone, [images(13)])
        together = torch.load(tmp_path / f"out.{kind}.{reduction}", weights_only=True)
        wanted = gradients(alone)
        assert together.keys() == wanted.keys()
        for name, gradient in wanted.items():
            torch.testing.assert_close(together[name], gradient, rtol=1e-9, atol=1e-12)


def one_of_two(out: str) -> None:
    """A process of the test above: 13 images, seven for the first, in micro-batches of their own."""
    from tellapart.training.config import TrainConfig
    from tellapart.training.devices import Devices

    devices = Devices(TrainConfig(output_dir=Path(out)))
    assert devices.world_size == 2
    mine = [range(0, 4), range(4, 7)] if devices.rank == 0 else [range(7, 13)]
    for kind, reduction in TWO_PROCESSES:
        objective = make(kind, reduction=reduction)
        step(objective, [images(13).select(rows) for rows in mine], devices.gather)
        devices.sum_gradients(list(objective.parameters()))
        if devices.rank == 0:
            torch.save(gradients(objective), f"{out}.{kind}.{reduction}")
    dist.destroy_process_group()


def test_the_listener_of_the_fakes_has_unit_rows():
    rows = NumberListener().encode_texts(["a", "b"])
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(2).double())
