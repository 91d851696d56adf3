"""Gumbel noise as a pure function of (seed, row id, response position, vocabulary id).

Adding Gumbel noise to logits and taking the argmax draws from their softmax. When the noise of a position does not
depend on how the position was reached, two decoders that compute the same logits draw the same token: batch
composition, window size and method change nothing, and a drafter that shares the verifier's noise agrees with its
samples more often. No generator state is kept; a counter goes through the finaliser of splitmix64 (Steele, Lea and
Flood 2014) on int64 tensors, whose products wrap around.

Shapes: N rows, Q positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The 64 low bits of a number, as torch's signed int64 holds them."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)
_UNIFORM_BITS = 52


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
    state_N = _mix(_mix(torch.full_like(row_ids_N, _signed(seed)) + _GAMMA) + (row_ids_N + 1) * _GAMMA)
    state_NQ = _mix(state_N[:, None] + (positions_NQ + 1) * _GAMMA)
    counter_V = torch.arange(1, vocab_size + 1, device=row_ids_N.device) * _GAMMA
    return _gumbel(_mix(state_NQ[..., None] + counter_V))


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIER_1
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIER_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift that fills with zeros; torch's own fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _gumbel(bits: Tensor) -> Tensor:
    """Gumbel noise from 64 uniform bits. 52 of them, plus one half, are exact in fp64: neither 0 nor 1 can occur."""
    uniform = (_shift_right(bits, 64 - _UNIFORM_BITS).double() + 0.5) * 2.0**-_UNIFORM_BITS
    return -(-uniform.log()).log().float()
