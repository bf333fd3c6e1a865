"""Phi of VLRM-RS, against the vector, exact arithmetic, and a batch as large as the paper's."""

from __future__ import annotations

from decimal import Decimal, getcontext

import pytest
import torch

from given import VECTORS
from tellapart.rewards.phi import phi


def embeddings_of(cosines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit images ``[B, 2B]`` and texts ``[B, 2B]`` whose cosines are ``[B, B]``."""
    size = len(cosines)
    rest = (1 - cosines.square().sum(dim=0)).sqrt()
    eye = torch.eye(size, dtype=torch.float64)
    return torch.cat([eye, torch.zeros_like(eye)], 1), torch.cat([cosines.T, torch.diag(rest)], 1)


def exactly(cosines: list[list[float]]) -> list[float]:
    """Phi by the formula as written, in 60 digits."""
    getcontext().prec = 60
    grown = [[Decimal(value).exp() for value in row] for row in cosines]
    size = len(grown)
    columns = [sum(row[j] for row in grown) for j in range(size)]
    d = [grown[i][i] / sum(grown[i]) * (grown[i][i] / columns[i]) for i in range(size)]
    mean = sum(d) / size
    std = (sum((value - mean) ** 2 for value in d) / (size - 1)).sqrt()
    return [float((value - mean) / std) for value in d]


def test_the_vector():
    case = VECTORS["vlrm_rs_phi"]
    cosines = torch.tensor(case["inputs"]["S_image_by_text"], dtype=torch.float64)
    found = phi(*embeddings_of(cosines))
    assert found.tolist() == pytest.approx(case["expected"]["Phi_unbiased"], abs=1e-6)
    reward = torch.tensor(case["inputs"]["itm_logit"]) + case["inputs"]["weight"] * found
    assert reward.tolist() == pytest.approx(case["expected"]["sim_unbiased"], abs=1e-5)
    assert phi(*embeddings_of(cosines.T)).tolist() == pytest.approx(found.tolist(), abs=1e-6)


def test_nearly_equal_values_keep_their_digits():
    noise = torch.rand(24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cosines = 0.05 + 1e-9 * noise
    images, texts = embeddings_of(cosines)
    assert phi(images, texts).tolist() == pytest.approx(exactly((images @ texts.T).tolist()), abs=1e-4)


def test_a_batch_as_large_as_the_papers():
    size, width = 4096, 8
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(size, width, generator=generator)
    near = torch.where(torch.arange(size) % 2 == 0, 1e-4, 2e-4)[:, None]
    texts = 0.3 * torch.randn(1, width, generator=generator) + near * torch.randn(size, width, generator=generator)
    found = phi(images, texts)
    unit = [torch.nn.functional.normalize(part.double(), dim=1) for part in (images, texts)]
    d = torch.exp(
        2 * (unit[0] * unit[1]).sum(1)
        - torch.logsumexp(unit[0] @ unit[1].T, 0)
        - torch.logsumexp(unit[0] @ unit[1].T, 1)
    )
    expected = (d - d.mean()) / d.std()
    assert (found - expected).abs().max() < 1e-5
    assert float(found.double().mean()) == pytest.approx(0, abs=1e-6)
    assert float(found.double().std()) == pytest.approx(1, abs=1e-6)


def test_norms_and_the_size_of_blocks_do_not_matter(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    images, texts = torch.randn(9, 4, generator=generator), torch.randn(9, 4, generator=generator)
    whole = phi(images, texts)
    monkeypatch.setattr("tellapart.rewards.phi.ROWS_AT_ONCE", 4)
    scaled = phi(images * torch.rand(9, 1, generator=generator).add(0.5), 3 * texts)
    torch.testing.assert_close(scaled, whole, atol=1e-5, rtol=0)
    shuffled = torch.randperm(9, generator=generator)
    torch.testing.assert_close(phi(images[shuffled], texts[shuffled]), whole[shuffled], atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_without_differences_there_is_nothing_to_standardise(size):
    same = torch.nn.functional.normalize(torch.ones(size, 16), dim=1)
    assert phi(same, same).tolist() == [0.0] * size


def test_shapes_are_told():
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(3, 3\)"):
        phi(torch.ones(2, 3), torch.ones(3, 3))
