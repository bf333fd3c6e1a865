"""Products of rows with the weights of linear layers, on a CPU through oneDNN.

torch hands products of float32 matrices on a CPU to MKL, which on processors of other makers than Intel may use half of their
width: on an AMD EPYC with AVX-512, oneDNN (which torch brings along) took 0.45 times as long for large ones. With AVX2 MKL uses
all of it: on an EPYC without AVX-512, oneDNN took 1.1 to 1.6 times as long, except for wide results. On an Intel Xeon with
AVX-512 oneDNN took 1 to 2 times as long; it took 0.5 to 0.9 times as long for the logits of a few rows, and where it computes the
tanh approximation of GELU along with a product of more rows. On an EPYC that computes AVX-512 in two halves oneDNN is a tenth
faster for large products, and slower for small ones. Which products go through it is said by ``rules``: of float32, outside
autocast, where ``torch.backends.mkldnn.enabled`` is true. All else goes the way it always goes. Sums are formed in another
order, so values differ in their last bits.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

SMALLEST = 2**21
"""Multiplications below which a product goes the usual way: oneDNN's calls cost more, and it writes code for each new shape in
about 0.5 ms. Greedy search of 48 images at width 128 was quickest with this bound among 2**19 to 2**22."""

SMALLEST_IN_HALVES = 2**22
"""The same on a processor that computes AVX-512 in two halves, while captions are drawn (in torch's inference mode): greedy
search of 48 images at width 128 took 0.9 times as long with this bound as with ``SMALLEST``, and at width 384 as long. Scoring
gained nothing by it, and takes ``SMALLEST`` with gradients and without."""

WIDE = 2**14
"""Columns of a result from which oneDNN is quicker on AVX2, too: at 50,257 columns and 800 rows MKL took 1.2 times as long. On
Intel this holds for few rows: 1.3 to 1.9 times at 768 x 50,257 and up to 40 rows, the same at 64, the other way round at 160."""

FEW_ROWS = 64
"""Rows below which GELU's tanh approximation is computed apart on Intel, and up to which logits go through oneDNN there."""

MANY_WEIGHTS = 2**20
"""Numbers of a weight up to which oneDNN computes GELU's tanh approximation on Intel: with 240 rows it took 1.8 times as long as
MKL and torch's own at 768 x 3,072, and 0.84 times as long at 384 x 1,536."""


def _described() -> str:
    """The processor, as Linux describes it, and elsewhere what Python knows of it."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return platform.processor()


def made_by_intel() -> bool:
    """Whether the processor is Intel's."""
    return "GenuineIntel" in _described()


def computes_in_halves() -> bool:
    """Whether the processor computes AVX-512 in two halves, as AMD's Zen 4 does (family 25; Zen 3 of that family has no AVX-512);
    where the operating system is not Linux this is taken to be false."""
    wide, known = torch.backends.cpu.get_cpu_capability() == "AVX512", _described()
    return wide and "AuthenticAMD" in known and re.search(r"^cpu family\s*: 25$", known, re.MULTILINE) is not None


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for products of bfloat16 (AVX512-BF16, AMX), and torch may use them; without them it
    imitates them."""
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return known is not None and known() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


@dataclass(frozen=True)
class Range:
    """Products of ``[rows, K]`` and ``[columns, K]`` that go through oneDNN.

    Args:
        columns: the least.
        rows: the least and the most.
        weights: the most numbers of the weight.
    """

    columns: float = 1
    rows: tuple[float, float] = (1, math.inf)
    weights: float = math.inf

    def holds(self, rows: int, weight: Tensor) -> bool:
        """Whether a product is among them."""
        least, most = self.rows
        return weight.shape[0] >= self.columns and least <= rows <= most and weight.numel() <= self.weights


PLAIN = "plain"
"""A product with nothing after it, next to the names of ``ACTIVATIONS``."""


def rules(capability: str, intel: bool) -> dict[str, Range]:
    """Of a processor: what follows a product -> the range in which oneDNN computes both; nothing: never.

    Args:
        capability: as ``torch.backends.cpu.get_cpu_capability`` names it.
        intel: whether it is Intel's.
    """
    if capability == "AVX512" and intel:
        return {
            PLAIN: Range(columns=WIDE, rows=(1, FEW_ROWS)),
            "tanh": Range(rows=(FEW_ROWS, math.inf), weights=MANY_WEIGHTS),
        }
    found = {"AVX512": Range(), "AVX2": Range(columns=WIDE)}.get(capability)
    return {} if found is None else dict.fromkeys((PLAIN, *ACTIVATIONS), found)


SLOPE = math.sqrt(8 / math.pi)
"""GELU's tanh approximation of x is x times the sigmoid of ``SLOPE (x + CUBIC x^3)`` (Hendrycks & Gimpel, arXiv 1606.08415)."""

CUBIC = 0.044715


def gelu_by_sigmoid(rows: Tensor) -> Tensor:
    """GELU's tanh approximation; of float32 on a CPU and in torch's inference mode by torch's sigmoid, which is quicker than its
    tanh: 240 x 512 numbers took 0.09 ms, and 0.22 by torch's GELU. Values from -8 to 8 differ by less than 1e-6."""
    if not torch.is_inference_mode_enabled() or not rows.is_cpu or rows.dtype is not torch.float32:
        return functional.gelu(rows, approximate="tanh")
    inner = torch.addcmul(rows.new_tensor(SLOPE), rows, rows, value=SLOPE * CUBIC)
    return inner.mul_(rows).sigmoid_().mul_(rows)


ACTIVATIONS: dict[str, tuple[str, str, Callable[[Tensor], Tensor]]] = {
    "gelu": ("gelu", "none", functional.gelu),
    "tanh": ("gelu", "tanh", gelu_by_sigmoid),
    "relu": ("relu", "", functional.relu),
}
"""Name -> oneDNN's name and variant, and torch's function; ``tanh`` is GELU in its tanh approximation."""


def _rules() -> dict[str, Range]:
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return {}
    return rules(torch.backends.cpu.get_cpu_capability(), made_by_intel())


RULES = _rules()
"""Of this processor."""

SMALLEST_DRAWN = SMALLEST_IN_HALVES if computes_in_halves() else SMALLEST
"""Of this processor: ``SMALLEST`` in torch's inference mode."""


def suits(rows: Tensor, weight: Tensor, *, then: str = PLAIN) -> bool:
    """Whether ``rows [..., K]`` times the transpose of ``weight [N, K]`` goes through oneDNN.

    Args:
        rows: on the left.
        weight: of the layer.
        then: what follows, of ``ACTIVATIONS``.
    """
    found, least = RULES.get(then), SMALLEST_DRAWN if torch.is_inference_mode_enabled() else SMALLEST
    return (
        found is not None
        and rows.is_cpu
        and rows.numel() * weight.shape[0] >= least
        and found.holds(rows.numel() // weight.shape[1], weight)
        and rows.dtype is torch.float32
        and weight.dtype is torch.float32
        and torch._C._get_mkldnn_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


def _times(rows: Tensor, weight: Tensor) -> Tensor:
    return _product(rows, weight, None) if suits(rows, weight) else functional.linear(rows, weight)


def _weight_gradient(rows: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
    """``[N, K]``, laid out as the weight: sums with other gradients of a tied embedding are otherwise three times as slow.

    For oneDNN one of the factors is copied to be read by columns, and the result where it comes out turned: what copies less is
    done. MKL needs no copies.
    """
    if weight.is_contiguous() and not suits(gradient.t(), rows.t()):
        return functional.linear(gradient.t(), rows.t())
    turned = 0 if not weight.is_contiguous() else weight.numel()
    if gradient.numel() + weight.numel() - turned <= rows.numel() + turned:
        found = _times(gradient.t(), rows.t())
    else:
        found = _times(rows.t(), gradient.t()).t()
    return found.contiguous() if turned else found


def product_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of rows, weight and bias, the first three inputs of a function, which saved rows and weight.

    Args:
        ctx: of the function.
        gradient: ``[M, N]``, of its output.
    """
    rows, weight = ctx.saved_tensors
    wants_rows, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    gradient = gradient.contiguous()
    to_rows = _times(gradient, weight.t()) if wants_rows else None
    to_weight = _weight_gradient(rows, weight, gradient) if wants_weight else None
    return to_rows, to_weight, gradient.sum(dim=0) if wants_bias else None


class _Product(torch.autograd.Function):
    """``rows [M, K]`` times the transpose of ``weight [N, K]`` plus ``bias [N]``, and the backward pass by the same products."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return product_gradients(ctx, gradient)


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``[..., N]``: ``rows [..., K]`` times the transpose of ``weight [N, K]``, plus ``bias [N]``; differentiable once.

    Where oneDNN does not suit, this is ``torch.nn.functional.linear``.

    Example::

        product(torch.ones(2, 3), torch.eye(3), torch.ones(3))  # [[2, 2, 2], [2, 2, 2]]
    """
    if not suits(rows, weight):
        return functional.linear(rows, weight, bias)
    flat = rows.reshape(-1, rows.shape[-1]).contiguous()
    if not weight.is_contiguous() and not weight.t().is_contiguous():
        weight = weight.contiguous()  # oneDNN may be a hundred times slower on rows that lie apart
    given = (flat, weight) if bias is None else (flat, weight, bias)
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    found = _Product.apply(flat, weight, bias) if learns else _product(flat, weight, bias)
    return found.view(*rows.shape[:-1], -1)


def added(to: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``to [M, N] + product(rows [M, K], weight [N, K], bias [N])``, in one operation where no gradient is wanted."""
    if torch.is_grad_enabled() or not suits(rows, weight):
        return to + product(rows, weight, bias)
    return torch.ops.mkldnn._linear_pointwise.binary(rows.contiguous(), to, weight, bias, "add")


def activated(rows: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """The activation ``kind`` (of ``ACTIVATIONS``) of ``product(rows [M, K], weight [N, K], bias [N])``, in one operation where
    no gradient is wanted."""
    name, variant, function = ACTIVATIONS[kind]
    if torch.is_grad_enabled() or not suits(rows, weight, then=kind):
        return function(product(rows, weight, bias))
    return torch.ops.mkldnn._linear_pointwise(rows.contiguous(), weight, bias, name, [], variant)
