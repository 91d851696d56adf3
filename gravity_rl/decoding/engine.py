"""Entry point of decoding: checks arguments, sets up the batch, lets the scheduler run it.

Shapes: R rows, P padded prompt tokens.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Real
from operator import index
from pathlib import Path
from typing import Literal, SupportsIndex

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding.ar import ar_step
from gravity_rl.decoding.attention import check_attention, fast_text_tower
from gravity_rl.decoding.cache import RaggedCache, full_visibility
from gravity_rl.decoding.cost import CostModel
from gravity_rl.decoding.loop import Proposal, Responses
from gravity_rl.decoding.memory import MemoryPlan, naming_the_knob, noise_ahead, noise_width, plan_memory
from gravity_rl.decoding.noise import NoiseBuffer
from gravity_rl.decoding.prompts import Prompts
from gravity_rl.decoding.rows import Rows
from gravity_rl.decoding.sampling import Sampler
from gravity_rl.decoding.scheduler import Scheduler
from gravity_rl.decoding.self_spec import self_spec_round
from gravity_rl.decoding.stats import BatchStats, DecodeStats
from gravity_rl.decoding.window import AutoWindow, FixedWindow, WindowPolicy, ladder
from gravity_rl.joint.drafter import BlockDiffusion, require_drafter

METHODS = ("ar", "self_spec")
#: Below it, fp32 logits over the temperature could overflow; the choice would be the greedy one anyway.
MIN_TEMPERATURE = 1e-6
_MOST = 2**53  # of lengths and counts
_KEY_STEP = 64  # visible places are a multiple of it where forwards may be captured

#: What is known of the speed of each model of this process, so that a second call starts where the first ended.
_COST_MODELS: weakref.WeakKeyDictionary[nn.Module, CostModel] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Decoded:
    """Responses in the order of the inputs, on the model's device."""

    sequences: list[Tensor]
    """Token ids of each response, int64, without padding; the last is an EOS token unless it was cut at the limit."""
    logprobs: list[Tensor]
    """fp32 log-probability of each token over the whole vocabulary, at the sampling temperature (1 if greedy)."""
    row_stats: list[DecodeStats]
    """What each response took; ``DecodeStats.total`` sums any of them."""
    stats: BatchStats
    """What the call took."""


