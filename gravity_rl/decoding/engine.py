"""Entry point of decoding: checks arguments, prefills, runs the chosen step until all rows have ended.

Shapes: R rows, P padded prompt tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding.ar import ar_step
from gravity_rl.decoding.loop import Proposal, Responses, decode
from gravity_rl.decoding.prefill import prefill
from gravity_rl.decoding.rows import LiveRows, check_attention
from gravity_rl.decoding.sampling import Sampler
from gravity_rl.decoding.self_spec import self_spec_round
from gravity_rl.decoding.stats import DecodeStats

METHODS = ("ar", "self_spec")
#: Below it, fp32 logits over the temperature could overflow; the choice would be the greedy one anyway.
MIN_TEMPERATURE = 1e-6


@dataclass(frozen=True)
class Decoded:
    """Responses in the order of the inputs, on the model's device."""

    sequences: list[Tensor]
    """Token ids of each response, int64, without padding; the last is an EOS token unless it was cut at the limit."""
    logprobs: list[Tensor]
    """fp32 log-probability of each token over the whole vocabulary, at the sampling temperature (1 if greedy)."""
    row_stats: list[DecodeStats]
    """What each response took; ``DecodeStats.total`` sums any of them."""

    @property
    def stats(self) -> DecodeStats:
        """The sum over all rows."""
        return DecodeStats.total(self.row_stats)


@torch.no_grad()
def generate(
    model: GlmOcrForConditionalGeneration,
    inputs: Mapping[str, Tensor],
    *,
    method: Literal["ar", "self_spec"],
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
    banned_token_ids: Sequence[int] = (),
    block_size: int = 16,
    mask_id: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    row_ids: Sequence[int] | None = None,
) -> Decoded:
    """Write a response to every prompt.

    Nothing else is read from the model's generation configuration. Train mode is restored afterwards.

    Args:
        model: the policy, unwrapped; with sdpa or eager attention in the text tower.
        inputs: what the processor returns for R left-padded prompts: ``input_ids``, ``attention_mask`` and
            ``mm_token_type_ids``, (R, P) each; ``pixel_values`` and ``image_grid_thw`` if there are images.
        method: "ar" for one token a forward, "self_spec" for drafts and their verification.
        max_new_tokens: length limit of a response, EOS included.
        eos_token_ids: tokens that end a response; none to always write up to the limit.
        banned_token_ids: tokens that are never chosen. They keep their share of the reported log-probabilities.
        block_size: B, tokens drafted at once by "self_spec".
        mask_id: the mask token, needed by "self_spec".
        temperature: of sampling, at least ``MIN_TEMPERATURE``; 0 takes the most probable token.
        seed: of sampling.
        row_ids: what the noise of each row depends on; 0 … R - 1 by default. Equal prompts need different ones.

    Raises:
        TypeError: the model is no ``GlmOcrForConditionalGeneration``.
        ValueError: an argument is out of range; the message names it.
        FloatingPointError: the model's logits are not finite.
    """
    if not isinstance(model, GlmOcrForConditionalGeneration):
        raise TypeError(f"model: decoding takes a GlmOcrForConditionalGeneration, not {type(model).__name__}")
    check_attention(model)
    if "input_ids" not in inputs:
        raise ValueError("inputs lack input_ids")
    num_rows = len(inputs["input_ids"])
    if row_ids is None:
        row_ids = range(num_rows)
    _check_arguments(method, block_size, max_new_tokens, temperature)
    vocab_size = model.config.text_config.vocab_size
    _check_ids(vocab_size, eos_token_ids, banned_token_ids, mask_id)
    if len(row_ids) != num_rows:
        raise ValueError(f"row_ids: {len(row_ids)} of them for {num_rows} rows")

    as_tensor = partial(torch.tensor, dtype=torch.long, device=model.device)
    sampler = Sampler(temperature, seed, as_tensor(list(banned_token_ids)), vocab_size)
    step: Callable[[LiveRows], Proposal]
    if method == "ar":
        block_size = 0
        step = partial(ar_step, model, sampler=sampler)
    elif mask_id is None:
        raise ValueError("mask_id: drafting needs the id of the mask token")
    else:
        step = partial(self_spec_round, model, sampler=sampler, block_size=block_size, mask_id=mask_id)
    responses = Responses(num_rows, max_new_tokens, block_size, model.device)
    with _eval_mode(model):
        rows = prefill(model, inputs, as_tensor(list(row_ids)), room=max_new_tokens + block_size)
        decode(rows, step, responses, as_tensor(list(eos_token_ids)), max_new_tokens)
    return _collect(responses)


def _check_arguments(method: str, block_size: int, max_new_tokens: int, temperature: float) -> None:
    if method not in METHODS:
        raise ValueError(f"method: {method!r} is none of {', '.join(METHODS)}")
    if block_size < 1:
        raise ValueError(f"block_size: {block_size} is below 1")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: {max_new_tokens} is below 1")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature: {temperature} is no finite number from 0 up")
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(f"temperature: {temperature} is below {MIN_TEMPERATURE}; 0 takes the most probable token")


def _check_ids(vocab_size: int, eos: Sequence[int], banned: Sequence[int], mask_id: int | None) -> None:
    named = {"eos_token_ids": eos, "banned_token_ids": banned, "mask_id": () if mask_id is None else (mask_id,)}
    for name, ids in named.items():
        outside = [token for token in ids if not 0 <= token < vocab_size]
        if outside:
            raise ValueError(f"{name}: {outside} are outside of the vocabulary of {vocab_size}")
    both = sorted(set(eos) & set(banned))
    if both:
        raise ValueError(f"banned_token_ids: {both} are also in eos_token_ids, so no response could end in them")
    if len(set(banned)) == vocab_size:
        raise ValueError("banned_token_ids: the whole vocabulary is banned")


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module is in the mode it was in, which may differ between modules."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _collect(responses: Responses) -> Decoded:
    """Cut the buffers at each row's length."""
    written = torch.arange(responses.ids.shape[1], device=responses.ids.device) < responses.lengths_R[:, None]
    broken = (written & ~responses.logprobs.isfinite()).any(1).nonzero()[:, 0].tolist()
    if broken:
        raise FloatingPointError(f"the model's logits are not finite in rows {broken}")
    row_stats = responses.stats()
    lengths = [stats.tokens for stats in row_stats]
    return Decoded(
        sequences=[row[:length].clone() for row, length in zip(responses.ids, lengths, strict=True)],
        logprobs=[row[:length].clone() for row, length in zip(responses.logprobs, lengths, strict=True)],
        row_stats=row_stats,
    )
