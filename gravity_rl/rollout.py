"""The engines that write a generation batch's completions, behind one small protocol.

``transformers`` is TRL's own path, for any model. ``ar`` and ``self_spec`` run ``gravity_rl.decoding`` on the live
policy: the same completions from both, since a sample is a function of the model, the prompt, the seed and the row id.
The seed follows from the run's seed and the generation's place in the run, the row id is the completion's place in the
whole generation batch, so that neither chunks nor the number of processes nor a resume changes what is drawn. Another
engine only has to implement :class:`RolloutEngine`. Used by ``gravity_rl.trainer``.

Shapes: N prompts of one process, P padded prompt tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.config import GravityConfig, parse_block_size
from gravity_rl.decoding import BatchStats, CostModel, DecodeMemoryError, DecodeStats, generate, plan_memory
from gravity_rl.joint.drafter import BlockDiffusion
from gravity_rl.parsing import ConfigError

logger = logging.getLogger(__name__)


class RolloutError(RuntimeError):
    """Completions cannot be generated for a reason that the user has to know."""


@dataclass(frozen=True)
class Prompts:
    """One process's share of a generation batch, as TRL tokenised it; a group's prompt is repeated.

    Attributes:
        ids: N unpadded lists of token ids.
        images: N lists of images or None; None if no prompt has one.
        fields: the processor's other output for the N prompts (``pixel_values``, ``mm_token_type_ids``, ...).
    """

    ids: list[list[int]]
    images: Sequence[Any] | None
    fields: dict[str, Any]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice) -> Prompts:
        """A part of the prompts.

        Raises:
            ConfigError: a field of the processor's output cannot be split by prompt.
        """
        images = None if self.images is None else self.images[rows]
        return Prompts(self.ids[rows], images, _slice_fields(self.fields, self.images, rows))


@dataclass(frozen=True)
class Completions:
    """Token ids of each completion, without padding, and what they took where the engine knows it.

    ``row_stats`` has one entry a completion, ``stats`` counts the forwards of the batch.
    """

    ids: list[list[int]]
    row_stats: list[DecodeStats] | None = None
    stats: BatchStats | None = None


class RolloutEngine(Protocol):
    """Writes the completions of one process's prompts with the current weights."""

    def generate(self, prompts: Prompts, *, seed: int, row_ids: Sequence[int]) -> Completions:
        """One completion for each prompt.

        Args:
            prompts: N prompts.
            seed: of this generation, the same on all processes.
            row_ids: (N,) places of the completions in the whole generation batch.
        """
        ...


class TransformersEngine:
    """TRL's own generation, ``rollout_batch_size`` completions at a time; draws from torch's global random state.

    Args:
        generate_ids: TRL's generation of some prompts' completions.
        args: gives ``rollout_batch_size``.
    """

    def __init__(self, generate_ids: Callable[[Prompts], list[list[int]]], args: GravityConfig):
        self.generate_ids, self.args = generate_ids, args

    def generate(self, prompts: Prompts, *, seed: int, row_ids: Sequence[int]) -> Completions:
        size = self.args.rollout_batch_size or len(prompts)
        if size >= len(prompts):
            return Completions(self.generate_ids(prompts))
        chunks = (prompts[start : start + size] for start in range(0, len(prompts), size))
        return Completions([ids for chunk in chunks for ids in self.generate_ids(chunk)])