def generate(
    model: GlmOcrForConditionalGeneration,
    inputs: Mapping[str, Tensor],
    *,
    method: Literal["ar", "self_spec"],
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
    banned_token_ids: Sequence[int] = (),
    block_size: int | Literal["auto"] = "auto",
    drafter: BlockDiffusion | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    seed: int = 0,
    row_ids: Sequence[int] | None = None,
    max_live_rows: int | None = None,
    cost_model: CostModel | None = None,
) -> Decoded:
    """Write a response to every prompt.

    Nothing else is read from the model's generation configuration. Train mode is restored afterwards.

    Args:
        model: the policy, unwrapped and not sharded; with sdpa or eager attention in the text tower.
        inputs: what the processor returns for R left-padded prompts: ``input_ids``, ``attention_mask`` and
            ``mm_token_type_ids``, (R, P) each; ``pixel_values`` and ``image_grid_thw`` if there are images. Rows with
            equal prompts share one prefill.
        method: "ar" for one token a forward, "self_spec" for drafts and their verification.
        max_new_tokens: length limit of a response, EOS included.
        eos_token_ids: tokens that end a response; none to always write up to the limit.
        banned_token_ids: tokens that are never chosen. They keep their share of the reported log-probabilities.
        block_size: tokens drafted in a round by "self_spec"; "auto" chooses for each round what is fastest, up to the
            block size of the drafter. The tokens do not depend on it.
        drafter: of the model; None reads ``block_diffusion.json`` in the folder that the model was loaded from.
        temperature: of sampling, at least ``MIN_TEMPERATURE``; 0 takes the most probable token.
        top_p: sample among the most probable tokens that together reach this probability; 1 for all.
        top_k: sample among that many of the most probable tokens; 0 for all.
        min_p: sample among tokens at least so probable, relative to the most probable one; 0 for all.
        seed: of sampling.
        row_ids: what the noise of each row depends on; 0 … R - 1 by default. Equal prompts need different ones.
        max_live_rows: rows decoded at once, which bounds memory; others wait and take the places of rows that have
            ended. None decodes all at once. The tokens do not depend on it.
        cost_model: what "auto" knows of the model's speed and acceptance, and learns; None keeps one for each model.

    Raises:
        TypeError: the model is no ``GlmOcrForConditionalGeneration``.
        ValueError: an argument is out of range; the message names it.
        gravity_rl.model.ModelError: the model was not loaded from a folder with a drafter.
        gravity_rl.decoding.DecodeMemoryError: out of memory; the message says what was planned and what to lower.
        FloatingPointError: the model's logits are not finite.
    """
    if not isinstance(model, GlmOcrForConditionalGeneration):
        raise TypeError(f"model: decoding takes a GlmOcrForConditionalGeneration, not {type(model).__name__}")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError("model: its weights are sharded (FSDP or tensor parallel), decoding takes a whole model")
    check_attention(model)
    _check_arguments(method, block_size, max_new_tokens, max_live_rows)
    eos_token_ids = _whole_numbers("eos_token_ids", eos_token_ids)
    banned_token_ids = _whole_numbers("banned_token_ids", banned_token_ids)
    (seed,) = _whole_numbers("seed", [seed])
    _check_sampling(temperature, top_p, top_k, min_p)
    vocab_size = model.config.text_config.vocab_size
    policy, mask_id, max_block = _drafting(model, method, block_size, drafter, cost_model)
    _check_ids(vocab_size, eos_token_ids, banned_token_ids, mask_id)
    prompts = Prompts(inputs, model.device)
    prompts.check_ids(vocab_size)
    row_ids = _whole_numbers("row_ids", range(len(prompts)) if row_ids is None else row_ids)
    if len(row_ids) != len(prompts):
        raise ValueError(f"row_ids: {len(row_ids)} of them for {len(prompts)} rows")
    if not all(-(1 << 63) <= row_id < 1 << 63 for row_id in row_ids):
        raise ValueError("row_ids: all of them must fit into 64 bits")

    slots = min(len(prompts), max_live_rows or len(prompts))
    plan = plan_memory(
        model.config,
        model.dtype,
        rows=len(prompts),
        slots=slots,
        longest_prompt=max(prompts.lengths),
        max_new_tokens=max_new_tokens,
        max_block=max_block,
        sampled=temperature > 0,
        filtered=temperature > 0 and (top_p < 1 or top_k > 0 or min_p > 0),
    )
    as_tensor = partial(torch.tensor, dtype=torch.long, device=model.device)
    sampler = Sampler(temperature, as_tensor(list(banned_token_ids)), top_p, top_k, min_p)
    # Inference mode: without the bookkeeping of autograd, short forwards take a tenth less.
    with naming_the_knob(plan), _eval_mode(model), fast_text_tower(model), torch.inference_mode():
        responses = Responses(len(prompts), max_new_tokens, max_block, model.device)
        noise = None
        if temperature > 0:
            width, ahead = noise_width(max_block, vocab_size), noise_ahead(vocab_size)
            noise = NoiseBuffer(seed, slots, width, vocab_size, model.device, ahead=ahead)
        key_step = 1 if model.device.type == "cpu" else _KEY_STEP
        scheduler = Scheduler(
            model,
            prompts,
            torch.tensor(list(row_ids), dtype=torch.long),
            step=partial(_step, model, sampler, mask_id),
            policy=policy,
            noise=noise,
            responses=responses,
            eos_ids=as_tensor(list(eos_token_ids)),
            max_new_tokens=max_new_tokens,
            cache=RaggedCache(slots, plan.places, model.device, key_step=key_step),
            visibility=full_visibility,
        )
        scheduler.run()
    with naming_the_knob(plan), torch.no_grad():
        return _collect(responses, scheduler, policy, plan)


