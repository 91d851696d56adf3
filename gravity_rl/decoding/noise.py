"""Gumbel noise as a pure function of (seed, row id, response position, vocabulary id), each value computed once.

Adding Gumbel noise to logits and taking the argmax draws from their softmax. When the noise of a position does not
depend on how the position was reached, two decoders that compute the same logits draw the same token: batch
composition, window size and method change nothing, and a drafter that shares the verifier's noise agrees with its
samples more often. No generator state is kept. Seed, row and position go through the finaliser of splitmix64 (Steele,
Lea and Flood 2014) and give two 32-bit keys; a vocabulary id goes through a 32-bit finaliser of three rounds that
takes in one key before its first round and the other before its second. All of it is wrapping integer arithmetic.

Shapes: N rows, Q positions, M (row, position) pairs, L slots for rows, K positions kept a row, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(value: int, bits: int) -> int:
    """The low bits of a number, as torch's signed integers of that width hold them."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


_GAMMA = _signed(0x9E3779B97F4A7C15, 64)
_MULTIPLIERS_64 = (_signed(0xBF58476D1CE4E5B9, 64), _signed(0x94D049BB133111EB, 64))
_GAMMA_32 = _signed(0x9E3779B1, 32)
_MULTIPLIERS_32 = (_signed(0x21F0AAAD, 32), _signed(0xD35A2D97, 32), _signed(0x846CA68B, 32))
_UNIFORM_BITS = 31
#: the largest fp32 number below 1: above it, the noise would be minus infinity
_ALMOST_1 = 1.0 - 2.0**-24
#: values computed at once: bounds the temporaries of a large vocabulary to some hundred MB
_CHUNK = 1 << 24
_EVERYTHING = 1 << 62  # a position behind all that occur


