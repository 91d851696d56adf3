"""Reads a batch of held-out crops with one of the rollout engines, all of which write the same completions.

``ar`` and ``self_spec`` are ``gravity_rl.decoding``. ``transformers`` is ``model.generate``, for any model, with the
noise of ``gravity_rl.decoding`` added to the logits: there is one definition of a sample. Used by
``gravity_rl.evaluate``.

Shapes: B rows of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from transformers import (
    GenerationConfig,
    GlmOcrForConditionalGeneration,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)

from gravity_rl.decoding import BatchStats, Decoded, DecodeMemoryError, DecodeStats, generate
from gravity_rl.decoding.noise import gumbel_noise
from gravity_rl.drafting_metrics import drafting_values, forward_values, sum_by_task
from gravity_rl.joint.drafter import BlockDiffusion
from gravity_rl.joint.tokens import decoding_tokens
from gravity_rl.metrics import ALL_TASKS, DECODINGS
from gravity_rl.model import ModelError


@dataclass(frozen=True)
class Method:
    """How crops are read; the predictions are the same with every engine.

    Attributes:
        rollout: one of ``ROLLOUT_ENGINES``.
        block_size: tokens that ``self_spec`` drafts at once.
        drafter: the checkpoint's, needed by ``self_spec``.
    """

    rollout: str
    block_size: int | Literal["auto"] = "auto"
    drafter: BlockDiffusion | None = None


class RowNoise(LogitsProcessor):
    """Adds the noise of ``gravity_rl.decoding`` to the logits of one call of ``model.generate``, so that its argmax is
    the sample that ``generate`` draws.

    Args:
        seed: seed of the evaluation.
        rows: dataset position of each row of the batch, B of them.
        device: where the logits are.
    """

    def __init__(self, seed: int, rows: Sequence[int], device: torch.device):
        self._seed = seed
        self._rows_B = torch.tensor(list(rows), dtype=torch.long, device=device)
        self._position = 0  # in the completions, which all grow by one token a call

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores (B, V) with the noise of the next position, fp32."""
        positions_B1 = torch.full_like(self._rows_B, self._position)[:, None]
        self._position += 1
        return gumbel_noise(self._seed, self._rows_B, positions_B1, scores.size(1))[:, 0] + scores


@dataclass(frozen=True)
class Cost:
    """What a batch took; ``rows`` has an entry for each of its crops."""

    decoding: str
    tasks: list[str]
    rows: list[DecodeStats]
    batch: BatchStats


def decoding_costs(rollout: str, costs: Sequence[Cost]) -> dict[str, Any]:
    """The engine, forwards and seconds by decoding, and tokens a round and the like by task; empty without counts."""
    if not costs:
        return {}
    result: dict[str, Any] = {"rollout": rollout}
    for decoding in DECODINGS:
        of_decoding = [cost for cost in costs if cost.decoding == decoding]
        tasks = [task for cost in of_decoding for task in cost.tasks]
        rows = [stats for cost in of_decoding for stats in cost.rows]
        groups = {ALL_TASKS: DecodeStats.total(rows)} | sum_by_task(tasks, rows)
        result[decoding] = forward_values([cost.batch for cost in of_decoding])
        result[decoding] |= {task: drafting_values(stats) for task, stats in groups.items()}
    return result


class Reader:
    """Reads batches of crops with one engine.

    Args:
        model, processor, method, seed, max_new_tokens: as for :func:`gravity_rl.evaluate.evaluate`.

    Raises:
        ModelError: the checkpoint's tokens contradict each other.
    """

    def __init__(self, model: PreTrainedModel, processor: Any, method: Method, seed: int, max_new_tokens: int):
        self.model, self.method, self.seed, self.max_new_tokens = model, method, seed, max_new_tokens
        mask_id = None if method.drafter is None else method.drafter.mask_id
        self.end_ids, self.banned_ids = decoding_tokens(model, processor, mask_id)
        self.pad_id = processor.tokenizer.pad_token_id

    def read(self, inputs: Any, crops: Sequence[dict[str, Any]]) -> tuple[list[list[int]], list[Cost]]:
        """Ids of a batch's completions, and what they took if the engine counts it.

        Args:
            inputs: processor output for B prompts.
            crops: B of them, each with ``row``, ``id``, ``task`` and, the same for all, ``decoding``.

        Raises:
            ModelError: the model's logits are not finite, or the batch does not fit into memory.
        """
        rows, decoding = [crop["row"] for crop in crops], crops[0]["decoding"]
        if self.method.rollout == "transformers":
            return self._transformers(inputs, rows, decoding), []
        try:
            out = self._decoded(inputs, rows, decoding)
        except FloatingPointError as error:
            names = ", ".join(crop["id"] for crop in crops)
            raise ModelError(f"crops {names}: {error}: the weights are damaged, or training has diverged") from error
        except DecodeMemoryError as error:
            raise ModelError(f"evaluation_batch_size: {len(crops)} crops at once are too many: {error}") from error
        ids = [sequence.tolist() for sequence in out.sequences]
        return ids, [Cost(decoding, [crop["task"] for crop in crops], out.row_stats, out.stats)]

    def _decoded(self, inputs: Any, rows: Sequence[int], decoding: str) -> Decoded:
        return generate(
            cast(GlmOcrForConditionalGeneration, self.model),
            inputs,
            method=cast(Literal["ar", "self_spec"], self.method.rollout),
            max_new_tokens=self.max_new_tokens,
            eos_token_ids=self.end_ids,
            banned_token_ids=self.banned_ids,
            block_size=self.method.block_size,
            drafter=self.method.drafter,
            temperature=float(decoding == "sampled"),
            seed=self.seed,
            row_ids=rows,
        )

    def _transformers(self, inputs: Any, rows: Sequence[int], decoding: str) -> list[list[int]]:
        generation = GenerationConfig(
            do_sample=False,
            max_new_tokens=self.max_new_tokens,
            eos_token_id=self.end_ids,
            pad_token_id=self.pad_id,
            suppress_tokens=self.banned_ids,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            disable_compile=True,
        )
        noise = [RowNoise(self.seed, rows, self.model.device)] if decoding == "sampled" else []
        output = self.model.generate(
            **inputs, generation_config=generation, logits_processor=LogitsProcessorList(noise)
        )  # (B, prompt and completion)
        ends = set(self.end_ids)
        return [_until_end(ids, ends) for ids in output[:, inputs["input_ids"].size(1) :].tolist()]


def _until_end(ids: list[int], ends: set[int]) -> list[int]:
    """The ids up to the first end token; all of them without one."""
    return ids[: next((index + 1 for index, id_ in enumerate(ids) if id_ in ends), len(ids))]


def format_costs(costs: Mapping[str, Any]) -> str:
    """One line for each decoding: the engine, its forwards and tokens a round."""
    return "\n".join(
        f"{costs['rollout']}, {decoding}: {costs[decoding]['forwards']:.0f} forwards, "
        f"{costs[decoding][ALL_TASKS]['tokens_per_round']:.2f} tokens per round"
        for decoding in DECODINGS
    )
