"""Log-probabilities by Liger: always by a stand-in of its function, and by its kernel where it is installed on a machine with a
GPU, or in Triton's interpreter where the environment has ``TRITON_INTERPRET=1``, which Triton reads when it is imported."""

import importlib
import sys
from importlib.metadata import PackageNotFoundError
from types import ModuleType, SimpleNamespace

import pytest
import torch
from packaging.version import Version
from torch.nn import functional

from family_checks import make
from tellapart.captioners import liger
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.liger import liger_numbers
from tellapart.errors import UsageError
from tellapart.types import Decoding
from tiny_models import batch_of, tiny_ved

KERNEL = "liger_kernel.transformers.functional"


def cross_entropy(hidden, weight, target, bias=None, *, reduction, softcap, accum_dtype):
    """What Liger's function computes with the arguments that it is given."""
    assert reduction == "none"
    assert accum_dtype is torch.float32
    logits = functional.linear(hidden, weight, bias)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    return functional.cross_entropy(logits, target, reduction="none")


@pytest.fixture(params=["its kernel", "a stand-in"])
def kernel(request, monkeypatch):
    """Where Liger's own kernel computes, or nothing for the stand-in."""
    if request.param == "its kernel":
        pytest.importorskip("triton", reason="Triton is not installed")
        pytest.importorskip("liger_kernel", reason="Liger is not installed")
        if liger.interpreted():
            return "cpu"
        if not torch.cuda.is_available():
            pytest.skip("no GPU, and TRITON_INTERPRET=1 is not in the environment")
        return "cuda"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    stand_in = ModuleType(KERNEL)
    stand_in.liger_fused_linear_cross_entropy = cross_entropy
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, KERNEL, stand_in)
    installed(monkeypatch)
    return ""


def installed(monkeypatch, number="0.8.5"):
    monkeypatch.setattr(liger, "find_spec", lambda name: name)
    monkeypatch.setattr(liger, "version", lambda name: number)


def by_liger(captioner, **options):
    return HuggingFaceCaptioner(captioner.network, captioner.family, use_liger_kernel=True, **options)


@pytest.mark.parametrize("beams", [True, False])
@pytest.mark.parametrize(
    "family", ["CLIP + GPT-2", "BLIP", "BLIP-2 (OPT)", "BLIP-2 (T5)", "GIT", "Florence-2", "PaliGemma 2"]
)
def test_log_probabilities_and_gradients_are_those_of_torch(family, beams, kernel, tmp_path):
    """Each word of each caption has its own weight in the loss, and beams share their first words."""
    device = kernel or "cpu"
    captioner = make(family, tmp_path).to(device)
    if kernel == "cpu" and captioner.family.softcap is not None:
        pytest.skip("Triton's interpreter gives the kernel a bound that is no tensor")
    decoding = (
        Decoding(num_beams=4, num_return_sequences=4) if beams else Decoding(do_sample=True, num_return_sequences=3)
    )
    rollout = captioner.generate(batch_of(captioner, 3).to(device), decoding)
    weights = torch.randn(rollout.tokens.shape, generator=torch.Generator().manual_seed(1)).to(device)

    def found(captioner):
        captioner.zero_grad()
        logprobs = captioner(rollout).logprobs
        (logprobs * weights).sum().backward()
        return [logprobs.detach(), *(p.grad.clone() for p in captioner.parameters() if p.grad is not None)]

    wanted = found(captioner)
    fused = by_liger(captioner)
    ours = found(fused)
    torch.testing.assert_close(ours[0], wanted[0], rtol=1e-5, atol=1e-5)
    # How far a single number is off depends on a processor's kernels, and some gradients are sums that vanish.
    whole = torch.cat([gradient.flatten() for gradient in wanted[1:]]).norm()
    for one, other in zip(ours[1:], wanted[1:], strict=True):
        assert float((one - other).norm()) <= 1e-5 * float(whole)