def gumbel_noise(seed: int, row_ids_N: Tensor, positions_NQ: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise, always finite.

    Args:
        seed: any integer; its 64 low bits count.
        row_ids_N: (N,) int64.
        positions_NQ: (N, Q) int64, index of each token within its response.
        vocab_size: V.

    Returns:
        (N, Q, V) fp32, on the device of ``row_ids_N``.
    """
    state_N = _mix_64(_mix_64(torch.full_like(row_ids_N, _signed(seed, 64)) + _GAMMA) + (row_ids_N + 1) * _GAMMA)
    state_NQ = _mix_64(state_N[:, None] + (positions_NQ + 1) * _GAMMA)
    tokens_V = torch.arange(1, vocab_size + 1, dtype=torch.int32, device=row_ids_N.device) * _GAMMA_32
    states_M1 = state_NQ.reshape(-1, 1)
    step = max(1, _CHUNK // vocab_size)
    parts = [_gumbel(_hash(tokens_V, states_M1[at : at + step])) for at in range(0, len(states_M1), step)]
    noise_MV = parts[0] if len(parts) == 1 else torch.cat([*parts, tokens_V.new_empty(0, vocab_size).float()])
    return noise_MV.view(*positions_NQ.shape, vocab_size)


def _mix_64(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30, 64)) * _MULTIPLIERS_64[0]
    x = (x ^ _shift_right(x, 27, 64)) * _MULTIPLIERS_64[1]
    return x ^ _shift_right(x, 31, 64)


def _shift_right(x: Tensor, count: int, bits: int) -> Tensor:
    """Shift that fills with zeros; torch's own fills with the sign."""
    return (x >> count).bitwise_and_((1 << (bits - count)) - 1)


def _hash(tokens_V: Tensor, states_M1: Tensor) -> Tensor:
    """(M, V) int32 from spread vocabulary ids and the 64-bit state of each position."""
    first_M1, second_M1 = states_M1.to(torch.int32), _shift_right(states_M1, 32, 64).to(torch.int32)
    x = tokens_V ^ first_M1
    x = x.bitwise_xor_(_shift_right(x, 16, 32)).mul_(_MULTIPLIERS_32[0]).bitwise_xor_(second_M1)
    x = x.bitwise_xor_(_shift_right(x, 15, 32)).mul_(_MULTIPLIERS_32[1])
    x = x.bitwise_xor_(_shift_right(x, 16, 32)).mul_(_MULTIPLIERS_32[2])
    return x.bitwise_xor_(_shift_right(x, 15, 32))


def _gumbel(bits: Tensor) -> Tensor:
    """Gumbel noise from uniform bits, by way of exponential noise.

    The largest values belong to small uniform numbers, which fp32 resolves to 31 bits; they reach 22.2.
    """
    uniform = bits.bitwise_and_((1 << _UNIFORM_BITS) - 1).float().add_(0.5).mul_(2.0**-_UNIFORM_BITS)
    return uniform.clamp_(max=_ALMOST_1).neg_().log1p_().neg_().log_().neg_()


class NoiseBuffer:
    """The noise of the next positions of each row, kept until they are committed: none is computed twice.

    A ring of K positions for each of L slots. What it holds is tracked on the host, so that filling it asks the
    device for nothing.

    Args:
        seed: of the noise.
        num_slots: L.
        width: K, most positions that a round looks at.
        vocab_size: V.
        device: where the noise lives.
        ahead: if any position is missing, at least so many are computed, up to K.
    """

    def __init__(self, seed: int, num_slots: int, width: int, vocab_size: int, device: torch.device, *, ahead: int = 1):
        self.seed = seed
        self._ahead = min(ahead, width)
        self.width = width
        self.ring_LKV = torch.zeros(num_slots, width, vocab_size, dtype=torch.float32, device=device)
        self._known_L = torch.full((num_slots,), _EVERYTHING)  # on the host: positions below it are in the ring

    def reset(self, slots_M: Tensor) -> None:
        """New rows start at position 0 in these slots (on the host)."""
        self._known_L[slots_M] = 0

    def retire(self, slots_M: Tensor) -> None:
        """These slots (on the host) need no noise."""
        self._known_L[slots_M] = _EVERYTHING

    def move(self, source_M: Tensor, target_M: Tensor) -> None:
        """The rows of some slots go to others (on the host)."""
        self._known_L[target_M] = self._known_L[source_M]
        device = self.ring_LKV.device
        source_M, target_M = source_M.to(device, non_blocking=True), target_M.to(device, non_blocking=True)
        self.ring_LKV[target_M] = self.ring_LKV[source_M]

    def prepare(self, written_N: Tensor, row_ids_N: Tensor, count: int) -> None:
        """Compute what is missing of the next ``count`` positions of slots 0 … N - 1.

        Args:
            written_N: (N,) on the host, the first position of each.
            row_ids_N: (N,) on the device.
            count: at most K.
        """
        known_N = self._known_L[: len(written_N)]
        if not bool((known_N < written_N + count).any()):
            return
        until_N = written_N + max(count, self._ahead)
        missing_N = (until_N - known_N).clamp_(min=0)
        total = int(missing_N.sum())
        rows_M = torch.arange(len(missing_N)).repeat_interleave(missing_N, output_size=total)
        starts_N = missing_N.cumsum(0) - missing_N
        positions_M = torch.arange(total) - starts_N[rows_M] + known_N[rows_M]
        self._known_L[: len(written_N)] = torch.maximum(known_N, until_N)
        device = self.ring_LKV.device
        rows_M, positions_M = rows_M.to(device, non_blocking=True), positions_M.to(device, non_blocking=True)
        vocab_size = self.ring_LKV.shape[-1]
        step = max(1, _CHUNK // vocab_size)
        for at in range(0, total, step):
            rows_m, positions_m = rows_M[at : at + step], positions_M[at : at + step]
            noise_mV = gumbel_noise(self.seed, row_ids_N[rows_m], positions_m[:, None], vocab_size)[:, 0]
            self.ring_LKV[rows_m, positions_m % self.width] = noise_mV
