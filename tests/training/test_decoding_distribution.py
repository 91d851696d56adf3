"""The distribution of whole responses: against exact probabilities, and against the sampling of transformers.

A vocabulary of eight tokens, half of them banned, and responses of at most four tokens: all of them can be listed with
their probabilities, from plain forwards of the model. 20,000 rows with one prompt then are a sample.
"""

from __future__ import annotations

import copy
import itertools
from functools import cache
from typing import Any

import pytest
import torch
from decoding_helpers import chi_square_p, two_sample_p, use_windows, varied_policy
from torch import Tensor
from transformers import (
    GenerationConfig,
    GlmOcrForConditionalGeneration,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from gravity_rl.decoding import Decoded, generate
from gravity_rl.joint.drafter import BlockDiffusion

ROWS, LENGTH, VOCAB = 20_000, 4, 8
#: temperatures at which the model is peaked or flat
PEAKED, FLAT = 1.0, 5.0
LEAST_P = 1e-4
#: the last one ends a response; other tokens are banned
ALPHABET = [4, 5, 6, 7]
BANNED = [0, 1, 2, 3]
DRAFTER = BlockDiffusion(bd_size=3, mask_id=2, ar_loss_weight=1.0, mask_schedule="uniform")
PROMPT = torch.tensor([[5, 4, 6, 6, 5, 3]])


@cache
def small_model() -> GlmOcrForConditionalGeneration:
    """A copy of the untrained model with eight tokens."""
    model = copy.deepcopy(varied_policy()[0])
    model.resize_token_embeddings(VOCAB)
    return model


@cache
def responses() -> list[tuple[int, ...]]:
    """All that can be written, as indices into the alphabet."""
    end = len(ALPHABET) - 1
    whole = itertools.product(range(end + 1), repeat=LENGTH)
    return sorted({word[: word.index(end) + 1] if end in word else word for word in whole})


def warped(scores: Tensor, rules: dict[str, Any]) -> Tensor:
    for name, warper in (("top_k", TopKLogitsWarper), ("top_p", TopPLogitsWarper), ("min_p", MinPLogitsWarper)):
        if name in rules:
            scores = warper(rules[name])(None, scores)
    return scores


@cache
def _probabilities(temperature: float, rules: tuple[tuple[str, Any], ...]) -> Tensor:
    model = small_model()
    beginnings = list(itertools.product(range(len(ALPHABET)), repeat=LENGTH - 1))
    words = torch.tensor(ALPHABET)[torch.tensor(beginnings)]
    with torch.no_grad():
        logits = model(input_ids=torch.cat([PROMPT.expand(len(words), -1), words], 1)).logits[:, -LENGTH:]
    scores = (logits / temperature).index_fill(-1, torch.tensor(BANNED), float("-inf"))
    steps = warped(scores.flatten(0, 1), dict(rules)).view_as(scores).log_softmax(-1)[..., ALPHABET]
    after = {
        beginning[:at]: steps[place, at] for place, beginning in enumerate(beginnings) for at in range(LENGTH)
    }  # log-probabilities of the next token, by what comes before it
    return torch.stack(
        [sum((after[word[:at]][token] for at, token in enumerate(word)), torch.zeros(())) for word in responses()]
    ).exp()


def probabilities(temperature: float, rules: dict[str, Any]) -> Tensor:
    """Of each response, from plain forwards and transformers' warpers."""
    return _probabilities(temperature, tuple(rules.items()))


def counts_of(sequences: list[list[int]]) -> Tensor:
    places = {tuple(ALPHABET[token] for token in word): place for place, word in enumerate(responses())}
    return torch.tensor([places[tuple(sequence)] for sequence in sequences]).bincount(minlength=len(places))


def sample(temperature: float, seed: int = 11, **rules: Any) -> Decoded:
    return _sample(temperature, seed, tuple(rules.items()))


@cache
def _sample(temperature: float, seed: int, rules: tuple[tuple[str, Any], ...]) -> Decoded:
    inputs = {
        "input_ids": PROMPT.expand(ROWS, -1),
        "attention_mask": torch.ones(ROWS, PROMPT.shape[1], dtype=torch.long),
        "mm_token_type_ids": torch.zeros(ROWS, PROMPT.shape[1], dtype=torch.long),
    }
    return generate(
        small_model(), inputs, method="self_spec", drafter=DRAFTER, block_size=2, max_new_tokens=LENGTH,
        eos_token_ids=ALPHABET[-1:], banned_token_ids=BANNED, temperature=temperature, seed=seed, max_live_rows=15_000,
        **dict(rules),
    )  # fmt: skip


def assert_distributed(decoded: Decoded, expected: Tensor) -> None:
    assert expected.sum().item() == pytest.approx(1, abs=1e-4)
    counts = counts_of([sequence.tolist() for sequence in decoded.sequences])
    assert chi_square_p(counts, expected) > LEAST_P


@pytest.mark.parametrize(("temperature", "rules"), [
    (PEAKED, {}), (FLAT, {}), (FLAT, {"top_p": 0.8, "top_k": 3}), (FLAT, {"min_p": 0.3}),
], ids=str)  # fmt: skip
def test_exact_probabilities(temperature: float, rules: dict[str, Any]) -> None:
    decoded = sample(temperature, **rules)
    assert_distributed(decoded, probabilities(temperature, rules))
    counts = decoded.stats.rows
    assert counts.accepted_drafts > ROWS / 10  # both paths carry weight
    assert counts.tested - counts.accepted_drafts > ROWS / 10
    assert counts.accepted[0] > ROWS / 20
    assert counts.accepted[1] > ROWS / 20


def test_the_models_are_peaked_and_flat() -> None:
    peaked, flat = (probabilities(temperature, {}).amax() for temperature in (PEAKED, FLAT))
    assert peaked > 4 * flat


def test_windows_that_change_with_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window may depend on anything but noise that is still to come, such as how many rows have ended."""
    policy = use_windows(monkeypatch, lambda at, live: (1, 0, 3)[at % 3 if live > 2_000 else 1], largest=3)
    assert_distributed(sample(FLAT, seed=12), probabilities(FLAT, {}))
    assert {window for window, _ in policy.chosen} == {0, 1, 3}


@pytest.mark.parametrize(("temperature", "rules"), [(PEAKED, {}), (FLAT, {"top_p": 0.8, "top_k": 3})], ids=str)
def test_samples_of_transformers(temperature: float, rules: dict[str, Any]) -> None:
    model = small_model()
    config = GenerationConfig(
        do_sample=True, temperature=temperature, max_new_tokens=LENGTH, suppress_tokens=BANNED,
        eos_token_id=ALPHABET[-1], pad_token_id=0, **({"top_k": 0} | rules),
    )  # fmt: skip
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        generated = model.generate(input_ids=PROMPT.expand(ROWS, -1), generation_config=config)
    written = generated[:, PROMPT.shape[1] :].tolist()
    end = ALPHABET[-1]
    theirs = counts_of([word[: word.index(end) + 1] if end in word else word for word in written])
    ours = counts_of([sequence.tolist() for sequence in sample(temperature, **rules).sequences])
    assert two_sample_p(ours, theirs) > LEAST_P


def test_seeds_give_other_samples_of_the_same_distribution() -> None:
    first, second = (sample(FLAT, seed=seed) for seed in (11, 1))
    same = sum(map(torch.equal, first.sequences, second.sequences)) / ROWS
    chance = float((probabilities(FLAT, {}) ** 2).sum())
    assert same == pytest.approx(chance, abs=5 * (chance / ROWS) ** 0.5)
    assert_distributed(second, probabilities(FLAT, {}))


def test_neighbouring_rows_are_independent() -> None:
    """Pairs of first tokens of neighbouring rows, and of neighbouring positions of responses of equal first tokens."""
    sequences = [sequence.tolist() for sequence in sample(FLAT).sequences]
    first = torch.tensor([ALPHABET.index(sequence[0]) for sequence in sequences])
    pairs = (4 * first[:-1:2] + first[1::2]).bincount(minlength=16)
    share = first.double().new_zeros(4).index_add_(0, first, torch.ones(len(first), dtype=torch.double)) / len(first)
    assert chi_square_p(pairs, (share[:, None] * share).flatten()) > LEAST_P


def test_a_biased_sampler_would_be_noticed() -> None:
    """One response in ten from the peaked model is no sample of the flat one."""
    peaked, flat = probabilities(PEAKED, {}), probabilities(FLAT, {})
    draws = torch.multinomial(0.9 * flat + 0.1 * peaked, ROWS, True, generator=torch.Generator().manual_seed(0))
    assert chi_square_p(draws.bincount(minlength=len(flat)), flat) < LEAST_P
    unbiased = torch.multinomial(flat, ROWS, True, generator=torch.Generator().manual_seed(0))
    assert chi_square_p(unbiased.bincount(minlength=len(flat)), flat) > LEAST_P
