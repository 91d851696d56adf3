"""Counter-based Gumbel noise: its distribution, what it depends on, and that it never changes."""

from __future__ import annotations

import math

import pytest
import torch
from decoding_helpers import chi_square_p
from torch import Tensor

from gravity_rl.decoding import noise as module
from gravity_rl.decoding.noise import _gumbel, _hash, _mix_64, gumbel_noise

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


MASK_64, MASK_32 = (1 << 64) - 1, (1 << 32) - 1


def slow_mix(x: int) -> int:
    """The finaliser of splitmix64 on plain integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK_64
    return x ^ (x >> 31)


def slow_bits(seed: int, row: int, position: int, token: int) -> int:
    """32 random bits, on plain integers."""
    gamma = 0x9E3779B97F4A7C15
    state = slow_mix((slow_mix((seed + gamma) & MASK_64) + (row + 1) * gamma) & MASK_64)
    state = slow_mix((state + (position + 1) * gamma) & MASK_64)
    x = ((token + 1) * 0x9E3779B1) & MASK_32 ^ state & MASK_32
    x = ((x ^ x >> 16) * 0x21F0AAAD) & MASK_32 ^ state >> 32
    x = ((x ^ x >> 15) * 0xD35A2D97) & MASK_32
    x = ((x ^ x >> 16) * 0x846CA68B) & MASK_32
    return x ^ x >> 15


def slow_gumbel(bits: int) -> float:
    uniform = ((bits & 0x7FFFFFFF) + 0.5) / 2**31
    return -math.log(-math.log1p(-uniform))


def test_golden_values() -> None:
    """A change here changes every sample that was ever drawn with a seed."""
    sample = gumbel_noise(42, torch.tensor([0, 7]), torch.tensor([[0, 1], [5, 8447]]), 59392)
    assert sample[0, 0, :3].tolist() == pytest.approx([-0.7041487, 0.5103716, 0.6333097], abs=1e-6)
    assert sample[1, 1, -3:].tolist() == pytest.approx([1.9040579, 0.8731636, 1.536101], abs=1e-6)


def test_mixing_is_that_of_splitmix64() -> None:
    """Against plain integers; the first output of splitmix64 with seed 0 is the published one."""
    assert slow_mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    values = [0, 1, 2**63 - 1, -(2**63), -1, 0x1234567890ABCDEF, -7046029254386353131]
    mixed = _mix_64(torch.tensor(values)).tolist()
    assert [value & MASK_64 for value in mixed] == [slow_mix(value & MASK_64) for value in values]


@pytest.mark.parametrize("seed", [0, 42, -1, -(10**9), 1 << 63, (1 << 64) + 5, 10**30])
def test_values_are_those_of_plain_integers(seed: int) -> None:
    rows, positions = [0, 3, 1 << 40, -2], [0, 1, 8447, 1 << 33]
    sample = gumbel_noise(seed, torch.tensor(rows), torch.tensor(positions).expand(4, -1), 6)
    for n, row in enumerate(rows):
        for q, position in enumerate(positions):
            expected = [slow_gumbel(slow_bits(seed & MASK_64, row, position, token)) for token in range(6)]
            assert sample[n, q].tolist() == pytest.approx(expected, abs=2e-5, rel=2e-6)


def test_seeds_count_by_their_64_low_bits() -> None:
    assert torch.equal(noise(5, 2, 2, 20), noise(5 + (1 << 64), 2, 2, 20))
    assert torch.equal(noise(-1, 2, 2, 20), noise((1 << 64) - 1, 2, 2, 20))
    assert not torch.equal(noise(5, 2, 2, 20), noise(-5, 2, 2, 20))


def random_bits(rows: int = 16, positions: int = 16, vocab: int = 1024) -> Tensor:
    """The bits behind the noise, recovered from their order: (M, V) int64 in 0 … 2^31 - 1."""
    tokens = torch.arange(1, vocab + 1, dtype=torch.int32) * module._GAMMA_32
    states = _mix_64(torch.arange(rows * positions) * module._GAMMA)[:, None]
    return _hash(tokens, states).long() & MASK_32


def test_bits_are_uniform() -> None:
    bits = random_bits()
    for shift in (0, 8, 16, 24):
        counts = (bits >> shift & 255).flatten().bincount(minlength=256)
        assert chi_square_p(counts, torch.ones(256)) > 1e-4, shift
    ones = torch.stack([(bits >> place & 1).double().mean() for place in range(32)])
    assert (ones - 0.5).abs().max() < 4.5 * 0.5 / math.sqrt(bits.numel())


@pytest.mark.parametrize("axis", [0, 1])
def test_bits_of_neighbours_are_independent(axis: int) -> None:
    """Pairs of four bits, high and low, of neighbouring positions and of neighbouring vocabulary ids."""
    bits = random_bits()
    size = bits.shape[axis]
    for lag in (1, 2, 3, 16):
        first, second = bits.narrow(axis, 0, size - lag), bits.narrow(axis, lag, size - lag)
        for shift in (0, 27):
            pairs = 16 * (first >> shift & 15) + (second >> shift & 15)
            assert chi_square_p(pairs.flatten().bincount(minlength=256), torch.ones(256)) > 1e-4, (lag, shift)


def test_each_bit_of_a_state_turns_half_of_the_bits() -> None:
    tokens = torch.arange(1, 513, dtype=torch.int32) * module._GAMMA_32
    states = _mix_64(torch.arange(1, 9))
    turned = torch.stack([torch.stack([state ^ (1 << place if place < 63 else -(1 << 63)) for place in range(64)])
                          for state in states])  # fmt: skip
    changed = (
        _hash(tokens, turned.view(-1, 1)) ^ _hash(tokens, states.repeat_interleave(64)[:, None])
    ).long() & MASK_32
    share = torch.stack([changed >> place & 1 for place in range(32)]).double().view(32, 8, 64, 512).mean((1, 3))
    assert (share - 0.5).abs().max() < 0.05  # 4,096 trials each


def test_no_two_vectors_are_alike() -> None:
    """Rows, positions and seeds all differ: so do their noise vectors, not even shifted ones are alike."""
    vectors = torch.cat([noise(seed, 16, 16, 64).view(-1, 64) for seed in (0, 1, 2, 1 << 32)])
    assert len(torch.unique(vectors, dim=0)) == len(vectors)
    assert len(torch.unique(vectors[:, :-1], dim=0)) == len(vectors)
    centred = (torch.exp(-torch.exp(-vectors.double())) - 0.5) * math.sqrt(12)
    products = (centred @ centred.T / 64).fill_diagonal_(0)
    assert products.abs().max() < 6.5 / math.sqrt(64)


@pytest.mark.parametrize("chunk", [1, 64, 400, 1000, 3999])
def test_chunks_change_no_bit(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    expected = noise(7, 3, 5, 400)
    monkeypatch.setattr(module, "_CHUNK", chunk)
    assert torch.equal(noise(7, 3, 5, 400), expected)


@pytest.mark.parametrize("vocab", [1, 3, 7, 8, 15, 16, 17, 31, 33, 59])
def test_vectorised_and_left_over_values_are_the_same(vocab: int) -> None:
    """The end of a tensor may go through other instructions than its bulk."""
    whole = noise(11, 4, 4, 64)
    assert torch.equal(noise(11, 4, 4, vocab), whole[..., :vocab])
    assert torch.equal(gumbel_noise(11, torch.tensor([3]), torch.tensor([[2]]), vocab), whole[3:, 2:3, :vocab])


def test_no_rows_and_no_positions() -> None:
    assert gumbel_noise(0, torch.empty(0, dtype=torch.long), torch.empty(0, 3, dtype=torch.long), 5).shape == (0, 3, 5)
    assert gumbel_noise(0, torch.arange(2), torch.empty(2, 0, dtype=torch.long), 5).shape == (2, 0, 5)


def test_noise_is_finite_for_all_bits() -> None:
    extremes = _gumbel(torch.tensor([0, -1, 2**31 - 1, -(2**31), 2**31 - 2, 1, 1 << 30], dtype=torch.int32))
    assert extremes.dtype == torch.float32
    assert extremes.isfinite().all()
    assert extremes[0].item() == extremes[3].item() == pytest.approx(32 * math.log(2), abs=1e-4)
    assert extremes[1].item() == extremes[2].item() == pytest.approx(-math.log(24 * math.log(2)), abs=1e-4)
    ascending = _gumbel(torch.arange(1, 2**31 - 1, 2**20 + 7, dtype=torch.int32))
    assert (ascending.diff() < 0).all()


def test_the_top_of_the_distribution_is_resolved() -> None:
    """A million draws: their maxima over blocks are Gumbel again, shifted by the logarithm of the block."""
    sample = noise(9, rows=32, positions=32, vocab=1024).double()
    maxima = sample.flatten(0, 1).amax(-1) - math.log(1024)
    assert maxima.mean().item() == pytest.approx(EULER, abs=4 * 1.2825 / 32)
    assert maxima.var().item() == pytest.approx(math.pi**2 / 6, rel=0.3)