def test_it_scores_where_gradients_are_wanted_and_entropies_are_not(monkeypatch, kernel):
    device = kernel or "cpu"
    captioner = by_liger(tiny_ved().to(device))
    rollout = captioner.generate(batch_of(captioner, 2).to(device), Decoding())
    asked = []
    whole = importlib.import_module(KERNEL).liger_fused_linear_cross_entropy

    def counted(hidden, *given, **named):
        asked.append(len(hidden))
        return whole(hidden, *given, **named)

    monkeypatch.setattr(importlib.import_module(KERNEL), "liger_fused_linear_cross_entropy", counted)
    with torch.no_grad():
        captioner(rollout)
    captioner(rollout, want={"entropy"})
    assert asked == []
    captioner(rollout)
    assert asked == [int(rollout.mask.sum())], "words of two images, none of which is computed once for both"
    twice = captioner.generate(batch_of(captioner, 1).to(device), Decoding(num_beams=2, num_return_sequences=2))
    same = (twice.tokens[0] == twice.tokens[1]).logical_and(twice.mask.all(dim=0)).cumprod(dim=0).sum()
    captioner(twice)
    assert asked[1:] == [int(twice.mask.sum() - same)], "words that both captions begin with are computed once"


def test_what_is_missing_is_said(monkeypatch):
    captioner = tiny_ved()

    def nothing(name):
        raise PackageNotFoundError(name)

    installed(monkeypatch)
    monkeypatch.setattr(liger, "version", nothing)
    with pytest.raises(UsageError, match=r"use_liger_kernel needs Liger and Triton: pip install 'tellapart\[liger\]'"):
        by_liger(captioner)
    installed(monkeypatch, "0.8.1")
    with pytest.raises(UsageError, match=r"needs liger-kernel 0\.8\.2 or later, and 0\.8\.1 is installed"):
        by_liger(captioner)
    installed(monkeypatch)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="use_liger_kernel needs a GPU"):
        by_liger(captioner)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    fused = by_liger(captioner)
    rollout = fused.generate(batch_of(fused, 2), Decoding())
    with pytest.raises(UsageError, match="needs a captioner on a GPU"):
        fused(rollout)


def test_an_output_embedding_with_an_adapter_is_refused(monkeypatch, tmp_path):
    installed(monkeypatch)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    tiny_ved(folder=tmp_path)
    lora = LoraOptions(target_modules=r"decoder\.lm_head")
    with pytest.raises(UsageError, match="needs an output embedding without an adapter"):
        HuggingFaceCaptioner.from_pretrained(tmp_path, lora=lora, use_liger_kernel=True)


def test_the_least_version_is_the_extras():
    import tomllib
    from pathlib import Path

    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert extras["liger"] == [f"liger-kernel>={liger.LEAST}"]
    assert Version("0.8.1") < liger.LEAST


@pytest.mark.parametrize("words", [1, 4, 5, 9, 33])
def test_rows_at_once_are_those_of_the_kernel(words, kernel, monkeypatch):
    if not kernel:
        pytest.skip("a stand-in has no rows")
    module, asked = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy"), []

    class Counted:
        def __init__(self, inner):
            self.inner = inner

        def __getitem__(self, grid):
            asked.append(grid[0])
            return self.inner[grid]

    monkeypatch.setattr(module, "liger_cross_entropy_kernel", Counted(module.liger_cross_entropy_kernel))
    head = torch.nn.Linear(32, 50, bias=False).requires_grad_(False).to(kernel)
    fused = importlib.import_module(KERNEL).liger_fused_linear_cross_entropy
    states = torch.randn(words, 32, requires_grad=True, device=kernel)
    fused(states, head.weight, torch.zeros(words, dtype=torch.long, device=kernel), reduction="none").sum().backward()
    assert 2 * max(asked) * 50 + 2 * words * 32 == liger_numbers(words, SimpleNamespace(head=head, vocab_size=50))


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(("words", "rows"), [(1, 1), (4, 2), (5, 4), (9, 8), (33, 32)])
def test_numbers_at_once(words, rows, trains):
    """Over 50 words and states of 32 numbers: half the rows, and of these the next power of two; of 3 words over 16, all."""
    head = torch.nn.Linear(32, 50).requires_grad_(trains)
    found = liger_numbers(words, SimpleNamespace(head=head, vocab_size=50))
    assert found == 2 * rows * 50 + 2 * words * 32 + trains * 32 * 50
    narrow = SimpleNamespace(head=torch.nn.Linear(32, 16).requires_grad_(False), vocab_size=16)
    assert liger_numbers(3, narrow) == 2 * 3 * 16 + 2 * 3 * 32


def test_a_memory_table_asks_nothing_of_this_machine():
    """Liger is not installed here, or there is no GPU; the training is planned for another machine."""
    with torch.device("meta"):
        captioner = tiny_ved()
    by_liger(captioner)
