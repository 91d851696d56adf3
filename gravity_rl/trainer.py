"""GRPO trainer for OCR: TRL's ``GRPOTrainer`` plus records of every rollout, per-task metrics and strict
rewards.

Only TRL's hooks are overridden: ``_generate_single_turn`` (generates in chunks), ``_calculate_rewards``
(checks, records and, in the control experiment, shuffles the rewards of all ranks) and
``_generate_and_score_completions`` (adds the advantages to the records and writes them). Loss, sampling,
reference model and checkpoints are TRL's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import gather, gather_object
from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback

from gravity_rl.config import OCR_REWARD, GravityConfig
from gravity_rl.grpo_checkpoint import CheckpointedGRPOTrainer
from gravity_rl.joint.drafter import BlockDiffusion
from gravity_rl.metrics import Rollout, rollout_metrics
from gravity_rl.model import never_sampled_ids
from gravity_rl.parsing import ConfigError
from gravity_rl.recorder import RunDirectory
from gravity_rl.reward_functions import RecordedOCRReward, RewardError, RewardFunction


class GravityTrainer(CheckpointedGRPOTrainer):
    """Thin subclass of ``GRPOTrainer`` with exact checkpoints; see the module docstring.

    Args:
        model: the policy; its checkpoint folder is also that of the frozen reference.
        reward_functions: TRL reward functions; every one must return a finite number for every completion, except
            that the OCR reward may leave completions out that its workers could not score.
        args: training settings.
        train_dataset: rows with columns prompt, image, task, reference, id and source.
        processor: image and text processor of the model.
        run: the run directory, which records rollouts and metrics.
        settings: what a resumed run must have in common with this one.
        drafter: that of the start checkpoint, which its successors keep: it changes with the shared weights.
        callbacks: further callbacks.
    """

    args: GravityConfig

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        reward_functions: Sequence[RewardFunction],
        args: GravityConfig,
        train_dataset: Dataset,
        processor: Any,
        run: RunDirectory,
        settings: dict[str, Any] | None = None,
        drafter: BlockDiffusion | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ):
        self.run = run
        self._rollouts: list[Rollout] = []
        generation = dict(args.generation_kwargs or {})
        banned = {*generation.get("suppress_tokens", ()), *never_sampled_ids(model, processor.tokenizer)}
        args.generation_kwargs = {**generation, "suppress_tokens": sorted(banned)}
        super().__init__(
            model=model,
            reward_funcs=list(reward_functions),
            args=args,
            train_dataset=train_dataset,
            processing_class=processor,
            callbacks=list(callbacks),
            settings=settings,
            drafter=drafter,
        )
        run.attach(self)

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        """Completions of one rank's prompts, ``rollout_batch_size`` at a time: ids and no
        log-probabilities."""
        size = self.args.rollout_batch_size or len(prompt_ids)
        if size >= len(prompt_ids):
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations)
        completion_ids: list[list[int]] = []
        for start in range(0, len(prompt_ids), size):
            rows = slice(start, start + size)
            fields = _slice_fields(multimodal_fields, images, rows)
            chunk_images = None if images is None else images[rows]
            ids, _ = super()._generate_single_turn(prompt_ids[rows], chunk_images, fields, num_generations)
            completion_ids += ids
        return completion_ids, None

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Rewards of all ranks' completions by function, shape (ranks × B, F), after they were recorded.

        Raises:
            RewardError: a reward is not a finite number; the generation's rollouts are on disk by then.
        """
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if not self.model.training:
            return rewards
        self._rollouts = self._record(inputs, completions, completion_ids_list, rewards)
        self._refuse_non_finite(rewards)
        rewards[self._is_unscored(rewards)] = math.nan  # whatever the other functions say
        return self._shuffled(rewards) if self.args.shuffle_rewards else rewards

    def _record(self, inputs, completions, completion_ids_list, rewards) -> list[Rollout]:
        """One record for each completion of this generation, of all ranks, in the order of ``rewards``."""
        ocr = next((function for function in self.reward_funcs if isinstance(function, RecordedOCRReward)), None)
        parts = ocr.parts if ocr is not None else [{}] * len(inputs)
        local = [
            {
                "id": row["id"],
                "source": row["source"],
                "task": row["task"],
                "completion": completion[0]["content"],
                "reference": row["reference"],
                "parts": part,
                "length": len(ids),
                "truncated": ids[-1] not in self.eos_token_ids,
            }
            for row, completion, ids, part in zip(inputs, completions, completion_ids_list, parts, strict=True)
        ]
        names = self.reward_func_names
        totals = (rewards * self.reward_weights.to(rewards.device)).sum(dim=1).tolist()
        return [
            Rollout(
                step=self.state.global_step + 1,
                prompt_id=index // self.num_generations,
                reward=_finite(total),
                rewards=dict(zip(names, map(_finite, values), strict=True)),
                **record,
            )
            for index, (record, values, total) in enumerate(
                zip(gather_object(local), rewards.tolist(), totals, strict=True)
            )
        ]

    def _refuse_non_finite(self, rewards: torch.Tensor) -> None:
        is_bad = ~torch.isfinite(rewards)
        is_bad[self._is_unscored(rewards)] = False
        bad = is_bad.nonzero().tolist()
        if not bad:
            return
        path = self.run.write_rollouts(self._rollouts)
        where = "" if self.args.dry_run else f"; the step's rollouts are in {path}"  # those of a dry run are deleted
        index, function = bad[0]
        row = self._rollouts[index]
        raise RewardError(
            f"reward function {self.reward_func_names[function]!r} returned "
            f"{rewards[index, function].item()} (None reads as nan) for row {row.id!r} of task {row.task!r}: "
            f"{len(bad)} of {rewards.numel()} rewards of step {row.step} are no finite numbers{where}"
        )

    def _is_unscored(self, rewards: torch.Tensor) -> torch.Tensor:
        """Which rows of ``rewards`` (N, F) the workers of the OCR reward could not score, as booleans (N,)."""
        if not self.args.reward_workers:
            return torch.zeros(len(rewards), dtype=torch.bool, device=rewards.device)
        return torch.isnan(rewards[:, self.reward_func_names.index(OCR_REWARD)])

    def _shuffled(self, rewards: torch.Tensor) -> torch.Tensor:
        """The rewards permuted within each group, the same way on every rank. ``rewards``: (N, F)."""
        generator = torch.Generator().manual_seed(self.args.seed * 1_000_003 + self.state.global_step)
        groups = rewards.view(-1, self.num_generations, rewards.size(1)).clone()
        for group in groups:
            group.copy_(group[torch.randperm(self.num_generations, generator=generator).to(group.device)])
        return groups.view_as(rewards)

    def _generate_and_score_completions(self, inputs):
        """TRL's batch; in training, also records the generation and its per-task metrics."""
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            advantages = gather(output["advantages"]).tolist()
            rollouts = [
                dataclasses.replace(rollout, advantage=advantage)
                for rollout, advantage in zip(self._rollouts, advantages, strict=True)
            ]
            self.run.write_rollouts(rollouts)
            if self.args.reward_workers:
                unscored = sum(rollout.rewards[OCR_REWARD] is None for rollout in rollouts)
                self._metrics["train"]["rewards/unscored"].append(float(unscored))
            for name, value in rollout_metrics(rollouts).items():
                self._metrics["train"][name].append(value)
        return output

    def close(self) -> None:
        """End the worker processes of the OCR reward."""
        for function in self.reward_funcs:
            if isinstance(function, RecordedOCRReward):
                function.close()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _slice_fields(fields: dict[str, Any], images: Sequence[Any] | None, rows: slice) -> dict[str, Any]:
    """The rows' share of a processor's multimodal output.

    Fields with an entry a prompt are lists of length B; arrays and tensors have an entry an image, but
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
