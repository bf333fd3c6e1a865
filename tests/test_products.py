"""Products through oneDNN: values and gradients of the usual way, and no other way where it does not suit."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from tellapart import products
from tellapart.captioners.fused import FastConv1D, FastLinear, fuse
from tellapart.products import activated, added, gelu_by_sigmoid, product

needs_onednn = pytest.mark.skipif(not products.RULES, reason="this torch has no oneDNN on this processor")


EVERYTHING = products.rules("AVX512", intel=False)


@pytest.fixture(autouse=True)
def seed(monkeypatch):
    """Products of any width go through oneDNN, as with AVX-512."""
    torch.manual_seed(0)
    monkeypatch.setattr(products, "SMALLEST_DRAWN", products.SMALLEST)
    if products.RULES:
        monkeypatch.setattr(products, "RULES", EVERYTHING)


def large(*, transposed=False, shape=(900,)):
    rows, bias = torch.randn(*shape, 64), torch.randn(48)
    weight = torch.randn(64, 48).t() if transposed else torch.randn(48, 64)
    return rows, weight, bias


@needs_onednn
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(900,), (60, 15)])
@pytest.mark.parametrize("biased", [False, True])
def test_values_and_gradients_are_those_of_linear(transposed, shape, biased):
    rows, weight, bias = large(transposed=transposed, shape=shape)
    assert products.suits(rows, weight)
    found = []
    for way in (product, functional.linear):
        given = [tensor.clone().requires_grad_() for tensor in (rows, weight, bias)]
        out = way(given[0], given[1], given[2] if biased else None)
        # a sum's gradient is one number spread over no memory, which oneDNN cannot read
        (out.sum() + (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()).backward()
        found.append([out, *(tensor.grad for tensor in given if tensor.grad is not None)])
    assert len(found[0]) == 3 + biased
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm()


@needs_onednn
def test_the_gradient_of_a_plain_sum_is_read():
    rows, weight, bias = large()
    weight.requires_grad_()
    product(rows, weight, bias).sum().backward()
    torch.testing.assert_close(weight.grad, rows.sum(dim=0).expand(48, -1), rtol=1e-5, atol=1e-4)


@needs_onednn
def test_sums_and_gelu_in_one_operation_are_those_in_two():
    rows, weight, bias = large(transposed=True)
    to = torch.randn(900, 48)
    with torch.no_grad():
        plain = functional.linear(rows, weight, bias)
        torch.testing.assert_close(added(to, rows, weight, bias), to + plain, rtol=0, atol=1e-4)
        fused = activated(rows / 8, weight, bias, "tanh")
        torch.testing.assert_close(
            fused, functional.gelu(functional.linear(rows / 8, weight, bias), approximate="tanh"), rtol=0, atol=2e-6
        )
    assert added(to, rows, weight.requires_grad_(), bias).requires_grad
    assert activated(rows, weight, bias, "tanh").requires_grad


def test_what_does_not_suit_goes_the_usual_way():
    rows, weight, _ = large()
    assert not products.suits(rows.double(), weight.double())
    assert not products.suits(rows[:10], weight)
    assert not products.suits(rows.bfloat16(), weight.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not products.suits(rows, weight)
        assert product(rows, weight).dtype is torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):
        assert not products.suits(rows, weight)
    assert products.suits(rows, weight) is bool(products.RULES)


@needs_onednn
def test_with_avx2_only_wide_results_go_through_onednn(monkeypatch):
    monkeypatch.setattr(products, "RULES", {"plain": products.Range(columns=48)})
    rows, weight, _ = large()
    assert products.suits(rows, weight)
    assert not products.suits(rows, weight[:47])


def test_what_goes_through_onednn_follows_the_processor():
    everything = dict.fromkeys(("plain", "gelu", "tanh", "relu"), products.Range())
    assert products.rules("AVX512", intel=False) == everything
    assert set(products.rules("AVX512", intel=True)) == {"plain", "tanh"}
    for intel in (False, True):
        wide = products.Range(columns=products.WIDE)
        assert products.rules("AVX2", intel=intel) == dict.fromkeys(everything, wide)
        assert products.rules("DEFAULT", intel=intel) == {}


@needs_onednn
def test_on_intel_logits_of_few_rows_and_gelu_of_many_go_through_onednn(monkeypatch):
    monkeypatch.setattr(products, "RULES", products.rules("AVX512", intel=True))
    few, many, vocabulary = torch.randn(64, 64), torch.randn(65, 64), torch.randn(products.WIDE, 64)
    assert products.suits(few, vocabulary)
    assert not products.suits(few, vocabulary[1:])
    assert not products.suits(many, vocabulary)
    rows, weight, bias = large()
    assert not products.suits(rows, weight)
    assert products.suits(rows, weight, then="tanh")
    assert products.suits(torch.randn(64, 700), torch.randn(700, 700), then="tanh")
    assert not products.suits(torch.randn(63, 700), torch.randn(700, 700), then="tanh")
    assert not products.suits(torch.randn(64, 1100), torch.randn(1100, 1100), then="tanh")  # 1,210,000 weights
    assert not products.suits(rows, weight, then="relu")
    with torch.no_grad():
        wanted = functional.linear(rows, weight, bias)
        assert torch.equal(product(rows, weight, bias), wanted)
        assert torch.equal(activated(rows, weight, bias, "relu"), wanted.relu())
        gelu = functional.gelu(wanted, approximate="tanh")
        torch.testing.assert_close(activated(rows, weight, bias, "tanh"), gelu, rtol=0, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_a_wide_product_are_narrow_and_go_the_usual_way(transposed, monkeypatch):
    torch.manual_seed(0)
    rows = torch.randn(900, 16)
    weight = torch.randn(16, 200).t() if transposed else torch.randn(200, 16)
    monkeypatch.setattr(products, "RULES", {"plain": products.Range(columns=200)})
    assert products.suits(rows, weight)
    found = []
    for way in (product, functional.linear):
        given = [tensor.clone().requires_grad_() for tensor in (rows, weight)]
        out = way(*given)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        found.append([out, *(tensor.grad for tensor in given)])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm()
    assert found[0][2].stride() == found[1][2].stride()


def test_layers_get_another_class_and_keep_their_parameters():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(64, 48), NewGELUActivation(), Conv1D(64, 48), Own(64, 48))
    rows, before = torch.randn(900, 64), dict(model.named_parameters())
    wanted = model(rows)
    fuse(model)
    assert [type(part) for part in model] == [FastLinear, nn.GELU, FastConv1D, Own]
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    torch.testing.assert_close(model(rows), wanted, rtol=0, atol=1e-5)


CPUINFO = "processor\t: 0\nvendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: 17\n\nprocessor\t: 1\nvendor_id\t: {}\n"


@pytest.mark.parametrize(
    ("vendor", "family", "capability", "halves"),
    [
        ("AuthenticAMD", "25", "AVX512", True),
        ("AuthenticAMD", "25", "AVX2", False),
        ("AuthenticAMD", "26", "AVX512", False),
        ("GenuineIntel", "6", "AVX512", False),
    ],
)
def test_a_processor_that_computes_avx512_in_halves_is_known_by_its_family(
    vendor, family, capability, halves, monkeypatch
):
    text = CPUINFO.format(vendor, family, vendor)
    monkeypatch.setattr(products.Path, "read_text", lambda *_, **__: text)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert products.computes_in_halves() is halves


def test_a_processor_that_no_file_describes_computes_in_no_halves(monkeypatch):
    def absent(*_, **__):
        raise OSError

    monkeypatch.setattr(products.Path, "read_text", absent)
    assert products.computes_in_halves() is False


@needs_onednn
def test_a_small_product_goes_another_way_while_captions_are_drawn(monkeypatch):
    rows, weight, bias = large(transposed=True)
    size = rows.numel() * weight.shape[0]
    monkeypatch.setattr(products, "SMALLEST_DRAWN", size + 1)
    with torch.no_grad():
        assert products.suits(rows, weight)
    with torch.inference_mode():
        assert not products.suits(rows, weight)
        usual = functional.linear(rows, weight, bias)
        assert torch.equal(product(rows, weight, bias), usual)
        assert torch.equal(added(rows[:, :48], rows, weight, bias), rows[:, :48] + usual)
        monkeypatch.setattr(products, "SMALLEST_DRAWN", size)
        assert torch.equal(product(rows, weight, bias), products._product(rows, weight, bias))


def test_gelu_by_sigmoid_is_gelu_in_its_tanh_approximation():
    rows = torch.linspace(-8, 8, 1_000_001)
    exact = functional.gelu(rows.double(), approximate="tanh")
    with torch.inference_mode():
        given = rows.clone()
        assert (gelu_by_sigmoid(given) - exact).abs().max() < 1e-6
        assert torch.equal(given, rows)
        ends = gelu_by_sigmoid(torch.tensor([-1e30, -200.0, 0.0, 200.0, 1e30]))
        assert ends.tolist() == [0.0, 0.0, 0.0, 200.0, torch.tensor(1e30).item()]
        half = rows[::1000].bfloat16()
        assert torch.equal(gelu_by_sigmoid(half), functional.gelu(half, approximate="tanh"))
    with torch.no_grad():  # scoring without gradients, whose values are those with gradients
        assert torch.equal(gelu_by_sigmoid(rows), functional.gelu(rows, approximate="tanh"))


def test_gelu_as_one_operation_is_that_of_transformers():
    model = nn.Sequential(NewGELUActivation())
    inputs = torch.linspace(-8, 8, 1_000_001)
    wanted = model(inputs)
    fuse(model)
    assert (model(inputs) - wanted).abs().max() < 1e-6


def test_a_processor_held_to_avx2_multiplies_no_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    for capability, known in (("AVX512", True), ("AVX2", False)):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        assert products.multiplies_bfloat16() == known
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert not products.multiplies_bfloat16()
