"""Counter-based Gumbel noise: its distribution, what it depends on, and that it never changes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gravity_rl.decoding.noise import _gumbel, _mix, gumbel_noise

EULER = 0.5772156649


def noise(seed: int = 0, rows: int = 8, positions: int = 16, vocab: int = 400) -> Tensor:
    return gumbel_noise(seed, torch.arange(rows), torch.arange(positions).expand(rows, -1), vocab)


def test_moments_are_those_of_a_standard_gumbel() -> None:
    sample = noise(rows=16, positions=32).double()
    centred = sample - sample.mean()
    # standard errors at 204,800 draws: 0.003, 0.007 and 0.02
    assert sample.mean().item() == pytest.approx(EULER, abs=0.012)
    assert sample.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    assert (centred.pow(3).mean() / sample.var() ** 1.5).item() == pytest.approx(1.1395, abs=0.08)


def test_quantiles_are_those_of_a_standard_gumbel() -> None:
    uniform = torch.exp(-torch.exp(-noise(rows=16, positions=32).double().flatten())).sort().values
    ideal = (torch.arange(len(uniform), dtype=torch.double) + 0.5) / len(uniform)
    assert (uniform - ideal).abs().max() < 1.95 / math.sqrt(len(uniform))  # Kolmogorov-Smirnov, 0.1%


@pytest.mark.parametrize(("axis", "name"), [(0, "rows"), (1, "positions"), (2, "vocabulary ids")])
@pytest.mark.parametrize("lag", [1, 2, 7])
def test_neighbours_are_independent(axis: int, name: str, lag: int) -> None:
    uniform = torch.exp(-torch.exp(-noise().double())) - 0.5
    size = uniform.shape[axis]
    product = uniform.narrow(axis, 0, size - lag) * uniform.narrow(axis, lag, size - lag)
    correlation = 12 * product.mean()
    assert abs(correlation) < 4.5 / math.sqrt(product.numel()), name


@pytest.mark.parametrize("other", [1, 2, -1, 1 << 32, 1 << 63])
def test_seeds_are_independent(other: int) -> None:
    first, second = (torch.exp(-torch.exp(-noise(seed).double())) - 0.5 for seed in (0, other))
    assert abs(12 * (first * second).mean()) < 4.5 / math.sqrt(first.numel())


def test_seed_row_and_position_are_not_interchangeable() -> None:
    values = {
        gumbel_noise(seed, torch.tensor([row]), torch.tensor([[position]]), 1).item()
        for seed in range(6)
        for row in range(6)
        for position in range(6)
    }
    assert len(values) == 6**3


def test_a_value_depends_on_its_own_coordinates_alone() -> None:
    whole = noise(seed=3)
    part = gumbel_noise(3, torch.tensor([5, 2]), torch.tensor([[9, 1, 4], [0, 15, 7]]), 250)
    assert torch.equal(part[0], whole[5, [9, 1, 4], :250])
    assert torch.equal(part[1], whole[2, [0, 15, 7], :250])


def test_golden_values() -> None:
    """A change here changes every sample that was ever drawn with a seed."""
    sample = gumbel_noise(42, torch.tensor([0, 7]), torch.tensor([[0, 1], [5, 8447]]), 59392)
    assert sample[0, 0, :3].tolist() == pytest.approx([1.2711009, 0.2144748, -0.3455635], abs=1e-6)
    assert sample[1, 1, -3:].tolist() == pytest.approx([-0.6150182, 1.6200115, 0.5880764], abs=1e-6)


def test_mixing_is_that_of_splitmix64() -> None:
    """Against plain integers; the first output of splitmix64 with seed 0 is the published one."""
    mask = (1 << 64) - 1

    def slow(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    assert slow(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    values = [0, 1, 2**63 - 1, -(2**63), -1, 0x1234567890ABCDEF, -7046029254386353131]
    assert [value & mask for value in _mix(torch.tensor(values)).tolist()] == [slow(value & mask) for value in values]


def test_noise_is_finite_for_all_bits() -> None:
    extremes = _gumbel(torch.tensor([0, -1, 2**63 - 1, -(2**63), (1 << 12) - 1]))
    assert extremes.dtype == torch.float32
    assert extremes.isfinite().all()
    assert extremes[0].item() == pytest.approx(-math.log(53 * math.log(2)), abs=1e-5)
    assert extremes[1].item() == pytest.approx(53 * math.log(2), abs=1e-4)