def _drafting(
    model: GlmOcrForConditionalGeneration,
    method: str,
    block_size: int | Literal["auto"],
    drafter: BlockDiffusion | None,
    cost_model: CostModel | None,
) -> tuple[WindowPolicy, int | None, int]:
    """Who chooses windows, the mask token, and the largest window."""
    if method == "ar":
        return FixedWindow(0), None, 0
    if drafter is None:
        drafter = require_drafter(Path(model.config.name_or_path), model.get_input_embeddings().num_embeddings)
    _check_whole("drafter.bd_size", drafter.bd_size, 1)
    if block_size != "auto":
        return FixedWindow(block_size), drafter.mask_id, block_size
    if cost_model is None:
        cost_model = _COST_MODELS.setdefault(model, CostModel())
    return AutoWindow(cost_model, ladder(drafter.bd_size)), drafter.mask_id, drafter.bd_size


def _step(
    model: GlmOcrForConditionalGeneration,
    sampler: Sampler,
    mask_id: int | None,
    rows: Rows,
    noise_LKV: Tensor | None,
    block_size: int,
) -> Proposal:
    """A round with this window, an AR step without one."""
    if not block_size or mask_id is None:
        return ar_step(model, rows, sampler, noise_LKV)
    return self_spec_round(model, rows, sampler, noise_LKV, block_size, mask_id)


def _check_arguments(method: str, block_size: int | str, max_new_tokens: int, max_live_rows: int | None) -> None:
    if method not in METHODS:
        raise ValueError(f"method: {method!r} is none of {', '.join(METHODS)}")
    if block_size != "auto":
        _check_whole("block_size", block_size, 1, "'auto' or ")
    _check_whole("max_new_tokens", max_new_tokens, 1)
    if max_live_rows is not None:
        _check_whole("max_live_rows", max_live_rows, 1)


def _check_whole(name: str, value: object, least: int, other: str = "") -> None:
    if not isinstance(value, SupportsIndex) or isinstance(value, bool) or not least <= index(value) <= _MOST:
        raise ValueError(f"{name}: {value!r} is not {other}a whole number from {least} to {_MOST}")


def _whole_numbers(name: str, values: Iterable[object]) -> list[int]:
    """The numbers as ints, whatever holds them."""
    try:
        return [index(value) for value in values]  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name}: {values!r} is not made of whole numbers") from None


def _check_sampling(temperature: float, top_p: float, top_k: int, min_p: float) -> None:
    for name, value in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        if not isinstance(value, Real):
            raise ValueError(f"{name}: {value!r} is no number")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature: {temperature} is no finite number from 0 up")
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(f"temperature: {temperature} is below {MIN_TEMPERATURE}; 0 takes the most probable token")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: {top_p} is not above 0 and at most 1")
    _check_whole("top_k", top_k, 0)
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p: {min_p} is not between 0 and 1")


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
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _collect(responses: Responses, scheduler: Scheduler, policy: WindowPolicy, plan: MemoryPlan) -> Decoded:
    """Cut the buffers at each row's length. Clones made outside of inference mode are tensors like any other."""
    row_stats = responses.stats()
    drafting = sum(count for block_size, count in scheduler.rounds.items() if block_size)
    stats = BatchStats(
        rows=DecodeStats.total(row_stats),
        rounds=sum(scheduler.rounds.values()),
        draft_forwards=drafting,
        verify_forwards=drafting,
        ar_forwards=scheduler.rounds[0],
        prefills=scheduler.prefills,
        prefill_forwards=scheduler.prefill_forwards,
        seconds=scheduler.seconds,
        choices=list(policy.choices),
        memory=plan.total,
    )
    return Decoded(
        sequences=[row[: counts.tokens].clone() for row, counts in zip(responses.ids, row_stats, strict=False)],
        logprobs=[row[: counts.tokens].clone() for row, counts in zip(responses.logprobs, row_stats, strict=False)],
        row_stats=row_stats,
        stats=stats,
    )