class DecodingEngine:
    """``gravity_rl.decoding`` on the live weights; what it learns about the speed of forwards is kept.

    Args:
        policy: opens a context with the unwrapped policy, in which generation runs.
        args: method (``rollout``), window, sampling and ``rollout_batch_size``, completions that are live at once.
        pad_token_id: id for the left of shorter prompts, which nothing sees.
        eos_token_ids: ids that end a completion.
        banned_token_ids: ids that are never chosen.
        drafter: that of the start checkpoint, needed by ``self_spec``.
    """

    def __init__(
        self,
        policy: Callable[[], AbstractContextManager[GlmOcrForConditionalGeneration]],
        args: GravityConfig,
        *,
        pad_token_id: int,
        eos_token_ids: Sequence[int],
        banned_token_ids: Sequence[int],
        drafter: BlockDiffusion | None,
    ):
        self.policy, self.args, self.pad_token_id, self.drafter = policy, args, pad_token_id, drafter
        self.eos_token_ids, self.banned_token_ids = list(eos_token_ids), list(banned_token_ids)
        self.cost_model = CostModel()
        self._announced = False

    def generate(self, prompts: Prompts, *, seed: int, row_ids: Sequence[int]) -> Completions:
        """See :class:`RolloutEngine`.

        Raises:
            RolloutError: the device is out of memory, or the model's logits are not finite.
        """
        args = self.args
        try:
            with self.policy() as model:
                self._announce(model, prompts)
                out = generate(
                    model,
                    decoding_inputs(prompts, self.pad_token_id, model.device),
                    method=cast(Literal["ar", "self_spec"], args.rollout),
                    max_new_tokens=args.max_completion_length,
                    eos_token_ids=self.eos_token_ids,
                    banned_token_ids=self.banned_token_ids,
                    block_size=parse_block_size(args.rollout_block_size),
                    drafter=self.drafter,
                    temperature=args.temperature,
                    top_p=args.top_p,
                    top_k=args.top_k or 0,
                    min_p=args.min_p or 0.0,
                    seed=seed,
                    row_ids=row_ids,
                    max_live_rows=args.rollout_batch_size,
                    cost_model=self.cost_model,
                )
        except FloatingPointError as error:
            raise RolloutError(f"{error}: the weights are damaged, or training has diverged") from error
        except DecodeMemoryError as error:
            raise RolloutError(
                f"rollout_batch_size: {args.rollout_batch_size or len(prompts)} completions at once are too many for a "
                f"device, set it lower, or rollout_block_size or max_completion_length ({error})"
            ) from error
        return Completions([ids.tolist() for ids in out.sequences], out.row_stats, out.stats)

    def _announce(self, model: GlmOcrForConditionalGeneration, prompts: Prompts) -> None:
        """Say before the first generation what memory it may take."""
        if self._announced:
            return
        self._announced = True
        plan = plan_memory(
            model.config,
            model.dtype,
            rows=len(prompts),
            slots=min(len(prompts), self.args.rollout_batch_size or len(prompts)),
            longest_prompt=max(map(len, prompts.ids)),
            max_new_tokens=self.args.max_completion_length,
            max_block=self._max_block(),
            sampled=True,
            filtered=self.args.top_p < 1 or bool(self.args.top_k) or bool(self.args.min_p),
        )
        logger.info("rollouts: %s on each device; rollout_batch_size bounds the rows", plan)

    def _max_block(self) -> int:
        block_size = parse_block_size(self.args.rollout_block_size)
        if self.args.rollout == "ar" or self.drafter is None:
            return 0
        return self.drafter.bd_size if block_size == "auto" else block_size


def refuse_banned_ends(eos_token_ids: Sequence[int], banned_token_ids: Sequence[int]) -> None:
    """Check that completions can end.

    Raises:
        ConfigError: an end token is among those that are never chosen.
    """
    both = sorted({*eos_token_ids} & {*banned_token_ids})
    if both:
        raise ConfigError(f"generation_kwargs: suppress_tokens has {both}, which end a completion; leave them out")


def generation_seed(seed: int, step: int, generation: int) -> int:
    """The seed of one generation's noise.

    Args:
        seed: of the run.
        step: optimiser steps done before it.
        generation: how many generations the current optimiser step has had before it.
    """
    return int(np.random.SeedSequence([seed, step, generation]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def decoding_inputs(prompts: Prompts, pad_token_id: int, device: torch.device) -> dict[str, Tensor]:
    """The prompts as ``generate`` takes them: left-padded (N, P) tensors, and the images' tensors as they are."""
    inputs = {
        "input_ids": _pad_left(prompts.ids, pad_token_id),
        "attention_mask": _pad_left([[1] * len(ids) for ids in prompts.ids], 0),
        "mm_token_type_ids": _pad_left(prompts.fields["mm_token_type_ids"], 0),
    }
    if "pixel_values" in prompts.fields:
        inputs |= {name: torch.as_tensor(prompts.fields[name]) for name in ("pixel_values", "image_grid_thw")}
    return {name: value.to(device) for name, value in inputs.items()}


def _pad_left(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    tensors = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value, padding_side="left")


def _slice_fields(fields: dict[str, Any], images: Sequence[Any] | None, rows: slice) -> dict[str, Any]:
    """The rows' share of a processor's multimodal output.

    Fields with an entry a prompt are lists of length N; arrays and tensors have an entry an image, but
    ``pixel_values`` beside ``image_grid_thw`` has a row a patch.
    """
    if images is None:
        return fields
    counts = [len(row_images or ()) for row_images in images]
    first, last = sum(counts[: rows.start]), sum(counts[: rows.stop])
    grid = fields.get("image_grid_thw")
    sliced: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list):
            sliced[name] = value[rows]
        elif name == "pixel_values" and grid is not None:
            patches = torch.as_tensor(grid).prod(dim=-1)
            sliced[name] = value[int(patches[:first].sum()) : int(patches[:last].sum())]
        elif len(value) == sum(counts):
            sliced[name] = value[first:last]
        else:
            raise ConfigError(f"rollout_batch_size does not work with this model: cannot split its input {name!r}")
    return sliced
