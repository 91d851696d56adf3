"""What is chosen from logits and noise, against transformers' warpers; reported log-probabilities ignore the rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding_helpers import chi_square_p
from torch import Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from gravity_rl.decoding import sampling
from gravity_rl.decoding.noise import NoiseBuffer
from gravity_rl.decoding.sampling import Sampler

NOTHING = torch.tensor([], dtype=torch.long)
RULES: list[dict[str, Any]] = [
    {"top_p": 0.5}, {"top_p": 0.9}, {"top_p": 1e-6}, {"top_k": 1}, {"top_k": 5}, {"top_k": 10**6}, {"min_p": 0.1},
    {"min_p": 1.0}, {"top_k": 9, "top_p": 0.8}, {"top_k": 7, "min_p": 0.05}, {"top_k": 9, "top_p": 0.8, "min_p": 0.2},
]  # fmt: skip


def logits(rows: int, width: int, vocab: int, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, width, vocab, generator=torch.Generator().manual_seed(5))


def noise(rows: int, width: int, vocab: int, seed: int = 0) -> Tensor:
    """The first positions of each row."""
    buffer = NoiseBuffer(seed, rows, width, vocab, torch.device("cpu"))
    buffer.reset(torch.arange(rows))
    buffer.prepare(torch.zeros(rows, dtype=torch.long), torch.arange(rows), width)
    return buffer.ring_LKV


def warped(scores: Tensor, rules: dict[str, Any]) -> Tensor:
    """The scores as transformers' sampling would have them, in its order."""
    if rules.get("top_k"):
        scores = TopKLogitsWarper(rules["top_k"])(None, scores)
    if "top_p" in rules:
        scores = TopPLogitsWarper(rules["top_p"])(None, scores)
    return MinPLogitsWarper(rules["min_p"])(None, scores) if rules.get("min_p") else scores


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_rules_are_those_of_transformers(rules: dict[str, Any], temperature: float) -> None:
    rows, width, vocab = 12, 3, 40
    given, drawn = logits(rows, width, vocab), noise(rows, width, vocab)
    banned = torch.tensor([3, 17])
    places = torch.arange(width).expand(rows, -1)
    chosen, logprobs = Sampler(temperature, banned, **rules).choose(given, drawn, places)
    scores = (given / temperature).index_fill(-1, banned, float("-inf")).view(-1, vocab)
    expected = (warped(scores, rules).view_as(given) + drawn).argmax(-1)
    assert torch.equal(chosen, expected)
    whole = (given / temperature).log_softmax(-1).gather(-1, expected[..., None])[..., 0]
    torch.testing.assert_close(logprobs, whole, atol=1e-6, rtol=0)
    free = Sampler(temperature, banned).choose(given, drawn, places)[0]
    assert torch.equal(chosen, free) == (rules == {"top_k": 10**6})  # every other rule changes some choice here


@pytest.mark.parametrize("rules", [{}, *RULES[:1], *RULES[-1:]], ids=str)
def test_greedy_choice_ignores_rules_but_not_bans(rules: dict[str, Any]) -> None:
    given = logits(5, 2, 30)
    best = given.argmax(-1)
    banned = best.flatten().unique()
    chosen, logprobs = Sampler(0.0, NOTHING, **rules).choose(given, None, torch.zeros(5, 2, dtype=torch.long))
    assert torch.equal(chosen, best)
    torch.testing.assert_close(logprobs, given.log_softmax(-1).amax(-1))
    chosen, _ = Sampler(0.0, banned, **rules).choose(given, None, torch.zeros(5, 2, dtype=torch.long))
    assert torch.equal(chosen, given.index_fill(-1, banned, float("-inf")).argmax(-1))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given, drawn = logits(7, 3, 50), noise(7, 8, 50)
    places = torch.tensor([0, 5, 2, 4, 5, 1, 3])[:, None] + torch.arange(3)
    sampler = Sampler(0.9, torch.tensor([1]), top_p=0.9)
    whole = sampler.choose(given, drawn, places)
    for chunk in (1, 50, 100, 250, 999):
        monkeypatch.setattr(sampling, "CHUNK", chunk)
        assert all(map(torch.equal, sampler.choose(given, drawn, places), whole))


def test_the_noise_of_a_position_is_found_in_the_ring() -> None:
    """Equal logits: the choice is the largest noise of (row, position modulo the ring)."""
    drawn = noise(3, 4, 20)
    before = drawn.clone()
    places = torch.tensor([[0, 1], [3, 4], [9, 10]])
    chosen, _ = Sampler(1.0, NOTHING).choose(torch.zeros(3, 2, 20), drawn, places)
    assert chosen.tolist() == [
        [int(drawn[row, place % 4].argmax()) for place in line] for row, line in enumerate(places.tolist())
    ]
    assert torch.equal(drawn, before)  # the next round reads it again


def test_low_precision_logits_are_handled_as_fp32() -> None:
    given = logits(4, 2, 30).bfloat16()
    drawn = noise(4, 2, 30)
    places = torch.arange(2).expand(4, -1)
    low, high = (Sampler(0.8, NOTHING).choose(tensor, drawn, places) for tensor in (given, given.float()))
    assert all(map(torch.equal, low, high))
    assert low[1].dtype == torch.float32


@pytest.mark.parametrize(("rules", "kept"), [
    ({}, [0, 1, 2, 3, 5]), ({"top_k": 3}, [0, 1, 3]), ({"top_p": 0.8}, [0, 3]), ({"min_p": 0.2}, [0, 3]),
])  # fmt: skip
def test_samples_follow_the_softmax_of_what_is_kept(rules: dict[str, Any], kept: list[int]) -> None:
    """Chi-square of 40,000 draws from a small vocabulary at temperature 0.7."""
    six = torch.tensor([1.0, 0.3, -0.5, 2.0, 0.0, -2.0])
    banned = torch.tensor([4])
    rows, width = 400, 100
    sampler = Sampler(0.7, banned, **rules)
    chosen, _ = sampler.choose(
        six.expand(rows, width, 6), noise(rows, width, 6, 3), torch.arange(width).expand(rows, -1)
    )
    counts = chosen.flatten().bincount(minlength=6)
    outside = torch.tensor([token not in kept for token in range(6)])
    expected = (six / 0.7).masked_fill(outside, float("-inf")).softmax(0)
    assert not counts[outside].any()
    assert chi_square_p(counts[kept], expected[kept]) > 1e-4
